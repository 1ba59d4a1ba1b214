"""
What happened, as frozen records handed to hooks: logging, metrics and health are hooks.

One list, however long: a hook takes any record, and `docs/reference/metrics.md` is generated from it.
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
    Base of all records, which are frozen dataclasses. `level` is a level of `logging`: an ERROR is an alarm, a WARNING is tried
    again. `levels` has the outcomes of a record whose level differs.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]

    level: ClassVar[int] = logging.WARNING
    levels: ClassVar[Mapping[str, int]] = {}

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True)(cls)


Hook = Callable[[Record], None]


class LeaseMoved(Record):
    """This owner took a lease, or stopped working on it: `outcome` is acquired, or a CloseReason."""

    level = logging.INFO
    levels: ClassVar = {"lost": logging.WARNING}
    lease: str
    owner: str
    outcome: str
    previous_owner: str | None = None
    error: BaseException | None = None


class LeaseCheckpointed(Record):
    """The checkpoint covers the first `pages` batches of this tenure. No worker reads them again."""

    level = logging.DEBUG
    lease: str
    pages: int


class PageHandled(Record):
    """All `changes` of a page are handled or skipped. `lag` counts the transactions that still wait."""

    level = logging.DEBUG
    lease: str
    changes: int
    seconds: float
    lag: int | None


class PageFailed(Record):
    """
    The handler or the feed failed on a page. The owner tries it again after `delay_seconds` (retried), or has tried so often that the
    range stands still until the cause is gone (halted, emitted again after as many more attempts).

    The lease is kept, and a halted one is tried again too, so work goes on by itself after the fix.
    """

    levels: ClassVar = {"halted": logging.ERROR}
    lease: str
    outcome: Literal["retried", "halted"]
    attempt: int
    delay_seconds: float
    error: BaseException


class PositionAhead(Record):
    """
    A lease is ahead of its range, as after a restore. It halts until an operator sets it back (halted), or the range caught up soon, and
    the owner reads again what lies above `lowest_lsn` (rewound).

    `lowest_lsn` is the lowest one seen of the range. Emitted every minute while the lease is halted. A range is behind for a
    moment if a replica lagged. If the lease was set ahead by an edit, what lies below is skipped.
    """

    level = logging.ERROR
    levels: ClassVar = {"rewound": logging.WARNING}
    lease: str
    outcome: Literal["halted", "rewound"]
    position: str | None
    lowest_lsn: int | None


class LoopBlocked(Record):
    """
    Something blocks the event loop, so no lease is renewed. A handler must await, or use a thread.

    `task` names the task that runs ("lease …" for a handler), `where` the line. Hooks get this on another thread.
    """

    level = logging.ERROR
    task: str
    where: str
    seconds: float
    remedy: str = "await there, or call it by `await asyncio.to_thread(…)`"


class LeasesLost(Record):
    """
    All leases of the processor are gone, or belong to a container that was deleted and created again. `reason` says which. Workers
    create leases that read from `start`: where the first ones began, or the beginning if that is unknown or the container is new. What
    was sent since is sent again.
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
    A balancing pass has listed the leases (listed; the first time, every range has one). Or it failed for one or all, and the next pass
    tries again (failed).
    """

    level = logging.DEBUG
    levels: ClassVar = {"failed": logging.WARNING}
    owner: str
    outcome: Literal["listed", "failed"]
    error: BaseException | None = None


class MessagesPublished(Record):
    """The broker accepted messages of one lane."""

    level = logging.DEBUG
    lane: int
    messages: int
    seconds: float


class PublishFailed(Record):
    """
    The broker did not accept messages of one lane. They are sent again after `delay_seconds` (retried). Or the topic is missing,
    disabled, forbidden or refuses everything until an operator repairs it (halted, emitted with every attempt).
    """

    levels: ClassVar = {"halted": logging.ERROR}
    lane: int | None = None
    outcome: Literal["retried", "halted"]
    attempt: int | None = None
    delay_seconds: float | None = None
    error: BaseException


class SentTwice(Record):
    """
    A processor of another name sends the events of the same container to the same topics. Each is sent twice, and a refused key is
    parked for both. Emitted repeatedly while it lasts.
    """

    level = logging.ERROR
    processor: str
    other: str
    reason: str


class LeftUnsent(Record):
    """
    Changes wait for a processor of another name that has no worker, and this one began at `now`. If its name was changed, they are not
    sent. Emitted repeatedly while it lasts, if seen in the first minute or so.
    """

    level = logging.ERROR
    processor: str
    other: str
    reason: str


class TopicFull(Record):
    """
    The topic has no room. Messages of one lane are sent again after `delay_seconds`, for as long as it takes. A subscription without a
    reader keeps every message until it expires. Emitted with every attempt.
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
    """An event cannot be sent. It and all later ones of its partition key are held until an operator acts."""

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
    Later events of a parked key were held behind it (held), or are sent because the key was released or dropped (resumed).
    """

    level = logging.INFO
    lease: str
    partition_key: str
    outcome: Literal["held", "resumed"]
    events: int


class ParkingFailed(Record):
    """
    Events could not be held, because a limit is reached or the store failed. Their lease makes no progress.
    """

    level = logging.ERROR
    lease: str
    partition_key: str
    error: BaseException


class EventDeletion(Record):
    """
    Sent events were deleted, as asked for (deleted). Or they stay, and `reason` says why: until their time to live ends, because the
    store fails (failed) or too many wait (skipped), or while another processor may not have read them (waiting, emitted every minute).
    """

    levels: ClassVar = {"deleted": logging.DEBUG}
    outcome: Literal["deleted", "failed", "skipped", "waiting"]
    events: int
    partition_key: str | None = None
    reason: str | None = None
    error: BaseException | None = None


class WatchFailed(Record):
    """
    The worker could not poll what waits or what is parked. Figures are unknown until a poll succeeds.
    """

    subject: str
    error: BaseException


class SdkFallback(Record):
    """
    The Service Bus SDK replaces a faster part of this library, and `reason` says why. The SDK encodes the messages of a topic, at several
    times the CPU, or receives those of a subscription until the process ends.
    """

    part: Literal["encoder", "receiver"]
    entity: str
    reason: str


class SessionClosed(Record):
    """A processor has given a session back, or lost it. `outcome` is a SessionEnd."""

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
    The handler of a session processor raised or took too long, and the message is delivered again (raised). Or the handler went on after
    its cancellation, and nothing that it returns is settled (left behind).
    """

    levels: ClassVar = {"left behind": logging.ERROR}
    session: str | None
    message_id: str
    outcome: Literal["raised", "left behind"]
    delivery_count: int
    error: BaseException | None = None


class MessageHandled(Record):
    """
    The effect of a message and its record are committed (handled). Or it has no effect: it took effect before (repeated), its subject has
    no handler (ignored), an operator dropped it (dropped), or it waits in its parked key (held).

    `age_seconds` is the time since the broker took it; None if it does not say. Only what took effect has that and the two before.
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
    """The consumer has no handler for a subject. Each process reports that once."""

    level = logging.INFO
    consumer: str
    subject: str


class AttemptFailed(Record):
    """
    The handler of a consumer failed on a message. The consumer tries it again after `delay_seconds`, or gives it up if that is None.

    `handler` is the line of it that failed; None where the message did not come to a handler.
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
    A message waits through no fault of its own, and no delivery is counted. A store cannot be used now (outage), its handler asked for a
    later time (later), or all of its subject do (circuit).

    `waited_seconds` is for how long this process has had it wait.
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
    The messages of `keys` keys in a row asked for a later time. Now the consumer tries one of their subject at a time (opened), until one
    takes effect and all are handled again (closed).
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
    The handlers failed on `keys` keys in a row, and on every message. The fault is not the messages', so none is parked.
    """

    level = logging.ERROR
    consumer: str
    keys: int
    error: BaseException


class MessageGivenUp(Record):
    """
    A message cannot be handled. Its key is parked, with later messages behind it, or it went to the dead-letter queue, and later
    ones of its key go on without it.
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
    """Return the level of a record: that of its outcome, or else of its class."""
    return record.levels.get(getattr(record, "outcome", ""), record.level)


def names_of(level: int) -> tuple[str, ...]:
    """Return the names of all records that can have a level."""
    return tuple(kind.__name__ for kind in KINDS if level in (kind.level, *kind.levels.values()))


def ignore(record: Record) -> None:
    """Do nothing; a caller that wants no records passes this hook."""


def guard(*hooks: Hook) -> Hook:
    """
    Return a hook that calls others in turn. If one raises an error, it logs that and goes on: what the record reports has happened.

    The relay and the worker call their hooks through this, since an error of a hook would fail work that is done.
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
    Log a record: its class name is the event key, its fields are the structured extra.

    An error of this library says what to do; any other has its traceback, and so has each that a handler raised.
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
    """Return a value of a record as people read it."""
    return error_line(value) if isinstance(value, BaseException) else value
