"""
An AMQP client for tests that builds its frames by hand, so that it can send frames that the SDK never sends.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import time
import uuid
from contextlib import asynccontextmanager
from urllib.parse import quote_plus

from cosmos_outbox_emulators.servicebus.decoding import decode
from cosmos_outbox_emulators.servicebus.encoding import encode
from cosmos_outbox_emulators.servicebus.performatives import Code, Raw, frame, performative
from cosmos_outbox_emulators.servicebus.primitives import Symbol, UByte, UInt, UShort
from tests.support.patience import HUNG_SECONDS

SASL, AMQP = b"AMQP\x03\x01\x00\x00", b"AMQP\x00\x01\x00\x00"
WINDOW = UInt(65536)


def sasl_init(mechanism="ANONYMOUS", response=b""):
    return frame(0, performative(Code.SASL_INIT, Symbol(mechanism), response, "host"), kind=1)


def open_frame(*, max_frame_size=1 << 20, idle_ms=None):
    return frame(
        0,
        performative(
            Code.OPEN,
            "test",
            "host",
            UInt(max_frame_size),
            UShort(100),
            None if idle_ms is None else UInt(idle_ms),
        ),
    )


def begin(channel=1):
    return frame(channel, performative(Code.BEGIN, None, UInt(0), WINDOW, WINDOW))


def attach(name, handle, *, receive, source, target, settle_mode=0, filters=None, properties=None, channel=1):
    terms = (
        Raw(performative(Code.SOURCE, source, None, None, None, None, None, None, filters)),
        Raw(performative(Code.TARGET, target)),
    )
    modes = UByte(settle_mode), UByte(0 if receive else 1)
    initial = None if receive else UInt(0)
    fields = (name, UInt(handle), receive, *modes, *terms, None, None, initial, None, None, None, properties)
    return frame(channel, performative(Code.ATTACH, *fields))


def flow(handle, credit, *, delivery_count=0, drain=False, echo=False, channel=1):
    fields = (
        UInt(0),
        WINDOW,
        UInt(0),
        WINDOW,
        UInt(handle),
        UInt(delivery_count),
        UInt(credit),
        None,
        drain,
        echo,
    )
    return frame(channel, performative(Code.FLOW, *fields))


def transfer(
    handle, number, payload, *, more=False, settled=False, aborted=None, message_format=0, channel=1
):
    fields = (
        UInt(handle),
        UInt(number),
        b"tag%d" % number,
        UInt(message_format),
        settled,
        more,
        None,
        None,
        None,
        aborted,
    )
    return frame(channel, performative(Code.TRANSFER, *fields), payload)


def sections(payload):
    """Return the sections of an encoded AMQP message (header, properties, body, …) under their codes."""
    out, position = {}, 0
    while position < len(payload):
        section, position = decode(payload, position)
        out[int(section.descriptor)] = section.value
    return out


def disposition(first, state, *, last=None, settled=False, channel=1):
    number = None if last is None else UInt(last)
    return frame(channel, performative(Code.DISPOSITION, True, UInt(first), number, settled, Raw(state)))


def detach(handle, channel=1):
    return frame(channel, performative(Code.DETACH, UInt(handle), True))


def end(channel=1):
    return frame(channel, performative(Code.END))


def close():
    return frame(0, performative(Code.CLOSE))


def put_token(audience, *, handle=0, number=0, key="SAS_KEY_VALUE", name="RootManageSharedAccessKey"):
    resource, expires = quote_plus(audience), int(time.time()) + 3600
    digest = hmac.new(key.encode(), f"{resource}\n{expires}".encode(), hashlib.sha256).digest()
    sig = quote_plus(base64.b64encode(digest))
    return request(
        handle,
        number,
        {"operation": "put-token", "type": "jwt", "name": audience},
        f"SharedAccessSignature sr={resource}&sig={sig}&se={expires}&skn={name}",
        channel=0,
    )


def request(handle, number, properties, body, *, channel=1):
    payload = (
        performative(Code.PROPERTIES, uuid.UUID(int=number))
        + b"\x00\x53\x74" + encode(properties)
        + b"\x00\x53\x77" + encode(body)
    )  # fmt: skip
    return transfer(handle, number, payload, channel=channel)


def greeting():
    """
    Return all frames that open a connection with a valid token. The client sends them at once.

    Afterwards, channel 0 has the links to `$cbs`, which takes tokens, and channel 1 has an AMQP session
    without links.
    """
    return b"".join([
        SASL, sasl_init(), AMQP, open_frame(), begin(0), begin(1),
        attach("cbs-out", 0, receive=False, source="$cbs", target="$cbs", channel=0),
        attach("cbs-in", 1, receive=True, source="$cbs", target="$cbs", channel=0),
        flow(1, 100, channel=0), put_token("sb://host/"),
    ])  # fmt: skip


class WireClient:
    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer

    def send(self, *frames):
        self.writer.write(b"".join(frames))

    async def header(self):
        return await self.reader.readexactly(8)

    async def read(self):
        """Return the next frame as (code, fields, payload), or None if the broker closed the connection."""
        while True:
            try:
                async with asyncio.timeout(HUNG_SECONDS):
                    head = await self.reader.readexactly(8)
                    size = int.from_bytes(head[:4], "big")
                    body = await self.reader.readexactly(size - 8)
            except (asyncio.IncompleteReadError, ConnectionError):
                return None
            if body:
                described, position = decode(body)
                return int(described.descriptor), described.value, body[position:]

    async def until(self, code):
        """Skip frames until one has this code, and return its fields."""
        while True:
            got = await self.read()
            assert got is not None, f"closed before 0x{code:02x}"
            if got[0] == code:
                return got[1]

    async def delivered(self):
        """Skip frames until a transfer comes, and return its fields and payload."""
        while (got := await self.read())[0] != Code.TRANSFER:
            pass
        return got[1:]

    async def rest(self):
        """Return all frames until the broker closes the connection."""
        out = []
        while (got := await self.read()) is not None:
            out.append(got)
        return out

    async def welcomed(self):
        """Read the broker's protocol headers and the outcome of the SASL exchange."""
        assert await self.header() == SASL
        await self.until(Code.SASL_OUTCOME)
        assert await self.header() == AMQP

    async def greet(self):
        self.send(greeting())
        await self.welcomed()
        await self.delivered()


@asynccontextmanager
async def connected(server, *, greeted=True):
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    client = WireClient(reader, writer)
    try:
        if greeted:
            await client.greet()
        yield client
    finally:
        writer.transport.abort()
        await asyncio.sleep(0)
