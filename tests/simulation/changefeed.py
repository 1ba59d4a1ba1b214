"""
A fleet of change feed processors in memory, a script of faults, and the invariants that no fault may break.

The handler stands for a relay to a broker with duplicate detection: it takes a moment for each change, and the first
copy of a change counts.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from cosmos_outbox.adapters.memory.container import MemoryContainer, effective_partition_key
from cosmos_outbox.adapters.memory.leases import MemoryLeases
from cosmos_outbox.changefeed import ChangeFeedProcessor, ProcessorOptions
from cosmos_outbox.errors import NotFound
from cosmos_outbox.leases import FeedRange, from_document
from cosmos_outbox.ports import ChangeBatch, Document, Write, WriteKind
from tests.simulation.dotnet import DotNetNeighbour
from tests.simulation.links import Link

EPOCH = 1_800_000_000.0
PREFIX = "pmemory_AAAAAA==_AAAAAIAAAAA="
WORKERS = 4

KINDS = (
    "write", "write", "write", "wait", "wait", "start", "start", "start", "stop", "kill",
    "cut", "cut-leases", "heal", "lose-answers", "throttle", "slow", "fail", "hang",
    "split", "merge", "neighbour", "neighbour-gone", "delete-lease",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Step:
    """
    One step of a script; what `a` and `b` mean depends on the kind, and every value means something.
    """

    kind: str
    a: int
    b: int


class Violation(AssertionError):
    """
    An invariant did not hold.
    """


@dataclass(slots=True)
class Worker:
    processor: ChangeFeedProcessor
    task: asyncio.Task[None]
    feed: Link
    leases: Link
    failures: int = 0
    hang: float = 0.0


class Simulation:
    def __init__(self, *, ranges: int) -> None:
        self.container = MemoryContainer(ranges=ranges, now=self.now)
        self.leases = MemoryLeases(now=self.now)
        self.workers: dict[str, Worker] = {}
        self.neighbour: asyncio.Task[None] | None = None
        self.robbed = False  # a neighbour took part: two of our workers may then overlap for a while
        self._written: dict[str, int] = defaultdict(int)
        self._arrived: dict[str, int] = defaultdict(int)  # per key: numbers 0..n-1 have arrived, in order
        self._names = 0
        self._violations: list[str] = []

    def now(self) -> float:
        return EPOCH + asyncio.get_running_loop().time()

    async def play(self, script: Sequence[Step]) -> None:
        """
        Play a script, heal everything, and check that all changes arrive.

        Raises:
            Violation: an invariant did not hold.
        """
        try:
            for step in script:
                await self._do(step)
                self._check_trust()
                self._raise_first_violation()
            await self._heal_and_finish()
        finally:
            await self._end()

    # the script

    async def _do(self, step: Step) -> None:  # noqa: C901, PLR0912, PLR0915 - one case a kind
        name = f"w{step.a % WORKERS}"
        worker = self.workers.get(name)
        match step.kind:
            case "write":
                for i in range(1 + step.b % 20):
                    await self._write(f"key-{(step.a + i) % 7}")
            case "wait":
                await asyncio.sleep((0.3, 2, 9, 20, 70)[step.b % 5])
            case "start" if worker is None:
                self._start(name, skew=(0, 30, -30)[step.b % 3])
            case "stop" if worker:
                worker.processor.stop()
                await asyncio.wait({worker.task}, timeout=40)
                await self._kill(name)
            case "kill" if worker:
                await self._kill(name)
            case "cut" if worker:
                worker.feed.down = worker.leases.down = True
            case "cut-leases" if worker:
                worker.leases.down = True
            case "heal" if worker:
                self._heal(worker)
            case "lose-answers" if worker:
                worker.leases.lose = 1 + step.b % 3
            case "throttle" if worker:
                worker.feed.throttle = worker.leases.throttle = 1 + step.b % 6
            case "slow" if worker:
                worker.feed.slow = worker.leases.slow = (0.5, 3, 8)[step.b % 3]
            case "fail" if worker:
                worker.failures = 1 + step.b % 4
            case "hang" if worker:
                worker.hang = (5, 40, 90)[step.b % 3]
            case "split":
                ranges = await self.container.physical_ranges()
                if len(ranges) < 8:  # keeps a run short
                    self.container.split(ranges[step.b % len(ranges)].id)
            case "merge":
                ranges = await self.container.physical_ranges()
                if len(ranges) > 1:
                    first = step.b % (len(ranges) - 1)
                    self.container.merge(ranges[first].id, ranges[first + 1].id)
            case "neighbour" if self.neighbour is None:
                self.robbed = True
                self.neighbour = asyncio.ensure_future(self._neighbour().run())
            case "neighbour-gone" if self.neighbour:
                await _cancelled(self.neighbour)
                self.neighbour = None
            case "delete-lease":
                found = [d for d in (await self.leases.list(PREFIX)).documents if ".." in d["id"]]
                if found:
                    self.robbed = True  # its owner trusts it on while a repaired one is taken by another
                    with suppress(NotFound):  # its owner may have replaced it meanwhile
                        await self.leases.delete(found[step.b % len(found)]["id"], "")

    async def _write(self, key: str) -> None:
        number = self._written[key]
        self._written[key] += 1
        document = {"id": f"{key}-{number}", "partitionKey": key, "n": number}
        await self.container.commit(key, [Write(kind=WriteKind.CREATE, id=document["id"], document=document)])

    def _start(self, name: str, *, skew: float) -> None:
        self._names += 1
        instance = f"{name}-{self._names}"
        feed = Link(self.container)
        leases = Link(self.leases, lambda operation, args: self._watch(instance, operation, args))

        async def handler(batch: ChangeBatch) -> None:
            await self._handle(self.workers[name], batch)

        processor = ChangeFeedProcessor(
            feed,  # type: ignore[arg-type]
            leases,  # type: ignore[arg-type]
            handler,
            ProcessorOptions(processor_name="p", instance_name=instance, max_items=10),
            hooks=(),
            utcnow=lambda: datetime.fromtimestamp(self.now() + skew, UTC),
        )
        self.workers[name] = Worker(processor, asyncio.ensure_future(processor.run()), feed, leases)

    def _neighbour(self) -> DotNetNeighbour:
        return DotNetNeighbour(
            "dotnet",
            PREFIX,
            self.container,
            self.leases,
            handle=self._arrive,
            utcnow=lambda: datetime.fromtimestamp(self.now(), UTC),
        )

    async def _kill(self, name: str) -> None:
        await _cancelled(self.workers.pop(name).task)

    def _heal(self, worker: Worker) -> None:
        worker.feed.heal()
        worker.leases.heal()
        worker.failures, worker.hang = 0, 0.0

    # the handler

    async def _handle(self, worker: Worker, batch: ChangeBatch) -> None:
        self._check_trust()
        if worker.hang:
            hang, worker.hang = worker.hang, 0.0
            await asyncio.sleep(hang)
        if worker.failures:
            worker.failures -= 1
            raise RuntimeError("the handler fails")
        for document in batch.documents:
            await self._arrive(document)

    async def _arrive(self, document: Document) -> None:
        await asyncio.sleep(0.01)
        key, number = document["partitionKey"], document["n"]
        if number > self._arrived[key]:
            self._violated(f"{key}: {number} arrived before {self._arrived[key]}")
        self._arrived[key] = max(self._arrived[key], number + 1)

    # the invariants

    async def _watch(self, instance: str, operation: str, args: tuple[Any, ...]) -> None:
        """
        Look at what a worker is about to write: no position ahead of the work, none by a worker that lost the lease.
        """
        if operation != "replace":
            return
        new = args[0]
        try:
            current = await self.leases.read(new["id"], "")
        except LookupError:
            return
        except Exception:  # noqa: BLE001 - gone: the write will fail as well
            return
        moved = new["ContinuationToken"] != current["ContinuationToken"]
        if moved and current["Owner"] == instance:
            self._check_checkpoint(new)

    def _check_checkpoint(self, document: Mapping[str, Any]) -> None:
        lease = from_document({**document, "_etag": ""})
        reached = int((lease.continuation or '"0"').strip('"'))
        covered = lease.range or FeedRange(min="", max="FF")
        for change in self.container.documents():
            key, number = change["partitionKey"], change["n"]
            inside = covered.min <= effective_partition_key(key) < covered.max
            if inside and change["_lsn"] <= reached and number >= self._arrived[key]:
                self._violated(f"{lease.id} is saved at {reached}, but {key}-{number} was not handled")

    def _check_trust(self) -> None:
        if self.robbed:
            return
        now = asyncio.get_running_loop().time()
        trusted = [
            (name, tenure.lease.id, tenure.lease.range)
            for name, worker in self.workers.items()
            for tenure, _ in worker.processor._running.values()
            if tenure.trusted_until > now
        ]
        for i, (name, lease, covered) in enumerate(trusted):
            for other_name, other_lease, other in trusted[i + 1 :]:
                if name != other_name and covered and other and covered.overlaps(other):
                    self._violated(f"{name} and {other_name} both trust {lease} / {other_lease}")

    def _violated(self, what: str) -> None:
        # Kept as well as raised: a processor takes what its handler raises for a failure of the handler.
        self._violations.append(what)
        raise Violation(what)

    def _raise_first_violation(self) -> None:
        if self._violations:
            raise Violation(self._violations[0])

    # the end

    async def _heal_and_finish(self) -> None:
        for worker in self.workers.values():
            self._heal(worker)
            if worker.task.done():
                worker.task.result()
        for i in range(WORKERS):  # a new process repairs leases that somebody deleted
            if f"w{i}" not in self.workers:
                self._start(f"w{i}", skew=0)
                break
        else:
            await self._kill("w0")
            self._start("w0", skew=0)
        until = self.now() + timedelta(minutes=30).total_seconds()
        while missing := [key for key, count in self._written.items() if self._arrived[key] < count]:
            self._check_trust()
            self._raise_first_violation()
            for worker in self.workers.values():
                if worker.task.done():
                    worker.task.result()
                    self._violated("a processor ended by itself")
            if self.now() > until:
                leases = [from_document(d) for d in (await self.leases.list(f"{PREFIX}..")).documents]
                held = [(lease.token, lease.owner, lease.continuation) for lease in leases]
                ranges = await self.container.physical_ranges()
                self._violated(f"changes of {missing} never arrived; leases: {held}; ranges: {ranges}")
            await asyncio.sleep(1)
        self._raise_first_violation()

    async def _end(self) -> None:
        if self.neighbour:
            await _cancelled(self.neighbour)
        for worker in self.workers.values():
            worker.processor.stop()
        if self.workers:
            await asyncio.wait({worker.task for worker in self.workers.values()}, timeout=60)
        for name in list(self.workers):
            await self._kill(name)


def random_script(source: random.Random) -> tuple[int, list[Step]]:
    """
    Return a number of ranges and a script.
    """
    steps = [
        Step(source.choice(KINDS), source.randrange(8), source.randrange(30))
        for _ in range(source.randrange(5, 60))
    ]
    return source.randrange(1, 5), [Step("start", 0, 0), *steps]


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
