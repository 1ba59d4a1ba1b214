"""
Balancing: a pure function decides which of the listed leases a worker takes, asks another worker for, or hands over.
`processor.py` carries the decision out.

The targets are those of .NET's EqualPartitionsBalancingStrategy, so that .NET workers and workers of this library agree
on one distribution: every worker aims at `ceil(leases / workers)` leases, or at one lease if there are fewer leases
than workers. This library adds handover requests. A worker that wants a lease of a live owner writes
`handover.wanted-by` into the lease's properties, and the owner releases the lease for that worker. An owner that is
late to renew is not asked, because the request is a write and would delay the expiry of the lease. Only owners that
sign a lease with `handover.owner` understand requests. From any other owner (a .NET processor) a worker takes one lease
by force in each pass, as .NET does; in the code this is called "rob". A released lease is reserved for the worker that
asked for it. Other workers may take it if that worker has more than its share.
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
    What a worker does in one balancing pass, to get its share of the leases.

    take: the leases to acquire, which are free or belong to an owner that ignores handover requests, as .NET does.
    ask: the leases of other workers into which this worker writes a handover request.
    hand_over: the leases of this worker that it releases, because other workers asked for them.
    within_reach: the ids of the leases that this worker owns, or that any worker may take now.
    pause: how long the worker waits before the next pass.
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
    Decide which leases this worker takes, asks for and hands over in one balancing pass.

    Args:
        leases: all leases of the processor, as listed.
        options: the options of this worker.
        running: the ids of the leases that this worker is working on.
        now: when the leases were listed, on the service's clock.
    """
    # `reservation`: how long a released lease stays reserved for the worker that asked for it
    me, reservation = options.instance_name, 2 * options.acquire_interval
    free = {lease.id for lease in leases if lease.expired(now, options.expiration)}
    requests = {lease.id: handover_requested_by(lease) for lease in leases}

    def holder_of(lease: Lease) -> str | None:
        """
        Return the worker to whose share a lease counts: the worker that asked for it or, if there is none, its owner.
        Return None if any worker may take the lease.
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
    """
    Return the pause before a balancing pass that has to come early, such as while this worker waits for a lease that
    it asked for.
    """
    return options.acquire_interval / 4


def _pause(leases: Sequence[Lease], options: ProcessorOptions, now: datetime) -> timedelta:
    """
    Return the pause before the next balancing pass: the acquire interval, or less if a lease of another worker expires
    sooner. That worker may be dead, and then its lease has to be taken over.

    Cosmos DB counts in whole seconds, so the pass comes one second after the first of the other workers' leases
    expires.
    """
    interval = options.acquire_interval
    theirs = (lease for lease in leases if lease.owner != options.instance_name and lease.owned)
    left = (lease.written_at() + options.expiration + _SECOND - now for lease in theirs)
    return max(min(soon(options), _SECOND), min([interval, *(one for one in left if one > _ZERO)]))


def _from_overloaded(
    leases: Sequence[Lease], holders: Mapping[str, str | None], counts: Counter[str], *, me: str, target: int
) -> tuple[list[Lease], list[Lease]]:
    """
    Choose leases of workers that own or asked for more than their share. Return two lists: the leases that this worker
    takes at once, and the leases for which it asks their owners.
    """
    counts = Counter(counts)
    taken: list[Lease] = []
    asked: list[Lease] = []
    # First choose leases without an owner. Each is reserved for a worker that asked for more than its share,
    # because workers that start at the same time do not know of each other yet.
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
    Return whether a lease has not been written for longer than `alive`, so that its owner may be dead. Such an owner is
    not asked for the lease. If the owner does not understand handover requests, always return False.
    """
    return lease.owned and lease.properties.get(SIGNATURE) == lease.owner and lease.written_at() + alive < now


def _preference(worker: str, lease_id: str) -> bytes:
    # Workers that start at the same time try the leases in different orders, so they seldom compete for the
    # same lease.
    return hashlib.blake2b(f"{worker}\0{lease_id}".encode(), digest_size=8).digest()
