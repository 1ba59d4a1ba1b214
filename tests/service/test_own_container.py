"""A worker on a container of another partition key: it relays what it can, and refuses what it cannot."""

from __future__ import annotations

import pytest
from azure.cosmos import PartitionKey
from azure.servicebus import NEXT_AVAILABLE_SESSION
from azure.servicebus.aio import ServiceBusClient

from tests.support.own_container import NAME, create_container, place
from tests.support.site import Site, opened_site

pytestmark = pytest.mark.looptime(False)


async def session(site: Site) -> tuple[str, list[str]]:
    """Return the name of the next session, and the ids of its messages, which are then completed."""
    async with (
        ServiceBusClient.from_connection_string(site.bus.connection_string, retry_total=0) as bus,
        bus.get_subscription_receiver(
            "events", "all", session_id=NEXT_AVAILABLE_SESSION, max_wait_time=20
        ) as receiver,
    ):
        received = []
        while len(received) < 2:
            for message in await receiver.receive_messages(2 - len(received), max_wait_time=20):
                await receiver.complete_message(message)
                received.append(message.message_id)
        return receiver.session.session_id, received


async def test_a_worker_relays_the_events_of_hierarchical_keys_session_by_session():
    async with opened_site(partitions=2) as site:
        store = await create_container(site.client, "contacts")
        expected = {f'["t1",{user}]': await place(store, "t1", user) for user in (1, 2)}
        await site.start_worker(OUTBOX_COSMOS_CONTAINER=NAME, OUTBOX_PARKED_CONTAINER="parked")
        assert expected == dict([await session(site), await session(site)])


@pytest.mark.parametrize("path", ["/id", "/type"])
async def test_a_worker_on_a_container_that_cannot_hold_an_outbox_exits_2_and_says_why(path: str):
    async with opened_site() as site:
        database = site.client.get_database_client("contacts")
        await database.create_container("strange", PartitionKey(path), default_ttl=-1)
        worker = await site.start_worker(OUTBOX_COSMOS_CONTAINER="strange")
        assert 2 == await worker.exit_code()
        assert f"'strange' cannot hold an outbox, for {path}" in worker.output
