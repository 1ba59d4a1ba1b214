"""Keys by cause: parked keys grouped by what failed, because one faulty release of a producer parks very many."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from cosmos_outbox.parking.parked_documents import Failure, ParkedKey

# The parts in which two failures of one cause differ: quoted names, ids and numbers.
_PARTICULARS = re.compile(r"'[^']*'|\"[^\"]*\"|[0-9a-f]{8}-[0-9a-f-]{27}|\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """
    Keys that failed alike.

    error: what their failures have in common; "" of keys that wait for a release and failed on nothing.
    parked_at: since when the oldest is parked.
    example: one of the keys.
    """

    error: str
    keys: int
    held: int
    parked_at: str
    example: str


def failure_text(failure: Failure) -> str:
    """Return the class and the text of a failure's error."""
    return f"{failure.reason}: {failure.error}"


def cause_of(failure: Failure) -> str:
    """Return the text of a failure without names, ids and numbers, which failures of the same cause share."""
    return _PARTICULARS.sub("…", failure_text(failure))


def by_cause(keys: Iterable[ParkedKey]) -> tuple[Cause, ...]:
    """Group parked keys by cause; the cause with the most keys comes first."""
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
