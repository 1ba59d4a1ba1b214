"""The models name what is there: functions of the code, actions, mistakes; and what runs TLC notices what is not as expected."""

from __future__ import annotations

import os
import pydoc
import re
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from models.__main__ import FOLDER, Check, checks, run
from models.tlc import Tlc, find_tlc

MODULES = {path.stem: path.read_text() for path in sorted(FOLDER.glob("*.tla"))}
README = (FOLDER / "README.md").read_text()
ROWS = re.findall(r"^\| `(\w+)\.(\w+)` \| .+ \|$", README, re.MULTILINE)
HOLDS = "12 states generated, 7 distinct states found, 0 states left on queue.\n"
FINISHED = "Model checking completed. No error has been found.\n"


def test_the_functions_that_actions_and_reads_are_said_to_be_exist():
    named = set(re.findall(r"`(cosmos_outbox\.[\w.]+)`", README))

    assert [] == sorted(name for name in named if pydoc.locate(name) is None)
    assert len(named) > 10


@pytest.mark.parametrize("module", [name for name in MODULES if not name.startswith(("MC", "Trace"))])
def test_each_action_of_a_module_is_explained_and_each_explained_one_is_there(module: str):
    text = MODULES[module].partition("What holds")[0]
    # An action changes variables, or says that it leaves them as they are.
    bodies = re.findall(r"^(\w+)(?:\([\w, ]+\))? ==\n?((?:.+\n)+)", text, re.MULTILINE)
    actions = {name for name, body in bodies if re.search(r"UNCHANGED", body)}

    assert {action for of, action in ROWS if of == module} == actions


def test_each_promise_has_a_row_that_names_what_is_there():
    rows = dict(re.findall(r"^\| ([GI]\d) \| (.+) \|$", README, re.MULTILINE))

    assert {f"{side}{number}" for side in "GI" for number in range(1, 7)} == rows.keys()
    for module, name in re.findall(r"`([A-Z]\w+)\.(\w+)`", "".join(rows.values())):
        assert re.search(rf"^{name}(\(w\))? ==", MODULES[module], re.MULTILINE), name
    for path in re.findall(r"`(tests/[\w./]+)`", "".join(rows.values())):
        assert (FOLDER.parent / path).exists()


def test_each_mistake_is_in_its_module_and_breaks_what_the_module_states():
    planted = {
        (name, text) for name in MODULES for text in re.findall(r'Mistake (?:=|#) "([^"]+)"', MODULES[name])
    }
    listed = {(check.module, str(check.set["Mistake"])) for check in checks() if "Mistake" in check.set}
    stated = {
        (check.module, name) for check in checks() for name in [check.breaks, *check.properties] if name
    }

    assert planted == listed
    assert [] == [
        (module, name)
        for module, name in stated
        if not re.search(rf"^{name} ==", MODULES[module] + MODULES[f"MC{module}"], re.MULTILINE)
    ]


def test_each_configuration_can_be_made():
    made = [check.configuration() for check in checks()]

    assert all("CONSTANTS" in text for text in made)


def test_a_module_is_short_enough_to_be_read():
    assert {} == {name: text.count("\n") for name, text in MODULES.items() if text.count("\n") > 350}


@pytest.mark.parametrize(
    ("breaks", "said", "as_expected"),
    [
        (None, HOLDS + FINISHED, True),
        (None, HOLDS + "Error: Invariant G3_Order is violated.\n", False),
        (None, "Error: Java ran out of memory.\n", False),
        ("G3_Order", HOLDS + "Error: Invariant G3_Order is violated.\n", True),
        ("G3_Order", HOLDS + "Error: Action property G3_Order is violated.\n", True),
        ("G3_Order", HOLDS + FINISHED, False),
        ("G3_Order", HOLDS + "Error: Invariant G2_NoLoss is violated.\n", False),
    ],
)
def test_a_mistake_that_is_not_found_and_a_guarantee_that_breaks_are_noticed(
    tmp_path: Path, breaks: str | None, said: str, as_expected: bool
):
    java = tmp_path / "java"
    java.write_text(f"#!/bin/sh\ncat <<'END'\n{said}END\n")
    java.chmod(0o755)
    outcome = run(
        Check(sentence="a check", module="Store", breaks=breaks), Tlc(java=str(java), jar="tla2tools.jar")
    )

    assert as_expected == outcome.as_expected


@pytest.mark.parametrize(
    ("knows", "options"), [(b"-generateSpecTE", []), (b"-noGenerateSpecTE", ["-noGenerateSpecTE"])]
)
def test_a_version_of_tlc_is_told_what_it_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, knows: bytes, options: list[str]
):
    (tmp_path / "java").touch(0o755)
    with ZipFile(tmp_path / "tla2tools.jar", "w") as jar:
        jar.writestr("tlc2/TLC.class", knows)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("TLA2TOOLS", str(tmp_path / "tla2tools.jar"))

    assert (tlc := find_tlc()) is not None
    assert options == tlc.options


def test_without_the_jar_one_line_says_that_nothing_was_checked():
    environment = {name: value for name, value in os.environ.items() if name != "TLA2TOOLS"}
    ran = subprocess.run(
        [sys.executable, "-m", "models"],
        cwd=FOLDER.parent,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert (0, 1) == (ran.returncode, ran.stdout.count("\n"))
    assert "nothing was checked" in ran.stdout
