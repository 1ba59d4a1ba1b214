"""
What the parked store holds: a document for each parked key, one for each of its events, and one index of all keys.

    outbox.keys   {"keys": {"<epoch>": {"key": …, "since": …}}}: every parked key, under the epoch of its parking
    outbox.key    one in the partition of each parked key: where its queue begins and ends, who releases it
    event.<id>    an event in the queue, or the record of one that was dropped or sent with another payload

No document has a TTL. An event's document is named after the event, so whoever parks it again finds it there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, TypeVar

from cosmos_outbox.documents import Document
from cosmos_outbox.errors import NotFound, ParkingError
from cosmos_outbox.ports import ParkedStore, Write, WriteKind

INDEX_ID = "outbox.keys"
KEY_ID = "outbox.key"
NO_ETAG = '"00000000-0000-0000-0000-000000000000"'  # matches no document

_LONGEST_EVENT_ID = 1000  # bytes; Cosmos DB takes ids of 1,023
_LONGEST_ERROR = 2000
_KEPT_SYSTEM_FIELDS = frozenset({"_lsn", "_ts"})

# of the index, by epoch: {"key": …, "since": when it was first seen there, at the latest}
Entries = dict[str, dict[str, Any]]
# is told what cannot be read, and why
Unreadable = Callable[[str, ParkingError], None]
ValueT = TypeVar("ValueT")


class KeyState(StrEnum):
    """
    Whether somebody empties the queue of a parked key.
    """

    PARKED = "parked"
    RELEASING = "releasing"
    CLOSING = "closing"  # all but empty: who would append waits a little, so that the key can be handed back


class EventStatus(StrEnum):
    """
    What became of an event in the parked store.
    """

    HELD = "held"
    DROPPED = "dropped"  # kept as the record of who gave it up, and why
    SENT = "sent"  # kept only where another payload was sent than was committed


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
    """

    partition_key: str
    epoch: str
    parked_at: str
    failure: Failure | None
    state: KeyState = KeyState.PARKED
    claim: str | None = None  # who releases it
    first: int = 0
    next: int = 0
    held: int = 0
    etag: str | None = None

    def write(self, kind: WriteKind = WriteKind.REPLACE) -> Write:
        """
        Return the write that stores this, provided that nobody wrote since it was read.
        """
        return Write(kind=kind, id=KEY_ID, document=_key_document(self), etag=self.etag)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedEvent:
    """
    An event in the queue of a parked key, or what is kept of it.
    """

    event: Document  # as the change feed delivered it, or with the payload that an operator gave it
    epoch: str
    position: int
    parked_at: str
    status: EventStatus = EventStatus.HELD
    failure: Failure | None = None
    original: Mapping[str, Any] | None = None  # the payload before it was edited
    closed_at: str | None = None
    note: str | None = None  # why it was dropped
    etag: str | None = None

    @property
    def event_id(self) -> str:
        """
        Return the id of the event.
        """
        return str(self.event["id"])

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
        Return the event with another payload; what was committed is kept beside it.
        """
        original = self.original if self.original is not None else self.event["data"]
        return replace(self, event={**self.event, "data": dict(data)}, original=original)

    @property
    def size(self) -> int:
        """
        Return about how many bytes it takes in a batch.
        """
        return len(json.dumps(self.event)) + 1000


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


def entries_in(document: Mapping[str, Any]) -> Entries:
    """
    Return the entries of the index as it was read.

    Raises:
        ParkingError: it cannot be read.
    """
    with _reading(document):
        return {
            epoch: {
                **entry,
                "key": _of(entry, "key", str),
                # No write has noted yet when it came; the one that is read was the first that may have shown it.
                "since": _of(entry, "since", int) if "since" in entry else int(document["_ts"]),
            }
            for epoch, entry in _of(document, "keys", dict).items()
        }


async def key_in(store: ParkedStore, partition_key: str) -> ParkedKey | None:
    """
    Return a parked key as it is, or None where it is certain that it is not parked.

    Raises:
        PreconditionFailed: it is parked, but the copy that was read does not know it yet; read again.
        ParkingError: its document cannot be read.
    """
    try:
        return _key(await store.read(KEY_ID, partition_key))
    except NotFound:
        # A read may be behind, a write is not: only that nothing can be deleted proves that nothing is there.
        with suppress(NotFound):
            await store.commit(partition_key, [Write(kind=WriteKind.DELETE, id=KEY_ID, etag=NO_ETAG)])
        return None


async def events_in(
    store: ParkedStore, partition_key: str, *, unreadable: Unreadable | None = None
) -> tuple[ParkedEvent, ...]:
    """
    Return all events of a partition key in the store, whatever became of them.

    Args:
        store: the parked store.
        partition_key: of the events.
        unreadable: told the id of each document that cannot be read, which is then left out. Defaults to None: raise.

    Raises:
        ParkingError: a document cannot be read.
    """
    found = []
    for document in await store.list(partition_key):
        if document.get("type") != "parkedEvent":
            continue
        try:
            found.append(_event(document))
        except ParkingError as error:
            if unreadable is None:
                raise
            unreadable(str(document["id"]), error)
    return tuple(sorted(found, key=lambda event: (event.parked_at, event.position)))


def _key_document(key: ParkedKey) -> Document:
    return {
        "id": KEY_ID,
        "partitionKey": key.partition_key,
        "type": "parkedKey",
        "epoch": key.epoch,
        "state": key.state.value,
        "claim": key.claim,
        "first": key.first,
        "next": key.next,
        "held": key.held,
        "parkedAt": key.parked_at,
        "failure": _failure_document(key.failure),
    }


def _key(document: Mapping[str, Any]) -> ParkedKey:
    with _reading(document):
        return ParkedKey(
            partition_key=_of(document, "partitionKey", str),
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


def _event_document(event: ParkedEvent) -> Document:
    kept = {
        name: value
        for name, value in event.event.items()
        if not name.startswith("_") or name in _KEPT_SYSTEM_FIELDS
    }
    return {
        "id": held_id(event.event_id),
        "partitionKey": event.event["partitionKey"],
        "type": "parkedEvent",
        "epoch": event.epoch,
        "position": event.position,
        "status": event.status.value,
        "parkedAt": event.parked_at,
        "closedAt": event.closed_at,
        "note": event.note,
        "failure": _failure_document(event.failure),
        "original": event.original,
        "event": kept,
    }


def _event(document: Mapping[str, Any]) -> ParkedEvent:
    with _reading(document):
        return ParkedEvent(
            event=_of(document, "event", dict),
            epoch=_of(document, "epoch", str),
            position=_of(document, "position", int),
            status=EventStatus(document["status"]),
            parked_at=_of(document, "parkedAt", str),
            closed_at=document["closedAt"],
            note=document["note"],
            failure=_failure(document["failure"]),
            original=document["original"],
            etag=document["_etag"],
        )


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
        raise ParkingError(
            f"The document {document.get('id')!r} of partition key {document.get('partitionKey')!r} in the parked "
            f"store cannot be read ({error!r}): a newer version or a hand wrote it. Upgrade what reads it, or mend it."
        ) from error


def _of(document: Mapping[str, Any], name: str, kind: type[ValueT]) -> ValueT:
    value = document[name]
    if not isinstance(value, kind):
        raise TypeError(f"{name} is {value!r}")
    return value
