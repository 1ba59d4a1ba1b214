"""The script of a chaos run: which disturbances happen and when, drawn from a seed before the run starts."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

_KINDS_AND_WEIGHTS = {"kill": 4, "freeze": 4, "drain": 2, "split": 2, "heat": 3, "outage": 1, "wipe": 1}
# The script of the consumers disturbs only processes. The script of the workers disturbs the broker and the partitions too.
ON_PROCESSES = {"kill": 4, "freeze": 4, "drain": 2}
_THROTTLED = ("changefeed", "batch", None)  # what a hot partition refuses: reading on, commits, or everything
_PAUSE_SECONDS = (0.6, 2.2)
_FIRST_AT_SECONDS = 1.0


class Kind(StrEnum):
    """The kind of a disturbance."""

    KILL = "kill"  # SIGKILL; a new process starts `seconds` later
    # SIGSTOP, then SIGCONT `seconds` later. If its leases have expired by then, the process wakes up as a zombie.
    FREEZE = "freeze"
    DRAIN = "drain"  # SIGTERM; a new process starts `seconds` after its end
    SPLIT = "split"  # a physical partition becomes two
    HEAT = "heat"  # for so many seconds a physical partition answers 429
    OUTAGE = "outage"  # for so many seconds the broker takes nothing
    WIPE = "wipe"  # an operator deletes all leases, and what says that there were some


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbance:
    """
    One disturbance of a chaos run.

    `victim` selects a process, or a range to split or to throttle, modulo their number. `completing` is the number of
    requests that the range answers with "split in progress" before it is gone. `throttled` is the operation that a hot
    partition refuses.
    """

    at_seconds: float
    kind: Kind
    victim: int
    seconds: float
    completing: int = 0
    throttled: str | None = None


# Leases expire after 4 s. So some frozen workers wake while they still own theirs, and some long after others took them over.
_SECONDS = {Kind.FREEZE: (0.5, 8.0), Kind.HEAT: (1.0, 5.0), Kind.OUTAGE: (2.0, 6.0)}


def script(
    seed: int | str, seconds: float, weights: Mapping[str, int] = _KINDS_AND_WEIGHTS
) -> list[Disturbance]:
    """
    Return the disturbances of a run of so many seconds, ordered by time. The same seed gives the same script.
    """
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
