"""
Program: the base class of workers and consumers. It runs their work, reads Cosmos DB at intervals (polls), lets them finish when they are
asked to stop (drain), and reports health, metrics and causes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, Generic, NamedTuple, TypeVar

from cosmos_outbox.changefeed import ChangeFeedProcessor
from cosmos_outbox.errors import ConfigurationError
from cosmos_outbox.event_loop import end
from cosmos_outbox.ports import ParkedStore
from cosmos_outbox.records import guard, log_hook
from cosmos_outbox.retries import RetryOptions, retry_reads
from cosmos_outbox.sessions import SessionProcessor
from cosmos_outbox_worker.causes import Cause
from cosmos_outbox_worker.connection import Connection, open_connection
from cosmos_outbox_worker.doctor.check import SENDS_TELL, Findings, Severity
from cosmos_outbox_worker.doctor.programs import check_start
from cosmos_outbox_worker.http_server import serving_health
from cosmos_outbox_worker.settings import Settings
from cosmos_outbox_worker.shared_health import SnapshotT, Vitals
from cosmos_outbox_worker.telemetry import Telemetry, open_telemetry
from cosmos_outbox_worker.where import Search

ProcessorT = TypeVar("ProcessorT", ChangeFeedProcessor, SessionProcessor)
ProgramT = TypeVar("ProgramT", bound="Program[Any, Any]")

_GONE_SECONDS = 30.0  # a cause that ends and returns within this time is logged only once

_logger = logging.getLogger(__name__)


class Program(Generic[ProcessorT, SnapshotT]):
    """
    The base class of a worker and of a consumer process.

    `worker_assembly` or `consumer_assembly` creates an instance. It then sets `processor`, which does the work, and `poll`, which reads
    how much waits and which keys are parked.
    """

    processor: ProcessorT
    poll: Callable[[], Coroutine[None, None, None]]
    health_url: str | None = None  # None if no health server was asked for
    search: Search | None = None  # finds out what became of the events of a key, for the status page

    def __init__(self, health: Vitals[SnapshotT], telemetry: Telemetry) -> None:
        self.health, self._telemetry, self._named = health, telemetry, dict[object, float]()
        self.notify = guard(log_hook, health, telemetry)

    async def run(self) -> None:
        """
        Run the processor and the polls until `drain` is called.

        Raises:
            OutboxError: the processor or the polls failed.
        """
        polling = asyncio.create_task(self.poll())
        # The polls end only if they fail or are cancelled. If they do, stop the processor, so that it releases its leases or sessions.
        polling.add_done_callback(lambda _: self.processor.stop())
        try:
            await self.processor.run()
            if polling.done():
                polling.result()
        except BaseException as failure:
            self.health.note_end(failure)
            raise
        finally:
            await end({polling})
        self.health.note_end(None)

    def drain(self) -> None:
        """Ask the program to finish the work that it has begun, to release its leases or sessions, and to end. Return at once."""
        self.health.note_draining()
        self.processor.stop()

    def snapshot(self) -> SnapshotT:
        """Return the current health. Probes use its `unready` and `readiness()`."""
        return self.health.snapshot()

    def observe(self) -> None:
        """
        Update the gauges from the current health, and log new causes.

        While a cause lasts, it is logged once when it begins, and once more when a range or key makes no progress because of it.
        """
        self._telemetry.observed = seen = self.snapshot()
        now = asyncio.get_running_loop().time()
        self._named = {cause: at for cause, at in self._named.items() if now - at < _GONE_SECONDS}
        for one in seen.own():
            grave = one.stands or one.unready
            if (one.key, grave) not in self._named and not one.words["quiet"]:
                level = logging.ERROR if grave else logging.WARNING
                _logger.log(level, "cause.%s %s %s", one.kind, one, one.advice)
            self._named.update({(one.key, False): now, (one.key, grave): now})

    def metrics(self) -> tuple[bytes, str]:
        """Return the current Prometheus exposition, and its content type."""
        self.observe()
        return self._telemetry.exposition()

    def serving(self, address: str) -> AbstractAsyncContextManager[str]:
        """Serve the health and the metrics of this program at an address for as long as the block lasts. See `serving_health`."""
        return serving_health(self.snapshot, metrics=self.metrics, address=address, search=self.search)


class Parts(NamedTuple):
    """The open resources from which a worker or a consumer is built. Resources that are opened later are added to `stack`."""

    stack: AsyncExitStack
    telemetry: Telemetry
    connection: Connection
    parked: ParkedStore | None
    found: tuple[Cause, ...]


@asynccontextmanager
async def open_parts(settings: Settings, *, consumer: bool = False) -> AsyncIterator[Parts]:
    """
    Open the resources from which a worker or a consumer is built: telemetry, the connection and the parked store.

    Args:
        settings: the settings that name the resources.
        consumer: whether they are for a consumer. Defaults to False: they are for a worker.

    Raises:
        ConfigurationError: settings contradict each other, or a container is missing or cannot be used.
    """
    async with open_process(settings, consumer=consumer) as opened, AsyncExitStack() as stack:
        yield Parts(stack, *opened, *await look_at(opened[1], topics=not consumer))


@asynccontextmanager
async def open_process(
    settings: Settings, *, consumer: bool = False, container: str = ""
) -> AsyncIterator[tuple[Telemetry, Connection]]:
    """
    Open the telemetry and the connection. A process needs each of them only once, even if it works on several containers.

    Args:
        settings: the settings of the process.
        consumer: whether the process is a consumer. Defaults to False: it is a worker.
        container: the name of the first container, if the process works on several. Defaults to none.

    Raises:
        ConfigurationError: settings contradict each other.
    """
    if errors := settings.contradictions():
        raise ConfigurationError("\n".join(errors))
    with open_telemetry(
        consumer=consumer,
        instance=settings.instance_name,
        sign_in=settings.signs_in,
        container=container,
    ) as telemetry:
        async with open_connection(settings, answered=telemetry.count_charge) as connection:
            yield telemetry, connection


async def look_at(connection: Connection, *, topics: bool) -> tuple[ParkedStore | None, tuple[Cause, ...]]:
    """
    Open the parked store, and check the resources as `doctor` does. Log all findings.

    Return the parked store, or None if the settings name none, and a cause for each finding that is an error.

    Args:
        connection: the open connection.
        topics: whether to check the topics, too.
    """
    parked = None
    if connection.settings.parked_container is not None:
        parked = await retry_reads(connection.parked_store, RetryOptions())
    await check_start(connection, findings := Findings(), topics=topics)
    for found in findings.worst_first():
        _logger.warning("finding.%s %s %s", found.check, found.message, found.fix)
    wrong = [one for one in findings.worst_first() if one.severity is Severity.ERROR]
    # An error that is returned here stays in the health until the process ends. So leave out errors that a failed send also reports, such
    # as a missing topic: later sends show when such an error is over.
    silent = [one for one in wrong if one.check not in SENDS_TELL]
    return parked, tuple(Cause(kind="found-at-start", said=f"{one.message} {one.fix}") for one in silent)


@asynccontextmanager
async def running(
    assembled: AbstractAsyncContextManager[ProgramT], settings: Settings, *, serve_health: bool
) -> AsyncIterator[ProgramT]:
    """
    Run a worker or a consumer inside another program for as long as the block lasts. The end of the block drains it.

    Raises:
        OutboxError: the worker or consumer failed inside the block. The error is raised at the end of the block.
    """
    async with AsyncExitStack() as stack:
        program = await stack.enter_async_context(assembled)
        if serve_health:
            program.health_url = await stack.enter_async_context(program.serving(settings.health_port))
        task = asyncio.create_task(program.run())
        try:
            yield program
        except BaseException:
            program.drain()
            (ended_by,) = await asyncio.gather(task, return_exceptions=True)
            # The block raises an error already, so only log the error of the worker or consumer.
            if ended_by is not None:
                _logger.exception("%s.failed", program.health.name, exc_info=ended_by)
            raise
        program.drain()
        await task
