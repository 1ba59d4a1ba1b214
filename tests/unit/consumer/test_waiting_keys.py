"""Keys whose store is away, or whose handler hangs, do not keep the others from being handled."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from pydantic import BaseModel

from cosmos_outbox import Outbox, UnitOfWork
from cosmos_outbox.adapters.memory import MemoryContainer
from cosmos_outbox.consumer import Consumer
from cosmos_outbox.errors import StoreUnavailable
from cosmos_outbox.messages import Message
from cosmos_outbox.records import MessageSettled
from cosmos_outbox.sessions import SessionOptions, SessionProcessor
from tests.support.shop import World


class Paid(BaseModel):
    n: int = 0


class Away(MemoryContainer):
    """The store of a tenant, which answers nothing."""

    async def read(self, *_: Any, **__: Any) -> Any:
        raise StoreUnavailable("away")

    async def commit(self, *_: Any, **__: Any) -> Any:
        raise StoreUnavailable("away")


def sent(key: str, number: int = 1) -> Message:
    body = json.dumps({"n": number}).encode()
    return Message(message_id=f"{key}-{number}", session_id=key, subject="Paid", body=body)


@pytest.mark.parametrize("hangs", [False, True], ids=["its store is away", "its handler hangs"])
async def test_three_times_more_keys_that_wait_than_slots_delay_no_other_for_two_seconds(hangs: bool) -> None:
    away, good = Outbox(Away(ranges=1)), Outbox(MemoryContainer(ranges=1))

    def outbox_of(message: Message) -> Outbox:
        return away if str(message.session_id).startswith("w") and not hangs else good

    consumer, at, order = Consumer("c", outbox_of=outbox_of), dict[str, float](), list[str]()

    @consumer.on(Paid, subject="Paid")
    async def take(paid: Paid, message: Message, uow: UnitOfWork) -> None:
        if str(message.session_id).startswith("w"):
            await asyncio.Event().wait()
        at[message.message_id] = asyncio.get_running_loop().time()
        order.append(message.message_id)

    world = World(consumer)
    for number in range(100):
        world.subscription.deliver(sent(f"w{number}"))
    options = SessionOptions(max_concurrent_sessions=32)
    processor = SessionProcessor(world.subscription, world.handling, options, hooks=[world.records.append])
    running = asyncio.create_task(processor.run())
    await asyncio.sleep(200)  # each was tried once
    for number in range(8):
        began = asyncio.get_running_loop().time()
        for name in ("a", "b"):
            world.subscription.deliver(sent(name, number))
        await asyncio.sleep(2)
        for name in ("a", "b"):
            assert at[f"{name}-{number}"] - began < 2
        await asyncio.sleep(31)
    assert [f"a-{number}" for number in range(8)] == [one for one in order if one[0] == "a"]
    waiting = {message.message_id for message in world.subscription.waiting}
    assert {f"w{number}-1" for number in range(100)} >= waiting
    assert {0} >= {message.delivery_count for message in world.subscription.waiting}
    settled = [one.outcome for one in world.of(MessageSettled) if one.message_id[0] != "w"]
    assert ["complete"] * 16 == settled
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
