"""
Tests of the part of `verify` that commits, relays and consumes events, and kills a worker and a consumer
meanwhile. No event may be lost, and no document may be left behind.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cosmos_outbox_testing.emulated import OutboxEmulators
from cosmos_outbox_testing.verify import main_job
from cosmos_outbox_testing.verify.child_processes import Children
from cosmos_outbox_testing.verify.results import Held, Outcome
from cosmos_outbox_testing.verify.site import open_site

pytestmark = [pytest.mark.looptime(False), pytest.mark.system]


async def _done(told: list[str | Outcome], **options: float) -> dict[str, Outcome]:
    async with open_site(sessions="all", plain="relayed", **options) as site:
        return {outcome.name: outcome for outcome in await main_job.run(site, told.append)}


@pytest.fixture(autouse=True)
def short_locks(verified: OutboxEmulators, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Use a topic whose locks last 5 s. Otherwise another consumer gets the sessions of the killed consumer only
    after a minute.
    """
    subscriptions = [{"name": "all", "requires_session": True, "lock_s": 5}, {"name": "relayed"}]
    verified.servicebus.add_topic(
        {"name": "short-locks", "dedup_window_s": 600, "subscriptions": subscriptions}
    )
    monkeypatch.setenv("OUTBOX_TOPIC", "short-locks")


async def test_verify_shows_that_every_event_takes_effect_once_and_in_order(verified: OutboxEmulators):
    told: list[str | Outcome] = []
    outcomes = await _done(told, seconds=6)

    assert dict.fromkeys(("bypasses", "topic", "effects"), Held.HELD) == {
        name: one.held for name, one in outcomes.items()
    }
    assert "encoder and lean receiver trusted" == outcomes["bypasses"].found
    assert {"commit to topic p50 ms", "commit to topic p99 ms"} == outcomes["topic"].figures.keys()
    assert 2 == sum(str(one).startswith("killed") for one in told)
    async with open_site(sessions="all", plain="relayed", only=("cosmos",)) as site:
        assert [] == [one["id"] async for one in site.data.read_all_items()]
        assert [] == [one["id"] async for one in site.leases.read_all_items()]


async def test_verify_reports_a_worker_that_cannot_start_with_the_end_of_its_log(
    verified: OutboxEmulators, monkeypatch: pytest.MonkeyPatch
):
    async with open_site(sessions="all", plain="relayed") as site:
        monkeypatch.setenv("OUTBOX_LANES", "none")  # a wrong setting for the run's worker
        (outcome,) = await main_job.run(site, lambda told: None)
    assert Held.BROKEN is outcome.held
    assert "OUTBOX_LANES" in outcome.found


async def test_verify_relays_no_events_if_no_topic_is_set(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("OUTBOX_SERVICEBUS_CONNECTION_STRING")
    (outcome,) = (await _done([], seconds=6)).values()
    assert Held.NOT_RUN is outcome.held


async def test_verify_reports_that_a_consumer_fell_back_to_the_sdk_s_receiver(
    verified: OutboxEmulators, tmp_path: Path
):
    said = "import logging; from cosmos_outbox.records import *; logging.basicConfig(); "
    said += "log_hook(SdkFallback(part='receiver', entity='events/all', reason='a fault'))"
    async with open_site(sessions="all", plain="relayed") as site, Children(tmp_path) as children:
        await (await children.start("consumer", ("-c", said), env=site.environ)).wait()
        outcome = main_job._Job(site, lambda told: None, tmp_path)._trust(children)
    assert Held.DIFFERENT is outcome.held
    assert "part=receiver entity=events/all reason=a fault" in outcome.found
