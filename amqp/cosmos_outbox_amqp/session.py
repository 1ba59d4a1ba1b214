"""
AmqpSession: receives and settles the messages of one Service Bus session, and renews its lock. It implements the library's
interface `Session`.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime

from cosmos_outbox.adapters.servicebus.receiving import sendable, trusted_seconds
from cosmos_outbox.errors import LockLost
from cosmos_outbox.message_format import Message
from cosmos_outbox.ports import Complete, DeadLetter, Defer, Retry, Settlement
from cosmos_outbox_amqp.decoding import Described
from cosmos_outbox_amqp.errors import AmqpError, Condition, ProtocolError
from cosmos_outbox_amqp.link import ABANDONED, ACCEPTED, DEFERRED, Attached, Delivery, Link, dead_lettered
from cosmos_outbox_amqp.message import Sections, message_of, moment
from cosmos_outbox_amqp.peer_trust import Trust
from cosmos_outbox_amqp.signed_in_connection import SignedIn

_TICKS_AT_EPOCH, _TICKS_IN_MILLISECOND = 621_355_968_000_000_000, 10_000

_logger = logging.getLogger("consumer")


class AmqpSession:
    """A Service Bus session that the broker has locked for this receiver."""

    def __init__(
        self, signed_in: SignedIn, link: Link, attached: Attached, *, trust: Trust, lock_seconds: float
    ) -> None:
        self._signed_in, self._link, self._trust = signed_in, link, trust
        self._lock_seconds = lock_seconds
        self._loop = asyncio.get_running_loop()
        self.id = attached.session_id
        self._delivery: Delivery | None = None  # the message that is received and not settled yet
        ticks = attached.locked_until
        until = None if ticks is None else moment((ticks - _TICKS_AT_EPOCH) / _TICKS_IN_MILLISECOND)
        self.trusted_until = self._trust_end(self._loop.time(), until)

    async def receive(self, wait_seconds: float) -> Message | None:
        try:
            while (delivery := await self._link.receive(wait_seconds)) is not None:
                try:
                    message = message_of(Sections(delivery.payload))
                except (
                    ProtocolError,
                    RecursionError,
                ) as error:  # without a settlement, the broker would deliver this unreadable message for ever
                    _logger.warning("servicebus.unreadable an unreadable message is dead-lettered: %s", error)
                    await self._link.settle(delivery.number, dead_lettered("unreadable", str(error)))
                    continue
                self._delivery = delivery
                return message
        except AmqpError as error:
            raise self._trust.translate(error) from error
        return None

    async def renew(self) -> None:
        asked_at = self._loop.time()
        try:
            if self._link.error is not None:
                raise self._link.error
            body = {"session-id": self.id}
            answer = await self._signed_in.manage("renew-session-lock", self._link.name, body)
        except AmqpError as error:
            raise self._trust.translate(error) from error
        self.trusted_until = self._trust_end(asked_at, moment(answer.get("expiration")))

    async def settle(self, message: Message, settlement: Settlement) -> None:
        delivery, self._delivery = self._delivery, None
        if delivery is None:
            raise LockLost("The message is not locked.")
        try:
            await self._link.settle(delivery.number, _outcome(settlement))
        except AmqpError as error:
            # The broker found the entity when the link was opened, so NOT_FOUND says that the lock is lost.
            if error.condition == Condition.NOT_FOUND:
                error = AmqpError(Condition.MESSAGE_LOCK_LOST, error.description)
            raise self._trust.translate(error) from error
        self._trust.on_settled()

    async def close(self) -> None:
        self._delivery = None
        self._link.detach()

    def _trust_end(self, asked_at: float, until: datetime | None) -> float:
        return asked_at + trusted_seconds(until, now=datetime.now(UTC), lock_seconds=self._lock_seconds)


def _outcome(settlement: Settlement) -> Described:
    match settlement:
        case Complete():
            return ACCEPTED
        case Retry():
            return ABANDONED
        case DeadLetter(reason=reason, description=description):
            return dead_lettered(sendable(reason), sendable(description))
        case Defer():
            return DEFERRED
