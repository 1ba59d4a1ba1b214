"""
Tests of the figures that `verify` measures, for example the time of a commit. If a figure cannot be measured,
`verify` measures the other figures all the same.
"""

from __future__ import annotations

import pytest

from cosmos_outbox_testing.emulated import OutboxEmulators
from cosmos_outbox_testing.verify import figures
from cosmos_outbox_testing.verify.results import Held
from cosmos_outbox_testing.verify.site import open_site

pytestmark = pytest.mark.looptime(False)
_OF_COSMOS = {"commit", "read", "poll", "checkpoint"}
_OF_BOTH = {"read-behind"}


async def test_verify_measures_the_time_and_request_units_of_each_operation(verified: OutboxEmulators):
    async with open_site(sessions="all", plain="relayed") as site:
        outcomes = {one.name: one for one in await figures.run(site, lambda told: None)}
    assert {*_OF_COSMOS, *_OF_BOTH, "send", "send-batch", "receive"} == outcomes.keys()
    assert {Held.HELD} == {one.held for one in outcomes.values()}
    assert all(0 < one.figures["p50 ms"] <= one.figures["p99 ms"] for one in outcomes.values())
    charged = {name for name, one in outcomes.items() if one.figures.get("request units", 0) > 0}
    assert _OF_COSMOS | _OF_BOTH == charged


@pytest.mark.parametrize(("lag_seconds", "behind"), [(0.0, 0.0), (60.0, 25.0)])
async def test_verify_counts_reads_that_are_older_than_a_received_message(
    lag_seconds: float, behind: float, verified: OutboxEmulators
):
    async with open_site(sessions="all", plain="relayed", only=("figures/read-behind",)) as site:
        verified.cosmos.lag(lag_seconds)
        (outcome,) = await figures.run(site, lambda told: None)
        verified.cosmos.lag(0.0)
    assert behind == outcome.figures["behind, of 25"]


async def test_verify_measures_the_other_operations_if_an_operation_is_refused(verified: OutboxEmulators):
    async with open_site(sessions="all", plain="relayed", only=("figures/read", "figures/commit")) as site:
        verified.cosmos.add_fault({"operation": "batch", "status": 403, "count": None})
        outcomes = {one.name: one.held for one in await figures.run(site, lambda told: None)}
    assert {"commit": Held.NOT_RUN, "read": Held.HELD} == outcomes


async def test_verify_measures_only_cosmos_db_if_no_topic_is_set(
    verified: OutboxEmulators, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("OUTBOX_SERVICEBUS_CONNECTION_STRING")
    async with open_site(sessions="all", plain="relayed") as site:
        outcomes = {one.name: one.held for one in await figures.run(site, lambda told: None)}
    assert {**dict.fromkeys(_OF_COSMOS, Held.HELD), "servicebus": Held.NOT_RUN} == outcomes
