"""
For the tests of programs built on this library: an outbox in memory from the commit to the topic and its consumers, faults by name,
fixed ids and times, and events compared by what they say.

    harness = OutboxHarness()
    async with harness.outbox.unit_of_work() as uow:
        uow.repository(Order).create(Order(id="o1")).place(total=5)
        await uow.commit()
    assert_messages(await harness.relay_all(), OrderPlaced(total=5))

Read in this order: `harness` (commit, relay, consume in memory), `faults` (what may go wrong), `crash_point_runs` (a crash before and after each
request), `emulated` (the same over the wire), `contracts` (what an adapter of your own has to hold), `verify` (what an account answers).

pytest gets fixtures of it: `cosmos_outbox_testing.pytest_plugin`. It imports this package at each of its starts, which therefore
imports what it gives out only when that is asked for.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cosmos_outbox_testing.assertions import assert_described, assert_messages, assert_recorded, like
    from cosmos_outbox_testing.clock import Clock, fixed
    from cosmos_outbox_testing.consuming import Delivered, Outcome, Subscribed
    from cosmos_outbox_testing.crash_point_runs import CrashPointsFailed, CrashPointsNotReached, crash_points
    from cosmos_outbox_testing.emulated import OutboxEmulators
    from cosmos_outbox_testing.faults import Faults
    from cosmos_outbox_testing.harness import OutboxHarness
    from cosmos_outbox_testing.port_calls import Around, Call
    from cosmos_outbox_testing.received import ReceivedMessage, received_message
    from cosmos_outbox_testing.running import MessagesFailed, Stuck

__all__ = [
    "Around",
    "Call",
    "Clock",
    "CrashPointsFailed",
    "CrashPointsNotReached",
    "Delivered",
    "Faults",
    "MessagesFailed",
    "OutboxEmulators",
    "OutboxHarness",
    "Outcome",
    "ReceivedMessage",
    "Stuck",
    "Subscribed",
    "assert_described",
    "assert_messages",
    "assert_recorded",
    "crash_points",
    "fixed",
    "like",
    "received_message",
]

if not TYPE_CHECKING:  # otherwise type checkers would accept an unknown name

    def __getattr__(name: str) -> Any:
        for module in iter_modules(__path__ if name in __all__ else []):
            if not module.ispkg and hasattr(found := import_module(f"{__name__}.{module.name}"), name):
                return getattr(found, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
