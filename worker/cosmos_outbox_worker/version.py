"""Version: which version of the worker this is, as log, page, heartbeat, telemetry and command line say it."""

from __future__ import annotations

from functools import cache
from importlib import metadata


@cache
def version() -> str:
    """Return the version of the worker. All distributions are released together, so it is the version of the library, too."""
    return metadata.version("cosmos-outbox-worker")
