"""
Deletion of events that were sent: which events are deleted, and that no event is deleted before its checkpoint, which saves the
position after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from cosmos_outbox.adapters.memory.container import MemoryContainer
from cosmos_outbox.errors import InvalidRequest, StoreUnavailable, TooManyRequests
from cosmos_outbox.ports import ChangeBatch, CommitResult, Document, Write, WriteKind
from cosmos_outbox.records import (
    EventDeletion,
    LeaseCheckpointed,
    LeaseMoved,
    Record,
)
from cosmos_outbox.relay.deletion import Deletion
from cosmos_outbox.relay.sending_lanes import EventPage
from tests.support.event_documents import entity, event

KEEP = timedelta(seconds=30)


class Container(MemoryContainer):
    """A container that records its deletions and can make them fail."""

    def __init__(self) -> None:
        super().__init__(now=lambda: 1_800_000_000.0)
        self.deletions: list[tuple[str, list[str]]] = []
        self.failures: list[Exception] = []

    async def commit(self, partition_key: str, writes: Sequence[Write]) -> CommitResult:
        deletes = [write.id for write in writes if write.kind is WriteKind.DELETE]
        if deletes and self.failures:
            raise self.failures.pop(0)
        result = await super().commit(partition_key, writes)
        if deletes:
            self.deletions.append((partition_key, deletes))
        return result

    async def add(self, *documents: Document) -> None:
        for document in documents:
            write = Write(kind=WriteKind.CREATE, id=document["id"], document=document)
            await self.commit(document["partitionKey"], [write])


async def handled(_: EventPage) -> None:
    """Handle a page as if all its events were sent."""


async def alone() -> tuple[str, ...]:
    """Report that no other processor reads the container."""
    return ()


def page(*documents: Document, number: int = 1, lease: str = "0") -> ChangeBatch:
    return ChangeBatch(lease=lease, documents=documents, page=number)


def renamed(number: int, key: str = "a") -> Document:
    return event(key, number)


def closed(lease: str = "0") -> LeaseMoved:
    return LeaseMoved(lease=lease, owner="me", outcome="lost")


def deleting(container: Container, **arguments: Any) -> Deletion:
    """Return a Deletion that deletes every event after its checkpoint, unless `arguments` say otherwise."""
    given = {"handler": handled, "delete": {"*"}, "others": alone, "keep": KEEP}
    return Deletion(store=container, **(given | arguments))


async def checkpointed(deletion: Deletion, *documents: Document, number: int = 1) -> None:
    """
    Let the deletion handle a page of these documents, and tell it that the position after the page was saved.
    """
    await deletion(page(*documents, number=number))
    deletion.hear(LeaseCheckpointed(lease="0", pages=number))


async def settled() -> None:
    await asyncio.sleep(KEEP.total_seconds() + 60)


async def test_no_event_is_deleted_before_its_checkpoint():
    container = Container()
    await container.add(renamed(1))
    async with deleting(container) as deletion:
        await deletion(page(renamed(1)))
        await asyncio.sleep(86_400)
        assert [] == container.deletions
        deletion.hear(LeaseCheckpointed(lease="0", pages=1))
        await settled()
    assert [("a", ["a/1"])] == container.deletions


async def test_a_checkpoint_deletes_only_events_of_its_own_pages_and_lease():
    container = Container()
    await container.add(renamed(1), renamed(2), renamed(1, "b"))
    async with deleting(container) as deletion:
        await deletion(page(renamed(1), number=1))
        await deletion(page(renamed(2), number=2))
        await deletion(page(renamed(1, "b"), lease="1"))
        deletion.hear(LeaseCheckpointed(lease="0", pages=1))
        await settled()
    assert [("a", ["a/1"])] == container.deletions


async def test_an_event_is_kept_for_a_while_after_its_checkpoint():
    """In this time, a commit whose answer was lost can find its event, which shows that the commit was written."""
    container = Container()
    await container.add(renamed(1))
    async with deleting(container) as deletion:
        await checkpointed(deletion, renamed(1))
        await asyncio.sleep(KEEP.total_seconds() - 1)
        assert [] == container.deletions
        await asyncio.sleep(2)
        assert 1 == len(container.deletions)


async def test_events_of_a_page_without_a_checkpoint_are_kept_when_the_lease_ends():
    container = Container()
    await container.add(renamed(1), renamed(2))
    async with deleting(container) as deletion:
        await deletion(page(renamed(1)))
        deletion.hear(closed())
        # The next owner numbers its pages from 1 again. Its checkpoint of page 1 must not delete a/1, an event of the
        # first owner's page 1.
        await checkpointed(deletion, renamed(2))
        await settled()
    assert [("a", ["a/2"])] == container.deletions


async def test_events_of_a_page_that_could_not_be_sent_are_kept():
    async def fail(_: EventPage) -> None:
        raise ValueError("no")

    container = Container()
    await container.add(renamed(1))
    async with deleting(container, handler=fail) as deletion:
        with pytest.raises(ValueError, match="no"):
            await checkpointed(deletion, renamed(1))
        await settled()
    assert [] == container.deletions


async def test_only_events_of_the_configured_types_are_deleted():
    other = event("a", 2)
    other["data"]["action"] = "Moved"
    container = Container()
    await container.add(renamed(1), other, entity("a"))
    async with deleting(container, delete={"Renamed"}) as deletion:
        await checkpointed(deletion, renamed(1), other, entity("a"))
        await settled()
    assert [("a", ["a/1"])] == container.deletions


async def test_events_that_no_longer_exist_do_not_prevent_other_deletions():
    container = Container()
    await container.add(renamed(2))
    async with deleting(container) as deletion:
        await checkpointed(deletion, renamed(1), renamed(2), renamed(3))
        await settled()
    assert [("a", ["a/2"])] == container.deletions


async def test_a_deletion_that_failed_from_a_temporary_fault_is_retried():
    """The test also checks that a deletion that failed from a permanent fault is reported and not retried."""
    container, records = Container(), list[Record]()
    await container.add(renamed(1), renamed(1, "b"))
    container.failures = [TooManyRequests(retry_after=1.0), StoreUnavailable(), InvalidRequest()]
    async with deleting(container, notify=records.append) as deletion:
        await checkpointed(deletion, renamed(1), renamed(1, "b"))
        await settled()
    (failed, deleted) = records
    assert isinstance(failed, EventDeletion)
    assert ("failed", 1) == (failed.outcome, failed.events)
    assert "'a'" in failed.reason
    assert EventDeletion(outcome="deleted", events=1, partition_key="b") == deleted


async def test_deletion_goes_on_after_an_exception_of_the_client_or_a_hook():
    container, records = Container(), list[Record]()
    await container.add(renamed(1), renamed(1, "b"), renamed(1, "c"))
    container.failures = [ValueError("an answer that is no JSON")]

    def tell(record: Record) -> None:
        records.append(record)
        if getattr(record, "partition_key", None) == "b":
            raise ValueError("a hook that fails")

    async with deleting(container, notify=tell) as deletion:
        await checkpointed(deletion, renamed(1), renamed(1, "b"), renamed(1, "c"))
        await settled()
    assert [("b", ["b/1"]), ("c", ["c/1"])] == container.deletions
    assert ["failed", "deleted", "deleted"] == [getattr(record, "outcome", "") for record in records]


async def test_an_event_is_kept_while_too_many_events_wait_for_deletion(monkeypatch):
    monkeypatch.setattr("cosmos_outbox.relay.deletion._MOST_WAITING", 3)
    container, records = Container(), list[Record]()
    await container.add(renamed(1), renamed(1, "b"))
    async with deleting(container, notify=records.append) as deletion:
        await deletion(page(*(renamed(number) for number in range(1, 4)), number=1))
        await checkpointed(deletion, renamed(1, "b"), number=2)
        reason = "Lease 0: 3 events wait to be deleted already."
        assert [EventDeletion(outcome="skipped", events=1, reason=reason)] == records
        await settled()
        assert [("a", ["a/1"])] == container.deletions
        await checkpointed(deletion, renamed(1, "b"), number=3)
        await settled()
    assert [("a", ["a/1"]), ("b", ["b/1"])] == container.deletions


class Others:
    """
    Returns the configured names of other processors, or raises `error`, and records the time of each call.
    """

    def __init__(self, *names: str) -> None:
        self.names, self.error, self.asked_at = names, None, list[float]()

    async def __call__(self) -> Sequence[str]:
        self.asked_at.append(asyncio.get_running_loop().time())
        if self.error:
            raise self.error
        return self.names


async def test_the_relay_deletes_nothing_while_another_processor_reads_the_container():
    container, others, records = Container(), Others("audit"), list[Record]()
    await container.add(renamed(1))
    async with deleting(container, others=others, notify=records.append) as deletion:
        await checkpointed(deletion, renamed(1))
        await asyncio.sleep(KEEP.total_seconds() + 181)
        assert [] == container.deletions
        assert 4 == len(records)
        reason = "Other processors read the container: audit."
        assert {EventDeletion(outcome="waiting", events=1, reason=reason)} == set(records)
        others.names = ()
        await asyncio.sleep(31)
    assert [("a", ["a/1"])] == container.deletions


async def test_the_relay_deletes_nothing_while_it_cannot_list_other_processors():
    container, others, records = Container(), Others(), list[Record]()
    others.error = StoreUnavailable("away")
    await container.add(renamed(1))
    async with deleting(container, others=others, notify=records.append) as deletion:
        await checkpointed(deletion, renamed(1))
        await asyncio.sleep(KEEP.total_seconds() + 1)
        assert [] == container.deletions
        (told,) = records
        assert isinstance(told, EventDeletion)
        assert "waiting" == told.outcome
        assert "not known: away" in told.reason
        others.error = None
        await asyncio.sleep(31)
    assert [("a", ["a/1"])] == container.deletions


async def test_the_relay_lists_other_processors_every_30_s():
    container, others = Container(), Others()
    await container.add(*map(renamed, range(1, 101)))
    async with deleting(container, others=others, notify=lambda _: None) as deletion:
        for number in range(1, 101):
            await checkpointed(deletion, renamed(number), number=number)
            await asyncio.sleep(1)
            if number == 70:
                others.names = ("audit",)
        await settled()
    # The relay first lists the other processors at 30 s, when it may delete the first event, and then every 30 s.
    assert [30, 60, 90] == [round(at - others.asked_at[0] + 30) for at in others.asked_at[:3]]
    deleted = [int(event_id.partition("/")[2]) for _, ids in container.deletions for event_id in ids]
    # The processor `audit` started at 70 s. The relay noticed it at 90 s, and deleted no event afterwards. An event is deleted 30 s
    # after it was sent. So only the events of the first 60 s (90 s - 30 s) were deleted, one event each second.
    assert list(range(1, len(deleted) + 1)) == deleted
    assert len(deleted) <= 61
