"""The outcome of a claim or of a part of a run, and the exit code for all outcomes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Held(StrEnum):
    """The outcome of a claim or of a part."""

    HELD = "held"
    DIFFERENT = "different"  # the answer is not the expected one, but no guarantee depends on it
    BROKEN = "broken"  # the answer is not the expected one, and a guarantee depends on it
    NOT_RUN = "not run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """
    The result of a claim or of a part.

    Attributes:
        name, area: together the text `area/name` for `--only`.
        statement: a sentence that says what Azure answers, or what was run.
        expected, found: the expected and the actual answer.
        meaning: what a difference means for the guarantees, and which setting to change. If the claim was not run: how to have it run.
        promise: the guarantee that depends on the claim, if one does.
        excused: whether the run is complete although the claim was not run, because it has no probe or does not apply here.
        figures: measured numbers. Their names contain the unit, such as `p50 ms`.
    """

    name: str
    area: str
    held: Held
    statement: str = ""
    expected: str = ""
    found: str = ""
    meaning: str = ""
    promise: str | None = None
    excused: bool = False
    seconds: float = 0.0
    request_units: float = 0.0
    figures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """How many requests, request units and seconds a part of a run takes, and what it writes to. `--dry-run` prints it."""

    requests: int
    request_units: int
    seconds: float
    touches: str


# The type of a function that prints progress. It is called with sentences, and with each outcome as soon as it is known.
Tell = Callable[[str | Outcome], None]


def exit_code(outcomes: Collection[Outcome]) -> int:
    """
    Return 2 if a guarantee is broken. Otherwise return 3 if something could not be run, 1 if an answer differs, and 0 if all claims held.
    """
    found = {one.held for one in outcomes}
    missing = any(one.held is Held.NOT_RUN and not one.excused for one in outcomes)
    if Held.BROKEN in found:
        return 2
    return 3 if missing or not found & {Held.HELD, Held.DIFFERENT} else int(Held.DIFFERENT in found)
