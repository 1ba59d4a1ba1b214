"""
Makes virtual environments outside the repository, without a package registry.

pip installs our wheels in them. The packages that the wheels require are links to the files of the environment that
runs the tests. So such an environment has exactly what the wheels declare, and any other import fails, as on a user's
machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from importlib.util import cache_from_source
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.patience import HUNG_SECONDS

ROOT = Path(__file__).parents[2]

# Each Python of the environment runs this code when it starts. When the process opens a file of the repository,
# by an import or otherwise, the code records the file at once. So the record is complete even if the process is
# killed later.
_GUARD = """
import os, sys

def _record(event, arguments, opened={opened!r}, root={root!r}):
    if event == "open" and isinstance(arguments[0], (str, bytes)):
        path = os.path.abspath(os.fsdecode(arguments[0]))
        if path.startswith(root) and not path.startswith(root + ".venv"):
            descriptor = os.open(opened, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
            os.write(descriptor, (path + chr(10)).encode())
            os.close(descriptor)

sys.addaudithook(_record)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """A virtual environment and a working folder, both outside the repository."""

    python: Path
    folder: Path
    opened: Path

    def run(
        self, *arguments: str | Path, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run the environment's Python with these arguments in the working folder, and return its result."""
        return subprocess.run(  # noqa: S603 - our own code
            [self.python, *arguments],
            cwd=self.folder,
            env={**clean_environment(), **(env or {})},
            capture_output=True,
            text=True,
            timeout=HUNG_SECONDS,
            check=False,
        )

    def opened_in_repository(self) -> list[str]:
        """Return the files of the repository that processes of this environment have opened."""
        return self.opened.read_text().splitlines() if self.opened.exists() else []


def clean_environment() -> dict[str, str]:
    """
    Return this process's environment variables without those that change how Python or the library behaves.
    """
    ours = ("OUTBOX_", "PYTHON", "VIRTUAL_ENV", "PYTEST_", "COVERAGE_", "MAKE", "MFLAGS")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


def make_environment(folder: Path, wheels: Mapping[Path, Iterable[str]], *more: str) -> Environment:
    """Make an environment with these wheels, each with its extras, and with more requirements."""
    venv.create(folder / "venv", symlinks=True)
    python = folder / "venv/bin/python"
    subprocess.run(  # noqa: S603 - our own wheels
        [
            sys.executable,
            "-m",
            "pip",
            "--python",
            python,
            "install",
            "--quiet",
            "--no-deps",
            "--no-index",
            *wheels,
        ],
        check=True,
        env=clean_environment() | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        timeout=HUNG_SECONDS,
    )
    [packages] = (folder / "venv/lib").glob("python*/site-packages")
    ours = {_name(each): each for each in distributions(path=[str(packages)])}
    asked = [f"{name}[{','.join(extras)}]" for name, extras in zip(ours, wheels.values(), strict=True)]
    for distribution in _needed([*asked, *more], ours):
        _link(distribution, packages)
    work, opened = folder / "work", folder / "opened"
    work.mkdir()
    (packages / "sitecustomize.py").write_text(_GUARD.format(opened=str(opened), root=f"{ROOT}/"))
    return Environment(python=python, folder=work, opened=opened)


def _needed(asked: list[str], ours: Mapping[str, Distribution]) -> list[Distribution]:
    """Return all distributions that the requirements need, directly or indirectly, except our own."""
    here = {_name(each): each for each in distributions()} | ours
    due = [
        (canonicalize_name(each.name), extra)
        for each in map(Requirement, asked)
        for extra in ("", *each.extras)
    ]
    met: set[tuple[str, str]] = set()
    while due:
        name, extra = due.pop()
        if (name, extra) in met:
            continue
        met.add((name, extra))
        for requirement in map(Requirement, here[name].requires or ()):
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                due += [(canonicalize_name(requirement.name), each) for each in ("", *requirement.extras)]
    return [here[name] for name in sorted({name for name, _ in met} - ours.keys())]


def _link(distribution: Distribution, packages: Path) -> None:
    for file in distribution.files or ():
        # Leave out the commands in bin/. The caches (.pyc) are linked below, each with its source.
        if ".." in file.parts or file.suffix == ".pyc":
            continue
        original = Path(str(distribution.locate_file(file)))
        links = {packages / file: original}
        if file.suffix == ".py" and (cached := Path(cache_from_source(str(original)))).exists():
            links[Path(cache_from_source(str(packages / file)))] = cached
        for link, target in links.items():
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(target)


def _name(distribution: Distribution) -> str:
    return canonicalize_name(distribution.metadata["Name"])
