"""
A simulation of change feed processors in memory, with a script of faults. The class `Invariants` has the invariants that no fault may
break.

The handler stands for a relay to a broker with duplicate detection. It takes 10 ms for each change, and only the first copy of a change
counts, so duplicates are no violation.
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
LEAP = 100_000  # the step "leap" adds this to all LSNs. A script writes fewer changes

KINDS = (
    "write", "write", "write", "wait", "wait", "start", "start", "start", "stop", "kill", "doom",
    "cut", "cut-leases", "heal", "lose-answers", "refuse", "refuse", "nonsense", "slow", "late", "race",
    "fail", "hang", "swallow", "freeze", "sleep", "thaw", "touch",
    "split", "split-again", "merge", "neighbour", "neighbour-gone", "delete-lease", "wipe", "recreate", "hot", "hot", "cool", "ahead", "leap", "lose",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Step:
    """
    One step of a script, for example "kill a worker". Its numbers `a` and `b` say which worker or range, or how long. Every value
    is valid, so scripts can be random.
    """

    kind: str
    a: int
    b: int


class Violation(AssertionError):
    """Raised when an invariant does not hold."""


class Simulation:
    """
    A run of several workers, perhaps with a .NET processor beside them, on one container and its leases.

    Args:
        ranges: the number of physical partitions at the start. Splits may raise it to twice this number, or to eight if that is more.
        workers: the largest number of workers that run at once.
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
        # `_leapt`: the step "leap" raised every LSN by LEAP. `_lost`: the step "lose" later simulated a failover that lost
        # all changes since the leap.
        self._leapt = self._lost = False
        self._before_leap = 0
        # Leases whose position is beyond the newest change of their range, as a worker reported
        self._told_ahead: set[str] = set()

    async def _named(self) -> str:
        return PREFIX + (await self.container.describe()).container_rid

    def _created(self, ranges: int) -> MemoryContainer:
        return MemoryContainer(ranges=ranges, now=self.now)

    def now(self) -> float:
        return EPOCH + service_time()

    async def play(self, script: Sequence[Step]) -> None:
        """
        Play a script. Then end all faults and check that the handler gets all changes.

        Raises:
            Violation: an invariant did not hold.
        """
        with freezable(asyncio.get_running_loop()):
            try:
                # A run that hangs ends after a day of its virtual clock, so the test fails and does not hang too.
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
                if step.b >= 20:  # one transaction of 25 documents, more than the 10 items of a page
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
                # "lose" later takes each partition back to this LSN. It is the highest of all partitions, because a lease may
                # already be saved at it, and a lease ahead of its partition would be a violation.
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
            case "split-again":  # splits a child range as soon as it has a lease
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
                    with suppress(NotFound):  # the lease's owner may have deleted it after a split
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
        # No `await` here: a partition could split before the caller uses the ids.
        return [partition.id for partition in self.container._partitions]

    async def _split_again(self, child: Lease) -> None:
        partitions = self.container._partitions
        if self._splits_again and child.range and len(partitions) < self._most_ranges:
            self._splits_again -= 1
            overlapping = next(one for one in partitions if one.range.overlaps(child.range))
            self.container.split(overlapping.id)

    async def _touch(self, number: int) -> None:
        """
        Replace a lease with the same document, as a .NET processor or an operator's tool may do. Its etag changes, so the write
        of its owner conflicts.
        """
        found = (await self._operator.list(f"{self.prefix}..")).documents
        if found:
            await self._rewrite(found[number % len(found)])

    async def _set_ahead(self, number: int) -> None:
        """
        Set the position of a lease far ahead of its range, as an operator does who edits the wrong lease.
        """
        found = (await self._operator.list(f"{self.prefix}..")).documents
        if found:
            lease = from_document(found[number % len(found)])
            self.invariants.goes_astray(lease.range or EVERY_KEY)
            ahead = lease.with_changes(now=lease.written_at(), continuation=f'"{10 * LEAP}"')
            with suppress(NotFound, PreconditionFailed):
                await self._operator.replace(ahead.raw, etag=lease.etag or "")

    def _lose(self) -> None:
        """
        Simulate a failover to a region that lacks the newest changes. All changes since the step "leap", which raised the LSNs, are
        lost, and the LSNs go back.
        """
        self._lost = True
        self.invariants.goes_astray(EVERY_KEY)
        for partition in self.container._partitions:
            self.container.lose(partition.id, partition.lsn - self._before_leap)
        self._written.clear()
        for document in self.container.documents():
            key = document["partitionKey"]
            self._written[key] = max(self._written[key], document["n"] + 1)

    async def _rewrite(self, document: Document) -> bool:
        """Write a document as it is. Return False if it is gone, or if a worker wrote it between this read and this write."""
        with suppress(NotFound, PreconditionFailed):
            current = await self._operator.read(document["id"], "")
            await self._operator.replace(current, etag=current["_etag"])
            return True
        return False

    async def _recreate(self, ranges: int) -> None:
        """
        Delete the monitored container and create it again. Its changes are lost, so the run does not expect them any more.
        """
        await self._stop_neighbour(clean=False)
        self._created_times += 1
        self.container.recreate(ranges=ranges)
        self._leapt = self._lost = False
        self.prefix = await self._named()
        self._written.clear()

    def _start(self, name: str, *, skew: float, renamed: bool = True) -> None:
        """
        Start a worker process. Without `renamed`, it has the same instance name as the killed process that it replaces, like a pod of
        a StatefulSet.
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
        # If the killed worker was frozen, end the freeze so that its tasks can end. The worker's links send nothing any more, and its
        # handler stops at once.
        worker.freeze.thaw(service_time())
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
        # A page that was read before the container was created again still has changes of the deleted one: ignore them.
        if document["partitionKey"].endswith(f".{self._created_times}"):
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
        Remove workers that died. Also remove workers that Cosmos DB denied access at their start: this is the only error at which
        a worker may end.
        """
        for name, worker in list(self.workers.items()):
            if worker.dead:
                await self._kill(name)
            elif worker.task.done() and isinstance(worker.task.exception(), AccessDenied):
                del self.workers[name]

    def _check_alive(self, worker: Worker) -> None:
        if worker.task.done():
            worker.task.result()
            raise Violation(
                "the task of a worker ended without a stop or kill: the processor has to survive every fault"
            )

    # the end

    async def _heal_and_finish(self) -> None:
        await self._bury()
        for worker in self.workers.values():
            worker.heal()
        await asyncio.sleep(1)  # a worker that was frozen at the answer 403 handles the answer now, and ends
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
                raise Violation(f"some work is still unfinished half an hour after the last fault: {found}")
            await asyncio.sleep(1)
        self._check()

    async def _missing_beside_the_hot(self) -> list[str]:
        """
        Return the keys outside of the throttled range whose changes did not all arrive. Return an empty list if no range is
        throttled.
        """
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
        """
        Return the leases whose position is beyond the newest change of their range, if no worker halted them and reported it. An
        operator would learn nothing of such a lease.
        """
        # Stop the .NET processor first: it neither halts nor reports a lease whose position is beyond the newest change.
        await self._stop_neighbour(clean=True)
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
        """
        Do what an operator has to do about a lease whose position is beyond the newest change of its range: stop all workers, reset
        all leases to the beginning, and start one worker.
        """
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
        Return everything that is not yet in its final state: changes that did not arrive, leases that overlap, and leases of
        partitions that no longer exist.
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
    """Return a random number of ranges for the start of a run, and a random script of faults for it."""
    steps = [
        Step(source.choice(KINDS), source.randrange(8), source.randrange(30))
        for _ in range(source.randrange(5, 60))
    ]
    return source.randrange(1, 5), [Step("start", 0, 0), *steps]


async def _cancelled(task: asyncio.Task[None]) -> None:
    # One cancel may not be enough: a `finally` of the task may wait for a link that is dead, and that never answers.
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=10)
    with suppress(asyncio.CancelledError, AccessDenied):
        await task
