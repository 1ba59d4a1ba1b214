"""
Several containers: run one worker for each container in one process. If a worker fails, it is started again, and the other workers go on.

The workers share the Cosmos DB client, the memory for pages of events that are read in advance, the health server and the metrics. Each
worker has its own leases, parked keys, heartbeats and links to its topic, as if it ran alone in a process. So a container may have some
workers in such a process and some that run alone, and all of them share its leases.
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
    """The workers of several containers as one program, which ends when all of them have ended."""

    def __init__(self, settings: Settings, connection: Connection, first: Telemetry) -> None:
        self._each = {one.cosmos_container: one for one in settings.each()}
        self._vitals = {name: WorkerVitals(one) for name, one in self._each.items()}
        super().__init__(next(iter(self._vitals.values())), first)
        # With more than four containers, poll the number of waiting changes less often. One such poll costs as much as twenty polls of
        # a change feed without changes.
        for vitals in self._vitals.values():
            vitals.poll_interval *= min(max(1, len(self._each) / _FEW), _FEW)
        self._measured = dict.fromkeys(self._each, first)
        for name in list(self._each)[1:]:
            self._measured[name] = first.beside(container=name)
        self._connection, self._running, self.search = connection, dict[str, Worker](), self._search
        self._stopping = asyncio.Event()
        budget = Budget(memory_budget(), leases=self._leases_owned)
        # `run` watches the event loop for all workers. A limit of a day switches off the watch of each single worker.
        self._shared = {"budget": budget, "blocked_loop_after": timedelta(days=1)}

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
        """
        Run the worker of one container until the process is asked to stop. If the worker cannot start or fails, start it again after a
        pause.
        """
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
                _logger.error("worker.refused %s; the worker tries again in %g s: %s", name, seconds, error)  # noqa: TRY400 - it says what to do
                vitals.note_restart()
                failed = LeasesBalanced(owner=settings.instance_name, outcome="failed", error=error)
                guard(log_hook, vitals, telemetry)(failed)
                telemetry.observed = vitals.snapshot()
                with suppress(TimeoutError):
                    await within(seconds, self._stopping.wait())
            except TimeoutError:  # the process was asked to stop before this worker was built
                pass
            finally:
                self._running.pop(name, None)


@asynccontextmanager
async def assemble_workers(settings: Settings) -> AsyncIterator[Workers]:
    """
    Open the resources that the workers of all containers share, yield the workers as one program, and close the resources at the end.

    Raises:
        ConfigurationError: settings contradict each other. An error of a single container is not raised: its worker is started again
            and again, and the process is not ready until that succeeds.
    """
    first = settings.each()[0]
    opening = open_process(settings, container=first.cosmos_container)
    async with opening as (telemetry, connection):
        yield Workers(settings, connection, telemetry)


def assemble_for(settings: Settings) -> AbstractAsyncContextManager[Worker | Workers]:
    """Build a worker if the settings name one container, or one worker for each container if they name several."""
    return assemble_worker(settings) if len(settings.containers) == 1 else assemble_workers(settings)


def running_workers(
    settings: Settings | None = None, *, serve_health: bool = False
) -> AbstractAsyncContextManager[Workers]:
    """
    Run the workers of several containers inside another program, as `running_worker` does for one container.

    `snapshot()` of the result has the attribute `of`: the snapshot of each worker, by the name of its container. The process is unready
    if one of the workers is unready.

    Args:
        settings: the settings. Defaults to those of the environment.
        serve_health: whether to listen on OUTBOX_HEALTH_PORT. Defaults to False.

    Raises:
        ConfigurationError: the settings cannot be used, or the account refuses this program.
    """
    settings = settings or load()
    return running(assemble_workers(settings), settings, serve_health=serve_health)
