"""
One lane of a topic: a sender that one call at a time uses, and that is replaced whenever the outcome of a send is
unknown.
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
# When the SDK counts the bytes of a batch, it leaves out the ids of the first message, which it writes into
# the envelope too. So a batch is filled to this much less than its maximum.
_UNCOUNTED_BYTES = 1024


class Lane:
    """
    An ordered stream of batches to one topic.

    Args:
        topic: the name of the topic, which errors mention.
        open_sender: returns a sender whose link is not open yet.
        discard: closes a sender in the background, after its last send (if one is given) has ended.
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
        # Only one task at a time uses the sender: two tasks would resend each other's deliveries, and then
        # wait without end.
        self._lock = asyncio.Lock()
        self._sender: ServiceBusSender | None = None
        self._proven = False  # this link has sent a batch
        # The size of the largest batch that the link takes. It is known once a link was open.
        self.batch_bytes: int | None = None

    async def publish(self, runs: Sequence[Sequence[OutboundMessage]]) -> None:
        """Send the messages of all runs in order. Messages of two runs never share a batch."""
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
        """Wait for the call that is in progress, then close the sender."""
        async with self._lock:
            self._drop()

    async def _fill(self, run: Sequence[OutboundMessage], position: int) -> tuple[_Payload, int]:
        """Put as many messages of a run into one batch as fit. Return the batch and the number of its messages."""
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
            opening = sender.create_message_batch()  # a link that has sent something is open already
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
            # The service cuts links that were idle for minutes, and only the next send shows it. Nothing else
            # was sent on this link since its last success, so the same batch is sent once more, on a new
            # link.
            if not (self._proven and says_link_was_cut(error.__cause__)):
                raise
            await self._new_batch()
            await self._send(payload)

    async def _send(self, payload: _Payload) -> None:
        sender = self._usable_sender()
        # The send runs in a task of its own, so that a cancelled call can wait for it: a send that is
        # cancelled half-way stays on the link, and goes out with the next one.
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
