"""What is said of the benchmarks' figures: the table of the documentation, and the warnings."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.all import judgements, warnings
from benchmarks.goals import BENCHMARKS, GOALS

ROOT = Path(__file__).parents[2]


def figures(**commit: float) -> dict[str, dict[str, float]]:
    return {"commit": commit}


def test_each_goal_has_one_bound_and_a_benchmark_that_runs():
    assert set(BENCHMARKS) == {goal.benchmark for goal in GOALS}
    assert all(goal.at_most is None or goal.at_least is None for goal in GOALS)


def test_each_benchmark_that_is_guarded_has_a_ratio_that_can_become_worse():
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    guarded = re.search(r"--guard ([a-z_ ]+)", workflow)
    assert guarded is not None
    assert set(guarded[1].split()) <= {goal.benchmark for goal in GOALS if goal.ratio}


@pytest.mark.parametrize(
    ("before", "now", "warned"),
    [
        ({"commit_overhead": 1.1}, {"commit_overhead": 1.2}, False),
        ({"commit_overhead": 1.1}, {"commit_overhead": 1.22}, True),
        ({"concurrent_ratio": 0.9}, {"concurrent_ratio": 0.8}, True),
        ({"concurrent_ratio": 0.8}, {"concurrent_ratio": 0.9}, False),
        ({}, {"commit_overhead": 9}, False),
    ],
)
def test_a_ratio_that_became_worse_by_a_tenth_is_a_warning(
    before: dict[str, float], now: dict[str, float], warned: bool
):
    assert warned == bool([*warnings({"figures": figures(**before)}, figures(**now))])


def test_every_figure_with_a_goal_is_judged_where_it_was_measured():
    lines = [*judgements({"relay": {"cpu_ms_per_event": 0.07, "ceiling_ratio": 3.0}})]
    assert ["3   >= 1.0", "0.07   <= 0.06, missed"] == [line.split(maxsplit=1)[1] for line in lines]
