"""
Tests of the GitHub workflows: their make targets exist, their actions are pinned, and they have minimal permissions.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
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


def test_every_make_target_of_the_workflows_exists():
    made = {target for step in STEPS for target in re.findall(r"\bmake ([a-z-]+)", step.get("run", ""))}
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))

    assert (set(), True) == (made - targets, {"test", "check-infra", "coverage", "docs", "dist"} <= made)


@pytest.mark.parametrize("name", FILES)
def test_every_github_action_is_pinned_to_a_commit_and_names_its_version(name: str):
    used = re.findall(r"uses: (.+)", FILES[name])

    assert [] == [action for action in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v[\d.]+", action)]


@pytest.mark.parametrize("name", WORKFLOWS)
def test_workflows_have_only_read_permissions_by_default(name: str):
    assert {"contents": "read"} == WORKFLOWS[name]["permissions"]


def test_only_jobs_that_sign_or_publish_have_write_permissions():
    """The test also checks that a maintainer has to approve the jobs that publish."""
    rights = {
        name: {right for right, level in job["permissions"].items() if level == "write"}
        for name, job in JOBS.items()
        if "permissions" in job
    }

    assert {
        "release.yml: attest": {"attestations", "id-token"},
        "release.yml: image": {"attestations", "id-token", "packages"},
        "release.yml: publish": {"id-token"},
        "release.yml: release": {"contents"},
        "scorecard.yml: scorecard": {"id-token", "security-events"},
    } == rights
    asked = {name for name, job in JOBS.items() if job.get("environment") == "release"}
    assert {"release.yml: image", "release.yml: publish", "release.yml: release"} == asked


def test_artifacts_are_signed_before_they_are_released():
    """
    The distributions and the image are signed first, and the image carries a software bill of materials.
    """
    of_release = {
        name.removeprefix("release.yml: "): job for name, job in JOBS.items() if "release.yml" in name
    }
    attested = {
        name: [step["with"] for step in job["steps"] if step.get("uses", "").startswith("actions/attest@")]
        for name, job in of_release.items()
    }

    assert "attest" == of_release["publish"]["needs"]
    assert [{"subject-path": "dist/*/*"}] == attested["attest"]
    provenance, bill = attested["image"]
    assert ({"sbom-path": "sbom/worker.json"}.items(), True) == (
        bill.items() - provenance.items(),
        provenance["push-to-registry"],
    )
    assert {"publish", "image"} == set(of_release["release"]["needs"])
    assert "files/dist/*/* files/sbom/*.json" in of_release["release"]["steps"][-1]["run"]


def test_the_release_adds_the_repository_to_each_distribution_s_metadata(tmp_path: Path):
    """
    The release adds the URLs of the repository, while the names of the authors are in the metadata from the start.
    """
    (step,) = (step for step in STEPS if "project.urls" in step.get("run", ""))
    folders = (".", "worker", "testing", "amqp", "emulators")
    for folder in folders:
        (tmp_path / folder).mkdir(exist_ok=True)
        shutil.copy(ROOT / folder / "pyproject.toml", tmp_path / folder)
    known = {
        "GITHUB_SERVER_URL": "https://git.example",
        "GITHUB_REPOSITORY": "us/it",
        "GITHUB_REF_NAME": "v1",
    }
    subprocess.run(["/bin/bash", "-ec", step["run"]], cwd=tmp_path, env=known, check=True)  # noqa: S603 # its own
    for folder in folders:
        project = tomllib.loads((tmp_path / folder / "pyproject.toml").read_text())["project"]

        assert [{"name": "The cosmos-outbox authors"}] == project["authors"]
        assert {
            "Source": "https://git.example/us/it",
            "Changelog": "https://git.example/us/it/blob/v1/CHANGELOG.md",
            "Issues": "https://git.example/us/it/issues",
        } == project["urls"]


def test_every_file_has_a_licence_whose_text_is_in_the_repository():
    """A folder with files of another project has its own LICENSE and NOTICE."""
    ours, *others = tomllib.loads((ROOT / "REUSE.toml").read_text())["annotations"]
    folders = {ROOT: ours} | {ROOT / one["path"].removesuffix("/**"): one for one in others}

    assert "**" == ours["path"]
    assert {ROOT, *(file.parent for file in ROOT.glob("[!.]*/**/NOTICE"))} == folders.keys()
    assert {file.stem: file.read_text().strip() for file in (ROOT / "LICENSES").iterdir()} == {
        one["SPDX-License-Identifier"]: (folder / "LICENSE").read_text().strip()
        for folder, one in folders.items()
    }
    assert ours["SPDX-FileCopyrightText"] in (ROOT / "LICENSE").read_text()


def test_the_tests_run_on_every_python_version_that_the_library_supports():
    named = set(re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text()))

    assert named == set(JOBS["ci.yml: test"]["strategy"]["matrix"]["python"])


def test_dependabot_updates_everything_that_is_pinned():
    updates = yaml.safe_load((ROOT / ".github/dependabot.yml").read_text())["updates"]

    assert {"github-actions", "pip", "docker"} == {update["package-ecosystem"] for update in updates}
    pinned = {path.parent for depth in ("", "*/", "*/*/") for path in ROOT.glob(f"{depth}requirements*.txt")}
    pinned |= {path.parent for path in ROOT.glob("requirements/*.txt")}
    (packages,) = (update["directories"] for update in updates if update["package-ecosystem"] == "pip")
    assert {f"/{folder.relative_to(ROOT)}".replace("/.", "/") for folder in pinned} == set(packages)
