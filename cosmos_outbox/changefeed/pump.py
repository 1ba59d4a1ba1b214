"""
Pump: read a page of one range, have it handled, note how far we are, and again; the checkpoint follows the handling.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from cosmos_outbox.changefeed.bootstrap import start_of
from cosmos_outbox.changefeed.handling import handle
from cosmos_outbox.changefeed.options import ProcessorOptions
from cosmos_outbox.changefeed.progress import Progress
from cosmos_outbox.changefeed.tenure import Tenure
from cosmos_outbox.errors import RangeGone, StoreError
from cosmos_outbox.instrumentation import Hook, PageFailed
from cosmos_outbox.leases import FeedRange
from cosmos_outbox.ports import ChangeFeed, ChangeHandler, ChangePage

_RESTS_AFTER = (
    300  # pages without a document; a service that never comes to an end of them is not asked in a hot loop
)


class Pump:
    """
    The work on one lease; the next page is read while the handler works on this one.
    """

    def __init__(
        self,
        tenure: Tenure,
        feed_range: FeedRange,
        *,
        container_rid: str,
        feed: ChangeFeed,
        handler: ChangeHandler,
        options: ProcessorOptions,
        progress: Progress,
        notify: Hook,
    ) -> None:
        self._tenure, self._range, self._progress = tenure, feed_range, progress
        self._container_rid = container_rid
        self._feed, self._handler, self._options, self._notify = feed, handler, options, notify
        self._start = start_of(tenure.lease)

    async def run(self) -> None:
        """
        Work until `tenure.drain` is set; then finish the page at hand, unless it fails.

        Raises:
            RangeGone: the range was split or merged; all changes up to `tenure.continuation` are done.
            ContainerReplaced: the container is another one now.
            LeaseLost, asyncio.CancelledError: as `Tenure.ensure_active`.
        """
        shortest = self._options.min_poll_interval.total_seconds()
        longest = self._options.max_poll_interval.total_seconds()
        poll = shortest
        passed_over = 0
        page = await self._read(self._tenure.continuation)
        while page is not None and not self._tenure.drain.is_set():
            if page.documents:
                async with self._reading_ahead(page.continuation) as ahead:
                    if not await self._handle(page):
                        return
                    self._tenure.advance(page.continuation, handled=True)
                    page = await ahead
                poll = shortest
            elif page.passed_over:
                self._progress.moved(asyncio.get_running_loop().time(), lag=None)
                self._tenure.advance(page.continuation)
                passed_over += 1
                if passed_over % _RESTS_AFTER == 0:
                    await self._pause(longest)
                page = await self._read(page.continuation)
            else:
                self._progress.moved(asyncio.get_running_loop().time(), lag=0, rest=poll)
                # The first continuation is saved at once: until then KEDA and the estimator count all history as lag.
                self._tenure.advance(page.continuation, soon=self._tenure.continuation is None)
                await self._pause(poll)
                poll = min(poll * 2, longest)
                page = await self._read(page.continuation)

    @asynccontextmanager
    async def _reading_ahead(self, continuation: str) -> AsyncIterator[asyncio.Task[ChangePage | None]]:
        ahead = asyncio.create_task(self._read(continuation))
        try:
            yield ahead
        finally:
            if not ahead.done():
                ahead.cancel()
                await asyncio.gather(ahead, return_exceptions=True)
            elif not ahead.cancelled():
                ahead.exception()  # seen, although the handler failed before anybody waited for it

    async def _read(self, continuation: str | None) -> ChangePage | None:
        """
        Return the next page, or None where the work is to end and reading fails.
        """
        attempt = 0
        while True:
            try:
                page = await self._feed.read_page(
                    self._range,
                    container_rid=self._container_rid,
                    continuation=continuation,
                    start=self._start,
                    max_items=self._options.max_items,
                )
            except StoreError as error:
                self._tenure.ensure_active()
                attempt += 1
                self._progress.failed(error)
                delay = self._options.backoff.delay(attempt, at_least=getattr(error, "retry_after", None))
                lease = self._tenure.lease.id
                self._notify(PageFailed(lease=lease, attempt=attempt, delay_seconds=delay, error=error))
                if not await self._pause(delay):
                    return None
                continue
            lease_names_partition = self._tenure.lease.version == 0 and page.range_id is not None
            if lease_names_partition and page.range_id != self._tenure.lease.token:
                # A merge: our range can still be read, but .NET and KEDA look for the partition by its id.
                raise RangeGone
            return page

    async def _handle(self, page: ChangePage) -> bool:
        return await handle(
            page,
            tenure=self._tenure,
            container_rid=self._container_rid,
            handler=self._handler,
            options=self._options,
            progress=self._progress,
            notify=self._notify,
            pause=self._pause,
        )

    async def _pause(self, seconds: float) -> bool:
        """
        Wait; return False at once where the work is to end.
        """
        try:
            async with asyncio.timeout(seconds):
                await self._tenure.drain.wait()
        except TimeoutError:
            return True
        return False
