"""
Tests that third-party scanners report nothing for Bicep, images, manifests and workflows, and that they do report a planted
mistake.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools.infra_check.running import INFRA, ROOT, output, run

pytestmark = pytest.mark.looptime(False)

WORKFLOWS = ROOT / ".github/workflows"


def checkov(directory: Path, framework: str) -> tuple[int, list[str]]:
    """Return how many files checkov could not read, and the ids of the checks that failed in the others."""
    asked = ("-d", ".", "--framework", framework, "--quiet", "--compact", "--skip-download", "--soft-fail")
    report = json.loads(output("checkov", *asked, "-o", "json", directory=directory))
    assert report["summary"]["passed"] + report["summary"]["failed"], f"nothing was checked in {directory}"
    return report["summary"]["parsing_errors"], [
        one["check_id"] for one in report["results"]["failed_checks"]
    ]


def zizmor(directory: Path) -> set[str]:
    """Return the ids of zizmor's findings in workflows, without the user's own configuration."""
    files = sorted(file.name for file in directory.glob("*.yml"))
    done = run("zizmor", "--offline", "--no-config", "--format", "json", *files, directory=directory)
    return {finding["ident"] for finding in json.loads(done.stdout)}


def test_checkov_finds_no_mistake_in_bicep_images_and_manifests(tmp_path: Path):
    (tmp_path / "rendered.yaml").write_text(output("kubectl", "kustomize", str(INFRA / "kubernetes")))

    assert [(0, [])] * 3 == [
        checkov(INFRA, "bicep"),
        checkov(INFRA.parent / "worker", "dockerfile"),
        checkov(tmp_path, "kubernetes"),
    ]


@pytest.mark.parametrize("file", ["worker/Dockerfile", "emulators/Dockerfile"])
def test_hadolint_finds_no_mistake_in_a_dockerfile(file: str):
    assert "" == output("hadolint", "--no-color", file)


def test_checkov_and_hadolint_find_planted_mistakes(tmp_path: Path):
    (tmp_path / "Dockerfile").write_text("FROM python\nRUN cd /tmp && pip install x\nCMD python\n")
    found = run("hadolint", "--no-color", "Dockerfile", directory=tmp_path).stdout

    assert all(rule in found for rule in ("DL3006", "DL3025"))
    assert "CKV_DOCKER_3" in checkov(tmp_path, "dockerfile")[1]


def test_zizmor_finds_no_security_mistake_in_the_workflows():
    """
    zizmor would find a workflow that gives secrets or rights to the author of a pull request. This also checks that the workflows
    conform to GitHub's schema.
    """
    files = sorted(str(file) for file in WORKFLOWS.glob("*.yml"))

    assert files
    assert "ok" in output("check-jsonschema", "--builtin-schema", "vendor.github-workflows", *files)
    assert set() == zizmor(WORKFLOWS)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("          persist-credentials: false\n", "          fetch-depth: 1\n", "artipacked"),
        ("make test PYTHON=python", "echo ${{ github.event.pull_request.title }}", "template-injection"),
        ("  contents: read", "  contents: write", "excessive-permissions"),
        ("  pull_request:", "  pull_request_target:", "dangerous-triggers"),
    ],
)
def test_zizmor_finds_a_planted_mistake_in_a_workflow(tmp_path: Path, old: str, new: str, said: str):
    text = (WORKFLOWS / "ci.yml").read_text()
    assert old in text
    (tmp_path / "ci.yml").write_text(text.replace(old, new, 1))

    assert said in zizmor(tmp_path)
