"""The steps of the demo: send the load, kill a worker half-way, wait until all events are delivered, and check them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cosmos_outbox_testing.verify.audit import Audit, CommittedEvent, audit
from cosmos_outbox_testing.verify.child_processes import Child, Children
from demo.child_processes import DemoFailed
from demo.effects import Effects, count_effects, counted_up_to, effects_of, recorded_in
from demo.leases import Owners, lease_owners, wait_for_owners
from demo.load import Load, LoadFailed, drive
from demo.progress import Progress
from demo.received import RecordReader
from demo.stack import Stack, StackOptions, open_stack
from examples.contacts.received import ReceivedMessage

OBSERVE_SECONDS = 0.2
BALANCE_SECONDS = 45
TAKEOVER_SECONDS = 60
QUIET_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """The options of the demo. If no message arrives for `stalled_seconds`, events that did not arrive count as lost."""

    load: Load
    stack: StackOptions
    kill: bool = True
    stalled_seconds: float = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a demo: what the audit found, and which other problems the run had."""

    audit: Audit
    effects: Effects
    seconds: float  # from the first request to the last message
    killed_workers: int
    killed_consumers: int
    problems: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Return whether every event was delivered and took effect once and in order, and the run had no other problem."""
        return self.audit.passed and self.effects.passed and not self.problems


async def run_demo(options: DemoOptions, children: Children, directory: Path, progress: Progress) -> Outcome:
    """
    Start all processes, run the demo on them, and return its result.

    Raises:
        ChildDied: a process ended by itself.
        DemoFailed: the demo could not be finished.
    """
    progress.children = children.all
    async with open_stack(children, directory, options.stack) as stack:
        return await children.guard(_Job(options, stack, progress).run())


class _Job:
    def __init__(self, options: DemoOptions, stack: Stack, progress: Progress) -> None:
        self._options = options
        self._stack = stack
        self._progress = progress
        self._reader = RecordReader(stack.record)
        self._received: list[ReceivedMessage] = []
        self._received_ids: set[str] = set()
        self._committed: list[CommittedEvent] = []
        self._half_way = asyncio.Event()

    async def run(self) -> Outcome:
        observer = asyncio.create_task(self._observe())
        try:
            self._progress.phase = "workers share the leases"
            await self._wait_until_shared()
            self._progress.phase = "loading"
            started_ns = time.time_ns()
            killed = await self._load()
            self._progress.phase = "delivering"
            problems = [*await self._wait_until_delivered(), *await self._wait_until_taken_over(killed)]
            problems += await self._wait_until_effective()
            self._progress.phase = "stopping"
            problems += await self._stop()
        finally:
            observer.cancel()
            (seen,) = await asyncio.gather(observer, return_exceptions=True)
        if isinstance(seen, Exception):
            problems.append(f"the leases could not be observed to the end: {seen!r}")
        self._read_record()
        effects = Effects()
        if self._stack.consumers:
            effects = effects_of(self._committed, await recorded_in(self._stack.directory))
        last_ns = max((message.received_ns for message in self._received), default=started_ns)
        return Outcome(
            audit=audit(self._committed, self._received),
            effects=effects,
            seconds=round((last_ns - started_ns) / 1e9, 2),
            killed_workers=sum(child.name.startswith("worker") for child in killed),
            killed_consumers=sum(child.name.startswith("consumer") for child in killed),
            problems=tuple(problems),
        )

    async def _observe(self) -> None:
        while True:
            self._read_record()
            self._progress.owners = await lease_owners(self._stack.leases)
            if self._stack.consumers:
                self._progress.effects = await count_effects(self._stack.directory)
            await asyncio.sleep(OBSERVE_SECONDS)

    def _read_record(self) -> None:
        messages = self._reader.read_new()
        self._received += messages
        self._received_ids.update(message.message_id for message in messages)
        self._progress.delivered = len(self._received_ids)

    async def _wait_until_shared(self) -> None:
        ranges, workers = self._options.stack.partitions, self._options.stack.workers

        def shared(owners: Owners) -> bool:
            return (
                len(owners) >= ranges
                and None not in owners.values()
                and len(set(owners.values())) == min(len(owners), workers)
            )

        try:
            await wait_for_owners(self._stack.leases, shared, timeout_seconds=BALANCE_SECONDS)
        except TimeoutError:
            owners = await lease_owners(self._stack.leases)
            raise DemoFailed(
                f"The workers do not share the leases after {BALANCE_SECONDS} s: {dict(owners)}",
                self._stack.workers,
            ) from None

    async def _load(self) -> list[Child]:
        killing = asyncio.create_task(self._kill_half_way()) if self._options.kill else None
        try:
            await drive(self._stack.api_url, self._options.load, self._on_commit)
            return await killing if killing else []
        except LoadFailed as error:
            api = [child for child in self._stack.children.all if child.name == "api"]
            raise DemoFailed(str(error), api) from error
        finally:
            if killing:
                killing.cancel()

    def _on_commit(self, events: Sequence[CommittedEvent]) -> None:
        self._committed += events
        self._progress.committed = len(self._committed)
        self._progress.contacts_written += any(event.version == 1 for event in events)
        load = self._options.load
        if len(self._committed) * 2 >= load.contacts * load.changes:
            self._half_way.set()

    async def _kill_half_way(self) -> list[Child]:
        await self._half_way.wait()
        consumers = self._stack.consumers[:1] if len(self._stack.consumers) > 1 else ()
        for consumer in consumers:  # each consumer has sessions now, so any one may be killed
            await consumer.kill()
            self._progress.notes.append(f"killed {consumer.name} (pid {consumer.pid}) with SIGKILL")
        return [await self._kill_worker(), *consumers]

    async def _kill_worker(self) -> Child:
        owners = await lease_owners(self._stack.leases)
        # Kill the worker that owns the most leases. If a worker without a lease is killed, no other worker has to take over.
        leases_of = {
            worker.name: [token for token, owner in owners.items() if owner == worker.name]
            for worker in self._stack.workers
        }
        victim = max(self._stack.workers, key=lambda worker: len(leases_of[worker.name]))
        held = leases_of[victim.name]
        if not held:
            raise DemoFailed(
                f"No worker owns a lease, so none is killed: {dict(owners)}", self._stack.workers
            )
        committed = len(self._committed)
        await victim.kill()
        self._progress.notes.append(
            f"killed {victim.name} (pid {victim.pid}) with SIGKILL after {committed} commits; "
            f"it held lease {', '.join(held)}"
        )
        return victim

    async def _wait_until_delivered(self) -> list[str]:
        missing = {event.event_id for event in self._committed}
        deadline = time.monotonic() + self._options.stalled_seconds
        while missing:
            await asyncio.sleep(OBSERVE_SECONDS)
            self._read_record()
            if missing & self._received_ids:
                missing -= self._received_ids
                deadline = time.monotonic() + self._options.stalled_seconds
            elif time.monotonic() > deadline:
                return [f"nothing arrived for {self._options.stalled_seconds:g} s"]
        return []

    async def _wait_until_effective(self) -> list[str]:
        if not self._stack.consumers:
            return []

        count = partial(count_effects, self._stack.directory)
        wanted, stalled = len(self._committed), self._options.stalled_seconds
        if await counted_up_to(wanted, count, stalled_seconds=stalled) < wanted:
            return [f"the directory has not changed for {stalled:g} s"]
        return []

    async def _wait_until_taken_over(self, killed: Sequence[Child]) -> list[str]:
        # The new owner of a lease sends again what the killed worker had sent since its last checkpoint, and the broker has to drop
        # these copies. Wait for them before the audit counts duplicates: without them, "no duplicates" would prove nothing.
        gone = {child.name for child in killed}
        try:
            await wait_for_owners(
                self._stack.leases,
                lambda owners: not gone & set(owners.values()) and None not in owners.values(),
                timeout_seconds=TAKEOVER_SECONDS,
            )
        except TimeoutError:
            owners = await lease_owners(self._stack.leases)
            return [f"the dead worker's leases were not taken over: {dict(owners)}"]
        return []

    async def _stop(self) -> list[str]:
        alive = [worker for worker in self._stack.workers if not worker.killed]
        await self._stack.children.stop(alive)
        received = -1
        while received != len(self._received):  # copies may still arrive after the workers ended
            received = len(self._received)
            await asyncio.sleep(QUIET_SECONDS)
            self._read_record()
        receivers = [
            child
            for child in self._stack.children.all
            if child.name == "subscriber" or (child in self._stack.consumers and not child.killed)
        ]
        await self._stack.children.stop(receivers)
        return [
            f"{child.name} did not stop cleanly: {child.state}"
            for child in (*alive, *receivers)
            if child.exit_code != 0
        ]
