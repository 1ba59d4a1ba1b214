"""
Which pinned package of an image needs which, from the metadata of the packages that the tests ran with.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution
from urllib.parse import quote

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_PINS = re.compile(
    r"^([\w.-]+)==([^\s;\\]+)(?: ; ([^\\\n]+))? \\\n((?: +--hash=sha256:.+\n?)+)", re.MULTILINE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """
    One package that an image installs, with the hashes of every file that it may be installed from.
    """

    name: str
    version: str
    hashes: tuple[str, ...]

    @property
    def purl(self) -> str:
        return f"pkg:pypi/{canonicalize_name(self.name)}@{quote(self.version)}"


def base_image(dockerfile: str) -> tuple[str, str]:
    """
    Return name and tag of the image that both of ours are made from.
    """
    found = re.search(r"^ARG PYTHON_IMAGE=(\S+):([^\s:]+)$", dockerfile, re.MULTILINE)
    if found is None:
        raise ValueError("the Dockerfile names no PYTHON_IMAGE with a tag")
    return found[1], found[2]


def environment_of(tag: str) -> dict[str, str]:
    """
    Return the values of environment markers in an image with this tag.
    """
    version = tag.partition("-")[0]
    return {
        "implementation_name": "cpython",
        "os_name": "posix",
        "platform_machine": "x86_64",
        "platform_python_implementation": "CPython",
        "platform_system": "Linux",
        "python_full_version": f"{version}.0",
        "python_version": version,
        "sys_platform": "linux",
    }


def pins_of(requirements: str, environment: dict[str, str]) -> dict[str, Pin]:
    """
    Return the pins of a requirements file that hold in an environment, by canonical name.
    """
    pins: dict[str, Pin] = {}
    for name, version, marker, hashes in _PINS.findall(requirements):
        if not marker or Marker(marker).evaluate(environment):
            found = tuple(re.findall(r"sha256:([0-9a-f]{64})", hashes))
            pins[canonicalize_name(name)] = Pin(name=name, version=version, hashes=found)
    return pins


def needs(
    requirements: Iterable[str], environment: dict[str, str], extras: Iterable[str]
) -> Iterator[Requirement]:
    """
    Yield the requirements that hold in an environment when these extras are asked for.
    """
    for text in requirements:
        requirement = Requirement(text)
        asked = ("", *extras)
        if requirement.marker is None or any(
            requirement.marker.evaluate({**environment, "extra": extra}) for extra in asked
        ):
            yield requirement


def graph(
    roots: Iterable[Requirement],
    pins: dict[str, Pin],
    installed: dict[str, Distribution],
    environment: dict[str, str],
) -> dict[str, set[str]]:
    """
    Return which pinned package needs which, from the metadata of the packages that the tests ran with.

    Raises:
        ValueError: a package that is needed is not pinned, or the tests ran with another version, or nothing needs a pin.
    """
    edges: dict[str, set[str]] = {}
    waiting = [(canonicalize_name(root.name), frozenset(root.extras)) for root in roots]
    seen = set()
    while waiting:
        name, extras = waiting.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        if name not in pins:
            raise ValueError(f"{name} is needed, but not pinned")
        if name not in installed or installed[name].version != pins[name].version:
            raise ValueError(f"{name} {pins[name].version} is not what the tests run with")
        children = list(needs(installed[name].requires or (), environment, extras))
        edges.setdefault(name, set()).update(canonicalize_name(child.name) for child in children)
        waiting += [(canonicalize_name(child.name), frozenset(child.extras)) for child in children]
    if unneeded := sorted(pins.keys() - edges.keys()):
        raise ValueError(f"nothing needs {', '.join(unneeded)}")
    return edges
