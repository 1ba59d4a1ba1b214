"""
Trust: count the faults of the lean receiver, to decide whether the SDK's receiver has to replace it. `sdk_fallback.py` replaces it.
"""

from __future__ import annotations

import asyncio

from cosmos_outbox.errors import SubscriptionError
from cosmos_outbox_amqp.errors import AmqpError, Condition, Unanswered, receive_error

_MOST = 3  # this many faults make the SDK's receiver take over
_WITHIN_SECONDS = 600.0
# Errors that are closer together than this count as one fault, because one fault of a connection fails all of its sessions.
_APART_SECONDS = 5.0


class Trust:
    """
    Counts the faults of the lean receiver. After three faults in ten minutes, without a settled message between them, the SDK's receiver
    replaces it for good.

    A fault is an error that the SDK's receiver might not have: data that one side cannot read, or a request that a connected broker
    does not answer. A refusal and an unreachable broker do not count, because every client would have these errors.

    lost_by: the last of these three faults; None while the lean receiver may go on.

    Args:
        name: the name of the subscription or queue, for error texts.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._faults: list[float] = []
        self.lost_by: AmqpError | None = None

    def translate(self, error: AmqpError) -> SubscriptionError:
        """Count an AMQP error if it is a fault, and translate it to an error that callers of the receiver handle."""
        if isinstance(error, Unanswered) or error.condition == Condition.DECODE_ERROR:
            self._on_fault(error, asyncio.get_running_loop().time())
        return receive_error(error, entity=self._name)

    def _on_fault(self, error: AmqpError, now: float) -> None:
        if self._faults and now - self._faults[-1] < _APART_SECONDS:
            return
        self._faults = [at for at in self._faults if now - at < _WITHIN_SECONDS] + [now]
        if len(self._faults) >= _MOST:
            self.lost_by = error

    def on_settled(self) -> None:
        """Forget earlier faults after a message was settled, because this shows that the client and the broker understand each other."""
        self._faults.clear()
