from __future__ import annotations

import random
import string
import struct
from itertools import pairwise

import pytest
from azure.cosmos import PartitionKey
from azure.cosmos.aio import CosmosClient
from hypothesis import given
from hypothesis import strategies as st

from cosmos_outbox_emulators.cosmos import hash_v1
from cosmos_outbox_emulators.cosmos.errors import CosmosError
from cosmos_outbox_emulators.cosmos.partition_key import (
    encode_components,
    encoded_key_of,
    even_ranges,
    logical_key,
    middle,
    parse_header,
    parse_path,
)
from cosmos_outbox_emulators.cosmos.server import CosmosServer

pytestmark = pytest.mark.looptime(False)

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=500)
)


def test_the_hash_is_the_one_of_the_dotnet_sdk():
    assert "22E342F38A486A088463DFF7838A5963" == logical_key(["redmond"]).epk


@pytest.mark.parametrize("version", [1, 2])
async def test_the_hash_is_the_one_of_the_python_sdk(version: int):
    """
    The oracle is the SDK's public `feed_range_from_partition_key`, over strings of every length, numbers and constants.
    """
    draw = random.Random(20)
    values = [
        *(("".join(draw.choices(string.printable + "äß€😀漢", k=length))) for length in range(0, 150, 2)),
        *(struct.unpack("<d", draw.randbytes(7) + b"\x40")[0] for _ in range(60)),
        *(0.0, 1.5, True, False, ""),
    ]
    if version > 1:  # the SDK cuts integers to 32 bits before it hashes them by version 1
        values += [0, -1, *(draw.randint(-(2**53), 2**53) for _ in range(60))]
    async with CosmosServer() as server, CosmosClient(server.url, server.key) as client:
        database = await client.create_database("d")
        container = await database.create_container("c", PartitionKey("/pk", version=version))
        for value in values:
            expected = (await container.feed_range_from_partition_key(value))["Range"]["min"]
            assert expected.upper() == logical_key([value], version).epk, value


@given(scalars)
def test_every_key_has_32_digits_within_the_ring(value):
    epk = logical_key([value]).epk
    assert 32 == len(epk)
    assert "00" <= epk < "40"


@given(scalars, scalars)
def test_keys_are_equal_when_the_values_are_equal_json(left, right):
    same = left == right and isinstance(left, bool) == isinstance(right, bool)
    assert same == (encode_components([left]) == encode_components([right]))


@pytest.mark.parametrize("value", [1, 0, -7])
def test_an_integer_and_its_float_are_one_key(value):
    assert logical_key([value]) == logical_key([float(value)])


@given(st.integers(1, 200), st.text())
def test_even_ranges_cover_each_key_exactly_once(count, value):
    epk = logical_key([value[:500]]).epk
    ranges = even_ranges(count)
    assert count == len(ranges)
    assert 1 == sum(low <= epk < high for low, high in ranges)
    assert all(left[1] == right[0] for left, right in pairwise(ranges))


@given(st.integers(0, 100))
def test_the_middle_of_a_range_lies_inside(turns):
    low, high = "", "FF"
    for turn in range(turns):
        cut = middle(low, high)
        assert low < cut < high
        low, high = (low, cut) if turn % 2 else (cut, high)


@pytest.mark.parametrize(
    "text", ["", "x", "{}", '"a"', "[]", '["a","b"]', "[[1]]", '[{"a":1}]', "[NaN]", "[1e999]", '["\\ud800"]']
)
def test_a_malformed_header_is_refused(text):
    with pytest.raises(CosmosError) as caught:
        parse_header(text, 1)
    assert 400 == caught.value.status


@pytest.mark.parametrize("rest", [[], ["", 7]])
def test_a_key_has_at_most_2048_bytes_of_text(rest: list[object]):
    assert logical_key(["é" * 1_024, *rest]).epk
    with pytest.raises(CosmosError, match="2048 bytes"):
        logical_key(["é" * 1_024 + "x", *rest])


def test_the_key_of_a_document_is_found_along_the_path():
    body = {"a": {"b": "x"}, "c": [1]}
    assert encode_components(["x"]) == encoded_key_of(body, [parse_path("/a/b")])
    assert encode_components([{}]) == encoded_key_of(body, [parse_path("/a/nothing")])
    assert encode_components([{}]) == encoded_key_of(body, [parse_path("/c")])


def test_a_quoted_name_on_a_path_may_hold_slashes():
    assert ("owner", "a/b") == parse_path('/owner/"a/b"')


def test_ranges_of_version_1_are_cut_where_the_service_cuts_them():
    ranges = hash_v1.even_ranges(5)
    bounds = [
        "05C1C9CD673398",
        "05C1D9CD673398",
        "05C1E399CD6732",
        "05C1E9CD673398",
    ]  # of Microsoft's emulator
    assert bounds == [low for low, _ in ranges[1:]]
    for low, high in ranges:
        cut = hash_v1.middle(low, high)
        assert low < cut < high
        assert abs(hash_v1.width(low, cut) - hash_v1.width(cut, high)) <= 1
