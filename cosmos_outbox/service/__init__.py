"""
The service: settings, connection, health and telemetry of the worker; a process of its own, or part of another program.

    from cosmos_outbox.service import running_worker

    async with running_worker() as worker:      # settings from the environment; no signal handlers, no log configuration
        worker.snapshot().readiness()           # what /readyz answers
        worker.metrics()                        # the Prometheus exposition and its content type
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cosmos_outbox.service.assembly import Worker, running_worker
    from cosmos_outbox.service.health import Snapshot
    from cosmos_outbox.service.settings import Settings, load

__all__ = ["Settings", "Snapshot", "Worker", "load", "running_worker"]
_MODULES = {"Settings": "settings", "Snapshot": "health", "load": "settings"}


def __getattr__(name: str) -> object:
    # On demand: the command line reads the settings and has no use for OpenTelemetry.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'assembly')}"), name)
