"""
Deletion: delete events of chosen types once they were sent and no worker can read them again.

Cosmos DB deletes every event when its TTL ends, with request units that no other work needs (`domain/events.py` has the default TTL).
The setting `delete_after_publish` is for events that must not stay that long. Each of its deletions is an ordinary, paid write. Nothing
is deleted while another processor reads the container, because that processor may not have read the events yet that this processor has
sent.
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
# How long an event stays after it was sent. A commit whose answer was lost looks for its own event. If the event is missing, the commit
# counts as not applied (decision 5), so an event that is deleted too soon would have its commit repeated.
DEFAULT_KEEP = timedelta(minutes=2)
_MOST_ATTEMPTS = 8
_MOST_WAITING = 50_000
# This is shorter than the time for which an event is kept. So another processor that starts now is noticed before events are deleted that
# it has not read yet.
_POLL_OTHERS_SECONDS = 30.0
_REPORT_AGAIN_SECONDS = 60.0

Others = Callable[[], Awaitable[Sequence[str]]]
_Ids = list[tuple[PartitionKey, list[str]]]  # the ids of events to delete, by partition key


class Deletion:
    """
    A handler that calls the relay, and later deletes the events that the relay sent. Its method `hear` has to be a hook of the processor, to
    learn which checkpoints were written.

        async with Deletion(relay.handle, store, delete={"ContactDeletedEvent"}, others=others) as deletion:
            processor = ChangeFeedProcessor(feed, leases, deletion, options, hooks=(log_hook, deletion.hear))

    Deletion is not guaranteed: after a crash, a lost lease or a failure of the store, events stay until their TTL ends.

    Args:
        handler: sends the events. When it returns, every event of the page was sent or put into the parked store.
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
        # Until this time, assume that no other processor reads the container.
        self._alone_until = float("-inf")
        # for each lease: the pages that were handled since the last checkpoint, oldest first, each with the events to delete
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
            # `key_of` never returns None for an event, but the type checker does not know that.
            if (key := batch.key_paths.key_of(delivery.document)) is not None:
                ids.setdefault(identity(key), (key, []))[1].append(delivery.id)
        if ids:
            self._handled.setdefault(batch.lease, deque()).append((batch.page, [*ids.values()]))

    def _is_to_delete(self, delivery: Delivery) -> bool:
        asked = ALL_ACTIONS in self._actions or delivery.event.action in self._actions
        # Never delete a large event. It may have been parked without its payload, and then a release reads the payload in this container.
        return asked and size_on_wire(delivery.document) <= MAX_EVENT_BYTES // 2

    def hear(self, record: records.Record) -> None:
        """
        When a checkpoint was written, schedule the deletion of the events before it. When a lease moved to another worker, forget the
        pages after its last checkpoint, because that worker reads them again.
        """
        if isinstance(record, records.LeaseMoved):
            self._handled.pop(record.lease, None)
        if not isinstance(record, records.LeaseCheckpointed):
            return
        handled = self._handled.get(record.lease, deque())
        while handled and handled[0][0] <= record.pages:
            _, ids = handled.popleft()
            events = sum(len(event_ids) for _, event_ids in ids)
            # Too many events wait already: forget the events of this page, to limit memory. Cosmos DB deletes them when their TTL ends.
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
        """Delete events of one partition key in one batch. An event that no longer exists is left out of the batch."""
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
