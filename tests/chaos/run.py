"""
One run of chaos: a fleet relays a load while it is disturbed by a script; then everything is audited.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from cosmos_outbox import Outbox
from cosmos_outbox.adapters.cosmos_client import open_cosmos_client
from cosmos_outbox.adapters.cosmos_store import open_store
from examples.contacts.demo.audit import Audit, CommittedEvent, audit
from examples.contacts.demo.leases import lease_owners, wait_for_owners
from examples.contacts.demo.processes import Children
from examples.contacts.demo.stack import DATA, DATABASE, Stack, StackOptions, open_stack
from examples.contacts.received import ReceivedMessage, RecordReader
from tests.chaos.fleet import Fleet
from tests.chaos.load import change_accounts
from tests.chaos.script import Disturbance, Kind, script

_WATCH_SECONDS = 0.25
_BALANCE_SECONDS = 45
_TAKEOVER_SECONDS = 60
_QUIET_SECONDS = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosOptions:
    """
    What is run. The same seed gives the same script and load; what races with what, the machine decides.
    """

    seconds: float
    seed: int
    workers: int = 3
    partitions: int = 4
    most_partitions: int = 12
    accounts: int = 48
    commits_per_second: float = 60
    # Of a send: its connection is cut before the broker stored it; as often after that
    cut_probability: float = 0.04
    stalled_seconds: float = 90  # nothing arrived for so long: what is missing is lost


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """
    The audit and what was done to the fleet.

    cuts: connections that the broker cut in the middle of a send.
    resent: messages the broker's duplicate detection dropped; that is how a resend shall end.
    """

    audit: Audit
    done: dict[Kind, int]
    splits: int
    resent: int
    cuts: int
    problems: tuple[str, ...]
    seed: int

    @property
    def passed(self) -> bool:
        """
        Say whether every event arrived once and in order, and no worker failed by itself.
        """
        return self.audit.passed and not self.problems

    def as_dict(self) -> dict[str, int]:
        """
        Return what the last line of output says.
        """
        return {
            "committed": self.audit.committed,
            "delivered": self.audit.delivered,
            "lost": len(self.audit.lost),
            "duplicated": len(self.audit.duplicated),
            "out_of_order": len(self.audit.out_of_order),
            "kills": self.done[Kind.KILL],
            "stops": self.done[Kind.FREEZE],
            "splits": self.splits,
            "seed": self.seed,
        }


async def run_chaos(options: ChaosOptions, children: Children, directory: Path) -> Outcome:
    """
    Run on a stack of its own.

    Raises:
        ChildDied: a process ended that should live.
        TimeoutError: the fleet never shared the leases.
    """
    stack_options = StackOptions(partitions=options.partitions, workers=options.workers)
    async with (
        open_stack(children, directory, stack_options) as stack,
        aiohttp.ClientSession(stack.control, raise_for_status=True) as control,
    ):
        return await children.guard(_Run(options, stack, control).run())


class _Run:
    def __init__(self, options: ChaosOptions, stack: Stack, control: aiohttp.ClientSession) -> None:
        self._options, self._stack, self._control = options, stack, control
        self._fleet = Fleet(stack.children, stack.workers, stack.environment)
        self._reader = RecordReader(stack.record)
        self._committed: list[CommittedEvent] = []
        self._received: list[ReceivedMessage] = []
        self._splits = 0

    async def run(self) -> Outcome:
        names = {worker.name for worker in self._fleet.workers}
        await wait_for_owners(
            self._stack.leases,
            lambda owners: set(owners.values()) == names,
            timeout_seconds=_BALANCE_SECONDS,
        )
        await self._cut_connections()
        await self._disturb_under_load()
        problems = await self._until_delivered()
        problems += await self._until_taken_over()
        problems += await self._stop()
        stats = await self._ask("/servicebus/stats")
        return Outcome(
            audit=audit(self._committed, self._received),
            done=self._fleet.done,
            splits=self._splits,
            resent=stats["topics"]["events"]["duplicates"],
            cuts=sum(fault["struck"] for fault in stats["faults"]),
            problems=(*self._fleet.problems, *problems),
            seed=self._options.seed,
        )

    async def _cut_connections(self) -> None:
        # Without this hardly a worker would be killed with something unsent in its hands: a send takes a millisecond.
        for seed, action in enumerate(("drop-before-store", "drop-after-store"), start=self._options.seed):
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
                        accounts=options.accounts,
                        commits_per_second=options.commits_per_second,
                        seed=options.seed,
                        stop=stop,
                        record=self._committed.append,
                    )
                )
                await self._disturb(group)
                stop.set()

    async def _disturb(self, group: asyncio.TaskGroup) -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        for disturbance in script(self._options.seed, self._options.seconds):
            await asyncio.sleep(max(0.0, started + disturbance.at_seconds - loop.time()))
            self._stack.children.check()
            if disturbance.kind is Kind.SPLIT:
                await self._split(disturbance)
            else:
                group.create_task(self._fleet.disturb(disturbance))
        await asyncio.sleep(max(0.0, started + self._options.seconds - loop.time()))

    async def _split(self, disturbance: Disturbance) -> None:
        stats = await self._ask("/cosmos/stats")
        ranges = next(
            container["ranges"] for path, container in stats["containers"].items() if path.endswith(DATA)
        )
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
        # Only when the living own everything has all been sent again that the dead had not checkpointed.
        living = {worker.name for worker in self._fleet.workers}
        try:
            await wait_for_owners(
                self._stack.leases,
                lambda owners: set(owners.values()) <= living,
                timeout_seconds=_TAKEOVER_SECONDS,
            )
        except TimeoutError:
            return [f"leases were not taken over: {dict(await lease_owners(self._stack.leases))}"]
        return []

    async def _stop(self) -> list[str]:
        workers = self._fleet.workers
        await self._stack.children.stop(workers)
        received = -1
        while received != len(self._received):  # late copies would come now
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
