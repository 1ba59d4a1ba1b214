"""The list of known failures, each with its cause, and the comparison of a run's results with this list."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path

from tools.vendor_tests.running import Outcome, Result

Pair = tuple[str, str]  # the text of a failure, and the pattern of the tests that may fail with it


class Kind(StrEnum):
    """The reason why a known failure is accepted."""

    DOCUMENTED = "documented"  # the emulators' README says that the emulator differs from Azure here
    # the test needs something that is missing here: TLS, Entra ID, a second region
    ENVIRONMENT = "environment"
    # the SDK itself fails, whatever a service answers; one of our own tests shows it without a service
    SDK = "sdk"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """
    The failures that a cause leads to. `says` is a text in their message or traceback, in which … stands for any text. `tests` are the
    tests that fail, written `file::class::test`, in which * stands for any text and ? for any character.
    """

    says: str
    tests: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """
    Tests that are known to fail for one cause. If such a test fails with another text, this entry does not explain the failure.

    readme: For a documented cause, the words with which the emulators' README describes the difference from Azure.
    sometimes: Whether the failures depend on timing, so that they need not occur in every run.
    """

    kind: Kind
    cause: str
    failures: tuple[Failure, ...]
    readme: str = ""
    sometimes: bool = False

    def pairs(self) -> Iterator[Pair]:
        return ((failure.says, pattern) for failure in self.failures for pattern in failure.tests)

    def explaining(self, result: Result) -> set[Pair] | None:
        """
        Return the listed failures that explain all failures of a test. Each is a pair: the text of a failure, and a pattern of test
        names. Return None if a failure of the test is not listed.
        """
        known = [(says, pattern) for says, pattern in self.pairs() if matches(result.test, pattern)]
        found = [{pair for pair in known if contains(said, pair[0])} for said in result.failures]
        return set().union(*found) if known and all(found) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the comparison of a run with the list of known failures has found."""

    passed: int = 0
    skipped: int = 0
    wrong: list[Result] = field(default_factory=list)
    accepted: Counter[Kind] = field(default_factory=Counter)
    stale: list[str] = field(default_factory=list)


def read_expected(file: Path) -> list[Expected]:
    """
    Read a list of known failures from a TOML file.

    Raises:
        ValueError: an entry lacks a known kind, a cause or failures, or its kind is `documented` and it has no `readme`.
    """
    entries = tomllib.loads(file.read_text(encoding="utf-8")).get("expected", [])
    read = []
    for entry in entries:
        needed = {"kind", "cause", "failures", *(["readme"] if entry.get("kind") == Kind.DOCUMENTED else [])}
        if entry.keys() - {"sometimes"} != needed or not all(entry[name] for name in needed):
            raise ValueError(f"an expected failure must have {', '.join(sorted(needed))}, not {entry}")
        failures = tuple(Failure(says=says, tests=tuple(tests)) for says, tests in entry["failures"].items())
        read.append(Expected(**{**entry, "kind": Kind(entry["kind"]), "failures": failures}))
    return read


def judge(results: Sequence[Result], expected: Iterable[Expected], *, whole: bool) -> Verdict:
    """
    Compare the results of a run with the known failures.

    A listed failure that explains no result is stale if one of its tests has passed, or if the whole suite has run.
    """
    expected = list(expected)
    verdict = Verdict(
        passed=sum(result.outcome is Outcome.PASSED for result in results),
        skipped=sum(result.outcome is Outcome.SKIPPED for result in results),
    )
    used: set[Pair] = set()
    excused: list[str] = []
    for result in results:
        if result.outcome is not Outcome.FAILED:
            continue
        explained = ((entry, entry.explaining(result)) for entry in expected)
        entry, pairs = next(
            ((entry, pairs) for entry, pairs in explained if pairs is not None), (None, set())
        )
        used |= pairs
        if entry is not None:
            verdict.accepted[entry.kind] += 1
            excused += [result.test] if entry.sometimes else []
            continue
        known = [one for one in expected if any(matches(result.test, pattern) for _, pattern in one.pairs())]
        causes = " or ".join(f"{one.cause!r}" for one in known)
        why = f"fails otherwise than by {causes}: {result.why}" if known else result.why
        verdict.wrong.append(replace(result, why=why))
    passed = [result.test for result in results if result.outcome is Outcome.PASSED]
    for says, pattern in [pair for entry in expected if not entry.sometimes for pair in entry.pairs()]:
        # A test that failed for a cause which depends on timing may stop before its other known failures. So
        # these do not count as stale (as failures that no longer occur).
        alive = (says, pattern) in used or any(matches(test, pattern) for test in excused)
        if not alive and (whole or any(matches(test, pattern) for test in passed)):
            verdict.stale.append(f"{pattern}: {says}")
    return verdict


def contains(said: str, says: str) -> bool:
    """Say whether the message of a failure contains a text, in which … stands for any text. Line ends count as spaces."""
    return re.search(".*?".join(map(re.escape, says.split("…"))), " ".join(said.split())) is not None


def matches(test: str, pattern: str) -> bool:
    """Say whether a pattern matches the name of a test. The brackets of parametrised tests have no special meaning."""
    return fnmatchcase(test, pattern.replace("[", "[[]"))
