"""
A test kit for programs that use this library.

It has an outbox in memory, with a worker, a topic and consumers. Tests can make requests fail, fix ids and times, and compare events by
their content.

    harness = OutboxHarness()
    async with harness.outbox.unit_of_work() as uow:
        uow.repository(Order).create(Order(id="o1")).place(total=5)
        await uow.commit()
    assert_messages(await harness.relay_all(), OrderPlaced(total=5))

Read the modules in this order: `harness` (commit, relay and consume in memory), `faults` (requests that fail), `crash_point_runs` (a
crash before and after each request), `emulated` (the same on the emulators), `contracts` (tests for an adapter of your own), `verify`
(check that a real account answers as the library expects).

`cosmos_outbox_testing.pytest_plugin` has fixtures for pytest. Because pytest imports this package each time it starts, the package
imports its modules only when one of their names is used.
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

# Hide `__getattr__` from type checkers, which would otherwise accept any name of the package.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        for module in iter_modules(__path__ if name in __all__ else []):
            if not module.ispkg and hasattr(found := import_module(f"{__name__}.{module.name}"), name):
                return getattr(found, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
