"""Tests that a run of `verify` deletes exactly the documents and messages that it wrote."""

from __future__ import annotations

import asyncio

import pytest
from azure.servicebus import ServiceBusMessage

from cosmos_outbox_testing.emulated import OutboxEmulators
from cosmos_outbox_testing.verify.cleaning import all_of
from cosmos_outbox_testing.verify.own_session import OwnSession
from cosmos_outbox_testing.verify.site import Site, open_site

pytestmark = pytest.mark.looptime(False)


async def _write(site: Site, name: str, message_id: str) -> None:
    await site.data.create_item(site.document(name, name))
    await site.leases.create_item({"id": name})
    assert site.parked is not None
    await site.parked.create_item({"id": name, "partitionKey": name})
    async with OwnSession(site).sender() as sender:
        await sender.send_messages(ServiceBusMessage("", message_id=message_id, session_id=name))


async def _left(outbox: OutboxEmulators) -> tuple[list[str], int]:
    async with open_site(sessions="all", plain="relayed", only=("cosmos",)) as site:
        assert site.parked is not None
        documents = [
            item["id"]
            for container in (site.data, site.leases, site.parked)
            async for item in container.read_all_items()
        ]
    subscriptions = outbox.servicebus.stats()["topics"][outbox.topic]["subscriptions"].values()
    return documents, sum(one["active"] for one in subscriptions)


async def test_verify_deletes_a_locked_message_once_its_lock_has_ended(
    verified: OutboxEmulators,
):
    subscriptions = [{"name": "all", "requires_session": True}, {"name": "relayed", "lock_s": 5}]
    verified.servicebus.delete(verified.topic)
    verified.servicebus.add_topic({"name": verified.topic, "subscriptions": subscriptions})
    async with open_site(sessions="all", plain="relayed") as site:
        await _write(site, site.name(), site.name())
        assert site.bus is not None
        async with site.bus.get_subscription_receiver(site.topic, site.plain) as receiver:
            assert 1 == len(await receiver.receive_messages(1, max_wait_time=60))
    assert ([], 0) == await _left(verified)


async def test_verify_deletes_only_the_documents_and_messages_of_its_own_run(verified: OutboxEmulators):
    async with open_site(sessions="all", plain="relayed") as site:
        await _write(site, "stranger", "1")
        await _write(site, site.name(), site.name())
        await _write(site, site.name(), site.name())

    assert (["stranger"] * 3, 2) == await _left(verified)


async def test_verify_deletes_the_documents_of_an_interrupted_run(verified: OutboxEmulators):
    async def run() -> None:
        async with open_site(sessions="all", plain="relayed") as site:
            await _write(site, site.name(), site.name())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await run()

    assert ([], 0) == await _left(verified)


async def test_the_error_of_a_deletion_is_raised_after_all_other_deletions_have_ended():
    """
    A deletion that still runs could open a receiver while the SDK's client is closed. This would raise an
    error, and the report would be lost.
    """
    ended = []

    async def fail() -> int:
        raise TimeoutError

    async def take_longer() -> int:
        for _ in range(3):
            await asyncio.sleep(0)
        ended.append("longer")
        return 1

    with pytest.raises(TimeoutError):
        await all_of(fail(), take_longer())

    assert ["longer"] == ended
    assert 2 == await all_of(take_longer(), take_longer())
