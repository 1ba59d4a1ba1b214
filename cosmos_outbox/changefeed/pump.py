"""
Pump: read a page of one range, have it handled, note how far we are, and again; the checkpoint follows the handling.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime

from cosmos_outbox.changefeed.bootstrap import start_of
from cosmos_outbox.changefeed.options import ProcessorOptions
from cosmos_outbox.changefeed.tenure import Tenure
from cosmos_outbox.errors import StoreError
from cosmos_outbox.instrumentation import Hook, PageFailed, PageHandled
from cosmos_outbox.leases import FeedRange
from cosmos_outbox.ports import ChangeBatch, ChangeFeed, ChangeHandler, ChangePage, StartFrom


class Pump:
    """
    The work on one lease; the next page is read while the handler works on this one.
    """

    def __init__(
        self,
        tenure: Tenure,
        feed_range: FeedRange,
        *,
        feed: ChangeFeed,
        handler: ChangeHandler,
        options: ProcessorOptions,
        notify: Hook,
    ) -> None:
        self._tenure, self._range = tenure, feed_range
        self._feed, self._handler, self._options, self._notify = feed, handler, options, notify
        self._start: StartFrom | datetime = start_of(tenure.lease, default=options.start)

    async def run(self) -> None:
        """
        Work until `tenure.drain` is set; then finish the page at hand, unless it fails.

        Raises:
            RangeGone: the range was split or merged; all changes up to `tenure.continuation` are done.
        """
        shortest = self._options.min_poll_interval.total_seconds()
        longest = self._options.max_poll_interval.total_seconds()
        poll = shortest
        page = await self._read(self._tenure.continuation)
        while not self._tenure.drain.is_set():
            if page.documents:
                async with self._reading_ahead(page.continuation) as ahead:
                    if not await self._handle(page):
                        return
                    self._tenure.advance(page.continuation)
                    page = await ahead
                poll = shortest
            else:
                # The first continuation is saved at once: until then KEDA and the estimator count all history as lag.
                self._tenure.advance(page.continuation, soon=self._tenure.continuation is None)
                await self._pause(poll)
                poll = min(poll * 2, longest)
                page = await self._read(page.continuation)

    @asynccontextmanager
    async def _reading_ahead(self, continuation: str) -> AsyncIterator[asyncio.Task[ChangePage]]:
        ahead = asyncio.create_task(self._read(continuation))
        try:
            yield ahead
        finally:
            ahead.cancel()
            await asyncio.gather(ahead, return_exceptions=True)

    async def _read(self, continuation: str | None) -> ChangePage:
        attempt = 0
        while True:
            try:
                return await self._feed.read_page(
                    self._range,
                    continuation=continuation,
                    start=self._start,
                    max_items=self._options.max_items,
                )
            except StoreError as error:
                attempt += 1
                await self._pause(self._failed(attempt, error, at_least=getattr(error, "retry_after", None)))

    async def _handle(self, page: ChangePage) -> bool:
        """
        Have a page handled, again and again; return False when it failed and the work is to end.
        """
        loop = asyncio.get_running_loop()
        batch = ChangeBatch(lease=self._tenure.lease.id, documents=page.documents)
        attempt, started = 0, loop.time()
        while True:
            try:
                await self._handler(batch)
            except Exception as error:  # noqa: BLE001 - a handler may raise anything; the page must not be lost
                attempt += 1
                await self._pause(self._failed(attempt, error))
                if self._tenure.drain.is_set():
                    return False
            else:
                break
        last = page.documents[-1].get("_lsn")
        lag = page.latest_lsn - last if page.latest_lsn is not None and isinstance(last, int) else None
        lease, seconds = self._tenure.lease.id, loop.time() - started
        self._notify(PageHandled(lease=lease, changes=len(page.documents), seconds=seconds, lag=lag))
        return True

    def _failed(self, attempt: int, error: Exception, *, at_least: float | None = None) -> float:
        delay = self._options.backoff.delay(attempt, at_least=at_least)
        self._notify(
            PageFailed(lease=self._tenure.lease.id, attempt=attempt, delay_seconds=delay, error=error)
        )
        return delay

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._tenure.drain.wait()
        except TimeoutError:
            return
