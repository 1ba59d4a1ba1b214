"""
Worker assembly: build a running worker from its settings, for the command `worker` or for another program that embeds it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from cosmos_outbox.adapters.cosmos.store import CosmosStore
from cosmos_outbox.changefeed import ChangeFeedProcessor, ProcessorOptions
from cosmos_outbox.errors import ConfigurationError, StoreError
from cosmos_outbox.parking import Parking
from cosmos_outbox.parking.seen_leases_note import has_run
from cosmos_outbox.relay import Relay
from cosmos_outbox.relay.deletion import Deletion
from cosmos_outbox.retries import RetryOptions, retry_reads
from cosmos_outbox.stored_documents import claims_to_be_an_event
from cosmos_outbox_worker.backlog_polls import poll
from cosmos_outbox_worker.heartbeats import Phase
from cosmos_outbox_worker.program import Parts, Program, open_parts, running
from cosmos_outbox_worker.settings import Settings, load
from cosmos_outbox_worker.where import find_events
from cosmos_outbox_worker.worker_health import Snapshot, WorkerVitals

_MOST_MEMORY = 1024 * 1024 * 1024


class Worker(Program[ChangeFeedProcessor, Snapshot]):
    """A worker with all its parts: it reads the change feed and sends the events."""


def running_worker(
    settings: Settings | None = None, *, serve_health: bool = False
) -> AbstractAsyncContextManager[Worker]:
    """
    Run the worker inside another program for as long as the block lasts. The end of the block drains the worker.

    No signal handlers are installed, and logging is not configured. If the worker fails, it ends, and `snapshot()` gives the reason as
    `unready`.

    Args:
        settings: the settings. Defaults to those of the environment.
        serve_health: whether to listen on OUTBOX_HEALTH_PORT. Defaults to False.

    Raises:
        ConfigurationError: a setting, or a resource that a setting names, cannot be used.
        OutboxError: the worker failed inside the block. The error is raised at the end of the block.
    """
    settings = settings or load()
    if len(settings.containers) > 1:
        said = "OUTBOX_COSMOS_CONTAINER: names several containers; `running_workers` runs them"
        raise ConfigurationError(said)
    return running(assemble_worker(settings), settings, serve_health=serve_health)


@asynccontextmanager
async def assemble_worker(settings: Settings) -> AsyncIterator[Worker]:
    """
    Open the resources that the settings name, yield a worker that is ready to run, and close the resources at the end.

    Raises:
        ConfigurationError: settings contradict each other, or a container is missing or cannot be used. This is also raised if
            OUTBOX_DELETE_AFTER_PUBLISH is set and other processors have leases: events would be deleted before they read them.
    """
    async with open_parts(settings) as parts:
        yield await build_worker(parts, WorkerVitals(settings))


async def build_worker(parts: Parts, health: WorkerVitals, **shared: Any) -> Worker:
    """
    Build a worker from open resources.

    Args:
        parts: the open resources.
        health: collects the health of the worker.
        shared: options of the change feed processor that this worker shares with the workers of other containers.

    Raises:
        ConfigurationError: OUTBOX_DELETE_AFTER_PUBLISH is set and other processors have leases, or the topics cannot be opened.
    """
    stack, telemetry, connection, parked, health.found_at_start = parts
    settings = connection.settings
    worker, health.ceiling = Worker(health, telemetry), connection.ceiling
    notify = worker.notify
    publisher = await stack.enter_async_context(
        connection.publisher(lanes=settings.lanes, around=telemetry.around_sends, notify=notify)
    )

    async def earlier_life() -> str | None:
        if any(one.phase != Phase.STARTING for one in await connection.fleet.heartbeats()):
            return "a worker of this processor showed life lately"
        if parked is not None and await has_run(parked, await connection.scope()):
            return "the parked container notes that this processor had leases"
        return None

    # If Cosmos DB does not answer this check, start all the same: the worker then waits for Cosmos DB, and deletes nothing meanwhile.
    with suppress(StoreError):
        if settings.delete_after_publish and (found := await retry_reads(connection.others, RetryOptions())):
            raise ConfigurationError(
                f"OUTBOX_DELETE_AFTER_PUBLISH: other processors have leases of the same container: {', '.join(found)}. Events "
                "would be deleted before these processors read them. Unset it, or delete the leases of a processor that is no longer in use."
            )
    parking = None if parked is None else Parking(parked)
    deletion = await stack.enter_async_context(
        Deletion(
            Relay(publisher, parking=parking, notify=notify).handle,
            CosmosStore(connection.data),  # the processor uses it only to delete events that were sent
            delete=filter(None, map(str.strip, (settings.delete_after_publish or "").split(","))),
            others=connection.others,
            notify=notify,
        )
    )
    worker.processor = health.processor = ChangeFeedProcessor(
        connection.feed,
        connection.leases,
        deletion,
        replace(processor_options(settings), earlier_life=earlier_life, **shared),
        hooks=(notify, deletion.hear),
    )
    await stack.enter_async_context(connection.fleet.membership(settings.instance_name))
    worker.search = lambda key, _: find_events(connection.to(settings), key)
    worker.poll = partial(poll, worker, health, connection, publisher, parked)
    return worker


def processor_options(settings: Settings) -> ProcessorOptions:
    """Return the options of the change feed processor that follow from the settings of a worker."""
    # If OUTBOX_SEND_RATE limits the messages a second, read at most as many events at once as can be sent in a second. A worker that is
    # asked to stop can then finish its page. The events of an unfinished page would be sent again.
    most = 1000 if settings.send_rate is None else min(1000, max(1, int(settings.send_rate)))
    return ProcessorOptions(
        max_items=most,
        processor_name=settings.processor_name,
        instance_name=settings.instance_name,
        start=settings.start,
        memory_bytes=memory_budget(),
        wanted=claims_to_be_an_event,
        acquire_interval=timedelta(seconds=settings.acquire_seconds),
        # The defaults of the .NET SDK have the same ratio: 17 s to renew a lease that expires after 60 s.
        renew_interval=timedelta(seconds=settings.lease_expiration_seconds * 17 / 60),
        expiration=timedelta(seconds=settings.lease_expiration_seconds),
        recent_poll_interval=timedelta(seconds=settings.recent_poll_seconds),
        grace_period=timedelta(seconds=settings.grace_seconds),
    )


def memory_budget() -> int:
    """Return how many bytes of memory a worker may use for pages of events that it reads before it sends them."""
    # Use two fifths of the memory limit, because the process needs about 90 MiB before its first read, and Python frees memory late.
    return memory_limit() * 2 // 5


def memory_limit(limit: Path = Path("/sys/fs/cgroup/memory.max")) -> int:
    """Return the memory limit of the Linux container (cgroup) in bytes, but at most 1 GiB. Return 512 MiB if there is no limit."""
    # The file `memory.max` exists only on Linux. If the container has no memory limit, the file contains the text "max".
    with suppress(OSError, ValueError):
        return min(int(limit.read_text()), _MOST_MEMORY)
    return _MOST_MEMORY // 2
