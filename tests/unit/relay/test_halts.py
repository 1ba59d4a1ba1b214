"""
A topic that is missing, disabled or forbidden: an alarm that lasts, and work that goes on by itself once it is mended.
"""

from __future__ import annotations

import asyncio

from cosmos_outbox.adapters.memory.broker import Fault, MemoryBroker
from cosmos_outbox.records import PublishFailed, Record
from cosmos_outbox.relay import Relay
from cosmos_outbox.retries import Backoff
from tests.support.event_documents import batch, event


def relay_on(broker: MemoryBroker, records: list[Record]) -> Relay:
    return Relay(broker.publisher(), backoff=Backoff(initial_seconds=1), notify=records.append)


def alarms(records: list[Record]) -> list[PublishFailed]:
    return [record for record in records if isinstance(record, PublishFailed) and record.outcome == "halted"]


async def test_a_missing_topic_is_an_alarm_with_every_attempt_after_the_first_until_it_is_there():
    """The first one may only have found an expired token."""
    broker, records = MemoryBroker(clock=asyncio.get_running_loop().time), list[Record]()
    broker.faults.extend([Fault.NO_TOPIC] * 7)
    await relay_on(broker, records)(batch(event(number=1), event(number=2)))
    assert 6 == len(alarms(records))
    assert ["contact-1/1", "contact-1/2"] == [message.message_id for message in broker.accepted]


async def test_attempts_at_a_missing_topic_are_never_more_than_half_a_minute_apart():
    broker, records = MemoryBroker(clock=asyncio.get_running_loop().time), list[Record]()
    broker.faults.extend([Fault.NO_TOPIC] * 30)
    await relay_on(broker, records)(batch(event()))
    delays = [record.delay_seconds for record in records if isinstance(record, PublishFailed)]
    assert max(delay for delay in delays if delay is not None) <= 30


async def test_a_broker_that_is_away_for_minutes_is_no_alarm_and_loses_nothing():
    broker, records = MemoryBroker(clock=asyncio.get_running_loop().time), list[Record]()
    broker.down = True
    working = asyncio.create_task(
        relay_on(broker, records)(batch(event(number=1), event("b", 1), event(number=2)))
    )
    await asyncio.sleep(600)
    broker.down = False
    await working
    assert [] == alarms(records)
    assert {"contact-1/1", "contact-1/2", "b/1"} == {message.message_id for message in broker.accepted}
    assert 0 == broker.duplicates
