"""The workflows run what is there: targets of the Makefile, actions pinned to a commit, no right to write."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FILES = {file.name: file.read_text() for file in sorted((ROOT / ".github/workflows").glob("*.yml"))}
WORKFLOWS = {name: yaml.safe_load(text) for name, text in FILES.items()}
JOBS = {
    f"{name}: {job}": content
    for name, workflow in WORKFLOWS.items()
    for job, content in workflow["jobs"].items()
}
STEPS = [step for job in JOBS.values() for step in job["steps"]]


def test_every_target_that_they_make_exists():
    made = {target for step in STEPS for target in re.findall(r"\bmake ([a-z-]+)", step.get("run", ""))}
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))

    assert (set(), True) == (made - targets, {"test", "check-infra", "coverage", "docs", "dist"} <= made)


@pytest.mark.parametrize("name", FILES)
def test_every_action_is_pinned_to_a_commit_with_its_version_beside_it(name: str):
    used = re.findall(r"uses: (.+)", FILES[name])

    assert [] == [action for action in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v[\d.]+", action)]


@pytest.mark.parametrize("name", WORKFLOWS)
def test_they_may_only_read(name: str):
    assert {"contents": "read"} == WORKFLOWS[name]["permissions"]


def test_only_the_job_that_publishes_has_a_right_of_its_own():
    rights = {name: job["permissions"] for name, job in JOBS.items() if "permissions" in job}

    assert {"release.yml: publish": {"id-token": "write"}} == rights
    assert "release" == JOBS["release.yml: publish"]["environment"]


def test_the_tests_run_on_every_python_that_the_library_names():
    named = set(re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text()))

    assert named == set(JOBS["ci.yml: test"]["strategy"]["matrix"]["python"])


def test_what_is_pinned_is_what_gets_updates():
    updates = yaml.safe_load((ROOT / ".github/dependabot.yml").read_text())["updates"]

    assert {"github-actions", "pip", "docker"} == {update["package-ecosystem"] for update in updates}
    pinned = {path.parent for depth in ("", "*/", "*/*/") for path in ROOT.glob(f"{depth}requirements*.txt")}
    pinned |= {path.parent for path in ROOT.glob("requirements/*.txt")}
    (packages,) = (update["directories"] for update in updates if update["package-ecosystem"] == "pip")
    assert {f"/{folder.relative_to(ROOT)}".replace("/.", "/") for folder in pinned} == set(packages)
