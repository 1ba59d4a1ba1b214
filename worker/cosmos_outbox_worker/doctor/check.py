"""Check: one question about a resource, how it is asked, how bad its finding is, and what to do about it."""

from __future__ import annotations

import tomllib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from azure.core.exceptions import AzureError

from cosmos_outbox.errors import (
    BrokerUnavailable,
    OutboxError,
    StoreUnavailable,
    SubscriptionUnavailable,
    TooManyRequests,
)

SubjectT = TypeVar("SubjectT")
AnswerT = TypeVar("AnswerT")
# Errors of a service that is busy or does not answer: then nothing is known.
UNANSWERED = (TooManyRequests, StoreUnavailable, BrokerUnavailable, SubscriptionUnavailable)


class Severity(StrEnum):
    """How bad a finding is."""

    ERROR = "error"  # events are lost, disordered or not sent
    UNKNOWN = "unknown"  # a service did not answer, so this is not known
    WARNING = "warning"  # the outbox works, with less safety than is possible
    NOTE = "note"  # the check needs other rights, or its result is good to know


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A setting or a state that should be different, and what to do about it."""

    severity: Severity
    check: str
    message: str
    fix: str


_WORDS = tomllib.loads(Path(__file__).with_name("checks.toml").read_text())
SENDS_TELL = {name for name, parts in _WORDS.items() if any("sends_tell" in part for part in parts.values())}
GRANTS: Mapping[str, Mapping[str, str]] = tomllib.loads(Path(__file__).with_name("grants.toml").read_text())
# The questions about one subject, by the keys of their texts. Each question returns whether something is wrong: True, or the severity
# where it is worse than the text says, or a list of all that is wrong.
Checks = Mapping[str, Callable[[SubjectT], bool | Severity | Iterable[object]]]


def worse(*, if_: bool) -> bool | Severity:
    """Return that something is wrong, as an error if a condition holds."""
    return Severity.ERROR if if_ else True


def finding(key: str, it: object, found: object = None, *, severity: Severity | None = None) -> Finding:
    """Return the finding of a check with its text from `checks.toml`. The part of the key before the dot names the check."""
    name, _, part = key.partition(".")
    words = _WORDS[name][part]
    return Finding(
        severity=severity or Severity(words["severity"]),
        check=name,
        message=words["message"].format(it=it, found=found),
        fix=words["remedy"].format(it=it, found=found),
    )


def findings_of(checks: Checks[SubjectT], it: SubjectT) -> Iterator[Finding]:
    """Yield a finding for everything that is wrong with a subject."""
    for key, ask in checks.items():
        answer = ask(it)
        if isinstance(answer, Severity):
            yield finding(key, it, severity=answer)
        elif isinstance(answer, bool):
            yield from (finding(key, it),) * answer
        else:
            yield from (finding(key, it, found) for found in answer)


class Findings:
    """The findings of the checks so far."""

    def __init__(self, *found: Finding) -> None:
        self._found = [*found]
        self.denied = False

    def worst_first(self) -> tuple[Finding, ...]:
        order = list(Severity)
        return tuple(sorted(self._found, key=lambda finding: order.index(finding.severity)))

    def add(self, *findings: Finding) -> None:
        self._found += findings

    def judge(self, checks: Checks[SubjectT], *subjects: SubjectT) -> None:
        """Ask all questions of each subject."""
        self._found += [one for it in subjects for one in findings_of(checks, it)]

    async def attempt(self, operation: str, attempt: Callable[[], Awaitable[AnswerT]]) -> AnswerT | None:
        """Return the result of an operation. If the service refuses it or does not answer, add a finding."""
        try:
            return await attempt()
        except (OutboxError, AzureError) as error:
            self.note(operation, error)
            return None

    def note(self, operation: str, error: Exception) -> None:
        """Add a finding that says why an operation failed."""
        said = " ".join(str(error).split())
        known = "unanswered" if isinstance(error, UNANSWERED) else "operations"
        fix = next(fix for start, fix in GRANTS[known].items() if operation.startswith(start))
        if isinstance(error, UNANSWERED):
            message = f"Whether it is possible to {operation} is not known: {said}"
            self.add(finding("no-answer.service", message, fix))
            return
        self.denied = True
        # A program needs this right only if it deletes entities for good; no check can see whether it does.
        harmless = operation.startswith("delete entities")
        severity = Severity.NOTE if harmless else Severity.ERROR
        self.add(finding("permissions.denied", operation, (said, fix), severity=severity))
