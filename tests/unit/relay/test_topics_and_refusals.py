"""
How the relay decides whether a refused message or its topic is at fault: it parks the message's key, or halts and parks nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import pytest

from cosmos_outbox.errors import BrokerUnavailable, MessageRejected, PublishError, TopicRefusesAll
from cosmos_outbox.message_format import OutboundMessage
from cosmos_outbox.ports import ChangeBatch, Notes
from cosmos_outbox.records import KeyParked, PublishFailed
from cosmos_outbox.relay import topics_and_refusals
from cosmos_outbox.relay.topics_and_refusals import BELIEVED_IN_A_ROW, UNCLEAR_ATTEMPTS, Refusals
from tests.support.event_documents import batch, event
from tests.unit.parking.test_parking import World


async def parked_keys(world: World) -> set[str]:
    return {key.partition_key for key in await world.operator.list()}


def crowd(number: int = 1, *, keys: int = 30, page: int = 0) -> ChangeBatch:
    """Return a page with one event of each of many keys."""
    return batch(*(event(f"p{page}k{key}", number, lsn=key) for key in range(keys)))


@pytest.mark.parametrize("taken_before", [True, False])
async def test_a_topic_that_refuses_everything_halts_the_lease_after_a_few_parked_keys(
    taken_before: bool,
) -> None:
    world = World(batch_size=100)
    if taken_before:
        await world.relay(batch(event("calm")))
    world.broker.rejects = lambda message: True
    for _ in range(3):
        with pytest.raises(TopicRefusesAll, match="at fault"):
            await world.relay(crowd())
    assert BELIEVED_IN_A_ROW >= len(await parked_keys(world))
    assert "halted" in {one.outcome for one in world.told if isinstance(one, PublishFailed)}
    world.broker.rejects = lambda message: False
    await world.relay(crowd())
    parked = await parked_keys(world)
    assert {f"p0k{key}/1" for key in range(30)} - set(world.ids) == {f"{key}/1" for key in parked}


async def test_a_topic_that_refuses_everything_gets_few_messages_when_a_page_is_repeated() -> None:
    world = World(batch_size=100)
    await world.relay(batch(event("calm")))
    asked = 0

    def refuse(message: object) -> bool:
        nonlocal asked
        asked += 1
        return True

    world.broker.rejects = refuse
    with pytest.raises(TopicRefusesAll):
        await world.relay(crowd())
    asked = 0
    with pytest.raises(TopicRefusesAll):
        await world.relay(crowd())
    assert asked <= 6, "a batch, and what was taken before, on each lane"


async def test_a_topic_that_passed_a_test_is_tested_again_after_several_more_refusals() -> None:
    world, asked = World(batch_size=100), list[str]()
    await world.relay(batch(event("calm")))

    def refuse(message: OutboundMessage) -> bool:
        asked.append(message.message_id)
        return message.message_id != "calm/1"

    world.broker.rejects = refuse
    refused = 4 * (BELIEVED_IN_A_ROW + 1)
    for key in range(refused):
        await world.relay(batch(event(f"k{key}")))
    assert refused == len(await parked_keys(world))
    assert 4 == asked.count("calm/1")


@pytest.mark.parametrize(
    ("quiet_for", "asleep", "copies"), [(290, 0, 2), (310, 0, 1), (10, 280, 2), (10, 300, 1)]
)
async def test_a_message_that_was_accepted_long_ago_is_not_resent_to_test_the_topic(
    quiet_for: float, asleep: float, copies: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A probe sends an accepted message again, to test the topic. If duplicate detection has forgotten its id, a consumer would receive it
    twice.
    """
    world, asked, slept = World(batch_size=100), list[str](), 3600.0
    monkeypatch.setattr(topics_and_refusals, "suspended_seconds", lambda: slept)
    await world.relay(batch(event("calm")))
    await asyncio.sleep(quiet_for)
    slept += asleep

    def refuse(message: OutboundMessage) -> bool:
        asked.append(message.message_id)
        return message.message_id != "calm/1"

    world.broker.rejects = refuse
    with suppress(TopicRefusesAll):
        await world.relay(crowd(keys=8))
    assert copies - 1 == min(1, asked.count("calm/1"))


async def test_an_outage_that_is_longer_than_duplicate_detection_parks_no_key() -> None:
    world = World(batch_size=100)
    await world.relay(batch(event("calm")))
    world.broker.chokes = lambda message: True
    running = asyncio.create_task(world.relay(crowd(keys=8)))
    await asyncio.sleep(1200)
    assert set() == await parked_keys(world)

    world.broker.chokes = lambda message: False
    await running
    assert (set(), 9) == (await parked_keys(world), len(set(world.ids)))


async def test_the_relay_forgets_the_attempts_of_the_oldest_failed_messages_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(topics_and_refusals, "_REMEMBERED", 2)
    evidence = Refusals(believed=BELIEVED_IN_A_ROW)

    async def send(messages: Sequence[OutboundMessage]) -> None:
        if messages[0].message_id != "calm":
            raise BrokerUnavailable("no", condition="amqp:internal-error")

    async def judged(message_id: str) -> PublishError | None:
        message = OutboundMessage(message_id=message_id, session_id="k", subject="S", body=b"", properties={})
        try:
            await evidence.judge(send, [message], lambda: 0)
        except PublishError as error:
            return error
        return None

    for message_id in ("calm", "a", "b", *["c"] * (UNCLEAR_ATTEMPTS - 1)):
        await judged(message_id)
    assert isinstance(await judged("c"), MessageRejected)


async def test_a_message_on_which_the_broker_always_fails_is_parked() -> None:
    world = World(batch_size=100)
    world.broker.chokes = lambda message: message.message_id == "p0k17/1"
    await world.relay(crowd())
    assert {"p0k17"} == await parked_keys(world)
    assert 29 == len(set(world.ids))
    (parked,) = world.told_of(KeyParked)
    assert isinstance(parked, KeyParked)
    assert "amqp:internal-error" in parked.error


async def test_a_message_on_which_the_broker_always_fails_is_parked_without_other_messages() -> None:
    world = World(batch_size=100)
    world.broker.chokes = lambda message: True
    page = batch(event("b"))
    for _ in range(20):
        with suppress(TopicRefusesAll):
            await world.relay(page)
    assert {"b"} == await parked_keys(world)


async def test_a_worker_that_gets_its_lease_back_reads_the_parked_keys_again() -> None:
    """
    The relay parked some keys of a page and then halted, so the lease does not name these keys yet.
    """
    world, saved = World(batch_size=100), Notes("[]")
    await world.relay(batch(event("calm"), tenure=1))
    world.broker.rejects = lambda message: True
    with pytest.raises(TopicRefusesAll):
        await world.relay(replace(crowd(), tenure=1))
    parked = await parked_keys(world)
    assert parked
    world.broker.rejects = lambda message: False
    await world.relay(replace(crowd(), tenure=2, notes=saved))
    await world.relay(replace(crowd(2), tenure=2, notes=saved))
    for key in parked:
        await world.operator.release(key)
    for key in range(30):
        assert [f"p0k{key}/1", f"p0k{key}/2"] == [
            message.message_id for message in world.broker.accepted if message.session_id == f"p0k{key}"
        ]


async def test_no_test_message_is_sent_if_the_topic_accepts_messages_between_refusals():
    world = World(batch_size=100)
    world.broker.rejects = lambda message: str(message.session_id).startswith("bad")
    for number in range(3 * BELIEVED_IN_A_ROW):
        await world.relay(batch(event("calm", number)))
        await world.relay(batch(event(f"bad{number}")))
    assert not [arrival for arrival in world.broker.arrivals if arrival.duplicate]
    assert 3 * BELIEVED_IN_A_ROW == len(await parked_keys(world))


async def test_if_a_topic_never_accepts_a_message_few_messages_count_as_rejected() -> None:
    """A message counts as rejected after many failed attempts. After a few such messages, the topic counts as the cause of failures."""
    refusals, blamed = Refusals(believed=BELIEVED_IN_A_ROW), list[int]()

    async def fail(messages: Sequence[OutboundMessage]) -> None:
        raise BrokerUnavailable("no", condition="amqp:internal-error")

    for number in range(2 * BELIEVED_IN_A_ROW):
        message = OutboundMessage(
            message_id=str(number), session_id="k", subject="S", body=b"", properties={}
        )
        for attempt in range(1, 4 * UNCLEAR_ATTEMPTS):
            with suppress(BrokerUnavailable, TopicRefusesAll):
                try:
                    await refusals.judge(fail, [message], lambda: 0)
                except MessageRejected:
                    blamed.append(attempt)
                    break

    assert [3 * UNCLEAR_ATTEMPTS] * BELIEVED_IN_A_ROW == blamed
