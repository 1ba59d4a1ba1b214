"""
Functions for all receivers of Service Bus, whichever client they use. They check options, say for how long a
receiver may rely on a lock, read bodies, and shorten the reasons of dead letters.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from cosmos_outbox.errors import ConfigurationError

_REASON_LENGTH = 4000  # the reason of a dead letter may have 4096 characters in Service Bus
# The shortest lock that Service Bus grants. A receiver relies on a lock for at least so long, even if this
# host's clock says that less time is left, because that clock may be wrong.
_SHORTEST_LOCK_SECONDS = 5.0


def check_options(*, sessions: bool, prefetch: int, lock_duration: timedelta) -> None:
    """
    Check the options of a receiver.

    Raises:
        ConfigurationError: Service Bus grants no lock as short as `lock_duration`, or prefetched messages would wait
            longer than their locks.
    """
    if lock_duration.total_seconds() < _SHORTEST_LOCK_SECONDS:
        raise ConfigurationError(f"lock_duration must be at least 5 s, not {lock_duration}.")
    if prefetch and not sessions:
        raise ConfigurationError("prefetch needs sessions: without them, a waiting message loses its lock.")


def trusted_seconds(until: datetime | None, *, now: datetime, lock_seconds: float) -> float:
    """
    Return for how many seconds after its request for a lock a receiver trusts that it has the lock.

    The broker says when the lock ends. If this host's clock is ahead, the lock seems shorter, which only costs
    renewals. If the clock is behind, the lock seems longer, so it is trusted for `lock_seconds` at most.

    Args:
        until: when the lock ends, as the broker says; in UTC if it has no zone. None if the broker says nothing.
        now: the time on this host's clock.
        lock_seconds: for how long the subscription locks.
    """
    if until is None:
        return lock_seconds
    left = (until.replace(tzinfo=until.tzinfo or UTC) - now).total_seconds()
    return min(lock_seconds, max(left, _SHORTEST_LOCK_SECONDS))


def body_bytes(sections: Sequence[Any]) -> bytes:
    """
    Return the body of a message as bytes. Data sections are unchanged, an AMQP value that is text becomes UTF-8, and
    other values and sequences become JSON.
    """
    if all(isinstance(section, bytes) for section in sections):
        return b"".join(sections)
    if sections == [None]:
        return b""
    items = [item for section in sections for item in (section if isinstance(section, list) else [section])]
    value = _plain(sections[0] if len(sections) == 1 else items)
    return value.encode() if isinstance(value, str) else json.dumps(value, ensure_ascii=False).encode()


def _plain(value: Any) -> Any:
    match value:
        case None | bool() | int() | float():
            return value
        case bytes():  # the SDK returns AMQP text as bytes too
            return value.decode("utf-8", "replace")
        case dict():
            return {str(_plain(name)): _plain(one) for name, one in value.items()}
        case list() | tuple():
            return [_plain(one) for one in value]
    return str(value)


def sendable(text: str) -> str:
    """Return a text in a form that the broker accepts as the reason of a dead letter."""
    # An error may quote text from JSON with half of a surrogate pair, which cannot be encoded in UTF-8.
    return text[:_REASON_LENGTH].encode("utf-8", "replace").decode()
