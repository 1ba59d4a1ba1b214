"""
What all receivers of Service Bus share, whatever client they use: their options, how long they trust a lock, the limits of their texts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from cosmos_outbox.errors import ConfigurationError

_REASON_LENGTH = 4000  # Service Bus takes 4096 characters
# The shortest lock that Service Bus grants. A lock is trusted for as long even where this host's clock says that less
# is left.
_SHORTEST_LOCK_SECONDS = 5.0


def check_options(*, sessions: bool, prefetch: int, lock_duration: timedelta) -> None:
    """
    Check the options of a receiver.

    Raises:
        ConfigurationError: no broker locks for so short, or messages would wait longer than their locks.
    """
    if lock_duration.total_seconds() < _SHORTEST_LOCK_SECONDS:
        raise ConfigurationError(f"lock_duration must be at least 5 s, not {lock_duration}.")
    if prefetch and not sessions:
        raise ConfigurationError("prefetch needs sessions: without one, a waiting message loses its lock.")


def trusted_seconds(until: datetime | None, *, now: datetime, lock_seconds: float) -> float:
    """
    Return for how many seconds a lock is trusted, counted from the request for it.

    The broker's time against this host's clock: a clock that is ahead makes the lock seem shorter, which costs renewals; one that is
    behind makes it seem longer, so it is not trusted for longer than the subscription locks.

    Args:
        until: when the lock ends, as the broker says, in UTC where it names no zone. None if it says nothing.
        now: on this host's clock.
        lock_seconds: for how long the subscription locks.
    """
    if until is None:
        return lock_seconds
    left = (until.replace(tzinfo=until.tzinfo or UTC) - now).total_seconds()
    return min(lock_seconds, max(left, _SHORTEST_LOCK_SECONDS))


def body_bytes(sections: Sequence[Any]) -> bytes:
    """
    Return the body of a message as bytes: data unchanged, an AMQP value that is text as UTF-8, other values and
    sequences as JSON.
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
        case bytes():  # the SDK also returns text here
            return value.decode("utf-8", "replace")
        case dict():
            return {str(_plain(name)): _plain(one) for name, one in value.items()}
        case list() | tuple():
            return [_plain(one) for one in value]
    return str(value)


def sendable(text: str) -> str:
    """Return a text that the broker accepts as the reason of a dead letter."""
    # Half a surrogate pair has no UTF-8; JSON may contain one, and errors repeat it.
    return text[:_REASON_LENGTH].encode("utf-8", "replace").decode()
