"""Check that the README of the emulators names the same releases of third-party packages as `make test-programs` installs."""

from __future__ import annotations

import re

from tests.support.pages import ROOT


def test_the_readme_names_the_installed_release_of_each_package():
    pins = set(
        re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "requirements/programs.txt").read_text(), re.MULTILINE)
    )
    readme = (ROOT / "emulators/README.md").read_text()
    rows = re.findall(
        r"^\| \S+ \d.*", readme.partition("\n## Programs")[2].partition("\n## ")[0], re.MULTILINE
    )
    named = {
        (name.lower(), release)
        for row in rows
        for name, release in re.findall(r"([A-Za-z][\w-]+) (\d+\.\d\S*)", row)
    }

    assert len(list((ROOT / "tests/programs").glob("with_*.py"))) == len(rows)
    assert set() == named - pins
