"""Readable times: format times and durations for people."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta

from cosmos_outbox.changefeed.leases import parse_timestamp
from cosmos_outbox.errors import ConfigurationError


def duration_text(length: timedelta) -> str:
    """Format a duration for people, such as "100 s", "2 min" or "47 h": in the largest unit that gives at least 2, or in seconds."""
    seconds = int(length.total_seconds())
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def readable_time(stored: str | None) -> str | None:
    """Format a stored ISO 8601 time for people, in UTC and to the second. Return any other text unchanged."""
    return clock_time(moment) if (moment := moment_of(stored)) else stored


def moment_of(stored: str | None) -> datetime | None:
    """Parse a time from a document. Return None if the text is no time: another program may have written the document."""
    with suppress(ConfigurationError):
        return parse_timestamp(stored or "")
    return None


def clock_time(moment: datetime) -> str:
    """Format a time for people, in UTC and to the second."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
