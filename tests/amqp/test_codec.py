"""
The bytes of AMQP: what the vendor SDK writes is read as the SDK reads it, and no bytes harm the reader.
"""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections.abc import Callable
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
from cosmos_outbox_amqp import encoding, layouts
from cosmos_outbox_amqp.decoding import Described, decode
from cosmos_outbox_amqp.errors import ProtocolError
from cosmos_outbox_amqp.frames import read_error, read_performative
from cosmos_outbox_amqp.layouts import decode_described, forget
from cosmos_outbox_amqp.message import Sections, message_of
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
@given(VALUES)
def test_what_the_sdk_writes_is_read(value: Any) -> None:
    data = written_by_sdk(value)
    assert (value, len(data) + 1) == decode(b"\x40" + data, 1)


@settings(max_examples=examples(50, many=10_000))
@given(TYPED)
def test_each_type_that_the_sdk_writes_is_read(typed: tuple[str, Any]) -> None:
    name, value = typed
    data = written_by_sdk({"TYPE": name, "VALUE": value})
    assert (value, len(data)) == decode(data)


def ulong(value: int) -> bytes:
    """
    Encode a number of 64 bits, which only brokers send.
    """
    return b"\x80" + value.to_bytes(8, "big")


@settings(max_examples=examples(50, many=5_000))
@given(
    TEXT,
    st.binary(max_size=300),
    st.integers(0, 2**16 - 1),
    LONG,
    st.lists(st.uuids(), min_size=1, max_size=20),
)
def test_what_is_written_the_sdk_reads(
    text: str, raw: bytes, number: int, time: int, ids: list[UUID]
) -> None:
    items = [
        encoding.string(text), encoding.binary(raw), encoding.uint(number), ulong(number),
        encoding.ushort(number), encoding.ubyte(number % 256), encoding.timestamp(time), encoding.uuids(ids),
        encoding.symbol("a-b"), encoding.NULL, encoding.TRUE, encoding.FALSE,
    ]  # fmt: skip
    read = [text.encode(), raw, number, number, number, number % 256, time, ids, b"a-b", None, True, False]
    assert read == read_by_sdk(encoding.listed(items))
    assert {b"k": read} == read_by_sdk(encoding.mapped([(encoding.symbol("k"), encoding.listed(items))]))
    described = b"\x00" + encoding.symbol("name") + encoding.described(0x24, encoding.listed(items))
    assert Described("name", Described(0x24, decode(encoding.listed(items))[0])) == decode(described)[0]
    assert all(id_ == decode(encoding.uuid(id_))[0] for id_ in ids)


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
def test_a_message_is_read_as_the_sdk_reads_it(sent: AmqpAnnotatedMessage) -> None:
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
def test_a_broken_character_is_replaced(size: int) -> None:
    raw = encoding.string("x" * size)[:-1] + b"\xff"
    assert ["x" * (size - 1) + "\ufffd", None] == decode(encoding.listed([raw, encoding.NULL]))[0]


VALID = encoding.described(
    0x73, encoding.listed([encoding.string("id"), encoding.mapped([(encoding.symbol("k"), encoding.uuids([UUID(int=1)]))])])
)  # fmt: skip


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    data = bytearray(VALID * draw(st.integers(1, 3)))
    for _ in range(draw(st.integers(1, 4))):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data[: draw(st.integers(0, len(data)))])


@settings(max_examples=examples(200, many=25_000))
@example(b"\xf0\x00\x00\x00\x05\xff\xff\xff\xff\x40")  # four thousand million nulls
@example(b"\xd0\x00\x00\x00\x04\xff\xff\xff\xff")
@example(b"\x00" * 100_000)
@example(b"\xc0\x02\x01" * 50_000)
@example(b"\xe0\xff\x01" + b"\x00\x53\x00" * 50_000)
@example(b"\xc1\x04\x02\xc0\x01\x00\x40")  # a list for a key
@example(b"\xa1\xff")
@example(b"\xc0\x03\x01\xa1\xff")
@example(b"\x73\xff\xff\xff\xff")
@given(st.binary(max_size=300) | damaged())
def test_no_bytes_harm_the_reader(data: bytes) -> None:
    for read in (decode, decode_described, read_performative, lambda data: message_of(Sections(data))):
        try:
            read(data)
        except ProtocolError:
            continue


def array_in_array(levels: int) -> bytes:
    """
    Encode arrays in one another, each of one value that has 31 descriptors.
    """
    data = b"\x40"
    for _ in range(levels):
        raw = b"\x00\x53\x01" * 31 + data
        data = b"\xf0" + struct.pack(">II", len(raw) + 4, 1) + raw
    return data


def test_descriptors_of_an_array_count_as_depth() -> None:
    read = repr(decode(array_in_array(1))[0])
    assert read.count("Described(") == 31
    for data in (array_in_array(2), array_in_array(29)):
        with pytest.raises(ProtocolError, match="too deep"):
            decode(data)
        with pytest.raises(ProtocolError, match="too deep"):
            Sections(b"\x00" + data + b"\x45")


def test_an_array_makes_no_more_of_descriptors_than_it_has_bytes() -> None:
    assert decode(array_of_described(1)) == ([Described(1, None)] * 4, 7)
    with pytest.raises(ProtocolError, match="more descriptors than bytes"):
        decode(array_of_described(30))


ALIKE = {
    0x14: [encoding.uint(0), encoding.uint(7), encoding.binary(bytes(16)), encoding.NULL, encoding.FALSE, b"\x43"],
    0x15: [encoding.TRUE, encoding.uint(7), encoding.TRUE, encoding.described(0x24, encoding.listed([]))],
    0x73: [encoding.string("id-1"), encoding.NULL, encoding.symbol("a-b"), encoding.string("é" * 200), encoding.NULL],
    0x74: [
        encoding.string("name"), encoding.string("Ada"), encoding.string("whole"), b"\x56\x01", encoding.string("none"),
        encoding.NULL, encoding.string("real"), b"\x82" + bytes(8), encoding.string("time"), encoding.timestamp(1),
    ],
}  # fmt: skip
"""What is read by layouts: two performatives and two sections, with the types that they have."""


@st.composite
def alike(draw: st.DrawFn) -> bytes:
    """
    One of them, in which other values stand and, at times, other bytes.
    """
    code = draw(st.sampled_from([*ALIKE]))
    items = [
        encoding.string(draw(st.text(min_size=2, max_size=3)))
        if item[:1] == b"\xa1" and draw(st.booleans())
        else item
        for item in ALIKE[code]
    ]
    whole = (
        encoding.mapped(zip(items[::2], items[1::2], strict=True))
        if code == 0x74
        else encoding.listed(items[: draw(st.integers(0, len(items)))])
    )
    data = bytearray(encoding.described(code, whole))
    for _ in range(draw(st.integers(0, 2))):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data[: draw(st.integers(len(data) - 1, len(data)))])


def sections_of(data: bytes) -> list[Any]:
    read = Sections(data)
    return [getattr(read, name) for name in Sections.__slots__]


def read_all(read: Callable[[bytes], Any], some: list[bytes], *, anew: bool) -> list[str]:
    found = []
    for data in some:
        if anew:
            forget()
        try:
            found.append(repr(read(data)))
        except ProtocolError:
            found.append("unreadable")
    return found


@settings(max_examples=examples(100, many=20_000))
@given(st.lists(alike(), min_size=1, max_size=6), st.booleans())
def test_what_was_read_before_does_not_change_what_is_read(some: list[bytes], sections: bool) -> None:
    read: Callable[[bytes], Any] = sections_of if sections else decode_described
    expected = read_all(read, some, anew=True)
    forget()
    for _ in range(10):  # each fourth that has no layout gets one
        assert expected == read_all(read, some, anew=False)


def test_a_broken_character_is_replaced_in_what_is_alike() -> None:
    def names(last: bytes) -> list[Any]:
        items = [encoding.string("id"), encoding.NULL, encoding.string("x")[:-1] + last]
        return list(decode_described(encoding.described(0x73, encoding.listed(items)))[1])

    forget()
    assert [names(last)[2] for last in (b"a", b"b", b"c", b"\xff", b"d")] == ["a", "b", "c", "\ufffd", "d"]


def test_no_two_readers_share_a_list() -> None:
    forget()
    items = [encoding.uint(1), encoding.described(0x25, encoding.listed([encoding.NULL, encoding.uint(1)]))]
    for _ in range(4):
        fields = decode_described(encoding.described(0x15, encoding.listed(items)))[1]
        assert fields[1].value == [None, 1]
        fields[1].value.clear()


@pytest.mark.parametrize("whole", ["list", "map"])
def test_no_two_readers_share_an_empty_list(whole: str) -> None:
    forget()
    items = [
        encoding.symbol("one"),
        encoding.uint(1),
        encoding.symbol("two"),
        encoding.described(0x24, b"\x45"),
    ]
    pairs = zip(items[::2], items[1::2], strict=True)
    data = encoding.described(0x74, encoding.listed(items) if whole == "list" else encoding.mapped(pairs))
    for _ in range(4):
        read = decode_described(data)[1]
        outcome = read[3] if whole == "list" else read["two"]
        assert Described(0x24, []) == outcome
        outcome.value.append("spoilt")


def array_of_described(times: int) -> bytes:
    """
    Encode an array of nulls, as many as its bytes allow, each of which has descriptors.
    """
    raw = b"\x00\x53\x01" * times + b"\x40"
    return b"\xe0" + bytes((len(raw) + 1, len(raw))) + raw


ONE, OTHER = b"\x50\x01", b"\x52\x01"
"""The same number in two types, both of two bytes: lists of them begin alike and have layouts of their own."""


@pytest.mark.parametrize(
    "items",
    [
        [ONE] * 400,
        [encoding.symbol("a" * 3)] * 128,
        [b"\x00\x80" + bytes(range(0x80, 0x88)) + b"\x45"] * 80,
        [b"\x00" + array_of_described(1) + b"\x45"] * 80,
    ],
    ids=["numbers", "texts", "outcomes", "descriptors"],
)
def test_what_a_peer_has_remembered_is_bounded(items: list[bytes]) -> None:
    forget()
    tracemalloc.start()
    try:
        for code in range(16):
            for other in range(6):
                last = [OTHER if number == other else ONE for number in range(6)]
                decode_described(encoding.described(code, encoding.listed([*items, *last])))
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        forget()
    assert kept < 30_000_000 * 16 / 256


@pytest.fixture
def learnt(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """
    Where layouts were made.
    """
    forget()
    made: list[int] = []
    layout_of = layouts._layout_of

    def counted(data: bytes, start: int) -> Any:
        made.append(start)
        return layout_of(data, start)

    monkeypatch.setattr(layouts, "_layout_of", counted)
    return made


def properties(*names: str) -> bytes:
    return encoding.described(0x73, encoding.listed([encoding.uint(7), *map(encoding.string, names)]))


def test_what_is_alike_is_decoded_value_by_value_four_times_only(
    learnt: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[int] = []
    decode_at = layouts.decode_at

    def counted(data: bytes, position: int, depth: int) -> tuple[Any, int]:
        decoded.append(position)
        return decode_at(data, position, depth)

    monkeypatch.setattr(layouts, "decode_at", counted)
    for number in range(4):
        decode_described(properties(f"a{number}", "b"))
    before = len(decoded)
    for number in range(5):
        assert decode_described(properties(f"c{number}", "d"))[1] == [7, f"c{number}", "d"]
    assert len(learnt) == 1
    assert len(decoded) == before


def test_texts_of_many_lengths_make_few_layouts(learnt: list[int]) -> None:
    lengths = random.Random(1)
    for _ in range(10_000):
        decode_described(properties(*("x" * lengths.randrange(30) for _ in range(4))))
    assert len(learnt) < 500


def test_a_layout_that_seldom_fits_is_given_up() -> None:
    forget()
    for _ in range(4):
        decode_described(properties("ab", "abc"))
    for _ in range(100):
        decode_described(properties("abcd", "a"))
        decode_described(properties("a", "abcd"))
        decode_described(properties("", "abcde"))
        decode_described(properties("abc", "ab"))
        decode_described(properties("abcde", ""))
    [kept] = layouts._seen.values()
    assert len(kept.layouts) <= 4
    for number in range(1_000):
        decode_described(properties("x" * (number % 2), "é" * (number % 2), "x" * (5 - 3 * (number % 2))))


@pytest.mark.parametrize("value", [None, 7, Described(0x1D, None), Described(0x1D, [])], ids=repr)
def test_what_is_no_error_says_none(value: Any) -> None:
    assert read_error(value) is None
