"""
The command `cosmos-outbox replay`: send events again that are still in the container, without changing any lease.
`relay/relay.py` of the library sends them.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from cosmos_outbox.changefeed.leases import Lease
from cosmos_outbox.changefeed.read_ahead import lsn_of
from cosmos_outbox.errors import MessageRejected, RangeGone, UsageError
from cosmos_outbox.parking import ParkedKeys
from cosmos_outbox.parking.parked_documents import EventStatus
from cosmos_outbox.partition_key import ON_PARTITION_KEY, FeedRange, KeyPaths, key_text
from cosmos_outbox.ports import ChangeBatch, ChangeFeed, Document, Publisher, StartFrom
from cosmos_outbox.records import EventRejected, Record, log_hook
from cosmos_outbox.relay import Relay
from cosmos_outbox.relay.ceiling import Ceiling
from cosmos_outbox.relay.sending_lanes import event_page
from cosmos_outbox.stored_documents import StoredEvent, stored_event
from cosmos_outbox_worker.cli.leases import leases_for, require_leases, start_given
from cosmos_outbox_worker.cli.output import NO_LEASES, NothingMatches, answer, confirm, number_text
from cosmos_outbox_worker.cli.running import AsJson, DryRun, Yes, command, connect
from cosmos_outbox_worker.exit_codes import ExitCode

Send = Callable[[Sequence[Document]], Awaitable[Sequence[EventRejected]]]
_PAGE_SIZE = 100
_EVERY_REFUSAL = 10**9


@command
async def replay_command(
    *,
    since: Annotated[str, typer.Option(help="Start: beginning, or a time such as 2026-11-21T08:00:00Z.")],
    key: Annotated[str | None, typer.Option(help="Only this partition key.")] = None,
    action: Annotated[str | None, typer.Option(help="Only events of this action.")] = None,
    rate: Annotated[
        float | None,
        typer.Option(min=0.1, max=1e6, help="Limit of messages a second, in place of OUTBOX_SEND_RATE."),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """
    Send events again that are still in the container: with the same message ids, and in order per partition key.

    The topic drops events whose ids it still remembers (its duplicate detection window). The others arrive after newer
    events of their key, and consumers have to accept that. Events that are not sent yet are left to the workers. With
    OUTBOX_PARKED_CONTAINER set, the replay omits dropped and held events, and sends an edited event as edited. Exit code 4 if the
    topic refuses events; the others are sent.
    """
    start = start_given(since)
    async with AsyncExitStack() as stack:
        outbox = await stack.enter_async_context(connect())
        named = None if key is None else await outbox.key_of(key)
        ranges = None if named is None else [await outbox.feed.range_of(named)]
        meant = None if named is None else key_text(named)
        await require_leases(outbox)
        leases, _ = await leases_for(start, prefix=await outbox.prefix(), store=outbox.leases)
        if start is StartFrom.NOW:
            raise UsageError("--since 'now' selects no event: give an earlier time, or 'beginning'.")
        if not leases:
            raise NothingMatches(f"{NO_LEASES} A replay needs them to know which events are sent already.")
        parked = await outbox.parked_keys() if outbox.parked else None
        send: Send | None = None  # None for a dry run
        if not dry_run:
            publisher = await stack.enter_async_context(outbox.publisher(lanes=1, ceiling=Ceiling.of(rate)))
            confirm(f"Send the events since {since} to topic {outbox.settings.topic!r} again?", yes=yes)
            send = sending_to(publisher, (await outbox.feed.describe()).key_paths)
        columns = SpinnerColumn(), TextColumn("{task.completed} events"), TimeElapsedColumn()
        with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as bar:
            task = bar.add_task("replay", total=None)
            replayed = await replay(
                read_events(
                    outbox.feed,
                    start=start,
                    ranges=ranges,
                    wanted=lambda one: meant in (None, one.partition_key) and action in (None, one.action),
                    up_to=limit_to_sent(leases),
                ),
                send,
                parked=parked,
                progress=lambda sent: bar.update(task, completed=sent),
            )
    found = replayed.sent or replayed.left_out or replayed.left_to_workers or replayed.refused
    if (key or action) and not found:
        raise NothingMatches("No event that is still in the container has this key and action.")
    _print_replayed(replayed, dry_run=dry_run, as_json=as_json)
    if replayed.refused:
        raise typer.Exit(ExitCode.WRONG)


def _print_replayed(replayed: Replayed, *, dry_run: bool, as_json: bool) -> None:
    refused = [
        {"key": one.partition_key, "event": one.event_id, "error": str(one.error)} for one in replayed.refused
    ]
    facts: dict[str, Any] = {"dry_run": dry_run, "events": replayed.sent, "left_out": replayed.left_out}
    facts |= {"left_to_workers": replayed.left_to_workers, "refused": refused}
    lines = [f"{number_text(replayed.sent, 'event')} {'would be sent' if dry_run else 'sent'}."]
    if replayed.left_out:
        lines.append(f"{replayed.left_out} left out: they were dropped, or are held.")
    if replayed.left_to_workers:
        lines.append("The workers are behind: what they have not sent yet is left to them.")
    lines += [f"Refused: event {one['event']!r} of {one['key']!r}: {one['error']}" for one in refused]
    answer(facts, *lines, as_json=as_json)


@dataclass(frozen=True, slots=True, kw_only=True)
class Events:
    """
    The events of one page of the change feed that are to be sent again, in the order in which they are sent.

    documents: the stored documents of the events.
    events: the same events, parsed.
    cut: whether changes of the page were left out, because their LSN is higher than the last one that may be read.
    """

    documents: tuple[Document, ...]
    events: tuple[StoredEvent, ...]
    cut: bool = False


async def read_events(
    feed: ChangeFeed,
    *,
    start: StartFrom | datetime,
    ranges: Sequence[FeedRange] | None = None,
    wanted: Callable[[StoredEvent], bool] = lambda _: True,
    up_to: Callable[[FeedRange], float] = lambda _: math.inf,
) -> AsyncIterator[Events]:
    """
    Read the events of a container from its change feed. Yield them page by page, one range after another.

    Args:
        feed: the change feed of the container.
        start: where to begin in each range.
        ranges: the ranges to read. Defaults to all.
        wanted: returns whether to yield an event. Defaults to all events.
        up_to: returns the last LSN (the number of a transaction in its partition) to read of a range. Defaults to no limit.
    """
    container = await feed.describe()
    at: dict[FeedRange, str | None] = dict.fromkeys(ranges or await feed.physical_ranges())
    due = deque(at)
    while due:
        feed_range = due.popleft()
        try:
            page = await feed.read_page(
                feed_range,
                container_rid=container.container_rid,
                continuation=at[feed_range],
                start=start,
                max_items=_PAGE_SIZE,
            )
        except RangeGone:  # Cosmos DB has split the range: read the new ranges from the same position
            continuation = at.pop(feed_range)
            physical = [one for one in await feed.physical_ranges() if one.overlaps(feed_range)]
            children = [feed_range.intersection(one) for one in physical]
            at |= dict.fromkeys(children, continuation)
            due.extend(children)
            continue
        at[feed_range] = page.continuation
        last = up_to(feed_range)
        cut = bool(page.documents) and page.documents[-1]["_lsn"] > last
        parsed = ((one, stored_event(one, container.key_paths)) for one in page.documents)
        pairs = [(one, event) for one, event in parsed if event and event.lsn <= last and wanted(event)]
        pairs.sort(key=lambda pair: pair[1].order)
        yield Events(
            documents=tuple(one for one, _ in pairs), events=tuple(event for _, event in pairs), cut=cut
        )
        if (page.documents or page.skipped) and not cut:
            due.appendleft(feed_range)


def limit_to_sent(leases: Iterable[Lease]) -> Callable[[FeedRange], int]:
    """
    Return a function that takes a range and returns the LSN up to which the workers have sent its events, or 0 if no lease says that.

    A replay leaves later events to the workers. If it sent them, they could arrive before earlier events of the same key.
    """
    done = [(lease.range, lsn_of(lease.continuation) or 0) for lease in leases]

    def up_to(feed_range: FeedRange) -> int:
        found = [lsn for own, lsn in done if own is None or own.overlaps(feed_range)]
        return min(found, default=0)

    return up_to


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """
    The result of a replay.

    sent: how many events were sent again.
    left_out: how many events were not sent because they were dropped, or are held by a parked key.
    left_to_workers: whether there are events that the workers have not sent yet. The replay does not send these.
    refused: the events that the topic refused.
    """

    sent: int
    left_out: int
    left_to_workers: bool
    refused: tuple[EventRejected, ...]


async def replay(
    pages: AsyncIterator[Events],
    send: Send | None,
    *,
    parked: ParkedKeys | None,
    progress: Callable[[int], None],
) -> Replayed:
    """
    Send the events of pages again. If the topic refuses an event, go on with the next.

    Args:
        pages: the events to send.
        send: sends events, and returns those that the topic refused; None in a dry run.
        parked: the parked keys, which say which events were dropped or sent with another payload; None without a parked container.
        progress: called with the number of events sent so far.
    """
    sent = left_out = 0
    behind = False
    refused: list[EventRejected] = []
    # Read the parked keys only after the leases. A position in a lease also counts parked events as done, and each of these events is
    # found under its parked key only if the keys are read later.
    is_kept = None if parked is None else await parked.load_key_filter()
    async for page in pages:
        due = page.documents
        if parked is not None and is_kept is not None:
            due = await _as_sent(page, parked, is_kept)
        left_out += len(page.documents) - len(due)
        behind |= page.cut
        rejected = () if send is None or not due else await send(due)
        refused += rejected
        sent += len(due) - len(rejected)
        progress(sent)
    return Replayed(sent=sent, left_out=left_out, left_to_workers=behind, refused=tuple(refused))


def sending_to(publisher: Publisher, paths: KeyPaths = ON_PARTITION_KEY) -> Send:
    """
    Return a function that sends events to a topic as the workers do: the same messages with the same ids, in order per partition key.

    Args:
        publisher: sends to the topic or topics.
        paths: the partition key paths of the container. Defaults to `/partitionKey`.
    """
    refused: dict[tuple[str, str], EventRejected] = {}

    def hear(record: Record) -> None:
        log_hook(record)
        if isinstance(record, EventRejected):
            refused[record.partition_key, record.event_id] = record

    # This relay has no parked store. So the replay itself remembers the events that the topic refuses, and goes on with the others.
    relay = Relay(publisher, believed=_EVERY_REFUSAL, notify=hear)

    async def send(documents: Sequence[Document]) -> Sequence[EventRejected]:
        refused.clear()
        page = event_page(ChangeBatch(lease="replay", documents=tuple(documents), key_paths=paths))
        while True:
            left = tuple(delivery for delivery in page.events if delivery.key not in refused)
            try:
                await relay.handle(replace(page, events=left, malformed=()))
            # Each attempt adds a key to `refused` and leaves it out next time, so the loop ends.
            except MessageRejected:
                continue
            return tuple(refused.values())

    return send


async def _as_sent(page: Events, parked: ParkedKeys, is_kept: Callable[[str], bool]) -> tuple[Document, ...]:
    """
    Return the events of a page as the workers sent them. An event that an operator edited has its edited payload. Events that an
    operator dropped, or that a parked key holds, are left out.
    """
    ids: dict[str, list[str]] = {}
    for event in page.events:
        if is_kept(event.partition_key):
            ids.setdefault(event.partition_key, []).append(event.id)
    known = {key: await parked.find_events(key, event_ids) for key, event_ids in ids.items()}
    due = []
    for document, event in zip(page.documents, page.events, strict=True):
        record = known.get(event.partition_key, {}).get(event.id)
        if record is None:
            due.append(document)
        elif record.status is EventStatus.SENT:
            due.append({**document, "data": record.event["data"]})
    return tuple(due)
