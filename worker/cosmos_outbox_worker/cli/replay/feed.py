"""Feed: read the events of the container past all leases, page by page."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from datetime import datetime

from cosmos_outbox.changefeed.leases import Lease
from cosmos_outbox.changefeed.position import lsn_of
from cosmos_outbox.documents import StoredEvent, stored_event
from cosmos_outbox.errors import RangeGone
from cosmos_outbox.feed_range import FeedRange
from cosmos_outbox.ports import ChangeFeed, Document, StartFrom

_PAGE_SIZE = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """
    The wanted events of one page, in the order in which they are sent.

    cut: the page has later changes than the last LSN to read.
    """

    documents: tuple[Document, ...]
    events: tuple[StoredEvent, ...]
    cut: bool = False


async def read_events(
    feed: ChangeFeed,
    *,
    start: StartFrom | datetime,
    wanted: Callable[[StoredEvent], bool] = lambda _: True,
    up_to: Callable[[FeedRange], float] = lambda _: math.inf,
) -> AsyncIterator[Found]:
    """
    Yield the events of the container page by page, range after range.

    Args:
        feed: of the container.
        start: where each range begins.
        wanted: says whether to read an event. Defaults to all.
        up_to: returns the last LSN of a range to read. Defaults to all.
    """
    container = await feed.describe()
    at: dict[FeedRange, str | None] = dict.fromkeys(await feed.physical_ranges())
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
        except RangeGone:  # it has split: its children go on from where it was
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
        yield Found(
            documents=tuple(one for one, _ in pairs), events=tuple(event for _, event in pairs), cut=cut
        )
        if (page.documents or page.skipped) and not cut:
            due.appendleft(feed_range)


def sent_up_to(leases: Iterable[Lease]) -> Callable[[FeedRange], int]:
    """
    Return up to which LSN the workers have sent all events of a range, as their leases say; 0 if they do not.

    Later events are left to the workers: a replay would send them before earlier events of their key.
    """
    done = [(lease.range, lsn_of(lease.continuation) or 0) for lease in leases]

    def up_to(feed_range: FeedRange) -> int:
        found = [lsn for own, lsn in done if own is None or own.overlaps(feed_range)]
        return min(found, default=0)

    return up_to
