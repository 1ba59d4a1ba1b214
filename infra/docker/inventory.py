# ruff: noqa: INP001 # a script that is run in an image, not a module of a package
"""
What an image holds, as JSON: its interpreter, the packages of its distribution, and Python packages, its own and the base's.
"""

from __future__ import annotations

import json
import platform
import sys
import sysconfig
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path


def debian_packages(status: str) -> Iterator[dict[str, str]]:
    """
    Yield name, version and architecture of each package that is installed, from the text of dpkg's status file.
    """
    for paragraph in status.split("\n\n"):
        fields = dict(
            line.split(": ", 1) for line in paragraph.splitlines() if ": " in line and line[0] != " "
        )
        if fields.get("Status", "").endswith(" installed"):
            yield {"name": fields["Package"], "version": fields["Version"], "arch": fields["Architecture"]}


def _python_packages(folder: str) -> list[list[str]]:
    return sorted([found.metadata["Name"], found.version] for found in distributions(path=[folder]))


def main() -> None:
    """
    Print it.
    """
    status = Path("/var/lib/dpkg/status").read_text(encoding="utf-8")
    release = platform.freedesktop_os_release()
    inventory = {
        "interpreter": platform.python_version(),
        "distribution": release.get("VERSION_CODENAME", release["ID"]),
        "debian": sorted(debian_packages(status), key=lambda package: package["name"]),
        "python": _python_packages(sysconfig.get_path("purelib")),
        "base_python": _python_packages(sysconfig.get_path("purelib", vars={"base": sys.base_prefix})),
    }
    json.dump(inventory, sys.stdout)


if __name__ == "__main__":
    main()
