"""Builds statuses of leases for tests."""

from __future__ import annotations

from types import SimpleNamespace

from cosmos_outbox.changefeed import LeaseStatus


def status(name: str = "0", **changes: object) -> LeaseStatus:
    values: dict[str, object] = {
        "lease": f"p..{name}",
        "token": name,
        "lag": 0,
        "idle_seconds": 1.0,
        "failed_attempts": 0,
        "error": None,
        "draining": False,
        "stalled": False,
    }
    return LeaseStatus(**values | changes)  # type: ignore[arg-type] # a test names only fields that there are


def owning(*leases: LeaseStatus) -> SimpleNamespace:
    """Return the function that a worker calls for the statuses of its leases."""
    return SimpleNamespace(status=lambda stalled_after: leases)
