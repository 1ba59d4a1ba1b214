"""
Balancing: which leases a worker takes, asks for or robs; a pure function of the leases as they were listed.

Targets are those of .NET's EqualPartitionsBalancingStrategy, so that mixed fleets converge: every worker aims at
`ceil(leases / workers)`, or 1 where there are fewer leases than workers. On top of it come handover requests: a worker
that wants a lease of a live owner writes `handover.wanted-by` into the lease's properties, and the owner releases it for
that worker. An owner that is late to renew is not asked, because the request would delay the expiry of its lease. Only
owners that sign with `handover.owner` understand requests; any other (a .NET processor) is robbed as .NET robs: one lease
a pass. Any worker may take a lease that waits for a worker that asked for more than its share.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from cosmos_outbox.changefeed.leases import SIGNATURE, Lease, handover_requested_by
from cosmos_outbox.changefeed.options import ProcessorOptions

_ZERO, _SECOND = timedelta(), timedelta(seconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """
    The steps of one balancing pass: `take` leases that are free (or robbed), `ask` for leases, `hand_over` own leases.

    within_reach: the ids of the leases that this worker owns or any worker may take.
    pause: after how long the next pass is due.
    """

    take: tuple[Lease, ...]
    ask: tuple[Lease, ...]
    hand_over: tuple[Lease, ...]
    within_reach: frozenset[str]
    pause: timedelta


def plan(
    leases: Sequence[Lease], options: ProcessorOptions, *, running: Collection[str], now: datetime
) -> Plan:
    """
    Decide what this worker does about the leases.

    Args:
        leases: all leases of the processor, as listed.
        options: of this worker.
        running: ids of the leases this worker is working on.
        now: when they were listed, on the service's clock.
    """
    # reservation: for how many seconds a released lease stays reserved for the worker that asked for it
    me, reservation = options.instance_name, 2 * options.acquire_interval
    free = {lease.id for lease in leases if lease.expired(now, options.expiration)}
    requests = {lease.id: handover_requested_by(lease) for lease in leases}

    def holder_of(lease: Lease) -> str | None:
        """
        Return the worker a lease counts for: its owner, or the one it is promised to; None for a lease without one.
        """
        requested_by = requests[lease.id]
        if lease.id in running and lease.owner == me:
            return requested_by or me
        if lease.id not in free:
            return requested_by or lease.owner
        reserved = requested_by and not lease.owned and lease.written_at() + reservation >= now
        return requested_by if reserved else None

    holders = {lease.id: holder_of(lease) for lease in leases}
    counts: Counter[str] = Counter({me: 0})
    counts.update(holder for holder in holders.values() if holder is not None)
    target = math.ceil(len(leases) / len(counts)) if len(leases) > len(counts) else 1
    preferred = sorted(leases, key=lambda lease: _preference(me, lease.id))

    within_reach = free.union(lease.id for lease in leases if lease.owner == me)
    mine_but_idle = [
        lease
        for lease in preferred
        if holders[lease.id] == me and lease.id not in running and lease.id in within_reach
    ]
    working_on = sum(1 for lease in leases if lease.id in running and holders[lease.id] == me)
    unowned = [lease for lease in preferred if holders[lease.id] is None]
    taken = unowned[: max(0, target - counts[me])]
    robbed, asked = list[Lease](), list[Lease]()
    if not unowned:
        others = [lease for lease in preferred if not _late(lease, now, 1.5 * options.renew_interval)]
        robbed, asked = _from_overloaded(others, holders, counts, me=me, target=target)
    waiting = asked or any(requests[lease.id] == me and lease not in mine_but_idle for lease in leases)
    return Plan(
        take=(*mine_but_idle[: max(0, target - working_on)], *taken, *robbed),
        ask=tuple(asked),
        hand_over=tuple(lease for lease in leases if lease.id in running and requests[lease.id]),
        within_reach=frozenset(within_reach),
        pause=soon(options) if waiting else _pause(leases, options, now),
    )


def soon(options: ProcessorOptions) -> timedelta:
    """Return the seconds until the next pass where this worker waits for a lease."""
    return options.acquire_interval / 4


def _pause(leases: Sequence[Lease], options: ProcessorOptions, now: datetime) -> timedelta:
    """
    Return the seconds until the next pass: the interval, or less if a lease of another worker, which may be dead,
    expires sooner.

    The service counts in whole seconds, so the pass comes a second after the first of these leases expires.
    """
    interval = options.acquire_interval
    theirs = (lease for lease in leases if lease.owner != options.instance_name and lease.owned)
    left = (lease.written_at() + options.expiration + _SECOND - now for lease in theirs)
    return max(soon(options), min((one for one in left if _ZERO < one < interval), default=interval))


def _from_overloaded(
    leases: Sequence[Lease], holders: Mapping[str, str | None], counts: Counter[str], *, me: str, target: int
) -> tuple[list[Lease], list[Lease]]:
    """
    Return the leases to take, and those to ask for, from workers that have or are promised more than their share.
    """
    counts = Counter(counts)
    taken: list[Lease] = []
    asked: list[Lease] = []
    # Leases without a working owner first: workers that joined at once each asked for the share of fewer workers.
    available = defaultdict[str, deque[Lease]](deque)
    for lease in sorted(leases, key=lambda lease: lease.owned):
        holder = holders[lease.id]
        asked_for = lease.owned and handover_requested_by(lease) is not None
        if holder is not None and holder != me and not asked_for:
            available[holder].append(lease)
    while (needed := target - counts[me]) > 0:
        having = sorted(worker for worker, left in available.items() if left)
        if not having:
            break
        busiest = max(having, key=lambda worker: counts[worker])
        if counts[busiest] <= target - (1 if needed > 1 else 0):
            break
        lease = available[busiest].popleft()
        if not lease.owned:
            taken.append(lease)
        elif lease.properties.get(SIGNATURE) == lease.owner:
            asked.append(lease)
        elif not any(robbed.owned for robbed in taken):
            taken.append(lease)
        else:
            continue
        counts[busiest] -= 1
        counts[me] += 1
    return taken, asked


def _late(lease: Lease, now: datetime, alive: timedelta) -> bool:
    """
    Return whether the owner, which understands requests, has not written its lease for so long that it may be dead.
    It is not asked then.
    """
    return lease.owned and lease.properties.get(SIGNATURE) == lease.owner and lease.written_at() + alive < now


def _preference(worker: str, lease_id: str) -> bytes:
    # Workers that join at once try the leases in different orders, so they seldom compete for the same one.
    return hashlib.blake2b(f"{worker}\0{lease_id}".encode(), digest_size=8).digest()
