"""
Tests of the emulator's AMQP encoding: which values survive encoding and decoding, and which bytes are refused.
"""

from __future__ import annotations

import struct
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmos_outbox_emulators.servicebus.decoding import DecodeError, decode, skip
from cosmos_outbox_emulators.servicebus.encoding import encode
from cosmos_outbox_emulators.servicebus.primitives import (
    Array,
    Byte,
    Described,
    Float,
    Int,
    Long,
    Opaque,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)


def whole(kind, bits, *, signed):
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return st.integers(low, high).map(kind)


keys = st.one_of(
    st.text(max_size=300),
    st.text(st.characters(max_codepoint=127), max_size=300).map(Symbol),
    whole(Long, 64, signed=True),
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    keys,
    st.binary(max_size=300),
    st.uuids(),
    st.floats(allow_nan=False),
    st.floats(width=32, allow_nan=False).map(Float),
    whole(UByte, 8, signed=False),
    whole(UShort, 16, signed=False),
    whole(UInt, 32, signed=False),
    whole(ULong, 64, signed=False),
    whole(Byte, 8, signed=True),
    whole(Short, 16, signed=True),
    whole(Int, 32, signed=True),
    whole(Timestamp, 64, signed=True),
    st.binary(min_size=16, max_size=16).map(lambda raw: Opaque(b"\x94" + raw)),
)


def arrays():
    kinds = (
        whole(Int, 32, signed=True),
        whole(ULong, 64, signed=False),
        whole(Timestamp, 64, signed=True),
        whole(UByte, 8, signed=False),
        st.text(max_size=20),
        st.uuids(),
        st.booleans(),
        st.binary(max_size=20),
        st.lists(st.text(max_size=5), max_size=3),
        st.dictionaries(st.text(max_size=5), st.booleans(), max_size=3),
        whole(Int, 32, signed=True).map(lambda value: Described(Symbol("d"), value)),
    )
    return st.one_of(*[st.lists(kind, max_size=5).map(Array) for kind in kinds])


values = st.recursive(
    st.one_of(scalars, arrays()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=6),
        st.dictionaries(keys, inner, max_size=4),
        inner.map(lambda value: Described(ULong(0x70), value)),
    ),
    max_leaves=20,
)


def exact(value):
    """
    Return a value together with the types of all its parts. Comparing values alone is not enough: 1, True and ULong(1) are equal in
    Python, but different in AMQP.
    """
    if isinstance(value, dict):
        return dict, [(exact(key), exact(item)) for key, item in value.items()]
    if isinstance(value, list):
        return type(value), [exact(item) for item in value]
    if isinstance(value, Described):
        return Described, exact(value.descriptor), exact(value.value)
    return type(value), value


@given(values)
def test_every_encoded_value_is_decoded_with_its_type(value):
    data = encode(value)
    decoded, end = decode(data)
    assert exact(value) == exact(decoded)
    assert len(data) == end


@given(st.binary(max_size=200))
def test_the_decoder_raises_only_decode_error_whatever_the_bytes(data):
    for read in (decode, skip):
        try:
            result = read(data, 0)
        except DecodeError:
            continue
        assert (result[1] if read is decode else result) <= len(data)


@given(values, st.data())
def test_the_decoder_refuses_a_truncated_value(value, data):
    encoded = encode(value)
    cut = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(DecodeError):
        decode(encoded[:cut])


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\x01", id="an unknown constructor"),
        pytest.param(b"\x00" * 5000, id="descriptors nested without end"),
        pytest.param(b"\xd0\x00\x00\x00\x04\xff\xff\xff\xff", id="more elements than bytes"),
        pytest.param(
            b"\xf0\x00\x00\x00\x05\xff\xff\xff\xff\x40", id="four thousand million nulls in ten bytes"
        ),
        pytest.param(b"\xc1\x02\x01\x40", id="a key without a value"),
        pytest.param(b"\xc1\x04\x02\x45\x40\x40", id="a list as a key"),
        pytest.param(b"\xc0\x05\x01\x40", id="a size beyond the data"),
        pytest.param(b"\xa1\x02\xff\xfe", id="text that is not UTF-8"),
        pytest.param(b"\xa3\x01\xe9", id="a symbol that is not ASCII"),
    ],
)
def test_the_decoder_refuses_malformed_values(data):
    with pytest.raises(DecodeError):
        decode(data)


def test_values_are_encoded_as_the_amqp_specification_says():
    assert b"\xa1\x03abc" == encode("abc")
    assert b"\xa3\x03abc" == encode(Symbol("abc"))
    assert b"\x00\x53\x24\x45" == encode(Described(ULong(0x24), []))
    assert b"\x55\xff" == encode(-1)
    assert b"\xe0\x02\x00\x40" == encode(Array())
    token = uuid.UUID("12345678-1234-5678-1234-567812345678")
    assert b"\xf0\x00\x00\x00\x15\x00\x00\x00\x01\x98" + token.bytes == encode(Array([token]))


@pytest.mark.parametrize("described", [b"", b"\x00\x53\x70"], ids=["plain", "described"])
@pytest.mark.parametrize("constructor", range(256))
def test_an_array_cannot_declare_more_elements_than_its_bytes_can_hold(constructor: int, described: bytes):
    body = described + bytes([constructor])
    array = b"\xf0" + struct.pack(">II", 4 + len(body) + 8, 100_000_000) + body + bytes(8)

    with pytest.raises(DecodeError):
        decode(array)
