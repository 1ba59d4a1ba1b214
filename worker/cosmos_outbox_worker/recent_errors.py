"""Recent errors: keep the newest errors that a worker or consumer reported, with one entry for all reports of the same error."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, fields
from datetime import datetime

from cosmos_outbox.changefeed.leases import token_of
from cosmos_outbox.records import Record, readable

_KEPT = 20
# Two records report the same error if they are equal in these fields. The fields `lane` (the sender) and `attempt` are left out, so all
# failed sends to a missing topic become one entry.
_SUBJECT = ("outcome", "lease", "task", "partition_key", "event_id", "document_id", "action", "subject")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentError:
    """An error that was reported once or several times: the time and the text of the last report, and the number of reports."""

    at: datetime
    event: str
    text: str
    times: int = 1


class RecentErrors:
    """
    Keeps the twenty newest errors. All reports of the same error share an entry. So an error that is reported every few seconds does
    not displace the other errors.
    """

    def __init__(self) -> None:
        self._kept: dict[Hashable, RecentError] = {}

    def note(self, record: Record, *, at: datetime) -> None:
        """Keep the error of a record as the newest one, and count it."""
        event = type(record).__name__
        error = type(getattr(record, "error", None)).__name__
        key = (event, error, *(getattr(record, name, None) for name in _SUBJECT))
        before = self._kept.pop(key, None)
        times = before.times + 1 if before else 1
        self._kept[key] = RecentError(at=at, event=event, text=_text(record), times=times)
        if len(self._kept) > _KEPT:
            del self._kept[next(iter(self._kept))]

    def newest_first(self) -> tuple[RecentError, ...]:
        """Return the kept errors, newest first."""
        return tuple(reversed(self._kept.values()))


def _text(record: Record) -> str:
    values = ((field.name, getattr(record, field.name)) for field in fields(record))
    return " ".join(
        f"{name}={token_of(value) if name == 'lease' else f'{value:.1f}' if isinstance(value, float) else readable(value)}"
        for name, value in values
        if value is not None
    )
