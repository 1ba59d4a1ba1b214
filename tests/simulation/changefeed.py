"""
A fleet of change feed processors in memory, and a script of faults; `Invariants` holds the invariants that no fault may break.

The handler stands for a relay to a broker with duplicate detection: it takes a moment for each change, and the first
copy of a change counts.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cosmos_outbox.adapters.memory.container import MemoryContainer, effective_partition_key
from cosmos_outbox.adapters.memory.leases import MemoryLeases
from cosmos_outbox.changefeed import ProcessorOptions
from cosmos_outbox.changefeed.lease_ahead import AHEAD
from cosmos_outbox.changefeed.leases import Lease, from_document
from cosmos_outbox.changefeed.range_coverage import EVERY_KEY
from cosmos_outbox.changefeed.read_ahead import lsn_of
from cosmos_outbox.errors import AccessDenied, NotFound, PreconditionFailed
from cosmos_outbox.partition_key import FeedRange
from cosmos_outbox.ports import Document, StartFrom, Write, WriteKind
from cosmos_outbox.records import PositionAhead, Record
from cosmos_outbox_worker.cli.leases import reset_leases
from tests.simulation.attributed_leases import AttributedLeases
from tests.simulation.dotnet import DotNetNeighbour
from tests.simulation.freeze import freezable, service_time
from tests.simulation.invariants import Invariants
from tests.simulation.worker import Worker

EPOCH = 1_800_000_000.0
PREFIX = "pmemory_AAAAAA==_"
WORKERS = 4
LEAP = 100_000  # more LSNs than a script writes

KINDS = (
    "write", "write", "write", "wait", "wait", "start", "start", "start", "stop", "kill", "doom",
    "cut", "cut-leases", "heal", "lose-answers", "refuse", "refuse", "nonsense", "slow", "late", "race",
    "fail", "hang", "swallow", "freeze", "sleep", "thaw", "touch",
    "split", "split-again", "merge", "neighbour", "neighbour-gone", "delete-lease", "wipe", "recreate", "hot", "hot", "cool", "ahead", "leap", "lose",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a script; what `a` and `b` mean depends on the kind, and every value means something."""

    kind: str
    a: int
    b: int


class Violation(AssertionError):
    """An invariant did not hold."""


class Simulation:
    """
    Args:
        ranges: physical partitions at the start; there never are more than twice as many, or than 8.
        workers: the most that run at once.
    """

    def __init__(self, *, ranges: int, workers: int = WORKERS) -> None:
        self._most_ranges, self._most_workers = max(8, 2 * ranges), workers
        self.container = self._created(ranges)
        self.prefix = f"{PREFIX}AAAAAIAAAAA="
        self._created_times = 0
        self.invariants = Invariants(
            ProcessorOptions(processor_name="p"),
            container=lambda: self.container,
            prefix=lambda: self.prefix,
            now=self.now,
        )
        self._store = MemoryLeases(now=self.now)
        self._operator = AttributedLeases("operator", self._store, self.invariants)
        self.workers: dict[str, Worker] = {}
        self._neighbour: tuple[DotNetNeighbour, asyncio.Task[None]] | None = None
        self._splits_again = 0
        self._written: dict[str, int] = defaultdict(int)
        self._names = 0
        self._hot: FeedRange | None = None
        # Whether a step raised every LSN by LEAP, and whether a failover then lost all that came after this leap
        self._leapt = self._lost = False
        self._before_leap = 0
        # Leases that some worker said lie ahead of their ranges
        self._told_ahead: set[str] = set()

    async def _named(self) -> str:
        return PREFIX + (await self.container.describe()).container_rid

    def _created(self, ranges: int) -> MemoryContainer:
        return MemoryContainer(ranges=ranges, now=self.now)

    def now(self) -> float:
        return EPOCH + service_time()

    async def play(self, script: Sequence[Step]) -> None:
        """
        Play a script, heal everything, and check that all changes arrive.

        Raises:
            Violation: an invariant did not hold.
        """
        with freezable(asyncio.get_running_loop()):
            try:
                # Else a run that hangs is never seen
                async with asyncio.timeout(timedelta(days=1).total_seconds()):
                    for step in script:
                        await self._bury()
                        await self._do(step)
                        self._check()
                    await self._heal_and_finish()
            finally:
                await self._end()

    # the script

    async def _do(self, step: Step) -> None:  # noqa: C901, PLR0912, PLR0915 - one case a kind
        name = f"w{step.a % self._most_workers}"
        worker = self.workers.get(name)
        match step.kind:
            case "write":
                if step.b >= 20:  # one transaction, longer than a page
                    await self._write(f"key-{step.a % 7}", count=25)
                else:
                    for i in range(1 + step.b):
                        await self._write(f"key-{(step.a + i) % 7}")
            case "wait":
                await asyncio.sleep((0.3, 2, 9, 20, 70)[step.b % 5])
            case "start" if worker is None:
                self._start(name, skew=(0, 30, -30)[step.b % 3], renamed=step.b % 2 == 0)
            case "stop" if worker:
                worker.processor.stop()
                await asyncio.wait({worker.task}, timeout=40)
                await self._kill(name)
            case "kill" if worker:
                await self._kill(name)
            case "doom" if worker:
                worker.leases.doomed = 1 + step.b
            case "cut" if worker:
                worker.feed.down = worker.leases.down = True
            case "cut-leases" if worker:
                worker.leases.down = True
            case "heal" if worker:
                worker.heal()
            case "lose-answers" if worker:
                worker.leases.lose = 1 + step.b % 3
            case "refuse" if worker:
                status = (429, 449, 503, 500, 408, 403, 404, 410)[step.b % 8]
                for link in (worker.feed, worker.leases):
                    link.refuse(status, 1 + step.b % 6, executed=step.a >= WORKERS)
            case "nonsense" if worker:
                worker.feed.nonsense = 1 + step.b % 12
            case "slow" if worker:
                worker.feed.slow = worker.leases.slow = (0.5, 3, 8, 12)[step.b % 4]
            case "late" if worker:
                worker.feed.late = worker.leases.late = (0.5, 3, 9, 12)[step.b % 4]
            case "race" if worker:
                worker.leases.raced = 1 + step.b % 3
            case "freeze" if worker:
                worker.freeze.frozen = True
            case "sleep" if worker and not worker.freeze.frozen:
                worker.freeze.sleep(service_time())
            case "thaw" if worker and not worker.dead:
                worker.thaw()
            case "touch":
                await self._touch(step.b)
            case "hot":
                ranges = await self.container.physical_ranges()
                self._hot = ranges[step.b % len(ranges)]
            case "cool":
                self._hot = None
            case "ahead":
                await self._set_ahead(step.b)
            case "leap" if not self._leapt:
                self._leapt = True
                # Positions may be there, though the newest document of a partition is older: no LSN falls below it.
                self._before_leap = max(partition.lsn for partition in self.container._partitions)
                for partition in self.container._partitions:
                    partition.lsn += LEAP
            case "lose" if self._leapt and not self._lost:
                self._lose()
            case "recreate":
                await self._recreate(1 + step.b % 4)
            case "fail" if worker:
                worker.failures = 1 + step.b % 4
            case "hang" if worker:
                worker.hang = (5, 40, 90)[step.b % 3]
            case "swallow" if worker:
                worker.swallows = True
            case "split":
                await self._split(step.b)
            case "split-again":  # as soon as a child of the split before exists
                self._splits_again += 1
            case "merge":
                partitions = self._partitions()
                if len(partitions) > 1:
                    first = step.b % (len(partitions) - 1)
                    self.container.merge(partitions[first], partitions[first + 1])
            case "neighbour" if self._neighbour is None:
                self._start_neighbour(skew=(0, 30, -30)[step.b % 3])
            case "neighbour-gone":
                await self._stop_neighbour(clean=step.b % 2 == 0)
            case "delete-lease":
                found = (await self._operator.list(f"{self.prefix}..")).documents
                if found:
                    with suppress(NotFound):  # its owner may have replaced it meanwhile
                        await self._operator.delete(found[step.b % len(found)]["id"], "")
            case "wipe":
                for document in (await self._operator.list(self.prefix)).documents:
                    with suppress(NotFound):
                        await self._operator.delete(document["id"], "")

    async def _write(self, key: str, *, count: int = 1) -> None:
        key = f"{key}.{int(self._lost)}.{self._created_times}"
        first = self._written[key]
        self._written[key] += count
        documents: list[Document] = [
            {"id": f"{key}-{n}", "partitionKey": key, "n": n} for n in range(first, first + count)
        ]
        await self.container.commit(
            key, [Write(kind=WriteKind.CREATE, id=d["id"], document=d) for d in documents]
        )

    async def _split(self, number: int) -> None:
        partitions = self._partitions()
        if len(partitions) < self._most_ranges:
            self.container.split(partitions[number % len(partitions)])

    def _partitions(self) -> list[str]:
        # Without a turn of the loop, in which they might split
        return [partition.id for partition in self.container._partitions]

    async def _split_again(self, child: Lease) -> None:
        partitions = self.container._partitions
        if self._splits_again and child.range and len(partitions) < self._most_ranges:
            self._splits_again -= 1
            overlapping = next(one for one in partitions if one.range.overlaps(child.range))
            self.container.split(overlapping.id)

    async def _touch(self, number: int) -> None:
        """Write a lease without changing it, as a .NET processor or an operator's tool might."""
        found = (await self._operator.list(f"{self.prefix}..")).documents
        if found:
            await self._rewrite(found[number % len(found)])

    async def _set_ahead(self, number: int) -> None:
        """Set a lease far ahead of its range, as an operator does who edits the wrong one."""
        found = (await self._operator.list(f"{self.prefix}..")).documents
        if found:
            lease = from_document(found[number % len(found)])
            self.invariants.goes_astray(lease.range or EVERY_KEY)
            ahead = lease.with_changes(now=lease.written_at(), continuation=f'"{10 * LEAP}"')
            with suppress(NotFound, PreconditionFailed):
                await self._operator.replace(ahead.raw, etag=lease.etag or "")

    def _lose(self) -> None:
        """Have the account fail over to a region that knows nothing of what came since the leap."""
        self._lost = True
        self.invariants.goes_astray(EVERY_KEY)
        for partition in self.container._partitions:
            self.container.lose(partition.id, partition.lsn - self._before_leap)
        self._written.clear()
        for document in self.container.documents():
            key = document["partitionKey"]
            self._written[key] = max(self._written[key], document["n"] + 1)

    async def _rewrite(self, document: Document) -> None:
        with suppress(NotFound, PreconditionFailed):
            current = await self._operator.read(document["id"], "")
            await self._operator.replace(current, etag=current["_etag"])

    async def _recreate(self, ranges: int) -> None:
        """Delete the container and create it again; what was not handled is gone with it."""
        await self._stop_neighbour(clean=False)
        self._created_times += 1
        self.container.recreate(ranges=ranges)
        self._leapt = self._lost = False
        self.prefix = await self._named()
        self._written.clear()

    def _start(self, name: str, *, skew: float, renamed: bool = True) -> None:
        """
        Start a process; not `renamed`, it takes the name of the one that was killed before, as a StatefulSet's pod does.
        """
        self._names += renamed
        instance = f"{name}-{self._names}" if renamed else name
        self.workers[name] = Worker(
            self.container,
            AttributedLeases(instance, self._store, self.invariants, on_create=self._split_again),
            self.invariants,
            arrives=self._arrives,
            looks=self._check_trust,
            race=self._rewrite,
            now=lambda: self.now() + skew,
            hot=lambda feed_range: self._hot is not None and self._hot.contains(feed_range),
            hears=self._hears,
        )

    def _hears(self, record: Record) -> None:
        if isinstance(record, PositionAhead) and record.outcome == "halted":
            self._told_ahead.add(record.lease)

    async def _kill(self, name: str) -> None:
        worker = self.workers.pop(name)
        worker.die()
        worker.freeze.thaw(
            service_time()
        )  # only to end its tasks: nothing leaves a dead process, nor does its handler do anything
        await _cancelled(worker.task)

    def _start_neighbour(self, *, skew: float) -> None:
        neighbour = DotNetNeighbour(
            "dotnet",
            self.prefix,
            self.container,
            AttributedLeases("dotnet", self._store, self.invariants),
            handle=self._handled_by_neighbour,
            utcnow=lambda: datetime.fromtimestamp(self.now() + skew, UTC),
        )
        self._neighbour = neighbour, asyncio.ensure_future(neighbour.run())

    async def _stop_neighbour(self, *, clean: bool) -> None:
        if self._neighbour:
            neighbour, task = self._neighbour
            self._neighbour = None
            await _cancelled(task)
            if clean:
                await neighbour.release()

    async def _handled_by_neighbour(self, document: Document) -> None:
        await asyncio.sleep(0.01)
        self._arrives(document)

    def _arrives(self, document: Document) -> None:
        if document["partitionKey"].endswith(f".{self._created_times}"):  # else of a container that is gone
            self.invariants.change_arrives(document)

    # the checks

    def _check_trust(self) -> None:
        self.invariants.check_trust(
            [trusted for worker in self.workers.values() for trusted in worker.trusted()]
        )

    def _check(self) -> None:
        self._check_trust()
        if self.invariants.violations:
            raise Violation(self.invariants.violations[0])

    async def _bury(self) -> None:
        """
        Forget workers that died, and those that were refused while they started: the one end of its own that is right.
        """
        for name, worker in list(self.workers.items()):
            if worker.dead:
                await self._kill(name)
            elif worker.task.done() and isinstance(worker.task.exception(), AccessDenied):
                del self.workers[name]

    def _check_alive(self, worker: Worker) -> None:
        if worker.task.done():
            worker.task.result()
            raise Violation("a processor ended by itself")

    # the end

    async def _heal_and_finish(self) -> None:
        await self._bury()
        for worker in self.workers.values():
            worker.heal()
        await asyncio.sleep(1)  # a worker that was frozen while it was refused ends now
        await self._bury()
        if not self.workers:
            self._start("w0", skew=0)
        await self._until_none_is(self._missing_beside_the_hot)
        self._hot = None
        if self.invariants.is_astray(EVERY_KEY):
            await self._until_none_is(self._ahead_in_silence)
            await self._reset()
        await self._until_none_is(self._missing)

    async def _until_none_is(self, missing: Callable[[], Awaitable[Sequence[object]]]) -> None:
        until = self.now() + timedelta(minutes=30).total_seconds()
        while found := await missing():
            self._check()
            for worker in self.workers.values():
                self._check_alive(worker)
            if self.now() > until:
                raise Violation(f"after half an hour without a fault: {found}")
            await asyncio.sleep(1)
        self._check()

    async def _missing_beside_the_hot(self) -> list[str]:
        """Return what did not arrive of the ranges that are not throttled, where one is."""
        if self._hot is None:
            return []
        return [
            key
            for key, count in self._written.items()
            if self.invariants.arrived[key] < count
            and not self._hot.min <= (place := effective_partition_key(key)) < self._hot.max
            and not self.invariants.is_astray(FeedRange(min=place, max=place + "0"))
        ]

    async def _ahead_in_silence(self) -> list[str]:
        """Return the leases that lie ahead of their ranges and are not halted, or that no worker reported."""
        await self._stop_neighbour(clean=True)  # it knows nothing of such leases
        newest = {partition.range: partition.lsn for partition in self.container._partitions}
        silent = []
        for lease in map(from_document, (await self._operator.list(f"{self.prefix}..")).documents):
            found = max((lsn for one, lsn in newest.items() if lease.range and one.overlaps(lease.range)))
            reached = lsn_of(lease.continuation) or 0
            if AHEAD in lease.properties:
                silent += [lease.id] if lease.id not in self._told_ahead else []
            elif reached > found:
                silent.append(lease.id)
        return silent

    async def _reset(self) -> None:
        """Do what the alarm says: stop all workers, have all leases begin again, and start one."""
        for name, worker in list(self.workers.items()):
            worker.processor.stop()
            await asyncio.wait({worker.task}, timeout=40)
            await self._kill(name)
        await asyncio.sleep(70)
        self.invariants.goes_astray(EVERY_KEY)
        if (await self._operator.list(f"{self.prefix}..")).documents:
            await reset_leases(
                StartFrom.BEGINNING,
                prefix=self.prefix,
                store=self._operator,
                expiration=timedelta(seconds=60),
            )
        self._start("w0", skew=0)

    async def _missing(self) -> list[object]:
        """
        Return what is not yet as it has to be: changes that did not arrive, leases that overlap or name what is gone.
        """
        late = [key for key, count in self._written.items() if self.invariants.arrived[key] < count]
        partitions = set(self._partitions())
        return [*late, *self.invariants.overlapping(), *self.invariants.misnamed(partitions)]

    async def _end(self) -> None:
        await self._stop_neighbour(clean=False)
        for worker in self.workers.values():
            worker.processor.stop()
        if running := {worker.task for worker in self.workers.values() if not worker.dead}:
            await asyncio.wait(running, timeout=60)
        for name in list(self.workers):
            await self._kill(name)


def random_script(source: random.Random) -> tuple[int, list[Step]]:
    """Return a number of ranges and a script."""
    steps = [
        Step(source.choice(KINDS), source.randrange(8), source.randrange(30))
        for _ in range(source.randrange(5, 60))
    ]
    return source.randrange(1, 5), [Step("start", 0, 0), *steps]


async def _cancelled(task: asyncio.Task[None]) -> None:
    while not task.done():  # again where it is: what a process cleans up never ends once its links are dead
        task.cancel()
        await asyncio.wait({task}, timeout=10)
    with suppress(asyncio.CancelledError, AccessDenied):
        await task
