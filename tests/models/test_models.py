"""
Tests that the TLA+ models name existing functions, actions and mistakes, and that their runner notices unexpected results
of TLC.
"""

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


def test_every_function_that_the_readme_of_the_models_names_exists():
    named = set(re.findall(r"`(cosmos_outbox\.[\w.]+)`", README))

    assert [] == sorted(name for name in named if pydoc.locate(name) is None)
    assert len(named) > 10


@pytest.mark.parametrize("module", [name for name in MODULES if not name.startswith(("MC", "Trace"))])
def test_the_readme_explains_exactly_the_actions_of_each_module(module: str):
    text = MODULES[module].partition("What holds")[0]
    # In these modules, each action has the word UNCHANGED, before the variables that it does not change.
    # Other definitions do not.
    bodies = re.findall(r"^(\w+)(?:\([\w, ]+\))? ==\n?((?:.+\n)+)", text, re.MULTILINE)
    actions = {name for name, body in bodies if re.search(r"UNCHANGED", body)}

    assert {action for of, action in ROWS if of == module} == actions


def test_the_readme_names_existing_invariants_and_tests_for_each_guarantee():
    rows = dict(re.findall(r"^\| ([GI]\d) \| (.+) \|$", README, re.MULTILINE))

    assert {f"{side}{number}" for side in "GI" for number in range(1, 7)} == rows.keys()
    for module, name in re.findall(r"`([A-Z]\w+)\.(\w+)`", "".join(rows.values())):
        assert re.search(rf"^{name}(\(w\))? ==", MODULES[module], re.MULTILINE), name
    for path in re.findall(r"`(tests/[\w./]+)`", "".join(rows.values())):
        assert (FOLDER.parent / path).exists()


def test_each_listed_mistake_exists_in_its_tla_module():
    """Each listed mistake is in its TLA+ module, and so is the property that the mistake breaks."""
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


def test_each_check_of_a_tla_model_gives_a_configuration_for_tlc():
    made = [check.configuration() for check in checks()]

    assert all("CONSTANTS" in text for text in made)


def test_no_module_has_more_than_350_lines():
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
def test_the_runner_notices_results_of_tlc_that_are_not_expected(
    tmp_path: Path, breaks: str | None, said: str, as_expected: bool
):
    """Unexpected results are a guarantee that breaks, or a planted mistake that breaks none."""
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
def test_each_version_of_tlc_gets_only_options_that_it_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, knows: bytes, options: list[str]
):
    (tmp_path / "java").touch(0o755)
    with ZipFile(tmp_path / "tla2tools.jar", "w") as jar:
        jar.writestr("tlc2/TLC.class", knows)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("TLA2TOOLS", str(tmp_path / "tla2tools.jar"))

    assert (tlc := find_tlc()) is not None
    assert options == tlc.options


def test_without_the_jar_of_tlc_one_line_says_that_nothing_was_checked():
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
