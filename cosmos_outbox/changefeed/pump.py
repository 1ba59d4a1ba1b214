"""
Pump: read a page of one range, have it handled, note how far we are, and again; the checkpoint follows the handling.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from cosmos_outbox.changefeed.bootstrap import start_of
from cosmos_outbox.changefeed.budget import Budget
from cosmos_outbox.changefeed.handling import done, handle
from cosmos_outbox.changefeed.leases import START
from cosmos_outbox.changefeed.options import OnPositionAhead, ProcessorOptions
from cosmos_outbox.changefeed.position import (
    AHEAD,
    BEHIND,
    Regression,
    ahead_of,
    behind_in,
    lsn_of,
    position_at,
    regressed,
    restart_at,
)
from cosmos_outbox.changefeed.progress import Progress
from cosmos_outbox.changefeed.reader import Reader
from cosmos_outbox.changefeed.tenure import Tenure
from cosmos_outbox.errors import RangeGone, StoreError
from cosmos_outbox.feed_range import FeedRange
from cosmos_outbox.ports import ChangeFeed, ChangeHandler, ChangePage
from cosmos_outbox.records import Hook, PageFailed, PositionAhead, PositionRewound

_RESTS_AFTER = (
    300  # pages without a document; a service that never comes to an end of them is not asked in a hot loop
)

_TOLD_AGAIN_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class _From:
    """
    Where the next page is still to be read from.
    """

    continuation: str | None


_Following = ChangePage | _From | None


class Pump:
    """
    The work on one lease; the next page is read while the handler works on this one, if the budget has room for it.
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
        budget: Budget,
        notify: Hook,
    ) -> None:
        self._tenure, self._range, self._progress = tenure, feed_range, progress
        self._container_rid = container_rid
        self._reader = Reader(
            feed,
            feed_range,
            container_rid=container_rid,
            max_items=options.max_items,
            budget=budget,
            wanted=options.wanted,
        )
        self._handler, self._options, self._notify = handler, options, notify
        self._start = start_of(tenure.lease)
        self._shortest = self._poll = options.min_poll_interval.total_seconds()
        self._longest = options.max_poll_interval.total_seconds()
        self._passed_over = 0
        self._regression: Regression | None = None

    async def run(self) -> None:
        """
        Work until `tenure.drain` is set; then finish the page at hand, unless it fails.

        Raises:
            RangeGone: the range was split or merged; all changes up to `tenure.continuation` are done.
            ContainerRecreated: the container is another one now.
            LeaseLost, asyncio.CancelledError: as `Tenure.ensure_active`.
        """
        properties = self._tenure.lease.properties
        if (lowest := behind_in(properties, self._tenure.continuation)) is not None:
            # The owner before had to leave it open.
            self._regression = Regression(lowest=lowest, since=asyncio.get_running_loop().time())
        elif BEHIND in properties:
            self._tenure.mark({BEHIND: None})
        try:
            if AHEAD in properties:
                following = await self._ahead(lsn_of(properties[AHEAD]))
            else:
                following = _From(self._tenure.continuation)
            while following is not None:
                page = await self._read(following.continuation) if isinstance(following, _From) else following
                if page is None or self._tenure.drain.is_set():
                    return
                following = await self._next(page)
                del page  # gives its memory back before more is read
        finally:
            if (
                self._regression is not None
            ):  # the range may grow past the position before the next owner looks
                self._tenure.mark({BEHIND: str(self._regression.lowest)})

    async def _next(self, page: ChangePage) -> _Following:
        """
        Do what a page asks for, and return what comes after it; None where the work is to end.

        A page was read from where the tenure's continuation stands.
        """
        now = asyncio.get_running_loop().time()
        before = self._regression
        self._regression = regressed(before, self._tenure.continuation, page, now=now)
        if self._regression is not None:
            return await self._wait_for(self._regression, now)
        if before is not None:  # what came between the lowest LSN and the position has not been read
            lease, position = self._tenure.lease.id, self._tenure.continuation
            self._notify(PositionRewound(lease=lease, position=position, lowest_lsn=before.lowest))
            self._tenure.advance(position_at(before.lowest))
            self._tenure.mark({BEHIND: None})
            return _From(self._tenure.continuation)
        if page.documents:
            return await self._work_on(page)
        if page.dropped:
            done(page, lease=self._tenure.lease.id, seconds=0, progress=self._progress, notify=self._notify)
            self._tenure.advance(page.continuation)
            self._poll = self._shortest
            return _From(page.continuation)
        if page.passed_over:
            self._progress.moved(now, lag=None)
            self._tenure.advance(page.continuation)
            self._passed_over += 1
            if self._passed_over % _RESTS_AFTER == 0:
                await self._pause(self._longest)
            return _From(page.continuation)
        self._progress.moved(now, lag=0, rest=self._poll)
        # The first continuation is saved at once: until then KEDA and the estimator count all history as lag.
        self._tenure.advance(page.continuation, soon=self._tenure.continuation is None)
        await self._pause(self._poll)
        self._poll = min(self._poll * 2, self._longest)
        return _From(page.continuation)

    async def _work_on(self, page: ChangePage) -> _Following:
        async with self._reading_ahead(page.continuation) as ahead:
            handled = await self._handle(page)
            if handled is None or not handled.documents:
                return handled
            self._tenure.advance(handled.continuation, handled=True)
            self._poll = self._shortest
            if handled is page and ahead is not None:
                return await ahead
        return _From(handled.continuation)

    async def _wait_for(self, regression: Regression, now: float) -> _Following:
        """
        Look again at a range that is behind its lease, until that has lasted for too long.
        """
        if now - regression.since <= self._options.position_ahead_after.total_seconds():
            if now > regression.since:  # seen twice: so much is saved, should this worker be killed
                self._tenure.mark({BEHIND: str(regression.lowest)})
            await self._pause(self._longest)
            return _From(self._tenure.continuation)
        self._regression = None
        return await self._ahead(regression.lowest)

    async def _ahead(self, lowest: int | None) -> _Following:
        """
        Halt a lease that lies ahead of its range, or begin again, as the options say.
        """
        lease, position = self._tenure.lease, self._tenure.continuation
        alarm = PositionAhead(lease=lease.id, position=position, latest_lsn=lowest)
        if self._options.on_position_ahead is OnPositionAhead.RESTART:
            # The last write of the lease is the service's clock, and not later than now.
            start = restart_at(lease.written_at(), self._options.restart_horizon)
            self._tenure.restart({AHEAD: None, BEHIND: None, START: start})
            self._start = start_of(replace(lease, properties={START: start}))
            self._notify(replace(alarm, restarted_from=start))
            return _From(None)
        # Else a later owner would go on in silence, once the range has grown past the position.
        self._tenure.mark({AHEAD: "" if lowest is None else str(lowest), BEHIND: None})
        self._progress.halt(ahead_of(lease.id, position, lowest))
        self._notify(alarm)
        while await self._pause(_TOLD_AGAIN_SECONDS):
            self._notify(alarm)
        return None

    @asynccontextmanager
    async def _reading_ahead(
        self, continuation: str
    ) -> AsyncIterator[asyncio.Task[ChangePage | None] | None]:
        if not self._reader.has_room_ahead():
            yield None
            return
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
                page = await self._reader.read(continuation, start=self._start)
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

    async def _handle(self, page: ChangePage) -> ChangePage | None:
        return await handle(
            page,
            again=lambda: self._read(self._tenure.continuation),
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
