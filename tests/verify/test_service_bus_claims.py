"""
Tests that every claim of `verify` about Service Bus holds on the emulator, and that `verify` reports a topic that behaves otherwise.
"""

from __future__ import annotations

import pytest

from cosmos_outbox_testing.emulated import OutboxEmulators
from cosmos_outbox_testing.verify import service_bus_claims
from cosmos_outbox_testing.verify.results import Held, Outcome
from cosmos_outbox_testing.verify.site import open_site

pytestmark = [
    pytest.mark.looptime(False),
    # Azure's SDK leaves its socket open when the broker closes the connection. The garbage collector closes it later, with a warning.
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


async def test_every_claim_of_verify_about_service_bus_holds_on_the_emulator(
    verified: OutboxEmulators, monkeypatch: pytest.MonkeyPatch
):
    """The test also checks that the run leaves no message behind."""
    outcomes = await _asked(verified, monkeypatch)
    asked = [one for one in service_bus_claims.CLAIMS if not one.not_asked]
    assert {one.name: one.expected for one in asked} == _of(outcomes, Held.HELD)
    left = verified.servicebus.stats()["topics"]["short-locks"]["subscriptions"].values()
    assert [(0, 0)] * 2 == [(one["active"], one["dead_lettered"]) for one in left]


async def test_on_a_topic_without_duplicate_detection_only_the_claims_about_it_fail(
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


async def test_verify_tests_no_claim_about_service_bus_if_no_namespace_is_set(
    verified: OutboxEmulators, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("OUTBOX_SERVICEBUS_CONNECTION_STRING")
    async with open_site(sessions="all", plain="plain") as site:
        outcomes = await service_bus_claims.run(site, lambda told: None)
    assert {one.name for one in service_bus_claims.CLAIMS} == {*_of(outcomes, Held.NOT_RUN)}
