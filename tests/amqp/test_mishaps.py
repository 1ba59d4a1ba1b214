"""Tests of the lean receiver with a slow broker, and with an unexpected message, credential or answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any
from uuid import UUID

import pytest
from azure.core.credentials import AccessToken

from cosmos_outbox.errors import SubscriptionUnavailable
from cosmos_outbox_amqp import AmqpSubscription
from cosmos_outbox_amqp.connection import HEARTBEAT
from cosmos_outbox_amqp.errors import AmqpError, Condition
from cosmos_outbox_amqp.frames import Code
from cosmos_outbox_amqp.link import ACCEPTED, Attached
from cosmos_outbox_amqp.peer_trust import Trust
from cosmos_outbox_amqp.requests import Requests
from cosmos_outbox_amqp.session import AmqpSession
from tests.amqp import wire
from tests.amqp.peer import Broker, Peer, attached, client_with, connect_to, linked, welcoming
from tests.amqp.wire import (
    FALSE,
    NULL,
    TRUE,
    uint,
)

LOST = wire.rejected(Condition.SESSION_LOCK_LOST, "gone")


class Slow(Broker):
    """A broker that answers each request after `seconds`, or never if `seconds` is None."""

    seconds: float | None = 2.0

    def _reply(self, number: UUID) -> None:
        if self.seconds is not None:
            asyncio.get_running_loop().call_later(self.seconds, super()._reply, number)


class TestRequests:
    async def test_each_of_many_overlapping_requests_has_its_own_time_limit(self) -> None:
        broker = Slow(200)
        requests, asked = Requests(broker.connection, "m"), []
        for _ in range(60):
            asked.append(asyncio.create_task(requests.ask("renew", {}, None)))
            await asyncio.sleep(1)
        await asyncio.gather(*asked)
        assert requests.waiting_since is None

    async def test_requests_still_count_as_unanswered_if_their_callers_gave_up(self) -> None:
        broker = Slow(200)
        broker.seconds = None
        requests = Requests(broker.connection, "m")
        for _ in range(8):
            with suppress(TimeoutError, AmqpError):
                async with asyncio.timeout(5):
                    await requests.ask("renew", {}, None)
            broker.connection.data_received(HEARTBEAT)
        assert "does not answer" in str(requests.error)

    async def test_a_refused_request_does_not_fail_the_other_requests(self) -> None:
        broker = Slow(200)
        requests = Requests(broker.connection, "m")
        asked = [asyncio.create_task(requests.ask("renew", {}, None)) for _ in range(3)]
        await asyncio.sleep(1)
        broker.says(Code.DISPOSITION, TRUE, uint(1), uint(1), TRUE, LOST)
        first, second, third = await asyncio.gather(*asked, return_exceptions=True)
        assert isinstance(second, AmqpError)
        assert not isinstance(first, BaseException)
        assert not isinstance(third, BaseException)


async def held(peer: Peer) -> AmqpSession:
    link = await attached(peer)
    unused: Any = None
    return AmqpSession(unused, link, Attached("a", None), trust=Trust("q"), lock_seconds=60)


class TestMessages:
    async def test_a_message_that_cannot_be_decoded_is_dead_lettered_once(self) -> None:
        peer = welcoming()
        session = await held(peer)
        receiving = asyncio.create_task(session.receive(0))
        await peer.heard()
        peer.transfers(0, b"no message")
        await peer.heard()
        peer.says(Code.DISPOSITION, FALSE, uint(0), uint(0), TRUE, wire.rejected("com.microsoft:dead-letter"))
        await peer.heard()
        peer.says(Code.FLOW, uint(1), uint(9), uint(0), uint(9), uint(0), uint(2), uint(0), NULL, TRUE)
        assert await receiving is None
        closing = asyncio.create_task(session.close())
        assert [Code.DETACH, Code.END] == [code for code, _ in await peer.heard()]
        await closing

    @pytest.mark.parametrize("outcome", [wire.MODIFIED, wire.REJECTED], ids=["modified", "rejected"])
    async def test_a_settlement_fails_if_the_broker_reports_another_outcome_than_asked(
        self, outcome: bytes
    ) -> None:
        peer, link = await linked()
        settling = asyncio.create_task(link.settle(0, ACCEPTED))
        await peer.heard()
        peer.says(Code.DISPOSITION, FALSE, uint(0), uint(0), TRUE, outcome)
        with pytest.raises(AmqpError, match="another outcome than requested"):
            await settling

    async def test_a_settlement_waits_until_the_drain_of_a_cancelled_receive_has_ended(self) -> None:
        peer, link = await linked(ahead=2)
        receiving = asyncio.create_task(link.receive(0))
        await peer.heard()
        peer.transfers(0, b"one")
        receiving.cancel()
        settling = asyncio.create_task(link.settle(0, ACCEPTED))
        await peer.heard()
        peer.says(Code.DISPOSITION, FALSE, uint(0), uint(0), TRUE, wire.ACCEPTED)
        for _ in range(5):
            await asyncio.sleep(8)
            peer.connection.data_received(HEARTBEAT)
        with pytest.raises(AmqpError, match="does not answer"):
            await settling


async def a_file_that_is_missing(*_: str) -> AccessToken:
    raise FileNotFoundError("token")


async def no_answer(*_: str) -> AccessToken:
    await asyncio.Event().wait()
    raise AssertionError


@pytest.mark.parametrize("token_for", [a_file_that_is_missing, no_answer])
async def test_accept_raises_subscription_unavailable_when_signing_in_fails(
    token_for: Callable[..., Awaitable[AccessToken]], monkeypatch: pytest.MonkeyPatch
) -> None:
    connect_to(monkeypatch, lambda: Broker(200))
    async with AmqpSubscription(client_with(token_for), "q") as subscription:
        with pytest.raises(SubscriptionUnavailable):
            async with asyncio.timeout(300):
                await subscription.accept(20)
