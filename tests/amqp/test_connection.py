"""
Tests of the lean receiver's AMQP connection with a scripted peer, in virtual time. The peer sends garbage, is silent, or does
what Service Bus does not do.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from contextlib import suppress
from typing import Any

import pytest
from azure.core.credentials import AccessToken
from hypothesis import given, settings
from hypothesis import strategies as st

from cosmos_outbox.adapters.servicebus import open_service_bus_client
from cosmos_outbox.errors import ConfigurationError
from cosmos_outbox_amqp import AmqpSubscription
from cosmos_outbox_amqp import signed_in_connection as signing
from cosmos_outbox_amqp.connection import ANSWER_SECONDS, HEARTBEAT, SASL_HEADER
from cosmos_outbox_amqp.errors import AmqpError, Condition, receive_error
from cosmos_outbox_amqp.frames import Code, frame
from cosmos_outbox_amqp.link import ACCEPTED, Link
from cosmos_outbox_amqp.namespace import Namespace
from cosmos_outbox_amqp.requests import Requests
from tests.amqp import wire
from tests.amqp.peer import BEGUN, WELCOME, Broker, Peer, attached, connect_to, linked, welcoming
from tests.amqp.wire import (
    FALSE,
    NULL,
    TRUE,
    binary,
    described,
    listed,
    performative,
    string,
    symbol,
    uint,
    ushort,
)
from tests.support.effort import examples


class TestGarbage:
    DIALOGUE = b"".join(
        (
            WELCOME,
            BEGUN,
            frame(5, performative(Code.ATTACH, string("n"), uint(0), FALSE, NULL, NULL, NULL, NULL)),
            frame(5, performative(Code.FLOW, uint(0), uint(1), uint(0), uint(1), uint(0), uint(0), uint(9))),
            frame(
                5, performative(Code.TRANSFER, uint(0), uint(0), binary(b"t"), uint(0), FALSE) + b"payload"
            ),
            frame(5, performative(Code.DISPOSITION, FALSE, uint(0), uint(0), TRUE, wire.ACCEPTED)),
            frame(5, performative(Code.DETACH, uint(0), TRUE)),
            frame(5, performative(Code.END)),
        )
    )

    @settings(max_examples=examples(150, many=20_000))
    @given(st.data())
    def test_garbage_from_a_peer_ends_the_connection_without_an_exception(self, data: st.DataObject) -> None:
        dialogue = bytearray(self.DIALOGUE)
        for _ in range(data.draw(st.integers(0, 3))):
            dialogue[data.draw(st.integers(0, len(dialogue) - 1))] = data.draw(st.integers(0, 255))
        dialogue += data.draw(st.binary(max_size=40))
        cuts = sorted(data.draw(st.lists(st.integers(0, len(dialogue)), max_size=4)))

        async def run() -> None:
            peer = Peer()
            kinds = [
                Link(peer.connection, "q", wait_seconds=1, ahead=2),
                Requests(peer.connection, "$cbs"),
            ]
            for begin, end in zip([0, *cuts], [*cuts, len(dialogue)], strict=True):
                peer.connection.data_received(bytes(dialogue[begin:end]))
                assert peer.connection._size <= len(dialogue)
            peer.abort()
            assert all(kind.error is not None for kind in kinds)

        asyncio.run(run())

    @pytest.mark.parametrize(
        "said",
        [
            b"HTTP/1.1",
            b"AMQP\x00\x01\x00\x00",
            SASL_HEADER + b"\xff" * 8,
            SASL_HEADER + frame(0, performative(Code.SASL_MECHANISMS, symbol("PLAIN")), sasl=True),
            SASL_HEADER + frame(0, performative(Code.SASL_OUTCOME, b"\x50\x01"), sasl=True),
            WELCOME + frame(0, performative(Code.BEGIN, ushort(4999))),
        ],
        ids=range(6),
    )
    async def test_a_peer_that_does_not_speak_amqp_is_disconnected(self, said: bytes) -> None:
        peer = Peer()
        peer.connection.data_received(said)
        assert isinstance(peer.connection.lost, AmqpError)
        assert peer.aborted


class TestSilence:
    async def test_a_connection_is_lost_once_its_peer_is_silent_for_a_minute(self) -> None:
        peer = welcoming()
        await asyncio.sleep(55)
        assert peer.connection.lost is None
        await asyncio.sleep(15)
        assert "does not answer" in str(peer.connection.lost)

    async def test_an_overdue_answer_ends_only_the_session_that_waits_for_it(self) -> None:
        peer = welcoming()
        link, idle = await attached(peer), Requests(peer.connection, "m")
        settling = asyncio.create_task(link.settle(0, ACCEPTED))
        for _ in range(4):
            await asyncio.sleep((ANSWER_SECONDS + 5) / 4)
            peer.connection.data_received(HEARTBEAT)
        with pytest.raises(AmqpError, match="does not answer"):
            await settling
        assert Code.END == (await peer.heard())[-1][0]
        peer.says(Code.END)
        await asyncio.sleep(ANSWER_SECONDS)
        assert (None, None) == (idle.error, peer.connection.lost)

    async def test_a_connection_is_lost_if_its_peer_does_not_end_a_session(self) -> None:
        peer, link = await linked()
        other = Link(peer.connection, "q", wait_seconds=20, ahead=0)
        link.detach()
        waiting = asyncio.create_task(other.wait_attached())
        for _ in range(5):
            await asyncio.sleep((ANSWER_SECONDS + 10) / 5)
            peer.connection.data_received(HEARTBEAT)
        with pytest.raises(AmqpError, match="does not answer"):
            await waiting
        assert "does not answer" in str(peer.connection.lost)


class TestMessages:
    async def test_a_message_may_come_in_several_frames(self) -> None:
        """The receiver joins the frames. It drops the frames of a message whose transfer the peer aborts half-way."""
        peer, link = await linked()
        receiving = asyncio.create_task(link.receive(1))
        await peer.heard()
        peer.transfers(0, b"lost", more=TRUE)
        peer.transfers(0, b"", aborted=TRUE)
        for payload, more in ((b"in ", TRUE), (b"three ", TRUE), (b"frames", FALSE)):
            peer.transfers(1, payload, more=more)
        delivery = await receiving
        assert delivery is not None
        assert (1, b"in three frames") == (delivery.number, delivery.payload)

    async def test_a_message_that_arrives_while_credit_is_drained_is_received(self) -> None:
        peer, link = await linked(ahead=3)
        receiving = asyncio.create_task(link.receive(0))
        grant, drain = await peer.heard()
        assert (7, 3, False, True) == (grant[1][0], grant[1][6], grant[1][8], drain[1][8])
        peer.transfers(0, b"just in time")
        await peer.heard()
        assert not receiving.done()
        peer.says(Code.FLOW, uint(1), uint(9), uint(0), uint(9), uint(0), uint(3), uint(0), NULL, TRUE)
        delivery = await receiving
        assert delivery is not None
        assert b"just in time" == delivery.payload

    async def test_a_message_that_arrives_after_a_cancelled_receive_is_not_lost(self) -> None:
        peer, link = await linked()
        receiving = asyncio.create_task(link.receive(0))
        await peer.heard()
        receiving.cancel()
        with suppress(asyncio.CancelledError):
            await receiving
        peer.transfers(0, b"late")
        delivery = await link.receive(0)
        assert delivery is not None
        assert b"late" == delivery.payload

    async def test_one_disposition_may_confirm_a_range_of_settlements(self) -> None:
        peer, link = await linked()
        settling = asyncio.create_task(link.settle(7, ACCEPTED))
        await peer.heard()
        peer.says(Code.DISPOSITION, FALSE, uint(8), uint(9), TRUE, wire.ACCEPTED)
        await peer.heard()
        assert not settling.done()
        peer.says(Code.DISPOSITION, FALSE, uint(5), uint(9), TRUE, wire.ACCEPTED)
        await settling


class TestChannels:
    async def test_a_channel_number_is_used_again_only_after_the_peer_ended_it(self) -> None:
        peer, link = await linked()
        link.detach()
        said = await peer.heard()
        assert [Code.DETACH, Code.END] == [code for code, _ in said]
        second = Link(peer.connection, "q", wait_seconds=20, ahead=0)
        peer.says(Code.DETACH, uint(0), TRUE)
        peer.says(Code.END)
        third = Link(peer.connection, "q", wait_seconds=20, ahead=0)
        assert (0, 1, 0) == (link._channel, second._channel, third._channel)
        assert peer.connection.lost is None

    async def test_the_client_opens_no_more_channels_than_the_peer_allows(self) -> None:
        peer = welcoming()  # allows 10 channels; the client keeps two for requests
        links = [Link(peer.connection, "q", wait_seconds=20, ahead=0) for _ in range(8)]
        with pytest.raises(AmqpError, match="takes 10 channels") as refused:
            Link(peer.connection, "q", wait_seconds=20, ahead=0)
        assert receive_error(refused.value, entity="q").retry_after
        peer.connection.data_received(BEGUN)
        links[0].detach()
        peer.says(Code.END)
        assert 0 == Link(peer.connection, "q", wait_seconds=20, ahead=0)._channel
        assert [8, 9] == [Requests(peer.connection, name)._channel for name in ("$cbs", "m")]

    async def test_a_channel_that_the_peer_ends_loses_only_its_own_link(self) -> None:
        peer, link = await linked()
        other = Link(peer.connection, "q", wait_seconds=20, ahead=0)
        error = described(Code.ERROR, listed([symbol(Condition.SESSION_LOCK_LOST), string("gone")]))
        peer.says(Code.END, error)
        with pytest.raises(AmqpError, match="gone"):
            await link.receive(1)
        assert other.error is None


class Given:
    """
    A credential like those of Microsoft Entra ID. It always returns the same token, and records for which scopes it was asked.
    """

    def __init__(self, seconds: float = 3600, text: str = "t") -> None:
        self.asked: list[str] = []
        self._seconds, self._text = seconds, text

    async def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        self.asked += scopes
        return AccessToken(self._text, int(time.time() + self._seconds))


def named(credential: Any) -> Namespace:
    return Namespace(host="ns", tls=None, credential=credential)


class TestSigningIn:
    async def test_a_token_is_renewed_before_it_expires(self, monkeypatch: pytest.MonkeyPatch) -> None:
        broker, credential = Broker(202), Given()
        connect_to(monkeypatch, lambda: broker)
        signed_in = await signing.SignedIn.open(named(credential), "t/Subscriptions/s")
        # A broker detaches links that are idle. So the renewal of the token has to attach a new link.
        broker.says(Code.DETACH, uint(0), TRUE)
        broker.says(Code.END)
        for _ in range(55):
            await asyncio.sleep(50)
            broker.connection.data_received(HEARTBEAT)
        assert ["https://servicebus.azure.net/.default"] * 2 == credential.asked
        assert 2 == broker.operations
        broker.abort()
        await signed_in.close()

    @pytest.mark.parametrize(
        ("status", "condition"),
        [(401, Condition.UNAUTHORIZED_ACCESS), (404, Condition.NOT_FOUND), (500, "")],
    )
    async def test_a_refused_token_raises_an_error_with_the_broker_s_reason(
        self, status: int, condition: str
    ) -> None:
        broker = Broker(status)
        requests = Requests(broker.connection, "$cbs")
        with pytest.raises(AmqpError, match=f"{status}: so") as refused:
            await requests.ask("put-token", {}, "t")
        assert condition == refused.value.condition
        broker.status = 200
        assert await requests.ask("put-token", {}, "t") is None
        broker.abort()

    async def test_a_token_that_the_broker_quotes_is_removed_from_the_error(self) -> None:
        token = "SharedAccessSignature sr=sb%3A&sig=se%2Fcret%3D&se=9&skn=k"  # noqa: S105 - opens nothing
        for quoted in (token, "the signature sig=se%2Fcret%3D is not right"):
            broker = Broker(401)
            broker.text = f"Refused: {quoted}"
            signed_in = signing.SignedIn(broker.connection, named(Given(text=token)), "q")
            with pytest.raises(AmqpError, match="Refused") as refused:
                await signed_in._sign_in()
            told = "".join(traceback.format_exception(refused.value))
            assert "cret" not in told
            assert Condition.UNAUTHORIZED_ACCESS == refused.value.condition
            broker.abort()

    def test_the_repr_of_a_namespace_does_not_contain_its_key(self) -> None:
        text = "Endpoint=sb://ns.servicebus.windows.net/;SharedAccessKeyName=k;SharedAccessKey=secret"
        namespace = Namespace.of(open_service_bus_client(connection_string=text))
        token = asyncio.run(namespace.token_for("sb://ns/t")).token
        assert "sig=" in token
        assert "servicebus.windows.net:sastoken" == namespace.kind
        assert "secret" not in repr(namespace)

    @pytest.mark.parametrize(
        ("endpoint", "port", "secure"),
        [
            ("sb://ns.servicebus.windows.net/;SharedAccessKeyName=k;SharedAccessKey=v=", 5671, True),
            (
                "sb://127.0.0.1:7;SharedAccessKeyName=k;SharedAccessKey=v;UseDevelopmentEmulator=true;",
                7,
                False,
            ),
            (
                "sb://127.0.0.1;SharedAccessKeyName=k;SharedAccessKey=v;UseDevelopmentEmulator=True",
                5671,
                True,
            ),
            ("sb://ns/;SharedAccessSignature=SharedAccessSignature sr=a&sig=b&se=9&skn=c", 5671, True),
        ],
        ids=range(4),
    )
    def test_only_connections_to_an_emulator_are_made_without_tls(
        self, endpoint: str, port: int, *, secure: bool
    ) -> None:
        namespace = Namespace.of(open_service_bus_client(connection_string=f"Endpoint={endpoint}"))
        assert (port, secure) == (namespace.port, namespace.tls is not None)

    def test_the_lean_receiver_refuses_a_client_that_uses_websockets(self) -> None:
        client = open_service_bus_client(
            connection_string="Endpoint=sb://ns/;SharedAccessKeyName=k;SharedAccessKey=v", websockets=True
        )
        with pytest.raises(ConfigurationError, match="WebSockets"):
            AmqpSubscription(client, "q")
