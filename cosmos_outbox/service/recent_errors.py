"""
Troubles: the last errors that a worker was told of, one entry for all that say the same again.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, fields
from datetime import datetime

from cosmos_outbox.records import Record

_KEPT = 20
# What a record is about. Not the lane, nor the attempt: a topic that is missing is one trouble, told for ever.
_ABOUT = ("lease", "task", "partition_key", "event_id", "document_id", "action", "subject")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """
    An error that a hook told of: when and how for the last time, and how often.
    """

    at: datetime
    event: str
    text: str
    times: int = 1


class Troubles:
    """
    The newest of them; what is told every few seconds does not push out what was told once.
    """

    def __init__(self) -> None:
        self._kept: dict[Hashable, Trouble] = {}

    def note(self, event: str, text: str, *, at: datetime, about: Hashable) -> None:
        """
        Take note of an error, beside others of the same event about the same.
        """
        before = self._kept.pop((event, about), None)
        times = before.times + 1 if before else 1
        self._kept[event, about] = Trouble(at=at, event=event, text=text, times=times)
        if len(self._kept) > _KEPT:
            del self._kept[next(iter(self._kept))]

    def newest_first(self) -> tuple[Trouble, ...]:
        """
        Return what was noted.
        """
        return tuple(reversed(self._kept.values()))

    def last_since(self, moment: datetime) -> str | None:
        """
        Return the last one in words, unless it is older than a moment.
        """
        last = next(reversed(self._kept.values()), None)
        return None if last is None or last.at < moment else f"{last.event} {last.text}"


def about(record: Record) -> Hashable:
    """
    Return what makes a record the same as another one of its class.
    """
    return (type(getattr(record, "error", None)).__name__, *(getattr(record, name, None) for name in _ABOUT))


def told(record: Record) -> str:
    """
    Return a record's fields in words.
    """
    values = ((field.name, getattr(record, field.name)) for field in fields(record))
    return " ".join(
        f"{name}={value.rpartition('..')[2] if name == 'lease' else value!r}"
        for name, value in values
        if value is not None
    )
