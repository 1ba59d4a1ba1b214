"""
Tests that the lean receiver writes the same AMQP frames as the SDK, with the same types of all values.

These tests use no emulator, because it could misread the AMQP specification in the same way as the lean receiver.
"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from azure.servicebus._pyamqp import _encode as sdk_encode
from azure.servicebus._pyamqp import outcomes, performatives
from azure.servicebus._pyamqp.endpoints import Source, Target
from azure.servicebus._pyamqp.error import AMQPError
from azure.servicebus._pyamqp.message import Message, Properties
from azure.servicebus._pyamqp.utils import amqp_string_value, amqp_uint_value
from hypothesis import given, settings
from hypothesis import strategies as st

from cosmos_outbox_amqp.decoding import decode
from cosmos_outbox_amqp.encoding import timestamp
from cosmos_outbox_amqp.frames import Code, frame, read_performative
from cosmos_outbox_amqp.link import ABANDONED, ACCEPTED, DEFERRED, Link, dead_lettered
from cosmos_outbox_amqp.requests import Requests
from tests.amqp.peer import Peer, linked, welcoming
from tests.support.effort import examples

KINDS = {
    **dict.fromkeys((0x41, 0x42, 0x56), "boolean"), **dict.fromkeys((0x43, 0x52, 0x70), "uint"),
    **dict.fromkeys((0x44, 0x53, 0x80), "ulong"), **dict.fromkeys((0xA0, 0xB0), "binary"),
    **dict.fromkeys((0xA1, 0xB1), "string"), **dict.fromkeys((0xA3, 0xB3), "symbol"),
    **dict.fromkeys((0xE0, 0xF0), "array"), 0x40: "null", 0x50: "ubyte", 0x60: "ushort", 0x83: "timestamp", 0x98: "uuid",
}  # fmt: skip
LISTS, MAPS = (0x45, 0xC0, 0xD0), (0xC1, 0xD1)


def typed(data: bytes, position: int = 0) -> tuple[Any, int]:
    """
    Decode a value together with the type of each of its parts. Return the typed value, and the position after it.

    The types do not depend on the width of the encoding. Nulls at the end of a list are left out.
    """
    code = data[position]
    if code == 0:
        descriptor, position = typed(data, position + 1)
        value, position = typed(data, position)
        return (descriptor, value), position
    if code not in LISTS + MAPS:
        value, end = decode(data, position)
        return (KINDS[code], value), end
    width = {0: 0, 1: 1, 2: 4}[(code >> 4) - 0xB if code != 0x45 else 0]
    count = int.from_bytes(data[position + 1 + width : position + 1 + 2 * width], "big")
    position += 1 + 2 * width
    values = []
    for _ in range(count):
        value, position = typed(data, position)
        values.append(value)
    if code in MAPS:
        return ("map", {values[n]: values[n + 1] for n in range(0, count, 2)}), position
    while values and values[-1] == ("null", None):
        values.pop()
    return ("list", values), position


def sections(data: bytes) -> list[Any]:
    """Return the sections of a message, each decoded with its types."""
    found, position = [], 0
    while position < len(data):
        value, position = typed(data, position)
        found.append(value)
    return found


def by_sdk(performative: Any) -> bytes:
    return bytes(sdk_encode.encode_frame(performative)[1] or b"")


def same(ours: bytes, sdks: Any) -> None:
    assert typed(by_sdk(sdks))[0] == typed(ours)[0]


class Frames(NamedTuple):
    """The bodies of the frames that the lean receiver wrote."""

    bodies: list[bytes]

    def of(self, code: int) -> bytes:
        """Remove and return the first of these frame bodies that begins with the AMQP performative of this code."""
        return self.bodies.pop(next(n for n, body in enumerate(self.bodies) if body[2] == code))


async def written(peer: Peer) -> Frames:
    return Frames(await peer.bodies())


def opened(container: str) -> performatives.OpenFrame:
    rest: list[Any] = [None] * 5
    return performatives.OpenFrame(container, "peer", 1 << 18, 4999, 60_000, *rest)


def attach(
    name: str, handle: int, *ends: Any, role: bool, second: int, **others: Any
) -> performatives.AttachFrame:
    fields: dict[str, Any] = dict.fromkeys(performatives.AttachFrame._fields)
    fields |= {"name": name, "handle": handle, "role": role, "send_settle_mode": 0, "rcv_settle_mode": second}
    return performatives.AttachFrame(**fields | dict(zip(("source", "target"), ends, strict=True)) | others)


def source(address: str, **others: Any) -> Source:
    return Source(**dict.fromkeys(Source._fields) | {"address": address} | others)


def target(address: str) -> Target:
    return Target(**dict.fromkeys(Target._fields) | {"address": address})


class TestWhatIsWritten:
    async def test_the_frames_that_open_and_close_a_connection_equal_the_sdk_s(self) -> None:
        peer = welcoming()
        frames = await written(peer)
        same(frames.of(Code.SASL_INIT), performatives.SASLInit(b"ANONYMOUS", b"", "peer"))
        same(opening := frames.of(Code.OPEN), opened(read_performative(opening)[1][0]))
        closing = asyncio.create_task(peer.connection.close())
        same((await written(peer)).of(Code.CLOSE), performatives.CloseFrame(None))
        peer.abort()
        await closing

    async def test_the_frames_of_a_link_equal_those_of_the_sdk(self) -> None:
        peer = welcoming()
        await written(peer)
        link = Link(peer.connection, "q", wait_seconds=20, ahead=3)
        frames = await written(peer)
        same(
            frames.of(Code.BEGIN),
            performatives.BeginFrame(None, 0, 2**31 - 1, 2**31 - 1, 255, None, None, None),
        )
        ends = source("q", filters={"com.microsoft:session-filter": None}), target(link.name)
        wait = {b"com.microsoft:timeout": amqp_uint_value(20_000)}
        same(frames.of(Code.ATTACH), attach(link.name, 0, *ends, role=True, second=1, properties=wait))
        peer.attaches()
        receiving = asyncio.create_task(link.receive(0))
        frames, window = await written(peer), (7, 2**31 - 1, 0, 2**31 - 1)
        for drain in (False, True):
            same(frames.of(Code.FLOW), performatives.FlowFrame(*window, 0, 0, 3, 0, drain, None, None))
        receiving.cancel()
        link.detach()
        frames = await written(peer)
        same(frames.of(Code.DETACH), performatives.DetachFrame(0, True, None))
        same(frames.of(Code.END), performatives.EndFrame(None))

    @settings(max_examples=examples(20, many=2_000))
    @given(st.integers(0, 2**32 - 1), st.text(max_size=300), st.text(max_size=300))
    def test_the_frames_that_settle_a_message_equal_those_of_the_sdk(
        self, number: int, reason: str, description: str
    ) -> None:
        info = {b"DeadLetterReason": reason, b"DeadLetterErrorDescription": description}
        error = AMQPError(condition=b"com.microsoft:dead-letter", description=None, info=info)
        settled = (
            (ACCEPTED, outcomes.Accepted()),
            (ABANDONED, outcomes.Modified(delivery_failed=True, undeliverable_here=False)),
            (DEFERRED, outcomes.Modified(delivery_failed=True, undeliverable_here=True)),
            (dead_lettered(reason, description), outcomes.Rejected(error=error)),
        )

        async def run() -> None:
            peer, link = await linked()
            for ours, theirs in settled:
                settling = asyncio.create_task(link.settle(number, ours))
                frame = (await written(peer)).of(Code.DISPOSITION)
                same(frame, performatives.DispositionFrame(True, number, number, False, theirs, None))
                settling.cancel()
            peer.abort()

        asyncio.run(run())

    async def test_the_frames_of_a_request_equal_those_of_the_sdk(self) -> None:
        peer = welcoming()
        await written(peer)
        requests = Requests(peer.connection, "$cbs")
        frames, names = await written(peer), []
        for sender in (True, False):
            ours = frames.of(Code.ATTACH)
            fields = read_performative(ours)[1]
            names.append(fields[0])
            ends = source("$cbs"), target("$cbs" if sender else fields[6].value[0])
            count = {"initial_delivery_count": 0} if sender else {}
            same(ours, attach(fields[0], 0 if sender else 1, *ends, role=not sender, second=0, **count))
        peer.connection.data_received(
            frame(5, by_sdk(performatives.BeginFrame(0, 7, 9, 9, None, None, None, None)))
        )
        for handle, credit in ((0, 1), (1, None)):
            said = attach(names[handle], handle, source("$cbs"), target("$cbs"), role=handle == 0, second=0)
            flow = performatives.FlowFrame(0, 9, 0, 9, handle, 0, credit, None, None, None, None)
            for performative in (said, flow):
                peer.connection.data_received(frame(5, by_sdk(performative)))
        named = {"associated-link-name": "link", "expiration": timestamp(9)}
        asking = asyncio.create_task(
            requests.ask("com.microsoft:renew-session-lock", named, {"session-id": "a"})
        )
        ours = (await written(peer)).of(Code.TRANSFER)
        tag = (fields := read_performative(ours))[1][2]
        transfer = performatives.TransferFrame(
            handle=0,
            delivery_id=0,
            delivery_tag=tag,
            message_format=0,
            settled=False,
            more=False,
            payload=b"",
        )
        assert typed(by_sdk(transfer))[0] == typed(ours)[0]
        reply_to = read_performative(ours[fields[2] :])[1][4]
        asked: Any = {
            "operation": amqp_string_value("com.microsoft:renew-session-lock"),
            "associated-link-name": "link",
        }
        asked["expiration"] = {"TYPE": "TIMESTAMP", "VALUE": 9}
        value = {"session-id": amqp_string_value("a")}
        number = read_performative(ours[fields[2] :])[1][0]
        properties = Properties(message_id=number, reply_to=reply_to)
        payload = bytearray()
        sdk_encode.encode_payload(
            payload, Message(value=value, properties=properties, application_properties=asked)
        )
        assert sections(bytes(payload)) == sections(ours[fields[2] :])
        asking.cancel()
