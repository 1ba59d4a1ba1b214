"""
Tests of a worker's polls: every few seconds it reads how many changes wait, which keys are parked, and the heartbeats of other workers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from cosmos_outbox.adapters.memory.broker import MemoryBroker
from cosmos_outbox.adapters.memory.container import MemoryContainer
from cosmos_outbox.adapters.memory.leases import MemoryLeases
from cosmos_outbox.adapters.memory.parked import MemoryParked
from cosmos_outbox.changefeed import estimate_lag
from cosmos_outbox.changefeed.leases import lease_prefix, new_lease
from cosmos_outbox.errors import StoreUnavailable, TopicUnavailable
from cosmos_outbox.parking import ParkedKeys, Parking, Scope
from cosmos_outbox.parking.parked_documents import KEY_ID
from cosmos_outbox.parking.seen_leases_note import has_run
from cosmos_outbox.partition_key import FeedRange
from cosmos_outbox.ports import Listing, MonitoredContainer
from cosmos_outbox.records import Hook, LeasesBalanced, LeasesLost, Record, WatchFailed, guard
from cosmos_outbox.relay import Relay
from cosmos_outbox.stored_documents import Document
from cosmos_outbox_worker.backlog_polls import poll
from cosmos_outbox_worker.heartbeats import Fleet
from cosmos_outbox_worker.shared_health import summarize_parked
from cosmos_outbox_worker.worker_health import Snapshot, WorkerVitals
from tests.support.event_documents import batch, event
from tests.support.lease_statuses import owning
from tests.support.parked_stores import tampered
from tests.support.worker_settings import worker_settings


async def test_a_worker_with_very_many_parked_keys_reports_only_their_number() -> None:
    keys = ParkedKeys(MemoryParked())
    for number in range(101):
        await keys.park(f"k{number}", reason="a test")
    watched = vitals()
    watched.note_parked(summarize_parked(await keys.list()))
    seen = watched.snapshot().parked
    assert seen is not None
    assert (101, 0, ()) == (seen.count, seen.events, seen.keys)


@pytest.mark.parametrize(
    "change", [{"state": "quarantined"}, {"held": None}], ids=["another state", "no number"]
)
async def test_an_unreadable_parked_document_is_reported_but_ends_no_worker(change: Document) -> None:
    store, feed = MemoryParked(), MemoryContainer()
    scope = Scope(processor="p", container=(await feed.describe()).container_rid)
    relay = Relay(
        MemoryBroker(rejects=lambda message: True).publisher(),
        parking=Parking(store),
        notify=lambda record: None,
    )
    page = batch(event("a", 1), event("b", 1))
    await relay(replace(page, processor=scope.processor, container_rid=scope.container))
    await tampered(store, KEY_ID, scope.partition_of("a"), lambda document: document.update(change))
    watched = vitals()
    failures = asyncio.Semaphore(0)

    def notify(record: Record) -> None:
        watched(record)
        failures.release()

    async with watching(watched, feed=feed, parked=store, notify=notify):
        for _ in range(3):
            await failures.acquire()
    seen = watched.snapshot()
    assert [("WatchFailed", 3)] == [(trouble.event, trouble.times) for trouble in seen.errors]
    assert 2 == (seen.parked.count if seen.parked else None)


@pytest.mark.parametrize("away", ["what waits", "what is parked"])
async def test_a_failed_poll_of_a_worker_does_not_hide_the_result_of_another_poll(away: str) -> None:
    class AwayParked(MemoryParked):
        async def keys(self, *, processor: str, container: str) -> tuple[Document, ...]:
            raise StoreUnavailable(applied=False)

    class AwayFeed(MemoryContainer):
        async def physical_ranges(self) -> Any:
            raise StoreUnavailable(applied=False)

    failures: list[Record] = []
    watched = vitals()
    feed, parked = (AwayFeed(), MemoryParked()) if away == "what waits" else (MemoryContainer(), AwayParked())
    async with watching(watched, feed=feed, parked=parked, notify=failures.append):
        await asyncio.sleep(15)
    seen = watched.snapshot()
    assert {"what waits": seen.lag is None, "what is parked": seen.parked is None} == {
        subject: subject == away for subject in ("what waits", "what is parked")
    }
    assert {away} == {record.subject for record in failures if isinstance(record, WatchFailed)}


async def test_a_worker_reports_its_health_although_a_poll_hangs() -> None:
    class Silent(MemoryContainer):
        async def describe(self) -> MonitoredContainer:
            await asyncio.Event().wait()
            raise AssertionError

    watched = vitals()
    told: list[Snapshot] = []
    watched(LeasesBalanced(owner="w", outcome="listed"))

    async with watching(
        watched, feed=Silent(), notify=pytest.fail, observe=lambda: told.append(watched.snapshot())
    ):
        await asyncio.sleep(67)
    assert () == told[1].unready
    assert "The leases could not be listed." in told[-1].unready[0]


def vitals(instance: str = "w") -> WorkerVitals:
    vitals = WorkerVitals(worker_settings(instance_name=instance))
    vitals.poll_interval, vitals.processor = timedelta(seconds=1), owning()
    return vitals


async def succeed() -> None: ...


@asynccontextmanager
async def watching(
    watched: WorkerVitals,
    *,
    notify: Hook,
    feed: MemoryContainer | None = None,
    leases: MemoryLeases | None = None,
    parked: MemoryParked | None = None,
    reach: Callable[[], Awaitable[None]] = succeed,
    observe: Callable[[], None] = lambda: None,
) -> AsyncIterator[None]:
    """Run the polls of a worker until the end of the block."""
    feed, leases = feed or MemoryContainer(), leases or MemoryLeases()

    async def find_unserved_processors(_expiration: timedelta) -> dict[str, int]:
        return {}

    async def scope() -> Scope:
        return Scope(processor="p", container=(await feed.describe()).container_rid)

    outbox: Any = SimpleNamespace(
        settings=worker_settings(),
        lag=lambda expiration: estimate_lag("p", feed=feed, leases=leases, expiration=expiration),
        find_unserved_processors=find_unserved_processors,
        scope=scope,
        fleet=Fleet(leases, processor="p", container="c"),
    )
    topics: Any = SimpleNamespace(checks={"t": reach})
    program: Any = SimpleNamespace(health=watched, observe=observe, notify=notify)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(poll(program, watched, outbox, topics, parked or MemoryParked()))
        yield
        task.cancel()


async def test_a_failed_poll_is_repeated_sooner_than_the_poll_interval() -> None:
    asked: list[None] = []

    async def reach() -> None:
        asked.append(None)
        raise TopicUnavailable("Topic 'evnets' is missing.")

    watched = vitals()
    watched.poll_interval = timedelta(minutes=1)
    async with watching(watched, notify=watched, reach=reach):
        await asyncio.sleep(59)
    assert 4 == len(asked)


async def test_a_worker_is_not_ready_before_it_has_opened_a_link_to_each_topic() -> None:
    told: list[Record] = []
    watched = vitals()
    watched(LeasesBalanced(owner="w", outcome="listed"))
    attempts = 0

    async def reach() -> None:
        nonlocal attempts
        attempts += 1
        if attempts < 3:
            raise TopicUnavailable("Topic 'evnets' is missing.")

    async with watching(watched, notify=guard(told.append, watched), reach=reach):
        await asyncio.sleep(0.5)
        (reason,) = watched.snapshot().unready
        assert "TopicUnavailable: Topic 'evnets' is missing." in reason
        assert ["whether events can be sent"] == [one.subject for one in told if isinstance(one, WatchFailed)]
        await asyncio.sleep(10)
        assert (3, ()) == (attempts, watched.snapshot().unready)


async def test_workers_without_a_lease_see_each_other_by_heartbeats() -> None:
    leases, told = MemoryLeases(now=asyncio.get_running_loop().time), list[Record]()
    first, second = (vitals(name) for name in ("w-1", "w-2"))
    for one in (first, second):
        one(LeasesBalanced(owner="w", outcome="listed"))
    async with watching(first, leases=leases, notify=told.append):
        async with watching(second, leases=leases, notify=told.append):
            await asyncio.sleep(3)
            assert [("w-2", "stand-by")] == others_of(first)
            assert [("w-1", "stand-by")] == others_of(second)
        await asyncio.sleep(40)
        assert [("w-2", "silent")] == others_of(first), "it was killed"
    assert [] == told


async def test_a_worker_s_heartbeat_contains_its_alarm_about_the_fleet_at_once() -> None:
    leases, watched = MemoryLeases(now=asyncio.get_running_loop().time), vitals()
    watched.poll_interval = timedelta(minutes=1)
    watched(LeasesLost(owner="w", start="beginning", reason="all are gone"))
    async with watching(watched, leases=leases, notify=pytest.fail):
        await asyncio.sleep(1)
        (told,) = await Fleet(leases, processor="p", container="c").heartbeats()
    assert ["All leases were lost (all are gone)"] == [said.partition(",")[0] for said in told.alarms]


@pytest.mark.parametrize("second", range(0, 45, 4))
async def test_other_workers_see_a_frozen_worker_as_silent_within_31_seconds(second: int) -> None:
    leases = MemoryLeases(now=asyncio.get_running_loop().time)
    first, frozen = (vitals(name) for name in ("w-1", "w-2"))
    first.poll_interval = frozen.poll_interval = timedelta(seconds=15)
    async with asyncio.TaskGroup() as group:
        watched = group.create_task(keep_watching(first, leases))
        await asyncio.sleep(second / 3)
        other = group.create_task(keep_watching(frozen, leases))
        await asyncio.sleep(60 + second)
        other.cancel()
        await asyncio.sleep(31)
        assert [("w-2", "silent")] == others_of(first)
        watched.cancel()


async def keep_watching(one: WorkerVitals, leases: MemoryLeases) -> None:
    async with watching(one, leases=leases, notify=pytest.fail):
        await asyncio.Event().wait()


async def test_an_unanswered_poll_does_not_delay_heartbeats() -> None:
    class Silent(MemoryContainer):
        async def physical_ranges(self) -> Any:
            await asyncio.Event().wait()

    leases, watched = MemoryLeases(now=asyncio.get_running_loop().time), vitals("w-2")
    async with (
        watching(vitals("w-1"), feed=Silent(), leases=leases, notify=pytest.fail),
        watching(watched, leases=leases, notify=pytest.fail),
    ):
        await asyncio.sleep(60)
        assert [("w-1", "starting")] == others_of(watched)


async def test_a_worker_notes_in_the_parked_store_that_it_has_had_leases() -> None:
    """If the leases are lost later, the note proves that the worker had some, so it reports the loss."""
    parked, leases, feed = MemoryParked(), MemoryLeases(), MemoryContainer()
    container = await feed.describe()
    scope = Scope(processor="p", container=container.container_rid)
    async with watching(vitals(), feed=feed, leases=leases, parked=parked, notify=pytest.fail):
        await asyncio.sleep(40)
        assert not await has_run(parked, scope)
        lease = new_lease(lease_prefix("p", container), "0", FeedRange(min="", max="FF"))
        await leases.create(lease.raw)
        await asyncio.sleep(40)
        assert await has_run(parked, scope)
        assert not await has_run(parked, Scope(processor="another", container=scope.container))
        assert () == await ParkedKeys(parked, scope=scope).list()


async def test_a_failing_heartbeat_is_reported_once() -> None:
    """While heartbeats cannot be written, the worker reports it once, and its other polls go on."""

    class Refusing(MemoryLeases):
        async def create(self, document: Any) -> Document:
            raise StoreUnavailable(applied=False)

    watched, told = vitals(), list[Record]()
    async with watching(watched, leases=Refusing(), notify=told.append):
        await asyncio.sleep(30)
    assert ["the other workers"] == [one.subject for one in told if isinstance(one, WatchFailed)]
    assert watched.snapshot().lag is not None
    assert watched.snapshot().others is None


async def test_a_worker_s_polling_ends_even_if_a_library_swallows_the_cancellation() -> None:
    class Deaf(MemoryContainer):
        async def describe(self) -> MonitoredContainer:
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            raise StoreUnavailable(applied=False)

    async with asyncio.timeout(600), watching(vitals(), feed=Deaf(), notify=pytest.fail):
        await asyncio.sleep(1)


async def test_an_unanswered_heartbeat_delays_the_next_heartbeat_only_by_seconds() -> None:
    class Silent(MemoryLeases):
        rounds = 0

        async def list(self, prefix: str) -> Listing:
            if prefix.startswith("heartbeat."):
                self.rounds += 1
                await asyncio.Event().wait()
            return await super().list(prefix)

    leases, told = Silent(), list[Record]()
    async with watching(vitals(), leases=leases, notify=told.append):
        await asyncio.sleep(20)
    assert 4 == leases.rounds
    assert 1 == len(told)


def others_of(health: WorkerVitals) -> list[tuple[str, str]]:
    others = health.snapshot().others
    assert others is not None
    return [(one.worker, one.state(owns=False)) for one in others]
