"""
Tests of the binary bodies of batches of the SDK for .NET, byte for byte as its version 3.64.0 writes them.
"""

from __future__ import annotations

import json
import struct
import zlib
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cosmos_outbox_emulators.cosmos import hybrid_row
from cosmos_outbox_emulators.cosmos.errors import CosmosError
from cosmos_outbox_emulators.cosmos.hybrid_row import OPERATION, RESULT
from tests.emulators.cosmos.driver import Driver
from tests.support.effort import examples

CORPUS = json.loads((Path(__file__).parent / "corpus/hybrid_rows.json").read_text())
NUMBERS = {"Create": 0, "Patch": 1, "Read": 2, "Delete": 4, "Replace": 5, "Upsert": 20}

int32 = st.integers(-(2**31), 2**31 - 1)
text = st.text(st.characters(exclude_categories=["Cs"]))
sized = st.binary(max_size=20) | st.sampled_from([b"x" * 127, b"x" * 128, b"x" * 16_383, b"x" * 16_384])
rows_of = {
    OPERATION: st.fixed_dictionaries(
        {},
        optional={
            **dict.fromkeys(["operationType", "resourceType", "timeToLiveInSeconds"], int32),
            **dict.fromkeys(["partitionKey", "id", "indexingDirective", "ifMatch", "ifNoneMatch"], text),
            **dict.fromkeys(["effectivePartitionKey", "binaryId", "resourceBody"], sized),
            "minimalReturnPreference": st.booleans(),
        },
    ),
    RESULT: st.fixed_dictionaries(
        {},
        optional={
            **dict.fromkeys(["statusCode", "subStatusCode"], int32),
            "eTag": text,
            "resourceBody": sized,
            "retryAfterMilliseconds": st.integers(0, 2**32 - 1),
            "requestCharge": st.floats(allow_nan=False),
        },
    ),
}
streams = st.sampled_from([OPERATION, RESULT]).flatmap(
    lambda schema: st.tuples(st.just(schema), st.lists(rows_of[schema], max_size=4))
)


@pytest.mark.parametrize("kept", CORPUS, ids=[one["name"] for one in CORPUS])
def test_binary_rows_equal_those_of_the_sdk_for_dotnet_byte_for_byte(kept):
    schema, stream = {one.number: one for one in rows_of}[kept["schema"]], bytes.fromhex(kept["hex"])
    rows = hybrid_row.read(schema, stream)

    said = [
        {name: value.decode("latin-1") if isinstance(value, bytes) else value for name, value in row.items()}
        for row in rows
    ]
    assert kept["rows"] == said
    assert stream == hybrid_row.write(schema, rows)


@settings(max_examples=examples(100, many=2000))
@given(streams)
def test_binary_rows_are_read_as_they_were_written(written):
    schema, rows = written
    assert rows == hybrid_row.read(schema, hybrid_row.write(schema, rows))


@settings(max_examples=examples(100, many=2000))
@given(streams, st.data())
def test_a_damaged_binary_body_is_refused_or_has_fewer_rows(written, data):
    schema, rows = written
    stream = hybrid_row.write(schema, rows)
    at = data.draw(st.integers(0, len(stream) - 1))
    changed = bytearray(stream)
    changed[at] ^= data.draw(st.integers(1, 255))
    for wrong in (stream[:at], bytes(changed)):
        read = None
        with suppress(CosmosError):
            read = hybrid_row.read(schema, wrong)
        assert read is None or rows[: len(read)] == read != rows


def record(content: bytes) -> bytes:
    header = struct.pack("<BIiI", 0x81, 2_147_473_649, len(content), zlib.crc32(content))
    return hybrid_row.write(OPERATION, []) + header + content


ROW = struct.pack("<BI", 0x81, OPERATION.number)
REFUSED = [
    (b"\x81\xf0", "The binary body does not begin with a segment of RecordIO."),
    (hybrid_row.write(OPERATION, [{}])[:-1], "Record 0 of the binary body is cut off."),
    (record(b"")[:10] + b"\x81" * 13, "Record 0 of the binary body is of schema 2172748161, not a record of RecordIO."),
    (record(ROW)[:-1] + b"\0", "Record 0 of the binary body does not match its CRC-32."),
    (hybrid_row.write(RESULT, [{}]), "Record 0 of the binary body is of schema 2145473649, not 2145473648."),
    (record(ROW), "Record 0 of the binary body ends inside of a column."),
    (record(ROW + b"\x04" + bytes(8) + b"\x02"), "Record 0 of the binary body ends inside of a column."),
    (record(ROW + b"\x04" + bytes(8) + b"\x01\xff"), "Record 0 of the binary body has a text that is not UTF-8."),
    (record(ROW + b"\x80" + bytes(8)), "Record 0 of the binary body has a column that its schema does not know."),
    (record(ROW + bytes(9) + b"\x14\x0d\x00"), "Record 0 of the binary body has a column that its schema does not know."),
    (record(ROW + bytes(9) + b"\x07\x09"), "Record 0 of the binary body has another type than its schema in column ifMatch."),
    (hybrid_row.write(OPERATION, []), "Batch request has no operations."),
    (hybrid_row.write(OPERATION, [{"operationType": 2}]), "Operation 0 of the batch is not about a document."),
    (
        hybrid_row.write(OPERATION, [{"operationType": 3, "resourceType": 2}]),
        "Operation 0 of the batch has an invalid operationType.",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("body", "sentence"), REFUSED)
def test_the_refusal_of_a_wrong_binary_body_names_the_mistake(body, sentence):
    reply = Driver().batch("k", body)

    assert (400, sentence) == (reply.status, json.loads(reply.body)["message"])


def operation(kind: str, item_id: str | None = None, body: object = None, **columns: object):
    encoded = None if body is None else json.dumps(body).encode()
    numbers = {"operationType": NUMBERS[kind], "resourceType": 2}
    return {**numbers, "id": item_id, "resourceBody": encoded, **columns}


def test_a_batch_in_binary_rows_is_answered_in_binary_rows():
    driver = Driver()
    patch = {"operations": [{"op": "incr", "path": "/n", "value": 2}], "condition": "from c where c.n = 1"}
    sent = [
        operation("Create", body={"id": "a", "pk": "k", "n": 1}, minimalReturnPreference=True),
        operation("Patch", "a", patch),
        operation("Read", "a"),
        operation("Upsert", body={"id": "b", "pk": "k"}, timeToLiveInSeconds=5),
        operation("Replace", "b", {"id": "b", "pk": "k", "ttl": 9}),
        operation("Delete", "b", ifMatch="*"),
    ]
    reply = driver.batch("k", hybrid_row.write(OPERATION, sent))
    rows = hybrid_row.read(RESULT, reply.body)

    assert [201, 200, 200, 201, 200, 204] == [row["statusCode"] for row in rows]
    bodies = [json.loads(row["resourceBody"]) if "resourceBody" in row else None for row in rows]
    assert [None, 3, 3] == [body and body["n"] for body in bodies[:3]]
    assert [5, 9, None] == [body and body["ttl"] for body in bodies[3:]]
    assert [True] * 5 + [False] == ["eTag" in row for row in rows]
    assert float(reply.headers["x-ms-request-charge"]) == sum(row["requestCharge"] for row in rows) > 0


def test_a_failed_operation_rolls_back_the_other_operations_of_its_batch():
    """The failed operation of a batch has a status of its own. The other operations have 424, and nothing is stored."""
    driver = Driver()
    driver.upsert("k", "a")
    sent = [
        operation("Create", body={"id": "b", "pk": "k"}),
        operation("Create", body={"id": "a", "pk": "k"}),
        operation("Read", "a"),
    ]
    reply = driver.batch("k", hybrid_row.write(OPERATION, sent))
    rows = hybrid_row.read(RESULT, reply.body)

    assert (207, [424, 409, 424]) == (reply.status, [row["statusCode"] for row in rows])
    assert b"Entity with the specified id already exists in the system." == rows[1]["resourceBody"]
    assert 404 == driver.item("GET", "k", "b").status


def test_a_body_that_is_no_json_fails_only_its_operation_of_a_bulk_request():
    broken = {**operation("Create"), "resourceBody": b'{"id": '}
    sent = [
        {**one, "partitionKey": '["k"]'} for one in (broken, operation("Create", body={"id": "b", "pk": "k"}))
    ]
    headers = {"x_ms_cosmos_batch_atomic": "False", "x_ms_cosmos_batch_continue_on_error": "True"}
    reply = Driver().batch("k", hybrid_row.write(OPERATION, sent), **headers)

    assert [400, 201] == [row["statusCode"] for row in hybrid_row.read(RESULT, reply.body)]


@pytest.mark.parametrize("condition", ["ifMatch", "ifNoneMatch"])
def test_a_batch_with_an_unmodified_read_is_committed_with_status_207(condition):
    driver = Driver()
    etag = driver.upsert("k", "a").headers["etag"]
    sent = [operation("Create", body={"id": "b", "pk": "k"}), operation("Read", "a", **{condition: etag})]
    reply = driver.batch("k", hybrid_row.write(OPERATION, sent))

    assert 207 == reply.status
    assert [201, 304] == [row["statusCode"] for row in hybrid_row.read(RESULT, reply.body)]
    assert 200 == driver.item("GET", "k", "b").status


def test_an_operation_that_makes_the_answer_exceed_10_mb_fails_with_413():
    driver = Driver()
    driver.upsert("k", "a", text="x" * 2**20)
    reply = driver.batch("k", hybrid_row.write(OPERATION, [operation("Read", "a")] * 10))

    assert [424] * 9 + [413] == [row["statusCode"] for row in hybrid_row.read(RESULT, reply.body)]
