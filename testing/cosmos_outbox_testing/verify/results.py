"""The outcome of testing a claim about Azure, or of running a part of `verify`, and the exit code for all outcomes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Held(StrEnum):
    """How the test of a claim about Azure, or a part of a run of `verify`, ended."""

    HELD = "held"
    DIFFERENT = "different"  # the answer differs from the expected one, but no guarantee depends on it
    BROKEN = "broken"  # the answer differs from the expected one, and a guarantee depends on it
    NOT_RUN = "not run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """
    The result of testing a claim about Azure, or of running a part of `verify`.

    Attributes:
        name, area: the two parts of `area/name`, by which `--only` selects the claim.
        statement: a sentence that says what Azure answers, or what was run.
        expected, found: the expected and the actual answer.
        meaning: what a different answer means for the guarantees, and which setting to change. If the claim was not run: what to do so
            that it is run.
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


# The type of a function that prints progress. It is called with a sentence, or with an outcome as soon as the outcome is known.
Tell = Callable[[str | Outcome], None]


def exit_code(outcomes: Collection[Outcome]) -> int:
    """
    Return the exit code of `verify`: 2 if a guarantee is broken. Otherwise 3 if something could not be run, 1 if an answer differs, and 0
    if all claims held.
    """
    found = {one.held for one in outcomes}
    missing = any(one.held is Held.NOT_RUN and not one.excused for one in outcomes)
    if Held.BROKEN in found:
        return 2
    return 3 if missing or not found & {Held.HELD, Held.DIFFERENT} else int(Held.DIFFERENT in found)
