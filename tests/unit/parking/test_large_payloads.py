"""
Parked events whose payload is stored beside the event (a claim check): a release sends the event with its payload, or stops if the
payload has expired.
"""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta

import pytest

from cosmos_outbox import DomainEvent, Entity, EventSizes, Outbox, claimed_payload
from cosmos_outbox.adapters.memory import MemoryBroker, MemoryContainer, MemoryLeases, MemoryParked
from cosmos_outbox.changefeed import ChangeFeedProcessor, ProcessorOptions
from cosmos_outbox.parking import ParkedKeys, Parking, Scope
from cosmos_outbox.relay import Relay
from cosmos_outbox.relay.released_events import resending


class Scanned(DomainEvent):
    text: str


class Paper(Entity):
    def scan(self) -> None:
        self.record(Scanned(text="x" * 300_000))


@pytest.mark.parametrize(("after", "sent"), [(timedelta(days=39), 1), (timedelta(days=41), 0)])
async def test_a_release_stops_at_an_event_whose_stored_payload_has_expired(after: timedelta, sent: int):
    """The test also checks a release before the payload expires: the message has the payload's address, where a consumer reads it."""
    now, broker = [1_800_000_000.0], MemoryBroker()
    container, parked = MemoryContainer(now=lambda: now[0]), MemoryParked(now=lambda: now[0])
    async with Outbox(container, sizes=EventSizes(claim_check=True)).unit_of_work() as uow:
        paper = Paper(id="a")
        paper.scan()
        uow.repository(Paper).create(paper)
        await uow.commit()
    broker.rejects = lambda message: message.subject == "Scanned"
    relay = Relay(broker.publisher(), parking=Parking(parked))
    options = ProcessorOptions(processor_name="p")
    processor = ChangeFeedProcessor(container, MemoryLeases(now=lambda: now[0]), relay, options)
    running = asyncio.create_task(processor.run())
    await asyncio.sleep(5)
    processor.stop()
    await running
    broker.rejects = lambda message: False
    now[0] += after.total_seconds()

    scope = Scope(processor="p", container=(await container.describe()).container_rid)
    keys = ParkedKeys(parked, resending(broker.publisher(), events=container), scope=scope)
    released = await keys.release("a")

    scanned = [message for message in broker.accepted if message.subject == "Scanned"]
    assert (sent, sent) == (released.sent, len(scanned))
    for message in scanned:
        assert {"x"} == set((await claimed_payload(json.loads(message.body), container.read))["text"])
    if released.failure:
        assert "payload" in released.failure.error
        assert "Drop the event" in released.failure.error
    assert bool(sent) == (released.failure is None)
