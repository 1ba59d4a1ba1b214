"""
Fetches the tests of an SDK: pip downloads the source distribution (sdist) of the pinned version, and our shims are copied over its files.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from tools.vendor_tests.suite import Suite

ROOT = Path(__file__).parents[2]


def pin(distribution: str) -> str:
    """Return the line of requirements/dev.txt that pins a distribution, with its hashes."""
    text = (ROOT / "requirements/dev.txt").read_text(encoding="utf-8")
    found = re.search(rf"^{re.escape(distribution)}==[^\\\n]*(?:\\\n[^\\\n]*)*", text, re.MULTILINE)
    if found is None:
        raise ValueError(f"requirements/dev.txt does not pin a version of {distribution}")
    return found[0]


def sdist(distribution: str, folder: Path) -> Path:
    """Return the path of the pinned version's source distribution. pip downloads it if it is not in the folder yet."""
    requirement = pin(distribution)
    version = requirement.split("==")[1].split()[0]
    file = folder / f"{distribution.replace('-', '_')}-{version}.tar.gz"
    if not file.exists():
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as pins:
            pins.write(requirement + "\n")
            pins.flush()
            options = ["--no-deps", "--require-hashes", "--no-binary", distribution, "--dest", str(folder)]
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
            subprocess.run([*command, *options, "--requirement", pins.name], check=True)  # noqa: S603
    return file


def unpack(suite: Suite, archive: Path, folder: Path) -> Path:
    """
    Unpack the tests of a suite into an empty folder, copy the shims over them, and make the edits. Return the folder of the tests.

    Raises:
        ValueError: a test file does not contain the text that an edit replaces, because another release has other tests.
    """
    shutil.rmtree(folder, ignore_errors=True)
    with tarfile.open(archive) as opened:
        opened.extractall(folder, filter="data")
    (top,) = folder.iterdir()
    tests = top / suite.tests
    if suite.shims.is_dir():
        shutil.copytree(suite.shims, tests, dirs_exist_ok=True)
    for edit in suite.edits:
        file = tests / edit.file
        text = file.read_text(encoding="utf-8")
        if edit.old not in text:
            raise ValueError(f"cannot edit {edit.file} of {suite.distribution}: it has no {edit.old!r}")
        file.write_text(text.replace(edit.old, edit.new), encoding="utf-8")
    # Without a pytest.ini in this folder, pytest would use the configuration of the project around it.
    (tests / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    return tests
