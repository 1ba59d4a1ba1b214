"""
The inbox where a read is behind, where another process was first, and where an entity has had another life under its id.
"""

from __future__ import annotations

from typing import Any

import pytest

from cosmos_outbox.errors import NotFound
from cosmos_outbox.records import MessageParked
from tests.unit.consumer.shop import World, message
from tests.unit.consumer.test_handling import OrderPaid, invoicing, placed


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
    for one in (placed(7, before=(6, 0)), placed(1, before=(0, 0)), placed(2, before=(1, 0))):
        world.subscription.deliver(one)
    await world.run()

    assert [7, 1, 2] == [invoice["data"]["total"] for invoice in world.documents("invoice")]


@pytest.mark.xfail(strict=True, reason="a message does not say which life of its entity it is of")
async def test_a_copy_from_an_earlier_life_of_an_entity_has_no_second_effect():
    world = World(invoicing())
    first = placed(1, before=(0, 0))
    for one in (first, placed(1, before=(0, 0)), first):
        world.subscription.deliver(one)
    await world.run()

    assert 2 == len(world.documents("invoice"))
