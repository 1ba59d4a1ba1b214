"""ProcessorOptions: all options of the change feed processor, which are checked when they are given."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from cosmos_outbox.changefeed.read_ahead import Budget
from cosmos_outbox.errors import ConfigurationError
from cosmos_outbox.ports import StartFrom
from cosmos_outbox.retries import Backoff
from cosmos_outbox.stored_documents import Document

_ZERO = timedelta(0)
EXPIRATION = timedelta(seconds=60)


def default_instance_name() -> str:
    """
    Return a name that no other worker has: host, process id and a random part. A restarted process gets another name,
    so it does not count as the owner of the leases that it had before.
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
        earlier_life: a function that is awaited if the processor finds no leases when it starts. If the processor read the
            container before, the function returns a text that says what shows this; otherwise None. A text means that the
            leases were deleted. So the processor emits `LeasesLost`, and begins at the beginning even if `start` is now.
            Defaults to None: then the processor knows only what it did itself since its process began.
        max_items: how many changes to ask for in one page while a lease is behind (otherwise 100). A page may be longer,
            and is shorter if memory is scarce. Defaults to 1000.
        memory_bytes: about how many bytes of memory the pages of all leases may take; see `read_ahead`. Defaults to
            256 MiB.
        budget: a `Budget` of `read_ahead`, if several processors share that memory. Defaults to one of `memory_bytes`.
        wanted: returns whether the handler gets a change. Other changes are dropped as soon as they are read, and count
            as handled. It must not raise. Defaults to all changes.
        acquire_interval: the pause between balancing passes. A pass comes sooner if a lease expires, or if the worker
            waits for a lease. Defaults to 13 s.
        renew_interval: the time between renewals of an owned lease. Defaults to 17 s.
        expiration: after this time without a write, a lease is free. Defaults to 60 s.
        checkpoint_interval: the least time between checkpoints. Defaults to 200 ms.
        min_poll_interval: the shortest pause between polls, after an empty page. Defaults to 10 ms.
        recent_poll_interval: the longest pause between polls while the last change is at most 7.5 seconds old. In a
            longer silence the longest pause is a hundredth of the silence. Defaults to 75 ms.
        max_poll_interval: the longest pause between polls, reached after a hundred seconds without a change. Defaults
            to 1 s. With more than 250 leases on a worker the pauses are longer, see `polling`.
        grace_period: how long a stop waits for handlers. Defaults to 20 s.
        backoff: the pauses between attempts after a failure.
        halt_after_attempts: after this many failed attempts, a page raises the alarm `PageFailed`. Defaults to 10.
        blocked_loop_after: code that blocks the event loop for this time is reported. Defaults to 5 s.

    Raises:
        ConfigurationError: the values contradict each other, or one is out of its bounds.
    """

    processor_name: str
    instance_name: str = field(default_factory=default_instance_name)
    start: StartFrom | datetime = StartFrom.BEGINNING
    earlier_life: Callable[[], Awaitable[str | None]] | None = None
    max_items: int = 1000
    memory_bytes: int = 256 * 1024 * 1024
    budget: Budget | None = None
    wanted: Callable[[Document], bool] | None = None
    acquire_interval: timedelta = timedelta(seconds=13)
    renew_interval: timedelta = timedelta(seconds=17)
    expiration: timedelta = EXPIRATION
    checkpoint_interval: timedelta = timedelta(seconds=0.2)
    min_poll_interval: timedelta = timedelta(seconds=0.01)
    recent_poll_interval: timedelta = timedelta(seconds=0.075)
    max_poll_interval: timedelta = timedelta(seconds=1)
    grace_period: timedelta = timedelta(seconds=20)
    backoff: Backoff = field(default_factory=Backoff)
    halt_after_attempts: int = 10
    blocked_loop_after: timedelta = timedelta(seconds=5)

    def __post_init__(self) -> None:
        local = isinstance(self.start, datetime) and self.start.tzinfo is None
        shortest, two_seconds = self.min_poll_interval, timedelta(seconds=2)
        checks: dict[str, object] = {
            "processor_name must not be empty": self.processor_name.strip(),
            "instance_name must not be empty": self.instance_name.strip(),
            "processor_name must not contain / \\ ? #": not set(self.processor_name) & set("/\\?#"),
            "expiration must be at least 2 s (the service counts seconds)": self.expiration >= two_seconds,
            "renew_interval must be at most half of expiration": self.renew_interval * 2 <= self.expiration,
            "start must have a time zone (a time without one would mean another on each machine)": not local,
            "min_poll_interval must not exceed max_poll_interval": shortest <= self.max_poll_interval,
        }
        for name in ("max_items", "memory_bytes", "halt_after_attempts"):
            checks[f"{name} must be at least 1"] = getattr(self, name) >= 1
        positive = "acquire_interval renew_interval min_poll_interval recent_poll_interval blocked_loop_after"
        for name in positive.split():
            checks[f"{name} must be positive"] = getattr(self, name) > _ZERO
        for name in ("checkpoint_interval", "grace_period"):
            checks[f"{name} must not be negative"] = getattr(self, name) >= _ZERO
        if errors := [message for message, holds in checks.items() if not holds]:
            raise ConfigurationError("; ".join(errors) + ".")

    @property
    def trust_seconds(self) -> float:
        """
        Return for how many seconds an owner may rely on its lease, counted from when it sent the last successful write.

        This is less than `expiration`. The difference allows for the rounding of `_ts` to whole seconds, for clocks
        that run at different speeds, and for work that takes a moment to stop.
        """
        seconds = self.expiration.total_seconds()
        return seconds - min(max(1.0, seconds / 20), seconds / 2)
