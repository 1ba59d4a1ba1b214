"""Recent errors: the newest errors that a worker reported, one entry for all reports of the same error."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, fields
from datetime import datetime

from cosmos_outbox.changefeed.leases import token_of
from cosmos_outbox.records import Record, readable

_KEPT = 20
# Fields that tell records apart by subject and outcome. Lane and attempt are left out, so that a missing topic is one entry however
# often it recurs.
_SUBJECT = ("outcome", "lease", "task", "partition_key", "event_id", "document_id", "action", "subject")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentError:
    """An error: when it was last reported, with which text, and how often in all."""

    at: datetime
    event: str
    text: str
    times: int = 1


class RecentErrors:
    """The newest errors. An error that recurs every few seconds does not push out one that was reported once."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, RecentError] = {}

    def note(self, record: Record, *, at: datetime) -> None:
        """Keep a record as the newest error."""
        event = type(record).__name__
        error = type(getattr(record, "error", None)).__name__
        key = (event, error, *(getattr(record, name, None) for name in _SUBJECT))
        before = self._kept.pop(key, None)
        times = before.times + 1 if before else 1
        self._kept[key] = RecentError(at=at, event=event, text=_text(record), times=times)
        if len(self._kept) > _KEPT:
            del self._kept[next(iter(self._kept))]

    def newest_first(self) -> tuple[RecentError, ...]:
        """Return all errors that are kept, the newest first."""
        return tuple(reversed(self._kept.values()))


def _text(record: Record) -> str:
    values = ((field.name, getattr(record, field.name)) for field in fields(record))
    return " ".join(
        f"{name}={token_of(value) if name == 'lease' else f'{value:.1f}' if isinstance(value, float) else readable(value)}"
        for name, value in values
        if value is not None
    )
