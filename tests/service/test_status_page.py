"""The status page: complete, escaped and accessible; `test_status_page_in_a_browser` looks at it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from html.parser import HTMLParser
from typing import Any

import pytest

from cosmos_outbox.changefeed import Lag, LeaseLag
from cosmos_outbox.errors import ParkingError
from cosmos_outbox.parking.causes import by_cause
from cosmos_outbox.parking.documents import Failure, ParkedKey
from cosmos_outbox_worker.fleet import Heartbeat, Phase
from cosmos_outbox_worker.health import ParkedSeen
from cosmos_outbox_worker.recent_errors import RecentError
from cosmos_outbox_worker.status_page import page_of
from cosmos_outbox_worker.worker_health import Snapshot
from tests.support.lease_statuses import status

AT = datetime(2026, 11, 21, 12, tzinfo=UTC)
VOID = {"meta", "link", "br", "img", "hr", "input"}


def waiting(name: str, owner: str | None, transactions: int, age: timedelta | None) -> LeaseLag:
    return LeaseLag(lease=f"p..{name}", token=name, owner=owner, transactions=transactions, oldest_age=age)


MOVING = status(lag=0)
PARKED = ParkedKey(
    partition_key="ada",
    partition="ada",
    scope=None,
    epoch="1",
    parked_at="2026-11-21T08:00:00Z",
    failure=None,
    held=4,
)
SNAPSHOT = Snapshot(
    at=AT,
    started_at=AT - timedelta(minutes=5),
    instance="worker-1",
    processor="outbox",
    container="contacts/data",
    topic="events",
    phase=Phase.RUNNING,
    mine=(MOVING,),
    lag=Lag(
        leases=(
            waiting("0", "worker-1", 3, timedelta(seconds=4)),
            waiting("1", "worker-2", 0, None),
            waiting("2", None, 70, timedelta(minutes=9)),
        )
    ),
    lag_at=AT,
    unseen=timedelta(0),
    event_ttl=timedelta(days=10),
    parked=None,
    parked_at=None,
    sent=12345,
    sent_per_second=41.25,
    errors=(),
    unready=(),
)


class Page(HTMLParser):
    """The text, the tags, and whether every tag is closed in order."""

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


STILL = replace(MOVING, stalled=True, idle_seconds=200, error="BrokerUnavailable('down')", failed_attempts=3)
FAILED = Failure(event_id="e-1", reason="MessageRejected", error="too large", attempts=3)
KEYS = (
    replace(PARKED, parked_at="2026-11-21T09:30:00.123456+02:00", failure=FAILED),
    replace(PARKED, partition_key="eve", parked_at="yesterday"),
)


@pytest.mark.parametrize(
    ("changes", "texts"),
    [
        ({}, ["12,345", "41.2", "73", "worker-2", "free", "moving", "elsewhere"]),
        ({}, ["5 min", "9 min", "no owner"]),
        (
            {"mine": (STILL,), "unready": ("Lease 0 did not move for 200 s.",)},
            [
                "Not ready",
                "Lease 0 did not move for 200 s.",
                "stalled for 3 min",
                "BrokerUnavailable('down')",
            ],
        ),
        ({"parked": ParkedSeen(count=2, keys=KEYS, events=8)}, ["ada", "4", "e-1", "too large"]),
        ({"parked": ParkedSeen(count=2, keys=KEYS, events=8)}, ["2026-11-21 07:30:00 UTC", "yesterday"]),
        ({"parked": ParkedSeen(count=5000)}, ["5,000 in all:"]),
        ({"parked": ParkedSeen(count=1, unreadable={"ada": ParkingError("So.")})}, ["ada", "unknown", "So."]),
        ({"parked_at": AT}, ["Unknown since 2026-11-21 12:00:00 UTC; the last errors say why."]),
        ({"lag": None, "lag_at": None, "mine": ()}, ["unknown", "No lease is known yet."]),
        (
            {"errors": (RecentError(at=AT, event="PublishFailed", text="no topic", times=1200),)},
            ["1,200", "no topic"],
        ),
    ],
)
def test_it_shows_what_the_worker_knows(changes: dict[str, Any], texts: list[str]):
    assert {*texts} <= {*Page(page_of(replace(SNAPSHOT, **changes))).texts}


def test_trouble_is_a_banner_that_is_read_out():
    page = Page(page_of(replace(SNAPSHOT, mine=(STILL,), unready=("Lease 0 did not move for 200 s.",))))
    assert ["status"] == [tag["role"] for tag in page.all("div") if "state bad" == tag.get("class")]


def test_a_damaged_lease_is_named_with_its_mistake_and_no_worker_counts_as_its_owner():
    lag = replace(SNAPSHOT.lag, damaged={"p..7": "Lease 'p..7' is damaged."})
    failing = status("7", stalled=True, error="so")
    text = page_of(replace(SNAPSHOT, lag=lag, mine=(MOVING, failing)))
    (row,) = [line for line in text.splitlines() if ">7<" in line]
    assert ["7", "none", "unknown", "unknown", "damaged", "Lease 'p..7' is damaged."] == Page(row).texts
    texts = Page(text).texts
    assert {"at least 73", "at least 9 min"} <= set(texts)
    assert "1" == texts[texts.index("Leases of this worker") + 1]
    hidden = replace(lag, leases=(waiting("1", "worker-2", 0, None),))
    texts = Page(page_of(replace(SNAPSHOT, lag=hidden))).texts
    assert ["at least 0", "unknown"] == [
        texts[texts.index(figure) + 1] for figure in ("Changes waiting, all leases", "Oldest unsent")
    ]


def test_parked_keys_that_the_worker_cannot_see_any_more_are_unknown_and_not_none():
    texts = Page(page_of(replace(SNAPSHOT, parked=None, parked_at=AT))).texts
    assert "unknown" == texts[texts.index("Parked keys") + 1]


def test_times_are_shown_to_the_second_in_utc():
    text = page_of(replace(SNAPSHOT, at=AT.astimezone(timezone(timedelta(hours=2)))))
    assert "As of 2026-11-21 12:00:00 UTC;" in text
    assert "+00:00" not in text


def test_errors_and_names_are_escaped():
    nasty = '"><script>alert(1)</script>'
    page = Page(page_of(replace(
        SNAPSHOT, instance=nasty, topic=nasty, container=nasty, processor=nasty, unready=(nasty,),
        errors=(RecentError(at=AT, event=nasty, text=nasty),),
        lag=Lag(leases=(waiting(nasty, nasty, 1, None),)),
    )))  # fmt: skip
    assert ["/live.js"] == [tag.get("src") for tag in page.all("script")]
    assert nasty in page.texts


def test_nothing_is_loaded_from_anywhere():
    page = Page(page_of(SNAPSHOT))
    assert [] == [tag for name in ("link", "img", "iframe") for tag in page.all(name)]
    assert [{"src": "/live.js", "defer": None}] == page.all("script")
    assert all(str(link["href"]).startswith("/") for link in page.all("a"))
    assert "url(" not in page_of(SNAPSHOT)
    assert "@import" not in page_of(SNAPSHOT)


def test_it_is_accessible():
    page = Page(page_of(SNAPSHOT))
    assert [{"lang": "en"}] == page.all("html")
    assert 1 == len(page.all("main")) == len(page.all("h1")) == len(page.all("title"))
    assert len(page.all("table")) == len(page.all("caption"))
    assert {"col"} == {head.get("scope") for head in page.all("th")}
    assert all(region.get("aria-label") for region in page.all("div") if region.get("role") == "region")


def test_it_is_never_loaded_anew_under_its_reader():
    page = Page(page_of(SNAPSHOT))
    assert [] == [meta for meta in page.all("meta") if "http-equiv" in meta]
    assert any("renews itself every 5 seconds" in text for text in page.texts)
    live = [attributes["id"] for _, attributes in page.tags if "data-live" in attributes]
    assert len(live) == len(set(live))
    assert {"state", "figures", "leases", "workers", "parked", "errors", "footer"} == set(live)


def test_the_age_of_what_lies_too_far_away_to_look_is_unknown():
    far_away = replace(SNAPSHOT, lag=Lag(leases=(waiting("0", "worker-1", 1, None),)))
    texts = Page(page_of(far_away)).texts

    assert 4 == texts.count("unknown")  # of the fleet, the lease, its worker; and parked keys were not polled
    assert "nothing waits" not in texts


def test_what_the_worker_could_not_look_at_for_long_is_unknown_and_a_lease_that_was_lost_is_not_elsewhere():
    mine = replace(SNAPSHOT, mine=())
    assert "no longer of this worker" in Page(page_of(mine)).texts
    texts = Page(page_of(replace(mine, unseen=timedelta(minutes=9)))).texts
    assert {"unknown", "no longer of this worker"} <= set(texts)
    assert any("unknown since then, for 9 min" in text for text in texts)
    assert not {"73", "70", "3", "nothing waits", "elsewhere"} & set(texts)


def test_page_and_probes_say_what_the_snapshot_says_is_wrong():
    halted = replace(waiting("1", "worker-2", 3, None), standstill="The store is full.")
    parked = ParkedSeen(count=2)
    snapshot = replace(SNAPSHOT, unready=("No.",), lag=Lag(leases=(halted,)), parked=parked)
    assert ("No.", "Range 1 (worker-2): The store is full.", "2 parked keys.") == snapshot.wrong()
    assert ["No."] == snapshot.readiness()["reasons"]
    assert set(snapshot.wrong()) <= set(Page(page_of(snapshot)).texts)
    assert () == QUIET.wrong()


QUIET = replace(
    SNAPSHOT, lag=Lag(leases=(waiting("0", "worker-1", 0, None), waiting("1", "worker-2", 0, None)))
)


def mood(snapshot: Snapshot) -> str | None:
    (banner,) = [tag for tag in Page(page_of(snapshot)).all("div") if tag.get("id") == "state"]
    return (banner["class"] or "").removeprefix("state ")


def test_the_banner_is_green_only_when_nothing_waits_for_a_person():
    late = Lag(leases=(waiting("0", "worker-1", 3, timedelta(minutes=6)),))
    elsewhere = replace(
        waiting("1", "worker-2", 3, None), standstill="No progress for 60 s: The store is full."
    )
    assert "good" == mood(QUIET)
    assert "waits" == mood(replace(QUIET, parked=ParkedSeen(count=1)))
    assert "waits" == mood(replace(QUIET, lag=late))
    assert "waits" == mood(SNAPSHOT), "a range without owner"
    assert "bad" == mood(replace(QUIET, unready=("No.",)))
    assert "bad" == mood(replace(QUIET, lag=Lag(leases=(elsewhere,)))), "another worker stands still"
    assert any(
        "The store is full." in text
        for text in Page(page_of(replace(QUIET, lag=Lag(leases=(elsewhere,))))).texts
    )


@pytest.mark.parametrize(("number", "said"), [(1, "1"), (1234, "1,234")])
def test_a_range_without_owner_says_how_much_waits_be_it_one_change_or_many(number: int, said: str):
    idle = replace(QUIET, lag=Lag(leases=(waiting("1", None, number, None),)))
    assert [f"Range 1 has no owner; changes that wait: {said}."] == list(idle.waits())


def test_a_worker_that_is_not_ready_itself_still_names_the_leases_of_others_that_stand_still():
    elsewhere = replace(
        waiting("1", "worker-2", 3, None), standstill="No progress for 60 s: The store is full."
    )
    own = replace(MOVING, stalled=True, idle_seconds=200, error="No topic.")
    texts = Page(
        page_of(replace(QUIET, mine=(own,), lag=Lag(leases=(elsewhere,)), unready=("Lease 0 stands.",)))
    ).texts
    assert "Range 1 (worker-2): No progress for 60 s: The store is full." in texts
    assert not any(text.startswith("Range 0") for text in texts)


def test_a_column_without_anything_in_it_is_left_out():
    assert "Error" not in Page(page_of(QUIET)).texts
    still = replace(QUIET, mine=(replace(MOVING, stalled=True, error="No topic."),))
    assert "Error" in Page(page_of(still)).texts


def test_trouble_comes_first_and_ranges_are_sorted_as_numbers():
    leases = [waiting(str(number), "worker-1", 0, None) for number in range(30)]
    leases[17] = waiting("17", None, 5, None)
    text = page_of(replace(QUIET, mine=(), lag=Lag(leases=tuple(leases))))
    assert text.index(">17</td>") < text.index(">0</td>") < text.index(">2</td>") < text.index(">10</td>")
    (strip,) = [tag for tag in Page(text).all("div") if tag.get("class") == "strip"]
    assert "29 leases without trouble" in (strip["aria-label"] or "")


def test_all_workers_are_shown_with_what_they_own():
    leases = (waiting("0", "worker-1", 2, timedelta(seconds=4)), waiting("1", "worker-2", 5, None))
    text = page_of(replace(QUIET, lag=Lag(leases=(*leases, waiting("2", "worker-2", 0, None)))))
    (row,) = [line for line in text.splitlines() if 'data-head="Worker">worker-2<' in line]
    assert ["worker-2", "by its leases", "2", "5", "unknown"] == Page(row).texts


def test_workers_without_a_lease_are_shown_with_their_last_sign_of_life_and_what_is_wrong_with_them():
    beat = Heartbeat(worker="worker-3", every=timedelta(seconds=15), phase=Phase.RUNNING)
    cut_off = "The leases could not be listed for 90 s."
    others = (
        replace(beat, silent_for=timedelta(seconds=8)),
        replace(beat, worker="worker-4", silent_for=timedelta(minutes=3)),
        replace(beat, worker="worker-5", unready=(cut_off,), errors=("LeasesBalanced error=403",)),
        replace(beat, worker="worker-6", unready=("The worker is draining.",), phase=Phase.DRAINING),
    )
    text = page_of(replace(QUIET, others=others))
    rows = [Page(line).texts for line in text.splitlines() if 'data-head="Worker">worker-' in line]
    assert [
        ["worker-4", "silent", "3 min ago", "0", "0", "nothing waits"],
        ["worker-5", "not ready", "0 s ago", "0", "0", "nothing waits"],
        ["worker-1", "running", "now: this page", "1", "0", "nothing waits"],
        ["worker-2", "by its leases", "1", "0", "nothing waits"],
        ["worker-3", "stand-by", "8 s ago", "0", "0", "nothing waits"],
        ["worker-6", "draining", "0 s ago", "0", "0", "nothing waits"],
        ["worker-5", "LeasesBalanced error=403"],
    ] == rows
    assert "waits" == mood(replace(QUIET, others=others))
    assert "good" == mood(replace(QUIET, others=(others[0], others[1], others[3])))
    assert f"Worker worker-5 is not ready: {cut_off}" in Page(text).texts


def test_parked_keys_are_grouped_by_cause_with_the_command_to_copy():
    failure = Failure(event_id="e-1", reason="MessageRejected", error="300000 bytes are too much", attempts=3)
    keys = tuple(replace(PARKED, partition_key=f"it's {number}", failure=failure) for number in range(60))
    parked = ParkedSeen(count=60, keys=keys, causes=by_cause(keys))
    page = Page(page_of(replace(QUIET, parked=parked)))
    assert """cosmos-outbox parked show 'it'"'"'s 0'""" in page.texts
    assert "cosmos-outbox parked release --error 'MessageRejected: … bytes are too much'" in page.texts
    assert "it's 49" in page.texts
    assert "it's 50" not in page.texts


def test_very_many_causes_are_a_small_page_too():
    keys = [
        replace(PARKED, failure=Failure(event_id="e", reason="R", error=f"{'word ' * number}no.", attempts=3))
        for number in range(200)
    ]
    page = page_of(replace(QUIET, parked=ParkedSeen(count=200, causes=by_cause(keys))))
    assert len(page) < 100_000
    assert "And 180 more:" in Page(page).texts


def test_a_thousand_leases_are_a_small_page():
    leases = tuple(waiting(str(number), f"worker-{number % 20}", number % 3, None) for number in range(1000))
    assert len(page_of(replace(QUIET, mine=(), lag=Lag(leases=leases)))) < 200_000


def test_a_thousand_leases_in_trouble_are_a_small_page_too():
    still = "No progress for 95 s, 12 attempts failed: 1000 partition keys are parked, as many as one lease may have."
    leases = tuple(
        replace(waiting(str(number), f"worker-{number % 20}", 3, None), standstill=still)
        for number in range(1000)
    )
    page = page_of(replace(QUIET, mine=(), lag=Lag(leases=leases)))
    assert len(page) < 200_000
    assert "And 990 more; the parts below have them." in Page(page).texts
    assert "And 950 more:" in Page(page).texts


def test_a_name_turns_no_text_around_it_and_steers_no_terminal():
    turned = "\u202eabc\u2066\x1b[2J\x9b"
    page = page_of(replace(QUIET, topic=turned, instance=turned, unready=(turned,)))
    assert not set(turned) & set(page) - set("abc[2J")
    assert "\u05d0" in page_of(replace(QUIET, topic="\u05d0")), "a script that runs to the left is no trick"


def test_nothing_moves_on_the_page():
    assert not any(word in page_of(SNAPSHOT) for word in ("transition", "animation", "scroll-behavior"))
