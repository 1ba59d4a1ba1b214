"""
Records: frozen dataclasses that say what happened. The library hands them to hooks, such as those for logging, metrics and health. They are
not stored: the documents of entities and events are in `stored_documents`.

This module has the records of all packages, because a hook takes any record. `docs/reference/metrics.md` is generated from it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, dataclass_transform

from cosmos_outbox.errors import OutboxError, error_line

_logger = logging.getLogger("cosmos_outbox")


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Record:
    """
    Base of all records, which are frozen dataclasses.

    `level` is a level of `logging`. An ERROR is an alarm: an operator has to act. After a WARNING the library tries again. `levels` gives
    the level of each outcome for which it differs.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]

    level: ClassVar[int] = logging.WARNING
    levels: ClassVar[Mapping[str, int]] = {}

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True)(cls)


Hook = Callable[[Record], None]


class LeaseMoved(Record):
    """This worker acquired a lease (acquired), or stopped working on it. Then `outcome` says why, as a CloseReason."""

    level = logging.INFO
    levels: ClassVar = {"lost": logging.WARNING}
    lease: str
    owner: str
    outcome: str
    previous_owner: str | None = None
    error: BaseException | None = None


class LeaseCheckpointed(Record):
    """
    The owner of a lease saved its position after the first `pages` batches of changes that it read. No worker reads them
    again.
    """

    level = logging.DEBUG
    lease: str
    pages: int


class PageHandled(Record):
    """All changes of a page were handled or skipped. `lag` is how many transactions of the range still wait."""

    level = logging.DEBUG
    lease: str
    changes: int
    seconds: float
    lag: int | None


class PageFailed(Record):
    """
    The handler or the change feed failed on a page. The owner of the lease tries the page again after `delay_seconds`
    (retried). Every tenth failed attempt, by default, reports that the range stands still until the cause is gone
    (halted).

    The worker keeps the lease, and tries a halted page again too, so work goes on by itself after the fix.
    """

    levels: ClassVar = {"halted": logging.ERROR}
    lease: str
    outcome: Literal["retried", "halted"]
    attempt: int
    delay_seconds: float
    error: BaseException


class PositionAhead(Record):
    """
    The position of a lease is above the newest LSN of its range, as after a restore. The lease halts until an operator
    sets the position back (outcome `halted`). If the range soon caught up, the owner only reads the changes above
    `lowest_lsn` again (outcome `rewound`).

    The newest LSN of the range was read several times, and `lowest_lsn` is the lowest value. The record is emitted
    every minute while the lease is halted. A lagging replica makes a range seem behind for a moment. If a person edited
    the lease and set its position too high, the changes below the position are skipped.
    """

    level = logging.ERROR
    levels: ClassVar = {"rewound": logging.WARNING}
    lease: str
    outcome: Literal["halted", "rewound"]
    position: str | None
    lowest_lsn: int | None


class LoopBlocked(Record):
    """
    Code blocks the event loop, so no lease is renewed. A handler must await, or use a thread.

    `task` is the name of the task that runs ("lease …" for a handler), and `where` is the line. Hooks get this record on another thread.
    """

    level = logging.ERROR
    task: str
    where: str
    seconds: float
    remedy: str = "await there, or call it by `await asyncio.to_thread(…)`"


class LeasesLost(Record):
    """
    All leases of the processor are gone, or belong to a container that was deleted and created again. `reason` says which. Workers
    create leases that read from `start`: where the first leases began, or the beginning if that is unknown or the container is new. Events
    that were sent since then are sent again.
    """

    level = logging.ERROR
    owner: str
    start: str
    reason: str


class LeasesContested(Record):
    """
    Live workers take leases from each other again and again, so pages under way are handled twice. Emitted repeatedly while it lasts.
    """

    level = logging.ERROR
    owner: str
    reason: str


class LeasesBalanced(Record):
    """
    A worker has listed the leases, to find out which to take (outcome `listed`). Or it could not list, create or take
    leases, and tries again in its next pass (outcome `failed`).
    """

    level = logging.DEBUG
    levels: ClassVar = {"failed": logging.WARNING}
    owner: str
    outcome: Literal["listed", "failed"]
    error: BaseException | None = None


class MessagesPublished(Record):
    """The broker accepted messages of one lane (an ordered stream)."""

    level = logging.DEBUG
    lane: int
    messages: int
    seconds: float


class PublishFailed(Record):
    """
    The broker did not accept messages. They are sent again after `delay_seconds` (outcome `retried`). Or the topic is missing, disabled,
    forbidden or refuses everything, until an operator repairs it (outcome `halted`, emitted with every attempt).
    """

    levels: ClassVar = {"halted": logging.ERROR}
    lane: int | None = None
    outcome: Literal["retried", "halted"]
    attempt: int | None = None
    delay_seconds: float | None = None
    error: BaseException


class SentTwice(Record):
    """
    Another processor sends the events of the same container to the same topics. So each event is sent twice, and both
    processors park the key of a refused event. Emitted repeatedly while it lasts.
    """

    level = logging.ERROR
    processor: str
    other: str
    reason: str


class LeftUnsent(Record):
    """
    Changes wait for a processor of another name that has no worker, and this processor began at the end of the change
    feed. If the processor was renamed, these changes are not sent. The worker looks for such changes in about its first
    minute. If it finds some, it repeats the record while they wait.
    """

    level = logging.ERROR
    processor: str
    other: str
    reason: str


class TopicFull(Record):
    """
    The topic has no room. The messages are sent again after `delay_seconds`, for as long as it takes. A subscription without a reader
    keeps every message until it expires. Emitted with every attempt.
    """

    level = logging.ERROR
    lane: int
    attempt: int
    delay_seconds: float
    error: BaseException


class EventMalformed(Record):
    """
    A document has the type of an event but no key, id or payload. It is skipped.

    Another program wrote it. Correct the document: the change feed delivers the correction, and it is sent.
    """

    level = logging.ERROR
    lease: str
    document_id: str
    partition_key: str


class EventRejected(Record):
    """
    The broker will never accept this event's message. Later events of its partition key wait behind it.
    """

    lane: int
    event_id: str
    partition_key: str
    error: BaseException
    correlation_id: str | None = None


class KeyParked(Record):
    """An event cannot be sent. This and all later events of its partition key are held until an operator acts."""

    level = logging.ERROR
    lease: str
    partition_key: str
    event_id: str
    reason: str
    attempts: int
    error: str
    correlation_id: str | None = None


class EventsHeld(Record):
    """
    Later events of a parked key were put into the parked store (held), or are sent because the key was released or dropped (resumed).
    """

    level = logging.INFO
    lease: str
    partition_key: str
    outcome: Literal["held", "resumed"]
    events: int


class ParkingFailed(Record):
    """
    Events could not be held, because too many keys or events are parked, or the store failed. Their lease makes no
    progress.
    """

    level = logging.ERROR
    lease: str
    partition_key: str
    error: BaseException


class EventDeletion(Record):
    """
    Sent events were deleted, as configured (outcome: deleted). Or they stay, and `reason` says why. If the store fails
    (failed) or too many events wait (skipped), they stay until their time to live ends. If another processor may not
    have read them, they wait (waiting, emitted every minute).
    """

    levels: ClassVar = {"deleted": logging.DEBUG}
    outcome: Literal["deleted", "failed", "skipped", "waiting"]
    events: int
    partition_key: str | None = None
    reason: str | None = None
    error: BaseException | None = None


class WatchFailed(Record):
    """
    The worker could not ask Cosmos DB which changes wait, or which keys are parked. Figures are unknown until a poll succeeds.
    """

    subject: str
    error: BaseException


class SdkFallback(Record):
    """
    Instead of a faster part of this library, the Service Bus SDK encodes the messages of a topic, or receives those of
    a subscription until the process ends. `reason` says why.
    """

    part: Literal["encoder", "receiver"]
    entity: str
    reason: str


class SessionClosed(Record):
    """A session processor has given a session back, or lost it. `outcome` is the SessionEnd."""

    level = logging.DEBUG
    levels: ClassVar = {"lost": logging.WARNING}
    session: str | None
    outcome: str
    messages: int
    error: BaseException | None = None


class ReceivingFailed(Record):
    """
    No session could be accepted or kept for `lasting_seconds`. The processor tries again after `delay_seconds`.
    """

    attempt: int
    delay_seconds: float
    lasting_seconds: float
    error: BaseException


class MessageSettled(Record):
    """A message was settled: `outcome` is complete, retry, dead-letter or defer."""

    level = logging.DEBUG
    session: str | None
    message_id: str
    outcome: str
    seconds: float


class MessageFailed(Record):
    """
    The handler of a session processor raised an error or took too long, and the message is delivered again (outcome `raised`). Or the
    handler went on after its cancellation, and its result is ignored (outcome `left behind`).
    """

    levels: ClassVar = {"left behind": logging.ERROR}
    session: str | None
    message_id: str
    outcome: Literal["raised", "left behind"]
    delivery_count: int
    error: BaseException | None = None


class MessageHandled(Record):
    """
    A consumer has dealt with a message. Its effect and its inbox record are committed (outcome: handled). Or there was no effect: the
    message took effect before (repeated), its subject has no handler (ignored), an operator dropped it (dropped), or it waits in its
    parked key (held).

    `age_seconds` is the time since the broker accepted the message; None if the message does not say. Only a handled message has
    `attempts`, `seconds` and `age_seconds`.
    """

    level = logging.DEBUG
    levels: ClassVar = {"repeated": logging.INFO, "dropped": logging.INFO, "held": logging.INFO}
    consumer: str
    outcome: Literal["handled", "repeated", "ignored", "dropped", "held"]
    subject: str
    key: str
    message_id: str
    attempts: int | None = None
    seconds: float | None = None
    age_seconds: float | None = None


class SubjectIgnored(Record):
    """The consumer has no handler for a subject, and ignores its messages. Each process reports a subject once."""

    level = logging.INFO
    consumer: str
    subject: str


class AttemptFailed(Record):
    """
    The handler of a consumer failed on a message. The consumer tries the message again after `delay_seconds`. If that is
    None, it gives the message up.

    `handler` is the line of the handler that failed; None if the error came before a handler was called.
    """

    consumer: str
    subject: str
    key: str
    message_id: str
    attempt: int
    delay_seconds: float | None
    handler: str | None = None
    error: BaseException


class ConsumingDelayed(Record):
    """
    A message waits, but is not at fault, so no delivery is counted. The outcome says why: a store cannot be used now (outage), the handler
    asked to get the message later (later), or the handler does so for all messages of its subject (circuit).

    `waited_seconds` is for how long the message has waited in this process.
    """

    levels: ClassVar = {"circuit": logging.DEBUG}
    consumer: str
    outcome: Literal["outage", "later", "circuit"]
    subject: str
    key: str
    message_id: str
    delay_seconds: float
    waited_seconds: float
    error: BaseException


class CircuitMoved(Record):
    """
    For `keys` keys in a row, a handler asked to get the message later. So the consumer now tries one message of this subject at a time
    (opened). Or a message took effect, and all messages are handled again (closed).
    """

    levels: ClassVar = {"closed": logging.INFO}
    consumer: str
    outcome: Literal["opened", "closed"]
    subject: str
    keys: int
    open_seconds: float
    error: BaseException


class ConsumerHalted(Record):
    """
    The handlers failed on messages of `keys` keys in a row, and no message took effect. So the messages are not at
    fault, and no more messages are parked.
    """

    level = logging.ERROR
    consumer: str
    keys: int
    error: BaseException


class MessageGivenUp(Record):
    """
    A message cannot be handled. Its key is parked, and later messages of the key wait behind it (parked). Or the message went to the
    dead-letter queue, and later messages of its key go on without it (dead-lettered).
    """

    level = logging.ERROR
    consumer: str
    outcome: Literal["parked", "dead-lettered"]
    subject: str
    key: str | None
    message_id: str
    reason: str
    attempts: int | None = None
    error: BaseException


KINDS: tuple[type[Record], ...] = tuple(Record.__subclasses__())


def level_of(record: Record) -> int:
    """Return the level of a record: the level that its class gives for its outcome, or else the level of its class."""
    return record.levels.get(getattr(record, "outcome", ""), record.level)


def names_of(level: int) -> tuple[str, ...]:
    """Return the names of all classes of records that can have the given level."""
    return tuple(kind.__name__ for kind in KINDS if level in (kind.level, *kind.levels.values()))


def ignore(record: Record) -> None:
    """Do nothing. A caller that wants no records passes this function as its hook."""


def guard(*hooks: Hook) -> Hook:
    """
    Return a hook that calls the given hooks one after another. If a hook raises an error, the error is logged, and the next hook is called.

    The relay and the worker call their hooks in this way, because an error of a hook must not make work fail that is already done.
    """

    def call_all(record: Record) -> None:
        for hook in hooks:
            try:
                hook(record)
            except Exception:  # a hook may raise any error
                _logger.exception("hook.failed %s", type(record).__name__)

    return call_all


def log_hook(record: Record) -> None:
    """
    Log a record, with the name of its class as the event key and its fields as structured `extra`.

    An error of this library is logged without a traceback, because its text says what to do. Any other error is logged with its traceback,
    and so is each error that a handler raised.
    """
    level = level_of(record)
    if _logger.isEnabledFor(level):
        values = {field.name: getattr(record, field.name) for field in fields(record)}
        error = values.get("error")
        _logger.log(
            level,
            "%s %s",
            type(record).__name__,
            " ".join(f"{name}={readable(value)}" for name, value in values.items() if value is not None),
            exc_info=None if isinstance(error, OutboxError | str) and not values.get("handler") else error,
            extra={"event": type(record).__name__, "fields": values},
        )


def readable(value: object) -> object:
    """Return a value of a record as a log shows it: an error as its class and text, any other value unchanged."""
    return error_line(value) if isinstance(value, BaseException) else value
