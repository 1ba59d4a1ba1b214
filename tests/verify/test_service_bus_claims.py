"""
Tests that every claim about Service Bus holds on the emulator, and that a topic with another behaviour is reported.
"""

from __future__ import annotations

import pytest

from cosmos_outbox_testing.emulated import OutboxEmulators
from cosmos_outbox_testing.verify import service_bus_claims
from cosmos_outbox_testing.verify.results import Held, Outcome
from cosmos_outbox_testing.verify.site import open_site

pytestmark = [
    pytest.mark.looptime(False),
    # The SDK leaves its socket open when the broker closes the connection, and the garbage collector closes it later with a
    # warning.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
_SUBSCRIPTIONS = [{"name": "all", "requires_session": True, "lock_s": 5}, {"name": "plain", "lock_s": 5}]


async def _asked(
    outbox: OutboxEmulators, monkeypatch: pytest.MonkeyPatch, *only: str, window: float | None = 600
) -> list[Outcome]:
    topic = {"name": "short-locks", "dedup_window_s": window, "subscriptions": _SUBSCRIPTIONS}
    outbox.servicebus.add_topic(topic)
    monkeypatch.setenv("OUTBOX_TOPIC", "short-locks")
    async with open_site(sessions="all", plain="plain", only=only) as site:
        return await service_bus_claims.run(site, lambda told: None)


def _of(outcomes: list[Outcome], held: Held) -> dict[str, str]:
    return {one.name: one.found for one in outcomes if one.held is held}


async def test_every_claim_about_service_bus_holds_on_the_emulator(
    verified: OutboxEmulators, monkeypatch: pytest.MonkeyPatch
):
    """The claims hold on the emulator, and no message of the run is left behind."""
    outcomes = await _asked(verified, monkeypatch)
    asked = [one for one in service_bus_claims.CLAIMS if not one.not_asked]
    assert {one.name: one.expected for one in asked} == _of(outcomes, Held.HELD)
    left = verified.servicebus.stats()["topics"]["short-locks"]["subscriptions"].values()
    assert [(0, 0)] * 2 == [(one["active"], one["dead_lettered"]) for one in left]


async def test_without_duplicate_detection_only_the_claims_about_it_fail(
    verified: OutboxEmulators, monkeypatch: pytest.MonkeyPatch
):
    names = "duplicate-sends", "duplicate-in-a-batch", "scheduled-twice", "batch-is-whole", "too-large"
    outcomes = await _asked(verified, monkeypatch, *(f"servicebus/{name}" for name in names), window=None)
    assert {
        "duplicate-sends": "1 1 again 2",
        "duplicate-in-a-batch": "1 1 again 2",
        "scheduled-twice": "once once once",
    } == _of(outcomes, Held.BROKEN)
    assert {"batch-is-whole", "too-large"} == {*_of(outcomes, Held.HELD)}


async def test_without_a_namespace_no_claim_about_service_bus_is_tested(
    verified: OutboxEmulators, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("OUTBOX_SERVICEBUS_CONNECTION_STRING")
    async with open_site(sessions="all", plain="plain") as site:
        outcomes = await service_bus_claims.run(site, lambda told: None)
    assert {one.name for one in service_bus_claims.CLAIMS} == {*_of(outcomes, Held.NOT_RUN)}
