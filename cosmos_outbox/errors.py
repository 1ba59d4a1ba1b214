"""
All errors of this library: one sentence each, saying what happened and what to do.

    OutboxError
    ├── ConfigurationError        settings or resources that cannot work
    ├── UsageError                the program calls the library in a way that cannot work
    │   ├── SharedUnitOfWork
    │   ├── MixedPartitionKeys
    │   ├── BatchTooLarge
    │   ├── EventTooLarge
    │   └── UnstorableValue
    ├── StoreError                Cosmos DB refused or failed
    │   ├── NotFound
    │   ├── Conflict
    │   ├── PreconditionFailed
    │   ├── NotModified
    │   ├── UnreadableDocument
    │   ├── InvalidRequest
    │   ├── RequestTooLarge
    │   ├── AccessDenied
    │   ├── TooManyRequests       (retriable)
    │   ├── StoreUnavailable      (retriable)
    │   └── CommitOutcomeUnknown
    ├── RequestStillRunning       (retriable) an equal request with the same idempotency key still runs
    ├── IdempotencyKeyReused      another request had the same idempotency key
    ├── RangeGone                 a physical partition was split or merged
    ├── ContainerRecreated        the container was deleted and created again
    ├── ParkingError              partition keys that are parked
    │   ├── ParkingFull
    │   ├── KeyNotParked
    │   └── ReleaseTakenOver
    ├── LeaseLost                 another owner holds the lease
    ├── SubscriptionError         Service Bus did not deliver, or did not settle
    │   ├── SubscriptionUnavailable (retriable)
    │   └── LockLost              the session or the message is another receiver's now
    ├── MessageError              a consumer cannot handle a message
    │   ├── MessageUnreadable
    │   ├── UnknownVersion
    │   ├── DeliveredTooOften
    │   ├── HandlerTimeout
    │   └── TryLater              a handler asks for its message at a later time
    └── PublishError              Service Bus did not accept a message
        ├── BrokerUnavailable     (retriable)
        │   └── TopicFull         the topic has no room: have its subscriptions read, or make it larger
        ├── TopicUnavailable      (an operator has to fix it, then the relay goes on)
        │   └── TopicRefusesAll   (no message is at fault)
        └── MessageRejected       Service Bus will never accept this message

`retriable` is a property of the class: the same call may succeed later, unchanged.
"""

from __future__ import annotations

import copyreg
import os
import traceback
from dataclasses import dataclass, field
from datetime import timedelta
from inspect import get_annotations
from itertools import dropwhile
from pathlib import Path
from typing import Any, ClassVar, Literal, dataclass_transform

# This repeats the type PartitionKey, which cannot be imported here because its module imports this one.
Key = str | int | float | bool | tuple[str | int | float | bool, ...]

_LIBRARY = f"{Path(__file__).parent}{os.sep}"
_FIRST_FRAMES, _LAST_FRAMES, _LONGEST_FRAME = 2, 6, 200
_UNNAMED = frozenset({"a field", "the whole"})  # names that stand for a field whose path is not known


@dataclass_transform(kw_only_default=True, eq_default=False, field_specifiers=(field,))
class _Fields(Exception):
    """Base class that makes a dataclass of each error class below that declares fields."""

    def __init_subclass__(cls) -> None:
        if get_annotations(cls):
            dataclass(kw_only=True, eq=False, repr=False)(cls)

    def __reduce__(self) -> tuple[Any, ...]:
        # Test runners and process pools pickle errors. The default way would call the constructor with `args`, but the constructor of a
        # subclass may take other arguments. So create the object without a call, and restore its fields.
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class OutboxError(_Fields):
    """
    Base of all errors of this library. Each is a dataclass whose first argument is the message.

    An error that is raised without a message has the first paragraph of its class's docstring as its text.

    retriable       a property of the class: the same call may succeed later, unchanged.
    document_id     the id of the document, entity or event that the error concerns; None if it concerns none, or it is not known.
    partition_key   the partition key of that document; None if there is no document, or the key is not known.
    retry_after     how many seconds the service asks to wait before the next attempt; None if it does not say.
    """

    retriable: ClassVar[bool] = False
    message: str | None = field(default=None, kw_only=False)
    document_id: str | None = None
    partition_key: Key | None = None
    retry_after: float | None = None

    # The text is made only when it is asked for, because most callers that catch NotFound never show it.
    def __str__(self) -> str:
        doc = (type(self).__doc__ or "").strip().partition("\n\n")[0]
        return self.message or self._default_text() or " ".join(doc.split())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def _default_text(self) -> str | None:
        """Return a text that is made from the fields of an error without a message; None if the text of its class is used."""
        return None


class ConfigurationError(OutboxError):
    """A setting or an Azure resource cannot work as it is; the message names it and the fix."""


class UsageError(OutboxError):
    """The program uses the library in a way that cannot work; nothing was sent."""


class SharedUnitOfWork(UsageError):
    """A unit of work was used from two tasks at once; give every task its own."""


class MixedPartitionKeys(UsageError):
    """
    One commit may only touch one partition key; commit the documents of each partition key in a unit of work of their own.

    first, second   the partition keys of two documents of the commit.
    """

    def __init__(self, first: Key, second: Key, *, advice: str | None = None) -> None:
        super().__init__(
            f"One commit may only touch one partition key, but it holds {first!r} and {second!r}; "
            f"{advice or 'commit them in two units of work'}."
        )
        self.first, self.second = first, second


class BatchTooLarge(UsageError):
    """
    A commit exceeds what one transactional batch may hold; split the work into several commits.

    document_id     the id of a document that is too large for any commit; None if only all documents together are too large.
    """


class EventTooLarge(UsageError):
    """An event, or an id in it, is too large to be sent or parked; store the large value elsewhere, and a reference to it in the event."""


class UnstorableValue(UsageError):
    """
    An entity or event holds a value that would be another one when it is read back, such as a tuple; nothing was sent.

    document_id, partition_key
                    those of the entity or event.
    of              the class of the entity or event.
    field           the path of the field that holds the value.
    """

    of: str
    field: str
    reason: str

    def _default_text(self) -> str:
        shown = self.field if self.field in _UNNAMED else f"the field {self.field!r}"
        return (
            f"{self.of} {_place(self)} cannot be committed, because {shown} could not be read back as it is: {self.reason}. "
            "Correct the value, or give the field a type that JSON can hold."
        )


class StoreError(OutboxError):
    """Cosmos DB refused the request."""


class NotFound(StoreError):
    """
    The document does not exist, or its TTL has passed.

    stored_type     the `type` of the stored document that has this id, if that is another type than the one asked for; else None.
    """

    stored_type: str | None = None

    def _default_text(self) -> str | None:
        return self.document_id and f"The document {_place(self)} does not exist (or its TTL has passed)."


class Conflict(StoreError):
    """
    A document with this id already exists in this partition key.

    stored_type     the `type` of that document; None if it is not known.
    """

    stored_type: str | None = None

    def _default_text(self) -> str | None:
        kind = "" if self.stored_type is None else f" as a {self.stored_type!r}"
        return self.document_id and (
            f"The document {_place(self)} already exists{kind}: read it and change it, or create one under another id; all types of "
            "a partition key share its ids."
        )


class PreconditionFailed(StoreError):
    """
    The document changed since it was read; read it again and repeat the change.

    expected        the etag that the write, or the caller, asked for.
    actual          the etag that the document has; None if it is not known.
    overtaken       True if `Outbox.run` repeated the change several times, and other programs changed the document first each time.
    """

    expected: str | None = None
    actual: str | None = None
    overtaken: bool = False

    def _default_text(self) -> str | None:
        return self.document_id and (
            f"The document {_place(self)} changed since it was read: its etag is {self.actual or 'another one'}, not "
            f"{self.expected}; read it again and repeat the change."
        )


class NotModified(StoreError):
    """
    The document still has the etag that the caller knows.

    etag            the etag of the document.
    """

    etag: str | None = None


class UnreadableDocument(StoreError):
    """
    A stored document does not fit its entity's class; correct the document, or let the class read it.

    document_id, partition_key
                    the id and the partition key of the document.
    field           the path of the first wrong field inside `data`, or "data" itself.
    """

    entity_type: str
    field: str
    reason: str

    def _default_text(self) -> str:
        return (
            f"The stored {self.entity_type} {_place(self)} cannot be read, because of {self.field}: {self.reason}. Correct the "
            "document, or let the class read it."
        )


class InvalidRequest(StoreError):
    """Cosmos DB calls the request malformed; correct what it names, because a retry does not help."""


class RequestTooLarge(StoreError):
    """The document or batch is larger than Cosmos DB accepts (2 MB); make it smaller."""


class AccessDenied(StoreError):
    """
    Cosmos DB refuses the key or the identity, which lacks a data-plane role, or the account's firewall refuses this machine.

    refused_by      what refused, if Cosmos DB says it: the key or token, the roles of the identity, or the firewall; else None.
    """

    refused_by: Literal["credential", "roles", "firewall"] | None = None


class TooManyRequests(StoreError):
    """Cosmos DB throttles this client; try again later, or provision more request units."""

    retriable = True


class StoreUnavailable(StoreError):
    """
    Cosmos DB did not answer or answered with a passing fault (408, 410, 449, 5xx, lost connection); try again.

    applied         False if the service says that a write was not executed; None if that is unknown.
    """

    retriable = True

    applied: Literal[False] | None = None


class CommitOutcomeUnknown(StoreError):
    """
    The answer to a commit was lost and its outcome could not be found out. Commit the same unit of work again within a minute;
    later, or if the commit has no event, roll back, read the entities again and decide.

    commit_id       the commit's id, which its events carry.
    partition_key   the commit's partition key.
    """

    commit_id: str | None = None

    def __str__(self) -> str:
        of = f" It is commit {self.commit_id} of partition key {self.partition_key!r}."
        return super().__str__() + ("" if self.commit_id is None else of)


class RequestStillRunning(OutboxError):
    """An equal request with the same idempotency key still runs; repeat your request later to get the answer."""

    retriable = True


class IdempotencyKeyReused(OutboxError):
    """The idempotency key was used for a request with another payload; give each request a key of its own."""


# Errors of a commit that wrote nothing, because a document was missing, existed already or had changed
REFUSALS = (NotFound, Conflict, PreconditionFailed)
# Errors that say that Cosmos DB is busy or away: the library repeats a request after them if that is safe
BUSY = (TooManyRequests, StoreUnavailable)


class RangeGone(OutboxError):
    """The physical partition was split or merged; its lease must be replaced by leases of the new ranges."""


class ContainerRecreated(OutboxError):
    """
    The container was deleted and created again: positions in its old change feed mean nothing in the new one.
    """


class LeaseLost(OutboxError):
    """Another owner holds the lease, or the lease was deleted; stop all work for the lease at once, and write nothing more for it."""


class ParkingError(OutboxError):
    """A partition key could not be parked or released."""


class ParkingFull(ParkingError):
    """
    The limit of parked keys or held events is reached, so the lease halts; release or drop parked events, or raise the limit.
    """


class KeyNotParked(ParkingError):
    """The partition key or the event is not in the parked store; see the list of parked keys."""


class ReleaseTakenOver(ParkingError):
    """
    A later release or drop of this partition key began, so this release stopped; the events that it did not send are still held.
    """


class PublishError(OutboxError):
    """
    Service Bus did not accept a message.

    accepted        how many leading messages of the call were accepted; the outcome of the others is unknown.
    condition       the AMQP error condition of the answer, if it reports an internal error of the broker; else None.
    """

    condition: str | None = None
    accepted: int = 0


class BrokerUnavailable(PublishError):
    """Service Bus did not answer or is busy. The outcome may be unknown; send the same messages again."""

    retriable = True


class TopicFull(BrokerUnavailable):
    """
    The topic has no room, for example because no program reads one of its subscriptions; have each subscription read, delete it, or make
    the topic larger.
    """


class TopicUnavailable(PublishError):
    """The topic is missing or disabled, or the relay may not send to it; fix that, then the relay goes on by itself."""

    retriable = True


class TopicRefusesAll(TopicUnavailable):
    """
    The topic refuses every message, so no message is at fault; fix the topic, then the relay goes on by itself.
    """


class MessageRejected(PublishError):
    """Service Bus will never accept this message as it is (too large, malformed, header too big)."""


class SubscriptionError(OutboxError):
    """
    A subscription or a queue refused a request or failed; the cause of this error says why.

    Base of SubscriptionUnavailable and LockLost.
    """


class SubscriptionUnavailable(SubscriptionError):
    """The subscription cannot be reached; the processor tries again with a back-off, for as long as it takes."""

    retriable = True


class LockLost(SubscriptionError):
    """
    The lock of a session or message expired, or another receiver has it; messages that were not settled are delivered again, perhaps to
    another process.
    """


class MessageError(OutboxError):
    """
    A consumer cannot handle a message as it is; correct the handler or the message, then release or drop the message.

    Base of more specific errors, such as MessageUnreadable.
    """


class MessageUnreadable(MessageError):
    """
    The body of a message does not fit the event class of its handler, or the message lacks a property that the consumer needs.
    """


class UnknownVersion(MessageError):
    """
    No handler and no upcaster takes the schema version of a message; deploy a consumer that takes it, then release the key.
    """


class DeliveredTooOften(MessageError):
    """
    A message was delivered many times, but no process finished handling it; correct the handler, then release the key.
    """


class HandlerTimeout(MessageError):
    """A handler did not end within the time limit of its consumer."""


class TryLater(MessageError):
    """
    A handler asks to get its message again later. Raise this error if the message is not at fault, for example while another service is
    away.

    reason          what the handler waits for.
    after           the shortest time to wait, as a timedelta or in seconds. Without it, or with another type of value, the wait is a
                    back-off of up to 30 s.
    """

    def __init__(self, reason: str | None = None, *, after: timedelta | float | None = None) -> None:
        seconds = after.total_seconds() if isinstance(after, timedelta) else after
        # This constructor must not raise an error. The consumer would take it for a failure of the handler, and park the key instead of
        # trying the message later.
        known = isinstance(seconds, int | float) and seconds >= 0
        super().__init__(reason, retry_after=seconds if known else None)


def require(holds: object, said: str, error: type[Exception] = UsageError) -> None:
    """Raise an error with this text unless a condition holds. This is for mistakes of a caller who uses no type checker."""
    if not holds:
        raise error(said)


def _place(error: OutboxError) -> str:
    of = "" if error.partition_key is None else f" of partition key {error.partition_key!r}"
    return f"{error.document_id!r}{of}"


def error_text(error: BaseException) -> str:
    """
    Return the text of any error, in a form that UTF-8 can encode.

    This works even if the text contains half a surrogate pair, or the error's `__str__` raises. If an error has no text, such as a
    time-out of some HTTP clients, return the line of code that raised the error.
    """
    try:
        text = str(error).encode("utf-8", "replace").decode()
    except Exception:  # noqa: BLE001 - as above
        return f"a {type(error).__name__} that cannot be shown"
    return text if text.strip() else ", from ".join(["no text", *frames_of(error)[:1]])


def error_line(error: BaseException) -> str:
    """Return the class and the text of an error. The text alone may say too little: that of a KeyError is a quoted word."""
    return f"{type(error).__name__}: {error_text(error)}"


def frames_of(error: BaseException) -> tuple[str, ...]:
    """
    Return the calls that led to an error, from the first one outside of this library, such as a handler, to the one that raised it.

    Of many calls, return only the first two and the last six.
    """
    walked = traceback.walk_tb(error.__traceback__)
    every = traceback.StackSummary.extract(walked, lookup_lines=False)
    found = list(dropwhile(lambda frame: frame.filename.startswith(_LIBRARY), every))
    kept = found[:_FIRST_FRAMES] + found[_FIRST_FRAMES:][-_LAST_FRAMES:]
    lines = [f"{one.filename}:{one.lineno} in {one.name}"[-_LONGEST_FRAME:] for one in kept]
    return tuple([line.encode("utf-8", "replace").decode() for line in lines])  # a path may be invalid UTF-8
