"""The script of a chaos run: which disturbances happen and when, drawn from a seed before the run starts."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

_KINDS_AND_WEIGHTS = {"kill": 4, "freeze": 4, "drain": 2, "split": 2, "heat": 3, "outage": 1, "wipe": 1}
# How often each disturbance meets a consumer, in proportion. Consumers meet only disturbances of their processes. Workers
# also meet faults of the broker and of partitions.
ON_PROCESSES = {"kill": 4, "freeze": 4, "drain": 2}
_THROTTLED = ("changefeed", "batch", None)  # a hot partition refuses feed reads, commits, or all requests
_PAUSE_SECONDS = (0.6, 2.2)
_FIRST_AT_SECONDS = 1.0


class Kind(StrEnum):
    """What happens to the fleet, to the broker or to the partitions in one disturbance."""

    KILL = "kill"  # a process gets SIGKILL; a new process starts `seconds` later
    # A process gets SIGSTOP, and SIGCONT `seconds` later. If its leases have expired by then, other workers
    # own them already.
    FREEZE = "freeze"
    DRAIN = "drain"  # a process gets SIGTERM; a new process starts `seconds` after its end
    SPLIT = "split"  # a physical partition becomes two
    HEAT = "heat"  # a physical partition answers 429 for `seconds`
    OUTAGE = "outage"  # the broker refuses all messages for `seconds`
    WIPE = "wipe"  # an operator deletes all leases, and the documents which say that there were leases


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


# The shortest and the longest duration of these kinds of disturbance. Leases expire after 4 s, so some frozen workers wake while they
# still own their leases, and others after other workers took their leases.
_SECONDS = {Kind.FREEZE: (0.5, 8.0), Kind.HEAT: (1.0, 5.0), Kind.OUTAGE: (2.0, 6.0)}


def script(
    seed: int | str, seconds: float, weights: Mapping[str, int] = _KINDS_AND_WEIGHTS
) -> list[Disturbance]:
    """
    Return the disturbances of a run of this length, ordered by time. The same seed gives the same script.
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
