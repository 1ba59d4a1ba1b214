"""Where new ids and times come from; a test may fix both."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime

_Sources = tuple[Callable[[], datetime], Callable[[], str]]  # of times, and of ids
_SYSTEM: _Sources = (lambda: datetime.now(UTC), lambda: str(uuid.uuid4()))
_here: ContextVar[_Sources | None] = ContextVar("sources", default=None)
# What counts where a context says nothing: the fixtures of a test do not run in the context of its coroutine.
_everywhere: list[_Sources] = [_SYSTEM]


def new_id() -> str:
    """Return a random UUID (version 4), or what a test gives."""
    return (_here.get() or _everywhere[-1])[1]()


def utc_now() -> datetime:
    """Return the time in UTC, or what a test gives."""
    return (_here.get() or _everywhere[-1])[0]()


@contextmanager
def fixed(
    *, now: datetime | Callable[[], datetime] | None = None, ids: Callable[[], str] | None = None
) -> Iterator[None]:
    """
    Give entities, events and commits these ids and times inside the block, and in tasks that begin in it.

    Args:
        now: the time, or what returns it. Defaults to the system's clock.
        ids: what returns a new id at each call. Defaults to random ones.
    """
    read = (lambda: now) if isinstance(now, datetime) else now
    time, make = _everywhere[-1]
    token = _here.set((read or time, ids or make))
    try:
        yield
    finally:
        _here.reset(token)


@contextmanager
def fixed_everywhere(*, now: Callable[[], datetime], ids: Callable[[], str]) -> Iterator[None]:
    """As `fixed`, for all of the process: also for tasks and threads that began before the block."""
    _everywhere.append((now, ids))
    try:
        yield
    finally:
        _everywhere.pop()
