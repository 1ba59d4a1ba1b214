"""Readable times: moments and lengths of time as people read them."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta

from cosmos_outbox.changefeed.leases import parse_timestamp
from cosmos_outbox.errors import ConfigurationError


def duration_text(length: timedelta) -> str:
    """Return a length of time in the largest unit of which it has at least two."""
    seconds = int(length.total_seconds())
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def readable_time(stored: str | None) -> str | None:
    """Return a stored time in UTC, to the second, as people read it. Return any other text unchanged."""
    return clock_time(moment) if (moment := moment_of(stored)) else stored


def moment_of(stored: str | None) -> datetime | None:
    """Return a stored time. Return None where another program wrote something else."""
    with suppress(ConfigurationError):
        return parse_timestamp(stored or "")
    return None


def clock_time(moment: datetime) -> str:
    """Return a moment as people read it."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
