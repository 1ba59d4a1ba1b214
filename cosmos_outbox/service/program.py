"""
Program: what a worker and a consumer have in common: work that can be drained, with its health, metrics and log beside it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from cosmos_outbox.records import Record, guarded, log_hook
from cosmos_outbox.service.exporters import OpenedTelemetry
from cosmos_outbox.service.health_server import serving_health
from cosmos_outbox.service.lifecycle import run_beside
from cosmos_outbox.service.settings import Settings
from cosmos_outbox.service.vitals import State, Vitals

SnapshotT_co = TypeVar("SnapshotT_co", bound=State, covariant=True)
ProcessorT_co = TypeVar("ProcessorT_co", bound="Processor", covariant=True)
ProgramT = TypeVar("ProgramT", bound="Program[Any, Any]")


class Processor(Protocol):
    """
    What does the work.
    """

    async def run(self) -> None: ...

    def stop(self) -> None: ...


class Health(Protocol[SnapshotT_co]):
    """
    What a program knows of itself; a hook.
    """

    @property
    def vitals(self) -> Vitals: ...

    def __call__(self, record: Record) -> None: ...

    def snapshot(self) -> SnapshotT_co: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Program(Generic[ProcessorT_co, SnapshotT_co]):
    """
    A program that is put together.

    metrics: returns the Prometheus exposition and its content type.
    health_url: of the health server; None if none was asked for.
    """

    processor: ProcessorT_co
    health: Health[SnapshotT_co]
    poll: Callable[[], Coroutine[None, None, None]]
    metrics: Callable[[], tuple[bytes, str]]
    health_url: str | None

    async def run(self) -> None:
        """
        Work until `drain` is called.

        Raises:
            OutboxError: what ended the program before.
        """
        error: BaseException | None = None
        try:
            await run_beside(self.processor.run(), self.poll())
        except BaseException as failure:
            error = failure
            raise
        finally:
            self.health.vitals.ended(error)

    def drain(self) -> None:
        """
        Ask it to finish what is at hand, release what it holds and end.
        """
        self.health.vitals.draining()
        self.processor.stop()

    def snapshot(self) -> SnapshotT_co:
        """
        Return its health now; `unready` and `readiness()` are for probes.
        """
        return self.health.snapshot()


class Reporting(Generic[SnapshotT_co]):
    """
    Where a program reports: its log, its health and its telemetry; `notify` gives a record to all three.
    """

    def __init__(self, health: Health[SnapshotT_co], telemetry: OpenedTelemetry) -> None:
        self._health, self._telemetry = health, telemetry
        self.notify = guarded(log_hook, health, telemetry.instruments)

    def observe(self) -> None:
        """
        Have the gauges show the health as it is now.
        """
        self._telemetry.instruments.observed = self._health.snapshot()

    def exposition(self) -> tuple[bytes, str]:
        """
        Return the metrics as they are now, and their content type.
        """
        self.observe()
        return self._telemetry.exposition()

    def serving(
        self, settings: Settings, page_of: Callable[[SnapshotT_co], str]
    ) -> AbstractAsyncContextManager[str]:
        """
        Serve health and metrics; see `serving_health`.
        """
        return serving_health(
            self._health.snapshot,
            page_of=page_of,
            metrics=self.exposition,
            address=settings.health_port,
        )


@asynccontextmanager
async def running(
    assembled: AbstractAsyncContextManager[ProgramT], *, logger: logging.Logger
) -> AsyncIterator[ProgramT]:
    """
    Run a program inside another one for as long as the block lasts; its end drains it.

    Raises:
        OutboxError: at the end of the block, what ended the program before.
    """
    async with assembled as program:
        task = asyncio.create_task(program.run())
        try:
            yield program
        except BaseException:
            program.drain()
            (ended_by,) = await asyncio.gather(task, return_exceptions=True)
            if ended_by is not None:  # the error of the block matters more
                logger.exception("%s.failed", logger.name, exc_info=ended_by)
            raise
        program.drain()
        await task
