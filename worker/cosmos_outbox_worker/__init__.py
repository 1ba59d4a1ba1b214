"""
The worker: a process that relays events, or has a consumer handle messages; alone, or inside another program.

Read in this order: `main` (a process from its settings to its exit code), `settings`, `worker_assembly` (a worker put together) and
`several_containers` (several workers in one process), `consumer_assembly` (a consumer), `program` (what both have in common), `connection`, `backlog_polls`, `shared_health` (what both know of
themselves), `worker_health` (with `heartbeats` and `fleet_differences`), `consumer_health`, `http_server`, `status_page`, `metric_series`, `telemetry` and `version`; then `doctor` (what the
resources should be) and `cli` (the command `cosmos-outbox`).

    from cosmos_outbox_worker import running_worker

    async with running_worker() as worker:      # settings from the environment; no signal handlers, no log configuration
        worker.snapshot().readiness()           # what /readyz answers
        worker.metrics()                        # the Prometheus exposition and its content type

    async with running_consumer(consumer) as running:       # the same for a consumer
        running.snapshot().readiness()
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cosmos_outbox_worker.consumer_assembly import RunningConsumer, running_consumer
    from cosmos_outbox_worker.consumer_health import ConsumerSnapshot
    from cosmos_outbox_worker.consumer_settings import ConsumerSettings, load_consumer
    from cosmos_outbox_worker.settings import Settings, load
    from cosmos_outbox_worker.several_containers import Workers, running_workers
    from cosmos_outbox_worker.several_containers_health import Snapshots
    from cosmos_outbox_worker.worker_assembly import Worker, running_worker
    from cosmos_outbox_worker.worker_health import Snapshot

__all__ = [
    "ConsumerSettings",
    "ConsumerSnapshot",
    "RunningConsumer",
    "Settings",
    "Snapshot",
    "Snapshots",
    "Worker",
    "Workers",
    "load",
    "load_consumer",
    "running_consumer",
    "running_worker",
    "running_workers",
]
# The modules in which an exported name is looked for; those that load OpenTelemetry come last.
_MODULES = ("settings", "consumer_settings", "worker_assembly", "consumer_assembly", "several_containers")


def __getattr__(name: str) -> object:
    # Names are loaded on demand: the command line reads the settings and does not need OpenTelemetry.
    for module in _MODULES if name in __all__ else ():
        if hasattr(found := import_module(f"{__name__}.{module}"), name):
            return getattr(found, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
