"""Circuit breaker of a consumer: while a subject's handler asks for a later time for all keys, it gets one message at a time."""

from __future__ import annotations

from dataclasses import dataclass, field

from cosmos_outbox.consumer.policy import HALT_AFTER_KEYS
from cosmos_outbox.retries import Backoff

_BETWEEN_PROBES = Backoff(initial_seconds=0.5, maximum_seconds=10.0)
# A message that was never tried may be tried after this shorter time, because its key may not have to wait.
_BEFORE_NEW_SECONDS = 1.0
# a random delay that is added to the wait, so that the waiting messages do not all come back at once
_BESIDE_PROBES = Backoff(initial_seconds=2.0, maximum_seconds=2.0)


@dataclass(slots=True)
class Circuit:
    """
    The circuit breaker of one subject. It exists from the first message that asks for a later time until a message takes effect.

    It opens once messages of HALT_AFTER_KEYS keys have asked. Then all messages of the subject wait, and one at a time is tried: the probe.

    error: the error with which the last message asked for a later time.
    keys: the keys whose messages asked, until the circuit opened.
    opened_at: when the circuit opened; None before.
    probe: the id of the message that is being tried now.
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
        # A handler that was called before the circuit opened may ask for a later time only now. That does not lengthen the back-off.
        if now >= self._probe_at:
            self._probes += 1
            self._probe_at = now + _BETWEEN_PROBES.delay(self._probes)
        return opens

    def delay(self, message_id: str, now: float, *, new: bool) -> float:
        """
        Return how many seconds a message waits before this is asked again. Return 0 if its handler may be called now.

        If the circuit is open, a message whose handler may be called is the probe. `new` says whether the message was never tried.
        """
        if self.opened_at is None:
            return 0.0
        probe_at = self._new_at if new else self._probe_at
        if now < probe_at or self.probe is not None:
            return max(0.1, probe_at - now) + _BESIDE_PROBES.delay(1)
        self.probe = message_id
        return 0.0
