"""Results: what one part of a run found, and the exit code of all."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Held(StrEnum):
    """The outcome of a claim or of a part."""

    HELD = "held"
    DIFFERENT = "different"  # the answer differs, and no guarantee rests on it
    BROKEN = "broken"  # the answer differs, and a guarantee rests on it
    NOT_RUN = "not run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """
    The result of a claim or of a part.

    Attributes:
        name, area: `area/name` is what `--only` takes.
        statement: a plain sentence: what Azure answers, or what was run.
        expected, found: both answers.
        meaning: what a difference means for the guarantees, and what to set; of what was not run, what to set, where that is known.
        promise: the guarantee that rests on it.
        excused: it was not run, and that leaves nothing to mend: no probe asks it, or it does not apply here.
        figures: numbers by name, with their unit: `p50 ms`.
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
    """What a part is expected to cost and to touch, as `--dry-run` says."""

    requests: int
    request_units: int
    seconds: float
    touches: str


# Hears a sentence about the progress, and each outcome as soon as it is known
Tell = Callable[[str | Outcome], None]


def exit_code(outcomes: Collection[Outcome]) -> int:
    """Return 2 if a promise is broken; else 3 if something that was asked could not be run, 1 if something is different, 0 if all held."""
    found = {one.held for one in outcomes}
    missing = any(one.held is Held.NOT_RUN and not one.excused for one in outcomes)
    if Held.BROKEN in found:
        return 2
    return 3 if missing or not found & {Held.HELD, Held.DIFFERENT} else int(Held.DIFFERENT in found)
