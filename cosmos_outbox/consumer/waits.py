"""Waits: how long messages wait for a store that is away, all of them or those of one key."""

from __future__ import annotations

from cosmos_outbox.retries import Backoff

# While others take effect, a message waits for 8 s at most, because it occupies a slot
_MOST_ALONE = 5
_MOST_MESSAGES = 1000
_HALTED = 4  # A slot is free soon for another key: only an attempt shows which key can be handled


class Waits:
    """
    Counts the waits since a message took effect, and those of each message; of at most a thousand messages.
    """

    def __init__(self) -> None:
        self._backoff = Backoff(initial_seconds=0.5, maximum_seconds=30.0)
        self._in_a_row = 0
        self._of_message: dict[str, int] = {}

    @property
    def delayed(self) -> bool:
        """Say whether the last message had to wait."""
        return self._in_a_row > 0

    def wait(self, message_id: str, *, at_least: float | None) -> float:
        """Note that a message has to wait; return the seconds, no less than what the service asked for."""
        self._in_a_row += 1
        alone = self._of_message[message_id] = self._of_message.pop(message_id, 0) + 1
        if len(self._of_message) > _MOST_MESSAGES:
            del self._of_message[next(iter(self._of_message))]
        return self._backoff.delay(max(self._in_a_row, min(alone, _MOST_ALONE)), at_least=at_least)

    def of_halted(self) -> float:
        """Return the seconds that a message of a halted consumer waits."""
        return self._backoff.delay(_HALTED)

    def ended(self, message_id: str) -> None:
        """Note that a message is settled."""
        self._in_a_row = 0
        self._of_message.pop(message_id, None)
