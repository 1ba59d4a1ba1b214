"""
ServiceBusSubscription: the Subscription port on a topic's subscription or a queue, with one connection for each session
that is held.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from math import inf
from typing import Any, Self

from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusReceivedMessage
from azure.servicebus import exceptions as sdk
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver
from opentelemetry import metrics, trace

from cosmos_outbox.adapters.servicebus.errors import receive_error
from cosmos_outbox.adapters.servicebus.publisher import CLOSE_SECONDS
from cosmos_outbox.adapters.servicebus.receiving import body_bytes, check_options, sendable, trusted_seconds
from cosmos_outbox.correlation import process_durations, processing_message, tracer_of
from cosmos_outbox.errors import ConfigurationError, LockLost
from cosmos_outbox.event_loop import Background, cancellations, end, raise_if_cancelled, within
from cosmos_outbox.message_format import Message, amqp_id, amqp_text
from cosmos_outbox.ports import DeadLetter, Defer, Retry, Settlement

_OPEN_SECONDS = 15.0  # the limit for opening a link: the SDK would wait for ever for a silent broker
_ANSWER_SECONDS = 30.0  # without an answer the SDK asks again over another link, after 60 s
_SLICE_SECONDS = 1.0
_AT_HAND_SECONDS = 1e-6  # seconds to wait where the SDK has read the message already
_FOR_EACH = 8  # receivers for each session that is handled at once


def receivers_for(sessions: int) -> int:
    """
    Return how many receivers are needed to handle so many sessions at once. There are more receivers than sessions,
    because a receiver takes half a second to open, and another to close.
    """
    # Microsoft's emulator takes ten connections in all. So for few sessions, only one receiver is opened
    # ahead.
    return _FOR_EACH * sessions if sessions >= _FOR_EACH else sessions + 1


class ServiceBusSubscription:
    """
    Receives from one subscription or queue, with sessions or without.

        async with open_service_bus_client(connection_string=...) as client:
            async with ServiceBusSubscription(client, "events", "billing") as subscription:
                await SessionProcessor(subscription, handler).run()

    Args:
        client: made by `open_service_bus_client`; stays open.
        entity: the topic, or the queue if there is no subscription.
        subscription: the name of the subscription.
        sessions: whether the entity requires sessions. Defaults to True.
        prefetch: how many messages the broker delivers ahead for each session. Their lock is that of the session, and
            giving the session back does not count as a delivery of them. Without sessions it is 0, because each message
            is locked by itself. Defaults to 20.
        receivers: how many receivers there are at most, opening, open or closing, each with a connection. Opening one
            takes half a second, and closing it up to a second. Defaults to 256, which is enough for 32 sessions at
            once, as `receivers_for` says.
        lock_duration: the lock duration of the subscription, or less. A lock is trusted for no longer. Defaults to
            60 s, as in Service Bus.
    """

    def __init__(
        self,
        client: ServiceBusClient,
        entity: str,
        subscription: str | None = None,
        *,
        sessions: bool = True,
        prefetch: int = 20,
        receivers: int = receivers_for(32),
        lock_duration: timedelta = timedelta(seconds=60),
    ) -> None:
        prefetch = prefetch if sessions else 0
        check_options(sessions=sessions, prefetch=prefetch, lock_duration=lock_duration)
        if receivers < 1:
            raise ConfigurationError(f"receivers must be at least 1, not {receivers}.")
        self._client, self._entity, self._subscription = client, entity, subscription
        self._sessions, self.prefetch = sessions, prefetch
        self._receivers = asyncio.Semaphore(receivers)
        self.lock_seconds = lock_duration.total_seconds()
        self.name = entity if subscription is None else f"{entity}/{subscription}"
        self._closing = Background()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._closing.wait()

    async def accept(self, wait_seconds: float) -> ServiceBusSession | None:
        try:
            async with asyncio.timeout(wait_seconds):
                await self._receivers.acquire()
        except TimeoutError:
            return None
        options: dict[str, Any] = {"prefetch_count": self.prefetch}
        if self._sessions:
            options |= {"session_id": NEXT_AVAILABLE_SESSION, "max_wait_time": wait_seconds}
        receiver = receiver_of(self._client, self._entity, self._subscription, **options)
        # The link is opened in a task of its own. If that task is cancelled, it first closes the link, which
        # takes a second. This call does not wait for that.
        opening = asyncio.create_task(receiver.__aenter__())
        opened = session = None
        try:
            async with asyncio.timeout(wait_seconds + _OPEN_SECONDS):
                await asyncio.shield(opening)
            opened = ServiceBusSession(self, receiver)
            if self._sessions or await opened.fetch_first(wait_seconds):
                session = opened
        except sdk.OperationTimeoutError:  # no session has a message
            pass
        except (sdk.ServiceBusError, TimeoutError) as error:
            raise receive_error(error, entity=self.name) from error
        finally:
            if opened is None:
                self.close(receiver, opening)
            elif session is None:
                await opened.close()
        return session

    def close(
        self,
        receiver: ServiceBusReceiver,
        opening: asyncio.Task[Any] | None = None,
        *,
        abandon: ServiceBusReceivedMessage | None = None,
    ) -> None:
        """Close a receiver in the background, so that the broker gives its session to another receiver at once."""

        async def close_receiver() -> None:
            try:
                if opening is not None:
                    await end({opening})
                with suppress(Exception):  # a broken link may raise any error here; no caller waits for it
                    if abandon is not None:
                        await within(CLOSE_SECONDS, receiver.abandon_message(abandon))
                    await within(CLOSE_SECONDS, receiver.close())
            finally:
                self._receivers.release()

        self._closing.add(close_receiver())


def receiver_of(
    client: ServiceBusClient, entity: str, subscription: str | None, **options: Any
) -> ServiceBusReceiver:
    """Return the SDK's receiver of a topic's subscription or, if none is named, of a queue."""
    if subscription is None:
        return client.get_queue_receiver(entity, **options)
    return client.get_subscription_receiver(entity, subscription, **options)


class ServiceBusSession:
    """The Session port on one receiver of the SDK."""

    def __init__(self, subscription: ServiceBusSubscription, receiver: ServiceBusReceiver) -> None:
        self._subscription, self._receiver = subscription, receiver
        self._loop = asyncio.get_running_loop()
        self._session = receiver.session
        self.id: str | None = self._session.session_id if self._session else None
        self._message: ServiceBusReceivedMessage | None = None  # the message that was read and is not settled
        self._ahead: list[ServiceBusReceivedMessage] = []  # messages that were delivered and are not read
        self._closed = False
        self.trusted_until = inf
        if self._session:
            self._note_lock(self._loop.time(), self._session.locked_until_utc)

    async def receive(self, wait_seconds: float) -> Message | None:
        if not self._ahead and not await self._fetch(wait_seconds):
            return None
        self._message = self._ahead.pop(0)
        return message_from(self._message)

    async def fetch_first(self, wait_seconds: float) -> bool:
        """Have the broker deliver a message, which `receive` returns later. Return whether a message came."""
        # Trust in a lock is counted from the request for the message, so send short requests. After one long
        # request, the lock of a message that came late would seem to have ended.
        ends_at = self._loop.time() + wait_seconds
        while (left := ends_at - self._loop.time()) > 0:
            if await self._fetch(min(left, _SLICE_SECONDS)):
                return True
        return False

    async def _fetch(self, wait_seconds: float) -> bool:
        asked_at = self._loop.time()
        await self._answer(self._deliver(wait_seconds), wait_seconds)
        if self._ahead and self._session is None:
            self._note_lock(asked_at, self._ahead[0].locked_until_utc)
        return bool(self._ahead)

    async def _deliver(self, wait_seconds: float) -> None:
        # Read one message at a time: each has to be settled before the next is read. Without a prefetch, a
        # message may arrive between two calls, on credit that an earlier call left over, and the SDK hands it
        # back to the broker. The broker has then sent the message after it already, so the session would come
        # out of order.
        receive, ahead = self._receiver.receive_messages, self._subscription.prefetch
        self._ahead.extend(await receive(1, max_wait_time=wait_seconds))
        if self._ahead and ahead:
            self._ahead.extend(await receive(ahead, max_wait_time=_AT_HAND_SECONDS))

    async def renew(self) -> None:
        asked_at, message = self._loop.time(), next(iter(self._ahead), self._message)
        if self._session is not None:
            self._note_lock(asked_at, await self._answer(self._session.renew_lock()))
        elif message is not None:
            self._note_lock(asked_at, await self._answer(self._receiver.renew_message_lock(message)))

    async def settle(self, message: Message, settlement: Settlement) -> None:
        received, self._message = self._message, None
        if received is None:
            raise LockLost("The message is not locked.")
        if self._session is None:
            self.trusted_until = inf
        match settlement:
            case Retry():
                answer = self._receiver.abandon_message(received)
            case DeadLetter(reason=reason, description=text):
                answer = self._receiver.dead_letter_message(
                    received, reason=sendable(reason), error_description=sendable(text)
                )
            case Defer():
                answer = self._receiver.defer_message(received)
            case _:
                answer = self._receiver.complete_message(received)
        await self._answer(answer)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed, message, self._message = True, next(iter(self._ahead), self._message), None
        # Without sessions, the lock of a message outlives the link. So give the message back before the link
        # is closed.
        self._subscription.close(self._receiver, abandon=None if self._session else message)

    def _note_lock(self, asked_at: float, until: datetime | None) -> None:
        left = trusted_seconds(until, now=datetime.now(UTC), lock_seconds=self._subscription.lock_seconds)
        self.trusted_until = asked_at + left

    async def _answer(self, answer: Awaitable[Any], wait_seconds: float = 0.0) -> Any:
        before = cancellations()
        try:
            async with asyncio.timeout(wait_seconds + _ANSWER_SECONDS):
                return await answer
        except (sdk.SessionLockLostError, sdk.MessageLockLostError, sdk.MessageAlreadySettled) as error:
            raise LockLost(f"{self._subscription.name}: {error}") from error
        except (sdk.ServiceBusError, TimeoutError) as error:
            raise receive_error(error, entity=self._subscription.name) from error
        except ValueError as error:  # the SDK raises this for a receiver that it closed after a fault
            raise LockLost(f"{self._subscription.name}: {error}") from error
        finally:
            raise_if_cancelled(since=before)  # before Python 3.12 the SDK may lose a cancellation


def message_from(received: ServiceBusReceivedMessage) -> Message:
    """
    Return this library's message for a message of the SDK. Its texts are `str`, whether they came as text or as bytes.
    """
    body = received.body  # an iterator, or an AMQP value from a sender in another language
    return Message(
        message_id=amqp_id(received.message_id) or "",
        session_id=amqp_text(received.session_id),
        subject=amqp_text(received.subject) or "",
        body=body_bytes([*body] if isinstance(body, Iterator) else [body]),
        content_type=amqp_text(received.content_type),
        correlation_id=amqp_id(received.correlation_id),
        properties=properties_of(received),
        sequence_number=received.sequence_number or 0,
        delivery_count=received.delivery_count or 0,
        enqueued_at=received.enqueued_time_utc,
    )


def properties_of(received: ServiceBusReceivedMessage) -> dict[str, Any]:
    """Return the application properties of a message of the SDK, with names and texts as `str`."""
    return {
        amqp_text(name): amqp_text(value) for name, value in (received.application_properties or {}).items()
    }


@contextmanager
def processing(
    message: ServiceBusReceivedMessage,
    *,
    topic: str,
    subscription: str,
    server_address: str | None = None,
    tracer_provider: trace.TracerProvider | None = None,
    meter_provider: metrics.MeterProvider | None = None,
) -> Iterator[trace.Span]:
    """
    Handle a message inside this block: `with processing(message, topic="events", subscription="billing"):`.

    A span `process` continues the trace of the commit that recorded the event. Commits inside the block carry the
    correlation id of the conversation and, as their cause, the id of this message.

    Args:
        message: the message as it was received.
        topic: the topic to which it was sent.
        subscription: the subscription from which it was received.
        server_address: the host of the namespace. Defaults to none.
        tracer_provider, meter_provider: receive the span, and how long the block took. Default to OpenTelemetry's
            global ones.
    """
    with processing_message(
        message.message_id or "",
        properties_of(message),
        delivery_count=message.delivery_count or 0,
        topic=topic,
        subscription=subscription,
        tracer=tracer_of(tracer_provider),
        durations=process_durations(meter_provider),
        correlation_id=amqp_id(message.correlation_id),
        enqueued_at=message.enqueued_time_utc,
        server_address=server_address,
    ) as span:
        yield span
