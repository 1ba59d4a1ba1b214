"""Random interleavings of relays, operators and failing topics, without duplicate detection: first copies stay in order, none is lost."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import Any

import pytest

from cosmos_outbox.adapters.memory import MemoryBroker, MemoryParked
from cosmos_outbox.adapters.memory.broker import Fault
from cosmos_outbox.errors import KeyNotParked, OutboxError, StoreUnavailable
from cosmos_outbox.messages import OutboundMessage
from cosmos_outbox.parking import ParkedKeys, Parking
from cosmos_outbox.ports import CommitResult, Notes, Write
from cosmos_outbox.relay import Relay
from cosmos_outbox.relay.resend import resending
from cosmos_outbox.relay.routing import Routes
from cosmos_outbox.relay.topics import Topics
from cosmos_outbox.retries import Backoff, RetryOptions
from tests.support.effort import examples
from tests.support.event_documents import batch, event

RUNS = range(examples(30, many=200))
BRIEF = Backoff(initial_seconds=0.0005, maximum_seconds=0.002)
RETRY = RetryOptions(deadline_seconds=1, attempt_seconds=0.5, backoff=BRIEF)


class Flaky:
    """A parked store of which requests, or their answers, are lost now and then."""

    def __init__(self, store: MemoryParked, draw: random.Random) -> None:
        self._store, self._draw, self.well = store, draw, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(self, partition: str, writes: list[Write]) -> CommitResult:
        fate = 1.0 if self.well else self._draw.random()
        if fate < 0.08:
            raise StoreUnavailable("the request is lost")
        result = await self._store.commit(partition, writes)
        if fate < 0.16:
            raise StoreUnavailable("the answer is lost")
        await asyncio.sleep(0)
        return result


def first_copies(broker: MemoryBroker, key: str) -> list[str]:
    return list(dict.fromkeys(one.message_id for one in broker.accepted if one.session_id == key))


@pytest.mark.parametrize("seed", RUNS)
async def test_two_owners_a_flaky_parked_store_and_two_operators_lose_and_reorder_nothing(  # noqa: C901 - one story
    seed: int,
):
    draw = random.Random(seed)
    inner, broker = MemoryParked(), MemoryBroker(dedup_window_seconds=None)
    store: Any = Flaky(inner, draw)
    events = [event(f"k{draw.randrange(2)}", number, lsn=number) for number in range(1, 31)]
    poison = {one["id"] for one in draw.sample(events, 3)}
    broker.rejects = lambda message: message.message_id in poison
    dropped, saved = set[str](), Notes(None)

    def keys(of: Any) -> ParkedKeys:
        return ParkedKeys(of, resending(broker.publisher(), backoff=BRIEF), retry=RETRY)

    async def own(loses_at: int | None) -> None:
        """Relay all pages; or lose the lease in the middle of one, whose notes and position are not saved then."""
        nonlocal saved
        publisher = broker.publisher(batch_size=draw.choice([1, 5, 100]))
        relay = Relay(publisher, parking=Parking(store, retry=RETRY), notify=lambda _: None, backoff=BRIEF)
        place, notes, tenure = 0, Notes(saved.text), draw.randrange(10**9)
        while place < len(events):
            end = min(len(events), place + draw.choice([1, 3, 6]))
            try:
                await relay(batch(*events[place:end], notes=notes, tenure=tenure))
            except OutboxError:
                await asyncio.sleep(0.001)
                continue
            if loses_at is not None and end >= loses_at:
                return
            place = end
            if loses_at is None:
                saved = Notes(notes.text)
            await asyncio.sleep(draw.random() * 0.002)

    async def operate() -> None:
        for _ in range(6):
            await asyncio.sleep(draw.random() * 0.006)
            key, parked, choice = f"k{draw.randrange(2)}", keys(store), draw.random()
            with suppress(OutboxError):
                first = await parked.first_held(key) if choice >= 0.5 else None
                if choice < 0.2:
                    await parked.park(key, reason="by hand")
                elif choice < 0.5:
                    if draw.random() < 0.5:
                        poison.clear()
                    await parked.release(key)
                elif first is not None and choice < 0.75:
                    await parked.release(key, edited={**first.data, "fixed": True}, event_id=first.event_id)
                elif first is not None:
                    await parked.drop(key, first.event_id, reason="given up")
                    dropped.add(first.event_id)

    await asyncio.gather(own(None), own(draw.randrange(5, 25)), operate(), operate())
    store.well = True
    poison.clear()
    for key in ["k0", "k1"] * 4:
        with suppress(KeyNotParked):
            await keys(inner).release(key)
    for key in ("k0", "k1"):
        # What was dropped may still be sent by an owner that read it before
        expected = [one["id"] for one in events if one["partitionKey"] == key and one["id"] not in dropped]
        assert expected == [one for one in first_copies(broker, key) if one not in dropped]


TOPICS_OF = {"OnlyB": "b", "All": "abc", "OnlyC": "c", "Other": "ab"}


@pytest.mark.parametrize("seed", RUNS)
async def test_of_several_topics_that_fail_each_in_its_way_every_one_gets_all_of_its_events_in_order(  # noqa: C901 - one story
    seed: int,
):
    draw = random.Random(seed)
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
        sizes = {topic: draw.choice([1, 3, 100]) for topic in brokers}
        return Topics(
            {name: one.publisher(lanes=2, batch_size=sizes[name]) for name, one in brokers.items()}, routes
        )

    def new_relay() -> Relay:
        size = draw.choice([1, 2000, 10**6])
        parking = Parking(store)
        return Relay(topics(), parking=parking, notify=lambda _: None, backoff=BRIEF, lane_bytes=size)

    relay, notes = new_relay(), Notes(text)
    while place < len(events):
        end = min(len(events), place + draw.choice([1, 4, 9]))
        page = asyncio.create_task(relay(batch(*events[place:end], tenure=tenure, notes=notes)))
        if (
            draw.random() < 0.4
        ):  # the process dies, and another begins at the page with the notes of the last checkpoint
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
