"""The counters and states of a running demo, which `view` shows on the terminal."""

from __future__ import annotations

from dataclasses import dataclass, field

from cosmos_outbox_testing.verify.child_processes import Child
from demo.leases import Owners


@dataclass(slots=True, kw_only=True)
class Progress:
    """The current counters and states of a demo. The job changes them while it runs, and the view reads them to show them."""

    contacts_wanted: int
    phase: str = "starting"
    contacts_written: int = 0
    committed: int = 0
    delivered: int = 0
    effects: int = 0  # events that the consumer, the company directory, has recorded
    owners: Owners = field(default_factory=dict)
    children: list[Child] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def lag(self) -> int:
        """Return how many committed events the subscriber has not received yet."""
        return max(0, self.committed - self.delivered)
