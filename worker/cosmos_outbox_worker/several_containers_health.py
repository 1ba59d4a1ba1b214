"""
Health of several containers: merge the health of the workers of one process. A cause that several workers report is listed once.
`several_containers.py` runs these workers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from cosmos_outbox_worker.causes import Cause
from cosmos_outbox_worker.heartbeats import Phase
from cosmos_outbox_worker.shared_health import State
from cosmos_outbox_worker.worker_health import Snapshot

_MOST_ERRORS = 20
_ORDER = (Phase.DRAINING, Phase.STARTING, Phase.RUNNING, Phase.ENDED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshots(State):
    """
    The health of a process with workers for several containers. The process is unready if one of its workers is unready.

    of: the health of each worker, by the name of its container.
    """

    of: Mapping[str, Snapshot]

    def find_causes(self) -> Iterator[Cause]:
        for name, container in self.of.items():
            for one in container.causes():
                stops = tuple((f"{who} in {name}" if who else name, what) for who, what in one.stops)
                yield replace(one, stops=stops or ((name, ""),), unready=str(one) in container.unready)

    def readiness(self) -> dict[str, Any]:
        each = {name: one.readiness() for name, one in self.of.items()}
        return State.readiness(self) | {"containers": each}


def merge_snapshots(of: Mapping[str, Snapshot]) -> Snapshots:
    """Return the health of a process from the health of its workers. The keys of `of` are the names of their containers."""
    first, phases = next(iter(of.values())), {one.phase for one in of.values()}
    errors = [replace(one, text=f"{name}: {one.text}") for name in of for one in of[name].errors]
    return Snapshots(
        at=first.at,
        started_at=first.started_at,
        instance=first.instance,
        container=", ".join(of),
        phase=next(phase for phase in _ORDER if phase in phases),
        parked=None,
        parked_at=None,
        errors=tuple(sorted(errors, key=lambda one: one.at, reverse=True)[:_MOST_ERRORS]),
        of=of,
    )
