"""
Read ahead: a Reader reads the pages of one lease, and a Budget bounds the memory that the pages of all leases of a
worker take.

A lease has up to two pages in memory: the page that the handler works on, and the page that was read ahead. In an
outage they stay there for hours. There is a third page if a page that keeps failing was read again. So each read first
reserves the memory that it expects to need. After the read, the budget counts the page, without the changes that
`wanted` dropped, until the last reference to the page is gone. Sizes are counted in bytes of JSON; as Python objects,
each of these bytes takes several bytes of memory. Nothing is read ahead after the last page of the feed.

*How long a page is.* A lease that keeps up asks for 100 changes. After a page that had so many, the lease asks for
`max_items`, because a change of a long page costs several times less. It never asks for more than fit into its share of
the budget. The share is an equal part of the budget, or a quarter of the free memory if that is more. So one busy lease
among many idle ones is not held back, and no lease takes everything. A lease learns the likely size of a document from
its pages. Before its first page it uses the sizes that the other leases saw.

*No deadlock, no starvation.* No lease waits for memory. A lease without room does not read ahead, and asks for one
change at a time, which comes with all other changes of its transactional batch. It can do so however long the other
leases keep their pages, so a halted lease never stops another one. The memory in use is therefore at most the budget
and one such batch for each lease.
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

# How many bytes of memory to reserve for a byte of JSON. Once parsed, a byte of JSON takes 1 to 5 bytes (text
# takes least, small numbers take most). During parsing the raw bytes and their text are in memory too, and
# later the messages that the relay makes of the changes.
MEMORY_OF_A_BYTE = 7
_LARGEST_PART = 4  # one lease may take a quarter of the memory that is free
_KEEPING_UP = 100  # how many changes a read asks for; if a page has as many, the next read asks for more


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """
    The expected size of one document of a lease, in bytes of JSON.

    read: the average over all changes that are read.
    kept: the same average, but changes that `ProcessorOptions.wanted` drops count as zero bytes.
    """

    read: float
    kept: float

    def after(self, *, documents: int, read: int, kept: int) -> Sizes:
        """
        Return the expected sizes after one more page. If its documents were larger than expected, the expected
        sizes grow at once. If they were smaller, the sizes shrink gradually, so that the memory is seldom underestimated.
        """
        return Sizes(read=_after(self.read, read / documents), kept=_after(self.kept, kept / documents))


# Before its first page, a lease expects large documents: a page that is larger than expected takes more memory
# than was reserved for it.
_BEFORE_THE_FIRST = Sizes(read=40_000, kept=40_000)


def _after(expected: float, seen: float) -> float:
    return max(seen, (3 * expected + seen) / 4)


def share_of(limit: float, *, free: float, leases: int) -> float:
    return max(limit / max(leases, 1), free / _LARGEST_PART)


def longest_page(sizes: Sizes, *, most: int, share: float) -> int:
    """
    Return how many documents to ask for if enough memory is free. A lease's share of the memory has to be enough for
    one page as it is read, and for two pages without their unwanted changes.

    A number below `most` is rounded down to a power of two, so that it seldom changes: an adapter reads the next page
    at less cost while the number stays the same.
    """
    items = int(max(share, 0) // max(sizes.read, 2 * sizes.kept, 1))
    return most if items >= most else 1 << max(items.bit_length() - 1, 0)


def page_within(sizes: Sizes, *, most: int, share: float, room: float) -> int:
    """Return how many documents to ask for with the memory that is free now; 1 if no memory is free."""
    return longest_page(sizes, most=longest_page(sizes, most=most, share=share), share=room)


def size_of(documents: Iterable[Document]) -> int:
    """
    Return about how many bytes of JSON some documents take. The number is estimated, because writing the JSON would
    take many times as long.
    """
    return sum(len(marshal.dumps(document)) for document in documents)


def lsn_of(continuation: str | None) -> int | None:
    """Return the LSN of a position. Return None if there is no position, or it contains no LSN that can be read."""
    text = (continuation or "").strip('"')
    return int(text) if text.isdecimal() and text.isascii() else None


def newest_below(position: str | None, page: ChangePage) -> int | None:
    """
    Return the newest LSN of a range if it is below the position from which an empty page was read; otherwise None. An
    LSN below the position means that the position is wrong, as after a restore.
    """
    reached, newest = lsn_of(position), page.latest_lsn
    if page.documents or page.dropped or reached is None or newest is None:
        return None
    return newest if newest < reached else None


class Budget:
    """
    The memory that the pages of all leases of a worker share.

    Args:
        memory_bytes: how many bytes of memory all pages together may take.
        leases: returns how many leases there are.
    """

    def __init__(self, memory_bytes: int, *, leases: Callable[[], int]) -> None:
        self._limit = memory_bytes // MEMORY_OF_A_BYTE
        self.leases = leases
        self._taken = 0
        self.typical = _BEFORE_THE_FIRST

    @property
    def free(self) -> int:
        """
        Return for how many bytes of JSON the memory budget has room. The number can be negative, because a lease
        without room still reads one change at a time.
        """
        return self._limit - self._taken

    @property
    def share(self) -> float:
        """Return how many bytes of JSON the pages of one lease may take together."""
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
    """Reads the pages of one lease, and drops the changes that `ProcessorOptions.wanted` does not want."""

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
        """
        Return whether the memory budget has room for one more page while the handler still works on the current page.
        """
        sizes, budget = self._sizes, self._budget
        return longest_page(sizes, most=self._most, share=budget.share) * sizes.read <= budget.free

    async def read(self, continuation: str | None, *, start: StartFrom | datetime) -> ChangePage:
        """
        Read a page as `ChangeFeed.read_page` does, but ask for no more changes than there is memory for.

        Raises:
            RangeGone, ContainerRecreated, StoreError: see `ChangeFeed.read_page`.
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
        lag = page.latest_lsn - last if page.latest_lsn is not None and isinstance(last, int) else None
        sifted = replace(page, documents=documents, dropped=read - len(documents), lag=lag)
        budget.hold(sifted, kept)
        return sifted
