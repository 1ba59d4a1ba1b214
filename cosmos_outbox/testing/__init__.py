"""
For the tests of programs built on this library: an outbox in memory from the commit to the topic and its consumers, faults by name,
fixed ids and times, and events compared by what they say.

    harness = OutboxHarness()
    async with harness.outbox.unit_of_work() as uow:
        uow.repository(Order).create(Order(id="o1")).place(total=5)
        await uow.commit()
    assert_messages(await harness.relay_all(), OrderPlaced(total=5))

pytest gets fixtures of it: `cosmos_outbox.testing.pytest_plugin`. It imports this package at each of its starts, which therefore
imports what it gives out only when that is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cosmos_outbox.domain.sources import fixed
    from cosmos_outbox.testing.alike import like
    from cosmos_outbox.testing.assertions import assert_messages, assert_recorded
    from cosmos_outbox.testing.calls import Around, Call
    from cosmos_outbox.testing.clock import Clock
    from cosmos_outbox.testing.consuming import Delivered, Outcome, Subscribed
    from cosmos_outbox.testing.emulated import OutboxEmulators
    from cosmos_outbox.testing.faults import Faults
    from cosmos_outbox.testing.harness import OutboxHarness
    from cosmos_outbox.testing.received import ReceivedMessage, received_message
    from cosmos_outbox.testing.running import Stuck
    from cosmos_outbox.testing.scenarios import CrashPointsFailed, CrashPointsNotReached, crash_points

_MODULES = {
    "Around": "testing.calls",
    "Call": "testing.calls",
    "Clock": "testing.clock",
    "CrashPointsFailed": "testing.scenarios",
    "CrashPointsNotReached": "testing.scenarios",
    "Delivered": "testing.consuming",
    "Faults": "testing.faults",
    "OutboxEmulators": "testing.emulated",
    "OutboxHarness": "testing.harness",
    "Outcome": "testing.consuming",
    "ReceivedMessage": "testing.received",
    "Stuck": "testing.running",
    "Subscribed": "testing.consuming",
    "assert_messages": "testing.assertions",
    "assert_recorded": "testing.assertions",
    "crash_points": "testing.scenarios",
    "fixed": "domain.sources",
    "like": "testing.alike",
    "received_message": "testing.received",
}

__all__ = [
    "Around",
    "Call",
    "Clock",
    "CrashPointsFailed",
    "CrashPointsNotReached",
    "Delivered",
    "Faults",
    "OutboxEmulators",
    "OutboxHarness",
    "Outcome",
    "ReceivedMessage",
    "Stuck",
    "Subscribed",
    "assert_messages",
    "assert_recorded",
    "crash_points",
    "fixed",
    "like",
    "received_message",
]

if not TYPE_CHECKING:  # or type checkers would accept an unknown name

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"cosmos_outbox.{_MODULES[name]}"), name)
