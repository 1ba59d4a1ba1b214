"""Tests of the demo's output: the line of progress, the live picture, the table and the JSON."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from cosmos_outbox_testing.verify.audit import Audit
from demo.effects import Effects
from demo.job import Outcome
from demo.progress import Progress
from demo.report import explain, table, to_json
from demo.view import line, picture

KEYS = [
    *("committed", "delivered", "lost", "duplicated", "out_of_order"),
    *("p50_ms", "p99_ms", "seconds", "killed_workers"),
    *("effects", "effects_lost", "effects_doubled", "effects_out_of_order", "consumer_kills"),
]


def outcome(**changes) -> Outcome:
    values = {
        "committed": 10,
        "delivered": 10,
        "lost": (),
        "duplicated": (),
        "out_of_order": (),
        "unknown": (),
        "p50_ms": 12.5,
        "p99_ms": 99.0,
        "topic_p50_ms": 3.0,
        "topic_p99_ms": 9.0,
    }
    problems, effects = changes.pop("problems", ()), changes.pop("effects", Effects(effects=10))
    return Outcome(
        audit=Audit(**(values | changes)),
        effects=effects,
        seconds=4.2,
        killed_workers=1,
        killed_consumers=1,
        problems=problems,
    )


def rendered(renderable) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(renderable)
    return console.file.getvalue()


def test_the_demo_s_json_has_exactly_the_documented_keys():
    effects = Effects(effects=7, lost=("a", "b", "d"), doubled=("e",), out_of_order=("f", "g"))
    result = json.loads(to_json(outcome(lost=("a", "b"), delivered=8, duplicated=("c",), effects=effects)))
    assert KEYS == list(result)
    assert (10, 8, 2, 1, 0) == tuple(result[key] for key in KEYS[:5])
    assert (12.5, 99.0, 4.2, 1) == tuple(result[key] for key in KEYS[5:9])
    assert (7, 3, 1, 2, 1) == tuple(result[key] for key in KEYS[9:])


@pytest.mark.parametrize(
    "wrong",
    [
        {"lost": ("a",)},
        {"duplicated": ("a",)},
        {"out_of_order": ("a",)},
        {"unknown": ("a",)},
        {"effects": Effects(lost=("a",))},
        {"effects": Effects(doubled=("a",))},
        {"effects": Effects(out_of_order=("a",))},
        {"effects": Effects(unknown=("a",))},
        {"problems": ("worker-2 did not stop cleanly: exit 1",)},
    ],
)
def test_a_single_problem_makes_the_demo_fail(wrong):
    assert outcome().passed
    assert not outcome(**wrong).passed
    assert "FAILED" in rendered(table(outcome(**wrong)))


def test_the_demo_s_explanation_lists_lost_events_and_problems():
    console = Console(file=io.StringIO(), width=200)
    explain(outcome(lost=("event-1",), problems=("nothing arrived for 120 s",)), console)
    assert "lost: event-1" in console.file.getvalue()
    assert "nothing arrived for 120 s" in console.file.getvalue()


def test_the_demo_s_progress_line_and_live_picture_show_the_lease_owners():
    progress = Progress(contacts_wanted=20, phase="loading", contacts_written=7, committed=40, delivered=30)
    progress.owners = {"0": "worker-1", "1": None}
    progress.notes.append("killed worker-2")
    assert (
        "loading: contacts 7/20, committed 40, delivered 30, effects 0, lag 10, leases 0:worker-1 1:-"
        == line(progress)
    )
    shown = rendered(picture(progress))
    for part in ("loading", "7 / 20", "40", "30", "10", "(no owner)", "killed worker-2"):
        assert part in shown
