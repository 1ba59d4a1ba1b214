"""
Tests of the messages that a worker sends: their topics and format, and what it reports about the topics at its start.
"""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from functools import partial

import pytest
from azure.servicebus import ServiceBusReceiveMode
from azure.servicebus.aio import ServiceBusClient

from cosmos_outbox import NotFound, Outbox
from cosmos_outbox.relay.deletion import Deletion
from cosmos_outbox_emulators.servicebus.broker import Broker
from cosmos_outbox_emulators.servicebus.server import ServiceBusServer
from cosmos_outbox_worker import worker_assembly
from cosmos_outbox_worker.settings import load
from cosmos_outbox_worker.worker_assembly import assemble_worker
from examples.contacts.domain import Contact, Name
from examples.contacts.service import ContactsUnitOfWork, create
from tests.support.patience import HUNG_SECONDS
from tests.support.site import Site, opened_site

pytestmark = pytest.mark.looptime(False)

TOPICS = {
    "topics": [
        {"name": name, "dedup_window_s": 600, "subscriptions": [{"name": "all"}]}
        for name in ("events", "people")
    ]
}


async def received(bus: ServiceBusServer, topic: str):
    async with (
        ServiceBusClient.from_connection_string(bus.connection_string) as client,
        client.get_subscription_receiver(
            topic, "all", receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE
        ) as receiver,
    ):
        (message,) = await receiver.receive_messages(1, max_wait_time=60)
        return message


async def test_messages_are_sent_as_cloud_events_to_the_topics_of_their_routes():
    async with (
        ServiceBusServer(Broker.from_config(TOPICS), port=0) as bus,
        opened_site() as site,
    ):
        worker = await site.start_worker(
            OUTBOX_SERVICEBUS_CONNECTION_STRING=bus.connection_string,
            OUTBOX_ROUTES="entity:contact=people,events",
            OUTBOX_MESSAGE_FORMAT="cloudevents-structured",
        )
        await worker.said("Subscription 'all' of topic 'events' has no sessions")
        event_id, contact_id = await commit(site)
        for topic in ("people", "events"):
            message = await received(bus, topic)
            body = json.loads(str(message))
            assert "application/cloudevents+json; charset=utf-8" == message.content_type
            assert (event_id, contact_id) == (message.message_id, message.session_id)
            assert ("1.0", event_id, "/contacts/data", "ContactCreatedEvent", contact_id) == tuple(
                body[name] for name in ("specversion", "id", "source", "type", "subject")
            )
            assert event_id == body["data"]["id"]


async def test_sent_events_are_deleted_if_delete_after_publish_is_set(monkeypatch: pytest.MonkeyPatch):
    async with opened_site() as site:
        for name, value in (site.environment | {"OUTBOX_DELETE_AFTER_PUBLISH": "*"}).items():
            monkeypatch.setenv(name, value)
        # A worker keeps sent events for two minutes, which operators cannot change. The test keeps them for no time, and need not wait.
        monkeypatch.setattr(worker_assembly, "Deletion", partial(Deletion, keep=timedelta(0)))
        settings = load()
        event_id, contact_id = await commit(site)
        async with assemble_worker(settings) as worker:
            running = asyncio.create_task(worker.processor.run())
            await until_deleted(site, event_id, contact_id)
            worker.processor.stop()
            await running


async def commit(site: Site) -> tuple[str, str]:
    async with Outbox(site.store).unit_of_work(ContactsUnitOfWork) as uow:
        created = await create(uow, Contact(name=Name(first_name="Ada", last_name="Lovelace")))
    event = created.commit.events[0]
    return event.id, event.payload()["contactId"]


async def until_deleted(site: Site, document_id: str, partition_key: str) -> None:
    async with asyncio.timeout(HUNG_SECONDS):
        while True:
            try:
                await site.store.read(document_id, partition_key)
            except NotFound:
                return
            await asyncio.sleep(0.05)
