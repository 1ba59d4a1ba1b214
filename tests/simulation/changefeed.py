"""
A fleet of change feed processors in memory, a script of faults, and the invariants that no fault may break.

The handler stands for a relay to a broker with duplicate detection: it takes a moment for each change, and the first
copy of a change counts.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from cosmos_outbox.adapters.memory.container import MemoryContainer, effective_partition_key
from cosmos_outbox.adapters.memory.leases import MemoryLeases
from cosmos_outbox.changefeed import ChangeFeedProcessor, ProcessorOptions
from cosmos_outbox.errors import AccessDenied, NotFound, PreconditionFailed
from cosmos_outbox.leases import FeedRange, from_document
from cosmos_outbox.ports import ChangeBatch, Document, Write, WriteKind
from tests.simulation.dotnet import DotNetNeighbour
from tests.simulation.ice import ICE, Ice, freezable
from tests.simulation.links import Link

EPOCH = 1_800_000_000.0
PREFIX = "pmemory_AAAAAA==_"
WORKERS = 4

KINDS = (
    "write", "write", "write", "wait", "wait", "start", "start", "start", "stop", "kill",
    "cut", "cut-leases", "heal", "lose-answers", "throttle", "unavailable", "deny", "missing", "slow",
    "fail", "hang", "freeze", "thaw", "touch",
    "split", "merge", "neighbour", "neighbour-gone", "delete-lease", "recreate",
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
    ice: Ice
    failures: int = 0
    hang: float = 0.0


class Simulation:
    def __init__(self, *, ranges: int) -> None:
        self.container = self._created(ranges)
        self.prefix = f"{PREFIX}AAAAAIAAAAA="
        self._created_times = 0
        self.leases = MemoryLeases(now=self.now)
        self.workers: dict[str, Worker] = {}
        self.neighbour: asyncio.Task[None] | None = None
        self.robbed = False  # a neighbour took part: two of our workers may then overlap for a while
        self._written: dict[str, int] = defaultdict(int)
        self._arrived: dict[str, int] = defaultdict(int)  # per key: numbers 0..n-1 have arrived, in order
        self._names = 0
        self._violations: list[str] = []

    async def _named(self) -> str:
        return PREFIX + (await self.container.describe()).container_rid

    def _created(self, ranges: int) -> MemoryContainer:
        return MemoryContainer(ranges=ranges, now=self.now)

    def now(self) -> float:
        return EPOCH + asyncio.get_running_loop().time()

    async def play(self, script: Sequence[Step]) -> None:
        """
        Play a script, heal everything, and check that all changes arrive.

        Raises:
            Violation: an invariant did not hold.
        """
        with freezable(asyncio.get_running_loop()):
            try:
                for step in script:
                    self._bury()
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
                if step.b >= 20:  # one transaction, longer than a page
                    await self._write(f"key-{step.a % 7}", count=25)
                else:
                    for i in range(1 + step.b):
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
                worker.feed.slow = worker.leases.slow = (0.5, 3, 8, 12)[step.b % 4]
            case "unavailable" if worker:
                worker.feed.unavailable = worker.leases.unavailable = 1 + step.b % 6
            case "deny" if worker:
                worker.feed.deny = worker.leases.deny = 1 + step.b % 3
            case "missing" if worker:
                self.robbed = True  # a 404 that is not true: whoever owned a split parent leaves it to expire
                worker.leases.missing = 1 + step.b % 3
            case "freeze" if worker:
                worker.ice.frozen = True
            case "thaw" if worker:
                worker.ice.thaw()
            case "touch":
                await self._touch(step.b)
            case "recreate":
                await self._recreate(1 + step.b % 4)
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
                found = (await self.leases.list(f"{self.prefix}..")).documents
                if found:
                    self.robbed = True  # its owner trusts it on while a repaired one is taken by another
                    with suppress(NotFound):  # its owner may have replaced it meanwhile
                        await self.leases.delete(found[step.b % len(found)]["id"], "")

    async def _write(self, key: str, *, count: int = 1) -> None:
        key = f"{key}.{self._created_times}"
        first = self._written[key]
        self._written[key] += count
        documents = [{"id": f"{key}-{n}", "partitionKey": key, "n": n} for n in range(first, first + count)]
        await self.container.commit(
            key, [Write(kind=WriteKind.CREATE, id=d["id"], document=d) for d in documents]
        )

    async def _touch(self, number: int) -> None:
        """
        Write a lease without changing it, as a .NET processor that looks at it or an operator's tool might.
        """
        found = (await self.leases.list(f"{self.prefix}..")).documents
        if found:
            document = found[number % len(found)]
            with suppress(NotFound, PreconditionFailed):
                await self.leases.replace(document, etag=document["_etag"])

    async def _recreate(self, ranges: int) -> None:
        """
        Delete the container and create it again; what was not handled is gone with it.
        """
        if self.neighbour:
            await _cancelled(self.neighbour)
            self.neighbour = None
        self._created_times += 1
        self.container.recreate(ranges=ranges)
        self.prefix = await self._named()
        self._written.clear()

    def _start(self, name: str, *, skew: float) -> None:
        self._names += 1
        instance = f"{name}-{self._names}"
        feed = Link(lambda: self.container)
        leases = Link(lambda: self.leases, partial(self._watch, instance))

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
        ice = Ice()
        context = contextvars.copy_context()
        context.run(ICE.set, ice)
        task = asyncio.get_running_loop().create_task(processor.run(), context=context)
        self.workers[name] = Worker(processor, task, feed, leases, ice)

    def _neighbour(self) -> DotNetNeighbour:
        return DotNetNeighbour(
            "dotnet",
            self.prefix,
            self.container,
            self.leases,
            handle=self._arrive,
            utcnow=lambda: datetime.fromtimestamp(self.now(), UTC),
        )

    async def _kill(self, name: str) -> None:
        worker = self.workers.pop(name)
        worker.feed.dead = worker.leases.dead = True
        worker.ice.thaw()
        await _cancelled(worker.task)

    def _heal(self, worker: Worker) -> None:
        worker.feed.heal()
        worker.leases.heal()
        worker.ice.thaw()
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
        if not key.endswith(f".{self._created_times}"):
            return  # of a container that is gone
        if number > self._arrived[key]:
            self._violated(f"{key}: {number} arrived before {self._arrived[key]}")
        self._arrived[key] = max(self._arrived[key], number + 1)

    # the invariants

    async def _watch(self, instance: str, operation: str, args: tuple[Any, ...], etag: str | None) -> None:
        """
        Look at what a worker is about to write: no position ahead of the work, none by a worker that lost the lease.
        """
        if operation != "replace":
            return
        new = args[0]
        self._check_still_trusted(instance, new)
        try:
            current = await self.leases.read(new["id"], "")
        except LookupError:
            return
        except Exception:  # noqa: BLE001 - gone: the write will fail as well
            return
        moved = new["ContinuationToken"] != current["ContinuationToken"]
        if moved and current["_etag"] == etag:
            if current["Owner"] != instance:
                self._violated(f"{instance} moves {new['id']}, which belongs to {current['Owner']}")
            self._check_checkpoint(new)

    def _check_checkpoint(self, document: Mapping[str, Any]) -> None:
        lease = from_document({**document, "_etag": ""})
        if not lease.id.startswith(f"{self.prefix}.."):
            return  # of a container that is gone
        reached = int((lease.continuation or '"0"').strip('"'))
        covered = lease.range or FeedRange(min="", max="FF")
        for change in self.container.documents():
            key, number = change["partitionKey"], change["n"]
            inside = covered.min <= effective_partition_key(key) < covered.max
            if inside and change["_lsn"] <= reached and number >= self._arrived[key]:
                self._violated(f"{lease.id} is saved at {reached}, but {key}-{number} was not handled")

    def _check_still_trusted(self, instance: str, new: Mapping[str, Any]) -> None:
        worker = next((w for n, w in self.workers.items() if instance.startswith(f"{n}-")), None)
        if worker is None or new["Owner"] not in (instance, None):
            return  # dead, or a wish
        owned = worker.processor._running.get(new["id"])
        if owned and owned[0].trusted_until <= asyncio.get_running_loop().time():
            self._violated(f"{instance} writes {new['id']}, which it does not own any more")

    def _check_trust(self) -> None:
        if self.robbed:
            return
        now = asyncio.get_running_loop().time()
        trusted = [
            (name, tenure.lease.id, tenure.lease.range)
            for name, worker in self.workers.items()
            for tenure, _ in worker.processor._running.values()
            if not tenure.replacing
            and tenure.trusted_until > now
            and tenure.lease.id.startswith(f"{self.prefix}..")
        ]
        for i, (name, lease, covered) in enumerate(trusted):
            for other_name, other_lease, other in trusted[i + 1 :]:
                if name != other_name and covered and other and covered.overlaps(other):
                    self._violated(f"{name} and {other_name} both trust {lease} / {other_lease}")

    def _bury(self) -> None:
        """
        Forget workers that were refused while they started: the one end of its own that is right.
        """
        for name, worker in list(self.workers.items()):
            if worker.task.done() and isinstance(worker.task.exception(), AccessDenied):
                del self.workers[name]

    def _check_alive(self, worker: Worker) -> None:
        if worker.task.done():
            worker.task.result()
            self._violated("a processor ended by itself")

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
        await asyncio.sleep(1)  # a worker that was frozen while it was refused ends now
        self._bury()
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
                self._check_alive(worker)
            if self.now() > until:
                leases = [from_document(d) for d in (await self.leases.list(f"{self.prefix}..")).documents]
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
    with suppress(asyncio.CancelledError, AccessDenied):
        await task
