"""
The service: settings, connection, health and telemetry of workers and consumers; processes, or parts of another program.

    from cosmos_outbox.service import running_worker

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
    from cosmos_outbox.service.assembly import Worker, running_worker
    from cosmos_outbox.service.consumer_settings import ConsumerSettings, load_consumer
    from cosmos_outbox.service.consuming import RunningConsumer, running_consumer
    from cosmos_outbox.service.health import ConsumerSnapshot, Snapshot
    from cosmos_outbox.service.settings import Settings, load

__all__ = [
    "ConsumerSettings",
    "ConsumerSnapshot",
    "RunningConsumer",
    "Settings",
    "Snapshot",
    "Worker",
    "load",
    "load_consumer",
    "running_consumer",
    "running_worker",
]
_MODULES = {
    "assembly": ("Worker", "running_worker"),
    "consumer_settings": ("ConsumerSettings", "load_consumer"),
    "consuming": ("RunningConsumer", "running_consumer"),
    "health": ("ConsumerSnapshot", "Snapshot"),
    "settings": ("Settings", "load"),
}


def __getattr__(name: str) -> object:
    # On demand: the command line reads the settings and has no use for OpenTelemetry.
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
