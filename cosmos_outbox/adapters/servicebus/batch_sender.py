"""
A lane: an ordered stream of messages to a topic. It fills batches up to the size that the topic allows, sends one batch at a time, and
replaces its sender whenever the outcome of a send is unknown. `relay/sending_lanes.py` decides which lane sends which events.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.aio import ServiceBusSender
from azure.servicebus.exceptions import MessageSizeExceededError, ServiceBusError

from cosmos_outbox.adapters.servicebus import encoding
from cosmos_outbox.adapters.servicebus.errors import leaves_link_usable, publish_error, says_link_was_cut
from cosmos_outbox.errors import BrokerUnavailable, MessageRejected, PublishError
from cosmos_outbox.event_loop import retrieve, within
from cosmos_outbox.message_format import OutboundMessage, require_properties_that_fit

_Payload = ServiceBusMessageBatch | ServiceBusMessage
# The SDK writes the ids of the first message twice into a batch, and counts them once. So a batch is filled
# to this many bytes less than its maximum.
_UNCOUNTED_BYTES = 1024


class Lane:
    """
    An ordered stream of batches to one topic.

    Args:
        topic: the name of the topic, for error texts.
        open_sender: a function that returns a sender whose AMQP link is not open yet.
        discard: a function that closes a sender in the background. If it is given an unfinished send, it waits for that
            send first.
        sdk_only: whether the SDK encodes all messages.
        timeout_seconds: how long the opening of a link, and each send, may take.
        grace_seconds: how long a cancelled call waits for the outcome of its send.
    """

    def __init__(
        self,
        *,
        topic: str,
        open_sender: Callable[[], ServiceBusSender],
        discard: Callable[[ServiceBusSender, asyncio.Task[None] | None], None],
        sdk_only: bool,
        timeout_seconds: float,
        grace_seconds: float,
    ) -> None:
        self._sdk_only = sdk_only
        self._topic, self._open_sender, self._discard = topic, open_sender, discard
        self._timeout, self._grace = timeout_seconds, grace_seconds
        # Only one task at a time may use the sender of the SDK. With two tasks, the SDK resends the messages
        # of the other task, and waits without end.
        self._lock = asyncio.Lock()
        self._sender: ServiceBusSender | None = None
        self._proven = False  # whether a batch was sent over the current link
        # The size of the largest batch that the broker accepts. It is None until a link has been opened.
        self.batch_bytes: int | None = None

    async def publish(self, runs: Sequence[Sequence[OutboundMessage]]) -> None:
        """Send groups of messages in order. Messages of the same group may share a batch, those of two groups never."""
        accepted = 0
        async with self._lock:
            try:
                for run in runs:
                    position = 0
                    while position < len(run):
                        payload, count = await self._fill(run, position)
                        await self._deliver(payload)
                        position += count
                        accepted += count
            except PublishError as error:
                error.accepted = accepted
                raise

    async def close(self) -> None:
        """Wait for the `publish` that is in progress, then close the sender."""
        async with self._lock:
            self._drop()

    async def _fill(self, run: Sequence[OutboundMessage], position: int) -> tuple[_Payload, int]:
        """Fill a batch with the messages of `run` from `position` on. Return the batch and how many fit into it."""
        batch = await self._new_batch()
        self.batch_bytes = batch.max_size_in_bytes
        own = not self._sdk_only and encoding.fallback_cause() is None
        for count, message in enumerate(run[position:]):
            try:
                if not (own and count and encoding.append(batch, message)):
                    require_properties_that_fit(message)
                    outgoing = encoding.sdk_message(message)
                    batch.add_message(outgoing)
            except MessageSizeExceededError:
                # In the Premium tier a single message may be larger than a batch, so send it alone. The
                # broker decides whether it is too large.
                return (batch, count) if count else (outgoing, 1)
            except (TypeError, ValueError) as error:
                if count:
                    return batch, count
                raise MessageRejected(f"This message cannot be written: {error}") from error
        return batch, len(run) - position

    async def _new_batch(self) -> ServiceBusMessageBatch:
        sender = self._usable_sender()
        try:
            opening = sender.create_message_batch()  # opens the link if it is not open yet
            opened = await (opening if self._proven else within(self._timeout, opening))
            most = opened.max_size_in_bytes
            return await sender.create_message_batch(max_size_in_bytes=most - _UNCOUNTED_BYTES)
        except BaseException as error:
            self._drop()
            if isinstance(error, TimeoutError):
                raise BrokerUnavailable(
                    f"The link to topic {self._topic!r} did not open in {self._timeout:g} s."
                ) from error
            if isinstance(error, ServiceBusError):
                raise publish_error(error, topic=self._topic) from error
            raise

    async def _deliver(self, payload: _Payload) -> None:
        try:
            await self._send(payload)
        except BrokerUnavailable as error:
            # Service Bus cuts links that were idle for minutes, and only the next send shows it. If this link
            # has sent a batch before, it was probably cut for that reason. So send the same batch once more,
            # on a new link. The order is kept, because nothing was sent after that batch.
            if not (self._proven and says_link_was_cut(error.__cause__)):
                raise
            await self._new_batch()
            await self._send(payload)

    async def _send(self, payload: _Payload) -> None:
        sender = self._usable_sender()
        # The send runs in a task of its own, so that a cancelled call can wait for its end. A send that is
        # cancelled half-way stays on the link, and the broker gets it together with the next send.
        sending = asyncio.create_task(sender.send_messages(payload, timeout=self._timeout))
        try:
            await asyncio.wait((sending,), timeout=self._timeout + self._grace)
        except asyncio.CancelledError:
            await asyncio.wait((sending,), timeout=self._grace)
            raise
        finally:
            failure = self._failure(sending)
        if isinstance(failure, ServiceBusError):
            raise publish_error(failure, topic=self._topic) from failure
        if failure is not None:
            raise failure
        self._proven = True

    def _failure(self, sending: asyncio.Task[None]) -> BaseException | None:
        """
        Return the error of a failed send, or None. Drop the sender unless the outcome of the send is known and the link
        is open.
        """
        if not sending.done():
            sending.cancel()
            sending.add_done_callback(retrieve)
            self._drop(sending)
            return BrokerUnavailable(
                f"Topic {self._topic!r} neither confirmed nor refused the messages within {self._timeout:g} s."
            )
        failure = sending.exception()
        if failure is not None and not leaves_link_usable(failure):
            self._drop()
        return failure

    def _usable_sender(self) -> ServiceBusSender:
        if self._sender is None:
            self._sender, self._proven = self._open_sender(), False
        return self._sender

    def _drop(self, sending: asyncio.Task[None] | None = None) -> None:
        if self._sender is not None:
            self._discard(self._sender, sending)
            self._sender = None
