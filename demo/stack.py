"""
Start the processes of the demo (the stack): emulators, API, workers, subscriber and consumers.

The processes find each other only through the settings in their environment.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import aiohttp
from azure.cosmos.aio import ContainerProxy, CosmosClient

from cosmos_outbox_testing.verify.child_processes import Child, Children
from examples.contacts.provision import provision

DATABASE, DATA, LEASES, PARKED, DIRECTORY = "contacts", "data", "leases", "parked", "directory"
DIRECTORY_CONSUMER = "examples.contacts.directory:consumer"
OF_CONSUMERS = {"OUTBOX_COSMOS_CONTAINER": DIRECTORY, "OUTBOX_SUBSCRIPTION": DIRECTORY}
_SUBSCRIPTION = {"requires_session": True, "max_delivery_count": 10, "dead_letter_on_expiration": True}
_TOPICS = {
    "topics": [
        {
            "name": "events",
            "dedup_window_s": 600,
            "subscriptions": [
                {"name": "all", **_SUBSCRIPTION, "lock_s": 30},
                # Five seconds is the shortest lock that Service Bus allows. A consumer that hangs keeps its sessions for as long
                # as the lock lasts, so a short lock keeps the demo short.
                {"name": DIRECTORY, **_SUBSCRIPTION, "lock_s": 5},
            ],
        },
        {
            "name": DIRECTORY,
            "dedup_window_s": 600,
            "subscriptions": [{"name": "all", **_SUBSCRIPTION}],
        },
    ]
}
# Microsoft's Service Bus emulator accepts only ten connections. These small numbers let two workers and the receivers share them.
_FEW_LANES = {"OUTBOX_LANES": "2"}
_FEW_RECEIVERS, _RECEIVERS = "4", "200"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTimes:
    """
    How long a lease of the demo lasts without a renewal: far less than the default of 60 s. Otherwise the demo would wait a minute
    until another worker takes over the leases of the killed worker.
    """

    expiration_seconds: float = 4

    def __str__(self) -> str:
        return f"expire {self.expiration_seconds:g} s (default: 60)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounts:
    """
    The connection strings of a Cosmos DB account and a Service Bus namespace that run already, such as Microsoft's emulators.
    """

    cosmos: str
    servicebus: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StackOptions:
    """What a demo starts: which emulators, how many workers and consumers, and with which settings."""

    accounts: Accounts | None = None  # None: start this project's emulators, with `partitions` partitions
    # the arguments after `python` that start the emulators
    emulators: tuple[str, ...] = ("-m", "cosmos_outbox_emulators")
    partitions: int = 2
    workers: int = 2
    consumers: int = 2  # how many processes of the consumer are started; none if `accounts` is given
    consumer: str = DIRECTORY_CONSUMER
    receiver: str = "sdk"  # how consumers receive: "sdk" or "amqp", as in OUTBOX_RECEIVER
    sdk_only: bool = False
    api_port: int = 0  # 0 takes any free port
    leases: LeaseTimes = LeaseTimes()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """The addresses and processes of a demo that runs."""

    api_url: str
    cosmos: str
    servicebus: str
    control: str | None
    record: Path
    children: Children
    workers: tuple[Child, ...]
    consumers: tuple[Child, ...]
    # The environment variables of every process but the emulators. Each worker and consumer also gets its own name.
    environment: Mapping[str, str]
    leases: ContainerProxy
    directory: ContainerProxy

    async def replace_what_dies(self, told: Callable[[Child], None]) -> None:
        """If a worker or consumer dies by itself, call `told` with it and start it again, as Kubernetes would."""
        start = {worker.name: start_worker for worker in self.workers}
        start |= {consumer.name: start_consumer for consumer in self.consumers}
        async with asyncio.TaskGroup() as group:
            for child in (*self.workers, *self.consumers):
                again = partial(start[child.name], self.children, child.name, self.environment)
                group.create_task(self.children.replace(child, again, told))


@asynccontextmanager
async def open_stack(children: Children, directory: Path, options: StackOptions) -> AsyncIterator[Stack]:
    """
    Start all processes of the demo, wait until the API answers, and yield them as a stack.

    The processes go on running after this context manager ends. They end when the context manager `children` ends.

    Raises:
        ChildDied: a process could not start. Its log says why.
    """
    base = _clean_environment()
    if options.accounts is None:
        config = directory / "servicebus.json"
        config.write_text(json.dumps(_TOPICS), encoding="utf-8")
        arguments = ("--json", "--partitions", str(options.partitions), "--config", str(config))
        emulators = await children.start(
            "emulators",
            (*options.emulators, *arguments),
            env=base,
            announces=True,
        )
        announced = await emulators.announcement()
        cosmos, servicebus, control = announced["cosmos"], announced["servicebus"], announced["control"]
    else:
        cosmos, servicebus, control = options.accounts.cosmos, options.accounts.servicebus, None
        base |= _FEW_LANES
    await children.guard(
        provision(cosmos, database=DATABASE, data=DATA, leases=LEASES, parked=PARKED, directory=DIRECTORY)
    )

    record = directory / "received.jsonl"
    env = _environment(cosmos, servicebus, options) | base
    api = await children.start(
        "api",
        ("-m", "examples.contacts", "api", "--json", "--port", str(options.api_port)),
        env=env,
        announces=True,
    )
    await children.start(
        "subscriber",
        ("-m", "examples.contacts", "subscriber", "--record", str(record)),
        # A receiver needs about two seconds for a session, even if the session has one message only. The load opens about fifty
        # sessions a second, so the subscriber needs many receivers.
        env={**env, "OUTBOX_RECEIVERS": _FEW_RECEIVERS if options.accounts else _RECEIVERS},
    )
    workers = [
        await start_worker(children, f"worker-{number}", env) for number in range(1, options.workers + 1)
    ]
    consumers = [
        await start_consumer(
            children, f"consumer-{number}", {**env, "OUTBOX_RECEIVER": options.receiver}, options.consumer
        )
        for number in range(1, 1 + (options.consumers if options.accounts is None else 0))
    ]
    api_url = str((await children.guard(api.announcement()))["url"])
    await children.guard(_wait_until_healthy(api_url))
    async with CosmosClient.from_connection_string(cosmos) as client:
        yield Stack(
            api_url=api_url,
            cosmos=cosmos,
            servicebus=servicebus,
            control=control,
            record=record,
            children=children,
            workers=tuple(workers),
            consumers=tuple(consumers),
            environment=env,
            leases=client.get_database_client(DATABASE).get_container_client(LEASES),
            directory=client.get_database_client(DATABASE).get_container_client(DIRECTORY),
        )


async def start_worker(children: Children, name: str, environment: Mapping[str, str]) -> Child:
    """Start one worker process. The leases that it acquires show its name as their owner."""
    return await children.start(
        name, ("-m", "cosmos_outbox_worker", "worker"), env={**environment, "OUTBOX_INSTANCE_NAME": name}
    )


async def start_consumer(
    children: Children, name: str, environment: Mapping[str, str], consumer: str = DIRECTORY_CONSUMER
) -> Child:
    """Start one process of a consumer. It receives from the directory's subscription and writes to the directory's container."""
    own = {**OF_CONSUMERS, "OUTBOX_INSTANCE_NAME": name}
    arguments = ("-m", "cosmos_outbox_worker", "consume", consumer)
    return await children.start(name, arguments, env={**environment, **own})


def _clean_environment() -> dict[str, str]:
    # Leave out the OUTBOX_ settings of this shell: they may name a real account, which no process of the demo may use.
    return {name: value for name, value in os.environ.items() if not name.upper().startswith("OUTBOX_")}


def _environment(cosmos: str, servicebus: str, options: StackOptions) -> dict[str, str]:
    leases = options.leases
    return {
        "OUTBOX_COSMOS_CONNECTION_STRING": cosmos,
        "OUTBOX_COSMOS_DATABASE": DATABASE,
        "OUTBOX_COSMOS_CONTAINER": DATA,
        "OUTBOX_LEASE_CONTAINER": LEASES,
        "OUTBOX_PARKED_CONTAINER": PARKED,
        "OUTBOX_SERVICEBUS_CONNECTION_STRING": servicebus,
        "OUTBOX_TOPIC": "events",
        "OUTBOX_SUBSCRIPTION": "all",
        "OUTBOX_PROCESSOR_NAME": "outbox",
        "OUTBOX_SDK_ONLY": str(options.sdk_only).lower(),
        "OUTBOX_HEALTH_PORT": "0",  # any free port: workers share this machine, and each logs its port
        "OUTBOX_LEASE_EXPIRATION_SECONDS": str(leases.expiration_seconds),
    }


async def _wait_until_healthy(api_url: str) -> None:
    # The API's socket accepts connections before the application has started. So the answer to one request shows that it has started.
    timeout = aiohttp.ClientTimeout(total=60)
    async with (
        aiohttp.ClientSession(api_url, timeout=timeout, raise_for_status=True) as session,
        session.get("/healthz"),
    ):
        pass
