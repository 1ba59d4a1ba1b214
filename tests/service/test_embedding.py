"""
Tests of a worker inside another program: it relays events, shows its health, and drains at the end of the block.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable

import pytest

from cosmos_outbox.errors import ConfigurationError
from cosmos_outbox_worker import Settings, load, running_worker
from tests.support.patience import HUNG_SECONDS
from tests.support.site import Site, opened_site

pytestmark = [
    pytest.mark.looptime(False),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


def settings_of(site: Site, monkeypatch: pytest.MonkeyPatch, **variables: str) -> Settings:
    for name, value in (site.environment | variables).items():
        monkeypatch.setenv(name, value)
    return load()


async def until(fact: Callable[[], bool]) -> None:
    async with asyncio.timeout(HUNG_SECONDS):
        while True:
            if fact():
                return
            await asyncio.sleep(0.05)


async def test_an_embedded_worker_relays_and_releases_its_leases_at_the_end(monkeypatch: pytest.MonkeyPatch):
    """The test also checks that the program can read the worker's health."""
    handlers = [
        signal.getsignal(signal.SIGTERM),
        signal.getsignal(signal.SIGINT),
        *logging.getLogger().handlers,
    ]
    async with opened_site() as site:
        await site.commit()
        async with running_worker(settings_of(site, monkeypatch)) as worker:
            assert worker.health_url is None
            await until(
                lambda: bool(site.bus.broker.topics["events"].published) and not worker.snapshot().unready
            )
            assert "ready" == worker.snapshot().readiness()["status"]
            assert b"outbox_worker_ready" in worker.metrics()[0]
        leases = site.client.get_database_client("contacts").get_container_client("leases")
        owners = [item["Owner"] async for item in leases.read_all_items() if "LeaseToken" in item]
        assert [None] == owners
    assert handlers == [
        signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT), *logging.getLogger().handlers,
    ]  # fmt: skip


async def test_the_error_of_a_failed_embedded_worker_is_raised_at_the_end(monkeypatch: pytest.MonkeyPatch):
    """Until the end of the block, the worker's health is unready."""
    async with opened_site() as site:
        settings = settings_of(site, monkeypatch, OUTBOX_LEASE_CONTAINER="nowhere")
        with pytest.raises(ConfigurationError, match="nowhere"):
            await run_until_it_has_ended(settings)


async def run_until_it_has_ended(settings: Settings) -> None:
    async with running_worker(settings) as worker:
        await until(lambda: any("nowhere" in reason for reason in worker.snapshot().unready))


async def test_the_program_s_own_error_is_raised_instead_of_the_worker_s(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """If both fail, the worker's error is only logged."""
    async with opened_site() as site:
        settings = settings_of(site, monkeypatch, OUTBOX_LEASE_CONTAINER="nowhere")
        with pytest.raises(LookupError, match="of the program"):
            await fail_beside_a_failed_worker(settings)
    assert "worker.failed" in caplog.messages


async def fail_beside_a_failed_worker(settings: Settings) -> None:
    async with running_worker(settings) as worker:
        await until(lambda: any("nowhere" in reason for reason in worker.snapshot().unready))
        raise LookupError("of the program")


async def test_contradictory_settings_are_refused_before_connections_are_opened():
    wrong = Settings(
        cosmos_connection_string="AccountEndpoint=http://127.0.0.1:1/;AccountKey=a2V5;",
        cosmos_database="d",
        cosmos_container="c",
        servicebus_connection_string="Endpoint=sb://b;SharedAccessKeyName=n;SharedAccessKey=a2V5",
        topic="t",
        stalled_seconds=1,
    )
    with pytest.raises(ConfigurationError, match="OUTBOX_STALLED_SECONDS"):
        async with running_worker(wrong):
            pass
