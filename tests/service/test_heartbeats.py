"""
Tests of heartbeats: documents in the lease container in which each worker writes its state for the other workers. No list of leases
contains them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

import pytest

from cosmos_outbox.adapters.memory.leases import MemoryLeases
from cosmos_outbox.changefeed.leases import lease_prefix
from cosmos_outbox.ports import MonitoredContainer
from cosmos_outbox.stored_documents import Document
from cosmos_outbox_worker.heartbeats import Fleet, Heartbeat, Phase

OWN = Heartbeat(worker="w/1?", every=timedelta(seconds=15), phase=Phase.RUNNING)


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


class WithoutTtl(MemoryLeases):
    """
    A lease container without a default time to live, so Cosmos DB ignores the `ttl` of a document and never deletes it.
    """

    def _put(self, document: Document) -> Document:  # type: ignore[override] # wider than a Mapping is not needed
        return super()._put({name: value for name, value in document.items() if name != "ttl"})


def fleet_in(leases: MemoryLeases, *, processor: str = "outbox", container: str = "db/data") -> Fleet:
    return Fleet(leases, processor=processor, container=container)


@pytest.mark.parametrize("by_id", [True, False])
async def test_a_heartbeat_is_one_document_that_no_listing_of_leases_finds(by_id: bool):
    leases = MemoryLeases(by_id=by_id)
    for _ in range(3):
        await fleet_in(leases).beat(OWN)
    (stored,) = (await leases.list("")).documents
    container = MonitoredContainer(
        account_host="acct.documents.azure.com", database_rid="AbCdEg==", container_rid="AbCdEhZ8xyQ="
    )
    dotnet = lease_prefix("outbox", container)
    for listing in (f"{dotnet}..", "outboxacct.", "outbox"):
        assert () == (await leases.list(listing)).documents
    assert stored["id"] == stored.get("partitionKey", stored["id"])
    assert by_id is ("partitionKey" not in stored)
    assert not {"LeaseToken", "Owner"} & stored.keys()
    assert not set("/\\?#") & set(stored["id"])


async def test_a_worker_sees_only_heartbeats_of_its_own_processor_and_container():
    leases = MemoryLeases()
    await fleet_in(leases).beat(OWN)
    assert () == await fleet_in(leases, processor="audit").heartbeats()
    assert () == await fleet_in(leases, container="db/other").heartbeats()
    assert ["w/1?"] == [one.worker for one in await fleet_in(leases).heartbeats()]


async def test_long_texts_and_lists_in_a_heartbeat_are_cut():
    leases = MemoryLeases()
    own = replace(OWN, unready=("No.",), errors=("x" * 5000,) * 50)
    await fleet_in(leases).beat(own)
    (seen,) = await fleet_in(leases).heartbeats()
    assert replace(own, errors=("x" * 300 + "…",) * 3) == seen
    assert "not ready" == seen.state(owns=False)


async def test_a_worker_that_writes_no_heartbeats_is_silent_and_later_forgotten():
    clock = Clock()
    leases = MemoryLeases(now=clock)
    await fleet_in(leases).beat(OWN)
    states = []
    for seconds in (0, 25, 26, 659, 661):
        clock.now = Clock.now + seconds
        states.append([one.state(owns=False) for one in await fleet_in(leases).heartbeats()])
    assert [["stand-by"], ["stand-by"], ["silent"], ["silent"], []] == states


async def test_the_owner_of_a_lease_counts_as_running_until_it_is_silent():
    clock = Clock()
    leases = MemoryLeases(now=clock)
    await fleet_in(leases).beat(OWN)
    states = []
    for seconds in (25, 26):
        clock.now = Clock.now + seconds
        states.append([one.state(owns=True) for one in await fleet_in(leases).heartbeats()])
    assert [["running"], ["silent"]] == states


async def test_other_workers_delete_old_heartbeats_if_the_container_has_no_ttl():
    clock = Clock()
    leases = WithoutTtl(now=clock)
    await fleet_in(leases).beat(OWN)
    clock.now += 661
    assert () == await fleet_in(leases).beat(replace(OWN, worker="other"))
    assert ["other"] == [stored["worker"] for stored in (await leases.list("")).documents]


async def test_only_a_worker_that_failed_leaves_its_last_heartbeat_behind():
    leases = MemoryLeases()
    fleet = fleet_in(leases)
    async with fleet.membership(OWN.worker):
        await fleet.beat(OWN)
    assert () == await fleet.heartbeats()
    with suppress(ZeroDivisionError):
        async with fleet.membership(OWN.worker):
            await fleet.beat(OWN)
            raise ZeroDivisionError
    assert 1 == len(await fleet.heartbeats())


@pytest.mark.parametrize(
    "change",
    [
        lambda stored: stored.update(every="often"),
        lambda stored: stored.update(every="P900000000D"),
        lambda stored: stored.pop("worker"),
        lambda stored: stored.update(errors="none"),
    ],
    ids=["no time", "too long a time", "no name", "no list"],
)
async def test_a_worker_ignores_a_malformed_heartbeat(change: Callable[[Document], object]):
    leases = MemoryLeases()
    await fleet_in(leases).beat(OWN)
    (stored,) = (await leases.list("")).documents
    etag = stored["_etag"]
    change(stored)
    await leases.replace(stored, etag=etag)
    assert () == await fleet_in(leases).heartbeats()
