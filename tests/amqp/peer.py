"""
A scripted AMQP peer without sockets, for tests of the lean receiver. It keeps the bytes that the client sends, and answers as a
test tells it to.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from azure.core.credentials import AccessToken
from azure.servicebus.aio import ServiceBusClient

from cosmos_outbox.adapters.servicebus import open_service_bus_client
from cosmos_outbox_amqp import signed_in_connection as signing
from cosmos_outbox_amqp.connection import AMQP_HEADER, HEARTBEAT, SASL_HEADER, Connection
from cosmos_outbox_amqp.frames import Code, frame, read_performative
from cosmos_outbox_amqp.link import Attached, Link
from tests.amqp.wire import (
    FALSE,
    NULL,
    TRUE,
    binary,
    described,
    listed,
    mapped,
    performative,
    string,
    symbol,
    uint,
    ushort,
    uuid,
)

WELCOME = b"".join(
    (
        SASL_HEADER,
        frame(0, performative(Code.SASL_MECHANISMS, symbol("ANONYMOUS")), sasl=True),
        frame(0, performative(Code.SASL_OUTCOME, b"\x50\x00"), sasl=True),
        AMQP_HEADER,
        frame(0, performative(Code.OPEN, string("peer"), NULL, uint(65536), ushort(9), uint(240_000))),
    )
)
OWN_HANDLES = 3  # the handle numbers of the peer begin at 3, and those of the client at 0
# The peer's next outgoing transfer has the number 7.
BEGUN = frame(5, performative(Code.BEGIN, ushort(0), uint(7), uint(9), uint(9)))


def bodies_of(data: bytes) -> list[bytes]:
    """Split bytes into AMQP frames and return the frames' bodies, without protocol headers and heartbeats."""
    found, position = [], 0
    while position < len(data):
        header = data[position : position + 4]
        size = 8 if header == b"AMQP" else int.from_bytes(header, "big")
        if size > len(HEARTBEAT):
            found.append(data[position + 8 : position + size])
        position += size
    return found


class Peer(asyncio.Transport):
    """
    The other side of a client's connection. It keeps the bytes that the client writes, and sends the frames that a test tells it
    to send.
    """

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.aborted = False
        self.connection = Connection("peer")
        self.connection.connection_made(self)

    def write(self, data: Any) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        if not self.aborted:
            self.aborted = True
            self.connection.connection_lost(None)

    close = abort

    def says(self, code: int, *fields: bytes, payload: bytes = b"") -> None:
        self.connection.data_received(frame(5, performative(code, *fields) + payload))

    async def bodies(self) -> list[bytes]:
        """Return the bodies of the frames that the client wrote since the last call."""
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        data, self.written = self.written, b""
        return bodies_of(data)

    async def heard(self) -> list[tuple[int, list[Any]]]:
        """Return code and fields of each performative that the client wrote since the last call."""
        return [read_performative(body)[:2] for body in await self.bodies()]

    def attaches(self, session: str = "a") -> None:
        filters = mapped([(symbol("com.microsoft:session-filter"), string(session))])
        source = described(Code.SOURCE, listed([string("q"), *[NULL] * 6, filters]))
        self.connection.data_received(BEGUN)
        self.says(Code.ATTACH, string("n"), uint(0), FALSE, NULL, NULL, source, NULL, NULL, NULL, uint(0))

    def transfers(self, number: int, payload: bytes, *, more: bytes = FALSE, aborted: bytes = FALSE) -> None:
        tag = binary(bytes(16))
        flags = NULL, more, NULL, NULL, NULL, aborted
        self.says(Code.TRANSFER, uint(0), uint(number), tag, uint(0), *flags, payload=payload)


def welcoming() -> Peer:
    peer = Peer()
    peer.connection.data_received(WELCOME)
    return peer


async def attached(peer: Peer, *, ahead: int = 0) -> Link:
    link = Link(peer.connection, "q", wait_seconds=20, ahead=ahead)
    peer.attaches()
    assert Attached("a", None) == await link.wait_attached()
    await peer.heard()
    return link


async def linked(*, ahead: int = 0) -> tuple[Peer, Link]:
    """Return a peer and a link to it, which is attached and holds session "a"."""
    peer = welcoming()
    return peer, await attached(peer, ahead=ahead)


class Broker(Peer):
    """A peer that answers every request over $cbs or a management link with one status code."""

    def __init__(self, status: int) -> None:
        super().__init__()
        self.connection.data_received(WELCOME)
        self.status, self.text, self.operations = status, "so", 0

    def write(self, data: Any) -> None:
        asyncio.get_running_loop().call_soon(self._answer, bytes(data))

    def _answer(self, data: bytes) -> None:
        for body in bodies_of(data):
            if body[2:3] == bytes([Code.BEGIN]):
                self.connection.data_received(BEGUN)
            elif body[2:3] == bytes([Code.ATTACH]):
                self._attach(*read_performative(body)[1][:2])
            elif body[2:3] == bytes([Code.TRANSFER]):
                self.operations += 1
                self._reply(read_performative(body[read_performative(body)[2] :])[1][0])

    def _attach(self, name: str, handle: int) -> None:
        self.says(Code.ATTACH, string(name), uint(OWN_HANDLES + handle))
        if handle == 0:
            self.gives_credit(100)

    def gives_credit(self, credit: int, *, seen: int = 0, window: int = 100) -> None:
        """Grant credit for `credit` more requests. `seen` is the number of the client's transfers that the peer has received."""
        self.says(
            Code.FLOW, uint(seen), uint(window), uint(0), uint(1), uint(OWN_HANDLES), uint(seen), uint(credit)
        )

    def _reply(self, number: UUID) -> None:
        status = {"status-code": uint(self.status), "status-description": string(self.text)}
        said = mapped((string(name), value) for name, value in status.items())
        properties = performative(Code.PROPERTIES, *[NULL] * 5, uuid(number))
        answer = properties + described(Code.APPLICATION_PROPERTIES, said) + described(Code.VALUE, NULL)
        self.says(Code.TRANSFER, uint(1), uint(0), binary(b"t"), uint(0), TRUE, FALSE, payload=answer)


async def a_token(*_: str) -> AccessToken:
    return AccessToken("t", int(time.time() + 3600))


def client_with(token_for: Callable[..., Awaitable[AccessToken]] = a_token) -> ServiceBusClient:
    """Return a client of the SDK whose credential gets its tokens from a function."""
    credential: Any = SimpleNamespace(get_token=token_for)
    return open_service_bus_client(namespace="ns", credential=credential)


def connect_to(patch: pytest.MonkeyPatch, peer: Callable[[], Peer]) -> None:
    """
    Replace the network connection: each attempt to connect calls `peer` and uses the peer that it returns.
    """

    async def connect(*_: Any) -> Connection:
        return peer().connection

    patch.setattr(signing, "connect", connect)
