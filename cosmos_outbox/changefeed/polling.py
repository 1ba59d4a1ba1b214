"""
Polling: a Pump reads a page of one range, calls the handler with it, notes the new position, and repeats. The position
is saved only after the page was handled. `owned_lease.py` decides when, and `read_ahead.py` how long a page is.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Literal

from cosmos_outbox.changefeed.lease_ahead import AHEAD, BEHIND, Regression, ahead_of, behind_in, position_at
from cosmos_outbox.changefeed.leases import start_of
from cosmos_outbox.changefeed.owned_lease import OwnedLease
from cosmos_outbox.changefeed.read_ahead import Reader, lsn_of, newest_below
from cosmos_outbox.errors import ContainerRecreated, RangeGone
from cosmos_outbox.ports import ChangeBatch, ChangePage
from cosmos_outbox.records import PageFailed, PageHandled, PositionAhead

# A page without changes may not be the end of the feed. Pause once after this many of them, so that a long stretch without changes is not
# read in a tight loop.
_PAUSE_AFTER_EMPTY_PAGES = 300
_ALARM_AGAIN_SECONDS = 60.0
_MOST_POLLS_PER_SECOND = 250  # of all idle leases of a worker together, which takes a tenth of a core
_PAUSE_PER_SILENCE = 0.01  # a range without changes for ten seconds is polled ten times a second
_SILENCE_SECONDS = 1.0
_TOGETHER_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class _From:
    """The position from which the next page has to be read, because it was not read ahead."""

    continuation: str | None


_Following = ChangePage | _From | None


def together(seconds: float, *, now: float) -> float:
    """
    Shorten a pause so that it ends at the same moment as the pauses of other leases. Waking the process costs a fifth
    as much CPU as a poll, so several polls in one wake-up are cheaper.
    """
    return seconds if seconds < 10 * _TOGETHER_SECONDS else seconds - (now + seconds) % _TOGETHER_SECONDS


class Pump:
    """
    The work on one lease: reads its pages and has the handler process them. The next page is read while the handler
    works on the current one, unless that is known to be the last page or the memory budget has no room.
    """

    def __init__(self, owned: OwnedLease) -> None:
        worker, options = owned.worker, owned.worker.options
        self._owned, self._progress, self._id = owned, owned.progress, owned.lease.id
        self._options, self._notify, self._handler = options, worker.notify, worker.handler
        self._reader = Reader(
            worker.feed,
            owned.range,
            container_rid=owned.container.container_rid,
            max_items=options.max_items,
            budget=worker.budget,
            wanted=options.wanted,
        )
        self._start = start_of(owned.lease)
        self._shortest = options.min_poll_interval.total_seconds()
        self._poll = max(self._shortest, self._longest(0))
        self._changed_at, self._gap, self._empty_pages = -math.inf, 0.0, 0
        self._regression: Regression | None = None

    def _longest(self, silence: float = math.inf) -> float:
        """
        Return the longest pause between two polls of a range whose last change was `silence` seconds ago.

        A range that changed recently is likely to change again soon. If it were polled once a second, a change would be
        read half a second late on average.
        """
        recent = max(self._options.recent_poll_interval.total_seconds(), silence * _PAUSE_PER_SILENCE)
        longest = min(recent, self._options.max_poll_interval.total_seconds())
        return max(longest, self._owned.worker.budget.leases() / _MOST_POLLS_PER_SECOND)

    async def run(self) -> None:
        """
        Work on the lease until it is to be released. Then finish the current page, unless the page fails.

        Raises:
            RangeGone: the range was split or merged. All changes up to the lease's continuation were handled.
            ContainerRecreated: the container was deleted and created again.
            LeaseLost, asyncio.CancelledError: see `OwnedLease.ensure_active`.
        """
        owned, properties = self._owned, self._owned.lease.properties
        # The previous owner saw that the range's newest LSN was below the lease's position, and could not
        # tell whether it had only read from a replica that lagged. So this owner goes on observing the range.
        if BEHIND in properties:
            if (lowest := behind_in(properties, owned.continuation)) is not None:
                self._regression = Regression(lowest, asyncio.get_running_loop().time())
            else:
                owned.mark({BEHIND: None})
        try:
            following: _Following = _From(owned.continuation)
            if AHEAD in properties:
                await self._ahead(lsn_of(properties[AHEAD]))
                return
            while following is not None and not owned.drain.is_set():
                page = await self._read(following.continuation) if isinstance(following, _From) else following
                if page is None or owned.drain.is_set():
                    return
                following = await self._next(page)
                del page  # free the page's memory before the next page is read
        finally:
            # Tell the next owner that the range's newest change was below the lease's position. Without this,
            # the next owner cannot find out once the range has grown beyond the position, and skips changes.
            if self._regression is not None:
                owned.mark({BEHIND: str(self._regression.lowest)})

    async def _next(self, page: ChangePage) -> _Following:
        """
        Process the page that was read from the lease's continuation. Return the next page, or the position from which
        to read it. Return None if the work on the lease is to end.
        """
        owned, now = self._owned, asyncio.get_running_loop().time()
        before = self._regression
        if not page.documents and (newest := newest_below(owned.continuation, page)) is not None:
            lowest, since = (newest, now) if before is None else (min(before.lowest, newest), before.since)
            return await self._wait_for(Regression(lowest, since), now)
        if before is not None:  # the position was beyond the newest LSN: go back, to skip no change
            self._regression = None
            self._notify(self._tell_ahead("rewound", before.lowest))
            owned.advance(position_at(before.lowest))
            owned.mark({BEHIND: None})
            return _From(owned.continuation)
        if page.documents:
            return await self._work_on(page)
        if page.dropped:
            self._finish_page(page, seconds=0)
        elif page.skipped:
            owned.advance(page.continuation)
            self._empty_pages += 1
            if self._empty_pages % _PAUSE_AFTER_EMPTY_PAGES == 0:
                await self._pause(self._longest())
        else:
            # Save the first continuation at once: until a lease has one, KEDA and the lag estimator count the
            # whole history as lag.
            owned.advance(page.continuation, lag=0, rest=self._poll, soon=owned.continuation is None)
            await self._pause(together(self._poll, now=now))
            if (silence := now - self._changed_at) > self._gap:
                self._poll = max(self._shortest, min(self._poll * 2, self._longest(silence)))
        return _From(page.continuation)

    async def _work_on(self, page: ChangePage) -> _Following:
        async with self._reading_ahead(page) as ahead:
            handled = await self._handle(page)
            if handled is None or not handled.documents:
                return handled
            now = asyncio.get_running_loop().time()
            # Poll a range with frequent changes often, until the next change is overdue: wait for half of the time
            # between the last two changes. A change after a longer silence may be the first of many, so poll at once.
            gap, self._changed_at = now - self._changed_at, now
            self._gap = gap if gap < _SILENCE_SECONDS else 0.0
            self._poll = max(self._shortest, min(self._longest(0), self._gap / 2))
            return await ahead if handled is page and ahead is not None else _From(handled.continuation)

    async def _handle(self, page: ChangePage) -> ChangePage | None:
        """
        Have the handler process a page, and repeat until it succeeds.

        After each failure the page is read again. Events that were deleted in the meantime are then no longer in it. It
        may have new events, whose success shows the relay that the refused messages are at fault, and not the topic.

        Returns:
            The page that was handled, as it was last read. If nothing was left to handle, it has no documents. None if
                the work has to end first.

        Raises:
            LeaseLost, asyncio.CancelledError: see `OwnedLease.ensure_active`; the page does not count as handled.
        """
        owned, options, attempt = self._owned, self._options, 0
        started = asyncio.get_running_loop().time()
        batch = ChangeBatch(
            lease=self._id,
            documents=page.documents,
            tenure=owned.number,
            page=owned.pages + 1,
            processor=options.processor_name,
            container_rid=owned.container.container_rid,
            key_paths=owned.container.key_paths,
            notes=owned.notes,
            moving=self._moving,
        )
        while True:
            attempt += 1
            owned.ensure_active()
            try:
                await self._handler(batch)
            except Exception as error:  # noqa: BLE001 - a handler may raise anything; the page must not be lost
                owned.ensure_active()
                delay = self._back_off(error, attempt, halted=attempt % options.halt_after_attempts == 0)
            else:
                break
            if not await self._pause(delay):
                return None
            again = await self._read(owned.continuation)
            if again is None or not again.documents:
                return again
            page, batch = again, replace(batch, documents=again.documents)
        owned.ensure_active()
        self._finish_page(page, seconds=asyncio.get_running_loop().time() - started, handled=True)
        return page

    def _moving(self) -> None:
        self._progress.moved_at = asyncio.get_running_loop().time()

    def _finish_page(self, page: ChangePage, *, seconds: float, handled: bool = False) -> None:
        """
        Move the lease's position behind a page whose changes were all handled. Changes that `ProcessorOptions.wanted`
        dropped count as handled.
        """
        self._owned.advance(page.continuation, lag=page.lag, handled=handled)
        changes = len(page.documents) + page.dropped
        self._notify(PageHandled(lease=self._id, changes=changes, seconds=seconds, lag=page.lag))

    def _back_off(
        self, error: Exception, attempt: int, *, halted: bool = False, at_least: float | None = None
    ) -> float:
        """Report a failed attempt to read or handle a page. Return how many seconds to wait before the next attempt."""
        self._progress.note_failure(error)
        delay = self._options.backoff.delay(attempt, at_least=at_least)
        outcome: Literal["retried", "halted"] = "halted" if halted else "retried"
        self._notify(
            PageFailed(lease=self._id, outcome=outcome, attempt=attempt, delay_seconds=delay, error=error)
        )
        return delay

    async def _wait_for(self, regression: Regression, now: float) -> _Following:
        if regression.may_be_a_lagging_replica(now):
            self._regression = regression
            # A second read also found the range behind the lease's position. Write that into the lease, so that the next owner knows it
            # if this worker is killed.
            if now > regression.since:
                self._owned.mark({BEHIND: str(regression.lowest)})
            await self._pause(self._longest())
            return _From(self._owned.continuation)
        self._regression = None
        await self._ahead(regression.lowest)
        return None

    async def _ahead(self, lowest: int | None) -> None:
        position = self._owned.continuation
        alarm = self._tell_ahead("halted", lowest)
        # Write into the lease that its position is ahead of its range. Otherwise a later owner would skip changes
        # unnoticed once the newest LSN of the range has grown beyond the position.
        self._owned.mark({AHEAD: "" if lowest is None else str(lowest), BEHIND: None})
        self._progress.halt(ahead_of(self._id, position, lowest))
        self._notify(alarm)
        while await self._pause(_ALARM_AGAIN_SECONDS):
            self._notify(alarm)

    def _tell_ahead(self, outcome: Literal["halted", "rewound"], lowest: int | None) -> PositionAhead:
        return PositionAhead(
            lease=self._id, outcome=outcome, position=self._owned.continuation, lowest_lsn=lowest
        )

    @asynccontextmanager
    async def _reading_ahead(self, page: ChangePage) -> AsyncIterator[asyncio.Task[ChangePage | None] | None]:
        # After the last page, the next one is likely to be empty. Reading it would delay the handler, and then the pause
        # after an empty page would delay a change that comes while the handler works.
        if page.lag == 0 or not self._reader.has_room_ahead():
            yield None
            return
        ahead = asyncio.create_task(self._read(page.continuation))
        try:
            yield ahead
        finally:
            ahead.cancel()
            # If the handler failed first, no code has awaited the page: fetch its error, or asyncio logs it.
            await asyncio.gather(ahead, return_exceptions=True)

    async def _read(self, continuation: str | None) -> ChangePage | None:
        """
        Return the next page. If a read fails, repeat it after a pause. If the work on the lease has to end during the pause, return None.
        """
        attempt = 0
        while True:
            try:
                page = await self._reader.read(continuation, start=self._start)
            except (ContainerRecreated, RangeGone):
                raise
            except Exception as error:  # noqa: BLE001 - whatever a range answers is a failed page, and ends no other range
                self._owned.ensure_active()
                attempt += 1
                if not await self._pause(
                    self._back_off(error, attempt, at_least=getattr(error, "retry_after", None))
                ):
                    return None
                continue
            lease_names_partition = self._owned.lease.version == 0 and page.range_id is not None
            if lease_names_partition and page.range_id != self._owned.lease.token:
                # After a merge, the range of this lease can still be read. But .NET and KEDA look for the
                # partition whose id is in the lease, and this partition is gone. So have the lease replaced.
                raise RangeGone
            return page

    async def _pause(self, seconds: float) -> bool:
        """Wait for `seconds`, and return True. If the work on the lease is to end, return False at once."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                return not await self._owned.drain.wait()
        return True
