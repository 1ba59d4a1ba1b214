"""
The worker and the consumer process: run them as programs of their own, or inside another program.

A worker sends the events of a container to Service Bus. A consumer process receives messages and calls a consumer's handlers.

Read in this order: `main` (starts a process and returns its exit code), `settings`, `worker_assembly` (how a worker is built),
`several_containers` (several workers in one process), `consumer_assembly` (how a consumer process is built), `program` (what workers and
consumer processes have in common), `connection`, `backlog_polls`, `shared_health` (the health fields of workers and of consumers),
`worker_health` (with `heartbeats` and `fleet_differences`), `consumer_health`, `http_server`, `status_page`, `metric_series`,
`telemetry` and `version`; then `doctor` (checks of the Azure resources) and `cli` (the command `cosmos-outbox`).

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
# `__getattr__` looks for an exported name in these modules, in this order. The modules that import OpenTelemetry come last, so that a
# program that uses only the settings starts sooner.
_MODULES = ("settings", "consumer_settings", "worker_assembly", "consumer_assembly", "several_containers")


def __getattr__(name: str) -> object:
    # Import a module only when one of its names is used: the command line needs the settings, but not OpenTelemetry.
    for module in _MODULES if name in __all__ else ():
        if hasattr(found := import_module(f"{__name__}.{module}"), name):
            return getattr(found, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
