"""
Deletion: delete events of chosen types once they were sent and no worker can read them again.

Without deletion, Cosmos DB deletes an event when its TTL ends, with request units that no other work needs. `delete_after_publish`
is for events that must not stay that long; each deletion is an ordinary, paid write. Nothing is deleted while the container has another
processor, because that processor may not have read the events that this one has sent.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from datetime import timedelta
from typing import Self

from cosmos_outbox import records
from cosmos_outbox.errors import NotFound
from cosmos_outbox.partition_key import PartitionKey, identity, key_text
from cosmos_outbox.ports import MAX_BATCH_OPERATIONS, MAX_EVENT_BYTES, ChangeBatch, Store, Write, WriteKind
from cosmos_outbox.relay.sending_lanes import Delivery, PageHandler, event_page
from cosmos_outbox.retries import Backoff
from cosmos_outbox.stored_documents import size_on_wire

ALL_ACTIONS = "*"
# How long an event stays at least. A commit whose answer was lost looks for its event, and takes a missing event as proof that it was not
# applied (decision 5). So an event must not be deleted too soon.
DEFAULT_KEEP = timedelta(minutes=2)
_MOST_ATTEMPTS = 8
_MOST_WAITING = 50_000
# This is shorter than `keep`. So a new processor is noticed before any event is deleted that was written after the processor's first lease.
_POLL_OTHERS_SECONDS = 30.0
_REPORT_AGAIN_SECONDS = 60.0

Others = Callable[[], Awaitable[Sequence[str]]]
_Ids = list[tuple[PartitionKey, list[str]]]  # the ids of events to delete, by partition key


class Deletion:
    """
    A handler that calls the relay and later deletes the events that it sent. `hear` is a hook, which notes which checkpoints were written.

        async with Deletion(relay.handle, store, delete={"ContactDeletedEvent"}, others=others) as deletion:
            processor = ChangeFeedProcessor(feed, leases, deletion, options, hooks=(log_hook, deletion.hear))

    Deletion is not guaranteed: after a crash, a lost lease or a failure of the store, events stay until their TTL ends.

    Args:
        handler: sends the events; when it returns, all of the page is sent or held in the parked store.
        store: the container of the events.
        delete: the actions of the events to delete; `*` stands for all. If it is empty, nothing is deleted.
        others: a function that returns the names of other processors of the container. Nothing is deleted while there are any, or while
            the function fails. It is called before deletions, every 30 s at most.
        keep: how long an event stays after its checkpoint: at least a minute, because the recovery of commits relies on it.
            Defaults to 2 minutes.
        notify: receives the records of deletions. Defaults to logging them.
    """

    def __init__(
        self,
        handler: PageHandler,
        store: Store,
        *,
        delete: Iterable[str],
        others: Others,
        keep: timedelta = DEFAULT_KEEP,
        notify: records.Hook = records.log_hook,
    ) -> None:
        self._handler, self._store, self._notify = handler, store, records.guard(notify)
        self._actions, self._others, self._keep_seconds = frozenset(delete), others, keep.total_seconds()
        self._backoff = Backoff()
        self._alone_until = float("-inf")  # on the loop's clock
        # for each lease: the pages that were handled and that no checkpoint covers yet, with the events to delete, oldest first
        self._handled: dict[str, deque[tuple[int, _Ids]]] = {}
        self._due: asyncio.Queue[tuple[float, _Ids]] = asyncio.Queue()
        self._waiting = 0

    async def __aenter__(self) -> Self:
        self._deleting = asyncio.create_task(self._delete_when_due())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._deleting.cancel()
        await asyncio.wait({self._deleting})

    async def __call__(self, batch: ChangeBatch) -> None:
        """Hand the page to the relay. Remember which events may be deleted once the checkpoint is written."""
        page = event_page(batch)
        await self._handler(page)
        ids: dict[Hashable, tuple[PartitionKey, list[str]]] = {}
        for delivery in filter(self._is_to_delete, page.events):
            # this is never None for an event, but the type checker does not know that
            if (key := batch.key_paths.key_of(delivery.document)) is not None:
                ids.setdefault(identity(key), (key, []))[1].append(delivery.id)
        if ids:
            self._handled.setdefault(batch.lease, deque()).append((batch.page, [*ids.values()]))

    def _is_to_delete(self, delivery: Delivery) -> bool:
        asked = ALL_ACTIONS in self._actions or delivery.event.action in self._actions
        # A larger event is not deleted: if it was parked without its payload, a release reads the payload in this container.
        return asked and size_on_wire(delivery.document) <= MAX_EVENT_BYTES // 2

    def hear(self, record: records.Record) -> None:
        """At a checkpoint, schedule the deletion of the events that it covers. If a lease moved, forget its pages that none covers."""
        if isinstance(record, records.LeaseMoved):
            self._handled.pop(record.lease, None)
        if not isinstance(record, records.LeaseCheckpointed):
            return
        handled = self._handled.get(record.lease, deque())
        while handled and handled[0][0] <= record.pages:
            _, ids = handled.popleft()
            events = sum(len(event_ids) for _, event_ids in ids)
            # Do not remember more events, to limit memory. Cosmos DB deletes these when their time to live ends.
            if self._waiting + events > _MOST_WAITING:
                reason = f"Lease {record.lease}: {self._waiting} events wait to be deleted already."
                self._notify(records.EventDeletion(outcome="skipped", events=events, reason=reason))
                continue
            self._waiting += events
            self._due.put_nowait((asyncio.get_running_loop().time() + self._keep_seconds, ids))

    async def _delete_when_due(self) -> None:
        while True:
            due_at, ids = await self._due.get()
            await asyncio.sleep(due_at - asyncio.get_running_loop().time())
            for partition_key, event_ids in ids:
                for start in range(0, len(event_ids), MAX_BATCH_OPERATIONS):
                    await self._delete(partition_key, event_ids[start : start + MAX_BATCH_OPERATIONS])
                self._waiting -= len(event_ids)

    async def _delete(self, partition_key: PartitionKey, left: list[str]) -> None:
        """Delete events of one partition key in one batch, except those that are gone already."""
        attempt, key = 0, key_text(partition_key)
        while left:
            await self._until_alone()
            try:
                await self._store.commit(
                    partition_key, [Write(kind=WriteKind.DELETE, id=one) for one in left]
                )
            except Exception as error:  # noqa: BLE001 - one failure must not stop all later deletions
                if isinstance(error, NotFound) and error.document_id in left:
                    left.remove(error.document_id)
                    continue
                attempt += 1
                if not getattr(error, "retriable", False) or attempt == _MOST_ATTEMPTS:
                    reason = f"Partition key {key!r}: attempt {attempt} failed."
                    self._notify(
                        records.EventDeletion(outcome="failed", events=len(left), reason=reason, error=error)
                    )
                    return
                await asyncio.sleep(
                    self._backoff.delay(attempt, at_least=getattr(error, "retry_after", None))
                )
            else:
                self._notify(records.EventDeletion(outcome="deleted", events=len(left), partition_key=key))
                return

    async def _until_alone(self) -> None:
        """Return once no other processor reads the container. Until then, report every minute why deletions wait."""
        clock = asyncio.get_running_loop().time
        report_at = float("-inf")
        while (polled_at := clock()) >= self._alone_until:
            try:
                others = await self._others()
                reason = f"Other processors read the container: {', '.join(others)}." if others else None
            except Exception as error:  # noqa: BLE001 - any fault leaves it unknown
                reason = f"Whether other processors read the container is not known: {error}"
            if reason is None:
                self._alone_until = polled_at + _POLL_OTHERS_SECONDS
                return
            if polled_at >= report_at:
                report_at = polled_at + _REPORT_AGAIN_SECONDS
                self._notify(records.EventDeletion(outcome="waiting", events=self._waiting, reason=reason))
            await asyncio.sleep(_POLL_OTHERS_SECONDS)
