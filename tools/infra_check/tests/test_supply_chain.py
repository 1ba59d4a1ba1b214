"""
What check-infra finds in the Dockerfile and in the workflow: everything that is planted, and nothing as they are.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.infra_check import dockerfile, tools, workflow
from tools.infra_check.tests.planting import swapped

pytestmark = pytest.mark.looptime(False)

ROOT = Path(__file__).parents[3]
DOCKERFILE = (ROOT / "infra/docker/Dockerfile").read_text()
CI = (ROOT / ".github/workflows/ci.yml").read_text()


def test_the_dockerfile_as_it_is_has_no_problem():
    assert [] == [*dockerfile.problems(DOCKERFILE), *tools.hadolint(ROOT / "infra/docker/Dockerfile")]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("USER 10001:10001\n# Probes", "# Probes", "worker runs as root"),
        ("USER 10001:10001\nEXPOSE 8000", "USER 0\nEXPOSE 8000", "api runs as 0"),
        ("STOPSIGNAL SIGTERM\n", "", "worker is not stopped by SIGTERM"),
        ("STOPSIGNAL SIGTERM\n", "STOPSIGNAL SIGKILL\n", "api is not stopped by SIGTERM"),
        (
            '["python", "/app/probe.py", "http://127.0.0.1:8080/livez"]',
            "curl localhost",
            "worker has no health check",
        ),
        (
            'ENTRYPOINT ["python", "-m", "worker"]',
            "ENTRYPOINT python -m worker",
            "a shell would get its signals",
        ),
        ("python:3.13-slim-bookworm", "python:latest", "python:latest is not pinned"),
        ("python:3.13-slim-bookworm", "python", "PYTHON_IMAGE=docker.io/library/python is not pinned"),
        ("--require-hashes --no-build -r requirements-worker.txt", "-r requirements-worker.txt", "hashes"),
        (
            "HOME=/tmp",
            "HOME=/tmp OUTBOX_SERVICEBUS_CONNECTION_STRING=x",
            "CONNECTION_STRING stays in the image",
        ),
        ("WORKDIR /app\n", "", "does not find its program"),
    ],
)
def test_what_no_linter_sees_is_found(old: str, new: str, said: str):
    assert any(said in problem for problem in dockerfile.problems(swapped(DOCKERFILE, old, new, 1)))


def test_a_base_image_whose_newer_ones_are_reported_to_no_maintainer_is_found():
    bases = (ROOT / "infra/docker/bases/Dockerfile").read_text()
    assert [] == list(dockerfile.apart(DOCKERFILE, bases))
    pinned = "python:3.13-slim-bookworm@sha256:" + 64 * "0"
    found = list(dockerfile.apart(swapped(DOCKERFILE, "python:3.13-slim-bookworm", pinned), bases))
    assert ["watched, and not built on", "built on, and not watched"] == [
        one.split(" is ")[1] for one in found
    ]
    assert not [
        one for one in dockerfile.problems(DOCKERFILE.replace("bookworm", pinned[7:])) if "not pinned" in one
    ]


def test_a_command_for_a_shell_is_found_by_hadolint(tmp_path: Path):
    old = 'CMD ["api", "--host", "0.0.0.0", "--port", "8000"]'
    assert old in DOCKERFILE
    (tmp_path / "Dockerfile").write_text(DOCKERFILE.replace(old, "CMD api --host 0.0.0.0 --port 8000"))
    assert any("DL3025" in finding for finding in tools.hadolint(tmp_path / "Dockerfile"))


def test_the_workflow_as_it_is_has_no_problem():
    assert [] == list(workflow.problems(ROOT / ".github/workflows"))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("          persist-credentials: false\n", "          fetch-depth: 1\n", "zizmor artipacked line"),
        ("@de0fac2e4500dabe0009e67214ff5f5447ce83dd", "@v6", "zizmor unpinned-uses line"),
        (
            "make test PYTHON=python",
            "echo ${{ github.event.pull_request.title }}",
            "zizmor template-injection line",
        ),
        ("  contents: read", "  contents: write", "zizmor excessive-permissions line"),
        ("  pull_request:", "  pull_request_target:", "zizmor dangerous-triggers line"),
        ("    runs-on: ubuntu-24.04\n", "", "workflow schema"),
        ("runs-on:", "run-on:", "workflow schema"),
    ],
)
def test_what_is_planted_in_the_workflow_is_found(tmp_path: Path, old: str, new: str, said: str):
    (tmp_path / "ci.yml").write_text(swapped(CI, old, new, 1))
    found = list(workflow.problems(tmp_path))
    assert any(said in problem for problem in found), found


def test_a_repository_without_a_workflow_is_not_called_checked(tmp_path: Path):
    assert [f"no workflow is in {tmp_path.name}"] == list(workflow.problems(tmp_path))
