"""
The images install what the tests ran with: the same versions, all of what the extras ask for, with hashes.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
EXTRAS = {
    "worker": ("worker", "azure-monitor"),
    "consumer": ("worker", "azure-monitor", "example"),
    "api": ("example",),
}


def pins(path: Path) -> dict[str, str]:
    """
    Return name and version of each pinned requirement.
    """
    found = re.findall(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", path.read_text(), re.MULTILINE)
    return {canonicalize_name(name): version for name, version in found}


@pytest.mark.parametrize("image", [*EXTRAS, "build"])
def test_an_image_has_the_versions_that_were_tested_each_with_its_hashes(image: str):
    path = ROOT / f"infra/docker/requirements-{image}.txt"
    tested, installed = pins(ROOT / "requirements/dev.txt"), pins(path)
    assert {} == {name: version for name, version in installed.items() if tested.get(name) != version}
    blocks = re.split(r"^(?=[A-Za-z0-9])", path.read_text(), flags=re.MULTILINE)[1:]
    assert [] == [block.split("==")[0] for block in blocks if "--hash=sha256:" not in block]


@pytest.mark.parametrize("image", EXTRAS)
def test_an_image_has_everything_that_its_extras_ask_for(image: str):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked, extras = list(project["dependencies"]), list(EXTRAS[image])
    for extra in extras:
        for text in project["optional-dependencies"][extra]:
            requirement = Requirement(text)
            if requirement.name == project["name"]:  # this extra includes others of ours
                extras += requirement.extras
            else:
                asked.append(text)
    installed = pins(ROOT / f"infra/docker/requirements-{image}.txt")
    for text in asked:
        requirement = Requirement(text)
        assert installed[canonicalize_name(requirement.name)] in requirement.specifier, text


@pytest.mark.parametrize("program", ["worker", "consumer"])
def test_a_program_in_a_container_answers_probes_from_outside(program: str):
    """
    Its default is the loopback, which no kubelet reaches.
    """
    dockerfile = (ROOT / "worker/Dockerfile").read_text()
    stage = dockerfile.split(f"FROM runtime AS {program}")[1].split("\nFROM ")[0]
    assert "ENV OUTBOX_HEALTH_PORT=0.0.0.0:8080" in stage
