"""
AmqpSession: the Session port on one link.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from datetime import UTC, datetime
from math import inf
from uuid import UUID

from cosmos_outbox.adapters.servicebus.receiving import sendable, trusted_seconds
from cosmos_outbox.errors import LockLost
from cosmos_outbox.messages import Message
from cosmos_outbox.ports import Complete, DeadLetter, Defer, Retry, Settlement
from cosmos_outbox_amqp.encoding import string, uuids
from cosmos_outbox_amqp.errors import AmqpError, ProtocolError, receive_error
from cosmos_outbox_amqp.link import (
    ABANDONED,
    ACCEPTED,
    DEFERRED,
    RELEASED,
    Attached,
    Delivery,
    Link,
    dead_lettered,
)
from cosmos_outbox_amqp.message import LOCKED_UNTIL, Sections, message_of, moment
from cosmos_outbox_amqp.signed_in import SignedIn

_SLICE_SECONDS = 1.0
_TICKS_AT_EPOCH, _TICKS_IN_MILLISECOND = 621_355_968_000_000_000, 10_000

_logger = logging.getLogger("consumer")


class AmqpSession:
    """
    A session, or a receiver of one message at a time on an entity without sessions.
    """

    def __init__(
        self, signed_in: SignedIn, link: Link, attached: Attached, *, entity: str, lock_seconds: float
    ) -> None:
        self._signed_in, self._link, self._entity = signed_in, link, entity
        self._lock_seconds = lock_seconds
        self._loop = asyncio.get_running_loop()
        self.id = attached.session_id
        self._delivery: Delivery | None = None  # received, and not settled
        self._unread: Message | None = None  # it was received when the link was accepted
        self.trusted_until = inf
        if self.id is not None:
            ticks = attached.locked_until
            until = None if ticks is None else (ticks - _TICKS_AT_EPOCH) / _TICKS_IN_MILLISECOND
            self._locked(self._loop.time(), moment(until))

    async def receive(self, wait_seconds: float) -> Message | None:
        if self._unread is not None:
            message, self._unread = self._unread, None
            return message
        try:
            return await self._received(wait_seconds)
        except AmqpError as error:
            raise receive_error(error, entity=self._entity) from error

    async def fetched_first(self, wait_seconds: float) -> bool:
        """
        Have a message delivered, to be read by `receive`, and return whether one came.
        """
        # Trust in a lock begins with the request: ask often, or the lock of a late message seems to have ended.
        ends_at = self._loop.time() + wait_seconds
        while self._unread is None and (left := ends_at - self._loop.time()) > 0:
            self._unread = await self._received(min(left, _SLICE_SECONDS))
        return self._unread is not None

    async def _received(self, wait_seconds: float) -> Message | None:
        asked_at = self._loop.time()
        while (delivery := await self._link.receive(wait_seconds)) is not None:
            self._delivery = delivery
            try:
                sections = Sections(delivery.payload)
            except ProtocolError as error:  # no receiver can read it, and it would be delivered for ever
                _logger.warning(
                    "servicebus.unreadable dead-lettered a message that cannot be decoded: %s", error
                )
                self._delivery = None  # settled twice it would get no answer
                await self._link.settle(delivery.number, dead_lettered("unreadable", str(error)))
                continue
            if self.id is None:
                self._locked(asked_at, moment(sections.annotations.get(LOCKED_UNTIL)))
            return message_of(sections)
        return None

    async def renew(self) -> None:
        asked_at, delivery = self._loop.time(), self._delivery
        if self.id is None and delivery is None:
            return
        try:
            if self._link.error is not None:
                raise self._link.error
            if self.id is not None:
                body = {"session-id": string(self.id)}
                answer = await self._signed_in.manage("renew-session-lock", self._link.name, body)
                until = answer.get("expiration")
            else:
                body = {"lock-tokens": uuids([UUID(bytes_le=delivery.tag)])} if delivery else {}
                answer = await self._signed_in.manage("renew-lock", self._link.name, body)
                expirations = answer.get("expirations")
                until = expirations[0] if isinstance(expirations, list) and expirations else None
        except AmqpError as error:
            raise receive_error(error, entity=self._entity) from error
        except ValueError as error:  # a tag that is no lock token
            raise LockLost(f"{self._entity}: {error}") from error
        self._locked(asked_at, moment(until))

    async def settle(self, message: Message, settlement: Settlement) -> None:
        delivery, self._delivery = self._delivery, None
        if delivery is None:
            raise LockLost("The message is not locked.")
        if self.id is None:
            self.trusted_until = inf
        try:
            await self._link.settle(delivery.number, _outcome(settlement))
        except AmqpError as error:
            raise receive_error(error, entity=self._entity) from error

    async def close(self) -> None:
        delivery, self._delivery = self._delivery, None
        if self.id is None:
            # The lock of a message outlives the link, unless the message is given back.
            await give_back(self._link, delivery)
        self._link.detach()

    def _locked(self, asked_at: float, until: datetime | None) -> None:
        seconds = trusted_seconds(until, now=datetime.now(UTC), lock_seconds=self._lock_seconds)
        self.trusted_until = asked_at + seconds


async def give_back(link: Link, unsettled: Delivery | None = None) -> None:
    """
    Return what a link without a session delivered, and detach it: an unread message is released, as by the SDK.
    """
    with suppress(AmqpError):
        await link.drain()
        if unsettled is not None:
            await link.settle(unsettled.number, ABANDONED)
        for delivery in link.left():
            await link.settle(delivery.number, RELEASED)
    link.detach()


def _outcome(settlement: Settlement) -> bytes:
    match settlement:
        case Complete():
            return ACCEPTED
        case Retry():
            return ABANDONED
        case DeadLetter(reason=reason, description=description):
            return dead_lettered(sendable(reason), sendable(description))
        case Defer():
            return DEFERRED
