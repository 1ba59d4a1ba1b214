"""
Retention: events of the types that ask for it are deleted once they were sent and no worker can read them again.

An event normally stays until its time to live ends, which costs nothing that other work could use. `delete_after_publish`
is for events that must not lie around; each deletion is an ordinary, paid write. What one processor has sent another one of
the same container may not have read, so nothing is deleted where there is another.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Self

from cosmos_outbox.documents import Document, StoredEvent, copied_size, stored_event
from cosmos_outbox.errors import NotFound
from cosmos_outbox.ports import (
    MAX_BATCH_OPERATIONS,
    MAX_EVENT_BYTES,
    ChangeBatch,
    ChangeHandler,
    Store,
    Write,
    WriteKind,
)
from cosmos_outbox.records import (
    DeletionFailed,
    DeletionsSkipped,
    DeletionsStopped,
    EventsDeleted,
    Hook,
    LeaseCheckpointed,
    LeaseClosed,
    Record,
    guarded,
    log_hook,
)
from cosmos_outbox.retries import Backoff

ALL_ACTIONS = "*"
# A commit whose answer was lost proves itself by its events (decision 5), and by their absence for a minute.
DEFAULT_KEEP = timedelta(minutes=2)
_MOST_ATTEMPTS = 8
_MOST_WAITING = 50_000
_ASKED_AGAIN_SECONDS = (
    30.0  # less than an event is kept: no event of after another one's first lease is ever deleted
)
_TOLD_AGAIN_SECONDS = 60.0

Others = Callable[[], Awaitable[Sequence[str]]]
_Ids = dict[str, list[str]]  # of events to delete, by partition key


class Retention:
    """
    A handler around another one, and a hook that hears of checkpoints: deletes what both say is done.

        async with Retention(relay, store, delete={"ContactDeletedEvent"}, others=others) as retention:
            processor = ChangeFeedProcessor(feed, leases, retention, options, hooks=(log_hook, retention.hear))

    Deleting is an effort, not a promise: what a crash, a lost lease or a store that keeps failing leaves behind stays
    until its time to live ends.

    Args:
        handler: what sends the events; returning means that all of the batch is sent or held elsewhere.
        store: the container of the events.
        delete: actions of the events to delete; `*` stands for all, and without any this does nothing.
        others: returns the names of other processors of the container; nothing is deleted while there are any, or where
            it fails. Asked before deletions, every 30 s at most.
        keep: how long an event stays at least after its checkpoint; no less than a minute, for which a commit in doubt
            takes its absence for a proof. Defaults to 2 minutes.
        backoff: between attempts to delete.
        notify: hears of deletions. Defaults to logging.
    """

    def __init__(
        self,
        handler: ChangeHandler,
        store: Store,
        *,
        delete: Iterable[str],
        others: Others,
        keep: timedelta = DEFAULT_KEEP,
        backoff: Backoff | None = None,
        notify: Hook = log_hook,
    ) -> None:
        self._handler, self._store, self._notify = handler, store, guarded(notify)
        self._actions = frozenset(delete)
        self._others = others
        self._alone_until = float("-inf")  # on the loop's clock
        self._keep_seconds = keep.total_seconds()
        self._backoff = backoff or Backoff()
        self._handled: dict[str, deque[tuple[int, _Ids]]] = {}  # by lease, not checkpointed yet, oldest first
        self._due: deque[tuple[float, _Ids]] = deque()
        self._waiting = 0
        self._something_due = asyncio.Event()
        self._deleting: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._deleting = asyncio.create_task(self._delete_when_due())
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._deleting is not None:
            self._deleting.cancel()
            await asyncio.wait({self._deleting})

    async def __call__(self, batch: ChangeBatch) -> None:
        """
        Hand the batch on; note what may be deleted once its checkpoint is written.
        """
        await self._handler(batch)
        if not self._actions:
            return
        ids: _Ids = {}
        for document in batch.documents:
            event = stored_event(document)
            if event is not None and self._asks(event) and _is_copied_if_held(document):
                ids.setdefault(event.partition_key, []).append(event.id)
        if ids:
            self._handled.setdefault(batch.lease, deque()).append((batch.page, ids))

    def _asks(self, event: StoredEvent) -> bool:
        return ALL_ACTIONS in self._actions or event.action in self._actions

    def hear(self, record: Record) -> None:
        """
        Take note of a checkpoint, or of the end of a tenure.
        """
        if isinstance(record, LeaseCheckpointed):
            self._checkpointed(record.lease, record.pages)
        elif isinstance(record, LeaseClosed):
            # What it did not checkpoint, its next owner sends again.
            self._handled.pop(record.lease, None)

    def _checkpointed(self, lease: str, pages: int) -> None:
        handled = self._handled.get(lease, deque())
        due_at = asyncio.get_running_loop().time() + self._keep_seconds
        while handled and handled[0][0] <= pages:
            _, ids = handled.popleft()
            events = sum(map(len, ids.values()))
            if self._waiting + events > _MOST_WAITING:  # memory is bounded; their time to live ends too
                self._notify(DeletionsSkipped(lease=lease, events=events, waiting=self._waiting))
                continue
            self._waiting += events
            self._due.append((due_at, ids))
            self._something_due.set()

    async def _delete_when_due(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._something_due.wait()
            due_at, ids = self._due[0]
            await asyncio.sleep(due_at - loop.time())
            for partition_key, event_ids in ids.items():
                for start in range(0, len(event_ids), MAX_BATCH_OPERATIONS):
                    await self._delete(partition_key, event_ids[start : start + MAX_BATCH_OPERATIONS])
                self._waiting -= len(event_ids)
            self._due.popleft()
            if not self._due:
                self._something_due.clear()

    async def _delete(self, partition_key: str, event_ids: Sequence[str]) -> None:
        """
        Delete events of one partition key in one batch; those that are gone already are left out.
        """
        left = list(event_ids)
        attempt = 0
        while left:
            await self._until_alone()
            try:
                await self._store.commit(
                    partition_key, [Write(kind=WriteKind.DELETE, id=name) for name in left]
                )
            except NotFound as gone:
                if gone.document_id not in left:
                    self._notify(DeletionFailed(partition_key=partition_key, events=len(left), error=gone))
                    return
                left.remove(gone.document_id)
            except Exception as error:  # noqa: BLE001 - all other deletions wait behind this one
                attempt += 1
                if not getattr(error, "retriable", False) or attempt == _MOST_ATTEMPTS:
                    self._notify(DeletionFailed(partition_key=partition_key, events=len(left), error=error))
                    return
                await asyncio.sleep(
                    self._backoff.delay(attempt, at_least=getattr(error, "retry_after", None))
                )
            else:
                self._notify(EventsDeleted(partition_key=partition_key, events=len(left)))
                return

    async def _until_alone(self) -> None:
        """
        Return once no other processor reads the container; told of every minute until then.
        """
        loop = asyncio.get_running_loop()
        told_at: float | None = None
        while loop.time() >= self._alone_until:
            asked_at = loop.time()
            try:
                others = await self._others()
                reason = f"Other processors read the container: {', '.join(others)}." if others else None
            except Exception as error:  # noqa: BLE001 - any fault leaves it unknown
                reason = f"Whether other processors read the container is not known: {error}"
            if reason is None:
                self._alone_until = asked_at + _ASKED_AGAIN_SECONDS
                return
            if told_at is None or asked_at >= told_at + _TOLD_AGAIN_SECONDS:
                told_at = asked_at
                self._notify(DeletionsStopped(reason=reason, waiting=self._waiting))
            await asyncio.sleep(_ASKED_AGAIN_SECONDS)


def _is_copied_if_held(document: Document) -> bool:
    # A larger one may have been parked as a reference, and is then nowhere else.
    return copied_size(document) <= MAX_EVENT_BYTES // 2
