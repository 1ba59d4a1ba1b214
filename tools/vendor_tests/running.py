"""Runs one test file in a process of its own, with new emulators, and reads the result of each test."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from xml.etree import ElementTree as ET

from tools.vendor_tests.source import ROOT
from tools.vendor_tests.suite import Addresses, Suite

_NOTHING_SELECTED = 5


class Outcome(StrEnum):
    """Whether a test passed, failed or was skipped."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """
    The result of one test, which is named `file::class::test`: its outcome, the first line of its failure, and the full text of
    each failure.
    """

    test: str
    outcome: Outcome
    why: str = ""
    failures: tuple[str, ...] = ()


@contextmanager
def emulators(options: tuple[str, ...], log: Path) -> Iterator[Addresses]:
    """Run both emulators on free ports while the block lasts, and yield their addresses. Their logs go to a file."""
    command = [
        sys.executable,
        "-m",
        "cosmos_outbox_emulators",
        "serve",
        "--json",
        "--control-port",
        "0",
        *options,
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "emulators")}
    with (
        log.open("w") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, env=environment) as process,  # noqa: S603
    ):
        try:
            assert process.stdout is not None  # noqa: S101  # it is a pipe
            announced = json.loads(process.stdout.readline())
            yield Addresses(**{name: announced[name] for name in ("cosmos", "servicebus", "control")})
        finally:
            process.terminate()


def report_of(file: str, logs: Path) -> Path:
    return logs / f"{file.replace('/', '.').removesuffix('.py')}.xml"


def run_file(suite: Suite, tests: Path, file: str, logs: Path) -> list[Result]:
    """
    Run the selected tests of one file, and return their results. If the file exceeds its time, the result is a single failure.
    """
    report = report_of(file, logs)
    stem = report.stem
    report.unlink(missing_ok=True)
    command = [
        sys.executable,
        "-m",
        "pytest",
        file,
        "-q",
        "-p",
        "no:cacheprovider",
        "--tb=native",
        "-W",
        "ignore",
    ]
    command += ["--rootdir", ".", "-o", "junit_family=xunit1", f"--junitxml={report}"]
    command += [f"--timeout={suite.test_seconds}", *(("-m", suite.markers) if suite.markers else ())]
    with emulators(suite.serve, logs / f"{stem}.emulators.log") as addresses:
        environment = {
            **{name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")},
            **suite.environment(addresses),
            "NO_PROXY": "127.0.0.1,localhost",
            "PYTHONPATH": str(tests),
        }
        with (
            (logs / f"{stem}.log").open("w") as output,
            subprocess.Popen(  # noqa: S603
                command, cwd=tests, env=environment, stdout=output, stderr=output, start_new_session=True
            ) as process,
        ):
            try:
                code = process.wait(suite.file_seconds)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                why = f"the file was cut off after {suite.file_seconds} s"
                return [Result(test=f"{file}::time", outcome=Outcome.FAILED, why=why, failures=(why,))]
    if code == _NOTHING_SELECTED:
        return []
    if not report.exists():
        why = f"pytest ended with status {code}; see {stem}.log"
        return [Result(test=f"{file}::start", outcome=Outcome.FAILED, why=why, failures=(why,))]
    return list(read_report(report, file))


def read_report(report: Path, file: str) -> Iterator[Result]:
    """Yield the results in a JUnit report, one for each test, even if a test failed and its teardown failed too."""
    module = file.removesuffix(".py").rpartition("/")[2]
    seen: dict[str, Result] = {}
    for case in ET.parse(report).getroot().iter("testcase"):  # noqa: S314  # pytest wrote it
        scope = case.get("classname", "").split(".")
        classes = scope[scope.index(module) + 1 :] if module in scope else []
        test = "::".join([file, *classes, case.get("name", "")])
        bad = [child for child in case if child.tag in ("failure", "error")]
        if bad:
            why = (bad[0].get("message") or bad[0].text or "").strip().replace("\n", " ")
            before = seen[test].failures if test in seen else ()
            said = tuple(f"{child.get('message')}\n{child.text}" for child in bad)
            seen[test] = Result(test=test, outcome=Outcome.FAILED, why=why[:300], failures=before + said)
        elif test not in seen:
            skipped = case.find("skipped") is not None
            seen[test] = Result(test=test, outcome=Outcome.SKIPPED if skipped else Outcome.PASSED)
    yield from seen.values()
