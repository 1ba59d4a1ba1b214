"""
OwnedLease: one worker's ownership of one lease. Only this class writes a lease while the lease is owned. `balancing.py`
decides which leases a worker takes.

One task does all the writing, so a renewal and a checkpoint never collide: whatever is due goes into one write, which
carries the etag of the previous write. The position that is written never lies beyond a change that was not handled.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from cosmos_outbox import errors
from cosmos_outbox.changefeed.leases import NOTES, STANDSTILL, Lease, from_document, handover_requested_by
from cosmos_outbox.changefeed.options import ProcessorOptions
from cosmos_outbox.changefeed.read_ahead import Budget
from cosmos_outbox.partition_key import FeedRange
from cosmos_outbox.ports import ChangeFeed, ChangeHandler, LeaseStore, MonitoredContainer, Notes
from cosmos_outbox.records import Hook, LeaseCheckpointed
from cosmos_outbox.retries import Backoff, suspended_seconds

_numbers = itertools.count(1)
_WRITE_BACKOFF = Backoff(initial_seconds=0.05, maximum_seconds=2.0)
_LONG_SECONDS = 60.0
_MOST_CHARACTERS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """What one worker needs for the work on each of its leases: the stores, the handler, the options and the hooks."""

    feed: ChangeFeed
    store: LeaseStore
    handler: ChangeHandler
    options: ProcessorOptions
    budget: Budget
    notify: Hook
    utcnow: Callable[[], datetime]
    suspended: Callable[[], float] = suspended_seconds


@dataclass(slots=True, kw_only=True)
class Progress:
    """
    How far the work on a lease has come. Times are seconds on the event loop's clock.

    lag: how many transactions are known to wait. It is 0 at the end of the feed. It is None before the first
        page, and after a page without changes that is not the end of the feed.
    moved_at: when a page was last handled, or was read and found empty.
    halted: whether the lease makes no progress until an operator acts.
    rest: for how many seconds after `moved_at` the feed is not polled, because nothing is known to wait.
    """

    moved_at: float
    rest: float = 0.0
    lag: int | None = None
    failed_attempts: int = 0
    error: BaseException | None = None
    halted: bool = False

    def note_progress(self, now: float, *, lag: int | None, rest: float = 0.0) -> None:
        self.moved_at, self.rest, self.lag, self.failed_attempts, self.error = now, rest, lag, 0, None

    def note_failure(self, error: BaseException) -> None:
        self.failed_attempts += 1
        self.error = error

    def halt(self, error: BaseException) -> None:
        self.error, self.halted = error, True

    def standstill(self, now: float) -> str | None:
        """
        Return why the lease makes no progress: attempts have failed for half a minute, or the handler has worked on one
        page for a whole minute. Return None if all is well.

        The next renewal of the lease writes the text into the lease document, where monitoring programs find it.
        """
        idle = now - self.moved_at - self.rest
        if not self.halted and idle <= (_LONG_SECONDS if self.error is None else _LONG_SECONDS / 2):
            return None
        reason = "A page is not done yet." if self.error is None else errors.error_line(self.error)
        said = f"No progress for {max(idle, 0.0):.0f} s, {self.failed_attempts} attempts failed: {reason}"
        return said[:_MOST_CHARACTERS]

    def stalled(self, now: float, limit: timedelta) -> bool:
        """
        Return whether the lease has made no progress for longer than `limit`. Reading an empty page is progress, and
        the pause after an empty page does not count as time without progress.
        """
        return self.halted or now - self.moved_at - self.rest > limit.total_seconds()


class OwnedLease:
    """
    The ownership of a lease from its acquisition to its release or loss, with all that the work on the lease needs.

    drain: an event that is set when the work should finish and the lease be released, because the worker stops or
        another worker asks for the lease.
    unfinished_split: another worker began to create children of this lease. The split has to be finished before any
        page is read.
    splitting: the range is gone. No page is handled any more, and other workers may own the children already.
    pages: how many pages were handled since this worker acquired the lease.
    """

    def __init__(
        self,
        lease: Lease,
        feed_range: FeedRange,
        worker: Worker,
        *,
        container: MonitoredContainer,
        acquired_at: float,
        suspended_before: float,
    ) -> None:
        self.lease = lease
        self.range = feed_range
        self.worker = worker
        self.container = container
        self.number = next(_numbers)
        self.progress = Progress(moved_at=acquired_at)
        self.notes = Notes(lease.properties.get(NOTES))
        self.drain = asyncio.Event()
        self.handover_requested = self.unfinished_split = self.splitting = self._ended = False
        # All changes up to this position were handled. The stored lease may have an earlier position.
        self.continuation = lease.continuation
        self.pages = self._pages_saved = 0
        self._trust_seconds, self._checkpoint_seconds = worker.options.trust_seconds, 0.0
        self._note_write(lease, acquired_at, 0)
        self._suspended_before = suspended_before
        self._marks: dict[str, str | None] = {}
        self._advanced = asyncio.Event()

    def end(self) -> None:
        """Forbid all further work on the lease. Call this before you cancel the task that does the work."""
        self._ended = True

    def ensure_active(self) -> None:
        """
        Raise if the worker may neither begin more work on the lease nor count work as done.

        Cancelling the task is not enough: a handler, or a library that it calls, may swallow the cancellation. The
        task's `cancelling()` does not help either, because some libraries leave their own timeouts counted in it.

        Raises:
            asyncio.CancelledError: the work was ended.
            LeaseLost: the lease was not renewed in time, so another worker may own it.
        """
        if self._ended:
            raise asyncio.CancelledError
        self.ensure_trusted()

    def ensure_trusted(self) -> float:
        """
        Raise if the lease was not renewed in time, so that its owner may not write it any more. Return for how many
        seconds in all the machine has been asleep.

        Call this right before each write: the process may have been frozen, or its machine asleep, while the event
        loop's clock stood still.

        Raises:
            LeaseLost: the lease was not renewed in time.
        """
        suspended = self.worker.suspended()
        asleep = max(0.0, suspended - self._suspended_before)
        if asyncio.get_running_loop().time() >= self.trusted_until - asleep:
            raise errors.LeaseLost(f"Lease {self.lease.id} was not renewed in time: its work ends.")
        return suspended

    def advance(
        self,
        continuation: str,
        *,
        lag: int | None = None,
        rest: float = 0.0,
        soon: bool = True,
        handled: bool = False,
    ) -> None:
        """
        Move the position of the lease forward: all changes up to a continuation were handled.

        Args:
            lag, rest: see `Progress`.
            soon: whether the next checkpoint saves the continuation; otherwise the next renewal does.
            handled: whether the page had changes, so that it counts as a handled page.
        """
        self.progress.note_progress(asyncio.get_running_loop().time(), lag=lag, rest=rest)
        self.continuation = continuation
        self.pages += handled
        if soon:
            self._advanced.set()

    def mark(self, properties: Mapping[str, str | None]) -> None:
        """Set properties of the lease, and remove those whose value is None. The next write of the lease saves this."""
        self._marks |= properties
        self._advanced.set()

    def hand_over(self) -> None:
        self.handover_requested = True
        self.drain.set()

    async def keep(self) -> None:
        """
        Renew the lease and write its checkpoints until this task is cancelled.

        Raises:
            LeaseLost: another worker owns the lease or may take it, because no write succeeded in time; or the lease
                was deleted.
        """
        try:
            while True:
                await self._until_a_write_is_due()
                await self.save()
        finally:
            self.end()

    async def save(self) -> None:
        """
        Write the lease now, with the position up to which all changes were handled. This also renews the lease.

        Raises:
            LeaseLost: see `keep`.
        """
        self._advanced.clear()
        await self._write(continuation=self.continuation)

    async def release(self) -> None:
        """
        Save the position up to which all changes were handled, and give the lease up.

        Raises:
            LeaseLost: see `keep`.
        """
        await self._write(continuation=self.continuation, owner=None)

    async def _until_a_write_is_due(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout_at(self._renew_at):
                await self._advanced.wait()
                await asyncio.sleep(max(0.0, self._checkpoint_at - loop.time()))
        except TimeoutError:
            return

    async def _write(self, **changes: Any) -> None:
        loop, worker = asyncio.get_running_loop(), self.worker
        attempt, pages = 0, self.pages  # this write covers only these pages, while `self.pages` may grow
        throttled, at_least = False, None
        try:
            async with asyncio.timeout_at(self.trusted_until):
                while True:
                    attempt += 1
                    sent_at, at_least, properties = loop.time(), None, self._properties()
                    # The timeout above takes effect only when the event loop runs. After a freeze, the process
                    # could send the request before the timeout stops it, so check again that it may use the lease.
                    suspended = self.ensure_trusted()
                    changed = self.lease.with_changes(now=worker.utcnow(), properties=properties, **changes)
                    try:
                        written = from_document(
                            await worker.store.replace(changed.raw, etag=self.lease.etag or "")
                        )
                    except errors.PreconditionFailed:
                        await self._read_again()
                    except errors.NotFound as gone:
                        raise errors.LeaseLost(f"Lease {self.lease.id} was deleted.") from gone
                    except errors.TooManyRequests as error:
                        throttled, at_least = True, error.retry_after
                    except (errors.ConfigurationError, errors.StoreError):
                        pass  # try again: the store may recover before the lease expires
                    else:
                        if handover_requested_by(written):
                            self.hand_over()
                        self._suspended_before = suspended
                        usual = worker.options.checkpoint_interval.total_seconds()
                        longest = worker.options.renew_interval.total_seconds()
                        seconds = 2 * max(usual, self._checkpoint_seconds) if throttled else usual
                        self._checkpoint_seconds = min(seconds, longest)
                        self._note_write(written, sent_at, pages)
                        return
                    # Pause after a 412 (precondition failed) too. A replica that lags may have returned a
                    # lease that is older than the write which caused the 412, so the next write would fail as
                    # well.
                    await asyncio.sleep(_WRITE_BACKOFF.delay(attempt, at_least=at_least))
        except TimeoutError:
            raise errors.LeaseLost(f"Lease {self.lease.id} could not be renewed before it expired.") from None

    def _properties(self) -> Mapping[str, str]:
        standstill = self.progress.standstill(asyncio.get_running_loop().time())
        changed = {**self.lease.properties, **self._marks, NOTES: self.notes.text, STANDSTILL: standstill}
        return {name: text for name, text in changed.items() if text is not None}

    async def _read_again(self) -> None:
        """
        Read the lease after Cosmos DB refused a write with 412. The lease is lost if it has another owner. This worker
        still owns it if another worker only asked for it, or if an earlier write of this worker succeeded and its
        answer was lost.
        """
        try:
            found = from_document(await self.worker.store.read(self.lease.id, self.lease.partition_key))
        except (errors.NotFound, errors.ConfigurationError) as error:
            raise errors.LeaseLost(
                f"Lease {self.lease.id} was deleted, or is the document of another program now."
            ) from error
        except errors.StoreError:
            return
        if found.owner != self.lease.owner:
            raise errors.LeaseLost(f"Lease {self.lease.id} belongs to {found.owner!r} now.")
        self.lease = replace(found, range=found.range or self.range)

    def _note_write(self, lease: Lease, sent_at: float, pages: int) -> None:
        options = self.worker.options
        self.lease = replace(lease, range=lease.range or self.range)
        # Until this time, by the clock of the event loop, the worker may use the lease.
        self.trusted_until = sent_at + self._trust_seconds
        self._renew_at = sent_at + options.renew_interval.total_seconds()
        self._checkpoint_at = sent_at + self._checkpoint_seconds
        if pages > self._pages_saved:
            self._pages_saved = pages
            self.worker.notify(LeaseCheckpointed(lease=lease.id, pages=pages))
