"""
Tests that `verify` runs the contract suites on the emulators, and reports a store that breaks its contract.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from cosmos_outbox.errors import TooManyRequests
from cosmos_outbox_testing.contracts import SubscriptionContract
from cosmos_outbox_testing.emulated import OutboxEmulators
from cosmos_outbox_testing.verify import suites
from cosmos_outbox_testing.verify.own_views import OwnStore
from cosmos_outbox_testing.verify.results import Held, Outcome
from cosmos_outbox_testing.verify.site import open_site
from tests.support.effort import LONG

pytestmark = [
    pytest.mark.looptime(False),
    # aiohttp warns of bodies of more than 1 MB, which only the SDK could change. The SDK also leaves its socket open when the
    # broker closes the connection.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


async def _ran(*only: str) -> dict[str, Outcome]:
    async with open_site(sessions="all", plain="relayed", only=only) as site:
        return {one.name: one for one in await suites.run(site, lambda told: None)}


async def test_the_contract_suites_pass_on_the_emulators(verified: OutboxEmulators):
    """The contract suites pass on the emulators and leave no document behind."""
    names = [
        name for name in suites.NAMES if "subscription" not in name
    ]  # `make verify` has those, which take minutes
    outcomes = await _ran(*(f"suites/{name}" for name in names))
    assert {*names} == outcomes.keys()
    assert [] == [one.found for one in outcomes.values() if one.held is not Held.HELD]
    of_cosmos = {"store", "leases", "parked", "change-feed", "change-feed-sdk-only"}
    assert of_cosmos == {name for name, one in outcomes.items() if one.request_units > 0}
    async with open_site(sessions="all", plain="relayed", only=("cosmos",)) as site:
        assert [] == [one["id"] async for one in site.data.read_all_items()]
        assert [] == [one["id"] async for one in site.leases.read_all_items()]


# The contract suites of Cosmos DB that each deviation breaks. `make test` tries the first, and `make test-long` all.
NAMED = {
    "half-batches": {"store"},
    "etags-ignored": {"leases", "parked", "store"},
    "lsn-within-batch": {"change-feed"},
    "feed-reversed": {"change-feed"},
}


@pytest.mark.parametrize("deviation", list(NAMED)[: None if LONG else 1])
async def test_a_deviation_fails_exactly_the_contract_suites_that_it_breaks(
    verified: OutboxEmulators, deviation: str
):
    verified.cosmos.deviate(deviation)
    outcomes = await _ran(*(f"suites/{name}" for name in ("store", "leases", "parked", "change-feed")))
    assert NAMED[deviation] == {name for name, one in outcomes.items() if one.held is Held.BROKEN}


@pytest.mark.parametrize("deviation", [None, "session-reversed"])
async def test_both_receivers_are_tested_by_the_contract_of_subscriptions(
    verified: OutboxEmulators, monkeypatch: pytest.MonkeyPatch, deviation: str | None
):
    """
    This test runs one test of the contract of subscriptions on both receivers.

    The names that it chooses are replaced by names of the run, and nothing is left behind.
    """
    whole = suites.tests_of
    tests = [one for one in whole(SubscriptionContract()) if "are_received_in_order" in one[0]]
    monkeypatch.setattr(suites, "tests_of", lambda _: tests)
    if deviation:
        verified.servicebus.deviate(deviation)
    outcomes = await _ran("suites/subscription", "suites/subscription-sdk-only")
    assert {Held.BROKEN if deviation else Held.HELD} == {one.held for one in outcomes.values()}
    left = verified.servicebus.stats()["topics"][verified.topic]["subscriptions"].values()
    assert 0 == sum(one["active"] + one["dead_lettered"] for one in left)


async def test_a_store_that_splits_a_batch_is_reported_with_the_failed_test(
    verified: OutboxEmulators, monkeypatch: pytest.MonkeyPatch
):
    whole = OwnStore.commit

    async def split(self: OwnStore, partition_key: str, writes: Any) -> Any:
        for one in writes[:-1]:
            await whole(self, partition_key, [one])
        return await whole(self, partition_key, writes[-1:])

    monkeypatch.setattr(OwnStore, "commit", split)
    (store,) = (await _ran("suites/store")).values()
    assert (Held.BROKEN, "G1") == (store.held, store.promise)
    assert "test_a_batch_beyond_the_limits_is_refused_as_a_whole" in store.found


async def test_a_throttled_test_of_a_suite_is_repeated(
    monkeypatch: pytest.MonkeyPatch,
):
    """A throttled test of a contract suite is repeated, and a failed test is reported with its line."""
    monkeypatch.setattr(suites, "_PAUSE_SECONDS", 0.0)
    refused = [TooManyRequests("throttled", retry_after=None)]

    @asynccontextmanager
    async def fixtures() -> AsyncIterator[dict[str, Any]]:
        yield {"store": "a store"}

    async def passes_later(store: str) -> None:
        if refused:
            raise refused.pop()

    async def fails(store: str, text: str) -> None:
        assert store == text

    async def skipped() -> None:
        pytest.skip("no faults")

    assert "" == await suites._try_test(passes_later, fixtures, {})
    assert "AssertionError" in str(await suites._try_test(fails, fixtures, {"text": "another"}))
    assert "assert store == text" in str(await suites._try_test(fails, fixtures, {"text": "another"}))
    with pytest.raises(pytest.skip.Exception, match="no faults"):  # told to the caller with its reason
        await suites._try_test(skipped, fixtures, {})
