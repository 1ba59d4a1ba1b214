"""
Check: the tables of checks of a resource, and the findings that they produce, with severity, message and remedy. The module of each
kind of resource, such as `containers.py`, has its checks.
"""

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
# The errors of a service that is busy or does not answer. After one of these, the result of a check is unknown.
UNANSWERED = (TooManyRequests, StoreUnavailable, BrokerUnavailable, SubscriptionUnavailable)


class Severity(StrEnum):
    """How bad a finding is, from the worst to the most harmless."""

    ERROR = "error"  # events are lost, disordered or not sent
    UNKNOWN = "unknown"  # a service did not answer, so the result of the check is not known
    WARNING = "warning"  # the outbox works, but less safely than it could
    NOTE = "note"  # an operator need not act: the check lacks a right, or reports something worth knowing


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that a check found wrong, with its severity and what to do about it."""

    severity: Severity
    check: str
    message: str
    fix: str


_WORDS = tomllib.loads(Path(__file__).with_name("checks.toml").read_text())
SENDS_TELL = {name for name, parts in _WORDS.items() if any("sends_tell" in part for part in parts.values())}
GRANTS: Mapping[str, Mapping[str, str]] = tomllib.loads(Path(__file__).with_name("grants.toml").read_text())
# A table of checks of one kind of resource. Each key names a text of checks.toml. Each function returns False if nothing is wrong. If
# something is wrong, it returns True, a severity that replaces that of checks.toml, or a list of all things that are wrong.
Checks = Mapping[str, Callable[[SubjectT], bool | Severity | Iterable[object]]]


def worse(*, if_: bool) -> bool | Severity:
    """
    Return the result of a check that found something wrong. If the condition holds, the finding is an error. Otherwise it has the
    severity that `checks.toml` gives it.
    """
    return Severity.ERROR if if_ else True


def finding(key: str, it: object, found: object = None, *, severity: Severity | None = None) -> Finding:
    """
    Create the finding of a check from its texts in `checks.toml`.

    Args:
        key: the name of the check and of the text, separated by a dot.
        it: the resource that was checked. The texts contain placeholders for its attributes.
        found: one of the things that the check found wrong. The texts may contain a placeholder for it.
        severity: the severity. Defaults to that in `checks.toml`.
    """
    name, _, part = key.partition(".")
    words = _WORDS[name][part]
    return Finding(
        severity=severity or Severity(words["severity"]),
        check=name,
        message=words["message"].format(it=it, found=found),
        fix=words["remedy"].format(it=it, found=found),
    )


def findings_of(checks: Checks[SubjectT], it: SubjectT) -> Iterator[Finding]:
    """Run a table of checks on a resource, and yield a finding for each thing that is wrong with the resource."""
    for key, ask in checks.items():
        answer = ask(it)
        if isinstance(answer, Severity):
            yield finding(key, it, severity=answer)
        elif isinstance(answer, bool):
            yield from (finding(key, it),) * answer
        else:
            yield from (finding(key, it, found) for found in answer)


class Findings:
    """
    Collects the findings of checks.

    denied: whether an operation failed because Cosmos DB or Service Bus refused it.
    """

    def __init__(self, *found: Finding) -> None:
        self._found = [*found]
        self.denied = False

    def worst_first(self) -> tuple[Finding, ...]:
        order = list(Severity)
        return tuple(sorted(self._found, key=lambda finding: order.index(finding.severity)))

    def add(self, *findings: Finding) -> None:
        self._found += findings

    def judge(self, checks: Checks[SubjectT], *subjects: SubjectT) -> None:
        """Run a table of checks on each of the resources, and keep the findings."""
        self._found += [one for it in subjects for one in findings_of(checks, it)]

    async def attempt(self, operation: str, attempt: Callable[[], Awaitable[AnswerT]]) -> AnswerT | None:
        """Run an operation and return its result. If the service refuses it or does not answer, add a finding and return None."""
        try:
            return await attempt()
        except (OutboxError, AzureError) as error:
            self.note(operation, error)
            return None

    def note(self, operation: str, error: Exception) -> None:
        """
        Add a finding for an operation that failed. If the service refused it, the finding names the right to grant. Otherwise the
        finding says that the service did not answer.
        """
        said = " ".join(str(error).split())
        known = "unanswered" if isinstance(error, UNANSWERED) else "operations"
        fix = next(fix for start, fix in GRANTS[known].items() if operation.startswith(start))
        if isinstance(error, UNANSWERED):
            message = f"Whether it is possible to {operation} is not known: {said}"
            self.add(finding("no-answer.service", message, fix))
            return
        self.denied = True
        # A missing right to delete is only a note: an application needs it only if it deletes entities for good, which no check can see.
        harmless = operation.startswith("delete entities")
        severity = Severity.NOTE if harmless else Severity.ERROR
        self.add(finding("permissions.denied", operation, (said, fix), severity=severity))
