"""Handlers and containers that fail or hang, and what a worker does and reports then."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from cosmos_outbox.changefeed.leases import STANDSTILL
from cosmos_outbox.errors import ConfigurationError, StoreUnavailable, UsageError
from cosmos_outbox.ports import ChangeBatch, ChangePage, Write, WriteKind
from cosmos_outbox.records import PageFailed, Record, level_of
from cosmos_outbox.retries import Backoff
from tests.support.changefeed_world import Faulty, World


async def fail(_: ChangeBatch) -> None:
    raise RuntimeError("poison")


async def test_a_page_that_keeps_failing_raises_an_alarm():
    """The worker keeps the lease and goes on trying to handle the page."""
    world = World()
    records: list[Record] = []
    await world.write_many(3)
    processor = world.start("a", handler=fail, halt_after_attempts=4, hooks=[records.append])
    await asyncio.sleep(600)

    failures = [record for record in records if isinstance(record, PageFailed)]
    assert [*range(1, len(failures) + 1)] == [record.attempt for record in failures], "each attempt has one"
    alarms = [record.attempt for record in failures if level_of(record) == logging.ERROR]
    assert [4, 8, 12] == alarms[:3]
    assert {"halted"} == {record.outcome for record in failures if record.attempt in alarms}
    assert {"a": 1} == await world.owners()
    (status,) = processor.status()
    assert (True, "RuntimeError: poison") == (status.stalled, status.error)
    await world.stop_all()


async def test_a_halted_lease_goes_on_by_itself_once_its_handler_works_again():
    world = World()
    broken = True

    async def handler(batch: ChangeBatch) -> None:
        if broken:
            raise RuntimeError("down")
        await world.handle(batch)

    await world.write_many(30)
    world.start("a", handler=handler, halt_after_attempts=2)
    await asyncio.sleep(600)
    broken = False
    seconds = await world.until(world.all_handled)

    assert seconds <= Backoff().maximum_seconds + 1
    await world.stop_all()


async def test_a_lease_whose_handler_takes_too_long_is_reported_as_stalled():
    world = World()

    async def slow(batch: ChangeBatch) -> None:
        await asyncio.sleep(100)
        await world.handle(batch)

    await world.write_many(1)
    processor = world.start("a", handler=slow)
    await asyncio.sleep(55)
    (lease,), (status,) = await world.all_leases(), processor.status()
    assert (False, False) == (status.stalled, STANDSTILL in lease.properties)
    await asyncio.sleep(35)
    (lease,), (status,) = await world.all_leases(), processor.status()
    assert (True, "0") == (status.stalled, status.token)
    assert "A page is not done yet." in lease.properties[STANDSTILL]
    await world.until(world.all_handled)
    assert [False] == [one.stalled for one in processor.status()]
    await world.stop_all()


async def test_no_change_is_skipped_after_failed_reads():
    world = World()
    feed = Faulty(world.container)
    feed.failing["read_page"] = StoreUnavailable
    await world.write_many(30)
    world.start("a", feed=feed)  # type: ignore[arg-type] - it has every method
    await asyncio.sleep(120)
    feed.failing.clear()
    await world.until(world.all_handled)
    await world.stop_all()

    assert {key: list(range(3)) for key in world.handled} == world.handled


@pytest.mark.parametrize("error", [ConfigurationError, UsageError, StoreUnavailable, AttributeError])
async def test_a_worker_survives_a_monitored_container_that_fails_for_a_while(error: type[Exception]):
    world, records = World(ranges=3), list[Record]()
    feed = Faulty(world.container)
    processor = world.start("a", feed=feed, hooks=[records.append])  # type: ignore[arg-type] - it has every method
    await asyncio.sleep(20)
    feed.failing["read_page"] = error
    await world.write_many(30)
    await asyncio.sleep(300)
    failed = [record for record in records if isinstance(record, PageFailed)]
    assert {lease.lease for lease in processor.status() if lease.stalled} == {one.lease for one in failed}
    assert {error} == {type(one.error) for one in failed}
    assert {"a": 3} == await world.owners()
    feed.failing.clear()
    await world.until(world.all_handled)
    await world.stop_all()

    assert world.first_copies_in_order()


@pytest.mark.parametrize(
    "calls",
    [
        ["list"],
        ["replace"],
        ["list", "read", "create", "replace", "delete"],
        ["physical_ranges", "read_page", "partition_id"],
        ["read_page", "partition_id"],
    ],
)
async def test_a_worker_survives_any_calls_to_its_containers_that_fail_for_a_while(calls: list[str]):
    world = World(ranges=3)
    feed, leases = Faulty(world.container), Faulty(world.leases)
    world.start("a", feed=feed, leases=leases)  # type: ignore[arg-type] - they have every method
    await asyncio.sleep(20)
    for call in calls:
        feed.failing[call] = leases.failing[call] = ConfigurationError
    await world.write_many(30)
    for _ in range(3):  # so that the worker has to create and take leases while the calls fail
        await asyncio.sleep(100)
        for lease in (await world.all_leases())[:2]:
            await world.leases.delete(lease.id, lease.id)
    feed.failing.clear()
    leases.failing.clear()
    await world.until(world.all_handled)
    await world.stop_all()


async def test_a_page_with_malformed_documents_is_read_again():
    # `failed` gets the class names of the errors, because an error object would keep its page in memory.
    world, failed = World(), list[str]()
    odd: list[Any] = [None, 7, "text", [None], [7, {"id": "a"}], [{"id": "a"}, "text"]]

    class Odd(Faulty):
        async def read_page(self, *args: Any, **kwargs: Any) -> ChangePage:
            page = await world.container.read_page(*args, **kwargs)
            return replace(page, documents=odd.pop()) if odd else page

    await world.write_many(30)

    def hook(record: Record) -> None:
        if isinstance(record, PageFailed):
            failed.append(type(record.error).__name__)

    world.start("a", feed=Odd(world.container), hooks=[hook])  # type: ignore[arg-type] - as above
    left = len(odd)
    await world.until(world.all_handled)
    await world.stop_all()

    assert left == len(failed)
    assert world.first_copies_in_order()


async def test_a_stop_between_two_attempts_saves_no_position_after_the_failed_page():
    world, records = World(), list[Record]()
    await world.write("k")
    world.start("a", handler=fail, backoff=Backoff(initial_seconds=1000), hooks=[records.append])
    await world.until(lambda: any(isinstance(record, PageFailed) for record in records))
    await world.stop("a")

    (lease,) = await world.all_leases()
    assert (None, None) == (lease.owner, lease.continuation)


async def test_a_worker_goes_on_after_the_document_of_a_failing_page_is_deleted():
    """The worker reads a failed page again before each attempt, so it sees the deletion."""
    world, pages = World(), list[int]()

    async def handle(batch: ChangeBatch) -> None:
        pages.append(batch.page)
        if any(document["id"] == "bad-0" for document in batch.documents):
            raise RuntimeError("never")
        await world.handle(batch)

    world.start("a", handler=handle, halt_after_attempts=3)
    await world.write("bad")
    await world.write("good")
    await asyncio.sleep(5)
    assert not world.handled
    await world.container.commit("bad", [Write(kind=WriteKind.DELETE, id="bad-0", document=None)])
    await world.until(lambda: world.handled["good"] == [0], within=timedelta(minutes=2))
    await world.write("good")
    await world.until(lambda: world.handled["good"] == [0, 1])

    assert {1, 2} == set(pages)
    await world.stop_all()


async def test_a_worker_goes_on_after_the_only_document_of_a_failing_page_is_deleted():
    world = World()

    async def handle(batch: ChangeBatch) -> None:
        if any(document["id"] == "bad-0" for document in batch.documents):
            raise RuntimeError("never")
        assert 1 == batch.page
        await world.handle(batch)

    processor = world.start("a", handler=handle, halt_after_attempts=3)
    await world.write("bad")
    await asyncio.sleep(5)
    await world.container.commit("bad", [Write(kind=WriteKind.DELETE, id="bad-0", document=None)])
    await world.until(lambda: processor.status()[0].failed_attempts == 0, within=timedelta(minutes=2))
    await world.write("good")
    await world.until(lambda: world.handled["good"] == [0])

    await world.stop_all()
