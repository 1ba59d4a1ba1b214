"""Tests of the health of a worker: when it counts as ready, and which errors and figures it remembers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from cosmos_outbox.adapters.memory.leases import MemoryLeases
from cosmos_outbox.changefeed import Lag, LeaseLag, LeaseStatus
from cosmos_outbox.errors import (
    AccessDenied,
    BrokerUnavailable,
    StoreUnavailable,
    TooManyRequests,
    TopicUnavailable,
)
from cosmos_outbox.ports import Document
from cosmos_outbox.records import (
    EventRejected,
    LeaseMoved,
    LeasesBalanced,
    LoopBlocked,
    MessagesPublished,
    PublishFailed,
    WatchFailed,
)
from cosmos_outbox.relay.ceiling import Ceiling
from cosmos_outbox_worker.causes import cause_of
from cosmos_outbox_worker.heartbeats import Phase
from cosmos_outbox_worker.shared_health import ParkedSummary
from cosmos_outbox_worker.worker_health import WorkerVitals
from tests.support.changefeed_world import World, virtual_seconds
from tests.support.lease_statuses import owning, status
from tests.support.worker_settings import worker_settings


def vitals(*leases: LeaseStatus, **times: Any) -> WorkerVitals:
    vitals = WorkerVitals(worker_settings(), **times)
    vitals.processor = owning(*leases)
    return vitals


NOW = datetime(2026, 1, 1, tzinfo=UTC)
STALLED = status("7", stalled=True, error="TopicUnavailable: no", idle_seconds=90.0)


@pytest.mark.parametrize(
    ("leases", "listed", "drained", "said"),
    [
        ((), True, False, ()),
        ((status(),), True, False, ()),
        ((), False, False, ("The worker has not seen the leases yet.",)),
        ((status(), STALLED), True, True, ("The worker is draining.",)),
        (
            (status(), STALLED),
            True,
            False,
            (
                "The topic may not be sent to (since 2025-12-31 23:58:30 UTC): TopicUnavailable: no. It stops range 7 of w.",
            ),
        ),
    ],
)
async def test_an_unready_worker_names_the_reason(leases, listed: bool, drained: bool, said):
    watched = vitals(*leases, utcnow=lambda: NOW)
    if listed:
        watched(LeasesBalanced(owner="w", outcome="listed"))
    if drained:
        watched.note_draining()
    assert said == watched.snapshot().unready


def unready_for(watched: WorkerVitals) -> list[str]:
    return [one.kind for one in watched.snapshot().causes() if one.unready]


async def test_a_worker_that_can_no_longer_list_the_leases_becomes_unready():
    watched = vitals(status())
    assert Phase.STARTING is watched.snapshot().phase
    watched(LeasesBalanced(owner="w", outcome="listed"))
    await asyncio.sleep(60)
    assert () == watched.snapshot().unready
    await asyncio.sleep(1)
    assert ["store-away"] == unready_for(watched)
    watched(LeasesBalanced(owner="w", outcome="listed"))
    assert () == watched.snapshot().unready


async def test_a_worker_that_may_not_list_leases_is_unready_until_a_list_succeeds():
    watched = vitals(status())
    refused = LeasesBalanced(owner="w", outcome="failed", error=AccessDenied("Grant the role."))
    watched(refused)
    assert ["store-refuses"] == unready_for(watched)
    assert "AccessDenied: Grant the role." in watched.snapshot().unready[0]
    watched(LeasesBalanced(owner="w", outcome="listed"))
    await asyncio.sleep(61)
    assert ["store-away"] == unready_for(watched)
    watched(refused)
    assert ["store-refuses"] == unready_for(watched)


async def test_a_worker_is_not_ready_before_every_range_has_a_lease():
    class OneLease(MemoryLeases):
        full = True

        async def create(self, document: Mapping[str, Any]) -> Document:
            if self.full and str(document["id"]).endswith("..1"):
                raise StoreUnavailable(applied=False)
            return await super().create(document)

    world, watched = World(ranges=2), vitals()
    leases = world.leases = OneLease(now=virtual_seconds)
    world.start("w", hooks=[watched])
    await asyncio.sleep(60)
    assert 1 == len(await world.all_leases())
    seen = watched.snapshot()
    assert (Phase.STARTING, 1) == (seen.phase, len(seen.unready))
    leases.full = False
    await world.until(lambda: watched.snapshot().phase is Phase.RUNNING)
    assert () == watched.snapshot().unready
    await world.stop_all()


async def test_the_health_reports_the_throughput_of_the_last_minute():
    watched = vitals()
    watched(MessagesPublished(lane=0, messages=600, seconds=0.1))
    await asyncio.sleep(59)
    watched(MessagesPublished(lane=0, messages=60, seconds=0.1))
    await asyncio.sleep(2)
    seen = watched.snapshot()
    assert (660, 1.0) == (seen.sent, seen.sent_per_second)


async def test_repeated_errors_do_not_push_other_errors_out_of_the_list():
    watched = vitals()
    watched(EventRejected(lane=0, event_id="e", partition_key="k", error=ValueError("large")))
    for attempt in range(1, 101):
        watched(PublishFailed(outcome="halted", error=TopicUnavailable(f"no topic, request {attempt}")))
        watched(PublishFailed(outcome="retried", lane=0, error=BrokerUnavailable("busy")))
        watched(WatchFailed(subject="what waits", error=StoreUnavailable(f"request {attempt}")))
    found = [(trouble.event, trouble.times) for trouble in watched.snapshot().errors]
    assert [
        ("WatchFailed", 100),
        ("PublishFailed", 100),
        ("PublishFailed", 100),
        ("EventRejected", 1),
    ] == found
    assert "request 100" in watched.snapshot().errors[0].text


@pytest.mark.parametrize("seconds", [0, 29, 90])
async def test_a_stalled_lease_shows_the_error_of_the_send_that_it_waits_for(
    seconds: int,
):
    watched = vitals(status("7", stalled=True, idle_seconds=90.0), utcnow=lambda: NOW)
    watched(LeasesBalanced(owner="w", outcome="listed"))
    assert ["standstill"] == unready_for(watched)
    watched(
        PublishFailed(outcome="halted", lane=2, delay_seconds=30, error=TopicUnavailable("It is missing."))
    )
    await asyncio.sleep(seconds)
    watched(LeasesBalanced(owner="w", outcome="listed"))
    said = "The topic may not be sent to (since 2026-01-01 00:00:00 UTC): TopicUnavailable: It is missing. It stops range 7 of w."
    assert (said,) == watched.snapshot().unready
    watched(MessagesPublished(lane=1, messages=1, seconds=0.1))
    assert ["topic-refuses"] == unready_for(watched)
    watched(MessagesPublished(lane=2, messages=1, seconds=0.1))
    assert ["standstill"] == unready_for(watched)


async def test_a_failure_is_shown_as_a_cause_after_five_seconds_until_it_ends():
    now = NOW
    watched = vitals(status("0", idle_seconds=5.0), status("1"), utcnow=lambda: now)
    watched(LeasesBalanced(owner="w", outcome="listed"))
    for lane in (0, 1):
        watched(
            PublishFailed(
                outcome="retried", lane=lane, attempt=1, delay_seconds=1, error=BrokerUnavailable("away")
            )
        )
    watched(WatchFailed(subject="what waits", error=TooManyRequests("429")))
    assert () == watched.snapshot().causes()
    now += timedelta(seconds=5)
    assert ["store-throttles", "broker-away"] == [one.kind for one in watched.snapshot().causes()]
    watched.works("what waits")
    for lane in (0, 1):
        watched(MessagesPublished(lane=lane, messages=1, seconds=0.1))
    assert () == watched.snapshot().causes()


async def test_the_backlog_counts_as_unknown_76_seconds_after_its_last_measurement():
    watched = vitals()
    assert timedelta(0) == watched.snapshot().unseen
    watched.note_lag(Lag(leases=()))
    await asyncio.sleep(75)
    assert timedelta(0) == watched.snapshot().unseen
    await asyncio.sleep(1)
    assert timedelta(seconds=76) == watched.snapshot().unseen
    watched.note_lag(Lag(leases=()))
    assert timedelta(0) == watched.snapshot().unseen


async def test_the_backlog_is_unknown_from_a_failed_poll_to_the_next_success():
    watched = vitals(status("0"))
    watched(LeasesBalanced(owner="w", outcome="listed"))
    watched.note_lag(
        Lag(leases=(LeaseLag(lease="p..0", token="0", owner="w", transactions=0, oldest_age=None),))  # noqa: S106
    )
    await asyncio.sleep(15)
    watched.blind.add("what waits")
    seen = watched.snapshot()
    assert (["unknown"], [True]) == (
        [one.kind for one in seen.causes()],
        [one.trouble for one in seen.leases()],
    )
    watched.blind.clear()
    seen = watched.snapshot()
    assert ((), [False]) == (seen.causes(), [one.trouble for one in seen.leases()])


async def test_the_backlog_is_unknown_after_two_polls_without_an_answer_about_leases():
    watched = vitals()
    watched.note_lag(Lag(leases=()))
    watched.fails("heartbeats", cause_of("StoreUnavailable: No answer."))
    await asyncio.sleep(31)
    assert timedelta(seconds=31) == watched.snapshot().unseen


async def test_a_failed_send_is_no_longer_reported_once_all_leases_make_progress():
    now, failed = NOW, PublishFailed(outcome="retried", lane=2, error=BrokerUnavailable("full"))
    watched = vitals(status("0", idle_seconds=6.0), utcnow=lambda: now)
    watched(LeasesBalanced(owner="w", outcome="listed"))
    watched(failed)
    now += timedelta(seconds=6)
    assert ["broker-away"] == [one.kind for one in watched.snapshot().causes()]
    watched.processor = owning(status("0"))
    watched(MessagesPublished(lane=1, messages=1, seconds=0.1))
    assert () == watched.snapshot().causes()


async def test_a_worker_reports_a_send_rate_that_has_delayed_sends_for_a_minute():
    loop = asyncio.get_running_loop()
    watched = vitals(status("0"), utcnow=lambda: NOW + timedelta(seconds=loop.time()))
    watched(LeasesBalanced(owner="w", outcome="listed"))
    watched.ceiling, told, waits = Ceiling(50), list[list[str]](), list[float]()
    for second in range(100):
        if second < 80:
            watched.ceiling.reserve(60, now=loop.time())
            watched.ceiling.reserve(1, now=loop.time())
        watched(LeasesBalanced(owner="w", outcome="listed"))
        told.append([f"{one.kind} {one.said}" for one in watched.heartbeat().causes])
        waits.append(watched.snapshot().held.total_seconds())
        await asyncio.sleep(1)
    held = [f"ceiling OUTBOX_SEND_RATE lets 50 messages a second of {watched.heartbeat().worker} through."]
    assert ([], held, held, []) == (told[59], told[61], told[79], told[-1])
    assert (59, 79, 0) == (waits[59], waits[79], waits[-1])


async def test_a_worker_reports_that_all_leases_of_a_container_are_lost():
    """The worker reports nothing about a container that has never had leases."""
    loop = asyncio.get_running_loop()
    watched, told = vitals(utcnow=lambda: NOW + timedelta(seconds=loop.time())), list[list[bool]]()
    one = LeaseLag(lease="a", token="a", owner="w", transactions=0, oldest_age=None)  # noqa: S106
    for leases in ((), (one,), (), (), (one,)):
        watched.note_lag(Lag(leases=leases))
        await asyncio.sleep(15)
        told.append([one.stands for one in watched.snapshot().causes() if one.kind == "no-leases"])
    assert [[], [], [True], [True], []] == told


async def test_parked_keys_are_unknown_76_seconds_after_they_were_last_read():
    watched = vitals()
    assert (None, None) == (watched.snapshot().parked, watched.snapshot().parked_at)
    seen = ParkedSummary(count=1, events=2)
    watched.note_parked(seen)
    await asyncio.sleep(75)
    assert seen == watched.snapshot().parked
    await asyncio.sleep(1)
    assert watched.snapshot().parked is None
    assert watched.snapshot().parked_at is not None
    watched.note_parked(seen)
    assert seen == watched.snapshot().parked


async def test_a_record_from_another_thread_is_noted_on_the_event_loop():
    watched = vitals()
    blocked = LoopBlocked(task="lease 0", where="handler.py:7", seconds=3.0)
    await asyncio.to_thread(watched, blocked)
    await asyncio.sleep(0)
    (trouble,) = watched.snapshot().errors
    assert ("LoopBlocked", "handler.py:7" in trouble.text) == (trouble.event, True)


async def test_a_record_that_reports_no_trouble_is_not_among_the_errors():
    watched = vitals()
    watched(LeaseMoved(lease="p..0", owner="w", outcome="acquired"))
    watched(LeaseMoved(lease="p..0", owner="w", outcome="stopped"))
    assert () == watched.snapshot().errors


async def test_the_age_of_the_oldest_event_grows_while_its_lease_cannot_be_measured():
    """
    The worker adds the time since the last measurement to the last known age. It measures the other leases as before.
    """
    listening = vitals()

    def seen(**unseen: str) -> Lag:
        return Lag(
            leases=tuple(
                LeaseLag(
                    lease=token,
                    token=token,
                    owner=None,
                    transactions=1,
                    oldest_age=None if token in unseen else timedelta(seconds=5),
                    unseen=unseen.get(token),
                )
                for token in ("a", "b")
            )
        )

    listening.note_lag(seen())
    for _ in range(20):
        await asyncio.sleep(15)
        listening.note_lag(seen(b="throttled"))

    lag = listening.snapshot().lag
    assert lag is not None
    assert [timedelta(seconds=5), timedelta(seconds=305)] == [lease.oldest_age for lease in lag.leases]
