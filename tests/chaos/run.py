"""
One chaos run: workers relay a load and consumers take it while scripts disturb both, and then all events are audited.

The run covers the whole chain: commit, relay, topic, consumer, its documents and events, and the relay of these events to a
second topic.
"""

from __future__ import annotations

import asyncio
import re
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
from azure.cosmos import PartitionKey
from azure.cosmos.exceptions import CosmosResourceNotFoundError

from cosmos_outbox import Outbox
from cosmos_outbox.adapters.cosmos.client import open_cosmos_client
from cosmos_outbox.adapters.cosmos.store import open_store
from cosmos_outbox_testing.verify.audit import Audit, CommittedEvent, audit
from cosmos_outbox_testing.verify.child_processes import Child, Children
from cosmos_outbox_testing.verify.load import Account, change_accounts
from demo.effects import Effects, count_effects, counted_up_to, effects_of, recorded_in
from demo.leases import lease_owners, wait_for_owners
from demo.received import RecordReader
from demo.stack import (
    DATA,
    DATABASE,
    DIRECTORY,
    Stack,
    StackOptions,
    open_stack,
    start_consumer,
    start_worker,
)
from examples.contacts.received import ReceivedMessage
from tests.chaos.fleet import Fleet
from tests.chaos.script import ON_PROCESSES, Disturbance, Kind, script
from tests.chaos.traced_fleet import WIPES
from tests.support.patience import HUNG_SECONDS

_WATCH_SECONDS = 0.25
_QUIET_SECONDS = 1.5
_CONSUMER = "tests.chaos.ledger:consumer"
_SECOND_LEASES = "directory-leases"
_LARGE_ONE_IN = 3  # every third account is large: each change of it brings 40 KB through the change feed
_PAPERS = [{"number": number, "text": f"paper {number} " + "x" * 60} for number in range(400)]
_CUTS = ("drop-before-store", "drop-after-store")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosOptions:
    """
    The size of a chaos run. The same seed gives the same script and load, but the order of concurrent steps still varies.
    """

    seconds: float
    seed: int
    workers: int = 3
    consumers: int = 3
    receiver: str = "sdk"
    sdk_only: bool = False
    partitions: int = 16
    most_partitions: int = 24
    accounts: int = 48
    commits_per_second: float = 60
    # The probability that a send loses its connection before the broker stores the messages. The probability
    # that it loses its connection after that, and before the answer, is the same.
    cut_probability: float = 0.04
    stalled_seconds: float = HUNG_SECONDS  # if no event arrives for this time, missing events count as lost
    memory_mb: int = 256  # how much memory a worker may use; the manifests allow twice as much
    record: Path | None = None  # the file in which the emulators record what they do


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """
    The result of the audit, and how often the fleet was disturbed.

    cuts: connections that the broker cut in the middle of a send.
    hot: how often a physical partition answered 429 for some seconds.
    outages: how often the broker refused all messages for some seconds.
    wiped: how often all leases were deleted while the workers ran.
    peak_mb: the most memory that any worker has used, in MiB; 0 where the operating system does not tell.
    second_topic: messages with the consumers' own events, sent by the worker of the consumers' container.
    resent: messages that the broker's duplicate detection dropped because a worker had sent them before.
    """

    audit: Audit
    effects: Effects
    done: dict[Kind, int]
    done_to_consumers: dict[Kind, int]
    second_topic: int
    splits: int
    resent: int
    cuts: int
    hot: int
    outages: int
    wiped: int
    peak_mb: int
    problems: tuple[str, ...]
    seed: int

    @property
    def passed(self) -> bool:
        """Say whether every event arrived once and in order, and no process failed by itself."""
        return self.audit.passed and self.effects.passed and not self.problems

    def as_dict(self) -> dict[str, int]:
        """Return the object that the last line of the output shows as JSON."""
        return {
            "committed": self.audit.committed,
            "delivered": self.audit.delivered,
            "lost": len(self.audit.lost),
            "duplicated": len(self.audit.duplicated),
            "out_of_order": len(self.audit.out_of_order),
            "kills": self.done[Kind.KILL],
            "stops": self.done[Kind.FREEZE],
            "effects": self.effects.effects,
            "effects_lost": len(self.effects.lost),
            "effects_doubled": len(self.effects.doubled),
            "effects_out_of_order": len(self.effects.out_of_order),
            "consumer_kills": self.done_to_consumers[Kind.KILL],
            "consumer_stops": self.done_to_consumers[Kind.FREEZE],
            "second_topic": self.second_topic,
            "splits": self.splits,
            "hot": self.hot,
            "outages": self.outages,
            "wiped": self.wiped,
            "peak_mb": self.peak_mb,
            "seed": self.seed,
        }


async def run_chaos(options: ChaosOptions, children: Children, directory: Path) -> Outcome:
    """
    Start emulators, workers and consumers, disturb them for the time that the options ask for, and return the outcome.

    Raises:
        ChildDied: a process ended that should go on.
        TimeoutError: the workers never owned all leases.
    """
    stack_options = StackOptions(
        partitions=options.partitions,
        workers=0,  # the run starts the workers itself, below
        consumers=options.consumers,
        consumer=_CONSUMER,
        receiver=options.receiver,
        sdk_only=options.sdk_only,
    )
    if options.record:
        recorder = ("-m", "tests.chaos.recorded_emulators", str(options.record))
        stack_options = replace(stack_options, emulators=recorder)
    async with (
        open_stack(children, directory, stack_options) as stack,
        aiohttp.ClientSession(stack.control, raise_for_status=True) as control,
    ):
        start = partial(_start_worker, stack, signs=options.record is not None)
        workers = [await start(f"worker-{number}") for number in range(1, options.workers + 1)]
        return await children.guard(
            _Run(options, stack, control, Fleet(children, workers, start, "worker")).run()
        )


async def _start_worker(stack: Stack, name: str, *, signs: bool) -> Child:
    """
    Start a worker. With `signs`, the key of its tokens has the worker's name, so the emulators can record who sent a message.
    """
    connection = re.sub("(?<=SharedAccessKeyName=)[^;]+", name, stack.servicebus)
    own = {"OUTBOX_SERVICEBUS_CONNECTION_STRING": connection} if signs else {}
    return await start_worker(stack.children, name, {**stack.environment, **own})


class _Run:
    def __init__(
        self, options: ChaosOptions, stack: Stack, control: aiohttp.ClientSession, fleet: Fleet
    ) -> None:
        self._options, self._stack, self._control, self._fleet = options, stack, control, fleet
        children, environment = stack.children, stack.environment
        self._consumers = Fleet(
            children,
            stack.consumers,
            lambda name: start_consumer(
                children, name, {**environment, "OUTBOX_RECEIVER": options.receiver}, _CONSUMER
            ),
            "consumer",
        )
        self._reader = RecordReader(stack.record)
        self._committed: list[CommittedEvent] = []
        self._received: list[ReceivedMessage] = []
        self._splits = self._hot = self._outages = self._wiped = self._cuts = 0
        self._at_cosmos, self._at_broker = asyncio.Lock(), asyncio.Lock()

    async def run(self) -> Outcome:
        second = await self._start_second_worker()
        names = {worker.name for worker in self._fleet.workers}
        await wait_for_owners(
            self._stack.leases,
            lambda owners: set(owners.values()) == names,
            timeout_seconds=HUNG_SECONDS,
        )
        await self._cut_connections()
        await self._disturb_under_load()
        problems = await self._until_delivered()
        problems += await self._until_taken_over()
        problems += await self._until_effective()
        problems += await self._until_sent_again()
        problems += self._over_budget()
        problems += await self._stop(second)
        stats = await self._ask("/servicebus/stats")
        return Outcome(
            audit=audit(self._committed, self._received),
            effects=effects_of(self._committed, await recorded_in(self._stack.directory)),
            done=self._fleet.done,
            done_to_consumers=self._consumers.done,
            second_topic=_sent(stats),
            splits=self._splits,
            resent=stats["topics"]["events"]["duplicates"],
            cuts=self._cuts + _cuts_in(stats),
            hot=self._hot,
            outages=self._outages,
            wiped=self._wiped,
            peak_mb=self._fleet.peak_mb,
            problems=(*self._fleet.problems, *self._consumers.problems, *problems),
            seed=self._options.seed,
        )

    async def _start_second_worker(self) -> Child:
        """
        Start the worker that relays the consumers' own events.

        Its leases are in a container of their own, because the run audits and deletes the leases of the fleet.
        """
        async with open_cosmos_client(connection_string=self._stack.cosmos) as client:
            database = client.get_database_client(DATABASE)
            await database.create_container(_SECOND_LEASES, PartitionKey("/id"))
        own = {
            "OUTBOX_COSMOS_CONTAINER": DIRECTORY,
            "OUTBOX_LEASE_CONTAINER": _SECOND_LEASES,
            "OUTBOX_TOPIC": DIRECTORY,
            "OUTBOX_PROCESSOR_NAME": DIRECTORY,
        }
        return await start_worker(self._stack.children, "second", {**self._stack.environment, **own})

    async def _cut_connections(self) -> None:
        # Have the broker cut connections during sends, so that workers often do not know whether a message
        # arrived. Killing workers seldom does that, because a send takes only a millisecond.
        first_seed = self._options.seed + 2 * self._outages
        for seed, action in enumerate(_CUTS, start=first_seed):
            rule = {
                "action": action,
                "entity": "events",
                "probability": self._options.cut_probability,
                "count": None,
                "seed": seed,
            }
            async with self._control.post("/servicebus/faults", json=rule):
                pass

    async def _disturb_under_load(self) -> None:
        options, stop = self._options, asyncio.Event()
        async with open_cosmos_client(connection_string=self._stack.cosmos) as client:
            outbox = Outbox(await open_store(client, DATABASE, DATA))
            async with asyncio.TaskGroup() as group:
                group.create_task(
                    change_accounts(
                        outbox,
                        accounts=[
                            Account(papers=_PAPERS if number % _LARGE_ONE_IN == 0 else [])
                            for number in range(options.accounts)
                        ],
                        commits_per_second=options.commits_per_second,
                        seed=options.seed,
                        stop=stop,
                        record=self._committed.append,
                    )
                )
                consumers = group.create_task(self._disturb_consumers(group))
                await self._disturb(group)
                await consumers
                stop.set()

    async def _disturb(self, group: asyncio.TaskGroup) -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        for disturbance in script(self._options.seed, self._options.seconds):
            await asyncio.sleep(max(0.0, started + disturbance.at_seconds - loop.time()))
            self._stack.children.check()
            if disturbance.kind is Kind.SPLIT:
                await self._split(disturbance)
            elif disturbance.kind is Kind.HEAT:
                group.create_task(self._heat(disturbance))
            elif disturbance.kind is Kind.WIPE:
                await self._wipe()
            elif disturbance.kind is Kind.OUTAGE:
                group.create_task(self._take_broker_away(disturbance.seconds))
            else:
                group.create_task(self._fleet.disturb(disturbance))
        await asyncio.sleep(max(0.0, started + self._options.seconds - loop.time()))

    async def _disturb_consumers(self, group: asyncio.TaskGroup) -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        for disturbance in script(f"{self._options.seed}/consumers", self._options.seconds, ON_PROCESSES):
            await asyncio.sleep(max(0.0, started + disturbance.at_seconds - loop.time()))
            group.create_task(self._consumers.disturb(disturbance))

    async def _ranges(self) -> list[dict[str, Any]]:
        stats = await self._ask("/cosmos/stats")
        return next(
            container["ranges"] for path, container in stats["containers"].items() if path.endswith(DATA)
        )

    async def _heat(self, disturbance: Disturbance) -> None:
        # one hot partition at a time, because the end of this method deletes all fault rules
        async with self._at_cosmos:
            ranges = await self._ranges()
            rule = {
                "container": DATA,
                "partition": ranges[disturbance.victim % len(ranges)]["id"],
                "operation": disturbance.throttled,
                "status": 429,
                "substatus": 3200,
                "retry_after_ms": 200,
            }
            async with self._control.post("/cosmos/faults", json=rule):
                self._hot += 1
            await asyncio.sleep(disturbance.seconds)
            async with self._control.delete("/cosmos/faults"):
                pass

    async def _take_broker_away(self, seconds: float) -> None:
        async with self._at_broker:
            # Refuse only senders. If receivers were refused too, the subscriber's messages would be delivered
            # again, and the audit would count duplicates.
            rule = {"action": "server-busy", "entity": "events", "count": None}
            async with self._control.post("/servicebus/faults", json=rule):
                self._outages += 1
            await asyncio.sleep(seconds)
            self._cuts += _cuts_in(await self._ask("/servicebus/stats"))
            async with self._control.delete("/servicebus/faults"):
                pass
            await self._cut_connections()

    async def _wipe(self) -> None:
        leases, self._wiped = self._stack.leases, self._wiped + 1
        documents = [document async for document in leases.read_all_items()]
        # Write down which leases the operator deletes now: the record of the run does not show who deletes a lease.
        await leases.upsert_item({"id": WIPES, "ids": [document["id"] for document in documents]})
        for document in documents:
            with suppress(CosmosResourceNotFoundError):  # a worker deleted the lease after a split
                await leases.delete_item(document["id"], document["id"])

    async def _split(self, disturbance: Disturbance) -> None:
        ranges = await self._ranges()
        if len(ranges) >= self._options.most_partitions:
            return
        victim = ranges[disturbance.victim % len(ranges)]["id"]
        where = {
            "database": DATABASE,
            "container": DATA,
            "range": victim,
            "completing": disturbance.completing,
        }
        async with self._control.post("/cosmos/split", json=where):
            self._splits += 1

    async def _until_delivered(self) -> list[str]:
        missing = {event.event_id for event in self._committed}
        deadline = time.monotonic() + self._options.stalled_seconds
        while missing:
            await asyncio.sleep(_WATCH_SECONDS)
            self._stack.children.check()
            arrived = missing & self._read_record()
            if arrived:
                missing -= arrived
                deadline = time.monotonic() + self._options.stalled_seconds
            elif time.monotonic() > deadline:
                return [f"nothing arrived for {self._options.stalled_seconds:g} s"]
        return []

    async def _until_taken_over(self) -> list[str]:
        # A dead worker may have sent events that its checkpoint does not cover, and the next owner sends them
        # again. Wait until live workers own all leases, so that these copies arrive before the audit.
        living = {worker.name for worker in self._fleet.workers}
        try:
            await wait_for_owners(
                self._stack.leases,
                lambda owners: set(owners.values()) <= living,
                timeout_seconds=HUNG_SECONDS,
            )
        except TimeoutError:
            return [f"leases were not taken over: {dict(await lease_owners(self._stack.leases))}"]
        return []

    async def _until_effective(self) -> list[str]:
        wanted, stalled = len(self._committed), self._options.stalled_seconds

        async def count() -> int:
            self._stack.children.check()
            return await count_effects(self._stack.directory)

        if await counted_up_to(wanted, count, stalled_seconds=stalled) < wanted:
            return [f"no message took effect for {stalled:g} s"]
        return []

    async def _until_sent_again(self) -> list[str]:
        effects = await count_effects(self._stack.directory)

        async def count() -> int:
            return _sent(await self._ask("/servicebus/stats"))

        sent = await counted_up_to(effects, count, stalled_seconds=self._options.stalled_seconds)
        return [f"the second topic has {sent} of {effects} events of the consumers"] if sent < effects else []

    def _over_budget(self) -> list[str]:
        for worker in self._fleet.workers:
            self._fleet.measure(worker)
        peak, limit = self._fleet.peak_mb, self._options.memory_mb
        return [f"a worker had {peak} MiB of memory, and may have {limit}"] if peak > limit else []

    async def _stop(self, second: Child) -> list[str]:
        workers = [*self._fleet.workers, second, *self._consumers.workers]
        await self._stack.children.stop(workers)
        received = -1
        while received != len(self._received):  # the audit must count late messages too
            received = len(self._received)
            await asyncio.sleep(_QUIET_SECONDS)
            self._read_record()
        subscriber = next(child for child in self._stack.children.all if child.name == "subscriber")
        await self._stack.children.stop([subscriber])
        self._read_record()
        return [
            f"{child.name} did not stop cleanly: {child.state}"
            for child in (*workers, subscriber)
            if child.exit_code != 0
        ]

    def _read_record(self) -> set[str]:
        messages = self._reader.read_new()
        self._received += messages
        return {message.message_id for message in self._received}

    async def _ask(self, path: str) -> Any:
        async with self._control.get(path) as answer:
            return await answer.json()


def _sent(stats: Any) -> int:
    return int(stats["topics"][DIRECTORY]["published"])


def _cuts_in(stats: Any) -> int:
    return sum(fault["struck"] for fault in stats["faults"] if fault["action"] in _CUTS)
