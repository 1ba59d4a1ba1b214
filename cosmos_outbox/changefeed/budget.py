"""
Budget: how much of the feed the leases of a worker have in memory at once, and how long a page each of them asks for.

A lease has up to two pages in memory, the one at hand and the one read ahead, and in an outage it has them for hours; and a
third, where one that keeps failing was read again. So each read takes what it expects to need before it begins, and keeps what
is left of the page after it; what is taken comes back with the page's last reference, in whichever task. Bytes are counted as
JSON, and Python makes several of each.

*How long a page.* As many documents as fit into the lease's share: an equal part of the budget, or a quarter of what is
free if that is more, so that one busy lease among many idle ones is not held back, and none takes everything. What a
document is likely to need, the lease learns from its pages; before the first one it believes what the others saw.

*No deadlock, no starvation.* Nothing here waits. A lease for which no room is left does not read ahead, and reads one
change at a time (which comes with all others of its transactional batch), however long the others hold what they have:
a lease that is halted never stops another. So the bound is the budget and one such batch for each lease beyond it.
"""

from __future__ import annotations

import marshal
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from cosmos_outbox.documents import Document
from cosmos_outbox.ports import ChangePage

# Bytes of memory for a byte of JSON: 1 to 5 once it is parsed, text least and small numbers most; while it is, its bytes
# and its text are there too, and later the messages made of it.
MEMORY_OF_A_BYTE = 7
_LARGEST_PART = 4  # of what is free: a quarter


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """
    Bytes of JSON that a document of a lease is likely to have: as it is read, and of that what is kept.
    """

    read: float
    kept: float

    def after(self, *, documents: int, read: int, kept: int) -> Sizes:
        """
        Return what is expected after a page with so many documents: more at once, less only little by little.
        """
        return Sizes(read=_after(self.read, read / documents), kept=_after(self.kept, kept / documents))


# Rather too large: a page that turns out longer than it was thought is in memory already.
_BEFORE_THE_FIRST = Sizes(read=40_000, kept=40_000)


def _after(expected: float, seen: float) -> float:
    return max(seen, (3 * expected + seen) / 4)


def share_of(limit: float, *, free: float, leases: int) -> float:
    """
    Return how much of a budget one lease of so many may take.
    """
    return max(limit / max(leases, 1), free / _LARGEST_PART)


def longest_page(sizes: Sizes, *, most: int, share: float) -> int:
    """
    Return how many documents to ask for where there is room: what is read fits into a share, what is kept into it twice.

    Below `most` it is a power of two: an adapter can read on more cheaply while the number stays the same.
    """
    items = int(max(share, 0) // max(sizes.read, 2 * sizes.kept, 1))
    return most if items >= most else 1 << max(items.bit_length() - 1, 0)


def page_within(sizes: Sizes, *, most: int, share: float, room: float) -> int:
    """
    Return how many documents to ask for now; 1 where there is no room at all.
    """
    return longest_page(sizes, most=longest_page(sizes, most=most, share=share), share=room)


def size_of(documents: Iterable[Document]) -> int:
    """
    Return about how many bytes of JSON documents are, in a fraction of the time it takes to write it.
    """
    return sum(len(marshal.dumps(document)) for document in documents)


class Budget:
    """
    What the leases of a worker share.

    Args:
        memory_bytes: of memory, for all of them together.
        leases: tells how many there are.
    """

    def __init__(self, memory_bytes: int, *, leases: Callable[[], int]) -> None:
        self._limit = memory_bytes // MEMORY_OF_A_BYTE
        self._leases = leases
        self._taken = 0
        self.typical = _BEFORE_THE_FIRST

    @property
    def free(self) -> int:
        """
        Return how many bytes of JSON there is room for; below 0 where leases read without any.
        """
        return self._limit - self._taken

    @property
    def share(self) -> float:
        """
        Return how many bytes of JSON one lease may have.
        """
        return share_of(self._limit, free=self.free, leases=self._leases())

    @contextmanager
    def reserved(self, size: int) -> Iterator[None]:
        """
        Take so much for as long as the block lasts.
        """
        self._taken += size
        try:
            yield
        finally:
            self._taken -= size

    def hold(self, page: ChangePage, size: int) -> None:
        """
        Take so much for as long as anything refers to the page.
        """
        self._taken += size
        weakref.finalize(page, self._give_back, size).atexit = False

    def _give_back(self, size: int) -> None:
        self._taken -= size
