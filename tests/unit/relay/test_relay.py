"""
The relay, with a broker in memory and in virtual time: lanes (parallel senders), outages, refusals and records.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import pytest

from cosmos_outbox import errors, records
from cosmos_outbox.adapters.memory.broker import Fault, MemoryBroker
from cosmos_outbox.errors import MessageRejected, PublishError
from cosmos_outbox.message_format import OutboundMessage
from cosmos_outbox.records import (
    EventMalformed,
    EventRejected,
    MessagesPublished,
    PublishFailed,
    Record,
    level_of,
)
from cosmos_outbox.relay import Relay
from cosmos_outbox.retries import Backoff
from tests.support.event_documents import batch, entity, event


class World:
    """A broker in memory, a relay that sends to it, and the records of the relay."""

    def __init__(self, *, lanes: int = 4, batch_size: int = 100) -> None:
        self.broker = MemoryBroker(clock=lambda: asyncio.get_running_loop().time())
        self.told: list[Record] = []
        self.relay = Relay(
            self.broker.publisher(lanes=lanes, batch_size=batch_size),
            backoff=Backoff(initial_seconds=1, maximum_seconds=60),
            notify=self.told.append,
        )

    @property
    def ids(self) -> list[str]:
        return [message.message_id for message in self.broker.accepted]

    def told_of(self, kind: type[Record]) -> list[Record]:
        return [record for record in self.told if isinstance(record, kind)]

    def reject(self, *event_ids: str) -> None:
        self.broker.rejects = lambda message: message.message_id in event_ids


async def test_lanes_send_in_parallel() -> None:
    """
    Each lane (connection) sends three batches, one after another, which takes 6 s. All four lanes together take no longer, because they
    send at the same time.
    """
    world = World(lanes=4, batch_size=2)
    world.broker.latency_seconds = 1.0
    await world.relay(batch(*(event(f"key-{number:02d}", 1, size=100_000) for number in range(20))))
    assert [5, 5, 5, 5] == [record.messages for record in world.told if isinstance(record, MessagesPublished)]
    assert 6.0 == asyncio.get_running_loop().time()


async def test_leases_with_little_to_send_do_not_wait_for_one_another() -> None:
    world = World(lanes=4)
    world.broker.latency_seconds = 1.0
    pages = [batch(event(f"key-{lease}", 1), lease=str(lease)) for lease in range(4)]
    await asyncio.gather(*(world.relay(page) for page in pages))
    assert 2.0 == asyncio.get_running_loop().time()


async def test_a_page_waits_until_an_unavailable_broker_is_back() -> None:
    world = World()
    world.broker.down = True
    call = asyncio.create_task(world.relay(batch(event("k", 1), event("k", 2))))
    await asyncio.sleep(600)
    assert not call.done()
    assert [] == world.ids
    world.broker.down = False
    await call
    assert ["k/1", "k/2"] == world.ids


async def test_a_missing_topic_raises_an_alarm_at_each_attempt_after_the_first() -> None:
    """The first attempt may have failed only because a token had expired."""
    world = World()
    world.broker.faults.extend([Fault.NO_TOPIC] * 7)
    await world.relay(batch(event("k", 1), event("k", 2)))
    outcomes = [record.outcome for record in world.told if isinstance(record, PublishFailed)]
    assert ["retried", *["halted"] * 6] == outcomes
    assert ["k/1", "k/2"] == world.ids


async def test_a_full_topic_raises_an_alarm_at_each_attempt() -> None:
    class Filled(MemoryBroker):
        full = 4

        async def send(self, batch: Sequence[OutboundMessage]) -> None:
            self.full -= 1
            if self.full >= 0:
                raise errors.TopicFull("Topic 'events' is full.", retry_after=10.0)
            await super().send(batch)

    told: list[Record] = []
    broker = Filled(clock=lambda: asyncio.get_running_loop().time())
    await Relay(broker.publisher(lanes=1), notify=told.append)(batch(event("k", 1)))
    full = [record for record in told if isinstance(record, records.TopicFull)]
    assert [(attempt, logging.ERROR) for attempt in (1, 2, 3, 4)] == [
        (one.attempt, level_of(one)) for one in full
    ]
    assert [MessagesPublished] == [type(record) for record in told if record not in full]
    assert 40.0 <= asyncio.get_running_loop().time()


async def test_a_busy_broker_is_tried_again_after_the_delay_that_it_asks_for() -> None:
    world = World(lanes=1)
    world.broker.faults.append(Fault.BUSY)
    await world.relay(batch(event("k", 1)))
    assert 2.0 <= asyncio.get_running_loop().time()
    assert ["k/1"] == world.ids


async def test_an_accepted_batch_is_not_sent_again_after_a_later_batch_failed() -> None:
    world = World(lanes=1, batch_size=2)
    world.broker.faults.extend([None, Fault.LOST])
    await world.relay(batch(*(event("k", number) for number in range(4))))
    assert 0 == world.broker.duplicates


async def test_the_attempt_counter_starts_again_after_an_accepted_batch() -> None:
    world = World(lanes=1, batch_size=1)
    world.broker.faults.extend([Fault.LOST, Fault.LOST, None, Fault.LOST])
    await world.relay(batch(event("k", 1), event("k", 2)))
    failures = [record for record in world.told if isinstance(record, PublishFailed)]
    assert [1, 2, 1] == [failure.attempt for failure in failures]


async def test_a_rejected_event_stops_only_its_own_partition_key() -> None:
    world = World(lanes=1)
    world.reject("b/2")
    documents = [event(key, number) for number in (1, 2, 3) for key in ("a", "b", "c")]
    with pytest.raises(MessageRejected, match=r"'b/2'.*'b'"):
        await world.relay(batch(*documents))
    assert ["a/1", "a/2", "a/3", "b/1", "c/1", "c/2", "c/3"] == world.ids


async def test_every_rejected_event_is_reported_with_its_partition_key() -> None:
    world = World()
    world.reject("b/2", "c/1")
    documents = [event(key, number) for number in (1, 2, 3) for key in ("a", "b", "c")]
    with pytest.raises(MessageRejected, match="2 of its partition keys"):
        await world.relay(batch(*documents))
    rejected = [record for record in world.told if isinstance(record, EventRejected)]
    assert {("b/2", "b"), ("c/1", "c")} == {(record.event_id, record.partition_key) for record in rejected}


async def test_a_page_with_a_rejected_event_is_repeated_without_sending_events_twice() -> None:
    """
    The processor repeats a failed page, perhaps for longer than the duplicate detection of the broker remembers message ids. So the
    relay itself skips the events that the topic accepted before.
    """
    world = World(lanes=1, batch_size=3)
    world.reject("b/2")
    page = batch(*(event(key, number) for number in (1, 2, 3) for key in ("a", "b", "c")))
    for _ in range(5):
        with pytest.raises(MessageRejected):
            await world.relay(page)
        await asyncio.sleep(700)
    assert ["a/1", "a/2", "a/3", "b/1", "c/1", "c/2", "c/3"] == world.ids
    assert 0 == world.broker.duplicates


async def test_a_cancelled_relay_sends_nothing_more() -> None:
    world = World(lanes=1, batch_size=1)
    world.broker.latency_seconds = 1.0
    call = asyncio.create_task(world.relay(batch(*(event("k", number) for number in range(10)))))
    await asyncio.sleep(4.5)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    sent = list(world.ids)
    await asyncio.sleep(60)
    assert ["k/0", "k/1"] == sent == world.ids


class _Broken:
    """A publisher that raises errors which no publisher should raise."""

    lanes = 2

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def publish(self, lane: int, messages: Sequence[OutboundMessage]) -> None:
        raise self._error


@pytest.mark.parametrize("error", [KeyError("a defect"), PublishError("neither retriable nor a rejection")])
async def test_an_unexpected_error_of_a_publisher_fails_the_page(error: Exception) -> None:
    relay = Relay(_Broken(error))
    with pytest.raises(ExceptionGroup) as caught:
        await relay(batch(event("k", 1)))
    assert [error] == list(caught.value.exceptions)


async def test_a_relay_keeps_the_state_of_the_thousand_most_recently_used_leases() -> None:
    relay = Relay(MemoryBroker().publisher(lanes=1))
    await relay(batch(lease="busy"))
    busy = relay._leases["busy"]
    for number in range(1500):
        await relay(batch(lease=f"{number}"))
        await relay(batch(lease="busy"))
    assert 1000 == len(relay._leases)
    assert "1499" in relay._leases
    assert busy is relay._leases["busy"], "it was forgotten and begun anew"


async def test_the_relay_reports_published_messages_with_the_time_taken() -> None:
    world = World(lanes=1)
    world.broker.latency_seconds = 0.25
    await world.relay(batch(event("k", 1), event("k", 2)))
    assert [MessagesPublished(lane=0, messages=2, seconds=0.5)] == world.told


@pytest.mark.parametrize(
    "wrong",
    [
        {"data": "text"},
        {"data": [1]},
        {"data": None},
        {"partitionKey": None},
        {"partitionKey": {}},
        {"id": 7},
    ],
    ids=str,
)
async def test_a_malformed_event_is_reported_and_skipped(
    wrong: dict[str, object],
) -> None:
    world = World()
    await world.relay(batch({**event("a", 1), **wrong}, event("b", 2), entity("c")))

    assert ["b/2"] == world.ids
    assert 1 == len(world.told_of(EventMalformed))
