"""
Program: what a worker and a consumer have in common: work that can be drained, with its health, metrics and log beside it.
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

_GONE_SECONDS = 30.0  # a cause that comes back sooner is not logged again

_logger = logging.getLogger(__name__)


class Program(Generic[ProcessorT, SnapshotT]):
    """A worker or a consumer as a program. Its assembly sets the polls, and the processor that reports to it."""

    processor: ProcessorT
    poll: Callable[[], Coroutine[None, None, None]]
    health_url: str | None = None  # None if no health server was asked for
    search: Search | None = None  # finds out what became of a key; the assembly sets it

    def __init__(self, health: Vitals[SnapshotT], telemetry: Telemetry) -> None:
        self.health, self._telemetry, self._named = health, telemetry, dict[object, float]()
        self.notify = guard(log_hook, health, telemetry)

    async def run(self) -> None:
        """
        Work until `drain` is called, and poll all the while.

        Raises:
            OutboxError: what ended the program before.
        """
        polling = asyncio.create_task(self.poll())
        # The program polls until it is cancelled. If the work fails, the process ends, and others get its leases or sessions at once.
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
        """Ask the program to finish its work at hand, to release all that it holds, and to end."""
        self.health.note_draining()
        self.processor.stop()

    def snapshot(self) -> SnapshotT:
        """Return the health of now; `unready` and `readiness()` are for probes."""
        return self.health.snapshot()

    def observe(self) -> None:
        """Have the gauges show the health of now. Log each cause once for as long as it lasts, and once more if work stands still by then."""
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
        """Return the Prometheus exposition of now, and its content type."""
        self.observe()
        return self._telemetry.exposition()

    def serving(self, address: str) -> AbstractAsyncContextManager[str]:
        """Serve health and metrics; see `serving_health`."""
        return serving_health(self.snapshot, metrics=self.metrics, address=address, search=self.search)


class Parts(NamedTuple):
    """The open parts that every program needs. `stack` closes these, and parts that are opened later."""

    stack: AsyncExitStack
    telemetry: Telemetry
    connection: Connection
    parked: ParkedStore | None
    found: tuple[Cause, ...]


@asynccontextmanager
async def open_parts(settings: Settings, *, consumer: bool = False) -> AsyncIterator[Parts]:
    """
    Open the parts that every program needs, a worker and a `consumer` alike.

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
    Open the parts that a process has only once, however many containers it works on. `container` is the first of them.

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
    """Return the parked store, if one is set, and the errors in the resources. Warnings are logged, too."""
    parked = None
    if connection.settings.parked_container is not None:
        parked = await retry_reads(connection.parked_store, RetryOptions())
    await check_start(connection, findings := Findings(), topics=topics)
    for found in findings.worst_first():
        _logger.warning("finding.%s %s %s", found.check, found.message, found.fix)
    wrong = [one for one in findings.worst_first() if one.severity is Severity.ERROR]
    # Whether the topic exists and accepts messages, the sends show, also when it changes.
    silent = [one for one in wrong if one.check not in SENDS_TELL]
    return parked, tuple(Cause(kind="found-at-start", said=f"{one.message} {one.fix}") for one in silent)


@asynccontextmanager
async def running(
    assembled: AbstractAsyncContextManager[ProgramT], settings: Settings, *, serve_health: bool
) -> AsyncIterator[ProgramT]:
    """
    Run a program inside another one. The end of the block drains it.

    Raises:
        OutboxError: at the end of the block, what ended the program before.
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
            if ended_by is not None:  # the error of the block matters more
                _logger.exception("%s.failed", program.health.name, exc_info=ended_by)
            raise
        program.drain()
        await task
