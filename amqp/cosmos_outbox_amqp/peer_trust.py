"""Trust: counts faults, to decide whether this client and the broker still understand each other."""

from __future__ import annotations

import asyncio

from cosmos_outbox.errors import SubscriptionError
from cosmos_outbox_amqp.errors import AmqpError, Condition, Unanswered, receive_error

_MOST = 3  # faults that end the trust
_WITHIN_SECONDS = 600.0
# Closer errors count as one fault, for one fault of a connection fails all of its sessions.
_APART_SECONDS = 5.0


class Trust:
    """
    Trust in this client. It is lost for good after three faults in ten minutes without a settled message in between.

    A fault is an error that another client may not meet: bytes that one side cannot read, or a request that a connected peer
    does not answer. A refusal and an unreachable peer are no faults, because they would meet any client.

    Args:
        name: of the subscription or queue, for errors.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._faults: list[float] = []
        self.lost_by: AmqpError | None = None

    def translate(self, error: AmqpError) -> SubscriptionError:
        """Count an error if it is a fault, and return the error of the port that stands for it."""
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
        """Forget earlier faults: a settled message proves that the whole dialogue works."""
        self._faults.clear()
