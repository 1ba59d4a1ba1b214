"""
Tests of the HTML of the status page: it is complete, escaped and accessible.

`test_status_page_in_a_browser` shows it in a browser.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from html.parser import HTMLParser
from typing import Any

import pytest

from cosmos_outbox.changefeed import Lag, LeaseLag
from cosmos_outbox.errors import ParkingError
from cosmos_outbox.parking import keys_by_cause
from cosmos_outbox_worker.causes import Cause, cause_of
from cosmos_outbox_worker.heartbeats import Phase
from cosmos_outbox_worker.recent_errors import RecentError
from cosmos_outbox_worker.shared_health import ParkedSummary
from cosmos_outbox_worker.status_page import page_of
from cosmos_outbox_worker.version import version
from cosmos_outbox_worker.where import KeyReport
from cosmos_outbox_worker.worker_health import Snapshot
from tests.support.fleets import (
    AT,
    BUSY,
    EMPTY,
    HEALTHY,
    HOSTILE,
    LARGE,
    NO_TOPIC,
    PODS,
    TROUBLED,
    beat,
    lag,
    parked,
    seen,
)
from tests.support.lease_statuses import status

VOID = {"meta", "link", "br", "img", "hr", "input"}
ALONE = replace(HEALTHY, mine=(status("0"),), others=())
STALLED = status("0", stalled=True, idle_seconds=200, error="TopicUnavailable: No topic.", failed_attempts=3)
FULL = "No progress for 60 s, 2 attempts failed: ParkingFull: The store is full."


class Page(HTMLParser):
    """The tags and the texts of an HTML page. Parsing fails if a tag is not closed, or not in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        assert [] == self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert tag == self._open.pop()

    def handle_data(self, data: str) -> None:
        if data.strip() and self._open[-1] != "style":
            self.texts.append(" ".join(data.split()))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def texts_of(snapshot: Snapshot) -> list[str]:
    return Page(page_of(snapshot)).texts


def banner_of(snapshot: Snapshot) -> Page:
    return Page(page_of(snapshot).partition("<main>")[0] + "</body></html>")


def with_leases(*leases: LeaseLag, **changes: Any) -> Snapshot:
    return replace(ALONE, lag=Lag(leases=leases), **changes)


TOO_LARGE = keys_by_cause.Cause(error="MessageRejected: Large", keys=2, held=9, parked_at="", example="k")


@pytest.mark.parametrize(
    ("snapshot", "texts"),
    [
        (HEALTHY, ["4,218,377", "38.4", "moving", "elsewhere", "As of 2026-11-21 12:00:00 UTC"]),
        (TROUBLED, ["Not ready", "stalled for 5 min", "1,325", "free", "no owner", "stands still"]),
        (TROUBLED, ["order-00376", "2026-11-21 11:22:00 UTC", "PublishFailed", "not ready", "silent"]),
        (
            with_leases(lag("1", None, 1234)),
            ["No worker owns a range in which changes wait", "It stops range 1.", "1,234"],
        ),
        (replace(HEALTHY, parked=ParkedSummary(count=5000)), ["5,000 in all:"]),
        (
            replace(HEALTHY, parked=ParkedSummary(count=2, causes=(TOO_LARGE,))),
            ["2 in all. 2 of them by MessageRejected: Large"],
        ),
        (
            replace(HEALTHY, parked=ParkedSummary(count=1, unreadable={"ada": ParkingError("So.")})),
            ["ada", "unknown", "So."],
        ),
        (
            replace(HEALTHY, parked=None),
            ["Unknown since 2026-11-21 12:00:00 UTC; the last errors say why."],
        ),
        (replace(EMPTY, lag=None, lag_at=None), ["unknown", "No lease is known yet."]),
    ],
)
def test_the_status_page_shows_everything_that_the_worker_knows(snapshot: Snapshot, texts: list[str]):
    shown = " ".join(texts_of(snapshot))
    assert [] == [text for text in texts if text not in shown]


def test_the_status_page_names_a_damaged_lease_with_its_mistake():
    """The page shows the lease without an owner, because the lease cannot be read."""
    damaged = {"p..7": "Lease 'p..7' is damaged: so."}
    leases = (lag("0", PODS[0], 3, 4), lag("2", None, 70, 540))
    failing = status("7", stalled=True, error="ConfigurationError: Lease 'p..7' is damaged: so.")
    text = page_of(replace(ALONE, mine=(*ALONE.mine, failing), lag=Lag(leases=leases, damaged=damaged)))
    (row,) = [line for line in text.splitlines() if ">7<" in line]
    assert ["7", "none", "unknown", "unknown", "damaged", failing.error] == Page(row).texts
    texts = Page(text).texts
    assert {"at least 73", "at least 9 min"} <= set(texts)
    assert "1" == texts[texts.index("Leases of this worker") + 1]
    texts = texts_of(replace(ALONE, lag=Lag(leases=(lag("1", PODS[1]),), damaged=damaged)))
    assert ["at least 0", "unknown"] == [
        texts[texts.index(figure) + 1] for figure in ("Changes waiting, all leases", "Oldest unsent")
    ]


def test_the_status_page_shows_what_the_worker_cannot_see_as_unknown():
    texts = texts_of(with_leases(lag("0", PODS[0], 1)))
    assert 3 == texts.count("unknown"), (
        "the age of what lies too far away: of the fleet, the lease, its worker"
    )
    assert "nothing waits" not in texts
    lost = with_leases(lag("0", PODS[0], 3, 4), lag("1", PODS[1]), lag("2", None, 70), mine=())
    assert "no longer of this worker" in texts_of(lost)
    texts = texts_of(replace(lost, unseen=timedelta(minutes=9)))
    assert {"unknown", "no longer of this worker"} <= set(texts)
    assert any("unknown since then, for 9 min" in text for text in texts)
    assert not {"73", "70", "3", "nothing waits", "elsewhere"} & set(texts)


def test_the_status_page_escapes_all_names_and_errors():
    """Also, the page loads nothing from other servers."""
    for snapshot in (HEALTHY, HOSTILE):
        text = page_of(snapshot)
        page = Page(text)
        assert [{"src": "/live.js", "defer": None}] == page.all("script")
        assert [] == [tag for name in ("link", "img", "iframe") for tag in page.all(name)]
        assert all(str(link["href"]).startswith("/") for link in page.all("a"))
        assert not any(word in text for word in ("url(", "@import"))
    assert HOSTILE.failing[0].said in page.texts


def test_control_characters_in_names_are_removed_from_the_status_page():
    """A name with control characters could reverse the direction of the text after it, or control a terminal."""
    turned = "\u202eabc\u2066\x1b[2J\x9b"
    page = page_of(
        replace(
            HEALTHY,
            topic=turned,
            instance=turned,
            failing=(Cause(kind="starting", said=turned, unready=True),),
        )
    )
    assert not set(turned) & set(page) - set("abc[2J")
    assert "\u05d0" in page_of(replace(HEALTHY, topic="\u05d0")), "a script that runs to the left is no trick"


def test_the_status_page_is_accessible_and_never_reloads_by_itself():
    text = page_of(TROUBLED)
    page = Page(text)
    assert [{"lang": "en"}] == page.all("html")
    assert 1 == len(page.all("main")) == len(page.all("h1")) == len(page.all("title"))
    assert len(page.all("table")) == len(page.all("caption"))
    assert {"col"} == {head.get("scope") for head in page.all("th")}
    assert all(region.get("aria-label") for region in page.all("div") if region.get("role") == "region")
    assert ["status"] == [tag["role"] for tag in page.all("div") if "state bad" == tag.get("class")]
    assert [] == [meta for meta in page.all("meta") if "http-equiv" in meta]
    assert not any(word in text for word in ("transition", "animation", "scroll-behavior"))
    live = [attributes["id"] for _, attributes in page.tags if "data-live" in attributes]
    assert ["errors", "figures", "footer", "leases", "parked", "state", "workers"] == sorted(map(str, live))


NO = Cause(kind="starting", said="No.", unready=True)


@pytest.mark.parametrize(
    ("snapshot", "mood", "kinds"),
    [
        (ALONE, "good", []),
        (replace(ALONE, others=(beat(PODS[2]), beat(PODS[3], ago=190))), "good", []),
        (replace(ALONE, parked=ParkedSummary(count=1)), "waits", ["keys-parked"]),
        (replace(ALONE, parked=None), "waits", ["unknown"]),
        (replace(ALONE, unseen=timedelta(seconds=80)), "waits", ["unknown"]),
        (with_leases(lag("1", PODS[1], 3)), "waits", ["unknown"]),
        (with_leases(replace(lag("1", PODS[1], 1), unseen=BUSY)), "waits", ["store-throttles"]),
        (with_leases(lag("0", PODS[0], 3, 360)), "waits", ["late"]),
        (replace(ALONE, failing=(Cause(kind="ceiling"),)), "waits", ["ceiling"]),
        (replace(ALONE, of_fleet=("They differ.", "They fight.", "They fight.")), "waits", ["fleet", "fleet"]),
        (with_leases(lag("1", None, 1, 2)), "waits", ["no-owner"]),
        (with_leases(replace(lag("1", None, 1, 2), free_for=timedelta(seconds=30))), "bad", ["no-owner"]),
        (with_leases(replace(lag("0", None, 1, 2), free_for=timedelta(seconds=60))), "good", []),
        (replace(with_leases(replace(lag("1", None, 1, 2), free_for=timedelta(seconds=60))), failing=(cause_of(BUSY, stops=(("", "range 1"),), stands=True, unready=True),)), "bad", ["store-throttles"]),
        (with_leases(lag("1", PODS[1]), others=(beat(PODS[1], ago=40),)), "waits", ["worker-silent"]),
        (replace(ALONE, others=(beat(PODS[2], cause_of(BUSY, unready=True)),)), "waits", ["store-throttles"]),
        (replace(ALONE, failing=(NO,)), "bad", ["starting"]),
        (with_leases(replace(lag("1", PODS[1], 3), standstill=FULL), mine=(STALLED,)), "bad", ["topic-refuses", "parking-full"]),
        (TROUBLED, "bad", ["topic-refuses", "store-throttles", "store-refuses", "no-owner", "keys-parked"]),
    ],
)  # fmt: skip
def test_the_banner_of_the_status_page_names_each_cause_once(snapshot: Snapshot, mood: str, kinds: list[str]):
    """The test also checks that the banner is green only when no cause waits for an operator."""
    page, causes = banner_of(snapshot), snapshot.causes()
    assert [f"state {mood}"] == [tag["class"] for tag in page.all("div") if tag.get("id") == "state"]
    assert kinds == [one.kind for one in causes]
    for one in causes:
        assert 1 == page.texts.count(one.words["what"] or one.said)
        assert {one.words["page"], *([f"It stops {one.whom}."] if one.whom else ())} <= set(page.texts)
        assert {" ".join(part.split()) for part in one.words["remedy"].split("`")} - {""} <= set(page.texts)
    assert [str(one) for one in causes if one.unready] == snapshot.readiness()["reasons"]
    assert kinds == [one["kind"] for one in snapshot.readiness()["causes"]]


@pytest.mark.parametrize(("ranges", "told"), [("0", NO_TOPIC), ("012", "The topic may not be sent to")])
def test_only_the_banner_has_the_whole_text_of_a_cause_that_stops_leases(ranges: str, told: str):
    """The rows of the leases have a short form of the text."""
    still = tuple(replace(STALLED, lease=f"p..{token}", token=token, error=NO_TOPIC) for token in ranges)
    stands = replace(HEALTHY, mine=still, lag=None)
    assert NO_TOPIC in banner_of(stands).texts
    assert [told] * len(ranges) == [view.error for view in stands.leases()]


def test_the_status_page_shows_the_remedy_of_a_cause_before_the_raw_error():
    """The test also checks that commands are marked as code."""
    failing = (cause_of(BUSY, since=AT - timedelta(minutes=1)),)
    texts = Page(page_of(replace(ALONE, failing=failing), key="k", found=KeyReport({}, ["Do `it`."]))).texts
    said = [*map(texts.index, (failing[0].words["remedy"], failing[0].words["page"], BUSY))]
    assert sorted(said) == said
    assert ["Do", "it", "."] == texts[texts.index("Do") :][:3]


def test_leases_with_trouble_come_first_on_the_status_page():
    """After them come the other leases, sorted by the number of their range."""
    leases = [lag(str(number), PODS[0]) for number in range(30)]
    leases[17] = lag("17", None, 5)
    text = page_of(with_leases(*leases, mine=()))
    assert text.index(">17</td>") < text.index(">0</td>") < text.index(">2</td>") < text.index(">10</td>")
    (strip,) = [tag for tag in Page(text).all("div") if tag.get("class") == "strip"]
    assert "29 leases without trouble" in (strip["aria-label"] or "")


def test_the_status_page_lists_the_leases_and_trouble_of_each_worker():
    leases = (lag("0", PODS[0], 2, 4), lag("1", "w-2", 5), lag("2", "w-2"))
    draining = replace(beat("w-6", unready="The worker is draining."), phase=Phase.DRAINING)
    upgraded = replace(beat("w-3", ago=8), version="0.2.0")
    others = (upgraded, beat("w-4", ago=180), beat("w-5", unready="No.", error="403"), draining)
    rows = [
        Page(line).texts
        for line in page_of(with_leases(*leases, others=others)).splitlines()
        if 'data-head="Worker">' in line
    ]
    assert [
        ["w-2", "by its leases", "2", "5", "unknown", "1"],
        ["w-4", "silent", "3 min ago", "0", "0", "nothing waits"],
        ["w-5", "not ready", "4 s ago", "0", "0", "nothing waits"],
        [PODS[0], "running", "now: this page", "1", "2", "4 s", version()],
        ["w-3", "stand-by", "8 s ago", "0", "0", "nothing waits", "0.2.0"],
        ["w-6", "draining", "4 s ago", "0", "0", "nothing waits"],
        ["w-5", "403"],
    ] == rows


def test_parked_keys_are_grouped_by_cause_with_a_command_for_each():
    keys = [parked(f"it's {number}", "300000 bytes are too much") for number in range(60)]
    texts = texts_of(replace(HEALTHY, parked=seen(*keys)))
    assert """cosmos-outbox parked show 'it'"'"'s 0'""" in texts
    assert "cosmos-outbox parked release --error 'MessageRejected: … bytes are too much'" in texts
    assert ("it's 49" in texts, "it's 50" in texts) == (True, False)


CAUSES = replace(seen(*(parked("k", f"{'word ' * number}no.") for number in range(200))), keys=())
HALTED = tuple(replace(lag(str(number), PODS[1], 3), standstill=FULL) for number in range(1000))


@pytest.mark.parametrize(
    ("snapshot", "more"),
    [
        (LARGE, "1,000 leases without trouble"),
        (replace(HEALTHY, parked=CAUSES), "And 180 more:"),
        (with_leases(*HALTED, mine=()), "And 950 more:"),
        (replace(HEALTHY, errors=(RecentError(at=AT, event="E", text="x" * 10_000, times=1200),)), "1,200"),
    ],
)
def test_the_status_page_stays_small_with_a_thousand_leases_or_errors(snapshot: Snapshot, more: str):
    page = page_of(snapshot)
    assert len(page) < 200_000
    assert more in " ".join(Page(page).texts)
