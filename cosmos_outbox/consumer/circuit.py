"""
Circuit breaker of a consumer: while a subject's handler asks to get the messages of all keys later, it gets one message at a time.
`waiting_messages.py` decides how long a single message waits.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cosmos_outbox.consumer.policy import HALT_AFTER_KEYS
from cosmos_outbox.retries import Backoff

_BETWEEN_PROBES = Backoff(initial_seconds=0.5, maximum_seconds=10.0)
# After a handler raised TryLater, a message that was never tried may be tried this soon, because its key may not be in trouble.
_BEFORE_NEW_SECONDS = 1.0
# While the circuit is open, messages wait a random time longer than until the next probe, so that they do not all come back at once.
_BESIDE_PROBES = Backoff(initial_seconds=2.0, maximum_seconds=2.0)


@dataclass(slots=True)
class Circuit:
    """
    The circuit breaker of one subject. It exists from the first message that the handler asks to get later until a message takes effect.

    It opens once the handler has asked to get messages of HALT_AFTER_KEYS keys later. Then all messages of the subject wait, and the
    consumer tries one at a time: the probe.

    error: the error by which the handler asked to get the last message later.
    keys: the keys whose messages the handler asked to get later, before the circuit opened.
    opened_at: when the circuit opened; None if it is not open.
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
        """
        Count a message whose handler asked to be called later (`TryLater`). Return whether this opens the circuit: then all messages with
        the same subject wait.
        """
        self.error = error
        if self.opened_at is None:
            self.keys.add(key)
            if len(self.keys) < HALT_AFTER_KEYS:
                return False
        if opens := self.opened_at is None:
            self.opened_at = now
        self._new_at = now + _BEFORE_NEW_SECONDS
        # Several handlers may have run when the circuit opened, and raise TryLater one after another. Only the first of them counts as a
        # failed probe, so that the pause between probes does not grow too fast.
        if now >= self._probe_at:
            self._probes += 1
            self._probe_at = now + _BETWEEN_PROBES.delay(self._probes)
        return opens

    def delay(self, message_id: str, now: float, *, new: bool) -> float:
        """
        Return how many seconds a message has to wait before it is tried. Return 0 if its handler may be called now. If the circuit is open,
        this message then becomes the probe, the only message of the subject that is tried.

        `new` says whether the message was never tried before.
        """
        if self.opened_at is None:
            return 0.0
        probe_at = self._new_at if new else self._probe_at
        if now < probe_at or self.probe is not None:
            return max(0.1, probe_at - now) + _BESIDE_PROBES.delay(1)
        self.probe = message_id
        return 0.0
