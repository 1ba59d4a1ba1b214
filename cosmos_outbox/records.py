"""
What happened, as frozen records handed to hooks: logging, metrics and tracing all listen the same way.

One list, however long: a hook takes any of them, and `docs/reference/metrics.md` is made of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import get_args

_logger = logging.getLogger("cosmos_outbox")


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseAcquired:
    """
    This owner took a lease.
    """

    lease: str
    owner: str
    previous_owner: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseClosed:
    """
    This owner stopped working on a lease; `reason` is a CloseReason, and a WARNING where it is that the lease was lost.
    """

    lease: str
    owner: str
    reason: str
    error: BaseException | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseCheckpointed:
    """
    The lease says now that the first `pages` batches of this tenure are done: nobody will read them again.
    """

    lease: str
    pages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PageHandled:
    """
    All `changes` of a page are done, those included that the handler does not want; `lag` is what still waits.
    """

    lease: str
    changes: int
    seconds: float
    lag: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PageFailed:
    """
    The handler or the feed failed; the same page is tried again after `delay_seconds`.
    """

    lease: str
    attempt: int
    delay_seconds: float
    error: BaseException


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerSlow:
    """
    The handler works on one page for longer than `slow_handler_after`; told again each time that passes.
    """

    lease: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseHalted:
    """
    ALARM: the handler failed `attempts` times on the same page; its range stands still until the cause is gone.

    The lease is kept, and the page tried again at the longest back-off, so work goes on by itself after the fix.
    """

    lease: str
    attempts: int
    error: BaseException


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionAhead:
    """
    ALARM: a lease lies ahead of its range, as after a restore: it stands still, or begins again at `restarted_from`.

    `latest_lsn` is the lowest that the range was seen at. Told every minute while the lease stands still.
    """

    lease: str
    position: str | None
    latest_lsn: int | None
    restarted_from: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionRewound:
    """
    A range was behind its lease for a moment and is back: what lies above `lowest_lsn` is read again.

    So it is where a replica lagged. Where the lease was set ahead, by an edit or an import, what lies below is left out.
    """

    lease: str
    position: str | None
    lowest_lsn: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopBlocked:
    """
    ALARM: something blocks the event loop, so no lease is renewed; a handler must await, or use a thread.

    `task` names the task that runs ("lease …" for a handler), `where` the line. Hooks get this on another thread.
    """

    task: str
    where: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitoredContainerReplaced:
    """
    ALARM: the container was deleted and created again; its old leases are dead, new ones are created from the start.
    """

    owner: str
    error: BaseException


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasesListed:
    """
    A balancing pass begins, and could list the leases; the first one tells that every range has been given one.
    """

    owner: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BalancingFailed:
    """
    A balancing pass failed; the next one tries again.
    """

    owner: str
    error: BaseException


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesPublished:
    """
    The broker accepted messages of one lane.
    """

    lane: int
    messages: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishFailed:
    """
    The broker did not accept messages of one lane; they are sent again after `delay_seconds`.
    """

    lane: int
    attempt: int
    delay_seconds: float
    error: BaseException


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishHalted:
    """
    ALARM: the topic is missing, disabled or may not be sent to; told with every attempt, which go on until it is mended.
    """

    lane: int
    error: BaseException


@dataclass(frozen=True, slots=True, kw_only=True)
class EventMalformed:
    """
    ALARM: a document calls itself an event but has no key, id or payload to send it with; it is passed over.

    Some other program wrote it. Correct the document: the correction comes by the change feed and is sent.
    """

    lease: str
    document_id: str
    partition_key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRejected:
    """
    The broker will never accept this event's message as it is; later events of its partition key wait behind it.
    """

    lane: int
    event_id: str
    partition_key: str
    error: BaseException


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyParked:
    """
    ALARM: an event cannot be sent; it and all later ones of its partition key are held until an operator acts.
    """

    lease: str
    partition_key: str
    event_id: str
    reason: str
    attempts: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsHeld:
    """
    Later events of a parked partition key were put behind those that wait there.
    """

    lease: str
    partition_key: str
    events: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyResumed:
    """
    A partition key was handed back: its events are sent again.
    """

    lease: str
    partition_key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkingFailed:
    """
    ALARM: events could not be held, because a limit is reached or the store failed; their lease goes no further.
    """

    lease: str
    partition_key: str
    error: BaseException


@dataclass(frozen=True, slots=True, kw_only=True)
class EventAgeing:
    """
    An event that is not sent yet has spent half of its time to live.
    """

    lease: str
    event_id: str
    partition_key: str
    age_seconds: float
    ttl_seconds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EventExpiring:
    """
    ALARM: an event that is not sent yet has spent 80 % of its time to live; when that ends, Cosmos DB deletes it.
    """

    lease: str
    event_id: str
    partition_key: str
    age_seconds: float
    ttl_seconds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EventTtlShort:
    """
    Events of this action live shorter than the longest outage that is to be survived.
    """

    action: str
    ttl_seconds: int
    tolerated_outage_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsDeleted:
    """
    Events that were sent, and whose type asks for it, were deleted before their time to live ended.
    """

    partition_key: str
    events: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionFailed:
    """
    Events that were sent could not be deleted; they stay until their time to live ends.
    """

    partition_key: str
    events: int
    error: BaseException


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionsSkipped:
    """
    Events of a page that were sent are not deleted, for too many `waiting` ones are; they stay until their time to live ends.
    """

    lease: str
    events: int
    waiting: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionsStopped:
    """
    Nothing that was sent is deleted, for another processor may not have read it; told again every minute until it is known
    that there is none.
    """

    reason: str
    waiting: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchFailed:
    """
    The worker could not look at what waits or at what is parked; the next look tries again, figures become unknown.
    """

    subject: str
    error: BaseException


Record = (
    LeaseAcquired
    | LeaseCheckpointed
    | LeaseClosed
    | PageHandled
    | PageFailed
    | HandlerSlow
    | LeaseHalted
    | PositionAhead
    | PositionRewound
    | LoopBlocked
    | MonitoredContainerReplaced
    | LeasesListed
    | BalancingFailed
    | MessagesPublished
    | PublishFailed
    | PublishHalted
    | EventMalformed
    | EventRejected
    | KeyParked
    | EventsHeld
    | KeyResumed
    | ParkingFailed
    | EventAgeing
    | EventExpiring
    | EventTtlShort
    | EventsDeleted
    | DeletionFailed
    | DeletionsSkipped
    | DeletionsStopped
    | WatchFailed
)
Hook = Callable[[Record], None]

_LEVELS: dict[type, int] = {
    LeaseAcquired: logging.INFO,
    LeaseClosed: logging.INFO,
    LeaseHalted: logging.ERROR,
    PositionAhead: logging.ERROR,
    EventMalformed: logging.ERROR,
    LeaseCheckpointed: logging.DEBUG,
    LeasesListed: logging.DEBUG,
    PublishHalted: logging.ERROR,
    EventExpiring: logging.ERROR,
    EventsDeleted: logging.DEBUG,
    LoopBlocked: logging.ERROR,
    MonitoredContainerReplaced: logging.ERROR,
    KeyParked: logging.ERROR,
    ParkingFailed: logging.ERROR,
    EventsHeld: logging.INFO,
    KeyResumed: logging.INFO,
    PageHandled: logging.DEBUG,
    MessagesPublished: logging.DEBUG,
}


_LOST = "lost"  # the one way in which a lease ends that is trouble


def level_of(record: Record) -> int:
    """
    Return how severe a record is, as a level of `logging`: an ERROR is an alarm, a WARNING is tried again.
    """
    if isinstance(record, LeaseClosed) and record.reason == _LOST:
        return logging.WARNING
    return _LEVELS.get(type(record), logging.WARNING)


def names_of(level: int) -> tuple[str, ...]:
    """
    Return the names of all records that may have a level.
    """
    sometimes = [LeaseClosed] if level == logging.WARNING else []
    return tuple(
        kind.__name__
        for kind in get_args(Record)
        if kind in sometimes or _LEVELS.get(kind, logging.WARNING) == level
    )


def unheard(record: Record) -> None:
    """
    Let a record pass.
    """


def guarded(notify: Hook) -> Hook:
    """
    Return a hook that logs what another one raises, and goes on: what it was told of has happened, and stays so.

    The relay and the worker call their hooks through this: what a hook raised would fail work that is done.
    """

    def told(record: Record) -> None:
        try:
            notify(record)
        except Exception:  # a hook may raise anything
            _logger.exception("hook.failed %s", type(record).__name__)

    return told


def log_hook(record: Record) -> None:
    """
    Log a record: its class name is the event key, its fields are the structured extra.
    """
    level = level_of(record)
    if _logger.isEnabledFor(level):
        values = {field.name: getattr(record, field.name) for field in fields(record)}
        _logger.log(
            level,
            "%s %s",
            type(record).__name__,
            " ".join(f"{name}={value}" for name, value in values.items() if value is not None),
            extra={"event": type(record).__name__, "fields": values},
        )
