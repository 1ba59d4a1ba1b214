"""
Tests that the suites for Microsoft's emulators and for other endpoints fail, and do not pass, when they cannot test
anything.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.looptime(False)

ROOT = Path(__file__).parents[2]


def make(target: str, *, path: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OUTBOX_")}
    # With `-o`, make does not rebuild the virtual environment, in which this test runs.
    return subprocess.run(  # noqa: S603 # our own Makefile
        ("make", "-o", ".venv/.installed", target),  # noqa: S607 # make is on the path wherever this runs
        cwd=ROOT,
        env=environment | {"PATH": path} | variables,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("failing", "said"),
    [
        ("info", "no container engine is here; nothing was tested"),
        ("compose version", "docker has no compose; nothing was tested"),
        ("compose up", "no such image"),
    ],
)
def test_the_suite_for_the_official_emulators_fails_if_they_do_not_start(
    tmp_path: Path, failing: str, said: str
):
    (tmp_path / "docker").write_text(
        f'#!/bin/sh\ncase "$*" in "{failing}"*) echo "no such image" >&2; exit 1;; esac\n'
    )
    (tmp_path / "docker").chmod(0o755)
    done = make("test-official", path=f"{tmp_path}:{os.environ['PATH']}")
    assert 0 != done.returncode
    assert said in done.stderr
    assert "pytest" not in done.stdout


@pytest.mark.parametrize("missing", ["COSMOS", "SERVICEBUS"])
def test_the_suite_for_endpoints_fails_if_a_variable_is_missing(missing: str):
    variables = {
        f"OUTBOX_TEST_{name}_CONNECTION_STRING": "x" for name in ("COSMOS", "SERVICEBUS") if name != missing
    }
    done = make("test-endpoints", path=os.environ["PATH"], **variables)
    assert 0 != done.returncode
    assert f"OUTBOX_TEST_{missing}_CONNECTION_STRING" in done.stderr
    assert "nothing was tested" in done.stderr
