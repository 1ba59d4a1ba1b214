"""
An image's bill of materials names what is in it, and is refused where pins, tested packages and image do not agree.
"""

from __future__ import annotations

import importlib.util
import json
import re
import tomllib
from importlib.metadata import Distribution, PathDistribution
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from tools.sbom.__main__ import bill, main
from tools.sbom.graph import Pin, base_image, environment_of, graph, pins_of

pytestmark = pytest.mark.looptime(False)

ROOT = Path(__file__).parents[3]
IMAGES = ("worker", "api")
LINUX = environment_of("3.13-slim")


def packages(folder: Path, **requires: list[str]) -> dict[str, Distribution]:
    """
    Return packages of version 1 that need these.
    """
    made: dict[str, Distribution] = {}
    for name, needs in requires.items():
        info = folder / f"{name}-1.dist-info"
        info.mkdir()
        lines = [
            "Metadata-Version: 2.1",
            f"Name: {name}",
            "Version: 1",
            *(f"Requires-Dist: {need}" for need in needs),
        ]
        (info / "METADATA").write_text("\n".join(lines) + "\n")
        made[name] = PathDistribution(info)
    return made


def pins(*names: str, version: str = "1") -> dict[str, Pin]:
    return {name: Pin(name=name, version=version, hashes=()) for name in names}


def agreeing(image: str) -> dict[str, Any]:
    """
    Return an inventory of an image that holds what it should.
    """
    text = (ROOT / f"infra/docker/requirements-{image}.txt").read_text()
    own = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    held = [[pin.name, pin.version] for pin in pins_of(text, LINUX).values()]
    return {
        "interpreter": "3.13.9",
        "distribution": "bookworm",
        "debian": [{"name": "libstdc++6", "version": "12.2.0-14+deb12u1", "arch": "amd64"}],
        "python": [*held, [own["name"], own["version"]]],
        "base_python": [["pip", "25.3"]],
    }


@pytest.mark.parametrize("image", IMAGES)
def test_every_pinned_package_is_named_with_its_hashes_and_its_licence(image: str):
    text = (ROOT / f"infra/docker/requirements-{image}.txt").read_text()
    components = {component["name"]: component for component in bill(image, None)["components"]}
    blocks = [block for block in re.split(r"^(?=\w)", text, flags=re.MULTILINE)[1:] if "'win32'" not in block]
    assert len(blocks) > 40
    for block in blocks:
        name, version = re.split(r"==|\s", block)[:2]
        assert version == components[name]["version"]
        assert components[name]["licenses"], name
        hashes = {reference["hashes"][0]["content"] for reference in components[name]["externalReferences"]}
        assert set(re.findall("sha256:([0-9a-f]{64})", block)) == hashes


@pytest.mark.parametrize("image", IMAGES)
def test_its_root_is_the_image_of_the_project_made_from_the_tagged_base(image: str):
    made = bill(image, None)
    own = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    name, tag = base_image((ROOT / "infra/docker/Dockerfile").read_text())
    root = made["metadata"]["component"]
    assert (f"cosmos-outbox-{image}", own["version"]) == (root["name"], root["version"])
    assert [{"license": {"id": "MIT"}}] == root["licenses"]
    parts = {part["bom-ref"]: part for part in made["components"]}
    links = {link["ref"]: link["dependsOn"] for link in made["dependencies"]}
    base, project = (parts[ref] for ref in links[root["bom-ref"]])
    assert (name, tag, "container") == (base["name"], base["version"], base["type"])
    assert (own["name"], own["version"]) == (project["name"], project["version"])


@pytest.mark.parametrize("image", IMAGES)
def test_everything_in_it_is_there_because_the_image_needs_it(image: str):
    made = bill(image, agreeing(image))
    links = {link["ref"]: link["dependsOn"] for link in made["dependencies"]}
    reached, waiting = set(), [made["metadata"]["component"]["bom-ref"]]
    while waiting:
        reached.add(ref := waiting.pop())
        waiting += [other for other in links.get(ref, []) if other not in reached]
    assert {part["bom-ref"] for part in made["components"]} == reached - {f"image-{image}"}


@pytest.mark.parametrize("image", IMAGES)
def test_it_is_valid_cyclonedx_with_the_bases_packages_if_they_were_looked_up(
    image: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert 0 == main([image])
    assert "without the packages of its base image" in capsys.readouterr().err
    (tmp_path / "inventory").write_text(json.dumps(agreeing(image)))
    assert 0 == main([image, "--inventory", str(tmp_path / "inventory")])
    told = capsys.readouterr()
    purls = {part.get("purl") for part in json.loads(told.out)["components"]}
    assert {
        "pkg:deb/debian/libstdc%2B%2B6@12.2.0-14%2Bdeb12u1?arch=amd64&distro=bookworm",
        "pkg:pypi/pip@25.3",
    } <= purls
    assert "" == told.err


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (lambda held: held[1:], r"missing=\[\('aiohappyeyeballs'"),
        (lambda held: [*held, ["left-pad", "1"]], r"extra=\[\('left-pad', '1'\)\]"),
    ],
)
def test_an_image_that_holds_anything_else_than_its_pins_is_refused(changed: Any, said: str):
    found = agreeing("worker")
    with pytest.raises(ValueError, match=said):
        bill("worker", {**found, "python": changed(sorted(found["python"]))})


def test_a_pin_for_another_platform_is_left_out():
    line = " \\\n    --hash=sha256:" + "0" * 64 + "\n"
    text = f"here==1{line}colorama==2 ; sys_platform == 'win32'{line}tomli==3 ; python_full_version < '3.12'{line}"
    assert ["here"] == list(pins_of(text, LINUX))


def test_what_is_needed_follows_markers_and_extras(tmp_path: Path):
    installed = packages(
        tmp_path,
        a=["b[fast]", "w ; sys_platform == 'win32'"],
        b=["c ; extra == 'fast'", "d ; extra == 'slow'"],
        c=[],
    )
    made = graph([Requirement("a")], pins("a", "b", "c"), installed, LINUX)
    assert {"a": {"b"}, "b": {"c"}, "c": set()} == made


@pytest.mark.parametrize(
    ("pinned", "said"),
    [
        (pins("a"), "b is needed, but not pinned"),
        (pins("a", "b", "c"), "nothing needs c"),
        (pins("a", "b", version="2"), "a 2 is not what the tests run with"),
    ],
)
def test_pins_that_are_not_what_is_needed_are_refused(tmp_path: Path, pinned: dict[str, Pin], said: str):
    with pytest.raises(ValueError, match=said):
        graph([Requirement("a")], pinned, packages(tmp_path, a=["b"], b=[], c=[]), LINUX)


def test_a_package_that_was_removed_from_a_base_is_not_in_its_inventory():
    spec = importlib.util.spec_from_file_location("inventory", ROOT / "infra/docker/inventory.py")
    assert spec is not None
    assert spec.loader is not None
    inventory = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(inventory)
    fields = "Architecture: amd64\nVersion: 1:2.0-1\nDescription: first line\n more: of it\n"
    status = f"Package: here\nStatus: install ok installed\n{fields}\nPackage: gone\nStatus: deinstall ok config-files\n{fields}"
    assert [{"name": "here", "version": "1:2.0-1", "arch": "amd64"}] == list(
        inventory.debian_packages(status)
    )
