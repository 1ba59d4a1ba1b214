"""
The workflow runs what is there: targets of the Makefile, actions pinned to a commit, no right to write.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / ".github/workflows/ci.yml").read_text()
JOBS = yaml.safe_load(TEXT)["jobs"]
STEPS = [step for job in JOBS.values() for step in job["steps"]]


def test_every_target_that_it_makes_exists():
    made = {target for step in STEPS for target in re.findall(r"\bmake ([a-z-]+)", step.get("run", ""))}
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))

    assert (set(), True) == (made - targets, {"test", "check-infra"} <= made)


def test_every_action_is_pinned_to_a_commit_with_its_version_beside_it():
    used = re.findall(r"uses: (.+)", TEXT)

    assert [] == [action for action in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v[\d.]+", action)]


def test_it_may_only_read():
    assert {"contents": "read"} == yaml.safe_load(TEXT)["permissions"]


@pytest.mark.parametrize("name", JOBS)
def test_no_job_runs_for_hours(name: str):
    assert JOBS[name]["timeout-minutes"] <= 60
