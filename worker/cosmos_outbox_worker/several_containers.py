"""
Several containers: a worker for each of them in one process; one that cannot begin is tried again, and stops no other.

They share the client of Cosmos DB, the memory for what is read ahead, the health server and the exposition. Each has its own leases, parked
keys, links to its topic and heartbeats, as it would have in a process of its own, and so the two may be mixed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from datetime import timedelta
from typing import Any

from cosmos_outbox.changefeed.read_ahead import Budget
from cosmos_outbox.errors import OutboxError
from cosmos_outbox.event_loop import watch_loop, within
from cosmos_outbox.records import LeasesBalanced, guard, log_hook
from cosmos_outbox_worker.connection import Connection
from cosmos_outbox_worker.program import Parts, Program, look_at, open_process, running
from cosmos_outbox_worker.settings import CONTAINER, Settings, load
from cosmos_outbox_worker.several_containers_health import Snapshots, merge_snapshots
from cosmos_outbox_worker.telemetry import Telemetry
from cosmos_outbox_worker.where import KeyReport, find_events
from cosmos_outbox_worker.worker_assembly import Worker, assemble_worker, build_worker, memory_budget
from cosmos_outbox_worker.worker_health import WorkerVitals

_FEW, _BLOCKED_LOOP_SECONDS = 4, 5.0

_logger = logging.getLogger("worker")


class Workers(Program[Any, Any]):
    """The workers of several containers. The process runs as long as one of them does."""

    def __init__(self, settings: Settings, connection: Connection, first: Telemetry) -> None:
        self._each = {one.cosmos_container: one for one in settings.each()}
        self._vitals = {name: WorkerVitals(one) for name, one in self._each.items()}
        super().__init__(next(iter(self._vitals.values())), first)
        # A poll for what waits costs about as much as twenty idle polls of the feed.
        for vitals in self._vitals.values():
            vitals.poll_interval *= min(max(1, len(self._each) / _FEW), _FEW)
        self._measured = dict.fromkeys(self._each, first)
        for name in list(self._each)[1:]:
            self._measured[name] = first.beside(container=name)
        self._connection, self._running, self.search = connection, dict[str, Worker](), self._search
        self._stopping = asyncio.Event()
        budget = Budget(memory_budget(), leases=self._leases_owned)
        self._shared = {"budget": budget, "blocked_loop_after": timedelta(days=1)}  # `run` watches the loop

    async def run(self) -> None:
        with watch_loop(self.notify, after_seconds=_BLOCKED_LOOP_SECONDS):
            async with asyncio.TaskGroup() as group:
                for one in self._each.values():
                    group.create_task(self._keep_running(one))

    def drain(self) -> None:
        self._stopping.set()
        for name, vitals in self._vitals.items():
            vitals.note_draining()
            if name in self._running:
                self._running[name].drain()

    def snapshot(self) -> Snapshots:
        return merge_snapshots({name: vitals.snapshot() for name, vitals in self._vitals.items()})

    def observe(self) -> None:
        for name, vitals in self._vitals.items():
            self._measured[name].observed = vitals.snapshot()

    async def _search(self, key: str, container: str | None) -> KeyReport:
        one = self._each.get(container or "") or next(iter(self._each.values()))
        return await find_events(self._connection.to(one), key)

    def _leases_owned(self) -> int:
        return sum(one.processor.leases_owned for one in self._running.values())

    async def _keep_running(self, settings: Settings) -> None:
        """Run the worker of a container until the drain. If it is refused, try again."""
        name = settings.cosmos_container
        CONTAINER.set(name)
        vitals, telemetry, seconds = self._vitals[name], self._measured[name], settings.stalled_seconds / 2
        while not self._stopping.is_set():
            try:
                async with AsyncExitStack() as stack:
                    connection = self._connection.to(settings)
                    looked = await within(0, look_at(connection, topics=True), asked=self._stopping)
                    parts = Parts(stack, telemetry, connection, *looked)
                    self._running[name] = worker = await build_worker(parts, vitals, **self._shared)
                    if self._stopping.is_set():
                        worker.drain()
                    await worker.run()
            except OutboxError as error:
                _logger.error("worker.refused %s, and is tried again in %g s: %s", name, seconds, error)  # noqa: TRY400 - it says what to do
                vitals.note_restart()
                failed = LeasesBalanced(owner=settings.instance_name, outcome="failed", error=error)
                guard(log_hook, vitals, telemetry)(failed)
                telemetry.observed = vitals.snapshot()
                with suppress(TimeoutError):
                    await within(seconds, self._stopping.wait())
            except TimeoutError:  # the drain began before the worker was open
                pass
            finally:
                self._running.pop(name, None)


@asynccontextmanager
async def assemble_workers(settings: Settings) -> AsyncIterator[Workers]:
    """
    Open what the workers of all containers share, yield the workers, and close all again.

    Raises:
        ConfigurationError: settings contradict each other. What a container lacks is tried again, and keeps the process unready.
    """
    first = settings.each()[0]
    opening = open_process(settings, container=first.cosmos_container)
    async with opening as (telemetry, connection):
        yield Workers(settings, connection, telemetry)


def assemble_for(settings: Settings) -> AbstractAsyncContextManager[Worker | Workers]:
    """Open the worker of one container, or the workers of several."""
    return assemble_worker(settings) if len(settings.containers) == 1 else assemble_workers(settings)


def running_workers(
    settings: Settings | None = None, *, serve_health: bool = False
) -> AbstractAsyncContextManager[Workers]:
    """
    Run the workers of several containers inside another program, as `running_worker` runs that of one.

    Their snapshot has that of each container in `of`, and is unready where one of them is.

    Args:
        settings: Defaults to those of the environment.
        serve_health: listen on OUTBOX_HEALTH_PORT. Defaults to False.

    Raises:
        ConfigurationError: the settings cannot be used, or the account refuses this program.
    """
    settings = settings or load()
    return running(assemble_workers(settings), settings, serve_health=serve_health)
