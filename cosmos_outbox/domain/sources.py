"""
Where new ids and times come from; a test may fix both.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime

_ids: ContextVar[Callable[[], str] | None] = ContextVar("ids", default=None)
_now: ContextVar[Callable[[], datetime] | None] = ContextVar("now", default=None)
# What counts where a context says nothing: the fixtures of a test do not run in the context of its coroutine.
_elsewhere: list[tuple[Callable[[], datetime], Callable[[], str]]] = []


def new_id() -> str:
    """
    Return a random UUID (version 4), or what a test gives.
    """
    if (make := _ids.get()) is not None:
        return make()
    if _elsewhere:
        return _elsewhere[-1][1]()
    return str(uuid.uuid4())


def utc_now() -> datetime:
    """
    Return the time in UTC, or what a test gives.
    """
    read = _now.get()
    if read is not None:
        return read()
    return _elsewhere[-1][0]() if _elsewhere else datetime.now(UTC)


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
    ids_token, now_token = _ids.set(ids), _now.set(read)
    try:
        yield
    finally:
        _ids.reset(ids_token)
        _now.reset(now_token)


@contextmanager
def fixed_everywhere(*, now: Callable[[], datetime], ids: Callable[[], str]) -> Iterator[None]:
    """
    As `fixed`, for all of the process: also for tasks and threads that began before the block.
    """
    _elsewhere.append((now, ids))
    try:
        yield
    finally:
        _elsewhere.pop()
