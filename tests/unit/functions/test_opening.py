"""
Clients that all invocations of a Functions process share: they are opened once, at the first invocation.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from triggers import Once


async def test_invocations_at_the_same_time_share_the_clients_of_the_first_one():
    opened: list[object] = []

    @Once
    async def clients(stack: AsyncExitStack) -> object:
        await asyncio.sleep(1)
        opened.append(object())
        return opened[-1]

    assert 1 == len(set(await asyncio.gather(*(clients() for _ in range(10)))))
    assert opened == [await clients()]


async def test_a_failed_opening_is_tried_again_at_the_next_invocation():
    """The failed attempt first closes the clients that it had opened."""
    events: list[str] = []

    @Once
    async def clients(stack: AsyncExitStack) -> str:
        stack.callback(events.append, "closed")
        events.append("opened")
        if len(events) == 1:
            raise ConnectionError
        return "clients"

    with pytest.raises(ConnectionError):
        await clients()
    assert ["opened", "closed"] == events
    assert "clients" == await clients()
    assert ["opened", "closed", "opened"] == events
