"""Keys by cause: group parked keys by the cause of their failures, because one faulty producer can park thousands of keys."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from cosmos_outbox.parking.parked_documents import Failure, ParkedKey

# Quoted names, ids and numbers in the text of an error. They differ between failures that have the same cause.
_PARTICULARS = re.compile(r"'[^']*'|\"[^\"]*\"|[0-9a-f]{8}-[0-9a-f-]{27}|\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """
    The parked keys whose failures have the same cause.

    error: the text that the failures of these keys have in common; "" for keys without a failure, which only wait for a
        release.
    keys, held: how many keys have this cause, and how many of their events wait.
    parked_at: when the first of these keys was parked.
    example: any of these keys.
    """

    error: str
    keys: int
    held: int
    parked_at: str
    example: str


def failure_text(failure: Failure) -> str:
    """Return the class and the text of the error because of which an event could not be sent."""
    return f"{failure.reason}: {failure.error}"


def cause_of(failure: Failure) -> str:
    """
    Return the text of a failure without quoted names, ids and numbers. Failures with the same text count as one cause.
    """
    return _PARTICULARS.sub("…", failure_text(failure))


def by_cause(keys: Iterable[ParkedKey]) -> tuple[Cause, ...]:
    """Group parked keys by the cause of their failures. The cause with the most keys comes first."""
    groups: dict[str, list[ParkedKey]] = defaultdict(list)
    for key in keys:
        groups["" if key.failure is None else cause_of(key.failure)].append(key)
    causes = [
        Cause(
            error=error,
            keys=len(group),
            held=sum(key.held for key in group),
            parked_at=min(key.parked_at for key in group),
            example=group[0].partition_key,
        )
        for error, group in groups.items()
    ]
    return tuple(sorted(causes, key=lambda cause: -cause.keys))
