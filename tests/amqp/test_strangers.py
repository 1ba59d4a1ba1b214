"""
Tests of the lean receiver against brokers that use AMQP in other ways than Service Bus does.

If the lean receiver does not understand a broker, the SDK's receiver takes over.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any
from uuid import UUID

import pytest

from cosmos_outbox.adapters.servicebus import ServiceBusSubscription, open_service_bus_client
from cosmos_outbox.errors import ConfigurationError, LockLost, SubscriptionUnavailable
from cosmos_outbox.ports import DeadLetter
from cosmos_outbox.records import Record, SdkFallback
from cosmos_outbox_amqp import AmqpSubscription, FallbackSubscription
from cosmos_outbox_amqp import signed_in_connection as signing
from cosmos_outbox_amqp.connection import AMQP_HEADER, HEARTBEAT, SASL_HEADER, Connection
from cosmos_outbox_amqp.errors import AmqpError, Condition, ProtocolError, Unanswered, receive_error
from cosmos_outbox_amqp.frames import Code, frame
from cosmos_outbox_amqp.link import ACCEPTED, Attached, Link, dead_lettered
from cosmos_outbox_amqp.peer_trust import Trust
from cosmos_outbox_amqp.requests import Requests
from cosmos_outbox_amqp.session import AmqpSession
from tests.amqp import wire
from tests.amqp.peer import BEGUN, WELCOME, Broker, Peer, client_with, connect_to, linked
from tests.amqp.wire import FALSE, NULL, TRUE, binary, performative, string, symbol, uint, ushort


def opening(*limits: bytes) -> Peer:
    """Return a peer whose open frame ends with these limits, such as the largest size of a frame."""
    peer = Peer()
    opened = frame(0, performative(Code.OPEN, string("peer"), NULL, *limits))
    peer.connection.data_received(WELCOME[: WELCOME.index(AMQP_HEADER)] + AMQP_HEADER + opened)
    return peer


class Unhurried(Broker):
    """A broker that gives credit for requests only when the test says so."""

    def _attach(self, name: str, handle: int) -> None:
        self.says(Code.ATTACH, string(name), uint(handle + 3))


class TestRequests:
    @pytest.mark.parametrize("limits", [(), (uint(512),)], ids=["without a limit", "of 512"])
    async def test_a_request_is_split_into_frames_that_the_broker_can_read(
        self, limits: tuple[bytes, ...]
    ) -> None:
        peer = opening(*limits)
        requests = Requests(peer.connection, "$cbs")
        said = [fields for code, fields in await peer.heard() if code == Code.ATTACH]
        peer.connection.data_received(BEGUN)
        peer.says(Code.ATTACH, string(said[0][0]), uint(7))
        peer.says(Code.FLOW, uint(0), uint(99), uint(0), uint(9), uint(7), uint(0), uint(9))
        asking = asyncio.create_task(requests.ask("put-token", {}, "t" * 3000))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        sizes, position = [], 0
        while position < len(peer.written):
            sizes.append(int.from_bytes(peer.written[position : position + 4], "big"))
            position += sizes[-1]
        more = [fields[5] for code, fields in await peer.heard() if code == Code.TRANSFER]
        assert [True] * (len(more) - 1) + [False] == more
        assert (len(more) > 5, max(sizes) <= 512) == ((True, True) if limits else (False, False))
        asking.cancel()

    async def test_requests_wait_for_the_broker_s_credit_and_session_window(self) -> None:
        broker = Unhurried(200)
        requests = Requests(broker.connection, "m")
        asked = [asyncio.create_task(requests.ask("renew", {}, None)) for _ in range(5)]
        await asyncio.sleep(1)
        assert 0 == broker.operations
        broker.gives_credit(2)
        await asyncio.sleep(1)
        assert 2 == broker.operations
        broker.gives_credit(99, seen=2, window=1)
        await asyncio.sleep(1)
        assert 3 == broker.operations
        broker.gives_credit(99, seen=3, window=9)
        await asyncio.gather(*asked)
        assert 5 == broker.operations


class TestSettlements:
    @pytest.fixture
    async def settling(self) -> tuple[Peer, asyncio.Task[None]]:
        peer, link = await linked()
        task = asyncio.create_task(link.settle(0, ACCEPTED))
        await peer.heard()
        return peer, task

    async def test_only_a_disposition_with_the_settled_flag_confirms_a_settlement(
        self, settling: tuple[Peer, asyncio.Task[None]]
    ) -> None:
        peer, task = settling
        for settled, state in (
            (FALSE, wire.described(0x23, b"\x45")),
            (FALSE, wire.ACCEPTED),
            (NULL, wire.ACCEPTED),
        ):
            peer.says(Code.DISPOSITION, FALSE, uint(0), uint(0), settled, state)
            await peer.heard()
            assert not task.done()
        peer.says(Code.DISPOSITION, FALSE, uint(0), uint(0), TRUE, wire.rejected(Condition.SESSION_LOCK_LOST))
        with pytest.raises(AmqpError, match="session-lock-lost"):
            await task

    @pytest.mark.parametrize(
        ("condition", "is_done"), [("com.microsoft:dead-letter", True), ("amqp:internal-error", False)]
    )
    async def test_a_dead_letter_is_settled_if_the_broker_repeats_its_condition(
        self, condition: str, *, is_done: bool
    ) -> None:
        peer, link = await linked()
        task = asyncio.create_task(link.settle(0, dead_lettered("why", "so")))
        await peer.heard()
        peer.says(Code.DISPOSITION, FALSE, uint(0), uint(0), TRUE, wire.rejected(condition))
        with suppress(AmqpError):
            await task
        assert is_done is (task.exception() is None)

    async def test_a_settlement_that_the_broker_cannot_find_raises_lock_lost(self) -> None:
        peer, link = await linked()
        unused: Any = None
        session = AmqpSession(unused, link, Attached("a", None), trust=Trust("q"), lock_seconds=60)
        receiving = asyncio.create_task(session.receive(1))
        await peer.heard()
        peer.transfers(0, wire.described(Code.DATA, binary(b"x")))
        message = await receiving
        assert message is not None
        settling = asyncio.create_task(session.settle(message, DeadLetter(reason="r", description="d")))
        await peer.heard()
        peer.says(Code.DISPOSITION, FALSE, uint(0), uint(0), TRUE, wire.rejected(Condition.NOT_FOUND))
        with pytest.raises(LockLost):
            await settling


class TestLinks:
    async def test_a_message_beyond_the_credit_of_a_link_detaches_only_this_link(self) -> None:
        peer, link = await linked()
        other = Link(peer.connection, "q", wait_seconds=20, ahead=0)
        peer.transfers(0, b"unasked")
        said = [code for code, _ in await peer.heard()]
        assert [Code.DETACH, Code.END] == said[-2:]
        with pytest.raises(ProtocolError):
            await link.receive(1)
        assert (None, None) == (other.error, peer.connection.lost)

    async def test_a_link_answers_at_once_a_flow_that_asks_for_an_echo(self) -> None:
        peer, link = await linked(ahead=3)
        receiving = asyncio.create_task(link.receive(5))
        await peer.heard()
        peer.says(Code.FLOW, uint(1), uint(9), uint(0), uint(9), *[NULL] * 5, TRUE)
        [(code, fields)] = await peer.heard()
        assert (Code.FLOW, 3, False) == (code, fields[6], fields[8])
        receiving.cancel()


class TestConnections:
    @pytest.mark.parametrize("milliseconds", [100, 2_000, 4_000, 8_000, 20_000, 240_000])
    async def test_heartbeats_are_sent_well_within_the_broker_s_idle_timeout(self, milliseconds: int) -> None:
        peer = opening(uint(65536), ushort(9), uint(milliseconds))
        await peer.heard()
        loop, longest = asyncio.get_running_loop(), 0.0
        began = last = loop.time()
        while loop.time() - began < 4 * milliseconds / 1000:
            await asyncio.sleep(milliseconds / 1000 / 50)
            peer.connection.data_received(HEARTBEAT)
            if peer.written:
                peer.written, last = b"", loop.time()
            longest = max(longest, loop.time() - last)
        assert longest <= milliseconds / 1000 * 0.8

    @pytest.mark.parametrize(
        ("outcome", "advice"),
        [(1, "correct the key"), (2, "tried again"), (3, "tried again"), (4, "tried again")],
    )
    async def test_only_a_wrong_key_leads_to_the_advice_to_correct_it(
        self, outcome: int, advice: str
    ) -> None:
        peer = Peer()
        said = SASL_HEADER + frame(0, performative(Code.SASL_MECHANISMS, symbol("ANONYMOUS")), sasl=True)
        peer.connection.data_received(
            said + frame(0, performative(Code.SASL_OUTCOME, bytes((0x50, outcome))), sasl=True)
        )
        assert peer.connection.lost is not None
        assert advice in str(receive_error(peer.connection.lost, entity="q"))


def fault() -> AmqpError:
    return ProtocolError("garbage")


class TestTrust:
    async def test_three_faults_in_ten_minutes_make_the_lean_receiver_give_up(self) -> None:
        trust = Trust("q")
        for error in (fault(), Unanswered(), AmqpError(Condition.DECODE_ERROR, "said the broker")):
            assert trust.lost_by is None
            assert isinstance(trust.translate(error), SubscriptionUnavailable)
            await asyncio.sleep(60)
        assert "said the broker" in str(trust.lost_by)

    @pytest.mark.parametrize(
        "error",
        [
            *(AmqpError(condition) for condition in Condition if condition != Condition.DECODE_ERROR),
            AmqpError("", "No connection to ns:5671: refused."),
            AmqpError("amqp:internal-error"),
        ],
        ids=str,
    )
    async def test_errors_that_every_client_gets_are_no_fault_of_the_receiver(self, error: AmqpError) -> None:
        trust = Trust("q")
        for _ in range(9):
            trust.translate(error)
            await asyncio.sleep(30)
        assert trust.lost_by is None

    async def test_a_settled_message_resets_the_count_of_faults(self) -> None:
        """A fault also stops counting after ten minutes."""
        trust = Trust("q")
        for _ in range(4):
            trust.translate(fault())
            await asyncio.sleep(30)
            trust.translate(fault())
            trust.on_settled()
        for _ in range(9):
            trust.translate(fault())
            await asyncio.sleep(301)
        assert trust.lost_by is None

    async def test_a_fault_of_a_connection_counts_once_for_all_its_sessions(self) -> None:
        trust = Trust("q")
        for _ in range(32):
            trust.translate(fault())
        assert trust.lost_by is None


class Garbled(Broker):
    """A broker that answers requests with bytes that are not AMQP."""

    def _reply(self, number: UUID) -> None:
        self.connection.data_received(bytes(8))


class TestFallback:
    @pytest.fixture
    def taken_over(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """Replace the `accept` of the SDK's receiver, and return a list that gets an entry for each call."""
        asked: list[str] = []

        async def accept(sdk: ServiceBusSubscription, wait_seconds: float) -> None:
            asked.append("accept")

        monkeypatch.setattr(ServiceBusSubscription, "accept", accept)
        return asked

    async def test_after_repeated_faults_the_sdk_s_receiver_replaces_the_lean_receiver(
        self, taken_over: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The lean receiver first closes its connections, so that the broker unlocks the sessions for the SDK's receiver."""
        peers: list[Peer] = []
        connect_to(monkeypatch, lambda: peers.append(Garbled(200)) or peers[-1])
        told: list[Record] = []
        async with FallbackSubscription(client_with(), "q", notify=told.append) as subscription:
            for _ in range(3):
                with pytest.raises(SubscriptionUnavailable):
                    await subscription.accept(5)
                await asyncio.sleep(6)
            assert ([], []) == (told, taken_over)
            waiting = [asyncio.create_task(subscription.accept(5)) for _ in range(4)]
            assert [None] * 4 == await asyncio.gather(*waiting)
            assert ["accept"] * 4 == taken_over
            [record] = told
            assert isinstance(record, SdkFallback)
            assert "receiver" == record.part
            assert "decode-error" in record.reason
            assert all(peer.aborted for peer in peers)

    async def test_a_waiting_accept_raises_an_error_when_the_receiver_is_closed(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Without this error, the caller would think that its own task was cancelled."""

        async def connect(*_: Any) -> Connection:
            await asyncio.Event().wait()
            raise AssertionError

        monkeypatch.setattr(signing, "connect", connect)
        lean = AmqpSubscription(client_with(), "q")
        accepting = asyncio.create_task(lean.accept(5))
        await asyncio.sleep(1)
        await lean.__aexit__()
        with pytest.raises(SubscriptionUnavailable, match="closed"):
            await accepting

    def test_the_fallback_to_the_sdk_refuses_a_subscription_without_sessions(self) -> None:
        client = open_service_bus_client(
            connection_string="Endpoint=sb://ns/;SharedAccessKeyName=k;SharedAccessKey=v"
        )
        with pytest.raises(ConfigurationError, match="needs sessions"):
            FallbackSubscription(client, "q", sessions=False)
