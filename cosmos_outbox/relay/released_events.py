"""
Released events: when a parked key is released, send its events as the messages that the relay would have sent. `parking/release.py` gives
them in the order of the key's queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from cosmos_outbox.errors import MessageRejected, NotFound, PublishError, UsageError
from cosmos_outbox.message_format import OutboundMessage, message_of
from cosmos_outbox.parking.parked_documents import ParkedEvent
from cosmos_outbox.parking.release import Send, SendResult
from cosmos_outbox.partition_key import ON_PARTITION_KEY
from cosmos_outbox.ports import Document, Publisher, Store
from cosmos_outbox.relay.topics_and_refusals import Topics
from cosmos_outbox.retries import Backoff, RetryOptions, retry_reads
from cosmos_outbox.stored_documents import claimed_payload, stored_event

_ATTEMPTS = 5
_LANE = 0


def resending(
    publisher: Publisher,
    *,
    events: Store | None = None,
    retry: RetryOptions | None = None,
    backoff: Backoff | None = None,
) -> Send:
    """
    Return a function for `ParkedKeys(send=...)`, which sends the events of a released key to the topic.

    Args:
        publisher: the topic, or `Topics`, whose limit of messages a second also applies to a release.
        events: the container of the events. It is required for an event that was parked without its payload, and for a container that is
            partitioned on another path than /partitionKey.
        retry: for how long a failed read of an event from its container is repeated. Defaults to 10 s.
        backoff: the wait between attempts to send. Defaults to a random part of 100 ms, which doubles up to 30 s.
    """
    paths = ON_PARTITION_KEY if events is None else events.key_paths

    async def send(held: Sequence[ParkedEvent], ensure_claimed: Callable[[], Awaitable[None]]) -> SendResult:
        messages: list[OutboundMessage] = []
        missing: MessageRejected | None = None
        for parked in held:
            try:
                document = await _whole(parked, events, retry or RetryOptions())
            except MessageRejected as error:
                missing = error
                break
            event = stored_event(document, paths)
            if event is None:
                raise UsageError(
                    f"Event {parked.event_id!r} in the parked store does not fit a container partitioned on {paths}: pass its "
                    "own container to `resending`. If its document is damaged, drop it."
                )
            messages.append(message_of(event))
        sent = await _send_in_order(publisher, messages, backoff or Backoff(), ensure_claimed)
        return sent if sent.refusal else replace(sent, refusal=missing)

    return send


async def _whole(parked: ParkedEvent, events: Store | None, retry: RetryOptions) -> Document:
    """
    Return the whole document of an event of a parked key. If the parked store lacks its payload, read the document in its own container.

    Raises:
        MessageRejected: the payload no longer exists. The error says what the operator can do.
    """
    if events is None:
        if parked.referenced:
            raise UsageError(
                f"The parked store lacks the large payload of event {parked.event_id!r}: pass the event's container to `resending`."
            )
        return parked.event
    try:
        if not parked.referenced:
            await claimed_payload(
                parked.data, lambda *address: retry_reads(lambda: events.read(*address), retry)
            )
            return parked.event
        partition_key = events.key_paths.key_of(parked.event)
        if partition_key is None:
            raise UsageError(
                f"Event {parked.event_id!r} in the parked store does not say its partition key; drop it."
            )
        document = await retry_reads(lambda: events.read(parked.event_id, partition_key), retry)
    except NotFound:
        raise MessageRejected(
            f"The payload of event {parked.event_id!r} is lost: it was too large for a copy in the parked store, and its "
            "container has deleted it since. Drop the event, or release it with a payload of your own."
        ) from None
    return {**document, "_lsn": parked.event.get("_lsn", 0)}


async def _send_in_order(
    publisher: Publisher,
    messages: Sequence[OutboundMessage],
    backoff: Backoff,
    ensure_claimed: Callable[[], Awaitable[None]],
) -> SendResult:
    """
    Send messages in order. If the broker rejects them or fails several times, send them one at a time to find the refused message.

    `ensure_claimed` checks that no later release or drop of the key began. It is awaited before each send but the first, and before the
    first send too if the limit of messages a second made it wait.

    Raises:
        PublishError: the topic did not answer, several times.
        ReleaseTakenOver: a later release or drop of the key began.
    """
    turns = publisher if isinstance(publisher, Topics) and publisher.at_once else None
    sent, attempt, size, first = 0, 0, (turns and turns.at_once) or len(messages), turns is None
    while sent < len(messages):
        chunk = messages[sent : sent + size]
        if turns is not None:
            await turns.turn(chunk)
        if not first:
            await ensure_claimed()
        first = False
        try:
            await publisher.publish(_LANE, chunk)
        except PublishError as error:
            sent += error.accepted
            attempt = 1 if error.accepted else attempt + 1
            rejection = error if isinstance(error, MessageRejected) else None
            if rejection is None and error.retriable and attempt < _ATTEMPTS:
                await asyncio.sleep(backoff.delay(attempt, at_least=error.retry_after))
                continue
            if rejection is None and error.condition is None:
                raise
            if len(chunk) == 1:
                said = f"The broker failed {attempt} times with {error.condition} on this message: {error}"
                return SendResult(events=sent, refusal=rejection or MessageRejected(said))
            size, attempt = 1, 0  # send single messages, to find the message that is refused
        else:
            sent, attempt = sent + len(chunk), 0
    return SendResult(events=sent)
