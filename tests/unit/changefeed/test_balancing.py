"""
How workers share leases: examples from the balancing strategy of .NET, and properties that hold for any number of workers.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from cosmos_outbox.changefeed.balancing import Plan, plan
from cosmos_outbox.changefeed.leases import (
    SIGNATURE,
    Lease,
    handover_requested_by,
    new_lease,
    with_handover_request,
    with_signature,
)
from cosmos_outbox.changefeed.options import ProcessorOptions
from cosmos_outbox.partition_key import FeedRange
from tests.support.effort import examples

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
EXPIRATION = timedelta(seconds=60)


def a_lease(
    number: int, *, owner: str | None = None, age: float = 1, ours: bool = True, request: str | None = None
) -> Lease:
    lease = new_lease("p", str(number), FeedRange(min=f"{number:04X}", max=f"{number + 1:04X}"))
    properties = with_signature({}, owner) if owner and ours else {}
    if request:
        properties = with_handover_request(properties, request)
    written = int(NOW.timestamp() - age)
    return replace(lease, owner=owner, properties=properties, raw={**lease.raw, "_ts": written}, etag='"1"')


def planned(leases: list[Lease], me: str, *, running: set[str] | None = None) -> Plan:
    if running is None:
        running = {lease.id for lease in leases if lease.owner == me and not lease.expired(NOW, EXPIRATION)}
    return plan(leases, ProcessorOptions(processor_name="p", instance_name=me), running=running, now=NOW)


def seconds_of_pause(leases: list[Lease]) -> float:
    return planned(leases, "a").pause.total_seconds()


def test_the_next_balancing_pass_is_due_after_the_interval_while_all_owners_renew():
    leases = [
        a_lease(0, owner="b", age=1),
        a_lease(1, owner="b", age=17),
        a_lease(2, owner="a", age=50),  # its own
        a_lease(3, age=50),  # free
        a_lease(4, owner="c", age=61),  # expired
    ]

    assert 13 == seconds_of_pause(leases)


def test_the_next_balancing_pass_is_due_when_a_lease_that_was_not_renewed_expires():
    leases = [a_lease(0, owner="b", age=52), a_lease(1, owner="b", age=55), a_lease(2, owner="a")]

    seconds = seconds_of_pause(leases)

    assert 6 == seconds
    now = NOW + timedelta(seconds=seconds)
    assert leases[1].expired(now, EXPIRATION)
    assert not leases[1].expired(now - timedelta(seconds=1), EXPIRATION)


def test_leases_that_expire_one_after_another_cause_at_most_one_pass_a_second():
    leases, options = [a_lease(0, owner="b", age=59)], ProcessorOptions(processor_name="p", instance_name="a")

    assert 2 == seconds_of_pause(leases)
    just_before = plan(leases, options, running=set(), now=NOW + timedelta(seconds=1.9))
    assert 1 == just_before.pause.total_seconds()


def test_a_worker_that_requested_a_lease_lists_leases_after_a_quarter_of_the_interval():
    assert 3.25 == seconds_of_pause([a_lease(0, owner="b"), a_lease(1, owner="b", request="a")])


def test_a_worker_takes_expired_leases_up_to_its_even_share():
    leases = [a_lease(i, owner="dead", age=100) for i in range(4)] + [
        a_lease(4 + i, owner="b") for i in range(2)
    ]

    assert 3 == len(planned(leases, "a").take)


def test_a_worker_asks_a_live_owner_for_leases_and_never_takes_them_by_force():
    leases = [a_lease(i, owner="b") for i in range(10)]

    decided = planned(leases, "a")

    assert (0, 5) == (len(decided.take), len(decided.ask))


def test_an_owner_that_is_late_to_renew_is_not_asked_for_a_handover():
    late, fresh = a_lease(0, owner="b", age=30), a_lease(1, owner="b", age=20)

    assert (fresh,) == planned([late, fresh], "a").ask
    assert () == planned([late, replace(fresh, properties=late.properties, raw=late.raw)], "a").ask


def test_a_worker_takes_a_lease_by_force_from_a_dotnet_owner_that_is_late_to_renew():
    leases = [a_lease(i, owner="dotnet", ours=False, age=30) for i in range(10)]

    assert 1 == len(planned(leases, "a").take)


def test_a_worker_takes_one_lease_by_force_from_dotnet_in_each_balancing_pass():
    leases = [a_lease(i, owner="dotnet", ours=False) for i in range(10)]

    decided = planned(leases, "a")

    assert (1, 0) == (len(decided.take), len(decided.ask))


def test_a_handover_request_in_a_lease_of_a_dotnet_owner_is_ignored():
    """A .NET owner does not know handover requests, so it would never answer one."""
    lease = a_lease(0, owner="dotnet", ours=False, request="c")
    inherited = replace(lease, properties={**lease.properties, SIGNATURE: "an earlier owner of ours"})

    assert (None, None) == (handover_requested_by(lease), handover_requested_by(inherited))


def test_an_owner_hands_over_a_lease_that_another_worker_requested():
    leases = [a_lease(0, owner="a", request="b"), a_lease(1, owner="a")]

    assert ("p..0",) == tuple(lease.id for lease in planned(leases, "a").hand_over)


def test_a_released_lease_is_reserved_for_the_worker_that_requested_it():
    """If that worker does not take the lease within a while, any worker may take it."""
    fresh, stale = a_lease(0, request="b", age=5), a_lease(0, request="b", age=27)

    assert (1, 0, 1) == (
        len(planned([fresh], "b").take),
        len(planned([fresh], "c").take),
        len(planned([stale], "c").take),
    )


def test_a_worker_takes_reserved_leases_before_it_requests_more():
    """
    Workers that start together do not see each other yet. Each requests more leases than its share, so more are reserved than needed.
    """
    leases = [a_lease(i, owner="b") for i in range(4)] + [a_lease(4 + i, request="b") for i in range(4)]

    decided = planned(leases, "a")

    assert ({f"p..{i}" for i in range(4, 8)}, ()) == ({lease.id for lease in decided.take}, decided.ask)


def test_a_worker_takes_a_lease_that_names_it_as_owner_but_that_it_does_not_process():
    assert 1 == len(planned([a_lease(0, owner="a")], "a", running=set()).take)


class Fleet:
    """
    Simulated workers that balance one list of leases. They write one after another, so no write is refused.
    """

    def __init__(self, leases: list[Lease], workers: list[str]) -> None:
        self.leases = {lease.id: lease for lease in leases}
        self.workers = workers

    def running(self, worker: str) -> set[str]:
        return {
            i
            for i, lease in self.leases.items()
            if lease.owner == worker and not lease.expired(NOW, EXPIRATION)
        }

    def turn(self, worker: str) -> int:
        before = dict(self.leases)
        decided = planned(list(self.leases.values()), worker, running=self.running(worker))
        for lease in decided.hand_over:
            self.leases[lease.id] = self._written(lease, owner=None)
        for lease in decided.ask:
            self.leases[lease.id] = self._written(
                lease, properties=with_handover_request(lease.properties, worker)
            )
        for lease in decided.take:
            taken = with_signature(lease.properties, worker)
            self.leases[lease.id] = self._written(lease, owner=worker, properties=taken)
        return sum(before[i] != self.leases[i] for i in before)

    def _written(self, lease: Lease, **changes: object) -> Lease:
        raw = {**lease.raw, "_ts": int(NOW.timestamp())}
        return replace(lease, raw=raw, **changes)  # type: ignore[arg-type]

    def counts(self) -> Counter[str]:
        return Counter(lease.owner or "" for lease in self.leases.values())


owners = st.sampled_from(["a", "b", "c", "d", "gone", "dotnet", None])


@st.composite
def fleets(draw: st.DrawFn, *, requests: bool = True) -> Fleet:
    workers = draw(st.lists(st.sampled_from("abcd"), min_size=1, max_size=4, unique=True))
    leases = []
    for number in range(draw(st.integers(0, 25))):
        owner = draw(owners)
        # An owner that is not among the workers died long ago, so its leases have expired.
        age = 1 if owner in workers else 100
        request = draw(st.sampled_from([None, None, *workers])) if requests else None
        leases.append(a_lease(number, owner=owner, age=age, ours=owner != "dotnet", request=request))
    return Fleet(leases, workers)


@settings(max_examples=examples(20, many=100))
@given(fleets(), st.randoms(use_true_random=False))
def test_balancing_ends_with_even_shares_for_any_number_of_workers(fleet: Fleet, random):
    """Once the shares are even, no lease changes its owner."""
    for _ in range(12):
        for worker in random.sample(fleet.workers, len(fleet.workers)):
            fleet.turn(worker)

    counts = fleet.counts()
    target = math.ceil(len(fleet.leases) / len(fleet.workers))
    assert 0 == counts[""], "every lease has an owner"
    assert max((counts[w] for w in fleet.workers), default=0) <= max(target, 1)
    assert sum(counts[w] for w in fleet.workers) == len(fleet.leases)
    assert 0 == sum(fleet.turn(worker) for worker in fleet.workers), "balanced means nothing moves"


@settings(max_examples=60)
@given(fleets(requests=False), st.randoms(use_true_random=False))
def test_a_balancing_pass_takes_at_most_one_lease_above_the_even_share(fleet: Fleet, random):
    for _ in range(12):
        for worker in random.sample(fleet.workers, len(fleet.workers)):
            held_before = fleet.counts()[worker]
            alive = {lease.owner for lease in fleet.leases.values() if not lease.expired(NOW, EXPIRATION)}
            asking = {handover_requested_by(lease) for lease in fleet.leases.values()}
            target = math.ceil(len(fleet.leases) / len((alive | asking | {worker}) - {None}))
            fleet.turn(worker)
            assert fleet.counts()[worker] <= max(held_before, target + 1)


@settings(max_examples=examples(20, many=100))
@given(st.integers(1, 40), st.integers(1, 3), st.integers(1, 3), st.randoms(use_true_random=False))
def test_balancing_beside_dotnet_workers_ends_with_stable_owners(leases: int, ours: int, dotnet: int, random):
    """
    The simulated .NET workers take leases by force, as .NET's EqualPartitionsBalancingStrategy does, and never hand one over.
    """
    names = [f"ours-{i}" for i in range(ours)] + [f"dotnet-{i}" for i in range(dotnet)]
    fleet = Fleet([a_lease(i) for i in range(leases)], [name for name in names if name.startswith("ours")])
    moved = 0
    for turn in range(120):
        moved = 0 if turn % 10 == 0 else moved
        for name in random.sample(names, len(names)):
            moved += fleet.turn(name) if name.startswith("ours") else _dotnet_turn(fleet, name)

    assert 0 == moved, "no war: the last ten rounds moved nothing"
    counts = fleet.counts()
    assert max(counts[name] for name in names) - min(counts[name] for name in names) <= 1 + (
        leases > len(names)
    )


def _dotnet_turn(fleet: Fleet, me: str) -> int:
    leases = list(fleet.leases.values())
    counts: Counter[str] = Counter({me: 0})
    counts.update(lease.owner for lease in leases if lease.owner)
    target = math.ceil(len(leases) / len(counts)) if len(leases) > len(counts) else 1
    needed = target - counts[me]
    free = [lease for lease in leases if not lease.owner]
    taken: list[Lease] = []
    if needed > 0 and free:
        taken = free[:needed]
    elif needed > 0:
        richest = max(counts, key=lambda worker: counts[worker])
        if counts[richest] > target - (1 if needed > 1 else 0):
            taken = [next(lease for lease in leases if lease.owner == richest)]
    for lease in taken:
        fleet.leases[lease.id] = fleet._written(lease, owner=me)
    return len(taken)
