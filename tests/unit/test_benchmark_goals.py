"""
What is said of the benchmarks' figures: the table of the documentation, and the warnings.
"""

from __future__ import annotations

import pytest

from benchmarks.all import table, warnings
from benchmarks.goals import BENCHMARKS, GOALS


def figures(**commit: float) -> dict[str, dict[str, float]]:
    return {"commit": commit}


def test_each_goal_has_one_bound_and_a_benchmark_that_runs():
    assert set(BENCHMARKS) == {goal.benchmark for goal in GOALS}
    assert all((goal.at_most is None) != (goal.at_least is None) for goal in GOALS)


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


def test_the_table_shows_ratios_alone_and_says_which_goal_is_missed():
    measured = {
        "date": "2026-01-01",
        "python": "3.13",
        "cores": 2,
        "figures": {
            "commit": {"commit_overhead": 1.2, "concurrent_ratio": 0.95},
            "relay": {"cpu_ms_per_event": 0.05},
        },
    }
    page = table(measured)
    assert "| 1.2 | <= 1.1, missed |" in page
    assert "| 0.95 | >= 0.9 |" in page
    assert "CPU ms" not in page
