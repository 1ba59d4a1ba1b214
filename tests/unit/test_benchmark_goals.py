"""
The goals of the benchmarks: their table in the documentation, and the warnings for figures that became worse.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.all import judgements, merge, table, warnings
from benchmarks.goals import BENCHMARKS, GOALS
from benchmarks.growth import DELAYS_MS

ROOT = Path(__file__).parents[2]


def figures(**commit: float) -> dict[str, dict[str, float]]:
    return {"commit": commit}


def test_each_goal_belongs_to_a_benchmark_and_has_one_bound():
    assert set(BENCHMARKS) == {goal.benchmark for goal in GOALS}
    assert all(goal.at_most is None or goal.at_least is None for goal in GOALS)


def test_each_benchmark_that_ci_checks_has_a_goal_with_a_ratio():
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
def test_a_ratio_that_became_worse_by_a_tenth_gives_a_warning(
    before: dict[str, float], now: dict[str, float], warned: bool
):
    assert warned == bool([*warnings({"figures": figures(**before)}, figures(**now))])


def test_every_measured_figure_with_a_goal_is_compared_with_it():
    lines = [*judgements({"relay": {"cpu_ms_per_event": 0.07, "ceiling_ratio": 3.0}})]
    assert ["3   >= 3.0", "0.07   <= 0.055, missed"] == [line.split(maxsplit=1)[1] for line in lines]


def test_the_benchmark_page_shows_median_lowest_and_highest_of_several_runs():
    runs: list[dict[str, object]] = [{"ceiling_ratio": value, "backlog": []} for value in (3.5, 3.1, 3.3)]
    runs.append({"skipped_in_this_run": "no tools"})
    page = table({"figures": {"relay": merge(runs)}, "runs": {}})
    assert "| 3.3 (3.1-3.5) | >= 3.0 |" in page


def test_the_benchmark_page_has_a_chart_of_each_growth_table():
    rows = [{"count": count, "per_second": 1200.0 * count, "cpu_ms": 0.05} for count in (1, 8)]
    growth = dict.fromkeys(("partitions", "sessions", *(f"fleet_{delay}ms" for delay in DELAYS_MS)), rows)
    page = table({"figures": {"growth": growth}, "runs": {}})
    assert page.count("line [1200, 9600]") == 2 + len(DELAYS_MS)
    assert 'x-axis ["1", "8"]' in page
    assert "0 --> 10000" in page
    assert "| workers, replies 30 ms later | 8 | 9600 | 0.05 |" in page
