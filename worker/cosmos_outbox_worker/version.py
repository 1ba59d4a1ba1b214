"""Version: the version of the worker, for the log, the status page, heartbeats, telemetry and the command line."""

from __future__ import annotations

from functools import cache
from importlib import metadata


@cache
def version() -> str:
    """Return the version of the worker. The library has the same version, because all distributions are released together."""
    return metadata.version("cosmos-outbox-worker")
