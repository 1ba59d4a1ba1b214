"""
`python -m tools.sbom IMAGE`: the bill of materials of an image, as CycloneDX, from its pins and the tested packages.

With `--inventory FILE`, what `infra/docker/inventory.py` printed in the built image, it also has the packages of the
base image, and fails where the image holds other Python packages than the pins say.
"""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any
from urllib.parse import quote

from cyclonedx.schema import SchemaVersion
from cyclonedx.spdx import is_supported_id
from cyclonedx.validation.json import JsonStrictValidator
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.sbom.graph import Pin, base_image, environment_of, graph, needs, pins_of

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "infra/docker"
# What each image installs of the project: the same as in `make lock-infra`; with others, some pin is needed by nothing.
EXTRAS = {
    "worker": ("worker", "azure-monitor"),
    "consumer": ("worker", "azure-monitor", "example"),
    "api": ("example",),
}
_BASE = "base-image"

Json = dict[str, Any]


def licences(metadata: Distribution) -> list[Json]:
    """
    Return what a package says of its licence: the expression if there is one, else an SPDX id, else its own words.
    """
    fields = metadata.metadata
    if "License-Expression" in fields:
        return [{"expression": fields["License-Expression"]}]
    named = [
        line.rpartition(" :: ")[2]
        for line in fields.get_all("Classifier", [])
        if line.startswith("License ::")
    ]
    # Some put the whole text there.
    said = [text for text in fields.get_all("License", []) if text and "\n" not in text] or named
    return [{"license": {"id": text} if is_supported_id(text) else {"name": text}} for text in said]


def bill(image: str, inventory: Json | None) -> Json:
    """
    Return the bill of materials of an image.

    Raises:
        ValueError: pins, tested packages and image do not agree.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    base, tag = base_image((DOCKER / "Dockerfile").read_text(encoding="utf-8"))
    environment = environment_of(tag)
    pins = pins_of((DOCKER / f"requirements-{image}.txt").read_text(encoding="utf-8"), environment)
    roots = list(needs(asked(project, EXTRAS[image]), environment, ()))
    installed = tested_packages()
    edges = graph(roots, pins, installed, environment)
    own = Pin(name=project["name"], version=project["version"], hashes=())
    if inventory is not None:
        _compare(pins, own, inventory["python"])
    mit = [{"license": {"id": project["license"]}}]
    root: Json = {"type": "container", "bom-ref": f"image-{image}", "name": f"cosmos-outbox-{image}"}
    root |= {"version": own.version, "licenses": mit}
    from_base = [] if inventory is None else list(_base_packages(inventory))
    components = [
        {"type": "container", "bom-ref": _BASE, "name": base, "version": tag},
        {"type": "library", "bom-ref": own.purl, "name": own.name, "version": own.version, "licenses": mit},
        *(_component(pin, installed[name]) for name, pin in sorted(pins.items())),
        *from_base,
    ]
    links = {
        root["bom-ref"]: [_BASE, own.purl],
        own.purl: sorted({pins[canonicalize_name(need.name)].purl for need in roots}),
        _BASE: [component["bom-ref"] for component in from_base],
        **{
            pins[name].purl: sorted(pins[child].purl for child in children)
            for name, children in edges.items()
        },
    }
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": root},
        "components": components,
        "dependencies": [{"ref": ref, "dependsOn": links[ref]} for ref in sorted(links)],
        "compositions": [
            {"aggregate": "complete", "dependencies": sorted(links.keys() - {root["bom-ref"], _BASE})},
            {"aggregate": "incomplete" if inventory is None else "unknown", "dependencies": [_BASE]},
        ],
    }


def asked(project: Json, extras: Iterable[str]) -> list[str]:
    """
    Return the requirements of the project with extras; an extra of ours may include others.
    """
    texts, due = list(project["dependencies"]), list(extras)
    for extra in due:
        for text in project["optional-dependencies"][extra]:
            requirement = Requirement(text)
            if requirement.name == project["name"]:
                due += requirement.extras
            else:
                texts.append(text)
    return texts


def tested_packages() -> dict[str, Distribution]:
    """
    Return the packages of the environment that the tests run in.
    """
    (folder,) = (ROOT / ".venv/lib").glob("python3*/site-packages")
    return {canonicalize_name(found.metadata["Name"]): found for found in distributions(path=[str(folder)])}


def _component(pin: Pin, metadata: Distribution) -> Json:
    files = [
        {
            "type": "distribution",
            "url": f"urn:sha256:{digest}",
            "hashes": [{"alg": "SHA-256", "content": digest}],
        }
        for digest in pin.hashes
    ]
    described = _named(pin.purl, pin.name, pin.version)
    if said := licences(metadata):
        described["licenses"] = said
    return {**described, "externalReferences": files}


def _base_packages(inventory: Json) -> Iterator[Json]:
    yield {"type": "platform", "bom-ref": "cpython", "name": "cpython", "version": inventory["interpreter"]}
    for name, version in inventory["base_python"]:
        yield _named(f"pkg:pypi/{canonicalize_name(name)}@{quote(version)}", name, version)
    for package in inventory["debian"]:
        qualifiers = f"arch={package['arch']}&distro={inventory['distribution']}"
        purl = f"pkg:deb/debian/{quote(package['name'])}@{quote(package['version'])}?{qualifiers}"
        yield _named(purl, package["name"], package["version"])


def _named(purl: str, name: str, version: str) -> Json:
    return {"type": "library", "bom-ref": purl, "purl": purl, "name": name, "version": version}


def _compare(pins: dict[str, Pin], own: Pin, found: Iterable[Sequence[str]]) -> None:
    expected = {(name, pin.version) for name, pin in pins.items()} | {(own.name, own.version)}
    held = {(canonicalize_name(name), version) for name, version in found}
    if expected != held:
        missing, extra = sorted(expected - held), sorted(held - expected)
        raise ValueError(f"the image holds other packages than its pins say: {missing=} {extra=}")


def main(arguments: Sequence[str]) -> int:
    """
    Print the bill of materials; 1 where pins, tested packages and image do not agree, or the result is no CycloneDX.
    """
    parser = argparse.ArgumentParser(prog="python -m tools.sbom", description=__doc__)
    parser.add_argument("image", choices=sorted(EXTRAS))
    parser.add_argument("--inventory", type=Path)
    options = parser.parse_args(arguments)
    inventory = (
        None if options.inventory is None else json.loads(options.inventory.read_text(encoding="utf-8"))
    )
    try:
        text = json.dumps(bill(options.image, inventory), indent=2) + "\n"
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    if invalid := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
        sys.stderr.write(f"no valid CycloneDX: {invalid.data.message}\n")
        return 1
    if inventory is None:
        sys.stderr.write(
            f"{options.image}: without the packages of its base image; `make test-image` looks them up\n"
        )
    sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
