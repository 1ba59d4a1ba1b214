"""Script: what is done to a fleet and when, drawn from a seed before anything has started."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

_KINDS_AND_WEIGHTS = {"kill": 4, "freeze": 4, "drain": 2, "split": 2, "heat": 3, "outage": 1, "wipe": 1}
# Of consumers; the broker and the partitions are disturbed by the script of the workers
ON_PROCESSES = {"kill": 4, "freeze": 4, "drain": 2}
_THROTTLED = ("changefeed", "batch", None)  # what a hot partition refuses: reading on, commits, or everything
_PAUSE_SECONDS = (0.6, 2.2)
_FIRST_AT_SECONDS = 1.0


class Kind(StrEnum):
    """What happens."""

    KILL = "kill"  # SIGKILL; a new process starts `seconds` later
    # SIGSTOP, and SIGCONT `seconds` later: past the expiry of its leases, it wakes as a zombie
    FREEZE = "freeze"
    DRAIN = "drain"  # SIGTERM; a new process starts `seconds` after its end
    SPLIT = "split"  # a physical partition becomes two
    HEAT = "heat"  # for so many seconds a physical partition answers 429
    OUTAGE = "outage"  # for so many seconds the broker takes nothing
    WIPE = "wipe"  # an operator deletes all leases, and what says that there were some


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbance:
    """
    One thing that happens.

    `victim` counts workers, or ranges for a split or a hot one, modulo how many there are; `completing` is how many requests
    the splitting range still refuses for now before it is gone for good; `throttled` is what a hot one refuses.
    """

    at_seconds: float
    kind: Kind
    victim: int
    seconds: float
    completing: int = 0
    throttled: str | None = None


# Leases expire after 4 s: some of the frozen wake before, some long after they were robbed.
_SECONDS = {Kind.FREEZE: (0.5, 8.0), Kind.HEAT: (1.0, 5.0), Kind.OUTAGE: (2.0, 6.0)}


def script(
    seed: int | str, seconds: float, weights: Mapping[str, int] = _KINDS_AND_WEIGHTS
) -> list[Disturbance]:
    """Return what happens within so many seconds, in order; the same seed gives the same script."""
    chance = random.Random(seed)
    found: list[Disturbance] = []
    at = _FIRST_AT_SECONDS
    while at < seconds:
        (kind,) = chance.choices([Kind(name) for name in weights], list(weights.values()))
        found.append(
            Disturbance(
                at_seconds=round(at, 3),
                kind=kind,
                victim=chance.randrange(1_000),
                seconds=round(chance.uniform(*_SECONDS.get(kind, (0.0, 2.0))), 3),
                completing=chance.choice((0, 0, 3)),
                throttled=chance.choice(_THROTTLED),
            )
        )
        at += chance.uniform(*_PAUSE_SECONDS)
    return found
