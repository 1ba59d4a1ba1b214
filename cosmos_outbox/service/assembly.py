"""
Bootstrap: the composition root; clients, adapters, relay and processor are put together here and nowhere else.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta

from azure.cosmos.aio import CosmosClient
from azure.identity.aio import DefaultAzureCredential

from cosmos_outbox.adapters.cosmos.client import account_host, has_several_write_regions, open_cosmos_client
from cosmos_outbox.adapters.cosmos.feed import CosmosChangeFeed
from cosmos_outbox.adapters.cosmos.leases import CosmosLeases
from cosmos_outbox.adapters.cosmos.parked import open_parked
from cosmos_outbox.adapters.cosmos.store import CosmosStore
from cosmos_outbox.adapters.servicebus.publisher import open_service_bus_client
from cosmos_outbox.changefeed import ChangeFeedProcessor, OnPositionAhead, ProcessorOptions
from cosmos_outbox.changefeed.naming import others_on
from cosmos_outbox.documents import claims_to_be_an_event
from cosmos_outbox.errors import ConfigurationError, StoreError
from cosmos_outbox.parking import Parking
from cosmos_outbox.ports import ParkedStore, StartFrom
from cosmos_outbox.records import Hook, Record, guarded, log_hook
from cosmos_outbox.relay import Relay
from cosmos_outbox.relay.retention import Others, Retention
from cosmos_outbox.relay.traced_publisher import TracedPublisher
from cosmos_outbox.relay.ttl import TtlGuard
from cosmos_outbox.retries import RetryOptions, retry_reads
from cosmos_outbox.service.exporters import opened_telemetry
from cosmos_outbox.service.health import Identity, Vitals
from cosmos_outbox.service.http import serving_health
from cosmos_outbox.service.polling import WatchedFeed, watch
from cosmos_outbox.service.publishing import opened_publisher, warn_of_misses
from cosmos_outbox.service.settings import Settings

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """
    The processor that relays, and what watches over it.
    """

    processor: ChangeFeedProcessor
    vitals: Vitals
    watch: Callable[[], Coroutine[None, None, None]]
    health_url: str


@asynccontextmanager
async def assembled(settings: Settings) -> AsyncIterator[Worker]:
    """
    Open everything the settings name, yield the worker, close everything again.

    Raises:
        ConfigurationError: a container is missing or cannot be used, sent events are to be deleted that other processors
            may not have read, or the health server cannot listen.
    """
    async with AsyncExitStack() as stack:
        telemetry = stack.enter_context(
            opened_telemetry(
                topic=settings.topic,
                instance=settings.instance_name,
                environ=os.environ,
                sign_in=settings.signs_in,
            )
        )
        credential = None
        if settings.signs_in:
            credential = await stack.enter_async_context(DefaultAzureCredential())
        cosmos_secret, bus_secret = settings.cosmos_connection_string, settings.servicebus_connection_string
        cosmos = await stack.enter_async_context(
            open_cosmos_client(
                connection_string=cosmos_secret.get_secret_value() if cosmos_secret else None,
                endpoint=settings.cosmos_endpoint,
                credential=credential,
            )
        )
        bus = await stack.enter_async_context(
            open_service_bus_client(
                connection_string=bus_secret.get_secret_value() if bus_secret else None,
                namespace=settings.servicebus_namespace,
                credential=credential,
            )
        )
        if has_several_write_regions(cosmos):
            _logger.warning(
                "account.several-write-regions order, leases and the batch of entity and event hold inside one region only; "
                "have all programs that commit events write to one region"
            )
        database = cosmos.get_database_client(settings.cosmos_database)
        await warn_of_misses(settings, credential)
        publisher = await stack.enter_async_context(
            opened_publisher(
                settings,
                bus,
                traced=lambda topic_publisher, topic: TracedPublisher(
                    topic_publisher,
                    topic=topic,
                    tracer_provider=telemetry.tracer_provider,
                    server_address=bus.fully_qualified_namespace.partition(":")[0],
                ),
            )
        )
        feed = CosmosChangeFeed(
            database.get_container_client(settings.cosmos_container), account_host=account_host(cosmos)
        )
        leases = CosmosLeases(database.get_container_client(settings.lease_container))
        vitals = Vitals(
            Identity(
                instance=settings.instance_name,
                processor=settings.processor_name,
                container=f"{settings.cosmos_database}/{settings.cosmos_container}",
                topic=settings.topic,
            ),
            leases=lambda stalled_after: processor.status(stalled_after=stalled_after),
            stalled_after=timedelta(seconds=settings.stalled_seconds),
            look_every=timedelta(seconds=settings.lag_seconds),
            event_ttl=timedelta(seconds=settings.event_ttl_seconds),
        )

        hooks = [guarded(log_hook), guarded(vitals), guarded(telemetry.instruments)]

        def notify(record: Record) -> None:
            for hook in hooks:
                hook(record)

        def observe() -> None:
            telemetry.instruments.observed = vitals.snapshot()

        def exposition() -> tuple[bytes, str]:
            observe()
            return telemetry.exposition()

        parked = await _parked(settings, cosmos)
        relay = Relay(publisher, parking=_parking(settings, parked), notify=notify)

        async def others() -> tuple[str, ...]:
            container = await feed.describe()
            return await others_on(container, processor_name=settings.processor_name, leases=leases)

        if settings.delete_after_publish:
            await _refuse_to_delete_what_others_read(others)
        retention = await stack.enter_async_context(_retention(settings, relay, cosmos, others, notify))
        guard = TtlGuard(
            retention, tolerated_outage=timedelta(seconds=settings.tolerated_outage_seconds), notify=notify
        )
        processor = ChangeFeedProcessor(
            WatchedFeed(feed, charged=telemetry.instruments.charged),
            leases,
            guard,
            processor_options(settings),
            hooks=(notify, retention.hear),
        )
        health_url = await stack.enter_async_context(
            serving_health(vitals, metrics=exposition, host=settings.health_host, port=settings.health_port)
        )
        yield Worker(
            processor=processor,
            vitals=vitals,
            watch=lambda: watch(
                settings.processor_name,
                feed=feed,
                leases=leases,
                parked=parked,
                every=timedelta(seconds=settings.lag_seconds),
                vitals=vitals,
                observe=observe,
                notify=notify,
            ),
            health_url=health_url,
        )


async def _refuse_to_delete_what_others_read(others: Others) -> None:
    try:
        found = await retry_reads(others, RetryOptions())
    except StoreError:  # the processor waits out what may pass, and retention deletes nothing until then
        return
    if found:
        raise ConfigurationError(
            f"OUTBOX_DELETE_AFTER_PUBLISH: other processors have leases of the same container: {', '.join(found)}. What this "
            "one has sent would be deleted before they read it. Unset it; or, where one is no longer in use, delete its "
            "leases."
        )


def _retention(
    settings: Settings, relay: Relay, cosmos: CosmosClient, others: Others, notify: Hook
) -> Retention:
    database = cosmos.get_database_client(settings.cosmos_database)
    return Retention(
        relay,
        CosmosStore(database.get_container_client(settings.cosmos_container)),
        delete=filter(None, map(str.strip, (settings.delete_after_publish or "").split(","))),
        others=others,
        keep=timedelta(seconds=settings.delete_keep_seconds),
        notify=notify,
    )


async def _parked(settings: Settings, cosmos: CosmosClient) -> ParkedStore | None:
    container = settings.parked_container
    if container is None:
        return None
    return await retry_reads(lambda: open_parked(cosmos, settings.cosmos_database, container), RetryOptions())


def _parking(settings: Settings, store: ParkedStore | None) -> Parking | None:
    if store is None:
        return None
    return Parking(store, max_keys=settings.parked_max_keys, max_events=settings.parked_max_events)


def processor_options(settings: Settings) -> ProcessorOptions:
    """
    Return the processor's options that the settings ask for.
    """
    return ProcessorOptions(
        processor_name=settings.processor_name,
        instance_name=settings.instance_name,
        start=settings.start if isinstance(settings.start, datetime) else StartFrom(settings.start),
        max_items=settings.page_size,
        on_position_ahead=OnPositionAhead(settings.on_position_ahead),
        # The process takes about 90 MiB before it has read anything; of the rest, what Python is done with stays for a while.
        memory_bytes=settings.memory_mb * 1024 * 1024 * 2 // 5,
        wanted=claims_to_be_an_event,
        acquire_interval=timedelta(seconds=settings.lease_acquire_seconds),
        renew_interval=timedelta(seconds=settings.lease_renew_seconds),
        expiration=timedelta(seconds=settings.lease_expiration_seconds),
        max_poll_interval=timedelta(seconds=settings.max_poll_seconds),
        grace_period=timedelta(seconds=settings.grace_seconds),
    )
