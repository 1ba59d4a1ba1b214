"""
The relay in Azure Functions: no event is lost, first copies arrive in order, and keys stay parked from one invocation to the next.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from cosmos_outbox.adapters.memory import MemoryBroker, MemoryParked
from cosmos_outbox.errors import (
    BrokerUnavailable,
    ConfigurationError,
    MessageRejected,
    OutboxError,
    StoreUnavailable,
)
from cosmos_outbox.parking import ParkedKeys, Parking, Scope
from cosmos_outbox.ports import MonitoredContainer
from cosmos_outbox.records import Record
from cosmos_outbox.relay.released_events import resending
from cosmos_outbox.stored_documents import Document
from tests.support.effort import examples
from tests.support.event_documents import event
from tests.support.functions_host import documents
from tests.unit.relay.test_guarantees import Fleet, History, Owner, histories
from triggers import TriggeredRelay

CONTAINER = MonitoredContainer(account_host="localhost", database_rid="d", container_rid="d-c")
SCOPE = Scope(processor="function", container="d-c")


class Topic:
    """A topic and a parked store. `process` starts a relay in a simulated new process."""

    def __init__(self) -> None:
        self.broker, self.parked, self.records = MemoryBroker(), MemoryParked(), list[Record]()
        self.keys = ParkedKeys(self.parked, resending(self.broker.publisher()), scope=SCOPE)

    def process(self, *, parks: bool = True, patience: float = 120) -> TriggeredRelay:
        return TriggeredRelay(
            self.broker.publisher(),
            CONTAINER,
            processor="function",
            parking=Parking(self.parked) if parks else None,
            patience=timedelta(seconds=patience),
            notify=self.records.append,
        )

    def reject(self, *event_ids: str) -> None:
        self.broker.rejects = lambda message: message.message_id in event_ids

    @property
    def sent(self) -> list[str]:
        return [message.message_id for message in self.broker.accepted]


async def test_nothing_is_sent_while_the_parked_keys_cannot_be_read():
    topic = Topic()
    read = topic.parked.read

    async def away(*_: str) -> Document:
        raise StoreUnavailable(applied=False)

    topic.parked.read = away  # type: ignore[method-assign]
    process = topic.process()
    with pytest.raises(StoreUnavailable):
        await process(documents(event("a", 1), event("b", 2)))
    assert [] == topic.sent
    topic.parked.read = read  # type: ignore[method-assign]
    await process(documents(event("a", 1), event("b", 2)))

    assert ["a/1", "b/2"] == sorted(topic.sent)


async def test_a_refused_event_without_a_parked_store_fails_the_batch():
    """Events of other keys in the batch are still sent."""
    topic = Topic()
    topic.reject("a/1")
    with pytest.raises(MessageRejected, match="'a/1' of partition key 'a'"):
        await topic.process(parks=False)(documents(event("a", 1), event("a", 2), event("b", 3)))

    assert ["b/3"] == topic.sent


async def test_an_invocation_during_an_outage_ends_before_the_timeout_of_the_host():
    """After the outage, the host repeats the batch, and the relay sends its events in order."""
    topic = Topic()
    process, clock = topic.process(), asyncio.get_running_loop().time
    topic.broker.down, began = True, clock()
    batch = [event("a", number) for number in range(1, 4)]
    with pytest.raises(BrokerUnavailable, match="did not finish the batch in 0:02:00"):
        await process(documents(*batch))
    assert clock() - began < 125
    topic.broker.down = False
    await process(documents(*batch))

    assert ["a/1", "a/2", "a/3"] == topic.sent


@pytest.mark.parametrize(
    "change",
    [
        {name: value for name, value in event().items() if name != "_lsn"},
        # In its mode "all versions and deletes", the change feed wraps each change in this way.
        {"current": event(), "metadata": {"lsn": 1, "operationType": "create"}},
    ],
)
async def test_a_batch_without_the_order_of_its_changes_is_refused(change: Document):
    topic = Topic()
    with pytest.raises(ConfigurationError, match="'latest version'"):
        await topic.process()(documents(event("b", 2), change))

    assert [] == topic.sent


class Functions(Fleet):
    """
    Simulated Functions hosts of one partition. Each host calls its function with a batch until the call succeeds, and then moves the
    checkpoint.
    """

    relay_type = TriggeredRelay
    parked: MemoryParked

    async def work(self, owner: Owner) -> None:
        relay = self.relay_type(
            self.publisher(owner),
            CONTAINER,
            processor="function",
            parking=Parking(self.parked),
            patience=timedelta(seconds=1e6 if owner.lives_for > 20 else 1 + owner.lives_for / 3),
            notify=lambda record: None,
        )
        for number in range(self.checkpoint, len(self.history.pages)):
            done = False
            while not done:
                try:
                    await relay(documents(*self.history.pages[number]))
                    done = True
                except OutboxError:
                    await asyncio.sleep(1)  # the simulated retry policy: a fixed delay without a limit
            self.checkpoint = max(self.checkpoint, number + 1)


async def operate(keys: ParkedKeys, poison: frozenset[str]) -> None:
    """Act as an operator: drop the events that the topic always rejects (`poison`), and release the keys."""
    for key in await keys.list():
        with suppress(OutboxError):
            for held in (await keys.show(key.partition_key)).held:
                if held.event_id in poison:
                    await keys.drop(key.partition_key, held.event_id, reason="poison")
            await keys.release(key.partition_key)


async def check(
    history: History,
    poison: frozenset[str],
    operations: Iterable[float],
    relay_type: type[TriggeredRelay] = TriggeredRelay,
) -> None:
    """
    Play a history on simulated Functions hosts while an operator acts, and compare the topic with the committed events.
    """
    broker = MemoryBroker(
        clock=lambda: asyncio.get_running_loop().time(),
        dedup_window_seconds=None,
        rejects=lambda message: message.message_id in poison,
    )
    broker.latency_seconds, broker.late_seconds = history.latency, history.late
    fleet = Functions(broker, history)
    fleet.relay_type, fleet.parked = relay_type, MemoryParked()
    keys = ParkedKeys(fleet.parked, resending(broker.publisher()), scope=SCOPE)

    async def operator(at: float) -> None:
        await asyncio.sleep(at)
        await operate(keys, poison)

    await asyncio.gather(*(fleet.live(owner) for owner in history.owners), *map(operator, operations))
    broker.faults.clear()
    await fleet.work(Owner(starts_at=0, lives_for=1e6, faults=(), lanes=3, batch_bytes=2, batch_size=3))
    for _ in range(3):
        await operate(keys, poison)
    await asyncio.sleep(history.late)

    first_copies: dict[str, list[str]] = defaultdict(list)
    for arrival in broker.arrivals:
        message = arrival.message
        if message.message_id not in first_copies[message.session_id]:
            first_copies[message.session_id].append(message.message_id)
    sendable = {key: [one for one in ids if one not in poison] for key, ids in history.committed.items()}
    assert () == await keys.list()
    assert {key: ids for key, ids in sendable.items() if ids} == dict(first_copies)


POISON = st.frozensets(
    st.sampled_from([f"{key}/{number}" for key in "abcd" for number in range(4)]), max_size=4
)
OPERATIONS = st.lists(st.floats(0, 40), max_size=4)


@settings(max_examples=examples(60, many=400), suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(history=histories(), poison=POISON, operations=OPERATIONS)
async def test_first_copies_of_all_events_arrive_in_order_whatever_fails(
    history: History, poison: frozenset[str], operations: list[float]
):
    await check(history, poison, operations)


class AsksNobody(TriggeredRelay):
    async def _parked_of(self, parking: Parking, keys: Iterable[str]) -> list[str]:
        return []


class AsksOnce(TriggeredRelay):
    async def _parked_of(self, parking: Parking, keys: Iterable[str]) -> list[str]:
        known: dict[str, bool] = self.__dict__.setdefault("known", {})
        found = await super()._parked_of(parking, [key for key in keys if key not in known])
        known |= {key: key in found for key in keys if key not in known}
        return [key for key in keys if known[key]]


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="the property must notice this mistake")
@pytest.mark.parametrize("relay_type", [AsksNobody, AsksOnce])
@settings(
    max_examples=1000,
    phases=[Phase.generate],
    derandomize=True,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
    deadline=None,
)
@given(history=histories(), poison=POISON, operations=OPERATIONS)
async def test_a_function_that_does_not_read_which_keys_are_parked_breaks_the_order(
    relay_type: type[TriggeredRelay], history: History, poison: frozenset[str], operations: list[float]
):
    await check(history, poison, operations, relay_type)
