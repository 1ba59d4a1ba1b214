"""
Publish a worker's messages to an event hub, by an implementation of the port `Publisher`.

An event hub keeps the order of the events that have the same partition key. So each batch holds the messages of one session, and has
the session id as its partition key. An event hub does not drop duplicates. Its readers have to recognize them by the message id.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Self, TypeVar

from azure.eventhub import EventData, EventDataBatch
from azure.eventhub.aio import EventHubProducerClient
from azure.eventhub.exceptions import EventHubError

from cosmos_outbox.errors import BrokerUnavailable, MessageRejected, PublishError
from cosmos_outbox.message_format import OutboundMessage
from examples.eventhubs.errors import publish_error

ResultT = TypeVar("ResultT")


class EventHubPublisher:
    """
    A publisher to one event hub. Each lane (a sender with its own connection) opens its client when it first sends, and opens a new
    client after a failure.

        def client() -> EventHubProducerClient:
            return EventHubProducerClient(host, "events", credential, retry_total=0)

        async with EventHubPublisher(client) as publisher:
            ...

    Args:
        open_client: returns a new client that does not retry (`retry_total=0`).
        lanes: how many ordered streams there are, each with a connection of its own. Defaults to 4.
        send_timeout: how long it may take to open a link, and to send a batch. Defaults to 15 s.
        cancel_grace: how long a cancelled call waits for the outcome of its send. Defaults to 2 s.
    """

    system = "eventhubs"  # OpenTelemetry's name of Event Hubs

    def __init__(
        self,
        open_client: Callable[[], EventHubProducerClient],
        *,
        lanes: int = 4,
        send_timeout: timedelta = timedelta(seconds=15),
        cancel_grace: timedelta = timedelta(seconds=2),
    ) -> None:
        self._lanes = tuple(
            _Lane(open_client, send_timeout.total_seconds(), cancel_grace.total_seconds())
            for _ in range(lanes)
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await asyncio.gather(*(lane.close() for lane in self._lanes))

    @property
    def lanes(self) -> int:
        return len(self._lanes)

    async def publish(self, lane: int, messages: Sequence[OutboundMessage]) -> None:
        await self._lanes[lane].publish(messages)

    async def check(self) -> None:
        """
        Check that the event hub can be reached: open a link to it, if none is open, without sending a message.

        Raises:
            PublishError: the event hub refuses the link, or does not answer.
        """
        await self._lanes[0].check()


class _Lane:
    """One sender: a client of the SDK and its connection. One call at a time may use it, so that its batches stay in order."""

    def __init__(
        self, open_client: Callable[[], EventHubProducerClient], timeout: float, grace: float
    ) -> None:
        self._open_client, self._timeout, self._grace = open_client, timeout, grace
        self._lock = asyncio.Lock()
        self._client: EventHubProducerClient | None = None

    async def publish(self, messages: Sequence[OutboundMessage]) -> None:
        accepted = 0
        async with self._lock:
            try:
                for session, run in itertools.groupby(messages, lambda message: message.session_id):
                    waiting = list(run)
                    while waiting:
                        batch = await self._call(self._opened().create_batch(partition_key=session))
                        count = _fill(batch, waiting)
                        await self._call(self._opened().send_batch(batch, timeout=self._timeout))
                        accepted, waiting = accepted + count, waiting[count:]
            except PublishError as error:
                error.accepted = accepted
                raise

    async def check(self) -> None:
        async with self._lock:
            # `create_batch` asks the event hub how large a batch may be, which opens the link.
            await self._call(self._opened().create_batch())

    async def close(self) -> None:
        async with self._lock:
            await self._drop()

    def _opened(self) -> EventHubProducerClient:
        if self._client is None:
            self._client = self._open_client()
        return self._client

    async def _call(self, request: Coroutine[Any, Any, ResultT]) -> ResultT:
        """Await a request of the SDK and return its answer. If the request fails or is not answered in time, close the client."""
        # The request runs in a task of its own, so that a cancellation of this call does not interrupt it. The SDK would keep an
        # interrupted send on the link, and send it together with the next one.
        task = asyncio.create_task(request)
        try:
            await asyncio.wait({task}, timeout=self._timeout + self._grace)
        except asyncio.CancelledError:
            await asyncio.wait({task}, timeout=self._grace)
            if not task.done() or task.exception():
                await self._drop(task)
            raise
        if task.done() and (error := task.exception()) is None:
            return task.result()
        await self._drop(task)
        if not task.done() or task.cancelled():
            raise BrokerUnavailable(f"Event Hubs did not answer in {self._timeout:g} s.")
        if isinstance(error, EventHubError):
            raise publish_error(error) from error
        raise BrokerUnavailable(f"The event hub cannot be reached for now: {error!r}") from error

    async def _drop(self, task: asyncio.Task[Any] | None = None) -> None:
        client, self._client = self._client, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task}, timeout=self._grace)
        if client is not None:
            with suppress(Exception):  # to close a broken link may raise any error
                async with asyncio.timeout(self._grace):
                    await client.close()


def _fill(batch: EventDataBatch, messages: Sequence[OutboundMessage]) -> int:
    """Add messages to the batch until it is full. Return how many were added."""
    for count, message in enumerate(messages):
        try:
            batch.add(_outgoing(message))
        except (TypeError, ValueError) as error:
            if count:
                return count
            raise MessageRejected(f"An event hub does not take this message: {error}") from error
    return len(messages)


def _outgoing(message: OutboundMessage) -> EventData:
    if message.deliver_at is not None and message.deliver_at > datetime.now(UTC):
        raise ValueError(
            f"an event hub delivers at once, so record the event without deliver_at ({message.deliver_at})"
        )
    event = EventData(message.body)
    event.message_id, event.content_type = message.message_id, message.content_type
    if (named := event.raw_amqp_message.properties) is not None:  # never None: the lines above set it
        named.subject = message.subject
    event.properties.update(message.properties.items())
    return event
