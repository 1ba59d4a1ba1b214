"""
ServiceBusSubscription: the Subscription port on a topic's subscription or a queue, with one connection for each session
that it has locked. `sessions/processor.py` decides how many sessions to ask the broker for.
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
_ANSWER_SECONDS = 30.0  # the limit for an answer: after 60 s the SDK would ask again over another link
_SLICE_SECONDS = 1.0
_AT_HAND_SECONDS = 1e-6  # seconds to wait for messages that the SDK has read from the network already
_FOR_EACH = 8  # how many receivers are opened for each session that is handled at the same time


def receivers_for(sessions: int) -> int:
    """
    Return how many receivers are needed to handle a number of sessions at once. That is more receivers than sessions,
    because a receiver takes half a second to open, and up to a second to close.
    """
    # For fewer than eight sessions, add only one receiver, because Microsoft's emulator takes ten connections
    # in all.
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
        prefetch: how many messages the broker delivers ahead for each session. The lock of the session covers them, and
            their delivery count does not grow if the session is given back unread. Without sessions it is 0, because
            each message has a lock of its own, which could end while the message waits. Defaults to 20.
        receivers: how many receivers there are at most, each with a connection, including those that are opening or
            closing. Defaults to 256, which is enough for 32 sessions at once; see `receivers_for`.
        lock_duration: the lock duration of the subscription, or less. The consumer relies on no lock for longer than this.
            Defaults to 60 s, as in Service Bus.
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
        # Open the link in a task of its own. If that task is cancelled, it closes the link first, which takes
        # a second. Thanks to `shield`, a cancelled call ends at once, and `self.close` ends the task later.
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
    """What one receiver of the SDK has locked: a session or, without sessions, one message at a time."""

    def __init__(self, subscription: ServiceBusSubscription, receiver: ServiceBusReceiver) -> None:
        self._subscription, self._receiver = subscription, receiver
        self._loop = asyncio.get_running_loop()
        self._session = receiver.session
        self.id: str | None = self._session.session_id if self._session else None
        self._message: ServiceBusReceivedMessage | None = None  # returned by `receive`, not settled yet
        self._ahead: list[ServiceBusReceivedMessage] = []  # delivered by the broker, but not yet returned
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
        """Wait for a message, and keep it for the next `receive`. Return whether a message came."""
        # Ask again every second. A lock counts as held for some time from the request on. So if a message came
        # late in a long request, its lock would seem to have ended already.
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
        # Without a prefetch, ask for one message at a time. If an earlier call asked for more, the next
        # message may arrive between two calls, and the SDK gives it back to the broker. By then the broker
        # has sent the message after it, so the messages of the session would be out of order.
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
        # Without sessions, a message stays locked after its link is closed. So give the message back first,
        # or other receivers would have to wait until its lock ends.
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
            raise_if_cancelled(since=before)  # on Python 3.11 the SDK may swallow a cancellation


def message_from(received: ServiceBusReceivedMessage) -> Message:
    """
    Return a message of the SDK as a `Message` of this library. Texts become `str`, even if they came as bytes.
    """
    body = received.body  # an iterator, or a single AMQP value if the sender used another language's SDK
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

    A span `process` continues the trace of the commit that recorded the event. Commits inside the block get the
    correlation id of the message, and the message's id as their causation id.

    Args:
        message: the message as it was received.
        topic: the topic to which it was sent.
        subscription: the subscription from which it was received.
        server_address: the host of the namespace. Defaults to none.
        tracer_provider: gets the span. Defaults to OpenTelemetry's global provider.
        meter_provider: gets the duration of the block. Defaults to OpenTelemetry's global provider.
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
