"""Circuit: whether the handler of a subject is called, while it asks for a later time whatever the key."""

from __future__ import annotations

from dataclasses import dataclass, field

from cosmos_outbox.consumer.policy import HALT_AFTER_KEYS
from cosmos_outbox.retries import Backoff

_BETWEEN_PROBES = Backoff(initial_seconds=0.5, maximum_seconds=10.0)
# A message that was never tried may belong to a key that does not ask for a later time, so it is tried sooner.
_BEFORE_NEW_SECONDS = 1.0
# jitter, so that the waiting messages do not all come at once
_BESIDE_PROBES = Backoff(initial_seconds=2.0, maximum_seconds=2.0)


@dataclass(slots=True)
class Circuit:
    """
    The circuit of one subject, from the first message that asks for a later time until a message takes effect. It opens once messages
    of so many keys have asked: then messages wait, and one at a time is tried.

    error: what the last message asked with.
    keys: that asked, until it opened.
    probe: the id of the message that tries now.
    """

    error: Exception
    keys: set[str] = field(default_factory=set)
    opened_at: float | None = None
    probe: str | None = None
    _probe_at: float = 0.0
    _new_at: float = 0.0
    _probes: int = 0

    def count_ask(self, key: str, error: Exception, now: float) -> bool:
        """Note that the message of a key asks for a later time; return whether that opens the circuit."""
        self.error = error
        if self.opened_at is None:
            self.keys.add(key)
            if len(self.keys) < HALT_AFTER_KEYS:
                return False
        if opens := self.opened_at is None:
            self.opened_at = now
        self._new_at = now + _BEFORE_NEW_SECONDS
        if now >= self._probe_at:  # handlers of other messages may have been called before it opened
            self._probes += 1
            self._probe_at = now + _BETWEEN_PROBES.delay(self._probes)
        return opens

    def delay(self, message_id: str, now: float, *, new: bool) -> float:
        """
        Return how many seconds a message, which may be a new one, waits before it asks again. Return 0 if its handler may be called
        now: the message is then the probe.
        """
        if self.opened_at is None:
            return 0.0
        probe_at = self._new_at if new else self._probe_at
        if now < probe_at or self.probe is not None:
            return max(0.1, probe_at - now) + _BESIDE_PROBES.delay(1)
        self.probe = message_id
        return 0.0
