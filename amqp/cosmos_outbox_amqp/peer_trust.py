"""Trust: whether this client and its peer understand each other, by what went wrong between them."""

from __future__ import annotations

import asyncio

from cosmos_outbox.errors import SubscriptionError
from cosmos_outbox_amqp.errors import AmqpError, Condition, Unanswered, receive_error

_MOST = 3  # faults
_WITHIN_SECONDS = 600.0
_APART_SECONDS = 5.0  # one fault of a connection fails all of its sessions


class Trust:
    """
    Lost for good after three faults in ten minutes without a settled message in between.

    A fault is what another client may not have: bytes that one side cannot read, or a question that a peer which is there leaves
    unanswered. A refusal and a peer that cannot be reached are none: both would meet any client.

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
        """Hear that a message was settled, so all of the dialogue works."""
        self._faults.clear()
