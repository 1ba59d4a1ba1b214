"""
One simulated worker: a change feed processor with its own faulty network, which a script can freeze. Its handler fails or hangs as the
script says, and checks that the worker still owns the lease.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from cosmos_outbox.adapters.memory.container import MemoryContainer
from cosmos_outbox.changefeed import ChangeFeedProcessor, ProcessorOptions
from cosmos_outbox.changefeed.leases import Lease
from cosmos_outbox.changefeed.owned_lease import OwnedLease
from cosmos_outbox.partition_key import FeedRange
from cosmos_outbox.ports import ChangeBatch, Document
from cosmos_outbox.records import Record
from tests.simulation.attributed_leases import AttributedLeases
from tests.simulation.faulty_network import Link
from tests.simulation.freeze import FREEZE, Freeze, service_time
from tests.simulation.invariants import Invariants


class Worker:
    """
    A worker process. It starts when it is created.

    Args:
        attributed: the worker's access to the leases.
        arrives: called with each change that the handler has handled.
        looks: called when the handler begins a page. It checks that no two workers believe that they own the same lease.
        race: writes a lease just before this worker does, so that the worker's write conflicts.
        now: returns the time on the worker's own clock.
        hot: returns whether a range of the feed is throttled.
        hears: called with each record of the processor.
    """

    def __init__(
        self,
        container: MemoryContainer,
        attributed: AttributedLeases,
        invariants: Invariants,
        *,
        arrives: Callable[[Document], None],
        looks: Callable[[], None],
        race: Callable[[Document], Awaitable[object]],
        now: Callable[[], float],
        hot: Callable[[FeedRange], bool],
        hears: Callable[[Record], None],
    ) -> None:
        self.instance = attributed.actor
        self._invariants, self._arrives, self._looks = invariants, arrives, looks
        self.failures, self.hang, self.swallows = 0, 0.0, False
        self.freeze, self._thawed_at = Freeze(), 0.0
        self._handling: list[ChangeBatch] = []
        self._finishing: list[ChangeBatch] = []
        self.feed = Link(lambda: container, hot=hot)
        self.leases = Link(lambda: attributed, sending=self._check_sent, race=race, die=self.die)
        self.processor = ChangeFeedProcessor(
            self.feed,  # type: ignore[arg-type] # it passes every operation on
            self.leases,  # type: ignore[arg-type] # as well
            self._handle,
            ProcessorOptions(
                processor_name="p",
                instance_name=self.instance,
                max_items=10,
            ),
            hooks=(hears,),
            utcnow=lambda: datetime.fromtimestamp(now(), UTC),
        )
        ownership = self.processor._owned
        ownership._worker = replace(ownership._worker, suspended=lambda: self.freeze.slept)
        context = contextvars.copy_context()
        context.run(FREEZE.set, self.freeze)
        self.task = asyncio.get_running_loop().create_task(self.processor.run(), context=context)

    @property
    def dead(self) -> bool:
        return self.leases.dead

    def die(self) -> None:
        self.feed.dead = self.leases.dead = self.freeze.frozen = True

    def thaw(self) -> None:
        if self.freeze.frozen:
            self._finishing = [*self._handling]
        self._thawed_at = service_time()
        self.freeze.thaw(self._thawed_at)

    def heal(self) -> None:
        self.feed.heal()
        self.leases.heal()
        self.thaw()
        self.failures, self.hang, self.swallows = 0, 0.0, False

    def trusted(self) -> list[tuple[str, Lease, float]]:
        """
        Return the leases that this worker believes to own, each with the time until which it may work on the lease without another write.
        """
        now = service_time()
        return [
            (self.instance, owned.lease, until)
            for owned in self.processor._owned._owned.values()
            if not self.dead and not owned.splitting and (until := self._trusts(owned)) > now
        ]

    def _trusts(self, owned: OwnedLease) -> float:
        """
        Return the time, on the service's clock, until which the worker may believe that it still owns the lease. A sleep of the machine does
        not extend this time, because the lease expires meanwhile.
        """
        return owned.trusted_until + owned._suspended_before

    # its handler

    async def _handle(self, batch: ChangeBatch) -> None:
        self._end_if_dead()
        self._looks()
        task = asyncio.current_task()
        assert task
        if task.cancelling() or not self._may_handle(batch):
            self._violated(f"begins a page of {batch.lease}, which it does not own any more")
        self._invariants.page_begins(self.instance, batch)
        self._handling.append(batch)
        try:
            if self.hang:
                hang, self.hang = self.hang, 0.0
                await asyncio.sleep(hang)
            if self.failures:
                self.failures -= 1
                raise RuntimeError("the handler fails")
            for document in batch.documents:
                await asyncio.sleep(0.01)
                self._end_if_dead()
                if not self._may_handle(batch) and not task.cancelling():
                    self._violated(f"still handles {batch.lease}, which it does not own any more")
                self._arrives(document)
        except asyncio.CancelledError:
            if not self.swallows or self.dead:
                raise
        finally:
            self._handling = [one for one in self._handling if one is not batch]
        if not task.cancelling():
            self._invariants.page_is_done(self.instance, batch)

    def _may_handle(self, batch: ChangeBatch) -> bool:
        """
        Return whether the handler may work on a page now. It may while the worker may still rely on its lease.

        After a freeze, it may also finish the page at which it was frozen, because it could not notice that time passed.
        """
        owned = self.processor._owned._owned.get(batch.lease)
        now = service_time()
        trusted = owned is not None and owned.number == batch.tenure and now <= self._trusts(owned)
        return trusted or now == self._thawed_at or any(batch is one for one in self._finishing)

    def _end_if_dead(self) -> None:
        if self.dead:
            raise asyncio.CancelledError

    # its writes

    def _check_sent(self, operation: str, args: tuple[Any, ...]) -> None:
        """
        Check that the worker writes a lease, or creates its child leases, only while no other worker may take the lease.

        Later writes of a child lease do not depend on its parent lease, because the child is a lease of its own.
        """
        if operation not in ("create", "replace", "delete"):
            return
        document = args[0] if isinstance(args[0], dict) else {"id": args[0]}
        now = service_time()
        for owned in self.processor._owned._owned.values():
            lease = owned.lease
            own = document["id"] == lease.id and document.get("Owner") in (self.instance, None)
            creates_child = operation == "create" and _is_child(document, lease)
            if (own or creates_child) and self._trusts(owned) <= now:
                self._violated(
                    f"sends {operation} of {document['id']} for {lease.id}, not trusting it any more"
                )

    def _violated(self, what: str) -> None:
        self._invariants.violated(f"{self.instance} {what}")


def _is_child(document: Document, lease: Lease) -> bool:
    if "FeedRange" not in document or document["id"] == lease.id or lease.range is None:
        return False
    bounds = document["FeedRange"]["Range"]
    return bool(lease.range.min <= bounds["min"] and bounds["max"] <= lease.range.max)
