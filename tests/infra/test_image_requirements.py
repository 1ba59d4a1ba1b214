"""
Tests that the images install the same versions as the tests use, with hashes, and everything that their extras require.
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
OURS = {
    project["name"]: project
    for path in (ROOT / "pyproject.toml", ROOT / "worker/pyproject.toml")
    for project in [tomllib.loads(path.read_text())["project"]]
}


def pins(path: Path) -> dict[str, str]:
    """Return the version of each pinned requirement by its name."""
    found = re.findall(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", path.read_text(), re.MULTILINE)
    return {canonicalize_name(name): version for name, version in found}


LISTS = [
    *(f"requirements/image-{image}.txt" for image in (*EXTRAS, "build")),
    "emulators/requirements-image.txt",
]


@pytest.mark.parametrize("pinned", LISTS)
def test_an_image_installs_the_tested_versions_with_hashes(pinned: str):
    path = ROOT / pinned
    tested, installed = pins(ROOT / "requirements/dev.txt"), pins(path)
    assert {} == {name: version for name, version in installed.items() if tested.get(name) != version}
    blocks = re.split(r"^(?=[A-Za-z0-9])", path.read_text(), flags=re.MULTILINE)[1:]
    assert [] == [block.split("==")[0] for block in blocks if "--hash=sha256:" not in block]


@pytest.mark.parametrize("image", EXTRAS)
def test_an_image_installs_everything_that_its_extras_require(image: str):
    installed = pins(ROOT / f"requirements/image-{image}.txt")
    asked = [Requirement(f"cosmos-outbox[{','.join(EXTRAS[image])}]")]
    for requirement in asked:
        if (project := OURS.get(requirement.name)) is None:
            assert installed[canonicalize_name(requirement.name)] in requirement.specifier, str(requirement)
            continue
        lists = [
            project["dependencies"],
            *(project["optional-dependencies"][one] for one in requirement.extras),
        ]
        new = [Requirement(text) for texts in lists for text in texts]
        # Our packages require each other, so without the condition the loop would not end.
        asked += [one for one in new if str(one) not in map(str, asked)]
