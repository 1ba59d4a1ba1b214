"""Check: one question about a resource, how it is asked, how bad its finding is, and what to do about it."""

from __future__ import annotations

import tomllib
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Generic, TypeVar

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
# The service is busy or does not answer: nothing is known.
UNANSWERED = (TooManyRequests, StoreUnavailable, BrokerUnavailable, SubscriptionUnavailable)


class Severity(StrEnum):
    """How bad a finding is."""

    ERROR = "error"  # events are lost, disordered or not sent
    UNKNOWN = "unknown"  # a service did not answer, so this could not be looked at
    WARNING = "warning"  # it works, with less safety than it could
    NOTE = "note"  # needs other rights to be checked, or is good to know


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that should be different, and what to do about it."""

    severity: Severity
    check: str
    message: str
    fix: str


_TEXTS = tomllib.loads(Path(__file__).with_name("checks.toml").read_text())


@dataclass(frozen=True, slots=True)
class Check(Generic[SubjectT]):
    """
    A question about a subject; `checks.toml` has its words.

    key: of the words; a finding is named by what stands before the dot.
    ask: returns what is wrong: True, or each thing that is.
    grave: whether it is an error, where the severity is a lesser one.
    """

    key: str
    ask: Callable[[SubjectT], bool | Iterable[object]]
    grave: Callable[[SubjectT], bool] = lambda _: False

    def of(self, it: SubjectT) -> Iterable[Finding]:
        """Yield a finding for each thing that is wrong."""
        name, _, part = self.key.partition(".")
        words, answer = _TEXTS[name][part], self.ask(it)
        for found in (answer,) * answer if isinstance(answer, bool) else answer:
            yield Finding(
                severity=Severity.ERROR if self.grave(it) else Severity(words["severity"]),
                check=name,
                message=words["message"].format(it=it, found=found),
                fix=words["remedy"].format(it=it, found=found),
            )


_REACH = (
    "Try again. If this stays, raise the throughput if requests are throttled, or else check the endpoint, the network and "
    "the health of the service."
)
_OTHER_PORT = " A network that closes port 5671 may leave 443 open: OUTBOX_SERVICEBUS_TRANSPORT=websockets."
_ANY_GRANT = "Grant the identity the role that the operation needs."
_GRANTS = {
    "read the change feed": "Grant readMetadata and readChangeFeed on the data container.",
    "list leases": "Grant executeQuery on the lease container.",
    "delete leases": "Grant items/delete on the lease container; splits and stale locks need it.",
    "delete events": "Grant items/delete on the data container, or unset OUTBOX_DELETE_AFTER_PUBLISH.",
    "delete entities": "Nothing; or, for a program that deletes entities for good, grant items/delete on the data container.",
    "query": "Grant executeQuery on that container.",
    "write batches": "Grant items/create and items/replace on that container, and items/delete for programs that delete: a batch needs the rights of all its operations.",
    "send to": "Correct the key of Service Bus, or grant Azure Service Bus Data Sender on the topic; create the topic if it is missing.",
    "receive from": "Grant the identity Azure Service Bus Data Receiver on it; or correct the connection string, whose key needs the right Listen.",
    **{verb: f"Grant items/{verb} on that container." for verb in ("create", "read", "replace", "delete")},
}


def unanswered(message: str, *, other_port: bool = False) -> Finding:
    """Return the finding of a service that does not answer."""
    fix = _REACH + (_OTHER_PORT if other_port else "")
    return Finding(severity=Severity.UNKNOWN, check="no-answer", message=message, fix=fix)


class Findings:
    """What was found so far."""

    def __init__(self) -> None:
        self._found: list[Finding] = []
        self.denied = False

    def worst_first(self) -> tuple[Finding, ...]:
        order = list(Severity)
        return tuple(sorted(self._found, key=lambda finding: order.index(finding.severity)))

    def add(self, *findings: Finding) -> None:
        self._found += findings

    def judge(self, checks: Iterable[Check[SubjectT]], *subjects: SubjectT) -> None:
        """Ask all checks of each subject."""
        self._found += [finding for it in subjects for check in checks for finding in check.of(it)]

    async def attempt(self, operation: str, attempt: Callable[[], Awaitable[AnswerT]]) -> AnswerT | None:
        """Return what an operation returns; where it is refused or gets no answer, that is a finding."""
        try:
            return await attempt()
        except (OutboxError, AzureError) as error:
            self.note(operation, error)
            return None

    def note(self, operation: str, error: Exception) -> None:
        """Note why an operation failed."""
        said = " ".join(str(error).split())
        if isinstance(error, UNANSWERED):
            message = f"Whether it is possible to {operation} is not known: {said}"
            self.add(unanswered(message, other_port=operation.startswith(("send", "receive"))))
            return
        self.denied = True
        # Only a program that deletes entities for good needs it; no check can see which one does.
        harmless = operation.startswith("delete entities")
        self.add(
            Finding(
                severity=Severity.NOTE if harmless else Severity.ERROR,
                check="permissions",
                message=f"Not allowed, or not possible, to {operation}: {said}",
                fix=next((fix for start, fix in _GRANTS.items() if operation.startswith(start)), _ANY_GRANT),
            )
        )
