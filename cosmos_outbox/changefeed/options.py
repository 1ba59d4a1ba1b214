"""
ProcessorOptions: every knob of the change feed processor, checked once.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Protocol

from cosmos_outbox.documents import Document
from cosmos_outbox.errors import ConfigurationError
from cosmos_outbox.ports import ChangeBatch, StartFrom
from cosmos_outbox.retries import Backoff


class OnPositionAhead(StrEnum):
    """
    What becomes of a lease that lies ahead of its range, as after a restore.
    """

    HALT = "halt"  # it stands still, with an alarm, until an operator resets it
    RESTART = "restart"  # it begins again, at the beginning or `restart_horizon` ago: much is handled twice


class FailureHandler(Protocol):
    """
    What to do with a page that the handler could not handle in `halt_after_attempts` attempts.
    """

    async def __call__(self, batch: ChangeBatch, error: Exception, attempts: int) -> None:
        """
        Take the page over, for example into a dead-letter store: returning means that it is done.

        Raising means that it is not: the handler gets it again, and after as many more failures this is called again.
        """
        ...


def default_instance_name() -> str:
    """
    Return a name no other process has: host, process id and a random part (a restart is a new owner).
    """
    return f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:6]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorOptions:
    """
    Options of a processor; the intervals are those of the .NET SDK.

    Args:
        processor_name: names the group of workers that share the leases; part of every lease id.
        instance_name: must differ between live workers. Defaults to `default_instance_name()`.
        start: where a range without continuation begins. Defaults to the beginning.
        max_items: page size asked for; a page may be longer, and is shorter where memory asks for it. Defaults to 100.
        memory_bytes: of memory that the pages of all leases may take, about; see `budget`. Defaults to 256 MiB.
        wanted: says which changes the handler gets; the others are dropped as soon as they are read, and count as done.
            It must not raise. Defaults to all.
        acquire_interval: between balancing passes. Defaults to 13 s.
        renew_interval: between renewals of an owned lease. Defaults to 17 s.
        expiration: a lease not written for so long is free. Defaults to 60 s.
        checkpoint_interval: least time between checkpoints. Defaults to 200 ms.
        min_poll_interval: after the first empty page. Defaults to 20 ms.
        max_poll_interval: reached by doubling. Defaults to 1 s.
        grace_period: how long a stop waits for handlers. Defaults to 20 s.
        backoff: between attempts after a failure.
        halt_after_attempts: a page that failed so often raises the alarm `LeaseHalted`. Defaults to 10.
        on_failure: called then instead; see `FailureHandler`. Defaults to None: halt.
        on_position_ahead: what becomes of a lease that lies ahead of its range. Defaults to halt, with the alarm `PositionAhead`.
        position_ahead_after: for how long a range may seem to be behind its lease, as a replica that lags does. Defaults to 30 s.
        restart_horizon: how long ago a restart begins, which leaves out what is older. Defaults to None: at the beginning.
        slow_handler_after: a handler this slow is reported. Defaults to 60 s.
        blocked_loop_after: code that holds the event loop for so long is reported. Defaults to 5 s.

    Raises:
        ConfigurationError: values that contradict each other, or mean nothing.
    """

    processor_name: str
    instance_name: str = field(default_factory=default_instance_name)
    start: StartFrom | datetime = StartFrom.BEGINNING
    max_items: int = 100
    memory_bytes: int = 256 * 1024 * 1024
    wanted: Callable[[Document], bool] | None = None
    acquire_interval: timedelta = timedelta(seconds=13)
    renew_interval: timedelta = timedelta(seconds=17)
    expiration: timedelta = timedelta(seconds=60)
    checkpoint_interval: timedelta = timedelta(seconds=0.2)
    min_poll_interval: timedelta = timedelta(seconds=0.02)
    max_poll_interval: timedelta = timedelta(seconds=1)
    grace_period: timedelta = timedelta(seconds=20)
    backoff: Backoff = field(default_factory=Backoff)
    halt_after_attempts: int = 10
    on_failure: FailureHandler | None = None
    on_position_ahead: OnPositionAhead = OnPositionAhead.HALT
    position_ahead_after: timedelta = timedelta(seconds=30)
    restart_horizon: timedelta | None = None
    slow_handler_after: timedelta = timedelta(seconds=60)
    blocked_loop_after: timedelta = timedelta(seconds=5)

    def __post_init__(self) -> None:
        mistakes = [
            message
            for wrong, message in (
                (not self.processor_name.strip(), "processor_name must not be empty"),
                (not self.instance_name.strip(), "instance_name must not be empty"),
                (any(c in self.processor_name for c in "/\\?#"), "processor_name must not contain / \\ ? #"),
                (self.max_items < 1, "max_items must be at least 1"),
                (self.memory_bytes < 1, "memory_bytes must be at least 1"),
                (self.acquire_interval <= timedelta(0), "acquire_interval must be positive"),
                (self.renew_interval <= timedelta(0), "renew_interval must be positive"),
                (
                    self.expiration < timedelta(seconds=2),
                    "expiration must be at least 2 s (the service counts seconds)",
                ),
                (
                    self.renew_interval * 2 > self.expiration,
                    "renew_interval must be at most half of expiration",
                ),
                (
                    isinstance(self.start, datetime) and self.start.tzinfo is None,
                    "start must have a time zone (a time without one would mean another on each machine)",
                ),
                (self.checkpoint_interval < timedelta(0), "checkpoint_interval must not be negative"),
                (self.min_poll_interval <= timedelta(0), "min_poll_interval must be positive"),
                (
                    self.min_poll_interval > self.max_poll_interval,
                    "min_poll_interval must not exceed max_poll_interval",
                ),
                (self.halt_after_attempts < 1, "halt_after_attempts must be at least 1"),
                (self.position_ahead_after < timedelta(0), "position_ahead_after must not be negative"),
                (
                    self.restart_horizon is not None and self.restart_horizon <= timedelta(0),
                    "restart_horizon must be positive",
                ),
                (self.slow_handler_after <= timedelta(0), "slow_handler_after must be positive"),
                (self.blocked_loop_after <= timedelta(0), "blocked_loop_after must be positive"),
                (self.grace_period < timedelta(0), "grace_period must not be negative"),
            )
            if wrong
        ]
        if mistakes:
            raise ConfigurationError("; ".join(mistakes) + ".")

    @property
    def trust_seconds(self) -> float:
        """
        Return how long after sending a successful write the owner trusts its lease.

        Shorter than `expiration` by the whole second that `_ts` is rounded by and by a margin for clocks that run
        at different speeds and for work that takes a moment to stop.
        """
        seconds = self.expiration.total_seconds()
        return seconds - min(max(1.0, seconds / 20), seconds / 2)
