"""
Random interleavings of relays, operators and failing topics, without duplicate detection. Each topic gets the first copies of its events
in order, and none is lost.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

import pytest

from cosmos_outbox.adapters.memory import MemoryBroker, MemoryParked
from cosmos_outbox.adapters.memory.broker import Fault
from cosmos_outbox.errors import OutboxError
from cosmos_outbox.message_format import OutboundMessage
from cosmos_outbox.parking import ParkedKeys, Parking
from cosmos_outbox.ports import Notes
from cosmos_outbox.relay import Relay
from cosmos_outbox.relay.released_events import resending
from cosmos_outbox.relay.routing import Routes
from cosmos_outbox.relay.topics_and_refusals import Topics
from cosmos_outbox.retries import Backoff, RetryOptions
from tests.support.effort import examples
from tests.support.event_documents import batch, event

RUNS = range(examples(30, many=200))
BRIEF = Backoff(initial_seconds=0.0005, maximum_seconds=0.002)
RETRY = RetryOptions(deadline_seconds=1, attempt_seconds=0.5, backoff=BRIEF)


def first_copies(broker: MemoryBroker, key: str) -> list[str]:
    return list(dict.fromkeys(one.message_id for one in broker.accepted if one.session_id == key))


TOPICS_OF = {"OnlyB": "b", "All": "abc", "OnlyC": "c", "Other": "ab"}


@pytest.mark.parametrize("seed", RUNS)
async def test_each_of_several_failing_topics_gets_all_its_events_in_order(  # noqa: C901 - one story
    seed: int,
):
    draw = random.Random(seed)
    random.seed(seed)  # also for the pauses of the relay
    brokers = {topic: MemoryBroker(dedup_window_seconds=None) for topic in "abc"}
    fates = [None, None, None, Fault.LOST, Fault.ACK_LOST, Fault.LATE, Fault.NO_TOPIC]
    for broker in brokers.values():
        broker.late_seconds = 0.002
        broker.faults.extend(draw.choices(fates, k=30))
    routes = Routes(default=("a", "b"), actions={"OnlyB": ("b",), "All": ("a", "b", "c"), "OnlyC": ("c",)})
    events = [event(f"k{draw.randrange(4)}", number, lsn=number) for number in range(1, 25)]
    for one in events:
        one["data"]["action"] = draw.choice([*TOPICS_OF])
    poison, where = draw.choice(events)["id"], draw.choice("abc")

    def rejects(message: OutboundMessage) -> bool:
        return message.message_id == poison

    brokers[where].rejects = rejects
    store, text, tenure, place = MemoryParked(), Notes(None).text, 0, 0

    def topics() -> Topics:
        publishers = {
            name: one.publisher(lanes=2, batch_size=draw.choice([1, 3, 100])) for name, one in brokers.items()
        }
        vars(publishers["a"])["batch_bytes"] = draw.choice([2, 2700, 10**6])
        return Topics(publishers, routes)

    def new_relay() -> Relay:
        return Relay(topics(), parking=Parking(store), notify=lambda _: None, backoff=BRIEF)

    relay, notes = new_relay(), Notes(text)
    while place < len(events):
        end = min(len(events), place + draw.choice([1, 4, 9]))
        page = asyncio.create_task(relay(batch(*events[place:end], tenure=tenure, notes=notes)))
        # The process dies. Another process handles this page again, with the notes (the names of parked keys) that the last checkpoint saved.
        if draw.random() < 0.4:
            await asyncio.sleep(draw.random() * 0.006)
            page.cancel()
            await asyncio.gather(page, return_exceptions=True)
            tenure, notes, relay = tenure + 1, Notes(text), new_relay()
            continue
        with suppress(OutboxError):
            await page
            place, text = end, notes.text
    for broker in brokers.values():
        broker.rejects = lambda _: False
        broker.faults.clear()
    for _ in range(3):
        for key in await ParkedKeys(store).list():
            await ParkedKeys(store, resending(topics(), backoff=BRIEF)).release(key.partition_key)
    await asyncio.sleep(0.005)

    for topic, broker in brokers.items():
        for key in (f"k{number}" for number in range(4)):
            wanted = [one for one in events if topic in TOPICS_OF[one["data"]["action"]]]
            assert [one["id"] for one in wanted if one["partitionKey"] == key] == first_copies(broker, key)
