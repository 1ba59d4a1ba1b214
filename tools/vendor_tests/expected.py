"""The failures that are known, each with its cause, and what a run says about them."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path

from tools.vendor_tests.running import Outcome, Result


class Kind(StrEnum):
    """Why a failure is accepted."""

    DOCUMENTED = "documented"  # the emulators' README says that this differs from Azure
    # the test needs something that is missing here: TLS, Entra ID, a second region
    ENVIRONMENT = "environment"
    SDK = (
        "sdk"  # the SDK itself fails, whatever a service answers; a test of ours shows this without a service
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """
    Tests that fail for one cause: `file::class::test`, where * and ? stand for any text and any character.

    errors: of which each failure of theirs says one, in its message or its traceback; another one has another cause.
    sometimes: whether they fail depends on the clock, so that a run in which they pass says nothing.
    """

    kind: Kind
    cause: str
    errors: tuple[str, ...]
    tests: tuple[str, ...]
    sometimes: bool = False

    def explains(self, result: Result) -> bool:
        """Say whether this is the cause of a failure of one of the tests."""
        return all(any(error in said for error in self.errors) for said in result.failures)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The results of a run."""

    passed: int = 0
    skipped: int = 0
    wrong: list[Result] = field(default_factory=list)
    accepted: Counter[Kind] = field(default_factory=Counter)
    mended: list[str] = field(default_factory=list)


def read_expected(file: Path) -> list[Expected]:
    """
    Read a list of expected failures.

    Raises:
        ValueError: an entry has no known kind, no cause, no errors or no tests.
    """
    entries = tomllib.loads(file.read_text(encoding="utf-8")).get("expected", [])
    read = []
    for entry in entries:
        sometimes = entry.pop("sometimes", False)
        if entry.keys() != {"kind", "cause", "errors", "tests"} or not all(entry.values()):
            raise ValueError(f"an expected failure has kind, cause, errors and tests, not {entry}")
        errors, tests = tuple(entry["errors"]), tuple(entry["tests"])
        kind, cause = Kind(entry["kind"]), entry["cause"]
        read.append(Expected(kind=kind, cause=cause, errors=errors, tests=tests, sometimes=sometimes))
    return read


def judge(results: Sequence[Result], expected: Iterable[Expected]) -> Verdict:
    """
    Compare results with the expectations. If some tests of an entry ran and none failed, it is mended, unless the entry says that its
    tests fail only sometimes.
    """
    verdict = Verdict(
        passed=sum(result.outcome is Outcome.PASSED for result in results),
        skipped=sum(result.outcome is Outcome.SKIPPED for result in results),
    )
    patterns = [(pattern, entry) for entry in expected for pattern in entry.tests]
    for result in results:
        if result.outcome is not Outcome.FAILED:
            continue
        known = [entry for pattern, entry in patterns if matches(result.test, pattern)]
        entry = next((entry for entry in known if entry.explains(result)), None)
        if entry is not None:
            verdict.accepted[entry.kind] += 1
        elif known:
            causes = " or ".join(f"{entry.cause!r}" for entry in known)
            verdict.wrong.append(replace(result, why=f"fails otherwise than by {causes}: {result.why}"))
        else:
            verdict.wrong.append(result)
    for pattern in (pattern for pattern, entry in patterns if not entry.sometimes):
        ran = [result.outcome for result in results if matches(result.test, pattern)]
        if Outcome.PASSED in ran and Outcome.FAILED not in ran:
            verdict.mended.append(pattern)
    return verdict


def matches(test: str, pattern: str) -> bool:
    """Say whether a pattern matches a test; the brackets of parametrised tests are plain text."""
    return fnmatchcase(test, pattern.replace("[", "[[]"))
