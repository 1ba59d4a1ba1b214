"""Sending: send events again as they were sent, without dropped events, and with edited payloads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from cosmos_outbox.errors import MessageRejected
from cosmos_outbox.parking import ParkedKeys
from cosmos_outbox.parking.documents import EventStatus
from cosmos_outbox.partition_key import ON_PARTITION_KEY, KeyPaths
from cosmos_outbox.ports import ChangeBatch, Document, Publisher
from cosmos_outbox.records import EventRejected, Record, log_hook
from cosmos_outbox.relay import Relay
from cosmos_outbox.relay.plan import event_page
from cosmos_outbox_worker.cli.replay.feed import Found

Send = Callable[[Sequence[Document]], Awaitable[Sequence[EventRejected]]]
_CHUNKS_A_SECOND = 10
_EVERY_REFUSAL = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """
    What a replay did.

    left_out: how many events were not sent because they were dropped, or are held.
    left_to_workers: there are events that the workers have not sent yet.
    """

    sent: int
    left_out: int
    left_to_workers: bool
    refused: tuple[EventRejected, ...]


async def replay(
    pages: AsyncIterator[Found],
    send: Send,
    *,
    parked: ParkedKeys | None,
    per_second: float | None,
    progress: Callable[[int], None],
) -> Replayed:
    """
    Send the events of pages again; go on behind those that are refused.

    Args:
        pages: what to send.
        send: sends events and returns those that are refused.
        parked: knows which events were dropped or sent with another payload.
        per_second: the highest rate; a tenth of it is sent at once. Defaults to None: no limit.
        progress: called with the number of events sent so far.
    """
    loop = asyncio.get_running_loop()
    sent = left_out = 0
    behind = False
    refused: list[EventRejected] = []
    async for page in pages:
        due = page.documents if parked is None else await _as_sent(page, parked)
        left_out += len(page.documents) - len(due)
        behind |= page.cut
        size = max(1, len(due) if per_second is None else int(per_second / _CHUNKS_A_SECOND))
        for start in range(0, len(due), size):
            chunk, began = due[start : start + size], loop.time()
            rejected = await send(chunk)
            refused += rejected
            sent += len(chunk) - len(rejected)
            progress(sent)
            if per_second is not None:
                # From the start of this chunk: time lost in an outage is not made up for at once.
                await asyncio.sleep(max(0.0, began + len(chunk) / per_second - loop.time()))
    return Replayed(sent=sent, left_out=left_out, left_to_workers=behind, refused=tuple(refused))


async def sending_nothing(_: Sequence[Document]) -> Sequence[EventRejected]:
    """Send nothing: a dry run."""
    return ()


def sending_to(publisher: Publisher, paths: KeyPaths = ON_PARTITION_KEY) -> Send:
    """
    Return a function that sends events to a topic: the same messages under the same ids, in order per partition key.

    Args:
        publisher: the topic, or `Topics`.
        paths: where the events keep their partition key. Defaults to `/partitionKey`.
    """
    refused: dict[tuple[str, str], EventRejected] = {}

    def hear(record: Record) -> None:
        log_hook(record)
        if isinstance(record, EventRejected):
            refused[record.partition_key, record.event_id] = record

    # It parks nothing, so every refusal counts, and it goes on behind it
    relay = Relay(publisher, believed=_EVERY_REFUSAL, notify=hear)

    async def send(documents: Sequence[Document]) -> Sequence[EventRejected]:
        refused.clear()
        page = event_page(ChangeBatch(lease="replay", documents=tuple(documents), key_paths=paths))
        while True:
            left = tuple(delivery for delivery in page.events if delivery.key not in refused)
            try:
                await relay.handle(replace(page, events=left, malformed=()))
            except MessageRejected:  # each round records a refusal for each unfinished key, so the loop ends
                continue
            return tuple(refused.values())

    return send


async def _as_sent(page: Found, parked: ParkedKeys) -> Sequence[Document]:
    """Return the events of a page as they were sent, without those that were dropped, or are held."""
    ids: dict[str, list[str]] = {}
    for event in page.events:
        ids.setdefault(event.partition_key, []).append(event.id)
    known = {key: await parked.known(key, event_ids) for key, event_ids in ids.items()}
    due = []
    for document, event in zip(page.documents, page.events, strict=True):
        record = known[event.partition_key].get(event.id)
        if record is None:
            due.append(document)
        elif record.status is EventStatus.SENT:
            due.append({**document, "data": record.event["data"]})
    return due
