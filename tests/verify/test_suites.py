"""
Tests that `verify` runs the contract suites (the tests of each port of the library) on the emulators, and reports a store that breaks its
contract.
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
    # Ignore two warnings about Azure's SDKs: aiohttp warns of request bodies of more than 1 MB, and Python of sockets that stay open
    # when the broker closes the connection.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


async def _ran(*only: str) -> dict[str, Outcome]:
    async with open_site(sessions="all", plain="relayed", only=only) as site:
        return {one.name: one for one in await suites.run(site, lambda told: None)}


async def test_the_contract_suites_pass_on_the_emulators(verified: OutboxEmulators):
    """The test also checks that the suites leave no document behind."""
    # The suites of subscriptions take minutes. They run in `make verify`.
    names = [name for name in suites.NAMES if "subscription" not in name]
    outcomes = await _ran(*(f"suites/{name}" for name in names))
    assert {*names} == outcomes.keys()
    assert [] == [one.found for one in outcomes.values() if one.held is not Held.HELD]
    of_cosmos = {"store", "leases", "parked", "change-feed", "change-feed-sdk-only"}
    assert of_cosmos == {name for name, one in outcomes.items() if one.request_units > 0}
    async with open_site(sessions="all", plain="relayed", only=("cosmos",)) as site:
        assert [] == [one["id"] async for one in site.data.read_all_items()]
        assert [] == [one["id"] async for one in site.leases.read_all_items()]


# For each deviation of the Cosmos DB emulator, the contract suites that it breaks. `make test` tries the first deviation,
# `make test-long` tries all.
NAMED = {
    "half-batches": {"store"},
    "etags-ignored": {"leases", "parked", "store"},
    "lsn-within-batch": {"change-feed"},
    "feed-reversed": {"change-feed"},
}


@pytest.mark.parametrize("deviation", list(NAMED)[: None if LONG else 1])
async def test_exactly_the_contract_suites_about_a_deviation_of_the_emulator_fail(
    verified: OutboxEmulators, deviation: str
):
    verified.cosmos.deviate(deviation)
    outcomes = await _ran(*(f"suites/{name}" for name in ("store", "leases", "parked", "change-feed")))
    assert NAMED[deviation] == {name for name, one in outcomes.items() if one.held is Held.BROKEN}


@pytest.mark.parametrize("deviation", [None, "session-reversed"])
async def test_verify_runs_the_contract_of_subscriptions_on_both_receivers(
    verified: OutboxEmulators, monkeypatch: pytest.MonkeyPatch, deviation: str | None
):
    """
    The two receivers are the lean receiver and that of Azure's SDK. This test runs only one of the contract's tests.

    That test chooses names of sessions and messages. `verify` replaces them by names of the run, and leaves no message behind.
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


async def test_verify_names_the_failed_test_if_a_store_splits_a_batch(
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


async def test_verify_repeats_a_test_of_a_contract_suite_that_was_throttled(
    monkeypatch: pytest.MonkeyPatch,
):
    """If the test also fails each time that it is repeated, `verify` reports it with the line that failed."""
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
    with pytest.raises(pytest.skip.Exception, match="no faults"):  # a skip is passed on to the caller
        await suites._try_test(skipped, fixtures, {})
