"""
Tests of the alarms that a worker raises about its fleet, which is all workers of a processor: workers with different settings, workers
that take leases from live workers, and a second processor that sends to the same topic.
"""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cosmos_outbox.adapters.memory.leases import MemoryLeases
from cosmos_outbox.changefeed.owned_leases import CloseReason
from cosmos_outbox.records import (
    LeaseMoved,
    LeasesBalanced,
    LeasesContested,
    LeasesLost,
    LeftUnsent,
    Record,
    SentTwice,
    level_of,
)
from cosmos_outbox_worker.backlog_polls import _beat
from cosmos_outbox_worker.causes import merge_causes, of_fleet
from cosmos_outbox_worker.fleet_differences import MUST_AGREE, FleetWatch, differences, sentences
from cosmos_outbox_worker.heartbeats import Fleet, Heartbeat, Phase
from cosmos_outbox_worker.settings import Settings, variable
from cosmos_outbox_worker.worker_health import WorkerVitals
from tests.support.changefeed_world import World
from tests.support.lease_statuses import owning
from tests.support.worker_settings import worker_settings

# Settings that may differ between workers: names and ports, connections, and how much a worker does at once.
OF_EACH_WORKER = {
    *("instance_name", "health_port", "log_level", "stalled_seconds", "grace_seconds", "lanes", "sdk_only"),
    *("servicebus_transport", "cosmos_connection_string", "cosmos_endpoint"),
    *("send_rate", "priority", "throughput_bucket", "recent_poll_seconds"),
}
# Settings that a worker does not compare with those of other workers. Either workers see each other only if these settings are equal, or a
# heartbeat contains what follows from them, such as the host of the namespace.
OF_A_FLEET = {
    *("processor_name", "cosmos_database", "cosmos_container", "lease_container"),
    *("servicebus_connection_string", "servicebus_namespace"),
}


def heartbeat(worker: str, **settings: Any) -> Heartbeat:
    said = FleetWatch(worker_settings(instance_name=worker, **settings)).heartbeat_fields()
    return Heartbeat(worker=worker, every=timedelta(seconds=15), phase=Phase.RUNNING, **said)


def test_every_setting_is_in_a_list_that_says_whether_workers_may_differ():
    assert set() == set(Settings.model_fields) - {*MUST_AGREE} - OF_EACH_WORKER - OF_A_FLEET


def test_the_page_on_upgrades_lists_the_settings_that_workers_must_share():
    page = (Path(__file__).parents[2] / "docs/how-to/upgrade.md").read_text()
    part = page.partition("## Settings that all workers share")[2].partition("While a rollout")[0]
    told = heartbeat("w").settings
    assert {variable(name) for name in told} == {*re.findall("OUTBOX_[A-Z_]+", part)}


def test_one_alarm_names_all_differing_settings_with_values_and_workers():
    fleet = [heartbeat(f"a-{number}") for number in range(7)]
    other = heartbeat("b", lease_expiration_seconds=5, routes="action:Paid=paid")
    assert [
        "The workers differ in "
        + "; in ".join(
            f"{what} ({whom}), {usual} (a-0, a-1, a-2, a-3, a-4 and 2 more)"
            for what, whom, usual in (
                ("OUTBOX_LEASE_EXPIRATION_SECONDS: 5.0", "b", "60.0"),
                ("OUTBOX_ROUTES: action:Paid=paid", "b", "unset"),
            )
        )
        + "."
    ] == [*differences([*fleet, other])]


@pytest.mark.parametrize(
    "other",
    [
        heartbeat("b", lanes=2, stalled_seconds=90, lease_expiration_seconds=60),
        replace(heartbeat("b"), version="0.2.0", settings={**heartbeat("b").settings, "newer": "1"}),
        replace(heartbeat("b"), version="", settings={}),
        replace(heartbeat("b", topic="other"), silent_for=timedelta(minutes=2)),
    ],
    ids=["what each may choose", "a setting of a newer version", "an older version", "a worker that is gone"],
)
def test_no_alarm_names_a_setting_in_which_workers_may_differ(other: Heartbeat):
    assert [] == [*differences([heartbeat("a"), other])]


def test_a_heartbeat_contains_no_secret():
    told = json.dumps(
        {name: str(value) for name, value in FleetWatch(worker_settings()).heartbeat_fields().items()}
    )
    assert not {"a2V5", "AccountKey", "SharedAccess"} & {*told.replace(";", '"').replace("=", '"').split('"')}


class Watched:
    """
    Simulated workers with a virtual clock. Each one raises an alarm if other workers keep taking its leases.
    """

    def __init__(self) -> None:
        self.world = World(ranges=4)
        self.alarms: list[Record] = []

    def start(self, name: str, **options: Any) -> None:
        watch, loop = FleetWatch(worker_settings(instance_name=name)), asyncio.get_running_loop()

        def heard(record: Record) -> None:
            watch.note_record(record, loop.time())
            watch.compare((heartbeat(name),), (), loop.time())
            self.alarms += watch.alarms

        self.world.start(name, hooks=[heard], **options)


async def test_upgrades_crashes_and_scaling_up_raise_no_alarm_about_contested_leases():
    fleet = Watched()
    for number in range(3):
        fleet.start(f"old-{number}")
        await asyncio.sleep(40)
    for number in range(3):  # a rollout as Kubernetes does it: start a new worker, then stop an old worker
        fleet.start(f"new-{number}")
        await asyncio.sleep(60)
        await fleet.world.stop(f"old-{number}")
        await asyncio.sleep(20)
    await fleet.world.kill("new-0")
    await asyncio.sleep(90)
    for number in range(3):
        fleet.start(f"more-{number}")
    await asyncio.sleep(300)
    assert [1, 1, 1, 1] == [*(await fleet.world.owners()).values()], "all have their share"
    assert [] == fleet.alarms
    await fleet.world.stop_all()


async def test_workers_with_different_lease_times_raise_an_alarm():
    """
    This happens during a rollout of other lease times: the old and the new workers take leases from each other.
    """
    fleet = Watched()
    fleet.start("slow")
    await asyncio.sleep(30)
    seconds = {"acquire_interval": 13 / 12, "renew_interval": 17 / 12, "expiration": 5}
    fleet.start("quick", **{name: timedelta(seconds=value) for name, value in seconds.items()})
    await asyncio.sleep(120)
    assert {"quick", "slow"} == {one.owner for one in fleet.alarms if isinstance(one, LeasesContested)}
    assert "OUTBOX_LEASE_EXPIRATION_SECONDS" in getattr(fleet.alarms[0], "reason", "")
    await fleet.world.stop_all()


@pytest.mark.parametrize(
    ("gone", "previous_owner", "every", "rings"),
    # How the worker loses the lease, who owned it before the worker got it back, the seconds from one loss to the next, and whether three
    # losses raise an alarm
    [
        (CloseReason.LOST, "b", 60, True),
        (CloseReason.HANDED_OVER, None, 60, True),
        # No alarm: an autoscaler may move a lease every five minutes.
        (CloseReason.HANDED_OVER, None, 301, False),
        (CloseReason.STOPPED, None, 60, False),
        # No alarm: after an outage, the worker takes its own lease again.
        (CloseReason.LOST, "w", 60, False),
    ],
)
def test_a_worker_that_loses_and_regains_a_lease_three_times_raises_an_alarm(
    gone: str, previous_owner: str | None, every: float, rings: bool
):
    watch = FleetWatch(worker_settings())
    for number in range(4):
        at = number * every
        watch.note_record(
            LeaseMoved(lease="p..1", owner="w", outcome="acquired", previous_owner=previous_owner), at
        )
        watch.compare((heartbeat("w"),), (), at)
        assert bool(watch.alarms) is (rings and number == 3)
        watch.note_record(LeaseMoved(lease="p..1", owner="w", outcome=gone), at)
    watch.compare((heartbeat("w"),), (), 4 * every + 600)
    assert () == watch.alarms


class Place:
    """
    A lease container that workers of several processors share. The workers write and read heartbeats when a test calls `beat`.
    """

    def __init__(self) -> None:
        self.leases = MemoryLeases(now=asyncio.get_running_loop().time)
        self.rung: list[tuple[str, Record]] = []

    async def beat(self, *workers: WorkerVitals) -> None:
        for one in workers:
            at = one.heartbeat()
            fleet = Fleet(self.leases, processor=at.processor, container=at.container)
            notify = lambda record, name=at.worker: self.rung.append((name, record))  # noqa: E731
            await _beat(SimpleNamespace(notify=notify), one, fleet)  # type: ignore[arg-type]


def worker(name: str, **settings: Any) -> WorkerVitals:
    vitals = WorkerVitals(worker_settings(instance_name=name, **settings))
    vitals.processor = owning()
    vitals(LeasesBalanced(owner=name, outcome="listed"))
    return vitals


async def test_two_processors_on_one_topic_raise_one_alarm_each():
    place = Place()
    ours = [worker("a-1"), worker("a-2")]
    theirs = worker("b-1", processor_name="typo", routes="action:Paid=paid")
    await place.beat(*ours, theirs, *ours, theirs, *ours)
    assert {"a-1": ["typo"], "b-1": ["p"]} == {
        name: sorted({one.other for who, one in place.rung if who == name and isinstance(one, SentTwice)})
        for name in ("a-1", "b-1")
    }
    assert {"a-1", "b-1"} == {name for name, _ in place.rung}
    for one in ours:
        (said,) = map(str, one.snapshot().causes())
        assert said.startswith(
            "Processor 'typo' (workers: b-1) sends the same events to the same topics as 'p'"
        )
        assert "set the old name again" in said


@pytest.mark.parametrize(
    "other",
    [
        {"processor_name": "audit", "topic": "audit"},
        {"processor_name": "audit", "cosmos_container": "orders"},
        {"processor_name": "audit", "servicebus_connection_string": "Endpoint=sb://c;SharedAccessKeyName=n;SharedAccessKey=a2V5"},
        {},
    ],
    ids=["another topic", "another container", "another namespace", "the same processor"],
)  # fmt: skip
async def test_processors_that_do_not_send_the_same_events_raise_no_alarm(other: dict[str, Any]):
    place = Place()
    both = worker("a"), worker("b", **other)
    await place.beat(*both, *both)
    assert [] == place.rung
    assert () == tuple(map(str, both[0].snapshot().causes()))


async def test_a_processor_whose_workers_are_gone_raises_no_alarm():
    """Workers of another processor in an older version, whose heartbeats name no container and no topics, raise no alarm either."""
    place = Place()
    ours = worker("a")
    for name, change in (("gone", {}), ("older", {"container": "", "topics": ()})):
        theirs = replace(heartbeat(name, processor_name=name), **change)  # type: ignore[arg-type]
        await Fleet(place.leases, processor=name, container="db/c").beat(theirs)
    await asyncio.sleep(76)
    await place.beat(ours)
    assert [] == place.rung


async def test_events_that_wait_for_a_processor_without_workers_raise_an_alarm():
    """The alarm ends when no events wait any more."""
    place, ours = Place(), worker("a", start="now")
    ours.fleet.left = {"old": 1_200}
    await place.beat(ours)
    (said,) = map(str, ours.snapshot().causes())
    assert said.startswith("1,200 changes wait for processor 'old', which has no worker")
    assert "set the old name again" in said
    ours.fleet.left = {}
    await place.beat(ours)
    assert () == ours.snapshot().causes()
    assert [LeftUnsent] == [type(one) for _, one in place.rung]


async def test_every_worker_shows_for_ten_minutes_that_all_leases_were_lost():
    place, ours, other = Place(), worker("a"), worker("b")
    await place.beat(ours, other)
    ours(LeasesLost(owner="a", start="beginning", reason="this worker has seen them"))
    (said,) = map(str, ours.snapshot().causes())
    assert "All leases were lost (this worker has seen them)" in said
    for _ in range(2):  # the first heartbeat may be written before the alarm is in it
        await place.beat(ours, other)
    assert [said] == [*map(str, other.snapshot().causes())]
    await asyncio.sleep(600)
    for _ in range(2):
        await place.beat(ours, other)
    assert () == ours.snapshot().of_fleet == other.snapshot().of_fleet


def test_two_workers_that_take_leases_from_each_other_are_one_cause():
    """If the workers have different settings, the cause names this difference."""
    contest = "Live workers take leases from each other: 1 came back to"
    both = [replace(heartbeat(name), alarms=(f"{contest} {name}.",)) for name in "ab"]
    assert 1 == len(merge_causes(of_fleet(sentences(both))))
    (said,) = sentences([both[0], replace(heartbeat("b", lease_expiration_seconds=5), alarms=both[1].alarms)])
    assert said.startswith("The workers differ in OUTBOX_LEASE_EXPIRATION_SECONDS")


def test_the_alarms_about_a_fleet_are_logged_as_errors():
    names = {"processor": "p", "other": "q", "reason": ""}
    for one in (LeasesContested(owner="w", reason=""), SentTwice(**names), LeftUnsent(**names)):
        assert 40 == level_of(one)


async def test_the_status_page_names_the_setting_in_which_workers_differ():
    place = Place()
    both = [worker("a"), worker("b")]
    await place.beat(*both, *both)
    assert () == tuple(map(str, both[0].snapshot().causes()))
    both[1] = worker("b", start="now")
    await place.beat(*both, *both)
    assert ("The workers differ in OUTBOX_START: beginning (a), now (b).",) == tuple(
        map(str, both[0].snapshot().causes())
    )
