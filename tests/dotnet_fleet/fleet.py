"""
Run .NET change feed processors and workers of this library on one container, wait until they share it, and check the messages.

The .NET program in the folder `program` does what Microsoft's sample does: its service commits contacts with their events, and its worker
sends each event to the topic.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from azure.cosmos.aio import ContainerProxy, CosmosClient
from azure.servicebus import ServiceBusReceivedMessage, ServiceBusReceiveMode
from azure.servicebus.aio import ServiceBusClient

from cosmos_outbox.adapters.cosmos.client import open_cosmos_client
from cosmos_outbox_testing.verify.child_processes import Child, Children
from examples.contacts.provision import provision
from tests.support.patience import HUNG_SECONDS

ROOT = Path(__file__).parents[2]
BUILD_SECONDS = 600
RANGES = 8
PROCESSOR = "outbox"
EXPIRATION_SECONDS = 5  # a lease expires sooner than by default, and all intervals are shorter in proportion
_INTERVALS = {
    "EXPIRATION": f"{EXPIRATION_SECONDS}",
    "ACQUIRE": f"{EXPIRATION_SECONDS * 13 / 60:.3f}",
    "RENEW": f"{EXPIRATION_SECONDS * 17 / 60:.3f}",
}
_WATCH_SECONDS = 0.1
_RECEIVERS = 8
NAME = "cosmos.example"  # a host name that our workers and .NET resolve to this machine, without a DNS
# `Children` starts only Python programs and ends them with the test. This Python program replaces itself with
# the .NET program.
_BECOME = "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])"

_NAMED = f"""
import socket
from cosmos_outbox_worker.cli import main
ask = socket.getaddrinfo
socket.getaddrinfo = lambda host, *rest, **named: ask("127.0.0.1" if host == {NAME!r} else host, *rest, **named)
main()
"""


def built(folder: Path) -> Path:
    """Build the .NET program in a copy of its folder, and return its DLL. Skip the test if .NET or its packages are missing."""
    if shutil.which("dotnet") is None:
        pytest.skip("NOT TESTED: dotnet is not on this machine")
    sources = shutil.copytree(Path(__file__).parent / "program", folder / "program")
    restored = _dotnet(sources, "restore", "--verbosity", "quiet")
    if restored.returncode:
        pytest.skip(f"NOT TESTED: dotnet restore: {restored.stdout.strip().splitlines()[-1:]!r:.200}")
    done = _dotnet(sources, "build", "--no-restore", "--output", "built", "--verbosity", "quiet")
    assert 0 == done.returncode, done.stdout
    return sources / "built/Peer.dll"


def _dotnet(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603 - our own program
        ["dotnet", *command],  # noqa: S607 - wherever this system has it
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS,
        check=False,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Emulators:
    """
    The running emulators, and what a fleet of workers needs to use them: the .NET program, child processes, and
    clients.
    """

    program: Path
    children: Children
    announced: dict[str, str]
    control: aiohttp.ClientSession
    client: CosmosClient

    async def told(self, method: str, path: str, **fields: Any) -> Any:
        async with self.control.request(method, path, json=fields) as answer:
            return await answer.json() if answer.status == 200 else None


@asynccontextmanager
async def emulators(program: Path, folder: Path, topics: dict[str, bool]) -> AsyncIterator[Emulators]:
    """Start both emulators in a process. `topics` has the names of the topics, and whether each detects duplicates."""
    subscription = {"name": "all", "requires_session": True, "lock_s": 60}
    configured = [
        {"name": name, "dedup_window_s": 600 if detects else None, "subscriptions": [subscription]}
        for name, detects in topics.items()
    ]
    (folder / "topics.json").write_text(json.dumps({"topics": configured}))
    given = ("--json", "--partitions", str(RANGES), "--config", str(folder / "topics.json"))
    async with Children(folder) as children:
        process = await children.start(
            "emulators", ("-m", "cosmos_outbox_emulators", *given), env=os.environ, announces=True
        )
        announced = await process.announcement()
        async with (
            open_cosmos_client(connection_string=announced["cosmos"]) as client,
            aiohttp.ClientSession(announced["control"], raise_for_status=True) as control,
        ):
            yield Emulators(
                program=program, children=children, announced=announced, control=control, client=client
            )


class Fleet:
    """
    A fleet of .NET workers and workers of this library, on one container and one topic.

    Args:
        emulators: the running emulators.
        name: the name of the database, which is also the name of the topic.
        host: the host name under which all workers reach Cosmos DB.

    Attributes:
        patience: how many seconds `until` waits for a condition.
    """

    def __init__(self, emulators: Emulators, name: str, *, host: str = "127.0.0.1") -> None:
        self._emulators, self._name = emulators, name
        self._cosmos = emulators.announced["cosmos"].replace("127.0.0.1", host)
        self.patience = HUNG_SECONDS
        self._writers: list[Child] = []
        self._database = emulators.client.get_database_client(name)

    async def create(self) -> Fleet:
        await provision(self._emulators.announced["cosmos"], database=self._name)
        return self

    @property
    def data(self) -> ContainerProxy:
        return self._database.get_container_client("data")

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables with which a worker or a command of this library finds the emulators."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith("OUTBOX_")}
        return clean | {
            "NO_PROXY": f"127.0.0.1,localhost,{NAME}",
            "PYTHONPATH": str(ROOT),
            "OUTBOX_COSMOS_CONNECTION_STRING": self._cosmos,
            "OUTBOX_COSMOS_DATABASE": self._name,
            "OUTBOX_COSMOS_CONTAINER": "data",
            "OUTBOX_SERVICEBUS_CONNECTION_STRING": self._emulators.announced["servicebus"],
            "OUTBOX_TOPIC": self._name,
            "OUTBOX_PROCESSOR_NAME": PROCESSOR,
            "OUTBOX_LEASE_EXPIRATION_SECONDS": str(EXPIRATION_SECONDS),
            "OUTBOX_HEALTH_PORT": "0",
        }

    # .NET

    async def _dotnet(self, name: str, *arguments: str, **variables: str) -> Child:
        endpoint, key = (part.split("=", 1)[1] for part in self._cosmos.rstrip(";").split(";"))
        env = {
            "COSMOS_ENDPOINT": endpoint,
            "COSMOS_KEY": key,
            "DATABASE": self._name,
            "TOPIC": self._name,
            "PROCESSOR": PROCESSOR,
            "SERVICEBUS": self._emulators.announced["servicebus"],
            "NO_PROXY": f"127.0.0.1,localhost,{NAME}",
            # profiling would cost more than it saves, because the process runs for seconds only
            "DOTNET_TieredPGO": "0",
        }
        command = ("-c", _BECOME, "dotnet", str(self._emulators.program), *arguments)
        return await self._emulators.children.start(
            f"{self._name}-{name}", command, env=os.environ | env | _INTERVALS | variables
        )

    async def dotnet(self, name: str, **variables: str) -> Child:
        """Start a worker of the .NET program under this name, with these environment variables."""
        return await self._dotnet(name, "work", name, **variables)

    async def asked(self, *arguments: str, **variables: str) -> str:
        """Run a command of the .NET program until it ends. Return the last line that it prints, or all its output if it fails."""
        child = await self._dotnet("-".join(("asked", arguments[0])), *arguments, **variables)
        child.ending = True
        await child.wait()
        lines = child.log.read_text().splitlines()
        return lines[-1] if child.exit_code == 0 else child.log.read_text()

    async def estimated(self, **variables: str) -> dict[str, tuple[str | None, int]]:
        """Return the owner and the lag of each lease, as the estimator of the .NET SDK reports them."""
        found = json.loads(await self.asked("estimate", **variables))
        return {
            token: (one["InstanceName"] or None, one["EstimatedLag"]) for token, one in sorted(found.items())
        }

    @asynccontextmanager
    async def written(self, *, contacts: int, a_second: int) -> AsyncIterator[None]:
        """Let the .NET service commit while the `async with` block runs."""
        number = len(self._writers)
        given = (str(contacts), str(number * 1000), str(a_second))
        self._writers.append(await self._dotnet(f"service-{number}", "commit", *given))
        yield
        await self.stop(self._writers[-1])

    async def write(self, commits: int, *, contacts: int = 10) -> None:
        """Let the .NET service make at least this number of commits."""
        async with self.written(contacts=contacts, a_second=100):
            await self.until_committed(commits)

    def committed(self) -> dict[str, list[str]]:
        """Return the ids of the events that the .NET service committed, by partition key and in order, according to its log."""
        found: dict[str, list[str]] = defaultdict(list)
        for writer in self._writers:
            for line in writer.log.read_text().splitlines():
                if line.startswith("committed "):
                    _, key, event = line.split()
                    found[key].append(event)
        return dict(found)

    async def until_committed(self, more: int) -> None:
        wanted = sum(map(len, self.committed().values())) + more
        await self.until(
            lambda: sum(map(len, self.committed().values())) >= wanted, lambda: f"{wanted} commits"
        )

    # The next methods run workers and commands of this library.

    async def ours(self, name: str, *, mistake: str | None = None, **variables: str) -> Child:
        """Start a worker of this library. With `mistake`, the worker makes this planted mistake in its leases."""
        planted = ("-m", "tests.dotnet_fleet.planted_worker", mistake)
        command = planted if mistake else ("-c", _NAMED)
        env = self.environment | {"OUTBOX_INSTANCE_NAME": name} | variables
        return await self._emulators.children.start(f"{self._name}-{name}", (*command, "worker"), env=env)

    async def command(self, *arguments: str) -> Any:
        """Run a command of this library with --json, and return its output."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "cosmos_outbox_worker", *arguments, "--json"),
            env=self.environment,
            stdout=subprocess.PIPE,
        )
        output, _ = await process.communicate()
        return json.loads(output)

    async def stop(self, child: Child) -> None:
        """Stop a worker with SIGTERM. Require that it ends with exit code 0 and has released all its leases."""
        child.signal(signal.SIGTERM)
        await child.wait()
        assert 0 == child.exit_code, f"{child.name}: {child.state}\n{child.tail()}"
        kept = (await self.owners())[child.name.removeprefix(f"{self._name}-")]
        assert 0 == kept, f"{child.name} ended in order and kept {kept} leases"

    # The following methods read the state of the fleet, or wait until it has a certain state.

    async def leases(self) -> list[dict[str, Any]]:
        container = self._database.get_container_client("leases")
        return [
            item async for item in container.query_items("SELECT * FROM c WHERE IS_DEFINED(c.LeaseToken)")
        ]

    async def lease_ids(self) -> set[str]:
        return {str(lease["id"]) for lease in await self.leases()}

    async def owners(self) -> Counter[str | None]:
        return Counter(lease.get("Owner") for lease in await self.leases())

    async def shared(self, *names: str, ranges: int = RANGES) -> None:
        """Wait until these workers share all leases evenly: no worker owns two leases more than another."""
        seen: Counter[str | None] = Counter()

        async def fact() -> bool:
            nonlocal seen
            seen = await self.owners()
            evenly = seen and max(seen.values()) - min(seen.values()) <= 1
            return bool(seen.keys() == set(names) and evenly and seen.total() == ranges)

        await self.until(fact, lambda: f"{', '.join(names)} share {ranges} leases: {dict(seen)}")

    async def gone(self, name: str) -> None:
        """Wait until the worker of this name owns no lease any more."""

        async def fact() -> bool:
            return name not in await self.owners()

        await self.until(fact, lambda: f"{name} owns no lease")

    async def split(self, owner: str) -> None:
        """Split a range whose lease a worker owns. Wait until the leases of the children have replaced this lease."""
        token = next(lease["LeaseToken"] for lease in await self.leases() if lease["Owner"] == owner)
        of = {"database": self._name, "container": "data", "range": token}
        children = (await self._emulators.told("POST", "/cosmos/split", **of))["children"]

        async def fact() -> bool:
            tokens = {lease["LeaseToken"] for lease in await self.leases()}
            return token not in tokens and set(children) <= tokens

        await self.until(fact, lambda: f"the lease {token} of {owner} gives way to {children}")

    async def until(self, fact: Callable[[], bool | Awaitable[bool]], says: Callable[[], str]) -> None:
        """
        Wait until a condition holds.

        Raises:
            AssertionError: the condition did not hold within `patience` seconds. The error contains what `says` returns.
        """
        try:
            async with asyncio.timeout(self.patience):
                while True:
                    found = fact()
                    if found if isinstance(found, bool) else await found:
                        return
                    self._emulators.children.check()
                    await asyncio.sleep(_WATCH_SECONDS)
        except TimeoutError:
            raise AssertionError(f"The condition did not hold within {self.patience:g} s: {says()}") from None

    async def statistics(self) -> dict[str, int]:
        """Return the counters of the topic, such as `published` and `duplicates`."""
        found = await self._emulators.told("GET", "/servicebus/stats")
        return dict(found["topics"][self._name])

    async def sent(self, events: int) -> None:
        """Wait until the topic has accepted this number of messages. Duplicates that it dropped do not count."""
        seen = 0

        async def fact() -> bool:
            nonlocal seen
            counted = await self.statistics()
            seen = counted["published"]
            return seen >= events

        await self.until(fact, lambda: f"{events} events are on the topic: {seen}")

    async def received(self, *keys: str) -> list[ServiceBusReceivedMessage]:
        """
        Receive and delete the messages of some partition keys, by default of all keys that the .NET service wrote.

        The messages of each key are in order.
        """
        found: list[ServiceBusReceivedMessage] = []
        left = iter(keys or self.committed())
        async with ServiceBusClient.from_connection_string(self._emulators.announced["servicebus"]) as client:

            async def take() -> None:
                for key in left:
                    receiver = client.get_subscription_receiver(
                        self._name,
                        "all",
                        session_id=key,
                        receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE,
                    )
                    async with receiver:
                        while some := await receiver.receive_messages(1000, max_wait_time=0.2):
                            found.extend(some)

            async with asyncio.TaskGroup() as group:
                for _ in range(_RECEIVERS):
                    group.create_task(take())
        return found

    async def audit(self) -> Counter[str]:
        """
        Compare the messages in the topic with the committed events. Return how many of the messages each kind of worker sent.

        Raises:
            AssertionError: an event is missing or is there twice, or the events of a key are not in order.
        """
        committed = self.committed()
        await self.sent(sum(map(len, committed.values())))
        senders: Counter[str] = Counter()
        found: dict[str, list[str]] = defaultdict(list)
        for message in await self.received():
            found[str(message.session_id)].append(str(message.message_id))
            # Only the .NET sample sets the partition key of a message, so this shows which kind of worker
            # sent the message.
            senders["ours" if message.partition_key is None else ".NET"] += 1
        assert committed == dict(found), "an event is missing, copied or out of order"
        return senders
