"""
Tenure: one worker's ownership of one lease; the only place that writes a lease while it is owned.

One task does all the writing, so a renewal and a checkpoint never collide: whatever is due goes into one write, which
carries the etag of the write before. The continuation written is always that of work that is done.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from cosmos_outbox.changefeed.balancing import signed, wish_for
from cosmos_outbox.changefeed.leases import NOTES, Lease, from_document
from cosmos_outbox.changefeed.options import ProcessorOptions
from cosmos_outbox.changefeed.suspension import asleep_since, suspended_seconds
from cosmos_outbox.errors import (
    ConfigurationError,
    LeaseLost,
    NotFound,
    PreconditionFailed,
    StoreError,
    TooManyRequests,
)
from cosmos_outbox.ports import LeaseStore, Notes
from cosmos_outbox.records import Hook, LeaseCheckpointed, ignore
from cosmos_outbox.retries import Backoff

_numbers = itertools.count(1)
_WRITE_BACKOFF = Backoff(initial_seconds=0.05, maximum_seconds=2.0)


class Tenure:
    """
    Ownership of a lease from its acquisition to its release or loss.

    `drain` is set when the owner should finish what it does and release: on stop, or when another worker asks.
    """

    def __init__(
        self,
        lease: Lease,
        store: LeaseStore,
        options: ProcessorOptions,
        *,
        utcnow: Callable[[], datetime],
        acquired_at: float,
        notify: Hook = ignore,
        suspended: Callable[[], float] = suspended_seconds,
        suspended_before: float | None = None,
    ) -> None:
        self.lease = lease
        self.number = next(_numbers)
        self.drain = asyncio.Event()
        self.wanted = False
        self.replacing = False  # the range is gone: no work is done, others may own its children already
        self._ended = False
        self._store = store
        self._options = options
        self._notify = notify
        self._utcnow = utcnow
        self._trusted_until = acquired_at + options.trust_seconds
        self._renew_at = acquired_at + options.renew_interval.total_seconds()
        self._checkpoint_at = acquired_at
        self._checkpoint_seconds = options.checkpoint_interval.total_seconds()
        self._suspended = suspended
        self._suspended_before = suspended() if suspended_before is None else suspended_before
        self._done = lease.continuation
        self._marks: dict[str, str | None] = {}
        self.pages = self._pages_saved = 0  # handled in this tenure, and of those in the lease's continuation
        self.notes = Notes(lease.properties.get(NOTES))
        self._advanced = asyncio.Event()

    @property
    def continuation(self) -> str | None:
        """
        Return up to where all changes are done (perhaps not saved yet).
        """
        return self._done

    @property
    def trusted_until(self) -> float:
        """
        Return until when, on the loop's clock, this owner may act.
        """
        return self._trusted_until

    def end(self) -> None:
        """
        Forbid all further work; to be called before it is cancelled.
        """
        self._ended = True

    def ensure_active(self) -> None:
        """
        Raise where nothing more of the work may be begun, or called done.

        The cancellation alone is not enough: a handler, or a library below it, may keep it to itself. Nor does the
        task's `cancelling()` tell, for there are libraries that leave their own timeouts counted in it.

        Raises:
            asyncio.CancelledError: the work was ended.
            LeaseLost: trust ran out.
        """
        if self._ended:
            raise asyncio.CancelledError
        self.ensure_trusted()

    def ensure_trusted(self) -> None:
        """
        Raise where nothing more may be written; asked at the very moment of sending, as a process may have been frozen,
        or its machine asleep, for which the loop's clock stands still.

        Raises:
            LeaseLost: trust ran out.
        """
        asleep = asleep_since(self._suspended_before, self._suspended())
        if asyncio.get_running_loop().time() >= self._trusted_until - asleep:
            raise LeaseLost(f"Lease {self.lease.id} was not renewed in time.")

    def advance(self, continuation: str, *, soon: bool = True, handled: bool = False) -> None:
        """
        Note that all changes up to a continuation are done; it is saved soon, or with the next renewal.

        Args:
            handled: whether there were changes, so that one more page is handled.
        """
        self._done = continuation
        self.pages += handled
        if soon:
            self._advanced.set()

    def mark(self, properties: Mapping[str, str | None]) -> None:
        """
        Set properties of the lease, or take away those that are None; saved soon.
        """
        self._marks |= properties
        self._advanced.set()

    def restart(self, properties: Mapping[str, str | None]) -> None:
        """
        Note that nothing counts as done any more, and set properties, of which one says where it begins; saved soon.
        """
        self._done = None
        self.mark(properties)

    def hand_over(self) -> None:
        """
        Ask the pump to finish, because another worker wants the lease.
        """
        self.wanted = True
        self.drain.set()

    async def keep(self) -> None:
        """
        Renew and checkpoint until cancelled.

        Raises:
            LeaseLost: another worker owns the lease, it is gone, or trust ran out before a write succeeded.
        """
        try:
            while True:
                await self._until_a_write_is_due()
                await self.save()
        finally:
            self.end()

    async def save(self) -> None:
        """
        Write the lease now, with the continuation of the work that is done; this also renews it.

        Raises:
            LeaseLost: as `keep`.
        """
        self._advanced.clear()
        await self._write(continuation=self._done)

    async def release(self) -> None:
        """
        Save what is done and give the lease up; a loss of the lease on the way is no error.
        """
        try:
            await self._write(continuation=self._done, owner=None)
        except LeaseLost:
            return

    async def _until_a_write_is_due(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout_at(self._renew_at):
                await self._advanced.wait()
                await asyncio.sleep(max(0.0, self._checkpoint_at - loop.time()))
        except TimeoutError:
            return

    async def _write(self, **changes: Any) -> None:
        loop = asyncio.get_running_loop()
        attempt, pages = 0, self.pages  # those that this write's continuation covers
        throttled = False
        try:
            async with asyncio.timeout_at(self._trusted_until):
                while True:
                    attempt += 1
                    sent_at, suspended = loop.time(), self._suspended()
                    at_least: float | None = None
                    # The timeout above only strikes at the next pause, and after a freeze there may be none before
                    # the request is on its way.
                    self.ensure_trusted()
                    changed = self.lease.with_changes(
                        now=self._utcnow(), properties=self._properties(), **changes
                    )
                    try:
                        document = await self._store.replace(changed.raw, etag=self.lease.etag or "")
                    except PreconditionFailed:
                        await self._look_again()
                    except NotFound as gone:
                        raise LeaseLost(f"Lease {self.lease.id} is gone.") from gone
                    except TooManyRequests as error:
                        throttled, at_least = True, error.retry_after
                    except StoreError:
                        pass  # it may recover before trust runs out
                    else:
                        self._suspended_before = suspended
                        self._stretch_checkpoints(throttled=throttled)
                        self._written(from_document(document), sent_at, pages)
                        return
                    # Also after a 412: what was read then may be older than what refused us.
                    await asyncio.sleep(_WRITE_BACKOFF.delay(attempt, at_least=at_least))
        except TimeoutError:
            raise LeaseLost(f"Lease {self.lease.id} could not be renewed in time.") from None

    def _properties(self) -> Mapping[str, str]:
        changed = {**self.lease.properties, **self._marks, NOTES: self.notes.text}
        return {name: text for name, text in changed.items() if text is not None}

    async def _look_again(self) -> None:
        """
        Read the lease after somebody wrote it: a wish or an answer of ours that was lost is no loss, another owner is.
        """
        try:
            found = from_document(await self._store.read(self.lease.id, self.lease.partition_key))
        except (NotFound, ConfigurationError) as error:
            raise LeaseLost(f"Lease {self.lease.id} is gone, or one of another program now.") from error
        except StoreError:
            return
        if found.owner != self.lease.owner:
            raise LeaseLost(f"Lease {self.lease.id} belongs to {found.owner!r} now.")
        self.lease = replace(found, range=found.range or self.lease.range)

    def _stretch_checkpoints(self, *, throttled: bool) -> None:
        """
        Save half as often after a write that was throttled, as usual after one that was not: renewals come first.
        """
        usual, longest = self._options.checkpoint_interval, self._options.renew_interval
        seconds = 2 * self._checkpoint_seconds if throttled else usual.total_seconds()
        self._checkpoint_seconds = min(seconds, longest.total_seconds())

    def _written(self, lease: Lease, sent_at: float, pages: int) -> None:
        self.lease = replace(lease, range=lease.range or self.lease.range)
        self._trusted_until = sent_at + self._options.trust_seconds
        self._renew_at = sent_at + self._options.renew_interval.total_seconds()
        self._checkpoint_at = sent_at + self._checkpoint_seconds
        if wish_for(self.lease):
            self.hand_over()
        if pages > self._pages_saved:
            self._pages_saved = pages
            self._notify(LeaseCheckpointed(lease=lease.id, pages=pages))


async def acquire(
    lease: Lease,
    store: LeaseStore,
    options: ProcessorOptions,
    *,
    utcnow: Callable[[], datetime],
    notify: Hook = ignore,
    suspended: Callable[[], float] = suspended_seconds,
) -> Tenure:
    """
    Take a lease that is free, expired, promised to us, or to be robbed.

    Raises:
        PreconditionFailed: somebody wrote it since it was listed.
        NotFound: it is gone.
        StoreError: the outcome is unknown; the next balancing pass finds out.
    """
    sent_at, suspended_before = asyncio.get_running_loop().time(), suspended()
    me = options.instance_name
    taken = lease.with_changes(now=utcnow(), owner=me, properties=signed(lease.properties, me))
    document = await store.replace(taken.raw, etag=lease.etag or "")
    owned = replace(from_document(document), range=taken.range)
    return Tenure(
        owned,
        store,
        options,
        utcnow=utcnow,
        acquired_at=sent_at,
        notify=notify,
        suspended=suspended,
        suspended_before=suspended_before,
    )
