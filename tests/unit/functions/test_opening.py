"""What the invocations of a process share is opened at the first of them, and once."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from triggers import Once


async def test_invocations_that_come_at_once_share_what_the_first_one_opens():
    opened: list[object] = []

    @Once
    async def clients(stack: AsyncExitStack) -> object:
        await asyncio.sleep(1)
        opened.append(object())
        return opened[-1]

    assert 1 == len(set(await asyncio.gather(*(clients() for _ in range(10)))))
    assert opened == [await clients()]


async def test_what_could_not_be_opened_is_closed_and_the_next_invocation_tries_again():
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
