"""
For the tests of programs built on this library: an outbox in memory from the commit to the topic and its consumers, faults by name,
fixed ids and times, and events compared by what they say.

    harness = OutboxHarness()
    async with harness.outbox.unit_of_work() as uow:
        uow.repository(Order).create(Order(id="o1")).place(total=5)
        await uow.commit()
    assert_messages(await harness.relay_all(), OrderPlaced(total=5))

Read in this order: `harness` (commit, relay, consume in memory), `faults` (what may go wrong), `scenarios` (a crash before and after each
request), `emulated` (the same over the wire), `contracts` (what an adapter of your own has to hold).

pytest gets fixtures of it: `cosmos_outbox_testing.pytest_plugin`. It imports this package at each of its starts, which therefore
imports what it gives out only when that is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cosmos_outbox.domain.sources import fixed
    from cosmos_outbox_testing.alike import like
    from cosmos_outbox_testing.assertions import assert_messages, assert_recorded
    from cosmos_outbox_testing.calls import Around, Call
    from cosmos_outbox_testing.clock import Clock
    from cosmos_outbox_testing.consuming import Delivered, Outcome, Subscribed
    from cosmos_outbox_testing.emulated import OutboxEmulators
    from cosmos_outbox_testing.faults import Faults
    from cosmos_outbox_testing.harness import OutboxHarness
    from cosmos_outbox_testing.received import ReceivedMessage, received_message
    from cosmos_outbox_testing.running import Stuck
    from cosmos_outbox_testing.scenarios import CrashPointsFailed, CrashPointsNotReached, crash_points

_MODULES = {
    "Around": "cosmos_outbox_testing.calls",
    "Call": "cosmos_outbox_testing.calls",
    "Clock": "cosmos_outbox_testing.clock",
    "CrashPointsFailed": "cosmos_outbox_testing.scenarios",
    "CrashPointsNotReached": "cosmos_outbox_testing.scenarios",
    "Delivered": "cosmos_outbox_testing.consuming",
    "Faults": "cosmos_outbox_testing.faults",
    "OutboxEmulators": "cosmos_outbox_testing.emulated",
    "OutboxHarness": "cosmos_outbox_testing.harness",
    "Outcome": "cosmos_outbox_testing.consuming",
    "ReceivedMessage": "cosmos_outbox_testing.received",
    "Stuck": "cosmos_outbox_testing.running",
    "Subscribed": "cosmos_outbox_testing.consuming",
    "assert_messages": "cosmos_outbox_testing.assertions",
    "assert_recorded": "cosmos_outbox_testing.assertions",
    "crash_points": "cosmos_outbox_testing.scenarios",
    "fixed": "cosmos_outbox.domain.sources",
    "like": "cosmos_outbox_testing.alike",
    "received_message": "cosmos_outbox_testing.received",
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
        return getattr(import_module(_MODULES[name]), name)
