"""
The documents of the parked store: one for each parked key, and one for each of its events.

    outbox.key          one for each parked key: where the key's queue begins and ends, and which release empties it
    event.<id>          an event in the queue, or the record of an event that was dropped or sent with another payload
    outbox.processor    one for each processor: the note that it has had leases (`seen_leases_note`)

Each document belongs to one processor of one container (`Scope`). Its partition key is made of the processor's name, the container's
resource id and the parked key, so processors that share a store never see each other's documents. No document has a TTL. The id of an
event's document contains the id of the event, so a relay that parks the event again finds the document.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime
from enum import StrEnum
from operator import itemgetter
from typing import Any, TypeVar

from pydantic import ConfigDict, InstanceOf, TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel

from cosmos_outbox.errors import ParkingError, UsageError, error_text, frames_of
from cosmos_outbox.partition_key import HASHED, broker_id, check_id
from cosmos_outbox.ports import Write, WriteKind
from cosmos_outbox.stored_documents import Document, size_on_wire

KEY_ID = "outbox.key"
BY_HAND = "ParkedByHand"  # the `reason` of the failure of a key that an operator parked by hand
NO_ETAG = '"00000000-0000-0000-0000-000000000000"'  # no document has this etag

_LONGEST_PARTITION = 2000  # in bytes; Cosmos DB accepts partition keys of up to 2,048 bytes
_LONGEST_ERROR = 2000
_LONGEST_META = 32_000
_KEPT_SYSTEM_FIELDS = frozenset({"_lsn", "_ts"})

ValueT = TypeVar("ValueT")


def _name_in_store(name: str) -> str:
    return _OTHER_NAMES.get(name) or to_camel(name)


# How the fields of a document are named and checked. Pydantic checks only the class of a value (`InstanceOf`): its own check of texts would
# refuse half a surrogate pair, which a stored event may contain.
_OTHER_NAMES = {"partition_key": "key", "partition": "partitionKey", "etag": "_etag"}
_STORED = ConfigDict(alias_generator=_name_in_store)
_Text = InstanceOf[str]
_Number = InstanceOf[int]


class KeyState(StrEnum):
    """The state of a parked key: it waits for an operator, or a release is sending its events."""

    PARKED = "parked"
    RELEASING = "releasing"  # a release is sending the events of the queue, or was killed while it did
    # A release asks the relays to wait a moment before they append more events, so that the queue becomes empty and the release can end.
    CLOSING = "closing"


class EventStatus(StrEnum):
    """The state of an event in the parked store: it waits in the queue, or is kept as a record."""

    HELD = "held"
    DROPPED = "dropped"  # an operator dropped the event; the document stays as a record of the decision
    SENT = "sent"  # the event was sent with another payload; the document stays as a record
    PURGED = "purged"  # the contents are erased; the document stays, so that no replay sends the event again


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """
    The processor and the container to which parked documents belong.

    Args:
        processor: the processor's name.
        container: the resource id of the container of the events. A container that is deleted and created again has another id.
    """

    processor: _Text = ""
    container: _Text = ""

    def partition_of(self, partition_key: str) -> str:
        """Return the partition key, in the parked store, under which the documents of a parked key are stored."""
        return self.partition_named(broker_id(partition_key))

    def partition_named(self, name: str) -> str:
        """
        Return the partition key, in the parked store, for the name by which a lease lists a parked key. The name is the key itself or, if
        that is long, its hash.
        """
        partition = json.dumps([self.processor, self.container, name], ensure_ascii=False)
        raw = partition.encode("utf-8", "surrogatepass")
        return partition if len(raw) <= _LONGEST_PARTITION else f"{HASHED}{hashlib.sha256(raw).hexdigest()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """
    Why an event could not be sent, or a message could not be handled.

    reason: the name of the error's class.
    error: the text of the error.
    attempts: how many attempts were made.
    frames: the calls outside of this library that led to the error, such as those of a handler.
    """

    __pydantic_config__ = _STORED

    event_id: _Text
    reason: str
    error: _Text
    attempts: _Number
    frames: tuple[_Text, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """
    A decision of an operator about an event: when, who, what, and why.

    by: the name of the operator, if the operator's program gave one; else None.
    """

    __pydantic_config__ = _STORED

    at: _Text
    by: _Text | None
    did: _Text
    reason: _Text | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedKey:
    """
    A parked partition key. Its queue has the events at the positions `first` to `next - 1`, including dropped ones.

    partition: the partition key of its documents in the parked store.
    epoch: an id for this time that the key is parked. After a release, the key gets another id when it is parked again.
    claim: the id of the newest release, while it runs or after it was killed. A later release or drop replaces the claim.
    held: how many events of the queue wait for a release. Dropped events do not count.
    """

    __pydantic_config__ = _STORED

    partition_key: _Text
    partition: _Text
    scope: Scope
    epoch: _Text
    parked_at: _Text
    failure: Failure | None
    state: KeyState = KeyState.PARKED
    claim: _Text | None = None
    first: _Number = 0
    next: _Number = 0
    held: _Number = 0
    etag: _Text | None = None

    def write(self) -> Write:
        """
        Return the write that creates the key's document. If the key was read from the store, the write replaces the document, and fails if
        another program has changed it since.
        """
        stored = _KEYS.dump_python(self, by_alias=True, exclude={"scope", "etag"})
        document = {"id": KEY_ID, "type": "parkedKey", **asdict(self.scope), **stored}
        kind = WriteKind.CREATE if self.etag is None else WriteKind.REPLACE
        return Write(kind=kind, id=KEY_ID, document=document, etag=self.etag)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedEvent:
    """
    An event in the queue of a parked key, or the record of an event that was dropped or sent with another payload.

    id: the id of its document in the parked store.
    event: the event's document as the change feed delivered it, or with the payload that an operator gave it.
    referenced: True if `event` lacks its `data`, because a copy of it would not fit into the store. A release reads the `data` in the
        event's own container, as long as the event is there.
    original: the committed payload, if an operator replaced it.
    note: why an operator dropped the event.
    decisions: the decisions of operators about the event, oldest first.
    """

    __pydantic_config__ = _STORED

    id: _Text
    event: InstanceOf[dict[str, Any]]
    partition: _Text
    epoch: _Text
    position: _Number
    parked_at: _Text
    status: EventStatus = EventStatus.HELD
    referenced: InstanceOf[bool] = False
    failure: Failure | None = None
    original: InstanceOf[dict[str, Any]] | None = None
    closed_at: _Text | None = None
    note: _Text | None = None
    decisions: tuple[Decision, ...] = ()
    etag: _Text | None = None

    @property
    def event_id(self) -> str:
        """Return the id of the event in its own container."""
        return str(self.event["id"])

    @property
    def data(self) -> Mapping[str, Any]:
        """Return the payload of the event; {} if it is no JSON object, or is stored only in the event's own container."""
        data = self.event.get("data")
        return data if isinstance(data, Mapping) else {}

    def is_dropped_before(self, key: ParkedKey) -> bool:
        """Say whether an operator dropped the event at an earlier time, before the key was released and parked again."""
        return self.status in (EventStatus.DROPPED, EventStatus.PURGED) and self.epoch != key.epoch

    def as_reference(self) -> ParkedEvent:
        """
        Return the event without its payload. A release reads the payload in the event's own container.
        """
        event = {name: value for name, value in self.event.items() if name != "data"}
        if size_on_wire(event) > _LONGEST_META:
            event.pop("meta", None)
        return replace(self, event=event, referenced=True)

    def write(self) -> Write:
        """
        Return the write that creates the event's document. If the event was read from the store, the write replaces the document, and fails
        if another program has changed it since.
        """
        document: Document = {"type": "parkedEvent"}
        document |= _EVENTS.dump_python(self, by_alias=True, exclude={"event", "etag"})
        document["event"] = {
            name: value
            for name, value in self.event.items()
            if not name.startswith("_")
            or name in _KEPT_SYSTEM_FIELDS
            or (self.referenced and name == "_etag")
        }
        kind = WriteKind.CREATE if self.etag is None else WriteKind.REPLACE
        return Write(kind=kind, id=self.id, document=document, etag=self.etag)

    def with_payload(self, data: Mapping[str, Any], decision: Decision) -> ParkedEvent:
        """Return the event with another payload. The committed payload is kept as `original`."""
        original = self.original if self.original is not None else dict(self.data)
        event = {**self.event, "data": dict(data)}
        return replace(self, event=event, referenced=False, original=original).with_decision(decision)

    def with_decision(self, decision: Decision) -> ParkedEvent:
        """Return the event with one more decision of an operator."""
        return replace(self, decisions=(*self.decisions, decision))

    def without_contents(self, decision: Decision) -> ParkedEvent:
        """Return the record without the event's contents. It stays in the store, so that no replay sends the event again."""
        # Erase the reasons of decisions, because they may name a person. Who decided what, and when, stays for an audit.
        decisions = tuple([replace(one, reason=None) for one in self.decisions])
        purged = replace(self, event={"id": self.event_id}, status=EventStatus.PURGED, referenced=False)
        return replace(purged, failure=None, original=None, note=None, decisions=(*decisions, decision))


def parked_id(event_id: str) -> str:
    """Return the id of an event's document in the parked store."""
    try:
        check_id(name := f"event.{event_id}")
    except UsageError:
        # Cosmos DB would refuse this id, which a producer without this library gave to its message: use a hash of it.
        return f"event.{hashlib.sha256(event_id.encode('utf-8', 'surrogatepass')).hexdigest()}"
    return name


def new_key(
    partition_key: str, partition: str, scope: Scope, failure: Failure, *, now: datetime
) -> ParkedKey:
    """Return a parked key with a new epoch and an empty queue, which the caller is about to write to the parked store."""
    return ParkedKey(
        partition_key=partition_key,
        partition=partition,
        scope=scope,
        epoch=uuid.uuid4().hex,
        parked_at=now.isoformat(),
        failure=failure,
    )


def failure_of(event_id: str, error: BaseException, *, attempts: int) -> Failure:
    """Return the Failure of an event whose sending raised an error. A long text of the error is cut."""
    return Failure(
        event_id=event_id,
        reason=type(error).__name__,
        error=error_text(error)[:_LONGEST_ERROR],
        attempts=attempts,
        frames=frames_of(error),
    )


def key_of(document: Mapping[str, Any]) -> ParkedKey:
    """
    Return the parked key that a document of the parked store describes.

    Raises:
        ParkingError: the document cannot be read.
    """
    return _read(_KEYS, _KEY_FIELDS, {**document, "scope": document})


def event_of(document: Mapping[str, Any]) -> ParkedEvent:
    """
    Return the event, held or kept as a record, that a document of the parked store describes.

    Raises:
        ParkingError: the document cannot be read.
    """
    return _read(_EVENTS, _EVENT_FIELDS, document)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """
    A parked key or an event whose document in the parked store cannot be read.

    document_id: the id of the document.
    """

    partition_key: str
    document_id: str
    error: ParkingError


def readable_keys(documents: Iterable[Mapping[str, Any]]) -> list[ParkedKey | Unreadable]:
    """Return the parked keys that documents describe. A document that cannot be read is returned as an `Unreadable`."""
    return [_readable(key_of, document) for document in documents]


def readable_events(documents: Iterable[Mapping[str, Any]]) -> list[ParkedEvent | Unreadable]:
    """Return the events that documents describe, and skip documents of keys. An event that cannot be read becomes an `Unreadable`."""
    return [_readable(event_of, one) for one in documents if one.get("type") == "parkedEvent"]


def _readable(
    read: Callable[[Mapping[str, Any]], ValueT], document: Mapping[str, Any]
) -> ValueT | Unreadable:
    try:
        return read(document)
    except ParkingError as error:
        key = str(document.get("key", document["partitionKey"]))
        return Unreadable(partition_key=key, document_id=str(document["id"]), error=error)


_KEYS, _EVENTS = TypeAdapter(ParkedKey), TypeAdapter(ParkedEvent)
_KEY_FIELDS, _EVENT_FIELDS = (
    frozenset(_name_in_store(field.name) for field in fields(kind)) - {"scope"}
    for kind in (ParkedKey, ParkedEvent)
)


def _read(kind: TypeAdapter[ValueT], names: frozenset[str], document: Mapping[str, Any]) -> ValueT:
    """Return a document as an object. If a field is missing or has a wrong value, raise a ParkingError that names the document."""
    try:
        itemgetter(*sorted(names))(document)  # if a field is missing, this raises a KeyError that names it
        return kind.validate_python(document)
    except (KeyError, ValidationError) as error:
        key = document.get("key", document.get("partitionKey"))
        wrong = repr(error)
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            wrong = f"{first['loc'][0]} is {str(first['input'])[:100]!r}: {first['msg']}"
        raise ParkingError(
            f"The document {document.get('id')!r} of partition key {key!r} in the parked store cannot be read ({wrong}): a "
            "newer version wrote it, or it was edited. Upgrade this program, or correct the document."
        ) from error
