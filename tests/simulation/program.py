"""
One simulated program (a consumer process or an operator's command) and its connections to Cosmos DB and the broker. Requests are lost,
refused, late, or executed without an answer, and the program may be killed at any request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, TypeVar

from cosmos_outbox.adapters.memory.container import MemoryContainer
from cosmos_outbox.adapters.memory.subscription import MemorySession, MemorySubscription
from cosmos_outbox.errors import (
    NotFound,
    OutboxError,
    StoreUnavailable,
    SubscriptionUnavailable,
    TooManyRequests,
)
from cosmos_outbox.message_format import Message
from cosmos_outbox.partition_key import KeyPaths
from cosmos_outbox.ports import CommitResult, Page, ParkedStore, Settlement, Write
from cosmos_outbox.stored_documents import Document
from tests.support.parked_stores import Passing

ResultT = TypeVar("ResultT")
LATE_SECONDS = 4.0


class Port(StrEnum):
    """
    A kind of request. A script has a list of faults for each kind, and each request of the kind takes the next fault.
    """

    SESSION = "accept, receive, renew, close"
    SETTLE = "settle"
    READ = "read from the container"
    COMMIT = "commit to the container"
    PARKED = "read or write parked keys"


class Fault(StrEnum):
    """The ways in which a request can go wrong."""

    DIES_BEFORE = "the program dies, and the request never leaves"
    DIES_AFTER = "the program dies, and the request is carried out"
    LOST = "lost"
    BUSY = "refused: too many requests"
    ACK_LOST = "carried out, but the answer is lost"
    LATE = "carried out later than its sender waits"
    STALE = "a read of a replica that is behind"


class Program:
    """
    A program that the script can kill at any moment, with all its tasks.

    Args:
        seconds: how long a request takes to the service, and an answer back.
        faults: for each kind of request, the faults in order. Later requests succeed.
        away: returns whether the service for a kind of request does not answer now.
    """

    def __init__(
        self,
        *,
        seconds: float = 0.0,
        faults: Mapping[Port, Sequence[Fault | None]] | None = None,
        away: Callable[[Port], bool] = lambda port: False,
    ) -> None:
        self._seconds, self._away = seconds, away
        self._faults = {port: list(found) for port, found in (faults or {}).items()}
        self._running: asyncio.Future[Any] | None = None
        self.dead = False

    async def run(self, work: Awaitable[object], lives_for: float) -> None:
        """
        Run the program until its work ends. Kill the program after `lives_for` seconds, if no fault killed it before.
        """
        self._running = asyncio.ensure_future(work)
        await asyncio.wait({self._running}, timeout=lives_for)
        self.die()
        await asyncio.wait({self._running})
        if not self._running.cancelled() and (error := self._running.exception()) is not None:
            raise error

    def die(self) -> None:
        """Kill the program. Its tasks are cancelled, and requests that they still make reach no service."""
        self.dead = True
        if self._running is not None:
            self._running.cancel()

    async def request(
        self, port: Port, call: Callable[[], Awaitable[ResultT]], *, changes: bool = False
    ) -> ResultT:
        """
        Make a request. It meets the next fault that the script has for its port. With `changes`, the service executes the request even if
        its sender is cancelled meanwhile.
        """
        if self.dead:
            raise asyncio.CancelledError
        faults = self._faults.get(port)
        fault = faults.pop(0) if faults else None
        if fault is Fault.DIES_BEFORE:
            self._die_here()
        await asyncio.sleep(self._seconds)
        if fault is Fault.LOST or self._away(port):
            raise _no_answer(port)
        if fault is Fault.BUSY and port not in (Port.SESSION, Port.SETTLE):
            raise TooManyRequests(retry_after=0.2)
        if fault is Fault.STALE and port is Port.READ:
            raise NotFound
        if fault is Fault.LATE and changes:
            _spawn(_after(LATE_SECONDS, call))
            raise _no_answer(port)
        result = await (asyncio.shield(_spawn(call())) if changes else call())
        if fault is Fault.DIES_AFTER:
            self._die_here()
        if fault is Fault.ACK_LOST:
            raise _no_answer(port)
        await asyncio.sleep(self._seconds)
        return result

    def _die_here(self) -> None:
        self.die()
        raise asyncio.CancelledError

    # These methods return the program's access to a service. Faults of the program disturb its requests.

    def store(self, container: MemoryContainer) -> Container:
        return Container(self, container)

    def parked(self, store: ParkedStore) -> ParkedStore:
        return Parked(self, store)

    def subscription(self, subscription: MemorySubscription) -> Receiver:
        return Receiver(self, subscription)


class Container:
    """
    The access of one program to the container in memory. The program's faults apply to reads and commits.
    """

    def __init__(self, program: Program, container: MemoryContainer) -> None:
        self._program, self._container = program, container

    @property
    def key_paths(self) -> KeyPaths:
        return self._container.key_paths

    async def read(self, document_id: str, partition_key: Any, **options: Any) -> Document:
        return await self._program.request(
            Port.READ, lambda: self._container.read(document_id, partition_key, **options)
        )

    async def commit(self, partition_key: Any, writes: Sequence[Write]) -> CommitResult:
        return await self._program.request(
            Port.COMMIT, lambda: self._container.commit(partition_key, writes), changes=True
        )

    async def list(self, types: Sequence[str], **options: Any) -> Page:
        raise NotImplementedError

    async def query(self, sql: str, parameters: Mapping[str, Any], **options: Any) -> Page:
        raise NotImplementedError


class Parked(Passing):
    """The access of one program to the parked store. The program's faults apply to each request."""

    def __init__(self, program: Program, store: ParkedStore) -> None:
        super().__init__(store)
        self._program = program

    async def call(
        self, operation: str, partition_key: str, request: Callable[[], Awaitable[ResultT]]
    ) -> ResultT:
        return await self._program.request(Port.PARKED, request, changes=operation == "commit")


class Receiver:
    """The access of one program to the subscription. The program's faults apply when it accepts a session."""

    def __init__(self, program: Program, subscription: MemorySubscription) -> None:
        self._program, self._subscription = program, subscription

    async def accept(self, wait_seconds: float) -> Held | None:
        # This request is sent without `changes=True`, so that the broker locks no session for a program that has cancelled its `accept`.
        session = await self._program.request(Port.SESSION, lambda: self._subscription.accept(wait_seconds))
        return None if session is None else Held(self._program, session)


class Held:
    """A session that one program has locked. The program's faults apply to its requests."""

    def __init__(self, program: Program, session: MemorySession) -> None:
        self._program, self.session = program, session

    @property
    def id(self) -> str | None:
        return self.session.id

    @property
    def trusted_until(self) -> float:
        return self.session.trusted_until

    async def receive(self, wait_seconds: float) -> Message | None:
        return await self._program.request(Port.SESSION, lambda: self.session.receive(wait_seconds))

    async def renew(self) -> None:
        await self._program.request(Port.SESSION, self.session.renew)

    async def settle(self, message: Message, settlement: Settlement) -> None:
        await self._program.request(
            Port.SETTLE, lambda: self.session.settle(message, settlement), changes=True
        )

    async def close(self) -> None:
        await self._program.request(Port.SESSION, self.session.close, changes=True)


def _no_answer(port: Port) -> OutboxError:
    if port in (Port.SESSION, Port.SETTLE):
        return SubscriptionUnavailable()
    return StoreUnavailable()


async def _after(seconds: float, call: Callable[[], Awaitable[ResultT]]) -> ResultT:
    await asyncio.sleep(seconds)
    return await call()


def _spawn(work: Awaitable[ResultT]) -> asyncio.Future[ResultT]:
    task = asyncio.ensure_future(work)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return task
