"""
A simulation of two change feed processors that share one parked store. Each has its own topic, relays that send to it, zombies (relays
that lost their lease and go on) and operators. A script adds crashes, faults, stale reads, and topics that refuse everything for a while.

G2 and G3 are promises of docs/explanation/ordering-and-delivery.md. When a processor saves its position, the simulation checks that each
earlier event is in the topic or in the processor's part of the parked store (G2).

At the end, after an operator has released all parked keys, the simulation checks four things. The topic has each event that was not
dropped, and the first copies are in commit order (G3). Every third event is for later, and entered the topic at its time. The parked
store has no events of a key that is not listed as parked. While a topic refused everything, only a few keys were parked.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from typing import Any, TypeVar

from cosmos_outbox.adapters.memory.broker import Fault, MemoryBroker
from cosmos_outbox.errors import (
    OutboxError,
    ParkingError,
    PublishError,
    StoreError,
    TopicRefusesAll,
    UsageError,
)
from cosmos_outbox.message_format import OutboundMessage
from cosmos_outbox.parking import ParkedKeys, Parking, Released, Scope
from cosmos_outbox.parking.release import Send
from cosmos_outbox.ports import ChangeBatch, Notes, ParkedStore, Publisher
from cosmos_outbox.records import KeyParked, Record
from cosmos_outbox.relay import Relay
from cosmos_outbox.relay.released_events import resending
from cosmos_outbox.relay.topics_and_refusals import BELIEVED_IN_A_ROW
from cosmos_outbox.retries import Backoff, RetryOptions
from cosmos_outbox.stored_documents import Document
from tests.support.versioned_parked import Link, Service, Session

PROCESSORS = ("billing", "audit")
MENDED = {"action": "Renamed", "state": "mended"}
ResultT = TypeVar("ResultT")


class Act(StrEnum):
    """The actions of an operator. PARK parks a key by hand. All other actions are done to every parked key."""

    LOOK = "look"
    RELEASE = "release"
    EDIT = "edit"
    DROP_FIRST = "drop the first event"
    DROP_LAST = "drop the last event"
    PARK = "park a key by hand"


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """
    The time in which one worker owns the lease of the processor. The worker begins at the saved position, perhaps while the
    previous owner still works, and may be killed.
    """

    starts_at: float
    lives_for: float
    worker: int  # the number of the worker, which may own the lease several times
    faults: tuple[Fault | None, ...]
    link: Link
    processor: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """An operator who acts on all parked keys, once. The operator's command may be killed meanwhile."""

    starts_at: float
    lives_for: float
    act: Act
    link: Link
    processor: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """
    The plan of a run: the commits and their times, what the brokers refuse and until when, and the owners and operators that act.

    rejected: the events that the first topic rejects; `rejected_too`: those that the second topic rejects.
    chokes: events on which both topics fail with an error that does not say whether the event is at fault.
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


@dataclass(slots=True)
class Processor:
    """
    One change feed processor: its topic, and the content of its lease, which is the saved position and the names of parked keys.

    newest: the number of the current owner, which alone may write the lease. Earlier owners lost it, and may not know it yet.
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


def _deliver_at(event_id: str) -> datetime | None:
    number = int(event_id.partition("/")[2])
    return datetime.fromtimestamp(20 + number, UTC) if number % 3 == 2 else None


def _for_later(document: Document) -> Document:
    later = _deliver_at(document["id"])
    return document if later is None else {**document, "meta": {**document["meta"], "deliverAt": str(later)}}


class Simulation:
    """One run of a script. Subclasses replace single parts to plant a mistake."""

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

    # Planted mistakes (test_relay_mistakes.py) and the writers of traces override the following methods.

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

    def relay_of(self, processor: Processor, publisher: Publisher, **options: Any) -> Relay:
        return Relay(publisher, **options)

    def took(self, processor: Processor, tenure: int) -> None:
        """Do nothing when a worker has taken the lease. The classes that write traces override this."""

    def save(self, processor: Processor, tenure: int, *, checkpoint: int, notes: Notes) -> None:
        """
        Write the position and the names of parked keys into the lease, in one write. Ignore the write of a worker that lost the
        lease.
        """
        if processor.newest == tenure:
            processor.checkpoint, processor.notes = checkpoint, notes.text

    # the run

    async def play(self) -> None:
        acts: list[Awaitable[None]] = [self._own(owner) for owner in self.script.owners]
        acts += [self._operate(operator) for operator in self.script.operators]
        async with asyncio.timeout(3600):
            await asyncio.gather(*acts)
            await asyncio.sleep(60)  # until requests that are still on their way have been executed
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
        with suppress(TimeoutError):  # after `lives_for`, the worker crashes or loses the lease
            async with asyncio.timeout(owner.lives_for):
                await self._work(processor, relay)
        processor.relays[owner.worker] = relay

    def _relay(self, processor: Processor, link: Link, *, lanes: int, batch_size: int) -> Relay:
        def hear(record: Record) -> None:
            if isinstance(record, KeyParked):
                processor.parked_for.append(record.event_id)

        return self.relay_of(
            processor,
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
        self.took(processor, tenure)
        notes = Notes(processor.notes)
        scope = self.scope(processor)
        for number in range(processor.checkpoint, len(self.script.pages)):
            available_at, documents = self.script.pages[number]
            await asyncio.sleep(max(0.0, available_at - self._now()))
            page = ChangeBatch(
                lease="0",
                documents=tuple(map(_for_later, documents)),
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
        Park the keys of the refused events of a page by hand, as the error `TopicRefusesAll` advises. If the topic refuses all events
        that are left in the page, the lease stays halted until an operator parks their keys.
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
            for message in (arrival.message for arrival in processor.broker.arrivals):
                assert _deliver_at(message.message_id) == message.deliver_at
                if message.message_id not in seen | dropped:
                    first_copies[message.session_id].append(message.message_id)
                seen.add(message.message_id)
            expected = {
                key: [event_id for event_id in ids if event_id not in dropped]
                for key, ids in self.script.committed.items()
            }
            assert {key: ids for key, ids in expected.items() if ids} == first_copies
            assert seen == {message.message_id for message in processor.broker.accepted}
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


async def _until_handled(
    relay: Relay, page: ChangeBatch, *, halted: Callable[[ChangeBatch], Awaitable[None]] | None
) -> None:
    """
    Give a page to the relay again and again until the relay has handled it, as the change feed processor does.

    Args:
        halted: called when the lease halts and waits for an operator. None if there is no operator.
    """
    while True:
        try:
            return await relay(page)
        except OutboxError as error:
            if isinstance(error, TopicRefusesAll) and halted is not None:
                await halted(page)
            await asyncio.sleep(0.3)
