"""World: a container, its leases and several change feed processors in memory, for tests in virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from cosmos_outbox.adapters.memory.container import MemoryContainer
from cosmos_outbox.adapters.memory.leases import MemoryLeases
from cosmos_outbox.changefeed import ChangeFeedProcessor, ProcessorOptions
from cosmos_outbox.changefeed.leases import Lease, from_document
from cosmos_outbox.ports import ChangeBatch, ChangeFeed, ChangeHandler, LeaseStore, Write, WriteKind
from cosmos_outbox.records import Hook, LeaseMoved, Record

EPOCH = 1_800_000_000.0


def virtual_seconds() -> float:
    return EPOCH + asyncio.get_running_loop().time()


def virtual_utcnow() -> datetime:
    return datetime.fromtimestamp(virtual_seconds(), UTC)


def ended(records: Iterable[Record]) -> list[LeaseMoved]:
    """Return, from the records of a worker, one record for each lease that it released or lost."""
    return [one for one in records if isinstance(one, LeaseMoved) and one.outcome != "acquired"]


class Faulty:
    """
    A store whose methods in `failing` raise errors for one worker, and whose methods in `hanging` hang until cancelled.
    """

    def __init__(self, port: object) -> None:
        self._port = port
        self.failing: dict[str, type[Exception]] = {}
        self.hanging: set[str] = set()
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        async def call(*args: object, **kwargs: object) -> object:
            self.calls[name] += 1
            if name in self.hanging:
                await asyncio.Event().wait()
            if (error := self.failing.get(name)) is not None:
                await asyncio.sleep(0.01)
                raise error
            return await getattr(self._port, name)(*args, **kwargs)

        return call


class World:
    utcnow = staticmethod(virtual_utcnow)

    def __init__(self, *, ranges: int = 1) -> None:
        self.container = MemoryContainer(ranges=ranges, now=virtual_seconds)
        self.leases = MemoryLeases(now=virtual_seconds)
        # By partition key: the numbers of the documents that the workers handled, in the order of handling.
        self.handled: dict[str, list[int]] = defaultdict(list)
        self.workers: dict[str, tuple[ChangeFeedProcessor, asyncio.Task[None]]] = {}
        self._written: dict[str, int] = defaultdict(int)

    async def write(self, partition_key: str) -> None:
        """Write a document to a partition key. Documents of a key are numbered from 0."""
        number = self._written[partition_key]
        self._written[partition_key] += 1
        document = {"id": f"{partition_key}-{number}", "partitionKey": partition_key, "n": number}
        write = Write(kind=WriteKind.CREATE, id=document["id"], document=document)
        await self.container.commit(partition_key, [write])

    async def write_many(self, count: int, *, keys: int = 10) -> None:
        for i in range(count):
            await self.write(f"key-{i % keys}")

    async def handle(self, batch: ChangeBatch) -> None:
        for document in batch.documents:
            self.handled[document["partitionKey"]].append(document["n"])

    def start(
        self,
        name: str,
        *,
        handler: ChangeHandler | None = None,
        feed: ChangeFeed | None = None,
        leases: LeaseStore | None = None,
        utcnow: Callable[[], datetime] = virtual_utcnow,
        hooks: Iterable[Hook] = (),
        **options: object,
    ) -> ChangeFeedProcessor:
        processor = ChangeFeedProcessor(
            feed or self.container,
            leases or self.leases,
            handler or self.handle,
            ProcessorOptions(processor_name="p", instance_name=name, **options),  # type: ignore[arg-type]
            utcnow=utcnow,
            hooks=hooks,
        )
        self.workers[name] = (processor, asyncio.ensure_future(processor.run()))
        return processor

    async def stop(self, name: str) -> None:
        processor, task = self.workers.pop(name)
        processor.stop()
        await task

    async def kill(self, name: str) -> None:
        """End a worker as SIGKILL would, so that it releases none of its leases."""
        _, task = self.workers.pop(name)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    async def stop_all(self) -> None:
        for name in list(self.workers):
            await self.stop(name)

    async def create_leases(self) -> None:
        """Start a worker, let it create the leases, and stop it."""
        self.start("a")
        await asyncio.sleep(5)
        await self.stop_all()

    async def forget_ranges(self) -> None:
        """Remove the field FeedRange from all leases, because old versions of the .NET SDK write leases without it."""
        for lease in await self.all_leases():
            document = {name: value for name, value in lease.raw.items() if name != "FeedRange"}
            await self.leases.replace(document, etag=lease.etag or "")

    async def all_leases(self) -> list[Lease]:
        listing = await self.leases.list("p")
        return [from_document(d) for d in listing.documents if ".." in d["id"]]

    async def partition_ids(self) -> list[str]:
        return [await self.container.partition_id(one) for one in await self.container.physical_ranges()]

    async def owners(self) -> dict[str, int]:
        counts: dict[str, int] = defaultdict(int)
        for lease in await self.all_leases():
            counts[lease.owner or "free"] += 1
        return dict(counts)

    async def until(self, fact: Callable[[], bool], *, within: timedelta = timedelta(minutes=10)) -> float:
        """Wait until a condition holds. Return how many seconds of virtual time that took."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        async with asyncio.timeout(within.total_seconds()):
            while not fact():  # noqa: ASYNC110 - in virtual time a poll costs nothing, and works for any fact
                await asyncio.sleep(0.05)
        return loop.time() - started

    def all_handled(self) -> bool:
        return all(set(self.handled[key]) >= set(range(count)) for key, count in self._written.items())

    def first_copies_in_order(self) -> bool:
        return all(list(dict.fromkeys(numbers)) == sorted(set(numbers)) for numbers in self.handled.values())
