"""
Events: read the feed past all leases, to watch it or to send events again.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from cosmos_outbox.changefeed.leases import Lease
from cosmos_outbox.documents import StoredEvent, stored_event
from cosmos_outbox.errors import RangeGone, UsageError
from cosmos_outbox.feed_range import FeedRange
from cosmos_outbox.ports import ChangeFeed, Document, StartFrom

_PAGE_SIZE = 100

Position = Mapping[str, str | None]  # "min-max" of a range -> up to where it was read


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """
    Which events; None takes all.
    """

    partition_key: str | None = None
    action: str | None = None

    def takes(self, event: StoredEvent) -> bool:
        """
        Say whether an event is one of them.
        """
        return self.partition_key in (None, event.partition_key) and self.action in (None, event.action)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """
    The wanted events of one page, in the order in which they are sent, and the position behind the page.

    cut: the page has changes behind the last LSN to take.
    """

    documents: tuple[Document, ...]
    events: tuple[StoredEvent, ...]
    position: Position
    cut: bool = False


async def read_events(
    feed: ChangeFeed,
    *,
    start: StartFrom | datetime,
    wanted: Wanted,
    position: Position | None = None,
    up_to: Callable[[FeedRange], int] | None = None,
    follow: float | None = None,
) -> AsyncIterator[Found]:
    """
    Yield the events that are there, page by page, range after range; then end, or go on with those to come.

    Args:
        feed: of the container.
        start: from where a range is read that has no position.
        wanted: which events; a page without any is yielded all the same, for its position.
        position: up to where an earlier call came.
        up_to: the last LSN of a range to take; a range ends there. Defaults to all there is.
        follow: seconds between two looks at what is new. Defaults to None: end where the feed ends.

    Raises:
        UsageError: a range of the position is not one of the container.
    """
    container_rid = (await feed.describe()).container_rid
    at = {_range_named(name): continuation for name, continuation in (position or {}).items()}
    if not at:
        at = dict.fromkeys(await feed.physical_ranges())
    while True:
        due = deque(at)
        while due:
            feed_range = due.popleft()
            try:
                page = await feed.read_page(
                    feed_range,
                    container_rid=container_rid,
                    continuation=at[feed_range],
                    start=start,
                    max_items=_PAGE_SIZE,
                )
            except RangeGone:
                due.extend(await _split(at, feed_range, feed))
                continue
            at[feed_range] = page.continuation
            limit = None if up_to is None else up_to(feed_range)
            found = _found(page.documents, wanted, limit)
            cut = limit is not None and bool(page.documents) and page.documents[-1]["_lsn"] > limit
            yield Found(
                documents=tuple(document for document, _ in found),
                events=tuple(event for _, event in found),
                position={_name(one): continuation for one, continuation in at.items()},
                cut=cut,
            )
            if (page.documents or page.passed_over) and not cut:
                due.appendleft(feed_range)
        if follow is None:
            return
        await asyncio.sleep(follow)


def sent_up_to(leases: Iterable[Lease]) -> Callable[[FeedRange], int]:
    """
    Return up to which LSN the workers have sent all events of a range: what their leases say, 0 where they say nothing.

    To send a later event is the workers' work: sent here, it would come before earlier ones of its key.
    """
    passed = [(lease.range, _lsn_of(lease.continuation)) for lease in leases]

    def up_to(feed_range: FeedRange) -> int:
        found = [lsn for range_, lsn in passed if range_ is None or range_.overlaps(feed_range)]
        return min(found, default=0)

    return up_to


def _lsn_of(continuation: str | None) -> int:
    text = (continuation or "").strip('"')
    return int(text) if text.isdecimal() else 0


def _found(
    documents: tuple[Document, ...], wanted: Wanted, limit: int | None
) -> list[tuple[Document, StoredEvent]]:
    pairs = [(document, event) for document in documents if (event := stored_event(document)) is not None]
    taken = [pair for pair in pairs if wanted.takes(pair[1]) and (limit is None or pair[1].lsn <= limit)]
    return sorted(taken, key=lambda pair: pair[1].order)


async def _split(at: dict[FeedRange, str | None], gone: FeedRange, feed: ChangeFeed) -> list[FeedRange]:
    """
    Replace a range by the ranges that took its place, each of which goes on from where the whole was.
    """
    continuation = at.pop(gone)
    parts = [
        FeedRange(min=max(gone.min, physical.min), max=min(gone.max, physical.max))
        for physical in await feed.physical_ranges()
        if physical.overlaps(gone)
    ]
    at.update(dict.fromkeys(parts, continuation))
    return parts


def _name(feed_range: FeedRange) -> str:
    return f"{feed_range.min}-{feed_range.max}"


def _range_named(name: str) -> FeedRange:
    bounds = re.fullmatch("([0-9A-F]*)-([0-9A-F]+)", name)
    if bounds is None:
        raise UsageError(f"{name!r} is no range of keys; delete the state file to begin anew.")
    return FeedRange(min=bounds[1], max=bounds[2])
