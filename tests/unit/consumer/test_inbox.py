"""
The inbox where a read is behind, where another process was first, and where an entity has had another life under its id.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from cosmos_outbox import Entity, Outbox, UnitOfWork, key_of_text, key_text
from cosmos_outbox.adapters.memory import MemoryContainer, MemorySubscription
from cosmos_outbox.consumer import Consumer, Message
from cosmos_outbox.errors import ConfigurationError, NotFound
from cosmos_outbox.records import ConsumingDelayed, MessageParked
from tests.support.shop import OrderPaid, World, message
from tests.unit.consumer.test_handling import invoicing, placed


async def test_a_message_that_took_effect_elsewhere_has_not_failed_where_a_read_is_behind():
    world = World(invoicing(attempts=1, inbox="records"))
    for _ in range(2):
        world.subscription.deliver(message(OrderPaid(order_id="o1", id="m1")))
    read, behind = world.container.read, [True, True]

    async def stale(*args: Any, **kwargs: Any) -> Any:
        if behind and behind.pop():
            raise NotFound
        return await read(*args, **kwargs)

    world.container.read = stale  # type: ignore[method-assign]
    await world.run()

    assert [] == world.of(MessageParked)
    assert 1 == len(world.documents("invoice"))


async def test_an_entity_created_again_is_new_to_a_consumer_that_began_in_the_middle_of_its_first_life():
    world = World(invoicing())
    for one in (placed(7), placed(1, life="l2"), placed(2, life="l2")):
        world.subscription.deliver(one)
    await world.run()

    assert [7, 1, 2] == [invoice["data"]["total"] for invoice in world.documents("invoice")]


async def test_copies_from_all_lives_of_an_entity_have_no_second_effect():
    world = World(invoicing())
    lives = [placed(version, life=life) for life in ("l1", "l2") for version in (1, 2)]
    for one in (*lives, *lives, *reversed(lives)):
        world.subscription.deliver(one)
    await world.run()

    assert [1, 2, 1, 2] == [invoice["data"]["total"] for invoice in world.documents("invoice")]


async def test_without_a_life_each_message_has_a_record_unless_the_consumer_asks_for_a_watermark():
    place = {"entity-id": "o1", "entity-version": 1, "sequence": 0}
    for inbox, kind in (("auto", "inboxRecord"), ("watermark", "inboxWatermark")):
        world = World(invoicing(inbox=inbox))
        world.subscription.deliver(message(OrderPaid(order_id="o1"), properties=place))
        await world.run()
        assert 1 == len(world.documents(kind))


async def test_without_sessions_a_message_that_a_later_one_overtook_takes_effect_too():
    world = World(invoicing(), subscription=MemorySubscription(sessions=False))
    for one in (later := placed(2), placed(1), later):
        world.subscription.deliver(one)
    await world.run()

    assert [1, 2] == sorted(invoice["data"]["total"] for invoice in world.documents("invoice"))


@pytest.mark.parametrize("options", [{"inbox": "watermark"}, {"gaps": "warn"}])
async def test_a_consumer_that_needs_order_is_refused_without_sessions(options: dict[str, str]):
    with pytest.raises(ConfigurationError, match="has no sessions"):
        World(invoicing(**options), subscription=MemorySubscription(sessions=False))


async def test_events_of_one_entity_may_take_effect_under_several_partition_keys():
    world = World(invoicing(partition_key=lambda message: json.loads(message.body)["orderId"]))
    for version, order in enumerate(("a", "b", "a", "b"), start=1):
        payload = OrderPaid(order_id=order, total=version).payload()
        world.subscription.deliver(replace(placed(version), body=json.dumps(payload).encode()))
    await world.run()

    assert [] == world.of(MessageParked)
    assert [1, 2, 3, 4] == [invoice["data"]["total"] for invoice in world.documents("invoice")]


class Seat(Entity):
    row: str
    number: int

    @property
    def partition_key(self) -> tuple[str, int]:
        return self.row, self.number


def seating(**options: Any) -> Consumer:
    consumer = Consumer("seating", attempts=1, **options)

    @consumer.on(OrderPaid)
    async def take(event: OrderPaid, message: Message, uow: UnitOfWork) -> None:
        row, number = key_of_text(message.session_id or "", levels=2)
        uow.repository(Seat).create(Seat(row=row, number=number))

    return consumer


async def test_in_a_container_of_hierarchical_keys_the_effect_lies_under_the_key_that_the_session_names():
    world = World(seating(), container=MemoryContainer(ranges=1, key_paths=["/row", "/number"]))
    world.subscription.deliver(message(OrderPaid(order_id="o1", id="m1"), session=key_text(("a", 5))))
    world.subscription.deliver(message(OrderPaid(order_id="o1", id="m1"), session=key_text(("a", 5))))
    await world.run()

    assert [] == world.of(MessageParked)
    assert [("a", 5)] == [(seat["row"], seat["number"]) for seat in world.documents("seat")]


async def test_a_session_that_names_no_key_of_the_container_parks_its_message_with_the_way_out():
    world = World(seating(), container=MemoryContainer(ranges=1, key_paths=["/row", "/number"]))
    world.subscription.deliver(message(OrderPaid(order_id="o1"), session="o1"))
    await world.run()

    (parked,) = world.of(MessageParked)
    assert "'o1' names no partition key" in str(parked.error)
    assert str(parked.error).endswith('write it as ["row","number"]. Or give `partition_key=`.')


@pytest.mark.parametrize("session", ["[5]", '["a","b"]'])
async def test_in_a_container_of_one_path_the_session_is_the_key_whatever_it_looks_like(session: str):
    world = World(invoicing(partition_key=None))
    world.subscription.deliver(message(OrderPaid(order_id=session), session=session))
    await world.run()

    assert [session] == [invoice["partitionKey"] for invoice in world.documents("invoice")]


async def test_events_of_one_entity_may_take_effect_in_several_containers():
    containers = [MemoryContainer(ranges=1), MemoryContainer(ranges=1)]
    outboxes = [Outbox(container) for container in containers]
    world = World(invoicing(outbox_of=lambda message: outboxes[(message.number("entity-version") or 0) % 2]))
    for version in range(1, 5):
        world.subscription.deliver(placed(version))
    await world.run()

    assert [] == world.of(ConsumingDelayed)
    assert [2, 2] == [
        len([one for one in each.documents() if one["type"] == "invoice"]) for each in containers
    ]


async def test_a_copy_that_comes_while_its_key_is_parked_has_no_effect_however_late_the_key_is_released():
    now = [1_000_000_000.0]
    world = World(invoicing(attempts=1), container=MemoryContainer(ranges=1, now=lambda: now[0]))
    once, bad = message(OrderPaid(order_id="o1")), message(OrderPaid(order_id="o1", total=-1))
    for one in (once, bad, once):
        world.subscription.deliver(one)
    await world.run()
    now[0] += 8 * 86400  # the record of the message has been deleted
    await world.keys.drop("o1", bad.message_id, reason="no such order")
    await world.keys.release("o1")

    assert 1 == len(world.documents("invoice"))
