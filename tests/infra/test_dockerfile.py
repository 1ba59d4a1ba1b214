"""
Tests of the Dockerfile that linters do not make: how its stages fit together, and what this project requires of an image.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = re.sub(r"\\\n\s*|^#.*\n", "", (ROOT / "worker/Dockerfile").read_text(), flags=re.MULTILINE)
BASES = (ROOT / "worker/bases/Dockerfile").read_text()
STAGES = dict(re.findall(r"^FROM \S+ AS (\S+)\n(.*?)(?=^FROM |\Z)", TEXT, re.MULTILINE | re.DOTALL))
TARGETS = ("worker", "consumer", "api")


def instructions(target: str) -> dict[str, str]:
    """
    Return the instructions that apply to an image. The target's stage overrides instructions of the runtime stage.
    """
    return dict(re.findall(r"^([A-Z]+) (.*)$", STAGES["runtime"] + STAGES[target], re.MULTILINE))


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_runs_as_a_numeric_user_without_a_shell(target: str):
    """An image runs as a numeric user, is stopped by SIGTERM, and starts its program without a shell."""
    final = instructions(target)

    # Name the user by a number: Kubernetes cannot tell that a user with a name is not root, and would refuse
    # the image.
    assert ("10001:10001", "SIGTERM", "/app") == (final["USER"], final["STOPSIGNAL"], final["WORKDIR"])
    # With a shell as entry point, the shell would get the signals instead of the program.
    assert json.loads(final["ENTRYPOINT"])[0] in ("python", "cosmos-outbox")
    assert ["python", "/app/probe.py"] == json.loads(final["HEALTHCHECK"].partition("CMD ")[2])[:2]


@pytest.mark.parametrize("target", TARGETS)
def test_the_health_check_of_an_image_uses_its_program_s_port(target: str):
    final = instructions(target)
    # The program has to listen on all addresses, because a probe from outside of the container cannot reach
    # the loopback address.
    said = r'"--host", "0\.0\.0\.0", "--port", "(\d+)"|OUTBOX_HEALTH_PORT=0\.0\.0\.0:(\d+)'
    listens = ["".join(ports) for ports in re.findall(said, STAGES[target])]

    assert [final["EXPOSE"]] == listens
    assert listens == re.findall(r"127\.0\.0\.1:(\d+)/", final["HEALTHCHECK"])


@pytest.mark.parametrize("target", TARGETS)
def test_each_image_contains_the_program_that_it_starts(target: str):
    """
    The command `cosmos-outbox` comes with an installed wheel. The module of a consumer is copied into the image.
    """
    final, build = instructions(target), STAGES[f"build-{target}"]
    named = re.match(r'\["(\w+)[.\w]*:\w+"\]', final.get("CMD", "")) or re.search(
        r'"-m", "(\w+)', final["ENTRYPOINT"]
    )
    by_command = "cosmos-outbox" == json.loads(final["ENTRYPOINT"])[0]

    assert f"COPY --from=build-{target} /app /app\n" in STAGES[target]
    assert named or by_command
    assert named is None or f"COPY {named[1]} /app/{named[1]}\n" in build
    assert by_command == ("/wheels/*.whl" in build), "the worker's wheel is installed where its command runs"


def test_packages_are_installed_only_from_wheels_with_hashes():
    installs = [part for part in re.split(r"&&|\n", TEXT) if "pip install" in part and " -r " in part]

    assert 4 == len(installs)
    assert [] == [part for part in installs if not {"--require-hashes", "--no-build"} <= set(part.split())]


def test_each_base_image_is_pinned_to_a_version():
    """
    worker/bases/Dockerfile has the same images, because Dependabot reads that file to propose newer versions.
    """
    used = re.findall(r"^ARG \w+_IMAGE=(.*)$", TEXT, re.MULTILINE)

    assert used == re.findall(r"^FROM (\S+)", BASES, re.MULTILINE)
    assert [] == [
        image for image in used if not re.fullmatch(r"\S+:(?!latest)[\w.-]*\d[\w.-]*(@sha256:\w{64})?", image)
    ]
