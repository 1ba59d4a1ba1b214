"""
Tests that the lean receiver reads the AMQP values that the Service Bus SDK writes, and that the SDK reads those of the lean receiver.

Bytes that are no AMQP may raise only a ProtocolError.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus._pyamqp import _decode as sdk_decode
from azure.servicebus._pyamqp import _encode as sdk_encode
from azure.servicebus._pyamqp.performatives import TransferFrame
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageHeader, AmqpMessageProperties
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cosmos_outbox.adapters.servicebus import message_from
from cosmos_outbox_amqp.decoding import Described, decode
from cosmos_outbox_amqp.encoding import Symbol, encode, timestamp, ubyte, ushort
from cosmos_outbox_amqp.errors import ProtocolError
from cosmos_outbox_amqp.frames import read_error, read_performative
from cosmos_outbox_amqp.message import Sections, message_of
from tests.amqp import wire
from tests.support.effort import examples

INT, LONG = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
SIZES = st.sampled_from((0, 1, 254, 255, 256, 70_000))
TEXT = st.text(max_size=20) | SIZES.map(lambda size: "x" * size)
SIMPLE = (
    st.none() | st.booleans() | INT | st.floats(allow_nan=False) | TEXT | st.binary(max_size=300) | st.uuids()
)
VALUES = st.recursive(
    SIMPLE,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=8), inner, max_size=6),
    max_leaves=20,
)
TYPED = st.one_of(
    st.tuples(st.sampled_from(["UBYTE"]), st.integers(0, 255)),
    st.tuples(st.sampled_from(["BYTE"]), st.integers(-128, 127)),
    st.tuples(st.sampled_from(["USHORT"]), st.integers(0, 2**16 - 1)),
    st.tuples(st.sampled_from(["SHORT"]), st.integers(-(2**15), 2**15 - 1)),
    st.tuples(st.sampled_from(["UINT"]), st.integers(0, 2**32 - 1)),
    st.tuples(st.sampled_from(["ULONG"]), st.integers(0, 2**64 - 1)),
    st.tuples(st.sampled_from(["INT"]), INT),
    st.tuples(st.sampled_from(["LONG", "TIMESTAMP"]), LONG),
    st.tuples(st.sampled_from(["SYMBOL"]), st.text("abc:-", max_size=300)),
)  # fmt: skip


def written_by_sdk(value: Any) -> bytes:
    output = bytearray()
    sdk_encode.encode_value(output, value)
    return bytes(output)


def read_by_sdk(data: bytes) -> Any:
    rest, value = sdk_decode._DECODE_BY_CONSTRUCTOR[data[0]](memoryview(data)[1:])
    assert not len(rest)
    return value


@settings(max_examples=examples(50, many=10_000))
@given(TYPED)
def test_the_decoder_reads_each_type_that_the_sdk_writes(typed: tuple[str, Any]) -> None:
    name, value = typed
    data = written_by_sdk({"TYPE": name, "VALUE": value})
    assert (value, len(data)) == decode(data)


@settings(max_examples=examples(50, many=5_000))
@given(TEXT, st.binary(max_size=300), st.integers(0, 2**16 - 1), LONG, st.uuids())
def test_the_sdk_reads_each_value_that_the_encoder_writes(
    text: str, raw: bytes, number: int, time: int, id_: UUID
) -> None:
    items = [
        text,
        raw,
        number,
        ushort(number),
        ubyte(number % 256),
        timestamp(time),
        id_,
        Symbol("a-b"),
        None,
        True,
        False,
    ]
    read = [text.encode(), raw, number, number, number % 256, time, id_, b"a-b", None, True, False]
    assert read == read_by_sdk(encode(items))
    assert {b"k": read} == read_by_sdk(encode({Symbol("k"): items}))
    described = encode(Described(0x24, items))
    assert Described(0x24, decode(encode(items))[0]) == decode(described)[0]


IDS = st.none() | st.text(max_size=20) | st.binary(max_size=20) | st.uuids() | st.integers(0, 2**63)
NAMES = st.none() | st.text(max_size=20)
BODIES = (
    st.binary(max_size=400).map(lambda body: {"data_body": [body]})
    | st.lists(st.binary(max_size=20), min_size=1, max_size=4).map(lambda parts: {"data_body": parts})
    | VALUES.map(lambda value: {"value_body": value})
    | st.lists(st.lists(VALUES, max_size=3), min_size=1, max_size=3).map(lambda parts: {"sequence_body": parts})
)  # fmt: skip
PROPERTIES = st.dictionaries(
    st.text(min_size=1, max_size=12),
    st.text(max_size=30) | INT | st.booleans(),
    max_size=9,
)
ANNOTATIONS = st.fixed_dictionaries(
    {
        "x-opt-sequence-number": st.integers(0, 2**62).map(lambda n: {"TYPE": "LONG", "VALUE": n}),
        "x-opt-enqueued-time": st.integers(1, 2**42).map(lambda n: {"TYPE": "TIMESTAMP", "VALUE": n}),
    }
)


HEADER = st.builds(AmqpMessageHeader, delivery_count=st.integers(0, 1000))
MESSAGES = BODIES.flatmap(
    lambda body: st.builds(
        AmqpAnnotatedMessage,
        **{name: st.just(value) for name, value in body.items()},
        header=HEADER,
        properties=st.builds(
            AmqpMessageProperties,
            message_id=IDS,
            correlation_id=IDS,
            group_id=NAMES,
            subject=NAMES,
            content_type=NAMES,
        ),
        application_properties=PROPERTIES,
        annotations=ANNOTATIONS,
        delivery_annotations=st.none()
        | st.dictionaries(st.text("abc:-", max_size=300), st.uuids(), max_size=4),
    )
)


@settings(max_examples=examples(50, many=10_000))
@given(MESSAGES)
def test_the_lean_receiver_reads_a_message_as_the_sdk_does(sent: AmqpAnnotatedMessage) -> None:
    output = bytearray()
    sdk_encode.encode_payload(output, PyamqpTransport.to_outgoing_amqp_message(sent))
    payload = bytes(output)
    received = ServiceBusReceivedMessage(
        sdk_decode.decode_payload(memoryview(payload)),
        receiver=SimpleNamespace(),
        frame=TransferFrame(handle=0, delivery_tag=bytes(16)),
    )
    assert message_from(received) == message_of(Sections(payload))


@pytest.mark.parametrize("size", [1, 300])
def test_the_decoder_replaces_an_invalid_character_in_a_text(size: int) -> None:
    raw = wire.string("x" * size)[:-1] + b"\xff"
    assert ["x" * (size - 1) + "\ufffd", None] == decode(wire.listed([raw, wire.NULL]))[0]


VALID = wire.described(
    0x73, wire.listed([wire.string("id"), wire.mapped([(wire.symbol("k"), wire.uuids([UUID(int=1)]))])])
)  # fmt: skip


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    data = bytearray(VALID * draw(st.integers(1, 3)))
    for _ in range(draw(st.integers(1, 4))):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data[: draw(st.integers(0, len(data)))])


@settings(max_examples=examples(200, many=25_000))
@example(b"\xf0\x00\x00\x00\x05\xff\xff\xff\xff\x40")  # an array that claims 4,294,967,295 nulls
@example(b"\xd0\x00\x00\x00\x04\xff\xff\xff\xff")
@example(b"\x00" * 100_000)
@example(b"\xc0\x02\x01" * 50_000)
@example(b"\xe0\xff\x01" + b"\x00\x53\x00" * 50_000)
@example(b"\xc1\x04\x02\xc0\x01\x00\x40")  # a map whose key is a list
@example(b"\xa1\xff")
@example(b"\xc0\x03\x01\xa1\xff")
@example(b"\x73\xff\xff\xff\xff")
@given(st.binary(max_size=300) | damaged())
def test_the_decoder_reads_any_bytes_or_raises_a_protocol_error(data: bytes) -> None:
    for read in (decode, read_performative, lambda data: message_of(Sections(data))):
        try:
            read(data)
        except ProtocolError:
            continue


def nested(levels: int) -> bytes:
    data = wire.uint(7)
    for _ in range(levels):
        data = wire.listed([data])
    return data


UNUSUAL = {
    "deep": nested(100),
    "deeper than the interpreter goes": nested(5_000),
    "an array of nulls": b"\xe0\x02\xff\x40",
    "an array of empty lists": b"\xe0\x02\x09\x45",
    "an array of true": b"\xe0\x02\x09\x41",
    "an array with a descriptor for all": b"\xe0\x06\x01\x00\x53\x01\x50\x07",
}


@pytest.mark.parametrize("value", UNUSUAL.values(), ids=UNUSUAL)
@pytest.mark.parametrize("section", [0x72, 0x74], ids=["annotations", "properties"])
def test_an_unreadable_value_of_a_map_does_not_hide_its_other_values(section: int, value: bytes) -> None:
    pairs = {"odd": value, "schema-version": wire.uint(2), "x-opt-sequence-number": wire.uint(9)}
    payload = wire.described(section, wire.mapped((wire.symbol(name), one) for name, one in pairs.items()))
    message = message_of(Sections(payload + wire.described(0x75, wire.binary(b"body"))))
    assert b"body" == message.body
    if section == 0x72:
        assert 9 == message.sequence_number
    else:
        assert 2 == message.properties["schema-version"]


def test_a_message_with_an_unknown_section_is_refused() -> None:
    with pytest.raises(ProtocolError, match="odd"):
        Sections(b"\x00" + wire.symbol("odd") + wire.binary(b"body"))


@pytest.mark.parametrize("value", [None, 7, Described(0x1D, None), Described(0x1D, [])], ids=repr)
def test_read_error_returns_none_for_a_field_without_an_error(value: Any) -> None:
    assert read_error(value) is None
