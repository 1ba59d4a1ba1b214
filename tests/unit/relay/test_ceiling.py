"""
The ceiling (`OUTBOX_SEND_RATE`): how many messages a second a process sends at most, and how several relays share this number.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmos_outbox.adapters.memory.broker import Fault, MemoryBroker
from cosmos_outbox.adapters.memory.parked import MemoryParked
from cosmos_outbox.errors import ConfigurationError, ReleaseTakenOver
from cosmos_outbox.parking import ParkedKeys, Parking
from cosmos_outbox.relay import Relay
from cosmos_outbox.relay.ceiling import Ceiling
from cosmos_outbox.relay.released_events import resending
from cosmos_outbox.relay.topics_and_refusals import Topics
from tests.support.event_documents import batch, event


def now() -> float:
    return asyncio.get_running_loop().time()


class World:
    """A broker, and relays and publishers that share one send rate (the ceiling)."""

    def __init__(self, per_second: float) -> None:
        self.broker, self.ceiling = MemoryBroker(clock=now), Ceiling(per_second)
        self.store = MemoryParked()

    def topics(self, lanes: int = 4) -> Topics:
        return Topics({"": self.broker.publisher(lanes=lanes)}, ceiling=self.ceiling)

    def relay(self) -> Relay:
        return Relay(self.topics(), parking=Parking(self.store), notify=lambda record: None)

    @property
    def sent(self) -> list[tuple[str, float]]:
        return [(one.message.message_id, round(one.at, 3)) for one in self.broker.arrivals]


@given(
    st.floats(0.1, 5_000),
    st.lists(st.tuples(st.floats(0, 3), st.floats(0.0, 1.0)), min_size=1, max_size=60),
)
def test_no_second_exceeds_the_send_rate_by_more_than_one_send(
    per_second: float, asked: list[tuple[float, float]]
) -> None:
    ceiling, at, turns = Ceiling(per_second), 0.0, []
    for pause, part in asked:
        at += pause
        number = max(1, int(part * ceiling.at_once))
        turns.append((at + ceiling.reserve(number, now=at), number))
    assert turns == sorted(turns, key=lambda turn: turn[0]), "a turn came before an earlier one"
    for begins, _ in turns:
        within = sum(number for other, number in turns if begins <= other < begins + 1 - 1e-6)
        assert within <= per_second + ceiling.at_once


def test_a_send_rate_of_zero_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="more than 0 a second"):
        Ceiling(0)


async def test_relays_of_two_containers_take_turns_under_one_send_rate() -> None:
    world = World(per_second=20)
    pages = {name: [event(name, number) for number in range(1, 21)] for name in ("ada", "grace")}
    async with asyncio.TaskGroup() as group:
        for name, events in pages.items():
            group.create_task(world.relay()(batch(*events, lease=name)))
    assert [at for _, at in world.sent] == [pytest.approx(number // 2 / 10) for number in range(40)]
    for name in pages:
        assert [f"{name}/{number}" for number in range(1, 21)] == [
            one for one, _ in world.sent if one.startswith(name)
        ]
        assert max(at for one, at in world.sent if one.startswith(name)) >= 1.8, "the other one waited for it"


async def test_a_page_that_the_send_rate_slows_down_reports_progress_to_its_lease() -> None:
    world, moved = World(per_second=1), list[float]()
    page = batch(*(event("k", number) for number in range(5)))
    await world.relay()(replace(page, moving=lambda: moved.append(now())))
    assert [0, 1, 2, 3, 4] == [pytest.approx(at) for at in moved]


async def test_a_message_to_two_topics_counts_twice_against_the_send_rate() -> None:
    brokers = [MemoryBroker(clock=now) for _ in range(2)]
    topics = {str(number): broker.publisher(lanes=1) for number, broker in enumerate(brokers)}
    await Relay(Topics(topics, ceiling=Ceiling(2)))(batch(*(event("k", number) for number in range(3))))
    assert [[0, 1, 2]] * 2 == [[round(one.at, 3) for one in broker.arrivals] for broker in brokers]


@pytest.mark.parametrize("per_second", [5, 30])
@pytest.mark.parametrize("refused", ["a/1", "b/2", "c/3"])
async def test_a_refused_event_holds_only_its_own_key_also_under_a_send_rate(
    refused: str, per_second: float
) -> None:
    """With a send rate, the relay sends messages in portions. The refused event may be in any portion."""
    world = World(per_second)
    world.broker.rejects = lambda message: message.message_id == refused
    world.broker.faults.extend([None, Fault.ACK_LOST, Fault.LOST, None, Fault.ACK_LOST])
    await world.relay()(batch(*(event(key, number) for key in "abc" for number in (1, 2, 3))))
    key, first = refused.split("/")
    (parked,) = await ParkedKeys(world.store).list()
    held = [one.event_id for one in (await ParkedKeys(world.store).show(parked.partition_key)).held]
    expected = [f"{key}/{number}" for number in range(int(first), 4)]
    assert expected == held
    accepted = [message.message_id for message in world.broker.accepted]
    assert {f"{one}/{number}" for one in "abc" for number in (1, 2, 3)} == {*accepted, *held}
    for one in "abc":
        ours = [message_id for message_id in accepted if message_id.startswith(one)]
        assert sorted(ours) == ours


async def test_a_batch_that_is_halved_after_a_passing_refusal_keeps_its_order() -> None:
    world, refusals = World(per_second=20), [True, False]
    world.broker.rejects = lambda message: bool(refusals) and refusals.pop(0)
    await world.relay()(batch(*(event("k", number) for number in range(9))))
    assert [f"k/{number}" for number in range(9)] == [one for one, _ in world.sent]


@pytest.mark.parametrize("busy", [0, 3])
async def test_a_release_slowed_by_the_send_rate_stops_once_another_release_began(busy: int) -> None:
    world = World(per_second=1)
    world.broker.rejects = lambda message: True
    await world.relay()(batch(*(event("a", number) for number in (1, 2, 3))))
    world.broker.rejects = lambda message: False
    world.ceiling.reserve(busy, now=now())  # others send
    slow = ParkedKeys(world.store, resending(world.topics(lanes=1)))
    unbounded = ParkedKeys(world.store, resending(world.broker.publisher(lanes=1)))
    releasing = asyncio.create_task(slow.release("a"))
    await asyncio.sleep(1.5)
    sent = len(world.broker.accepted)
    await unbounded.release("a")
    with pytest.raises(ReleaseTakenOver):
        await releasing
    assert ["a/1", "a/2", "a/3"] == [message.message_id for message in world.broker.accepted]
    assert (0 if busy else 1) == sent == world.broker.duplicates


async def test_messages_that_an_outage_delayed_are_still_sent_within_the_send_rate() -> None:
    world = World(per_second=1)
    world.broker.latency_seconds = 5.0
    asyncio.get_running_loop().call_later(4.0, setattr, world.broker, "latency_seconds", 0.0)
    await world.relay()(batch(*(event("k", number) for number in range(4))))
    first, *others = [at for _, at in world.sent]
    assert [1, 1] == [pytest.approx(later - one) for one, later in pairwise(others)]
    assert others[0] >= first
