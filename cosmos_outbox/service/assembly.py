"""
Assembly: the composition root of the worker; a process of its own, or part of another program, runs what it yields.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path

from cosmos_outbox.adapters.cosmos.store import CosmosStore
from cosmos_outbox.changefeed import ChangeFeedProcessor, ProcessorOptions
from cosmos_outbox.changefeed.naming import others_on
from cosmos_outbox.documents import claims_to_be_an_event
from cosmos_outbox.errors import ConfigurationError, StoreError
from cosmos_outbox.parking import Parking
from cosmos_outbox.ports import ParkedStore
from cosmos_outbox.relay import Relay
from cosmos_outbox.relay.deletion import Deletion, Others
from cosmos_outbox.relay.spans import spans_of_sends
from cosmos_outbox.retries import RetryOptions, retry_reads
from cosmos_outbox.service.checks.doctor import check_start
from cosmos_outbox.service.connection import connected
from cosmos_outbox.service.exporters import opened_telemetry
from cosmos_outbox.service.health import HealthState, Identity, Snapshot
from cosmos_outbox.service.polling import MeteredFeed, poll
from cosmos_outbox.service.program import Program, Reporting, running
from cosmos_outbox.service.settings import Settings, load
from cosmos_outbox.service.status_page import page_of

_MOST_MEMORY = 1024 * 1024 * 1024

_logger = logging.getLogger("worker")


class Worker(Program[ChangeFeedProcessor, Snapshot]):
    """
    A worker that is put together: it reads the change feed and sends the events.
    """

    __slots__ = ()


@asynccontextmanager
async def running_worker(
    settings: Settings | None = None, *, serve_health: bool = False
) -> AsyncIterator[Worker]:
    """
    Run the worker inside another program for as long as the block lasts; its end drains the worker.

    Installs no signal handlers and configures no logs. A worker that fails ends; its snapshot is then unready and says why.

    Args:
        settings: Defaults to those of the environment.
        serve_health: listen on OUTBOX_HEALTH_PORT. Defaults to False.

    Raises:
        ConfigurationError: the settings, or what they name, cannot be used.
        OutboxError: at the end of the block, what ended the worker before.
    """
    async with running(assembled(settings or load(), serve_health=serve_health), logger=_logger) as worker:
        yield worker


@asynccontextmanager
async def assembled(settings: Settings, *, serve_health: bool = True) -> AsyncIterator[Worker]:
    """
    Open everything the settings name, yield the worker, close everything again.

    Raises:
        ConfigurationError: settings contradict each other; a container is missing or cannot be used; sent events are to be
            deleted that other processors may not have read; or the health server cannot listen.
    """
    if errors := settings.contradictions():
        raise ConfigurationError("\n".join(errors))
    async with AsyncExitStack() as stack:
        telemetry = stack.enter_context(
            opened_telemetry(
                topic=settings.topic,
                instance=settings.instance_name,
                environ=os.environ,
                sign_in=settings.signs_in,
            )
        )
        connection = await stack.enter_async_context(connected(settings))
        bus = await stack.enter_async_context(connection.service_bus())
        for found in await check_start(connection, topics=True):
            _logger.warning("finding.%s %s %s", found.check, found.message, found.fix)
        health = HealthState(
            Identity(
                instance=settings.instance_name,
                processor=settings.processor_name,
                container=f"{settings.cosmos_database}/{settings.cosmos_container}",
                topic=settings.topic,
            ),
            leases=lambda stalled_after: processor.status(stalled_after=stalled_after),
            stalled_after=timedelta(seconds=settings.stalled_seconds),
            poll_interval=timedelta(seconds=settings.poll_seconds),
            event_ttl=timedelta(seconds=settings.event_ttl_seconds),
        )
        reporting = Reporting(health, telemetry)
        notify = reporting.notify
        publisher = await stack.enter_async_context(
            connection.publisher(
                bus,
                lanes=settings.lanes,
                around=spans_of_sends(
                    telemetry.tracer_provider,
                    server_address=bus.fully_qualified_namespace.partition(":")[0],
                ),
                notify=notify,
            )
        )

        async def others() -> tuple[str, ...]:
            container = await connection.feed.describe()
            return await others_on(
                container, processor_name=settings.processor_name, leases=connection.leases
            )

        if settings.delete_after_publish:
            await _refuse_to_delete_what_others_read(others)
        parked = None
        if settings.parked_container is not None:
            parked = await retry_reads(connection.parked_store, RetryOptions())
        deletion = await stack.enter_async_context(
            Deletion(
                Relay(publisher, parking=parking_of(settings, parked), notify=notify).handle,
                CosmosStore(connection.data),  # deletes only, under the keys of the events
                delete=filter(None, map(str.strip, (settings.delete_after_publish or "").split(","))),
                others=others,
                notify=notify,
            )
        )
        processor = ChangeFeedProcessor(
            MeteredFeed(connection.feed, charged=telemetry.instruments.charged),
            connection.leases,
            deletion,
            processor_options(settings),
            hooks=(notify, deletion.hear),
        )
        await stack.enter_async_context(connection.fleet.membership(settings.instance_name))
        health_url = None
        if serve_health:
            health_url = await stack.enter_async_context(reporting.serving(settings, page_of))
        yield Worker(
            processor=processor,
            health=health,
            poll=partial(
                poll,
                settings.processor_name,
                feed=connection.feed,
                leases=connection.leases,
                parked=parked,
                fleet=connection.fleet,
                reach=partial(connection.reach_topics, bus),
                every=timedelta(seconds=settings.poll_seconds),
                health=health,
                observe=reporting.observe,
                notify=notify,
            ),
            metrics=reporting.exposition,
            health_url=health_url,
        )


async def _refuse_to_delete_what_others_read(others: Others) -> None:
    try:
        found = await retry_reads(others, RetryOptions())
    except StoreError:  # the processor waits until the store answers; until then nothing is deleted
        return
    if found:
        raise ConfigurationError(
            f"OUTBOX_DELETE_AFTER_PUBLISH: other processors have leases of the same container: {', '.join(found)}. Events "
            "would be deleted before these read them. Unset it; or delete the leases of a processor that is no longer in use."
        )


def parking_of(settings: Settings, store: ParkedStore | None) -> Parking | None:
    """
    Return the parking that the settings ask for; None without a store.
    """
    return None if store is None else Parking(store)


def processor_options(settings: Settings) -> ProcessorOptions:
    """
    Return the processor's options that the settings ask for.
    """
    return ProcessorOptions(
        processor_name=settings.processor_name,
        instance_name=settings.instance_name,
        start=settings.start,
        # The process takes about 90 MiB before the first read, and Python returns memory late.
        memory_bytes=memory_limit() * 2 // 5,
        wanted=claims_to_be_an_event,
        acquire_interval=timedelta(seconds=settings.acquire_seconds),
        renew_interval=timedelta(seconds=settings.renew_seconds),
        expiration=timedelta(seconds=settings.lease_expiration_seconds),
        grace_period=timedelta(seconds=settings.grace_seconds),
    )


def memory_limit(limit: Path = Path("/sys/fs/cgroup/memory.max")) -> int:
    """
    Return how many bytes the container may take, as Linux says, and 1 GiB at most; 512 MiB where it has no limit.
    """
    with suppress(OSError, ValueError):  # "max" is no number
        return min(int(limit.read_text()), _MOST_MEMORY)
    return _MOST_MEMORY // 2
