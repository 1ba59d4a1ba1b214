"""
Tests of the causes that a worker shows for a standstill. Each cause is named once, with what it stops and the page of the documentation
that explains it. No stalled range and no unknown figure is left out.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cosmos_outbox import errors
from cosmos_outbox.changefeed import Lag, LeaseLag
from cosmos_outbox.errors import error_line
from cosmos_outbox_worker import causes
from cosmos_outbox_worker.causes import Cause, cause_of, merge_causes
from cosmos_outbox_worker.heartbeats import Heartbeat, Phase
from cosmos_outbox_worker.program import Program
from cosmos_outbox_worker.shared_health import ParkedSummary
from cosmos_outbox_worker.status_page import page_of
from cosmos_outbox_worker.worker_health import Snapshot
from tests.support.effort import PHASES, examples
from tests.support.fleets import AT, HEALTHY, NO_TOPIC, REFUSED, beat, lag
from tests.support.lease_statuses import status
from tests.support.pages import anchors_of

ROOT = Path(__file__).parents[2]
WORKERS = ("w-1", "w-2", "w-3")
SAID = [
    error_line(error)
    for error in (
        errors.BrokerUnavailable(),
        errors.TopicFull("Topic 'a' is full."),
        errors.TopicUnavailable("Topic 'a' may not."),
        errors.TopicUnavailable("Topic 'b' may not."),
        errors.StoreUnavailable(),
        errors.TooManyRequests(),
        errors.AccessDenied(),
        errors.ParkingFull(),
        ValueError("17"),
    )
]
TEXTS = st.sampled_from(SAID)


@pytest.mark.parametrize("kind", causes._KINDS)
def test_each_kind_of_cause_has_texts_and_an_existing_page(kind: str):
    words, cause = causes._KINDS[kind], Cause(kind=kind, said="So.")
    assert words["remedy"].endswith(".")
    assert words["what"] or words["quiet"] or kind == "fleet"
    assert "So." in str(cause)
    page, _, anchor = words["page"].partition("#")
    assert (ROOT / page).exists()
    assert anchor == "" or f"#{anchor}" in anchors_of(ROOT / page)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (errors.BrokerUnavailable(), "broker-away"),
        (errors.TopicFull(), "topic-full"),
        (errors.TopicUnavailable(), "topic-refuses"),
        (errors.TopicRefusesAll(), "topic-refuses-all"),
        (errors.SubscriptionUnavailable(), "subscription-away"),
        (errors.StoreUnavailable(), "store-away"),
        (errors.TooManyRequests(), "store-throttles"),
        (errors.AccessDenied(), "store-refuses"),
        (errors.NotFound(), "resource-unusable"),
        (errors.ConfigurationError("Container 'parked' does not exist."), "resource-unusable"),
        (errors.ParkingFull(), "parking-full"),
        (errors.ParkingError(), "parked-unreadable"),
        (errors.MessageRejected(), "message-rejected"),
        (KeyError("name"), "failing"),
    ],
)
def test_the_same_error_in_a_worker_and_in_its_lease_is_one_cause(error: Exception, kind: str):
    text = error_line(error)
    assert kind == cause_of(text).kind == cause_of(f"No progress for 60 s, 3 attempts failed: {text}").kind
    assert text == cause_of(f"No progress for 60 s, 3 attempts failed: {text}").said


def test_all_errors_of_one_topic_are_shown_as_one_cause():
    """The texts of the errors make no difference."""
    said = ("Topic 'a' said 1", "Topic 'a' said 2", "Topic 'b' said 3")
    found = [cause_of(f"TopicUnavailable: {text}", stops=(("w", f"range {text[-1]}"),)) for text in said]
    assert ["range 1, range 2 of w", "range 3 of w"] == [one.whom for one in merge_causes(found)]


def test_the_status_page_shows_a_newer_worker_s_cause_of_an_unknown_kind():
    newer = Cause(kind="of-tomorrow", said="The moon is in the way.", stops=(("w-2", "range 1"),))
    seen = replace(HEALTHY, others=(beat("w-2", newer),))
    assert "The moon is in the way." in page_of(seen)


leases = st.builds(
    lag,
    st.sampled_from("0123456789"),
    st.sampled_from([None, *WORKERS]),
    st.integers(0, 3),
    st.none() | st.sampled_from([1.0, 400.0]),
)
lags = st.lists(
    st.builds(
        lambda one, standstill, unseen: replace(one, standstill=standstill, unseen=unseen),
        leases,
        st.none()
        | TEXTS.map(lambda text: f"No progress for 66 s, 2 attempts failed: {text}")
        | st.just("No progress for 66 s, 0 attempts failed: A page is not done yet."),
        st.none() | TEXTS,
    ),
    max_size=6,
    unique_by=lambda one: one.token,
)
failing = st.lists(
    st.builds(
        lambda text, seconds, unready: cause_of(text, since=AT - timedelta(seconds=seconds), unready=unready),
        TEXTS,
        st.integers(0, 200),
        st.booleans(),
    ),
    max_size=3,
)


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    measured = tuple(one if one.owner else replace(one, standstill=None) for one in draw(lags))
    mine = [
        status(one.token, stalled=draw(st.booleans()), idle_seconds=draw(st.integers(0, 300)), error=draw(st.none() | TEXTS))
        for one in measured
        if one.owner == "w-1"
    ]  # fmt: skip
    others = [_worker(draw, name, measured) for name in WORKERS[1:] if draw(st.booleans())]
    return replace(
        HEALTHY,
        instance="w-1",
        mine=tuple(mine),
        lag=Lag(leases=measured),
        unseen=timedelta(seconds=draw(st.sampled_from([0, 0, 80]))),
        others=tuple(others),
        failing=tuple(draw(failing)),
        parked=draw(st.sampled_from([None, ParkedSummary(count=0), ParkedSummary(count=2)])),
    )


def _worker(draw: st.DrawFn, name: str, measured: tuple[LeaseLag, ...]) -> Heartbeat:
    owned = tuple((name, f"range {one.token}") for one in measured if one.owner == name)
    own = [replace(one, stops=owned, stands=draw(st.booleans())) for one in draw(failing)]
    one = beat(name, *merge_causes(own), ago=draw(st.sampled_from([4, 40, 190])))
    return replace(one, phase=draw(st.sampled_from([Phase.RUNNING, Phase.STARTING, Phase.DRAINING])))


@settings(max_examples=examples(300, many=5000), phases=PHASES)
@given(snapshots())
def test_every_stalled_range_is_named_by_a_cause(seen: Snapshot):
    """The test also checks that the status lists no cause twice."""
    found = seen.causes()
    assert len(found) == len({one.key for one in found})
    named_ranges = {what for one in found if one.stands for _, what in one.stops}
    views = {f"range {one.token}": one for one in seen.leases()}
    stalled = {f"range {one.token}" for one in seen.mine if one.stalled}
    mine = {one.token for one in seen.mine}
    others = {f"range {one.token}" for one in _measured(seen) if one.standstill and one.token not in mine}
    assert set() == (stalled | others) - named_ranges
    assert [] == [name for name in stalled | others if not views[name].trouble]
    assert bool(stalled) <= bool(seen.unready)
    assert [] == [one for one in found if "standstill" == one.kind and set(one.stops) & _explained(found)]


def _explained(found: tuple[Cause, ...]) -> set[tuple[str, str]]:
    return {
        stopped for one in found if one.kind not in ("standstill", "late", "unknown") for stopped in one.stops
    }


@settings(max_examples=examples(300, many=5000), phases=PHASES)
@given(snapshots())
def test_the_status_page_is_not_green_while_something_fails_or_is_unknown(seen: Snapshot):
    page = page_of(seen)
    (mood,) = re.findall('class="state ([a-z]+)"', page)
    unknown = (
        seen.unseen or seen.parked is None or any(not one.age_known or one.unseen for one in _measured(seen))
    )
    silent = any(
        one.silent and one.worker in {lease.owner for lease in _measured(seen)} for one in seen.others or ()
    )
    wrong = unknown or silent or seen.unready or any(one.stalled for one in seen.mine)
    assert ("good" != mood) == bool(seen.causes())
    assert not wrong or "good" != mood, seen
    healthy = page.partition("without trouble")[2].partition("</thead>")[2].partition("</table>")[0]
    assert "unknown" not in healthy
    assert "stands still" not in healthy


def _measured(seen: Snapshot) -> tuple[LeaseLag, ...]:
    return seen.lag.leases if seen.lag else ()


async def test_a_cause_is_logged_once_with_its_remedy_while_it_lasts(
    caplog: pytest.LogCaptureFixture,
):
    away, starting = cause_of(NO_TOPIC, since=AT - timedelta(seconds=9)), Cause(kind="starting", unready=True)
    health, telemetry = SimpleNamespace(name="worker", snapshot=lambda: seen), SimpleNamespace()
    program = Program[Any, Snapshot](health, telemetry)  # type: ignore[arg-type]
    for second in range(200):
        failing = starting, *((away,) if second < 100 and second % 20 else ())
        seen = replace(HEALTHY, failing=failing, mine=(status("0", idle_seconds=9),))
        program.observe()
        await asyncio.sleep(1)
    (record,) = caplog.records
    assert "WARNING" == record.levelname
    assert record.getMessage().startswith(
        "cause.topic-refuses The topic may not be sent to (since 2026-11-21 11:59:51 UTC): "
    )
    assert "docs/how-to/recover.md#the-topic-was-deleted" in record.getMessage()
    assert "(docs/explanation/failure-modes.md#when-the-worker-sends)" in record.getMessage()
    seen = replace(HEALTHY, mine=(status("0", stalled=True, idle_seconds=70, error=REFUSED),))
    program.observe()
    assert ["WARNING", "ERROR"] == [one.levelname for one in caplog.records]
    for stands in (False, True, False):
        seen = replace(HEALTHY, failing=(cause_of(SAID[4], since=AT - timedelta(minutes=1), unready=stands),))
        program.observe()
    assert ["WARNING", "ERROR"] == [one.levelname for one in caplog.records[2:]]
