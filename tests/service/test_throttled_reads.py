"""
Tests of a worker whose requests to Cosmos DB have low priority. While a service's commits use all request units, the worker's reads wait,
not the commits. Afterwards the worker sends all events.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable

import pytest

from cosmos_outbox_worker import running_worker
from tests.service.test_worker_assembly import settings_of
from tests.support.patience import HUNG_SECONDS
from tests.support.site import Site, opened_site

pytestmark = [
    pytest.mark.looptime(False),
    # Azure's SDK for Service Bus leaves its socket open when a link ends. The garbage collector closes it later, with a warning.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

UNITS = 20  # request units a second: enough for one commit of a contact, but not for two


@pytest.fixture
async def busy() -> AsyncIterator[tuple[Site, Callable[[], None]]]:
    """
    Open emulators whose container has few request units a second. Also return a function that lets their clock go on by a second.
    """
    async with opened_site() as site:
        seconds = [float(int(time.time()))]
        site.cosmos.account.clock = lambda: seconds[0]
        site.cosmos.gateway.throttle(site.cosmos.account.container("contacts", "data"), UNITS)

        def pass_a_second() -> None:
            seconds[0] += 1

        yield site, pass_a_second


async def until_so(fact: Callable[[], bool], meanwhile: Callable[[], None] = lambda: None) -> None:
    async with asyncio.timeout(HUNG_SECONDS):
        while not fact():
            meanwhile()
            await asyncio.sleep(0.1)


async def test_a_worker_of_low_priority_waits_while_commits_use_the_request_units(
    busy: tuple[Site, Callable[[], None]],
):
    """The worker sends all events once the commits leave request units for it."""
    site, pass_a_second = busy
    refused, ids = site.cosmos.gateway.counts, []
    settings = settings_of(
        cosmos_connection_string=site.cosmos.connection_string,
        servicebus_connection_string=site.bus.connection_string,
        instance_name="w",
        priority="low",
        throughput_bucket=2,
    )
    for _ in range(3):
        ids.append(await site.commit(contact_id="ada" if not ids else None))
        pass_a_second()
    ids += [await site.commit() for _ in range(2)]
    async with running_worker(settings) as worker:
        await until_so(lambda: refused["throttled, low priority"] >= 3)
        assert 0 == worker.snapshot().sent
        assert 0 == refused["throttled"], "a commit was refused before the reads of low priority"
        await until_so(lambda: worker.snapshot().sent >= 2, pass_a_second)
        ids.append(await site.commit())
        await until_so(lambda: worker.snapshot().sent >= len(ids), pass_a_second)
    queue = site.bus.broker.queue("events/Subscriptions/all")
    assert sorted(ids) == sorted({one.message.identity for one in queue.entries.values()})
