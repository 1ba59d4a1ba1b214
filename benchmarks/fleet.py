"""
Simulate how a large fleet of workers balances its leases: how long this takes, and how many requests the lease container gets.

No Azure service is used: time is virtual, and the lease container is a dictionary with etags. The simulated workers decide by the library's
own code. At each balancing pass a worker lists the leases, and asks for leases, acquires free leases or hands some over. An owner renews
its leases. If another worker has asked for a lease, the renewal is refused, and so the owner learns of it. Reads, writes and refused writes
are counted. Many workers join at the same moment, many leave, and a third of them is lost, as in the outage of a zone, so that their leases
expire.

`python -m benchmarks.fleet --leases 10000 --workers 200`; that takes some minutes.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from benchmarks.report import say
from cosmos_outbox.changefeed import ProcessorOptions
from cosmos_outbox.changefeed.balancing import plan
from cosmos_outbox.changefeed.leases import (
    Lease,
    handover_requested_by,
    new_lease,
    with_handover_request,
    with_signature,
)
from cosmos_outbox.partition_key import FeedRange

OPTIONS = ProcessorOptions(processor_name="fleet")
PASS_SECONDS = OPTIONS.acquire_interval.total_seconds()
RENEW_SECONDS = OPTIONS.renew_interval.total_seconds()
WRITE_SECONDS = 0.01  # how long a write takes; a worker acquires one lease after another
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


class Fleet:
    """A simulated fleet of workers on one lease container, in virtual time."""

    def __init__(self, leases: int, seed: int) -> None:
        self.now = 0.0
        self.random = random.Random(seed)
        self.leases: dict[str, Lease] = {}
        self.writes: Counter[str] = Counter()
        self.requests: Counter[str] = Counter()
        self.alive: dict[str, set[str]] = {}
        self.passes: Counter[str] = Counter()
        self._etags, self._order = itertools.count(), itertools.count()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        for number in range(leases):
            bounds = FeedRange(min=_bound(number, leases), max=_bound(number + 1, leases))
            lease = new_lease("p", str(number), bounds, version=0, properties={})
            self._store(lease)

    def clock(self) -> datetime:
        return EPOCH + timedelta(seconds=self.now)

    def at(self, seconds: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._due, (self.now + seconds, next(self._order), act))

    def run_until(self, holds: Callable[[], bool], *, within: float) -> float | None:
        """Run the simulation until a condition holds. Return the virtual seconds that this took, or None if the time limit is reached."""
        began = self.now
        while self._due and self._due[0][0] <= began + within:
            self.now, _, act = heapq.heappop(self._due)
            act()
            if holds():
                return self.now - began
        return None

    def join(self, names: list[str]) -> None:
        for name in names:
            self.alive[name] = set()
            self.at(self.random.uniform(0, 2), lambda name=name: self._pass(name))  # type: ignore[misc]

    def lose(self, names: list[str]) -> None:
        for name in names:
            del self.alive[name]

    def leave(self, names: list[str]) -> None:
        for name in names:
            for lease_id in self.alive.pop(name):
                self._write(self.leases[lease_id], owner=None)

    def balanced(self) -> bool:
        owned = [len(leases) for leases in self.alive.values()]
        return sum(owned) == len(self.leases) and max(owned) - min(owned) <= 1

    def served(self) -> bool:
        return sum(map(len, self.alive.values())) == len(self.leases)

    def _store(self, lease: Lease) -> None:
        raw = {**lease.raw, "_etag": str(next(self._etags)), "_ts": int(self.clock().timestamp())}
        self.leases[lease.id] = replace(lease, raw=raw)

    def _write(self, seen: Lease, **changes: Any) -> bool:
        """Replace a lease if it still has the etag with which it was read, as Cosmos DB does, and count the write."""
        current = self.leases[seen.id]
        if current.raw["_etag"] != seen.raw["_etag"]:
            self.requests["refused writes"] += 1
            return False
        self.requests["writes"] += 1
        self.writes[seen.id] += 1
        self._store(seen.with_changes(now=self.clock(), **changes))
        return True

    def _pass(self, me: str) -> None:
        if me not in self.alive:
            return
        self.requests["lists"] += 1
        self.requests["leases listed"] += len(self.leases)
        self.passes[me] += 1
        listed = list(self.leases.values())
        decided = plan(
            listed,
            replace(OPTIONS, instance_name=me),
            running=self.alive[me],
            now=self.clock(),
        )
        for lease in decided.hand_over:
            self._hand_over(me, lease.id)
        seconds = 0.0
        for lease in decided.ask:
            seconds += WRITE_SECONDS
            self.at(seconds, lambda lease=lease: self._ask(me, lease))  # type: ignore[misc]
        for lease in decided.take:
            seconds += WRITE_SECONDS
            self.at(seconds, lambda lease=lease: self._take(me, lease))  # type: ignore[misc]
        self.at(
            seconds + decided.pause.total_seconds() * self.random.uniform(1.0, 1.1), lambda: self._pass(me)
        )

    def _ask(self, me: str, lease: Lease) -> None:
        self._write(lease, properties=with_handover_request(lease.properties, me))

    def _take(self, me: str, lease: Lease) -> None:
        if me in self.alive and self._write(lease, owner=me, properties=with_signature(lease.properties, me)):
            self.alive[me].add(lease.id)
            self.at(RENEW_SECONDS, lambda: self._renew(me, lease.id))

    def _renew(self, me: str, lease_id: str) -> None:
        if lease_id not in self.alive.get(me, ()):
            return
        lease = self.leases[lease_id]
        if lease.owner != me:
            self.alive[me].discard(lease_id)
            return
        if handover_requested_by(lease):
            # The renewal is refused, because another worker's request for the lease changed its etag.
            self.requests["refused writes"] += 1
            self.requests["reads"] += 1
            self._hand_over(me, lease_id)
            return
        self._write(lease)
        self.at(RENEW_SECONDS, lambda: self._renew(me, lease_id))

    def _hand_over(self, me: str, lease_id: str) -> None:
        if lease_id in self.alive.get(me, ()) and self.leases[lease_id].owner == me:
            self.alive[me].discard(lease_id)
            self._write(self.leases[lease_id], owner=None)


def _bound(number: int, of: int) -> str:
    return {0: "", of: "FF"}.get(number, f"{number * 0x3FFFFFFF // of:08X}")


def told(fleet: Fleet, name: str, holds: Callable[[], bool]) -> dict[str, Any]:
    """Run the simulation until a condition holds. Print and return how long this took, and how many requests the workers made."""
    fleet.requests.clear()
    fleet.writes.clear()
    fleet.passes.clear()
    seconds = fleet.run_until(holds, within=600)
    span = seconds or 600
    found = {
        "seconds": seconds,
        "intervals": None if seconds is None else round(seconds / PASS_SECONDS, 2),
        "passes": max(fleet.passes.values(), default=0),
        "per_second": {kind: round(count / span, 1) for kind, count in sorted(fleet.requests.items())},
        "hottest_lease_writes": max(fleet.writes.values(), default=0),
    }
    say(f"{name:<24}{json.dumps(found)}")
    return found


def simulated(leases: int, workers: int, *, seed: int) -> dict[str, Any]:
    """Let workers of a fleet start, join, leave and be lost. Return the time and the requests of each change."""
    fleet = Fleet(leases, seed)
    names = [f"worker-{number:03}" for number in range(workers)]
    joining, rest = names[: workers // 4], names[workers // 4 :]
    found: dict[str, Any] = {"leases": leases, "workers": workers}
    fleet.join(rest)
    found["start"] = told(fleet, "start of three quarters", fleet.balanced)
    fleet.join(joining)
    found["join"] = told(fleet, "a quarter joins", fleet.balanced)
    quiet = fleet.now + 5 * PASS_SECONDS
    found["idle"] = told(fleet, "idle", lambda: fleet.now >= quiet)
    fleet.leave(rest[: workers // 10])
    found["leave"] = told(fleet, "a tenth leaves", fleet.balanced)
    lost = rest[workers // 10 : workers // 10 + workers // 3]
    fleet.lose(lost)
    found["zone_served"] = told(fleet, "a third is lost: served", fleet.served)
    found["zone_balanced"] = told(fleet, "... balanced", fleet.balanced)
    return found


def main() -> None:
    """Parse the arguments, run the benchmark, and print its output."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--leases", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    say(json.dumps(simulated(options.leases, options.workers, seed=options.seed)))


if __name__ == "__main__":
    main()
