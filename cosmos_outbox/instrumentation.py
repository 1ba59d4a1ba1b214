"""
What happened, as frozen records handed to hooks: logging, metrics and tracing all listen the same way.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, fields

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
    This owner stopped working on a lease; `reason` is a CloseReason.
    """

    lease: str
    owner: str
    reason: str
    error: BaseException | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PageHandled:
    """
    The handler finished a page; `latest_lsn - last_lsn` is what still waits.
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


Record = (
    LeaseAcquired
    | LeaseClosed
    | PageHandled
    | PageFailed
    | HandlerSlow
    | LeaseHalted
    | BalancingFailed
    | MessagesPublished
    | PublishFailed
    | EventRejected
    | KeyParked
    | EventsHeld
    | KeyResumed
    | ParkingFailed
)
Hook = Callable[[Record], None]

_LEVELS: dict[type, int] = {
    LeaseAcquired: logging.INFO,
    LeaseClosed: logging.INFO,
    LeaseHalted: logging.ERROR,
    KeyParked: logging.ERROR,
    ParkingFailed: logging.ERROR,
    EventsHeld: logging.INFO,
    KeyResumed: logging.INFO,
    PageHandled: logging.DEBUG,
    MessagesPublished: logging.DEBUG,
}


def log_hook(record: Record) -> None:
    """
    Log a record: its class name is the event key, its fields are the structured extra.
    """
    level = _LEVELS.get(type(record), logging.WARNING)
    if _logger.isEnabledFor(level):
        values = {field.name: getattr(record, field.name) for field in fields(record)}
        _logger.log(
            level,
            "%s %s",
            type(record).__name__,
            " ".join(f"{name}={value}" for name, value in values.items() if value is not None),
            extra={"event": type(record).__name__, "fields": values},
        )
