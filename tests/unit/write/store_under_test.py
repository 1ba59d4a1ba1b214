"""
StoreUnderTest: the store for a Hypothesis state machine, which is in memory or on the emulator and has an event loop of its own.

Each state machine is a class with a `backend`, and `run_on` runs it on one of `BACKENDS`. A machine calls `run` to await something,
`documents` to read everything that is stored, and `close` at its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import looptime
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from cosmos_outbox import Backoff, Entity, RetryOptions, Store
from cosmos_outbox.adapters.memory.container import MemoryContainer
from cosmos_outbox.partition_key import PartitionKey
from cosmos_outbox.ports import ChangeFeed, Document, StartFrom
from tests.support.backends import opened
from tests.support.effort import examples


@dataclass(frozen=True, kw_only=True)
class Backend:
    virtual_time: bool  # true for the store in memory, false for the emulator, which needs real time
    key: PartitionKey = "book"
    paths: tuple[str, ...] = ("/partitionKey",)

    @property
    def new_loop(self) -> Callable[[], asyncio.AbstractEventLoop]:
        return looptime.new_event_loop if self.virtual_time else asyncio.new_event_loop

    @property
    def retries(self) -> RetryOptions:
        if self.virtual_time:
            return RetryOptions(deadline_seconds=3, attempt_seconds=1)
        backoff = Backoff(initial_seconds=0.01, maximum_seconds=0.05)
        return RetryOptions(deadline_seconds=0.4, attempt_seconds=0.2, backoff=backoff)

    @property
    def late_seconds(self) -> float:
        """
        Return how many seconds a late request takes to arrive. On virtual time, this is longer than any deadline.
        """
        return 5.0 if self.virtual_time else 0.1


SHELF: dict[str, Any] = {"key": ("shelf", 5, True), "paths": ("/shelf", "/place/number", "/lent")}
BACKENDS = {
    "memory": Backend(virtual_time=True),
    "memory, three paths": Backend(virtual_time=True, **SHELF),
    "emulator": Backend(virtual_time=False),
    "emulator, three paths": Backend(virtual_time=False, **SHELF),
}


def run_on(backend: str, machine: type[RuleBasedStateMachine], *, few: int, many: int, steps: int) -> None:
    """
    Run a state machine with as many examples as the current profile asks for (`tests/support/effort.py`).
    """
    run_state_machine_as_test(
        type(machine.__name__, (machine,), {"backend": BACKENDS[backend]}),
        settings=settings(
            max_examples=examples(few, many=many),
            stateful_step_count=steps,
            deadline=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )


class TextOnKey(Entity):
    """An entity with a text. The test chooses its partition key."""

    key: PartitionKey
    text: str = ""

    @property
    def partition_key(self) -> PartitionKey:
        return self.key


class StoreUnderTest:
    store: Store
    feed: ChangeFeed

    def __init__(self, backend: Backend) -> None:
        self.backend, self.loop = backend, backend.new_loop()
        self._closing = asyncio.Event()
        ready = self.loop.create_future()
        self._host = self.loop.create_task(self._keep_open(ready))
        self.store, self.feed = self.run(asyncio.wait_for(ready, 20))

    def run(self, work: Coroutine[Any, Any, Any] | asyncio.Task[Any]) -> Any:
        return self.loop.run_until_complete(work)

    async def _keep_open(self, ready: asyncio.Future[tuple[Store, ChangeFeed]]) -> None:
        async with self._opened() as ports:
            ready.set_result(ports)
            await self._closing.wait()

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[tuple[Store, ChangeFeed]]:
        if self.backend.virtual_time:
            memory = MemoryContainer(key_paths=self.backend.paths, now=self.loop.time)
            yield memory, memory
        else:
            async with opened("emulator", key_paths=self.backend.paths) as container:
                yield container.store, container.feed

    async def documents(self) -> list[Document]:
        """Return all stored documents in the order in which they were written."""
        rid = (await self.feed.describe()).container_rid
        documents: list[Document] = []
        for physical in await self.feed.physical_ranges():
            continuation = None
            while True:
                page = await self.feed.read_page(
                    physical,
                    container_rid=rid,
                    continuation=continuation,
                    start=StartFrom.BEGINNING,
                    max_items=1000,
                )
                if not page.documents:
                    break
                documents += page.documents
                continuation = page.continuation
        return sorted(
            documents, key=lambda one: (one["_lsn"], one["meta"]["sequence"] if "meta" in one else 0)
        )

    def close(self) -> None:
        self.loop.call_soon(self._closing.set)
        self.run(self._host)
        self.run(self.loop.shutdown_asyncgens())
        self.loop.close()
