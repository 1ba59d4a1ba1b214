"""The options of a session processor."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from cosmos_outbox.errors import ConfigurationError
from cosmos_outbox.retries import Backoff


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """
    How many sessions a processor holds, and for how long.

    Raises:
        ConfigurationError: a value cannot work.
    """

    # Of sessions handled side by side; some more are accepted ahead. Defaults to 32.
    max_concurrent_sessions: int = 32
    # Of sessions held beside them that wait for another attempt; the others of these take turns. Defaults to 3 for each handled.
    max_waiting_sessions: int | None = None
    # After this time without a message a session is given back; at once if another waits for its slot. Defaults to 5 s.
    session_idle_timeout: timedelta = timedelta(seconds=5)
    # For how long the lock is renewed while one message is handled; then the handler is cancelled. Defaults to 5 min.
    max_handling: timedelta = timedelta(minutes=5)
    # How long handlers may work on after `stop`. Defaults to 20 s.
    grace_period: timedelta = timedelta(seconds=20)
    # Between attempts to reach the broker, and before a message whose handler failed is delivered again.
    backoff: Backoff = field(default_factory=Backoff)

    def __post_init__(self) -> None:
        for name in ("max_concurrent_sessions", "max_waiting_sessions"):
            if (number := getattr(self, name)) is not None and number < 1:
                raise ConfigurationError(f"{name} must be at least 1, not {number}.")
        for name in ("session_idle_timeout", "max_handling"):
            if getattr(self, name) <= timedelta(0):
                raise ConfigurationError(f"{name} must be more than 0, not {getattr(self, name)}.")
        if self.grace_period < timedelta(0):
            raise ConfigurationError(f"grace_period must be at least 0, not {self.grace_period}.")
