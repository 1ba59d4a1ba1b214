from __future__ import annotations

import json
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
    encode_key_of,
    even_ranges,
    logical_key,
    middle,
    parse_definition,
    parse_header,
    parse_path,
)
from cosmos_outbox_emulators.cosmos.server import CosmosServer
from tests.emulators.cosmos.driver import Driver, substatus

pytestmark = pytest.mark.looptime(False)

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=500)
)


def test_the_hash_of_a_partition_key_is_that_of_the_dotnet_sdk():
    assert "22E342F38A486A088463DFF7838A5963" == logical_key(["redmond"]).epk


def random_keys(version: int) -> list[list[object]]:
    """
    Return partition keys for a comparison with the SDK. They are texts of many lengths, numbers and
    constants, or hierarchical keys of three levels if `version` is 3.
    """
    draw = random.Random(20)
    texts = ["".join(draw.choices(string.printable + "äß€😀漢", k=length)) for length in range(0, 150, 2)]
    if version == 3:
        return [
            *([*triple, 7] for triple in pairwise(texts)),
            ["t", 1, 1.5],
            [True, False, ""],
            [None, "a", {}],
        ]
    numbers = [struct.unpack("<d", draw.randbytes(7) + b"\x40")[0] for _ in range(60)]
    # The SDK cuts integers to 32 bits before it hashes them by version 1. So integers are compared only for
    # version 2.
    whole = [0, -1, *(draw.randint(-(2**53), 2**53) for _ in range(60))] if version == 2 else []
    return [[value] for value in (*texts, *numbers, *whole, 0.0, 1.5, True, False, "")]


@pytest.mark.parametrize("version", [1, 2, 3])
async def test_the_hash_of_a_partition_key_is_that_of_the_python_sdk(version: int):
    """The expected hashes come from the Python SDK's public method `feed_range_from_partition_key`."""
    definition = PartitionKey(["/a", "/b", "/c"]) if version == 3 else PartitionKey("/pk", version=version)
    async with CosmosServer() as server, CosmosClient(server.url, server.key) as client:
        database = await client.create_database("d")
        container = await database.create_container("c", definition)
        for key in random_keys(version):
            asked = key if version == 3 else key[0]
            expected = (await container.feed_range_from_partition_key(asked))["Range"]["min"]
            assert expected.upper() == logical_key(key, min(version, 2)).epk, key


@given(scalars)
def test_every_hash_has_32_digits_and_is_below_hexadecimal_40(value):
    epk = logical_key([value]).epk
    assert 32 == len(epk)
    assert "00" <= epk < "40"


@given(scalars, scalars)
def test_partition_keys_are_equal_exactly_if_their_values_are_equal_json(left, right):
    same = left == right and isinstance(left, bool) == isinstance(right, bool)
    assert same == (encode_components([left]) == encode_components([right]))


@pytest.mark.parametrize("value", [1, 0, -7])
def test_an_integer_and_the_equal_float_are_the_same_partition_key(value):
    assert logical_key([value]) == logical_key([float(value)])


@given(st.integers(1, 200), st.text())
def test_each_partition_key_lies_in_exactly_one_of_the_even_ranges(count, value):
    epk = logical_key([value[:500]]).epk
    ranges = even_ranges(count)
    assert count == len(ranges)
    assert 1 == sum(low <= epk < high for low, high in ranges)
    assert all(left[1] == right[0] for left, right in pairwise(ranges))


@given(st.integers(0, 100))
def test_the_key_that_splits_a_range_lies_inside_the_range(turns):
    low, high = "", "FF"
    for turn in range(turns):
        cut = middle(low, high)
        assert low < cut < high
        low, high = (low, cut) if turn % 2 else (cut, high)


@pytest.mark.parametrize(
    "text", ["", "x", "{}", '"a"', "[]", '["a","b"]', "[[1]]", '[{"a":1}]', "[NaN]", "[1e999]", '["\\ud800"]']
)
def test_a_malformed_partition_key_header_is_refused(text):
    with pytest.raises(CosmosError) as caught:
        parse_header(text, 1)
    assert 400 == caught.value.status


@pytest.mark.parametrize("rest", [[], ["", 7]])
def test_a_partition_key_has_at_most_2048_bytes_of_text(rest: list[object]):
    assert logical_key(["é" * 1_024, *rest]).epk
    with pytest.raises(CosmosError, match="2048 bytes"):
        logical_key(["é" * 1_024 + "x", *rest])


def test_the_partition_key_of_a_document_is_found_by_its_path():
    body = {"a": {"b": "x"}, "c": [1]}
    assert encode_components(["x"]) == encode_key_of(body, [parse_path("/a/b")])
    assert encode_components([{}]) == encode_key_of(body, [parse_path("/a/nothing")])
    assert encode_components([{}]) == encode_key_of(body, [parse_path("/c")])


def test_a_quoted_name_in_a_partition_key_path_may_hold_slashes():
    assert ("owner", "a/b") == parse_path('/owner/"a/b"')


def test_ranges_of_version_1_keys_have_the_bounds_of_microsoft_s_emulator():
    ranges = hash_v1.even_ranges(5)
    bounds = [
        "05C1C9CD673398",
        "05C1D9CD673398",
        "05C1E399CD6732",
        "05C1E9CD673398",
    ]  # Microsoft's emulator has the same bounds
    assert bounds == [low for low, _ in ranges[1:]]
    for low, high in ranges:
        cut = hash_v1.middle(low, high)
        assert low < cut < high
        assert abs(hash_v1.width(low, cut) - hash_v1.width(cut, high)) <= 1


@pytest.mark.parametrize("key", [["t1"], ["t1", "u1"], ["t1", "u1", 1, 2]])
def test_reads_writes_and_batches_refuse_a_partial_hierarchical_key(key: list[object]):
    driver, items = Driver(), "/dbs/d/colls/h/docs"
    definition = {"paths": ["/tenant", "/owner/user", "/session"], "kind": "MultiHash", "version": 2}
    driver.ok("POST", "/dbs/d/colls", {"id": "h", "partitionKey": definition})
    header = {"x_ms_documentdb_partitionkey": json.dumps(key)}
    batch = [{"operationType": "Delete", "id": "i"}]
    for reply in (
        driver.send("GET", f"{items}/i", **header),
        driver.send("POST", items, {"id": "i", "tenant": "t1"}, **header),
        driver.send("POST", items, batch, x_ms_cosmos_is_batch_request="True", **header),
    ):
        assert (400, 1001) == substatus(reply)


def test_the_version_of_a_partition_key_may_be_written_as_v2():
    levels = {"paths": ["/a", "/b"], "kind": "MultiHash", "version": "V2"}
    assert {**levels, "version": 2} == parse_definition(levels)
    with pytest.raises(CosmosError, match="version"):
        parse_definition({**levels, "version": "V1"})
