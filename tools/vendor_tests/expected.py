"""
The failures that are known, each with its cause, and what a run says about them.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path

from tools.vendor_tests.running import Outcome, Result


class Kind(StrEnum):
    """
    Why a failure is accepted.
    """

    DOCUMENTED = "documented"  # the emulators' README says that this differs from Azure
    ENVIRONMENT = "environment"  # the test needs what is not here: TLS, Entra ID, a second region
    STALE = "stale"  # the test is wrong in this release, on Azure too


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """
    Tests that fail for one cause: `file::class::test`, where * and ? stand for any text and any character.
    """

    kind: Kind
    cause: str
    tests: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """
    What a run came to.
    """

    passed: int = 0
    skipped: int = 0
    wrong: list[Result] = field(default_factory=list)
    accepted: Counter[Kind] = field(default_factory=Counter)
    mended: list[str] = field(default_factory=list)


def read_expected(file: Path) -> list[Expected]:
    """
    Read a list of expected failures.

    Raises:
        ValueError: an entry has no known kind, no cause or no tests.
    """
    entries = tomllib.loads(file.read_text(encoding="utf-8")).get("expected", [])
    read = []
    for entry in entries:
        expected = Expected(kind=Kind(entry["kind"]), cause=entry["cause"], tests=tuple(entry["tests"]))
        if not expected.cause or not expected.tests or entry.keys() - {"kind", "cause", "tests"}:
            raise ValueError(f"an expected failure has kind, cause and tests, not {entry}")
        read.append(expected)
    return read


def judge(results: Sequence[Result], expected: Iterable[Expected]) -> Verdict:
    """
    Compare results with what was expected. An entry of which no test failed any more, though some ran, is mended.
    """
    verdict = Verdict(
        passed=sum(result.outcome is Outcome.PASSED for result in results),
        skipped=sum(result.outcome is Outcome.SKIPPED for result in results),
    )
    patterns = [(pattern, entry.kind) for entry in expected for pattern in entry.tests]
    for result in results:
        if result.outcome is not Outcome.FAILED:
            continue
        kind = next((kind for pattern, kind in patterns if matches(result.test, pattern)), None)
        if kind is None:
            verdict.wrong.append(result)
        else:
            verdict.accepted[kind] += 1
    for pattern, _ in patterns:
        ran = [result.outcome for result in results if matches(result.test, pattern)]
        if Outcome.PASSED in ran and Outcome.FAILED not in ran:
            verdict.mended.append(pattern)
    return verdict


def matches(test: str, pattern: str) -> bool:
    """
    Say whether a pattern means a test; brackets, which parametrised tests have, are plain text.
    """
    return fnmatchcase(test, pattern.replace("[", "[[]"))
