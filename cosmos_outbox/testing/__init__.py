"""
For the tests of programs built on this library: an outbox in memory from the commit to the topic, fixed ids and times, and events
compared by what they say.

    harness = OutboxHarness()
    async with harness.outbox.unit_of_work() as uow:
        uow.repository(Order).create(Order(id="o1")).place(total=5)
        await uow.commit()
    messages = await harness.relay_all()
"""

from cosmos_outbox.domain.sources import fixed
from cosmos_outbox.testing.alike import like
from cosmos_outbox.testing.assertions import assert_messages, assert_recorded
from cosmos_outbox.testing.calls import Around, Call
from cosmos_outbox.testing.clock import Clock
from cosmos_outbox.testing.consuming import ConsumerStuck
from cosmos_outbox.testing.faults import Faults
from cosmos_outbox.testing.harness import OutboxHarness
from cosmos_outbox.testing.relaying import RelayStuck

__all__ = [
    "Around",
    "Call",
    "Clock",
    "ConsumerStuck",
    "Faults",
    "OutboxHarness",
    "RelayStuck",
    "assert_messages",
    "assert_recorded",
    "fixed",
    "like",
]
