"""
The suite of the Cosmos SDK for .NET: the SDK's own emulator tests (Microsoft.Azure.Cosmos.EmulatorTests). It needs `dotnet`, and a folder
in which these tests are already built.

The tests are compiled against the SDK in the same folder, so nothing is downloaded. Tests that need more than one emulator and a build
of the SDK are left out.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.etree import ElementTree as ET

from tools.vendor_tests.running import Outcome, Result, emulators
from tools.vendor_tests.suite import parts

NAME = "dotnet"
FOLDER = "COSMOS_DOTNET_TESTS"
_LIBRARY = "Microsoft.Azure.Cosmos.EmulatorTests.dll"
# The test classes that do not run: tests of speed, telemetry, injected faults, several regions and live
# accounts
_LEFT_OUT = re.compile(
    r"Perf|ThinClient|AadLive|SemanticRerank|ReplicationTests|ClientTelemetry|BarrierRequest|TransportWrapper|ReadConsistency"
    r"|RetriableTestClass"
)
_TEST_SECONDS, _CLASS_SECONDS = 60, 900
_NAMES = {"t": "http://microsoft.com/schemas/VisualStudio/TeamTest/2010"}
_OUTCOMES = {"Passed": Outcome.PASSED, "Failed": Outcome.FAILED}


def missing() -> str | None:
    """Return a line that says which tool or folder is missing; None if the suite can run."""
    if shutil.which("dotnet") is None:
        return "dotnet is not in PATH"
    folder = os.environ.get(FOLDER)
    if not folder:
        return f"{FOLDER} names no folder of the SDK's built tests"
    return None if (Path(folder) / _LIBRARY).is_file() else f"{folder} has no {_LIBRARY}"


def recorded(work: Path, only: Sequence[str]) -> Iterator[tuple[str, list[Result]]]:
    """Yield the name and the results of each test class from the reports of an earlier run."""
    logs = work / "dotnet-logs"
    for name in sorted({log.stem for log in logs.glob("*.log")} - {"emulators"}):
        if not only or name in only:
            yield name, _results(logs, name)


def run(work: Path, only: Sequence[str]) -> Iterator[tuple[str, list[Result]]]:
    """
    Run the test classes one after the other on one emulator, and yield the name and the results of each. The tests run in a copy of
    their folder, because the settings beside them are changed.
    """
    tests, logs = work / "dotnet", work / "dotnet-logs"
    shutil.rmtree(tests, ignore_errors=True)
    shutil.copytree(os.environ[FOLDER], tests)
    logs.mkdir(parents=True, exist_ok=True)
    settings = tests / "run.settings"
    settings.write_text(
        f"<RunSettings><MSTest><TestTimeout>{_TEST_SECONDS * 1000}</TestTimeout></MSTest></RunSettings>"
    )
    with emulators((), logs / "emulators.log") as addresses:
        _name_endpoint(tests / "settings.json", parts(addresses.cosmos)["AccountEndpoint"])
        for name in _classes(tests):
            if not only or name in only:
                _run_class(tests, settings, logs, name)
                yield name, _results(logs, name)


def _name_endpoint(file: Path, endpoint: str) -> None:
    settings = json.loads(file.read_text(encoding="utf-8-sig"))
    settings["AppSettings"]["GatewayEndpoint"] = endpoint
    file.write_text(json.dumps(settings))


def _classes(tests: Path) -> list[str]:
    names = tests / "names"
    options = ("--ListFullyQualifiedTests", f"--ListTestsTargetPath:{names}")
    subprocess.run(["dotnet", "vstest", _LIBRARY, *options], cwd=tests, check=True, stdout=subprocess.DEVNULL)  # noqa: S603, S607
    lines = names.read_text(encoding="utf-8-sig").split()
    return sorted(
        {found for line in lines if not _LEFT_OUT.search(found := line.split("(")[0].rsplit(".", 2)[-2])}
    )


def _run_class(tests: Path, settings: Path, logs: Path, name: str) -> None:
    report = logs / f"{name}.trx"
    report.unlink(missing_ok=True)
    command = ["dotnet", "vstest", _LIBRARY, f"--TestCaseFilter:ClassName~.{name}", f"--Settings:{settings}"]
    command += [f"--ResultsDirectory:{logs}", f"--logger:trx;LogFileName={report.name}"]
    with (logs / f"{name}.log").open("w") as output:
        try:
            seconds = _CLASS_SECONDS
            subprocess.run(command, cwd=tests, stdout=output, stderr=output, timeout=seconds, check=False)  # noqa: S603
        except subprocess.TimeoutExpired:
            output.write(f"cut off after {_CLASS_SECONDS} s\n")


def _results(logs: Path, name: str) -> list[Result]:
    report = logs / f"{name}.trx"
    if not report.exists():
        why = f"the process ended before its results were written; see {name}.log"
        return [Result(test=f"{name}::process", outcome=Outcome.FAILED, why=why, failures=(why,))]
    return [result for result in read_report(report) if result.test.startswith(f"{name}::")]


def read_report(report: Path) -> Iterator[Result]:
    """
    Yield the results in a report of vstest, each with the name `class::test`. A test with several cases has one result for each
    case.
    """
    root = ET.parse(report).getroot()  # noqa: S314  # vstest wrote it
    methods = {
        test.get("id"): test.find("t:TestMethod", _NAMES) for test in root.iterfind(".//t:UnitTest", _NAMES)
    }
    for found in root.iterfind(".//t:UnitTestResult", _NAMES):
        method = methods[found.get("testId")]
        if method is None:
            continue
        case = str(found.get("testName"))
        function = str(method.get("name")).split("(")[0]
        test = f"{str(method.get('className')).split(',')[0].rsplit('.', 1)[-1]}::{function}"
        if not case.startswith(function):
            case = f"{function} {case}"
        said = "\n".join(element.text or "" for element in found.iterfind(".//t:ErrorInfo/*", _NAMES))
        outcome = _OUTCOMES.get(str(found.get("outcome")), Outcome.SKIPPED)
        failures = (said,) if outcome is Outcome.FAILED else ()
        why = " ".join(said.split())[:300]
        yield Result(test=test + case.removeprefix(function), outcome=outcome, why=why, failures=failures)
