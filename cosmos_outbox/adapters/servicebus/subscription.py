"""
ServiceBusSubscription: the Subscription port on a topic's subscription or a queue, one connection for each session held.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from math import inf
from types import TracebackType
from typing import Any, Self

from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver
from azure.servicebus.exceptions import (
    MessageAlreadySettled,
    MessageLockLostError,
    OperationTimeoutError,
    ServiceBusError,
    SessionLockLostError,
)

from cosmos_outbox.adapters.servicebus.errors import receive_error
from cosmos_outbox.errors import ConfigurationError, LockLost
from cosmos_outbox.messages import Message
from cosmos_outbox.ports import DeadLetter, Defer, Retry, Settlement

_logger = logging.getLogger(__name__)

_CLOSE_SECONDS = 5.0  # the SDK takes up to a second to close a link, and never ends on a broken one
_SETTLE_SECONDS = 30.0  # without an answer the SDK asks again over another link, after 60 s
# The shortest lock that Service Bus grants: believed where this host's clock says that less is left.
_SHORTEST_LOCK_SECONDS = 5.0


class ServiceBusSubscription:
    """
    Receives from one subscription or queue, with sessions or without.

        async with open_service_bus_client(connection_string=...) as client:
            async with ServiceBusSubscription(client, "events", "billing") as subscription:
                await SessionProcessor(subscription, handler).run()

    Args:
        client: made by `open_service_bus_client`; stays open.
        entity: the topic, or the queue if there is no subscription.
        subscription: its name.
        sessions: whether it requires sessions. Defaults to True.
        prefetch: messages that the broker delivers ahead, for each session. Defaults to none: a handler that is slow never
            lets messages wait in this process.
        lock_duration: of the subscription, or less: a lock is trusted for no longer. Defaults to 60 s, as Service Bus does.
    """

    def __init__(
        self,
        client: ServiceBusClient,
        entity: str,
        subscription: str | None = None,
        *,
        sessions: bool = True,
        prefetch: int = 0,
        lock_duration: timedelta = timedelta(seconds=60),
    ) -> None:
        if lock_duration.total_seconds() < _SHORTEST_LOCK_SECONDS:
            raise ConfigurationError(f"lock_duration must be at least 5 s, not {lock_duration}.")
        self._client, self._entity, self._subscription = client, entity, subscription
        self._sessions, self._prefetch = sessions, prefetch
        self.lock_seconds = lock_duration.total_seconds()
        self.name = entity if subscription is None else f"{entity}/{subscription}"
        self._closing: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._closing:
            await asyncio.wait(self._closing)

    async def accept(self, wait_seconds: float) -> ServiceBusSession | None:
        receiver = self._receiver(wait_seconds)
        try:
            await receiver.__aenter__()
            session = ServiceBusSession(self, receiver)
            if not self._sessions and not await session.fetch(wait_seconds):
                self.discard(receiver)
                return None
        except OperationTimeoutError:  # no session has a message
            self.discard(receiver)
            return None
        except ServiceBusError as error:
            self.discard(receiver)
            raise receive_error(error, entity=self.name) from error
        except BaseException:
            self.discard(receiver)
            raise
        return session

    def discard(self, receiver: ServiceBusReceiver) -> None:
        """
        Close a receiver in the background: the broker gives its session to another one at once, the SDK takes a second longer.
        """
        closing = asyncio.create_task(_close(receiver))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    def _receiver(self, wait_seconds: float) -> ServiceBusReceiver:
        options: dict[str, Any] = {"prefetch_count": self._prefetch}
        if self._sessions:
            options |= {"session_id": NEXT_AVAILABLE_SESSION, "max_wait_time": wait_seconds}
        if self._subscription is None:
            return self._client.get_queue_receiver(self._entity, **options)
        return self._client.get_subscription_receiver(self._entity, self._subscription, **options)


class ServiceBusSession:
    """
    The Session port on one receiver of the SDK.
    """

    def __init__(self, subscription: ServiceBusSubscription, receiver: ServiceBusReceiver) -> None:
        self._subscription, self._receiver = subscription, receiver
        self._loop = asyncio.get_running_loop()
        self._session = receiver.session
        self.id: str | None = self._session.session_id if self._session else None
        self._message: ServiceBusReceivedMessage | None = None  # delivered, and not settled
        self._unread = False  # it was delivered when the session was accepted
        self.trusted_until = inf
        if self._session:
            self._locked(self._loop.time(), self._session.locked_until_utc)

    async def receive(self, wait_seconds: float) -> Message | None:
        if not self._unread and not await self.fetch(wait_seconds):
            return None
        self._unread = False
        return None if self._message is None else message_from(self._message)

    async def fetch(self, wait_seconds: float) -> bool:
        """
        Have one message delivered, to be read by `receive`.
        """
        # One at a time: on credit that an earlier call left over the SDK hands back what arrives between two calls. The broker
        # has then sent the next message already, and the session comes out of order.
        asked_at = self._loop.time()
        received = await self._translated(
            lambda: self._receiver.receive_messages(1, max_wait_time=wait_seconds)
        )
        if received:
            self._message, self._unread = received[0], True
            if self._session is None:
                self._locked(asked_at, self._message.locked_until_utc)
        return bool(received)

    async def renew(self) -> None:
        asked_at, message = self._loop.time(), self._message
        if self._session is not None:
            self._locked(asked_at, await self._translated(self._session.renew_lock))
        elif message is not None:
            self._locked(asked_at, await self._translated(lambda: self._receiver.renew_message_lock(message)))

    async def settle(self, message: Message, settlement: Settlement) -> None:
        received, self._message = self._message, None
        if received is None:
            raise LockLost("The message is not locked.")
        if self._session is None:
            self.trusted_until = inf
        receiver = self._receiver

        async def settling() -> None:
            async with asyncio.timeout(_SETTLE_SECONDS):
                match settlement:
                    case Retry():
                        await receiver.abandon_message(received)
                    case DeadLetter(reason=reason, description=text):
                        await receiver.dead_letter_message(
                            received, reason=reason, error_description=text[:4000]
                        )
                    case Defer():
                        await receiver.defer_message(received)
                    case _:
                        await receiver.complete_message(received)

        await self._translated(settling)

    async def close(self) -> None:
        self._subscription.discard(self._receiver)

    def _locked(self, asked_at: float, until: datetime | None) -> None:
        # The broker's time against this host's clock: a clock that is ahead makes the lock seem shorter, which costs renewals;
        # one that is behind makes it seem longer, so it is not trusted for longer than the subscription locks.
        seconds = self._subscription.lock_seconds
        if until is not None:
            left = (until.replace(tzinfo=until.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
            seconds = min(seconds, max(left, _SHORTEST_LOCK_SECONDS))
        self.trusted_until = asked_at + seconds

    async def _translated(self, call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        try:
            return await call()
        except (SessionLockLostError, MessageLockLostError, MessageAlreadySettled) as error:
            raise LockLost(f"{self._subscription.name}: {error}") from error
        except (ServiceBusError, TimeoutError) as error:
            raise receive_error(error, entity=self._subscription.name) from error
        except ValueError as error:  # the SDK's answer for a receiver that it closed after a fault
            raise LockLost(f"{self._subscription.name}: {error}") from error


def message_from(received: ServiceBusReceivedMessage) -> Message:
    """
    Return a message of the SDK without its types: text is text, whichever way it came.
    """
    return Message(
        message_id=_text(received.message_id) or "",
        session_id=_text(received.session_id),
        subject=_text(received.subject) or "",
        body=_body(received),
        content_type=_text(received.content_type),
        correlation_id=_text(received.correlation_id),
        properties=properties_of(received),
        sequence_number=received.sequence_number or 0,
        delivery_count=received.delivery_count or 0,
        enqueued_at=received.enqueued_time_utc,
    )


def properties_of(received: ServiceBusReceivedMessage) -> dict[str, Any]:
    """
    Return the application properties of a message of the SDK, with their names and texts as text.
    """
    return {_text(name): _text(value) for name, value in (received.application_properties or {}).items()}


def _body(received: ServiceBusReceivedMessage) -> bytes:
    body = received.body
    if isinstance(body, bytes):
        return body
    try:
        return b"".join(body)
    except TypeError:  # an AMQP value or sequence, of a sender in another language
        return str(received).encode()


def _text(value: Any) -> Any:
    # The SDK hands keys and strings of AMQP over as bytes.
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


async def _close(receiver: ServiceBusReceiver) -> None:
    with suppress(Exception):  # a broken link closes with any error, and no caller waits for it
        async with asyncio.timeout(_CLOSE_SECONDS):
            await receiver.close()
