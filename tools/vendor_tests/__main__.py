"""
`python -m tools.vendor_tests [SUITE ...]`: run the tests of Azure's own SDKs against our emulators. Exit with 1 if a failure is
unexpected.

The last line of the output is one JSON object with figures of each suite: how many tests passed, how many failed for a known cause of
each kind, and how many failed otherwise (wrong). It also counts the listed failures that no longer occur (stale). Wrong and stale
failures make the run fail.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from pathlib import Path

from tools.vendor_tests import cosmos, dotnet, servicebus
from tools.vendor_tests.expected import Kind, Verdict, judge, read_expected
from tools.vendor_tests.running import Outcome, Result, read_report, report_of, run_file
from tools.vendor_tests.source import ROOT, sdist, unpack
from tools.vendor_tests.suite import HERE, Suite

SUITES = {suite.name: suite for suite in (cosmos.SUITE, servicebus.SUITE)}
NAMES = (*SUITES, dotnet.NAME)


def say(text: str) -> None:
    """Print a line at once, without waiting for more output."""
    print(text, flush=True)  # noqa: T201  # the output of this command


def chosen(suite: Suite, tests: Path, only: Sequence[str]) -> list[str]:
    """Return the test files of a suite that are to run, as paths in the folder of the tests."""
    found = {str(file.relative_to(tests)) for glob in suite.files for file in tests.glob(glob)}
    out = {file for file in found for glob in suite.left_out if fnmatchcase(file, glob)}
    return [file for file in sorted(found - out) if not only or any(fnmatchcase(file, glob) for glob in only)]


def run_suite(suite: Suite, folder: Path, *, jobs: int, only: Sequence[str], recorded: bool) -> Verdict:
    """
    Fetch, unpack and run the tests of a suite, several files at a time. With `recorded`, read the reports of the last run instead.
    Print the result of each file, and return the verdict.
    """
    logs = folder / f"{suite.name}-logs"
    logs.mkdir(parents=True, exist_ok=True)
    tests = unpack(suite, sdist(suite.distribution, folder), folder / suite.name)

    def run(file: str) -> list[Result]:
        report = report_of(file, logs)
        if recorded:
            results = list(read_report(report, file)) if report.exists() else []
        else:
            results = run_file(suite, tests, file, logs)
        counts = {outcome: sum(result.outcome is outcome for result in results) for outcome in Outcome}
        if results:
            say(f"{file}: " + ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count))
        return results

    with ThreadPoolExecutor(jobs) as pool:
        results = [result for part in pool.map(run, chosen(suite, tests, only)) for result in part]
    tracebacks = sum(log.read_text().count("Traceback (most") for log in logs.glob("*.emulators.log"))
    if tracebacks:
        say(f"{suite.name}: the emulators logged {tracebacks} tracebacks, see {logs}/*.emulators.log")
    return judge(results, read_expected(suite.expected), whole=not only)


def run_dotnet(folder: Path, *, only: Sequence[str], recorded: bool) -> Verdict:
    """
    Run the tests of the SDK for .NET. With `recorded`, read the reports of the last run instead. Print the result of each class,
    and return the verdict.
    """
    results: list[Result] = []
    for name, found in (dotnet.recorded if recorded else dotnet.run)(folder, only):
        counts = {outcome: sum(result.outcome is outcome for result in found) for outcome in Outcome}
        say(f"{name}: " + ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count))
        results += found
    return judge(results, read_expected(HERE / f"{dotnet.NAME}.toml"), whole=not only)


def report(name: str, verdict: Verdict) -> dict[str, int]:
    """Print the unexpected failures of a suite, and the listed failures that no longer occur. Return the suite's figures."""
    for result in verdict.wrong:
        say(f"wrong: {result.test}\n       {result.why}")
    for pair in verdict.stale:
        say(f"stale: no such failure any more, remove it from {name}.toml: {pair}")
    kinds = ", ".join(f"{verdict.accepted[kind]} {kind}" for kind in Kind)
    say(f"{name}: {verdict.passed} passed, {len(verdict.wrong)} wrong, {kinds}, {verdict.skipped} skipped")
    return {
        f"{name}_passed": verdict.passed,
        f"{name}_wrong": len(verdict.wrong),
        f"{name}_stale": len(verdict.stale),
        **{f"{name}_{kind}": verdict.accepted[kind] for kind in Kind},
    }


def status(figures: Mapping[str, int]) -> int:
    """Return 1 if a test failed unexpectedly, or if a listed failure does not occur any more. Otherwise return 0."""
    return int(any(count for name, count in figures.items() if name.endswith(("_wrong", "_stale"))))


def main(arguments: Sequence[str]) -> int:
    """Run the suites that the arguments name. Return 1 if a failure is unexpected, or a listed failure no longer occurs."""
    parser = argparse.ArgumentParser(prog="python -m tools.vendor_tests", description=__doc__)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"of {', '.join(NAMES)}; default: all")
    parser.add_argument(
        "--only", nargs="+", default=(), metavar="GLOB", help="these files of the tests; of .NET, classes"
    )
    parser.add_argument("--jobs", type=int, default=2, help="files at a time (default 2)")
    parser.add_argument("--folder", type=Path, default=ROOT / ".vendor-tests", help="for sdists and logs")
    parser.add_argument(
        "--recorded", action="store_true", help="run nothing: judge what the last run left in the folder"
    )
    options = parser.parse_args(arguments)
    if unknown := set(options.suites) - {*NAMES}:
        parser.error(f"no such suite: {', '.join(sorted(unknown))}")
    figures: dict[str, int] = {}
    options.folder.mkdir(parents=True, exist_ok=True)
    folder, only, recorded = options.folder.resolve(), options.only, options.recorded
    for name in options.suites or NAMES:
        why = dotnet.missing() if name == dotnet.NAME and not recorded else None
        if why is not None:
            say(f"{name}: NOT RUN, {why}")
        elif name == dotnet.NAME:
            figures |= report(name, run_dotnet(folder, only=only, recorded=recorded))
        else:
            suite = SUITES[name]
            verdict = run_suite(suite, folder, jobs=options.jobs, only=only, recorded=recorded)
            figures |= report(name, verdict)
    say(json.dumps(figures))
    if figures and not any(count for name, count in figures.items() if name.endswith("_passed")):
        say("No test passed, so nothing is known: look at --only, and at the logs.")
        return 1
    return status(figures)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
