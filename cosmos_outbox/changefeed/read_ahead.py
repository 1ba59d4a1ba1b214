"""
Read ahead: a Reader reads the pages of one lease without unwanted changes, within the memory that all leases of a worker share.

A lease has up to two pages in memory, for hours in an outage: the one at hand and the one read ahead. There is a third where a
page that keeps failing was read again. So each read first reserves the memory that it expects to need. Afterwards the budget
counts the page without its unwanted changes, until the last reference to the page is gone. Bytes are counted as JSON: Python
makes several of each.

*How long a page.* 100 changes while a lease keeps up and, once a page brought as many, `max_items`: in a long page a change costs
several times less. Never more than fit into the lease's share: an equal part of the budget, or a quarter of what is free if
that is more, so that one busy lease among many idle ones is not held back, and none takes everything. A lease learns the
likely size of a document from its pages; before the first one it uses the sizes that the other leases saw.

*No deadlock, no starvation.* Nothing here waits. A lease without room does not read ahead, and reads one change at a time
(which comes with all others of its transactional batch), however long the others keep their pages: a lease that is halted
never stops another. So the bound is the budget and one such batch for each lease beyond it.
"""

from __future__ import annotations

import marshal
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime

from cosmos_outbox.partition_key import FeedRange
from cosmos_outbox.ports import ChangeFeed, ChangePage, StartFrom
from cosmos_outbox.stored_documents import Document

# Bytes of memory for a byte of JSON. Once parsed, it takes 1 to 5 (text least, small numbers most). While it is
# parsed, its bytes and text come on top, and later the messages made of it.
MEMORY_OF_A_BYTE = 7
_LARGEST_PART = 4  # one lease may take a quarter of the memory that is free
_KEEPING_UP = 100  # changes asked for at once; a page with as many shows that more may wait


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """
    The expected size of a document of a lease, in bytes of JSON: as it is read, and after unwanted changes are
    dropped.
    """

    read: float
    kept: float

    def after(self, *, documents: int, read: int, kept: int) -> Sizes:
        """
        Return the expectation after a page of so many documents. An increase counts at once, a decrease bit by bit.
        """
        return Sizes(read=_after(self.read, read / documents), kept=_after(self.kept, kept / documents))


# The estimate is rather too large: a page that turns out longer than expected is in memory already.
_BEFORE_THE_FIRST = Sizes(read=40_000, kept=40_000)


def _after(expected: float, seen: float) -> float:
    return max(seen, (3 * expected + seen) / 4)


def share_of(limit: float, *, free: float, leases: int) -> float:
    return max(limit / max(leases, 1), free / _LARGEST_PART)


def longest_page(sizes: Sizes, *, most: int, share: float) -> int:
    """
    Return how many documents to ask for when memory is free: a share holds one page as it is read, and two as they
    are kept.

    Below `most` it is a power of two: an adapter can read on more cheaply while the number stays the same.
    """
    items = int(max(share, 0) // max(sizes.read, 2 * sizes.kept, 1))
    return most if items >= most else 1 << max(items.bit_length() - 1, 0)


def page_within(sizes: Sizes, *, most: int, share: float, room: float) -> int:
    """Return how many documents to ask for now; 1 if there is no room at all."""
    return longest_page(sizes, most=longest_page(sizes, most=most, share=share), share=room)


def size_of(documents: Iterable[Document]) -> int:
    """Return about how many bytes of JSON some documents are. Writing the JSON would take many times as long."""
    return sum(len(marshal.dumps(document)) for document in documents)


def lsn_of(continuation: str | None) -> int | None:
    """Return the LSN of a position; None if the position has none that can be read."""
    text = (continuation or "").strip('"')
    return int(text) if text.isdecimal() and text.isascii() else None


def newest_below(position: str | None, page: ChangePage) -> int | None:
    """Return the newest LSN of a range if it is below the position from which an empty page was read."""
    reached, newest = lsn_of(position), page.latest_lsn
    if page.documents or page.dropped or reached is None or newest is None:
        return None
    return newest if newest < reached else None


class Budget:
    """
    The memory that the leases of a worker share.

    Args:
        memory_bytes: of memory, for all of them together.
        leases: returns how many there are.
    """

    def __init__(self, memory_bytes: int, *, leases: Callable[[], int]) -> None:
        self._limit = memory_bytes // MEMORY_OF_A_BYTE
        self.leases = leases
        self._taken = 0
        self.typical = _BEFORE_THE_FIRST

    @property
    def free(self) -> int:
        """Return for how many bytes of JSON there is room; below 0 if leases read without any."""
        return self._limit - self._taken

    @property
    def share(self) -> float:
        """Return how many bytes of JSON one lease may have."""
        return share_of(self._limit, free=self.free, leases=self.leases())

    @contextmanager
    def reserve(self, size: int) -> Iterator[None]:
        self._taken += size
        try:
            yield
        finally:
            self._taken -= size

    def hold(self, page: ChangePage, size: int) -> None:
        self._taken += size
        weakref.finalize(page, self._give_back, size).atexit = False

    def _give_back(self, size: int) -> None:
        self._taken -= size


class Reader:
    """Reads the pages of one lease, without the changes that `ProcessorOptions.wanted` drops."""

    def __init__(
        self,
        feed: ChangeFeed,
        feed_range: FeedRange,
        *,
        container_rid: str,
        max_items: int,
        budget: Budget,
        wanted: Callable[[Document], bool] | None,
    ) -> None:
        self._feed, self._range, self._container_rid = feed, feed_range, container_rid
        self._max_items, self._budget, self._wanted = max_items, budget, wanted
        self._seen: Sizes | None = None
        self._behind = False

    @property
    def _sizes(self) -> Sizes:
        return self._seen or self._budget.typical

    @property
    def _most(self) -> int:
        return self._max_items if self._behind else min(self._max_items, _KEEPING_UP)

    def has_room_ahead(self) -> bool:
        """Return whether the budget has room for another whole page before the one at hand is done."""
        sizes, budget = self._sizes, self._budget
        return longest_page(sizes, most=self._most, share=budget.share) * sizes.read <= budget.free

    async def read(self, continuation: str | None, *, start: StartFrom | datetime) -> ChangePage:
        """
        Read as `ChangeFeed.read_page` does, but ask for no more changes than there is room for.

        Raises:
            RangeGone, ContainerRecreated, StoreError: as there.
        """
        sizes, budget = self._sizes, self._budget
        items = page_within(sizes, most=self._most, share=budget.share, room=budget.free)
        with budget.reserve(round(items * sizes.read)):
            page = await self._feed.read_page(
                self._range,
                container_rid=self._container_rid,
                continuation=continuation,
                start=start,
                max_items=items,
            )
        self._behind = len(page.documents) >= _KEEPING_UP
        return self._keep_wanted(page) if page.documents else page

    def _keep_wanted(self, page: ChangePage) -> ChangePage:
        wanted, budget, read = self._wanted, self._budget, len(page.documents)
        documents = page.documents if wanted is None else tuple(filter(wanted, page.documents))
        size = size_of(page.documents) if page.size is None else page.size
        kept = size if len(documents) == read else size_of(documents)
        self._seen = self._sizes.after(documents=read, read=size, kept=kept)
        budget.typical = budget.typical.after(documents=read, read=size, kept=kept)
        last = page.documents[-1].get("_lsn")
        last_lsn = last if isinstance(last, int) else None
        sifted = replace(page, documents=documents, dropped=read - len(documents), last_lsn=last_lsn)
        budget.hold(sifted, kept)
        return sifted
