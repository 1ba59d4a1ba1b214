"""
Relays, zombies and operators on one topic and one parked store, under a script of crashes, faults and stale reads.

Checked: at every checkpoint, each event behind it is in the topic or in the parked store (G2); at the end, once an
operator released all that is parked, the topic has each event that was not dropped, first copies in commit order (G3),
and nothing is held that no list of parked keys names.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from cosmos_outbox.adapters.memory.broker import Fault, MemoryBroker
from cosmos_outbox.adapters.memory.parked import MemoryParked
from cosmos_outbox.backoff import Backoff
from cosmos_outbox.documents import Document
from cosmos_outbox.errors import (
    NotFound,
    OutboxError,
    ParkingError,
    PublishError,
    StoreError,
    StoreUnavailable,
)
from cosmos_outbox.messages import OutboundMessage
from cosmos_outbox.ports import ChangeBatch, CommitResult, ParkedStore, Publisher, Write
from cosmos_outbox.relay import ParkedKeys, Parking, Relay
from cosmos_outbox.retries import RetryOptions

MENDED = {"action": "Renamed", "state": "mended"}
ResultT = TypeVar("ResultT")


class StoreFault(StrEnum):
    """
    What goes wrong with one write to the parked store.
    """

    LOST = "lost"
    ACK_LOST = "ack-lost"
    LATE = "late"
    ECHO = "echo"  # sent twice by the client: what it did comes back as a refusal


class Act(StrEnum):
    """
    What an operator does to every parked key.
    """

    LOOK = "look"
    RELEASE = "release"
    EDIT = "edit"
    DROP_FIRST = "drop the first event"
    DROP_LAST = "drop the last event"


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """
    One program's way to the parked store: how slow, how far behind its reads, and what fails on it.
    """

    seconds: float = 0.0
    behind: float = 0.0
    faults: tuple[StoreFault | None, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """
    One tenure of the lease: it begins at the checkpoint, perhaps while the last owner still works, and may be killed.
    """

    starts_at: float
    lives_for: float
    worker: int  # who has the lease: a worker may get it back
    faults: tuple[Fault | None, ...]
    link: Link


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """
    Somebody who looks after the parked keys once, and may be killed.
    """

    starts_at: float
    lives_for: float
    act: Act
    take_over: bool
    link: Link


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """
    What is committed and when, what the broker refuses and until when, and who acts.
    """

    pages: tuple[tuple[float, tuple[Document, ...]], ...]
    rejected: frozenset[str]
    rejects_until: float
    latency: float
    owners: tuple[Owner, ...]
    operators: tuple[Operator, ...]
    clock_speed: float = 360.0  # of the store's clock: what is abandoned after an hour, is after ten seconds
    committed: dict[str, list[str]] = field(default_factory=dict)


class Service:
    """
    The parked store with all its versions: a read gets an older one, a write the newest.
    """

    def __init__(self, *, clock_speed: float = 1.0) -> None:
        self.newest = MemoryParked(now=lambda: asyncio.get_running_loop().time() * clock_speed)
        self.versions: list[tuple[float, tuple[Document, ...]]] = [(0.0, ())]

    async def commit(self, partition_key: str, writes: Sequence[Write]) -> CommitResult:
        result = await self.newest.commit(partition_key, writes)
        self.versions.append((asyncio.get_running_loop().time(), self.newest.documents()))
        return result


class Session:
    """
    The ParkedStore of one program: its own point reads see its own writes, and what refused them; others may not.
    """

    def __init__(self, service: Service, link: Link) -> None:
        self._service, self._link = service, link
        self._faults = list(link.faults)
        self._seen: dict[str, int] = defaultdict(int)

    async def read(self, document_id: str, partition_key: str) -> Document:
        await asyncio.sleep(self._link.seconds)
        documents = self._version(self._seen[partition_key])
        for document in documents:
            if (document["id"], document["partitionKey"]) == (document_id, partition_key):
                return dict(document)
        raise NotFound(document_id=document_id)

    async def list(self, partition_key: str) -> tuple[Document, ...]:
        await asyncio.sleep(self._link.seconds)
        return tuple(
            dict(document) for document in self._version(0) if document["partitionKey"] == partition_key
        )

    async def commit(self, partition_key: str, writes: Sequence[Write]) -> CommitResult:
        # In a task of its own: a caller that is killed does not call its request back.
        sending = asyncio.ensure_future(self._commit(partition_key, writes))
        sending.add_done_callback(_forget_outcome)
        return await asyncio.shield(sending)

    async def _commit(self, partition_key: str, writes: Sequence[Write]) -> CommitResult:
        fault = self._faults.pop(0) if self._faults else None
        await asyncio.sleep(self._link.seconds)
        if fault is StoreFault.LOST:
            raise StoreUnavailable
        if fault is StoreFault.LATE:
            asyncio.get_running_loop().call_later(3.0, self._send_late, partition_key, tuple(writes))
            raise StoreUnavailable
        try:
            result = await self._service.commit(partition_key, writes)
            if fault is StoreFault.ECHO:
                result = await self._service.commit(partition_key, writes)
        finally:
            self._seen[partition_key] = len(self._service.versions)
        if fault is StoreFault.ACK_LOST:
            raise StoreUnavailable
        await asyncio.sleep(self._link.seconds)
        return result

    def _send_late(self, partition_key: str, writes: Sequence[Write]) -> None:
        late = asyncio.ensure_future(self._service.commit(partition_key, writes))
        late.add_done_callback(_forget_outcome)

    def _version(self, at_least: int) -> tuple[Document, ...]:
        limit = asyncio.get_running_loop().time() - self._link.behind
        versions = self._service.versions
        old_enough = sum(1 for at, _ in versions if at <= limit)
        return versions[max(old_enough, at_least, 1) - 1][1]


class Simulation:
    """
    One run of a script; mutations replace single parts.
    """

    def __init__(self, script: Script) -> None:
        self.script = script
        self.broker = MemoryBroker(clock=self._now, dedup_window_seconds=None, rejects=self._rejects)
        self.broker.latency_seconds = script.latency
        self.service = Service(clock_speed=script.clock_speed)
        self.checkpoint = 0
        self.violations: list[str] = []
        self._tenures = itertools.count(1)
        self._relays: dict[int, Relay] = {}

    # the parts that a mutation may replace

    def session(self, link: Link) -> ParkedStore:
        return Session(self.service, link)

    def parking(self, store: ParkedStore) -> Parking:
        return Parking(store, retry=_RETRY)

    def operator(self, store: ParkedStore) -> ParkedKeys:
        return ParkedKeys(store, self.releases_to(), retry=_RETRY, backoff=_BACKOFF)

    def releases_to(self) -> Publisher:
        return self.broker.publisher(lanes=1, batch_size=2)

    # the run

    async def play(self) -> None:
        acts: list[Awaitable[None]] = [self._own(owner) for owner in self.script.owners]
        acts += [self._operate(operator) for operator in self.script.operators]
        async with asyncio.timeout(3600):
            await asyncio.gather(*acts)
            await asyncio.sleep(60)  # what is late arrives
            self.broker.faults.clear()
            await self._work(self._relay(Link(), self.broker.publisher()))
            await self._clear()
        self._audit()

    async def _own(self, owner: Owner) -> None:
        await asyncio.sleep(owner.starts_at)
        self.broker.faults.extend(owner.faults)
        relay = self._relays.pop(owner.worker, None) or self._relay(
            owner.link, self.broker.publisher(lanes=2, batch_size=2)
        )
        with suppress(TimeoutError):  # a crash, or the loss of the lease
            async with asyncio.timeout(owner.lives_for):
                await self._work(relay)
        self._relays[owner.worker] = relay

    def _relay(self, link: Link, publisher: Publisher) -> Relay:
        return Relay(
            publisher,
            parking=self.parking(self.session(link)),
            backoff=_BACKOFF,
            notify=lambda record: None,
        )

    async def _work(self, relay: Relay) -> None:
        tenure = next(self._tenures)
        for number in range(self.checkpoint, len(self.script.pages)):
            available_at, documents = self.script.pages[number]
            await asyncio.sleep(max(0.0, available_at - self._now()))
            page = ChangeBatch(lease="0", documents=documents, tenure=tenure)
            await _until_handled(relay, page)
            self.checkpoint = max(self.checkpoint, number + 1)
            self._check_that_nothing_is_missing(number)

    async def _operate(self, operator: Operator) -> None:
        await asyncio.sleep(operator.starts_at)
        keys = self.operator(self.session(operator.link))
        with suppress(TimeoutError, ParkingError, PublishError, StoreError):
            async with asyncio.timeout(operator.lives_for):
                for parked in await keys.list():
                    await self._act(keys, parked.partition_key, operator)

    async def _act(self, keys: ParkedKeys, partition_key: str, operator: Operator) -> None:
        if operator.act is Act.LOOK:
            await keys.show(partition_key)
        elif operator.act is Act.RELEASE:
            await keys.release(partition_key, take_over=operator.take_over)
        elif operator.act is Act.EDIT:
            await keys.release(partition_key, edited=MENDED, take_over=operator.take_over)
        elif held := (await keys.show(partition_key)).held:
            event = held[0 if operator.act is Act.DROP_FIRST else -1]
            await keys.drop(partition_key, event.event_id, reason="of no use", take_over=operator.take_over)

    async def _clear(self) -> None:
        keys = self.operator(self.session(Link()))
        for parked in await keys.list():
            released = await keys.release(parked.partition_key, take_over=True)
            while not released.handed_back:
                released = await keys.release(parked.partition_key, edited=MENDED)

    # the claims

    def _check_that_nothing_is_missing(self, page: int) -> None:
        known = {arrival.message.message_id for arrival in self.broker.arrivals}
        known |= {document["event"]["id"] for document in self._stored("parkedEvent")}
        passed = [document["id"] for _, documents in self.script.pages[: page + 1] for document in documents]
        self.violations += [f"{event_id} is nowhere" for event_id in passed if event_id not in known]

    def _audit(self) -> None:
        assert [] == self.violations
        records = self._stored("parkedEvent")
        dropped = {document["event"]["id"] for document in records if document["status"] == "dropped"}
        assert all(document["note"] for document in records if document["status"] == "dropped")
        assert [] == [document["id"] for document in records if document["status"] == "held"]
        assert [] == self._stored("parkedKey")
        first_copies: dict[str, list[str]] = defaultdict(list)
        seen: set[str] = set()
        for message in self.broker.accepted:
            if message.message_id not in seen | dropped:
                first_copies[message.session_id].append(message.message_id)
            seen.add(message.message_id)
        expected = {
            key: [event_id for event_id in ids if event_id not in dropped]
            for key, ids in self.script.committed.items()
        }
        assert {key: ids for key, ids in expected.items() if ids} == first_copies

    def _stored(self, kind: str) -> list[Document]:
        return [document for document in self.service.newest.documents() if document["type"] == kind]

    def _rejects(self, message: OutboundMessage) -> bool:
        return (
            message.message_id in self.script.rejected
            and b"mended" not in message.body
            and self._now() < self.script.rejects_until
        )

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


_RETRY = RetryOptions(
    deadline_seconds=5, attempt_seconds=2, backoff=Backoff(initial_seconds=0.02, maximum_seconds=0.3)
)
_BACKOFF = Backoff(initial_seconds=0.1, maximum_seconds=1)


def _forget_outcome(task: asyncio.Future[CommitResult]) -> None:
    if not task.cancelled():
        task.exception()


async def _until_handled(relay: Relay, page: ChangeBatch) -> None:
    while True:
        try:
            return await relay(page)
        except OutboxError:  # as the processor does
            await asyncio.sleep(0.3)
