"""
Reader: the pages of one lease, as long as the budget allows, without the changes that the handler does not want.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

from cosmos_outbox.changefeed.budget import Budget, Sizes, longest_page, page_within, size_of
from cosmos_outbox.documents import Document
from cosmos_outbox.feed_range import FeedRange
from cosmos_outbox.ports import ChangeFeed, ChangePage, StartFrom


class Reader:
    """
    Reads for one lease; see `ProcessorOptions.wanted` and `budget`.
    """

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

    @property
    def _sizes(self) -> Sizes:
        return self._seen or self._budget.typical

    def has_room_ahead(self) -> bool:
        """
        Say whether a whole page more can be read before the one at hand is done.
        """
        sizes, budget = self._sizes, self._budget
        return longest_page(sizes, most=self._max_items, share=budget.share) * sizes.read <= budget.free

    async def read(self, continuation: str | None, *, start: StartFrom | datetime) -> ChangePage:
        """
        Read as `ChangeFeed.read_page` does, but no more changes at once than there is room for.

        Raises:
            RangeGone, ContainerRecreated, StoreError: as there.
        """
        sizes, budget = self._sizes, self._budget
        items = page_within(sizes, most=self._max_items, share=budget.share, room=budget.free)
        with budget.reserved(round(items * sizes.read)):
            page = await self._feed.read_page(
                self._range,
                container_rid=self._container_rid,
                continuation=continuation,
                start=start,
                max_items=items,
            )
            return self._kept(page) if page.documents else page

    def _kept(self, page: ChangePage) -> ChangePage:
        wanted = self._wanted
        documents = page.documents if wanted is None else tuple(filter(wanted, page.documents))
        dropped = len(page.documents) - len(documents)
        size = size_of(page.documents) if page.size is None else page.size
        kept = size_of(documents) if dropped else size
        self._seen = self._sizes.after(documents=len(page.documents), read=size, kept=kept)
        self._budget.typical = self._budget.typical.after(documents=len(page.documents), read=size, kept=kept)
        last = page.documents[-1].get("_lsn")
        sifted = replace(
            page, documents=documents, dropped=dropped, last_lsn=last if isinstance(last, int) else None
        )
        self._budget.hold(sifted, kept)
        return sifted
