"""
A consumer under test: messages reach its handlers as from a subscription, in memory, without a broker or waits.

    async with consumer.testing() as t:
        delivered = await t.deliver(OrderPaid(order_id="o1", total=5), key="o1")
        assert delivered.outcome == "handled"
        assert [event.action for event in t.events()] == ["InvoiceIssued"]
        assert (await t.deliver(delivered.message)).outcome == "repeated"
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from operator import itemgetter
from types import TracebackType
from typing import Any, Self

from cosmos_outbox.adapters.memory import MemoryContainer, MemoryParked
from cosmos_outbox.consumer.effects import Effects
from cosmos_outbox.consumer.handling import Handling
from cosmos_outbox.consumer.held_messages import message_of as held_message
from cosmos_outbox.consumer.policy import Policy
from cosmos_outbox.consumer.routes import Routes
from cosmos_outbox.documents import Document, StoredEvent, event_document, stored_event
from cosmos_outbox.domain.events import DomainEvent
from cosmos_outbox.event_messages import message_of
from cosmos_outbox.messages import Message, delivered
from cosmos_outbox.parking import ParkedKeys, Parking, Released
from cosmos_outbox.partition_key import PartitionKey, key_text
from cosmos_outbox.ports import DeadLetter, Settlement
from cosmos_outbox.records import (
    AttemptFailed,
    ConsumerHalted,
    ConsumingDelayed,
    MessageHandled,
    MessageHeld,
    MessageIgnored,
    MessageParked,
    MessageRepeated,
    Record,
)
from cosmos_outbox.retries import Backoff
from cosmos_outbox.write.outbox import Outbox

_SOURCE = "topic/subscription"


class Outcome(StrEnum):
    """
    What became of a delivery.
    """

    HANDLED = "handled"  # it took effect
    REPEATED = "repeated"  # it had taken effect before
    IGNORED = "ignored"  # no handler takes its subject
    PARKED = "parked"  # it failed, and its key is parked
    HELD = "held"  # its key was parked before
    DEAD_LETTERED = "dead-lettered"
    WAITING = "waiting"  # a store cannot be used, or the handlers fail on every key: it is delivered again


# The record that each outcome leaves; one that is dead-lettered shows by its settlement.
_OUTCOMES: Mapping[type[Record], Outcome] = {
    MessageHandled: Outcome.HANDLED,
    MessageRepeated: Outcome.REPEATED,
    MessageIgnored: Outcome.IGNORED,
    MessageParked: Outcome.PARKED,
    MessageHeld: Outcome.HELD,
    ConsumingDelayed: Outcome.WAITING,
    ConsumerHalted: Outcome.WAITING,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """
    One delivery.

    message: as it was delivered; deliver it again to repeat it.
    settlement: what the consumer would have sent to the broker.
    errors: what the attempts raised, in order.
    records: all that was reported.
    """

    message: Message
    outcome: Outcome
    settlement: Settlement
    errors: tuple[BaseException, ...]
    records: tuple[Record, ...]


class _Session:
    """
    Stands for the session that a processor holds.
    """

    def __init__(self, session_id: str | None) -> None:
        self.id = session_id


class ConsumerTest:
    """
    One consumer with a container, a parked store and a subscription of its own; `Consumer.testing` makes it.

    Attributes:
        container: where the effects are.
        outbox: on that container, to read or to prepare entities.
        records: all that was reported.
    """

    def __init__(
        self,
        name: str,
        routes: Routes,
        policy: Policy,
        container: MemoryContainer,
        outbox: Outbox,
        *,
        outbox_of: Callable[[Message], Outbox] | None,
    ) -> None:
        self.container, self.outbox = container, outbox
        self.records: list[Record] = []
        self._parked = MemoryParked()
        effects = Effects(
            name,
            routes,
            replace(policy, backoff=Backoff(initial_seconds=0, maximum_seconds=0)),
            outbox_of=outbox_of or (lambda message: outbox),
            source=_SOURCE,
            sessions=True,
            notify=self.records.append,
            tracer_provider=None,
        )
        self._handling = Handling(effects, Parking(self._parked, references=False))
        self._keys = ParkedKeys(self._parked, self._handling.release, scope=self._handling.scope)
        self._sessions: dict[str, _Session] = {}
        self._places: dict[str, tuple[int, int]] = {}  # of each entity's newest event
        self._sent: dict[tuple[str, str], Message] = {}  # by key and event
        self._delivered = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    async def deliver(
        self,
        what: DomainEvent | Message,
        *,
        key: PartitionKey | None = None,
        version: int | None = None,
        delivery_count: int | None = None,
        **fields: Any,
    ) -> Delivered:
        """
        Deliver an event as the relay sends it, or a message as it is. An event that was delivered before is the same message.

        Args:
            what: the event or the message.
            key: the partition key of an event, which its session names, and whose text is the id of its entity. Defaults to "key".
            version: of the entity. Defaults to the one after the last delivered of this key; a later one leaves a gap.
            delivery_count: how often it was delivered before. Defaults to that of the message, or 0.
            fields: other fields of the `Message`.
        """
        if not isinstance(what, DomainEvent | Message):
            raise TypeError(f"deliver takes an event or a message; {what!r:.100} is none.")
        if not isinstance(key, str | int | float | tuple | None):
            raise TypeError(
                f"key takes a partition key, a tuple if it is hierarchical; {key!r:.100} is none."
            )
        message = (
            what if isinstance(what, Message) else self._message(what, "key" if key is None else key, version)
        )
        self._delivered += 1
        if delivery_count is not None:
            fields["delivery_count"] = delivery_count
        message = replace(message, sequence_number=self._delivered, **fields)
        seen, session = len(self.records), _Session(message.session_id)
        if message.session_id is not None:
            session = self._sessions.setdefault(message.session_id, session)
        settlement = await self._handling(message, session)
        records = tuple(self.records[seen:])
        found = [outcome for record in records if (outcome := _OUTCOMES.get(type(record))) is not None]
        return Delivered(
            message=message,
            outcome=Outcome.DEAD_LETTERED if isinstance(settlement, DeadLetter) else found[-1],
            settlement=settlement,
            errors=tuple(record.error for record in records if isinstance(record, AttemptFailed)),
            records=records,
        )

    def another_process(self) -> None:
        """
        Forget what a process knows, as if a new process had just accepted the sessions.
        """
        self._sessions.clear()

    def documents(self, kind: str | None = None) -> list[Document]:
        """
        Return what is stored, of one `type` or of all, in the order of the commits.
        """
        return [document for document in self.container.documents() if kind in (None, document.get("type"))]

    def events(self) -> list[StoredEvent]:
        """
        Return the events that the handlers recorded, in order.
        """
        found = (stored_event(document, self.outbox.key_paths) for document in self.container.documents())
        return sorted((event for event in found if event is not None), key=lambda event: event.order)

    def parked(self) -> dict[str, list[Message]]:
        """
        Return the messages that wait behind a failure, in order, by key.
        """
        waiting: dict[str, list[Message]] = {}
        held = (one for one in self._parked.documents() if one.get("status") == "held")
        for document in sorted(held, key=itemgetter("position")):
            event = document["event"]
            message = held_message(event, edited=document["original"] is not None)
            waiting.setdefault(event["partitionKey"], []).append(message)
        return waiting

    async def release(self, key: PartitionKey, *, payload: Mapping[str, Any] | None = None) -> Released:
        """
        Handle what a parked key holds, as an operator's release does.

        Args:
            key: the parked key, or its text as `parked` names it.
            payload: for its first message, in place of the one it was sent with.

        Raises:
            KeyNotParked: it holds nothing.
        """
        text = key_text(key)
        held = self.parked().get(text)
        return await self._keys.release(text, edited=payload, event_id=held[0].message_id if held else "")

    async def drop(self, key: PartitionKey, message_id: str, *, reason: str) -> None:
        """
        Drop a message that waits, as an operator does.
        """
        await self._keys.drop(key_text(key), message_id, reason=reason)

    def _message(self, event: DomainEvent, partition_key: PartitionKey, version: int | None) -> Message:
        key = key_text(partition_key)
        if version is None and (sent := self._sent.get((key, event.id))) is not None:
            return sent
        before = self._places.get(key, (0, 0))
        place = (before[0] + 1 if version is None else version, 0)
        if version is not None and version > before[0] + 1:
            before = (version - 1, 0)
        self._places[key] = max(place, self._places.get(key, place))
        meta = {"entityType": "entity", "entityId": key, "entityLife": key, "entityVersion": place[0]}
        meta |= {"previousVersion": before[0], "previousSequence": before[1]}
        document = event_document(event, partition_key=key, meta=meta, sequence=place[1])
        [stored] = filter(None, [stored_event(document)])
        self._sent[key, event.id] = message = delivered(message_of(stored))
        return message
