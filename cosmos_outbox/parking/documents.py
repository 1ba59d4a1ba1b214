"""
What the parked store holds: a document for each parked key, and one for each of its events.

    outbox.key    one in the partition of each parked key: where its queue begins and ends, who releases it
    event.<id>    an event in the queue, or the record of one that was dropped or sent with another payload

They belong to one processor of one container (`Scope`): its name and the container's resource id are in the partition
they lie in, so processors that share a store never see each other's. No document has a TTL. An event's document is named
after the event, so a relay that parks it again finds it there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, TypeVar

from cosmos_outbox.documents import Document, copied_size
from cosmos_outbox.errors import NotFound, ParkingError
from cosmos_outbox.messages import HASHED, broker_id
from cosmos_outbox.ports import MAX_EVENT_BYTES, ParkedStore, Write, WriteKind

KEY_ID = "outbox.key"
BY_HAND = "ParkedByHand"  # the reason of a key that an operator parked
NO_ETAG = '"00000000-0000-0000-0000-000000000000"'  # matches no document

_LONGEST_EVENT_ID = 1000  # bytes; Cosmos DB takes ids of 1,023
_LONGEST_PARTITION = 2000  # bytes; Cosmos DB takes partition keys of 2,048
_LONGEST_ERROR = 2000
_LONGEST_META = 32_000
_KEPT_SYSTEM_FIELDS = frozenset({"_lsn", "_ts"})

ValueT = TypeVar("ValueT")


class KeyState(StrEnum):
    """
    What an operator does with a parked key.
    """

    PARKED = "parked"
    RELEASING = "releasing"
    CLOSING = "closing"  # all but empty: a relay that would append waits a little, so that the key can be handed back


class EventStatus(StrEnum):
    """
    What became of an event in the parked store.
    """

    HELD = "held"
    DROPPED = "dropped"  # kept as the record of the operator's decision
    SENT = "sent"  # kept only where another payload was sent than was committed


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """
    Which processor of which container parked documents belong to.

    Args:
        processor: the processor's name.
        container: the resource id of the container of events. A container that replaces it has another one.
    """

    processor: str = ""
    container: str = ""

    def partition_of(self, partition_key: str) -> str:
        """
        Return the partition of the parked store in which the documents of a key lie.
        """
        return self.partition_named(broker_id(partition_key))

    def partition_named(self, name: str) -> str:
        """
        Return that partition for the name that a lease has for the key: the key itself or, of a long one, its hash.
        """
        partition = json.dumps([self.processor, self.container, name], ensure_ascii=False)
        raw = partition.encode("utf-8", "surrogatepass")
        return partition if len(raw) <= _LONGEST_PARTITION else f"{HASHED}{hashlib.sha256(raw).hexdigest()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """
    Why an event could not be sent.
    """

    event_id: str
    reason: str  # the class of the error
    error: str
    attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedKey:
    """
    A parked partition key and its queue: the events at positions `first` to `next - 1`, dropped ones among them.

    partition: where its documents lie. Before 0.1.0 that was the partition key itself (`scope` is None then).
    epoch: tells this parking of the key from all others.
    claim: the release that has it; void once it moves nothing for a while.
    """

    partition_key: str
    partition: str
    scope: Scope | None
    epoch: str
    parked_at: str
    failure: Failure | None
    state: KeyState = KeyState.PARKED
    claim: str | None = None
    first: int = 0
    next: int = 0
    held: int = 0
    etag: str | None = None

    def write(self, kind: WriteKind = WriteKind.REPLACE) -> Write:
        """
        Return the write that stores this, provided that the document did not change since it was read.
        """
        return Write(kind=kind, id=KEY_ID, document=_key_document(self), etag=self.etag)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedEvent:
    """
    An event in the queue of a parked key, or what is kept of it.

    event: as the change feed delivered it, or with the payload that an operator gave it; without `data` where
        `referenced`: the copy would not have fitted, so the event has to be read from its own container, while it lives.
    original: the payload before it was edited.
    note: why it was dropped.
    """

    event: Document
    partition: str
    epoch: str
    position: int
    parked_at: str
    status: EventStatus = EventStatus.HELD
    referenced: bool = False
    failure: Failure | None = None
    original: Mapping[str, Any] | None = None
    closed_at: str | None = None
    note: str | None = None
    etag: str | None = None

    @property
    def event_id(self) -> str:
        """
        Return the id of the event.
        """
        return str(self.event["id"])

    @property
    def data(self) -> Mapping[str, Any]:
        """
        Return the payload; {} where it is only in the event's own container, or is none.
        """
        data = self.event.get("data")
        return data if isinstance(data, Mapping) else {}

    @property
    def size(self) -> int:
        """
        Return about how many bytes it takes in a batch.
        """
        return copied_size(self.event) + 1000

    def fitted(self) -> ParkedEvent:
        """
        Return the event itself, or a reference to it where a copy does not fit into the store.
        """
        return self if copied_size(self.event) <= MAX_EVENT_BYTES else self.as_reference()

    def as_reference(self) -> ParkedEvent:
        """
        Return what finds the event in its own container again: id, key, etag and place, without the payload.
        """
        event = {name: value for name, value in self.event.items() if name != "data"}
        if copied_size(event) > _LONGEST_META:
            event.pop("meta", None)
        return replace(self, event=event, referenced=True)

    def write(self, kind: WriteKind = WriteKind.REPLACE) -> Write:
        """
        Return the write that stores this.
        """
        document = _event_document(self)
        return Write(kind=kind, id=document["id"], document=document, etag=self.etag)

    def deletion(self) -> Write:
        """
        Return the write that removes this.
        """
        return Write(kind=WriteKind.DELETE, id=held_id(self.event_id))

    def edited(self, data: Mapping[str, Any]) -> ParkedEvent:
        """
        Return the event with another payload; what was committed is kept beside it, or stays where it is.
        """
        original = self.original if self.original is not None else dict(self.data)
        return replace(self, event={**self.event, "data": dict(data)}, referenced=False, original=original)


def held_id(event_id: str) -> str:
    """
    Return the id of an event's document in the parked store.
    """
    raw = event_id.encode("utf-8", "surrogatepass")
    return (
        f"event.{event_id}" if len(raw) <= _LONGEST_EVENT_ID else f"event.{hashlib.sha256(raw).hexdigest()}"
    )


def failure_of(event_id: str, error: BaseException, *, attempts: int) -> Failure:
    """
    Return the record of an error; its text is cut to what fits beside the event.
    """
    return Failure(
        event_id=event_id, reason=type(error).__name__, error=str(error)[:_LONGEST_ERROR], attempts=attempts
    )


async def key_in(store: ParkedStore, partition: str) -> ParkedKey | None:
    """
    Return the parked key of a partition as it is, or None where it is certain that there is none.

    Raises:
        PreconditionFailed: there is one, but the copy that was read does not know it yet; read again.
        ParkingError: its document cannot be read.
    """
    try:
        return key_of(await store.read(KEY_ID, partition))
    except NotFound:
        # A read may be behind, a write is not: only that nothing can be deleted proves that nothing is there.
        with suppress(NotFound):
            await store.commit(partition, [Write(kind=WriteKind.DELETE, id=KEY_ID, etag=NO_ETAG)])
        return None


async def find_key(store: ParkedStore, scope: Scope, partition_key: str) -> ParkedKey | None:
    """
    Return a parked key as it is, or None where it is certain that it is not parked.

    Raises:
        PreconditionFailed, ParkingError: as `key_in`.
    """
    key = await key_in(store, scope.partition_of(partition_key))
    return await _old_key_in(store, partition_key) if key is None else key


async def find_named(store: ParkedStore, scope: Scope, name: str) -> ParkedKey | None:
    """
    Return the parked key that a lease has a name for, or None where it is certain that it is not parked.

    Raises:
        PreconditionFailed, ParkingError: as `key_in`.
    """
    key = await key_in(store, scope.partition_named(name))
    return await _old_key_in(store, name) if key is None and broker_id(name) == name else key


async def _old_key_in(store: ParkedStore, partition_key: str) -> ParkedKey | None:
    # Parked before 0.1.0. No program writes such keys any more, so a read proves enough.
    with suppress(NotFound):
        return key_of(await store.read(KEY_ID, partition_key))
    return None


def key_of(document: Mapping[str, Any]) -> ParkedKey:
    """
    Read the document of a parked key.

    Raises:
        ParkingError: it cannot be read.
    """
    with _reading(document):
        partition = _of(document, "partitionKey", str)
        scoped = "key" in document  # else it was parked before 0.1.0
        return ParkedKey(
            partition_key=_of(document, "key", str) if scoped else partition,
            partition=partition,
            scope=Scope(processor=_of(document, "processor", str), container=_of(document, "container", str))
            if scoped
            else None,
            epoch=_of(document, "epoch", str),
            state=KeyState(document["state"]),
            claim=document["claim"],
            first=_of(document, "first", int),
            next=_of(document, "next", int),
            held=_of(document, "held", int),
            parked_at=_of(document, "parkedAt", str),
            failure=_failure(document["failure"]),
            etag=document["_etag"],
        )


def event_of(document: Mapping[str, Any]) -> ParkedEvent:
    """
    Read the document of a held event, or of the record of one.

    Raises:
        ParkingError: it cannot be read.
    """
    with _reading(document):
        return ParkedEvent(
            event=_of(document, "event", dict),
            partition=_of(document, "partitionKey", str),
            epoch=_of(document, "epoch", str),
            position=_of(document, "position", int),
            status=EventStatus(document["status"]),
            referenced=document.get("referenced") is True,
            parked_at=_of(document, "parkedAt", str),
            closed_at=document["closedAt"],
            note=document["note"],
            failure=_failure(document["failure"]),
            original=document["original"],
            etag=document["_etag"],
        )


def _key_document(key: ParkedKey) -> Document:
    scope = (
        {"key": key.partition_key, "processor": key.scope.processor, "container": key.scope.container}
        if key.scope is not None
        else {}
    )
    return {
        "id": KEY_ID,
        "partitionKey": key.partition,
        "type": "parkedKey",
        **scope,
        "epoch": key.epoch,
        "state": key.state.value,
        "claim": key.claim,
        "first": key.first,
        "next": key.next,
        "held": key.held,
        "parkedAt": key.parked_at,
        "failure": _failure_document(key.failure),
    }


def _event_document(event: ParkedEvent) -> Document:
    kept = {
        name: value
        for name, value in event.event.items()
        if not name.startswith("_") or name in _KEPT_SYSTEM_FIELDS or (event.referenced and name == "_etag")
    }
    return {
        "id": held_id(event.event_id),
        "partitionKey": event.partition,
        "type": "parkedEvent",
        "epoch": event.epoch,
        "position": event.position,
        "status": event.status.value,
        "referenced": event.referenced,
        "parkedAt": event.parked_at,
        "closedAt": event.closed_at,
        "note": event.note,
        "failure": _failure_document(event.failure),
        "original": event.original,
        "event": kept,
    }


def _failure_document(failure: Failure | None) -> Document | None:
    if failure is None:
        return None
    return {
        "eventId": failure.event_id,
        "reason": failure.reason,
        "error": failure.error,
        "attempts": failure.attempts,
    }


def _failure(document: Mapping[str, Any] | None) -> Failure | None:
    if document is None:
        return None
    return Failure(
        event_id=_of(document, "eventId", str),
        reason=_of(document, "reason", str),
        error=_of(document, "error", str),
        attempts=_of(document, "attempts", int),
    )


@contextmanager
def _reading(document: Mapping[str, Any]) -> Iterator[None]:
    """
    Tell of a document that is not as this version writes it, so that no more stands still than needs it.
    """
    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        key = document.get("key", document.get("partitionKey"))
        raise ParkingError(
            f"The document {document.get('id')!r} of partition key {key!r} in the parked "
            f"store cannot be read ({error!r}): a newer version or a hand wrote it. Upgrade what reads it, or mend it."
        ) from error


def _of(document: Mapping[str, Any], name: str, kind: type[ValueT]) -> ValueT:
    value = document[name]
    if not isinstance(value, kind):
        raise TypeError(f"{name} is {value!r}")
    return value
