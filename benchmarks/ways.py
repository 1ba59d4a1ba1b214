"""
Three ways to send the events of a container to a topic: our relay, a bare loop over the SDKs of Cosmos DB and Service Bus, and the design
of Microsoft's .NET sample.

Each way reports the number of messages in a batch as soon as the topic has accepted the batch.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from azure.cosmos.aio import ContainerProxy
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import MessageSizeExceededError
from pydantic import SecretStr

from benchmarks.emulated import DATABASE, PARKED
from cosmos_outbox.adapters.cosmos.client import account_of, open_cosmos_client
from cosmos_outbox.adapters.cosmos.feed import CosmosChangeFeed
from cosmos_outbox.adapters.cosmos.leases import CosmosLeases
from cosmos_outbox.adapters.cosmos.parked import open_parked
from cosmos_outbox.adapters.cosmos.store import CosmosStore
from cosmos_outbox.adapters.servicebus.publisher import ServiceBusPublisher, open_service_bus_client
from cosmos_outbox.changefeed import ChangeFeedProcessor, estimate_lag
from cosmos_outbox.parking import Parking, Scope
from cosmos_outbox.ports import ChangeBatch, ChangeHandler
from cosmos_outbox.records import MessagesPublished, Record, log_hook
from cosmos_outbox.relay import Relay
from cosmos_outbox.relay.deletion import Deletion
from cosmos_outbox.relay.topics_and_refusals import Topics
from cosmos_outbox_worker.backlog_polls import poll
from cosmos_outbox_worker.heartbeats import Fleet
from cosmos_outbox_worker.settings import Settings
from cosmos_outbox_worker.telemetry import open_telemetry
from cosmos_outbox_worker.worker_assembly import processor_options
from cosmos_outbox_worker.worker_health import WorkerVitals

PAGE = 100
RELAY_PAGE = 1000  # how many documents a worker reads in a page by default
SAMPLE_PAGE = 25
POLL_SECONDS = 0.01  # the bare loop's pause if nothing is new; the relay's shortest pause is equal
SAMPLE_POLL_SECONDS = 3.0
PROCESSOR = "bench"

Accepted = Callable[[int], None]


async def relay(
    cosmos: str,
    servicebus: str,
    *,
    data: str,
    leases: str,
    topic: str,
    accepted: Accepted,
    stop: asyncio.Event,
    gate: asyncio.Event | None = None,
    name: str = "worker",
    page: int = PAGE,
) -> None:
    """
    Run a relay until the event `stop` is set. If an event `gate` is given, the relay sends nothing before the gate is set.

    The relay is built as `worker_assembly` builds it. So its cost includes logs, health, metrics, spans, the parked store, deletion, and
    polls of the lag and of parked keys.
    """

    def count(record: Record) -> None:
        if isinstance(record, MessagesPublished):
            accepted(record.messages)

    def notify(record: Record) -> None:
        for hook in (log_hook, health, telemetry, count):
            hook(record)

    async with AsyncExitStack() as stack:
        telemetry = stack.enter_context(open_telemetry(instance=name))
        client = await stack.enter_async_context(
            open_cosmos_client(connection_string=cosmos, answered=telemetry.count_charge)
        )
        bus = await stack.enter_async_context(open_service_bus_client(connection_string=servicebus))
        publisher = Topics(
            {topic: await stack.enter_async_context(ServiceBusPublisher(bus, topic))},
            around=telemetry.around_sends("servicebus", None, [topic]),
        )
        database = client.get_database_client(DATABASE)
        container = database.get_container_client(data)
        feed = CosmosChangeFeed(
            container, account_host=account_of(client).host, polls=account_of(client).polls()
        )
        lease_store = CosmosLeases(database.get_container_client(leases))
        parked = await open_parked(client, DATABASE, PARKED)
        settings = Settings(
            cosmos_connection_string=SecretStr(cosmos),
            cosmos_database=DATABASE,
            cosmos_container=data,
            topic=topic,
            processor_name=PROCESSOR,
            instance_name=name,
        )
        health = WorkerVitals(settings)
        relaying = Relay(publisher, parking=Parking(parked), notify=notify)
        deletion = await stack.enter_async_context(
            Deletion(relaying.handle, CosmosStore(container), delete=(), others=_no_others, notify=notify)
        )
        processor = health.processor = ChangeFeedProcessor(
            feed,
            lease_store,
            _gated(deletion, gate),
            replace(
                processor_options(settings),
                max_items=page,
                acquire_interval=timedelta(seconds=0.5),
                # Each page waits in the handler until the gate is set. If another worker asks for the lease
                # meanwhile, this worker gives up the page after the grace period, which is therefore short.
                grace_period=timedelta(seconds=0.2 if gate else 20),
            ),
            hooks=(notify, deletion.hear),
        )

        async def scope() -> Scope:
            return Scope(processor=PROCESSOR, container=(await feed.describe()).container_rid)

        running = asyncio.create_task(processor.run())
        stopping = asyncio.create_task(stop.wait())
        program: Any = SimpleNamespace(
            health=health,
            observe=lambda: setattr(telemetry, "observed", health.snapshot()),
            notify=notify,
        )
        outbox: Any = SimpleNamespace(
            settings=settings,
            lag=lambda expiration: estimate_lag(
                PROCESSOR, feed=feed, leases=lease_store, expiration=expiration
            ),
            scope=scope,
            find_unserved_processors=_left_behind,
            fleet=Fleet(lease_store, processor=PROCESSOR, container="db/data"),
        )
        unchecked: Any = SimpleNamespace(checks={})
        watching = asyncio.create_task(poll(program, health, outbox, unchecked, parked))
        await asyncio.wait({running, stopping, watching}, return_when=asyncio.FIRST_COMPLETED)
        processor.stop()
        for other in (stopping, watching):
            other.cancel()
        await running
        if not watching.cancelled() and watching.done():
            watching.result()  # the polls never end by themselves, so raise the error that ended them


async def _left_behind(expiration: timedelta) -> dict[str, int]:
    """Stand in for the worker's `Connection.find_unserved_processors`, as if no other processor had waiting changes."""
    return {}


async def _no_others() -> tuple[str, ...]:
    """Stand in for the worker's `Connection.others`, as if no other processor read the container."""
    return ()


def _gated(handler: ChangeHandler, gate: asyncio.Event | None) -> ChangeHandler:
    if gate is None:
        return handler

    async def handle(batch: ChangeBatch) -> None:
        await gate.wait()
        await handler(batch)

    return handle


async def bare_loop(
    container: ContainerProxy, bus: ServiceBusClient, topic: str, *, wait_for_full: bool = True
) -> AsyncGenerator[int, None]:
    """
    Read pages of the change feed and send full batches, with the SDKs alone: without leases, checkpoints, ordered lanes or retries.

    Args:
        wait_for_full: whether to wait until a batch is full. False means to send after each page, for a short latency. Defaults to
            True.
    """
    async with bus.get_topic_sender(topic) as sender:
        batch = await sender.create_message_batch()
        held = 0
        async for documents in _pages(container, PAGE):
            for document in documents:
                message = _message(document)
                try:
                    batch.add_message(message)
                except MessageSizeExceededError:
                    await sender.send_messages(batch)
                    yield held
                    batch, held = await sender.create_message_batch(), 0
                    batch.add_message(message)
                held += 1
            if held and (not wait_for_full or not documents):
                await sender.send_messages(batch)
                yield held
                batch, held = await sender.create_message_batch(), 0
            if not documents:
                await asyncio.sleep(POLL_SECONDS)


async def sample_design(
    container: ContainerProxy, leases: ContainerProxy, bus: ServiceBusClient, topic: str
) -> AsyncGenerator[int, None]:
    """
    Send events as Microsoft's .NET sample does: read pages of 25 documents, send one batch for each partition key and wait for its
    acknowledgement, write a checkpoint after each page, and pause for 3 s if there is nothing new.
    """
    lease = await leases.create_item({"id": "sample", "ContinuationToken": None})
    async with bus.get_topic_sender(topic) as sender:
        async for documents in _pages(container, SAMPLE_PAGE):
            by_key = itertools.groupby(
                sorted(documents, key=lambda document: document["partitionKey"]),
                key=lambda document: document["partitionKey"],
            )
            for _, events in by_key:
                batch = await sender.create_message_batch()
                held = 0
                for event in events:
                    batch.add_message(_message(event))
                    held += 1
                await sender.send_messages(batch)
                yield held
            if documents:
                lease = await leases.replace_item(
                    "sample", {**lease, "ContinuationToken": str(time.time_ns())}
                )
            else:
                await asyncio.sleep(SAMPLE_POLL_SECONDS)


async def _pages(container: ContainerProxy, size: int) -> AsyncGenerator[list[dict[str, Any]], None]:
    where: dict[str, Any] = {"start_time": "Beginning"}
    while True:
        pages = container.query_items_change_feed(**where, max_item_count=size).by_page()
        async for page in pages:
            documents = [document async for document in page]
            if documents:
                yield documents
        where = {"continuation": container.client_connection.last_response_headers["etag"]}
        yield []


def _message(document: dict[str, Any]) -> ServiceBusMessage:
    meta = document["meta"]
    return ServiceBusMessage(
        json.dumps(document["data"], separators=(",", ":")),
        message_id=document["id"],
        session_id=document["partitionKey"],
        subject=document["data"]["action"],
        content_type="application/json",
        application_properties={
            "entity-type": meta["entityType"],
            "entity-id": meta["entityId"],
            "entity-version": meta["entityVersion"],
            "commit-id": meta["commitId"],
            "sequence": meta["sequence"],
            "schema-version": meta["schemaVersion"],
            "correlation-id": meta["correlationId"],
        },
    )
