"""Make the statuses of leases that a processor reports, for tests of what a worker shows about them."""

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
    """Return a fake processor. Its method `status` returns these statuses."""
    return SimpleNamespace(status=lambda stalled_after: leases)
