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


def new_id() -> str:
    """
    Return a random UUID (version 4), or what a test gives.
    """
    make = _ids.get()
    return str(uuid.uuid4()) if make is None else make()


def utc_now() -> datetime:
    """
    Return the time in UTC, or what a test gives.
    """
    read = _now.get()
    return datetime.now(UTC) if read is None else read()


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
