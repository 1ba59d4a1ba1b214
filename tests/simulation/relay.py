"""
Two processors, each with relays, zombies and operators on a topic of its own, and one parked store for both, under a
script of crashes, faults, stale reads, and of topics that refuse everything for a while.

Checked of each processor: at every checkpoint, each event behind it is in its topic or in its part of the parked store
(G2); at the end, once an operator released all that is parked, its topic has each event that was not dropped, first copies
in commit order (G3), and nothing is held that no list of parked keys names. A topic that refuses everything parks no more
than a handful of keys.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import TypeVar

from cosmos_outbox.adapters.memory.broker import Fault, MemoryBroker
from cosmos_outbox.adapters.memory.parked import MemoryParked, keys_of, page_of, present_in, queue_of
from cosmos_outbox.documents import Document
from cosmos_outbox.errors import (
    NotFound,
    OutboxError,
    ParkingError,
    PublishError,
    StoreError,
    StoreUnavailable,
    TopicRefusesAll,
    UsageError,
)
from cosmos_outbox.messages import OutboundMessage
from cosmos_outbox.parking import ParkedKeys, Parking, Released, Scope
from cosmos_outbox.parking.release import Send
from cosmos_outbox.ports import ChangeBatch, CommitResult, Notes, ParkedStore, Publisher, Write
from cosmos_outbox.records import KeyParked, Record
from cosmos_outbox.relay import Relay
from cosmos_outbox.relay.resend import resending
from cosmos_outbox.relay.verdict import BELIEVED_IN_A_ROW
from cosmos_outbox.retries import Backoff, RetryOptions

PROCESSORS = ("billing", "audit")
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
    PARK = "park a key by hand"


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
    processor: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """
    An operator who looks after the parked keys once, and may be killed.
    """

    starts_at: float
    lives_for: float
    act: Act
    link: Link
    processor: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """
    What is committed and when, what the brokers refuse and until when, and who acts.

    rejected: by the first topic; `rejected_too`: by the second.
    chokes: events on which both topics fail with an unclear answer.
    refuses_all: from when to when the first topic refuses everything.
    """

    pages: tuple[tuple[float, tuple[Document, ...]], ...]
    rejected: frozenset[str]
    rejects_until: float
    latency: float
    owners: tuple[Owner, ...]
    operators: tuple[Operator, ...]
    committed: dict[str, list[str]] = field(default_factory=dict)
    rejected_too: frozenset[str] = frozenset()
    chokes: frozenset[str] = frozenset()
    refuses_all: tuple[float, float] = (0.0, 0.0)


class Service:
    """
    The parked store with all its versions: a read gets an older one, a write the newest.
    """

    def __init__(self) -> None:
        self.newest = MemoryParked(now=lambda: asyncio.get_running_loop().time())
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

    async def page(self, partition_key: str, *, after: str = "", limit: int = 100) -> tuple[Document, ...]:
        await asyncio.sleep(self._link.seconds)
        return page_of(self._version(0), partition_key, after=after, limit=limit)

    async def queue(self, partition_key: str, *, epoch: str, first: int, limit: int) -> tuple[Document, ...]:
        await asyncio.sleep(self._link.seconds)
        limit = min(limit, 3)  # as where events are large
        return queue_of(self._version(0), partition_key, epoch=epoch, first=first, limit=limit)

    async def present(self, partition_key: str, document_ids: Collection[str]) -> frozenset[str]:
        await asyncio.sleep(self._link.seconds)
        return present_in(self._version(0), partition_key, document_ids)

    async def keys(self, *, processor: str, container: str) -> tuple[Document, ...]:
        await asyncio.sleep(self._link.seconds)
        return keys_of(self._version(0), processor=processor, container=container)

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


@dataclass(slots=True)
class Processor:
    """
    One processor: its topic, and what its lease says.

    newest: the tenure that may write the lease; those before it lost it, whether they know or not.
    """

    name: str
    broker: MemoryBroker
    checkpoint: int = 0
    notes: str | None = None
    newest: int = 0
    relays: dict[int, Relay] = field(default_factory=dict)
    parked_for: list[str] = field(default_factory=list)

    @property
    def scope(self) -> Scope:
        return Scope(processor=self.name, container="rid")


class Simulation:
    """
    One run of a script; mutations replace single parts.
    """

    def __init__(self, script: Script) -> None:
        self.script = script
        self.processors = [
            Processor(
                name=name,
                broker=MemoryBroker(
                    clock=self._now,
                    dedup_window_seconds=None,
                    rejects=lambda message, number=number: self._rejects(number, message),  # type: ignore[misc]
                ),
            )
            for number, name in enumerate(PROCESSORS)
        ]
        for processor in self.processors:
            processor.broker.latency_seconds = script.latency
            processor.broker.chokes = self._chokes
        self.service = Service()
        self.violations: list[str] = []
        self._tenures = itertools.count(1)

    # the parts that a mutation may replace

    def session(self, link: Link) -> ParkedStore:
        return Session(self.service, link)

    def parking(self, store: ParkedStore) -> Parking:
        return Parking(store, retry=_RETRY)

    def operator(self, processor: Processor, store: ParkedStore) -> ParkedKeys:
        return ParkedKeys(store, self.sends(processor), scope=self.scope(processor), retry=_RETRY)

    def sends(self, processor: Processor) -> Send:
        return resending(self.releases_to(processor), backoff=_BACKOFF)

    def scope(self, processor: Processor) -> Scope:
        return processor.scope

    def publisher(self, processor: Processor, *, lanes: int, batch_size: int) -> Publisher:
        return processor.broker.publisher(lanes=lanes, batch_size=batch_size)

    def releases_to(self, processor: Processor) -> Publisher:
        return self.publisher(processor, lanes=1, batch_size=2)

    def save(self, processor: Processor, tenure: int, *, checkpoint: int, notes: Notes) -> None:
        """
        Write the lease: the checkpoint and the notes at once, by the owner that has it and no other.
        """
        if processor.newest == tenure:
            processor.checkpoint, processor.notes = checkpoint, notes.text

    # the run

    async def play(self) -> None:
        acts: list[Awaitable[None]] = [self._own(owner) for owner in self.script.owners]
        acts += [self._operate(operator) for operator in self.script.operators]
        async with asyncio.timeout(3600):
            await asyncio.gather(*acts)
            await asyncio.sleep(60)  # what is late arrives
            for processor in self.processors:
                processor.broker.faults.clear()
                last = self._relay(processor, Link(), lanes=8, batch_size=100)
                await self._work(processor, last, halted=partial(self._park_refused, processor))
                await self._clear(processor)
        self._audit()

    async def _own(self, owner: Owner) -> None:
        processor = self.processors[owner.processor]
        await asyncio.sleep(owner.starts_at)
        processor.broker.faults.extend(owner.faults)
        relay = processor.relays.pop(owner.worker, None) or self._relay(
            processor, owner.link, lanes=2, batch_size=2
        )
        with suppress(TimeoutError):  # a crash, or the loss of the lease
            async with asyncio.timeout(owner.lives_for):
                await self._work(processor, relay)
        processor.relays[owner.worker] = relay

    def _relay(self, processor: Processor, link: Link, *, lanes: int, batch_size: int) -> Relay:
        def hear(record: Record) -> None:
            if isinstance(record, KeyParked):
                processor.parked_for.append(record.event_id)

        return Relay(
            self.publisher(processor, lanes=lanes, batch_size=batch_size),
            parking=self.parking(self.session(link)),
            backoff=_BACKOFF,
            notify=hear,
        )

    async def _work(
        self,
        processor: Processor,
        relay: Relay,
        *,
        halted: Callable[[ChangeBatch], Awaitable[None]] | None = None,
    ) -> None:
        tenure = processor.newest = next(self._tenures)
        notes = Notes(processor.notes)
        scope = self.scope(processor)
        for number in range(processor.checkpoint, len(self.script.pages)):
            available_at, documents = self.script.pages[number]
            await asyncio.sleep(max(0.0, available_at - self._now()))
            page = ChangeBatch(
                lease="0",
                documents=documents,
                tenure=tenure,
                processor=scope.processor,
                container_rid=scope.container,
                notes=notes,
            )
            await _until_handled(relay, page, halted=halted)
            self.save(processor, tenure, checkpoint=number + 1, notes=notes)
            self._check_that_nothing_is_missing(processor)

    async def _operate(self, operator: Operator) -> None:
        await asyncio.sleep(operator.starts_at)
        keys = self.operator(self.processors[operator.processor], self.session(operator.link))
        with suppress(TimeoutError, ParkingError, PublishError, StoreError, UsageError):
            async with asyncio.timeout(operator.lives_for):
                if operator.act is Act.PARK:
                    await keys.park("b", reason="by hand")
                for parked in await keys.list():
                    await self._act(keys, parked.partition_key, operator)

    async def _act(self, keys: ParkedKeys, partition_key: str, operator: Operator) -> None:
        if operator.act is Act.LOOK:
            await keys.show(partition_key)
        elif operator.act is Act.RELEASE:
            await keys.release(partition_key)
        elif operator.act is Act.EDIT:
            await self._edit(keys, partition_key)
        elif operator.act is not Act.PARK and (held := (await keys.show(partition_key)).held):
            event = held[0 if operator.act is Act.DROP_FIRST else -1]
            await keys.drop(partition_key, event.event_id, reason="of no use")

    async def _edit(self, keys: ParkedKeys, partition_key: str) -> Released:
        first = await keys.first_held(partition_key)
        if first is None:
            return await keys.release(partition_key)
        return await keys.release(partition_key, edited=MENDED, event_id=first.event_id)

    async def _park_refused(self, processor: Processor, page: ChangeBatch) -> None:
        """
        Do what `TopicRefusesAll` asks for: where its good keys were parked too, a page has nothing that the topic takes.
        """
        keys = self.operator(processor, self.session(Link()))
        refused = self.script.rejected | self.script.rejected_too
        for key in {document["partitionKey"] for document in page.documents if document["id"] in refused}:
            await keys.park(key, reason="refused")

    async def _clear(self, processor: Processor) -> None:
        keys = self.operator(processor, self.session(Link()))
        for parked in await keys.list():
            released = await keys.release(parked.partition_key)
            while not released.handed_back:
                released = await self._edit(keys, parked.partition_key)

    # the claims

    def _check_that_nothing_is_missing(self, processor: Processor) -> None:
        known = {arrival.message.message_id for arrival in processor.broker.arrivals}
        known |= {document["event"]["id"] for document in self._stored("parkedEvent", processor)}
        passed = [
            document["id"]
            for _, documents in self.script.pages[: processor.checkpoint]
            for document in documents
        ]
        self.violations += [
            f"{event_id} is nowhere for {processor.name}" for event_id in passed if event_id not in known
        ]

    def _audit(self) -> None:
        assert [] == self.violations
        assert [] == self._stored("parkedKey")
        for processor in self.processors:
            records = self._stored("parkedEvent", processor)
            dropped = {document["event"]["id"] for document in records if document["status"] == "dropped"}
            assert all(document["note"] for document in records if document["status"] == "dropped")
            assert [] == [document["id"] for document in records if document["status"] == "held"]
            first_copies: dict[str, list[str]] = defaultdict(list)
            seen: set[str] = set()
            for message in processor.broker.accepted:
                if message.message_id not in seen | dropped:
                    first_copies[message.session_id].append(message.message_id)
                seen.add(message.message_id)
            expected = {
                key: [event_id for event_id in ids if event_id not in dropped]
                for key, ids in self.script.committed.items()
            }
            assert {key: ids for key, ids in expected.items() if ids} == first_copies
            blameless = {
                event_id
                for event_id in processor.parked_for
                if event_id not in self.script.rejected | self.script.rejected_too | self.script.chokes
            }
            workers = len({owner.worker for owner in self.script.owners}) + 1
            assert len(blameless) <= BELIEVED_IN_A_ROW * workers, "a topic that refuses all parked many keys"

    def _stored(self, kind: str, processor: Processor | None = None) -> list[Document]:
        return [
            document
            for document in self.service.newest.documents()
            if document["type"] == kind
            and (processor is None or f'["{processor.name}"' in document["partitionKey"])
        ]

    def _rejects(self, number: int, message: OutboundMessage) -> bool:
        rejected = self.script.rejected_too if number else self.script.rejected
        begins, ends = self.script.refuses_all
        return (number == 0 and begins <= self._now() < ends) or (
            message.message_id in rejected and self._is_at_fault(message)
        )

    def _chokes(self, message: OutboundMessage) -> bool:
        return message.message_id in self.script.chokes and self._is_at_fault(message)

    def _is_at_fault(self, message: OutboundMessage) -> bool:
        return b"mended" not in message.body and self._now() < self.script.rejects_until

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


_RETRY = RetryOptions(
    deadline_seconds=5, attempt_seconds=2, backoff=Backoff(initial_seconds=0.02, maximum_seconds=0.3)
)
_BACKOFF = Backoff(initial_seconds=0.1, maximum_seconds=1)


def _forget_outcome(task: asyncio.Future[CommitResult]) -> None:
    if not task.cancelled():
        task.exception()


async def _until_handled(
    relay: Relay, page: ChangeBatch, *, halted: Callable[[ChangeBatch], Awaitable[None]] | None
) -> None:
    """
    Hand the page over until it is handled, as the processor does.

    Args:
        halted: what the operator does about a lease that waits for one. None if there is no operator.
    """
    while True:
        try:
            return await relay(page)
        except OutboxError as error:
            if isinstance(error, TopicRefusesAll) and halted is not None:
                await halted(page)
            await asyncio.sleep(0.3)
