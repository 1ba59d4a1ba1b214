"""Tests of the gateway's answers to wrong requests: they have the status that Azure gives, and never 500."""

from __future__ import annotations

import base64
import re
from urllib.parse import quote

import pytest
from multidict import CIMultiDict

from cosmos_outbox_emulators.cosmos.protocol import Request
from tests.emulators.cosmos.driver import DOCUMENTS, RANGES, Driver, put, sign, substatus

KEY = {"x_ms_documentdb_partitionkey": '["k"]'}
BATCH = {**KEY, "x_ms_cosmos_is_batch_request": "True"}
QUERY = {"x_ms_documentdb_isquery": "True", "x_ms_documentdb_partitionkeyrangeid": "0"}
FEED = {"a_im": "Incremental Feed"}
CONTAINER = {"id": "n", "partitionKey": {"paths": ["/pk"]}}


@pytest.mark.parametrize(
    ("method", "target", "expected"),
    [
        ("GET", "/nothing", (404, 0)),
        ("GET", "/dbs/d/users", (404, 0)),
        ("GET", "/dbs/d/colls/c/sprocs", (404, 0)),
        ("GET", "/dbs/d/colls/c/docs/x/attachments", (404, 0)),
        ("GET", "/dbs//colls", (404, 0)),
        ("GET", "/dbs/nope", (404, 0)),
        ("DELETE", "/dbs/nope", (404, 0)),
        ("GET", "/dbs/nope/colls", (404, 1003)),
        ("GET", "/dbs/d/colls/nope", (404, 0)),
        ("DELETE", "/dbs/d/colls/nope", (404, 0)),
        ("GET", "/dbs/nope/colls/c", (404, 1003)),
        ("GET", "/dbs/d/colls/nope/docs", (404, 1003)),
        ("GET", "/dbs/nope/colls/c/docs/x", (404, 1003)),
        ("GET", "/dbs/d/colls/nope/pkranges", (404, 1003)),
        ("POST", "/", (405, 0)),
        ("PUT", "/dbs/d", (405, 0)),
        ("PATCH", "/dbs", (405, 0)),
        ("DELETE", "/dbs/d/colls/c/docs", (405, 0)),
        ("POST", "/dbs/d/colls/c/docs/x", (405, 0)),
        ("POST", "/dbs/d/colls/c/pkranges", (405, 0)),
        ("BREW", "/dbs/d/colls/c", (405, 0)),
        ("GET", "/dbs/%", (400, 0)),
        ("GET", "/dbs/%zz", (400, 0)),
        ("GET", "/dbs/%ff", (400, 0)),
        ("GET", "/dbs/\udcff", (400, 0)),
    ],
)
def test_a_path_without_a_resource_gets_the_same_status_as_on_azure(method, target, expected):
    assert expected == substatus(Driver().send(method, target))


@pytest.mark.parametrize(
    ("method", "target", "body", "headers", "expected"),
    [
        ("POST", "/dbs", b"", {}, 400),
        ("POST", "/dbs", b"{", {}, 400),
        ("POST", "/dbs", b"\xff", {}, 400),
        ("POST", "/dbs", b"\xef\xbb\xbf{}", {}, 400),
        ("POST", "/dbs", [], {}, 400),
        ("POST", "/dbs", {"id": 1}, {}, 400),
        ("POST", "/dbs", {"id": "a/b"}, {}, 400),
        ("POST", "/dbs", {"id": "d"}, {}, 409),
        ("POST", "/dbs/d/colls", {"id": "c", "partitionKey": {"paths": ["/pk"]}}, {}, 409),
        ("POST", "/dbs/d/colls", {"id": "n"}, {}, 400),
        ("POST", "/dbs/d/colls", {"id": "c", "partitionKey": {"paths": ["/a", "/b"]}}, {}, 400),
        ("POST", "/dbs/d/colls", {**CONTAINER, "partitionKey": {"paths": "/pk"}}, {}, 400),
        ("POST", "/dbs/d/colls", {**CONTAINER, "partitionKey": {"paths": ["pk"]}}, {}, 400),
        ("POST", "/dbs/d/colls", {**CONTAINER, "partitionKey": {"paths": ["/a", "/b"]}}, {}, 400),
        ("POST", "/dbs/d/colls", {**CONTAINER, "partitionKey": {"paths": ["/a", "/a"], "kind": "MultiHash"}}, {}, 400),
        ("POST", "/dbs/d/colls", {**CONTAINER, "partitionKey": {"paths": ["/a", "/b", "/c", "/d"], "kind": "MultiHash"}}, {}, 400),
        ("POST", "/dbs/d/colls", {**CONTAINER, "partitionKey": {"paths": [], "kind": "MultiHash"}}, {}, 400),
        ("POST", "/dbs/d/colls", {**CONTAINER, "partitionKey": {"paths": ["/a"], "kind": "Range"}}, {}, 400),
        ("POST", "/dbs/d/colls", {**CONTAINER, "partitionKey": {"paths": ["/a"], "kind": []}}, {}, 400),
        ("POST", "/dbs/d/colls", {**CONTAINER, "partitionKey": {"paths": ["/a//b"]}}, {}, 400),
        ("POST", "/dbs/d/colls", {**CONTAINER, "partitionKey": {"paths": ["/a", "/b"], "kind": "MultiHash", "version": 1}}, {}, 400),
        ("POST", "/dbs/d/colls", {**CONTAINER, "partitionKey": {"paths": ["/a"], "version": 3}}, {}, 400),
        ("POST", "/dbs/d/colls", {**CONTAINER, "computedProperties": [{"name": "n", "query": "SELECT VALUE c.n FROM c"}]}, {}, 400),
        ("POST", "/dbs/d/colls", {**CONTAINER, "vectorEmbeddingPolicy": {"vectorEmbeddings": []}}, {}, 400),
        ("POST", "/dbs/d/colls", {**CONTAINER, "defaultTtl": 0}, {}, 400),
        ("POST", "/dbs/d/colls", {**CONTAINER, "defaultTtl": "1"}, {}, 400),
        ("POST", "/dbs/d/colls", {**CONTAINER, "uniqueKeyPolicy": {"uniqueKeys": [{"paths": ["/a"]}]}}, {}, 400),
        ("POST", "/dbs/d/colls", CONTAINER, {"x_ms_offer_throughput": "lots"}, 400),
        ("POST", "/dbs/d/colls", CONTAINER, {"x_ms_offer_throughput": "999999999999"}, 400),
        ("PUT", "/dbs/d/colls/c", {"id": "other", "partitionKey": {"paths": ["/pk"]}}, {}, 400),
        ("PUT", "/dbs/d/colls/c", {"id": "c", "partitionKey": {"paths": ["/other"]}}, {}, 400),
        ("POST", DOCUMENTS, {"id": "a", "pk": "k"}, {}, 400),
        ("POST", DOCUMENTS, {"id": "a", "pk": "other"}, KEY, 400),
        ("POST", DOCUMENTS, {"pk": "k"}, KEY, 400),
        ("POST", DOCUMENTS, {"id": "a", "pk": "k", "ttl": None}, KEY, 400),
        ("POST", DOCUMENTS, {"id": "a", "pk": "k"}, {"x_ms_documentdb_partitionkey": "k"}, 400),
        ("POST", DOCUMENTS, {"id": "a", "pk": "k"}, {"x_ms_documentdb_partitionkey": '["k","l"]'}, 400),
        ("POST", DOCUMENTS, b'{"id":"a","pk":"k","n":NaN}', KEY, 400),
        ("POST", DOCUMENTS, b'{"id":"a","pk":"k","n":1e999}', KEY, 400),
        ("POST", DOCUMENTS, b'{"id":"a","pk":"k","s":"\\ud800"}', KEY, 400),
        ("POST", DOCUMENTS, b'{"id":"a","pk":"k","n":' + b"1" * 5000 + b"}", KEY, 400),
        ("POST", DOCUMENTS, b'{"id":"a","pk":"k","n":' + b"[" * 100_000 + b"]" * 100_000 + b"}", KEY, 400),
        ("POST", DOCUMENTS, {"id": "a", "pk": "k", "x": "x" * 2_100_000}, KEY, 413),
        ("POST", DOCUMENTS, [], BATCH, 400),
        ("POST", DOCUMENTS, {}, BATCH, 400),
        ("POST", DOCUMENTS, [1], BATCH, 400),
        ("POST", DOCUMENTS, [{"operationType": "Explode", "id": "a"}], BATCH, 400),
        ("POST", DOCUMENTS, [{"operationType": ["Read"], "id": "a"}], BATCH, 400),
        ("POST", DOCUMENTS, [{"operationType": "Read", "id": 5}], BATCH, 400),
        ("POST", DOCUMENTS, [{"operationType": "Create", "resourceBody": "x"}], BATCH, 400),
        ("POST", DOCUMENTS, [{"operationType": "Read", "id": "a"}] * 101, BATCH, 400),
        ("POST", DOCUMENTS, [{"operationType": "Upsert", "resourceBody": {"x": "x" * 2_100_000}}], BATCH, 413),
        ("POST", DOCUMENTS, b"5", QUERY, 400),
        ("POST", DOCUMENTS, {"query": 5}, QUERY, 400),
        ("POST", DOCUMENTS, {"query": "SELECT * FROM c", "parameters": {}}, QUERY, 400),
        ("POST", DOCUMENTS, {"query": "SELECT * FROM c", "parameters": [{"name": 1}]}, QUERY, 400),
        ("POST", DOCUMENTS, {"query": "SELECT * FROM c"}, {**QUERY, "x_ms_max_item_count": "0x10"}, 400),
        ("POST", DOCUMENTS, {"query": "SELECT * FROM c"}, {**QUERY, "x_ms_max_item_count": "-2"}, 400),
        ("POST", DOCUMENTS, {"query": "SELECT * FROM c"}, {**QUERY, "x_ms_max_item_count": "9" * 5000}, 400),
        ("POST", DOCUMENTS, {"query": "SELECT * FROM c"}, {**QUERY, "x_ms_continuation": "9" * 5000}, 400),
        ("GET", DOCUMENTS, b"", {**FEED, "if_none_match": "x"}, 400),
        ("GET", DOCUMENTS, b"", {**FEED, "if_none_match": "-1"}, 400),
        ("GET", DOCUMENTS, b"", {**FEED, "if_none_match": "9" * 5000}, 400),
        ("GET", DOCUMENTS, b"", {**FEED, "if_modified_since": "yesterday"}, 400),
        ("GET", DOCUMENTS, b"", {**FEED, "x_ms_documentdb_partitionkeyrangeid": "-3F"}, 400),
        ("GET", DOCUMENTS, b"", {**FEED, "x_ms_start_epk": "zz"}, 400),
        ("GET", DOCUMENTS, b"", {"a_im": "Feed"}, 400),
        ("GET", RANGES, b"", {"x_ms_cosmos_intended_collection_rid": "other"}, 400),
    ],
)  # fmt: skip
def test_a_malformed_request_gets_the_same_status_as_on_azure(method, target, body, headers, expected):
    assert expected == Driver().send(method, target, body, **headers).status


def test_the_all_versions_and_deletes_mode_is_refused_as_not_enabled():
    """
    The error has the words of Azure, by which the tests of azure-cosmos recognise an account without this mode.
    """
    reply = Driver().send("GET", DOCUMENTS, a_im="Full-Fidelity Feed")
    assert 400 == reply.status
    assert b"All Versions and Deletes" in reply.body
    assert b"must be enabled" in reply.body


def test_a_missing_or_wrong_signature_is_unauthorized():
    driver = Driver()
    right = sign(driver.account.key, "GET", "/dbs")
    wrong = sign("AAAA", "GET", "/dbs")
    for headers in (
        {},
        wrong,
        {"x-ms-date": right["x-ms-date"]},
        {"authorization": right["authorization"]},
        {**right, "authorization": "nonsense"},
        {**right, "authorization": "type=aad&ver=1.0&sig=x"},
        {**right, "authorization": quote("type=master&ver=1.0&sig=é\udcff", errors="surrogateescape")},
        sign(driver.account.key, "POST", "/dbs"),
        sign(driver.account.key, "GET", "/dbs/d"),
    ):
        reply = driver.gateway.answer(Request(method="GET", target="/dbs", headers=CIMultiDict(headers)))
        assert 401 == reply.status
    assert 200 == driver.send("GET", "/dbs").status


def test_a_request_for_the_resource_id_of_a_deleted_container_is_refused():
    driver = Driver()
    old = driver.container.rid
    assert 204 == driver.send("DELETE", "/dbs/d/colls/c").status
    driver.ok("POST", "/dbs/d/colls", {"id": "c", "partitionKey": {"paths": ["/pk"]}})
    assert (400, 1024) == substatus(driver.send("GET", DOCUMENTS, x_ms_cosmos_intended_collection_rid=old))


def test_the_answer_to_a_write_with_prefer_minimal_has_no_body():
    driver = Driver()
    created = driver.item("POST", "k", None, {"id": "a", "pk": "k"}, prefer="return=minimal")
    assert (201, b"") == (created.status, created.body)
    assert created.headers["etag"]
    assert driver.item("GET", "k", "a", prefer="return=minimal").body


def test_a_read_with_a_matching_etag_gets_304_without_a_body():
    driver = Driver()
    etag = driver.upsert("k", "a").headers["etag"]
    reply = driver.item("GET", "k", "a", if_none_match=etag)
    assert (304, b"", etag) == (reply.status, reply.body, reply.headers["etag"])


def test_the_answer_for_a_container_names_the_path_of_its_database():
    """The SDK for Java builds the address of a container from the header x-ms-alt-content-path."""
    assert "dbs/d" == Driver().send("GET", "/dbs/d/colls/c").headers["x-ms-alt-content-path"]


def test_the_headers_of_a_reply_report_charge_session_and_range():
    driver = Driver()
    headers = driver.upsert("k", "a").headers
    assert re.fullmatch(r"0:\d+#2", headers["x-ms-session-token"])
    assert float(headers["x-ms-request-charge"]) > 0
    assert ("0", "2") == (headers["x-ms-documentdb-partitionkeyrangeid"], headers["lsn"])
    assert "dbs/d/colls/c" == headers["x-ms-alt-content-path"]


def test_an_unforeseen_error_is_logged_and_answered_with_500(caplog):
    """A client gets an answer even if the emulator fails with an unforeseen error."""
    driver = Driver()

    def broken_clock():
        raise ZeroDivisionError

    driver.account.clock = broken_clock
    assert 500 == driver.item("GET", "k", "a").status
    assert ["request.failed"] == [record.message for record in caplog.records]


KNOWN = {200, 201, 204, 207, 304, 400, 401, 404, 405, 409, 410, 412, 413}


VALID = [
    ("POST", "/dbs", {}, {"id": "fresh"}),
    ("POST", "/dbs/d/colls", {}, {"id": "n", "partitionKey": {"paths": ["/pk"], "kind": "Hash", "version": 2}, "defaultTtl": 5}),
    ("PUT", "/dbs/d/colls/c", {}, {"id": "c", "partitionKey": {"paths": ["/pk"]}, "defaultTtl": -1}),
    ("POST", DOCUMENTS, KEY, {"id": "b", "pk": "k", "ttl": 5, "data": {"list": [1, {"x": None}]}}),
    ("PATCH", f"{DOCUMENTS}/a", KEY, {"condition": "from c where c.n = 1", "operations": [{"op": "incr", "path": "/n", "value": 1}, {"op": "move", "from": "/n", "path": "/o"}]}),
    ("POST", DOCUMENTS, BATCH, [
        {"operationType": "Create", "resourceBody": {"id": "b", "pk": "k"}},
        {"operationType": "Replace", "id": "a", "ifMatch": "*", "resourceBody": {"id": "a", "pk": "k", "n": 2}},
        {"operationType": "Patch", "id": "a", "resourceBody": {"operations": [{"op": "set", "path": "/n", "value": 1}]}},
        {"operationType": "Read", "id": "a", "ifNoneMatch": "x"},
    ]),
    ("POST", DOCUMENTS, QUERY, {"query": "SELECT TOP @n * FROM c WHERE STARTSWITH(c.id, @p) AND c[@s] < @n ORDER BY c.n", "parameters": [{"name": "@n", "value": 2}, {"name": "@p", "value": "a"}, {"name": "@s", "value": "n"}]}),
]  # fmt: skip
STRANGE = [None, True, -1, 0, 1e300, 10**400, "", "x", "\x00", [], {}, [[]], ["x"], {"x": 1}]


def with_one_replaced(value, strange):
    """Yield copies of a JSON value, in each of which one part is replaced by `strange` or removed."""
    yield strange
    if isinstance(value, dict):
        for name, inner in value.items():
            yield {other: v for other, v in value.items() if other != name}
            for changed in with_one_replaced(inner, strange):
                yield {**value, name: changed}
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            for changed in with_one_replaced(inner, strange):
                yield [*value[:index], changed, *value[index + 1 :]]


@pytest.mark.parametrize(("method", "target", "extra", "body"), VALID)
def test_a_wrong_type_anywhere_in_a_body_is_never_answered_with_500(method, target, extra, body):
    driver = Driver()
    driver.upsert("k", "a", n=1)
    assert driver.send(method, target, body, **extra).status < 300
    for strange in STRANGE:
        for changed in with_one_replaced(body, strange):
            reply = driver.send(method, target, changed, **extra)
            assert reply.status in KNOWN, (changed, reply)


@pytest.mark.parametrize(
    ("item_id", "status"), [("a ", 401), ("a%20b", 401), ("a\tb", 400), ("100%", 200), (" a b", 200)]
)
def test_with_strict_ids_the_gateway_refuses_the_ids_that_azure_refuses(item_id, status):
    driver = Driver()
    driver.upsert("k", item_id)
    assert 200 == driver.item("GET", "k", item_id).status

    driver.account.strict_ids = True

    assert 201 == driver.upsert("other", item_id).status
    assert status == driver.item("GET", "k", item_id).status
    assert status // 200 == driver.item("DELETE", "k", item_id).status // 200


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x_ms_consistency_level", "Sometimes"),
        ("x_ms_indexing_directive", "Perhaps"),
        ("x_ms_documentdb_content_serialization_format", "Xml"),
        ("x_ms_documentdb_query_enable_scan", "maybe"),
        ("x_ms_version", "2015-01-01"),
        ("x_ms_documentdb_partitionkeyrangeid", "rid,x"),
    ],
)
def test_a_header_with_an_unknown_value_is_a_bad_request(name, value):
    driver = Driver()

    assert (400, 0) == substatus(driver.send("GET", DOCUMENTS, **{name: value}))
    assert 200 == driver.send("GET", DOCUMENTS, x_ms_consistency_level="").status


def test_the_id_of_a_range_may_follow_the_resource_id_of_its_container():
    driver = Driver()
    named = {"x_ms_documentdb_partitionkeyrangeid": f"{driver.container.rid},0"}

    assert 200 == driver.send("GET", DOCUMENTS, **named).status


def test_a_token_of_entra_id_is_accepted_if_the_account_key_signs_it():
    """The test also checks that a request with such a token needs no date header."""
    driver = Driver()
    key = base64.urlsafe_b64encode(driver.account.key.encode()).decode().rstrip("=")

    def asked(signed: str) -> int:
        headers = CIMultiDict({"authorization": quote(f"type=aad&ver=1.0&sig=e30.e30.{signed}")})
        return driver.gateway.answer(Request(method="GET", target="/dbs/d", headers=headers)).status

    assert (200, 401) == (asked(key), asked("e30"))


def test_a_body_of_binary_json_is_refused_with_a_message_that_says_so():
    reply = Driver().item("POST", "k", None, b"\x80\xec\x01")

    assert (400, True) == (reply.status, b"binary JSON" in reply.body)


def test_a_refused_read_of_an_item_still_returns_a_session_token():
    driver = Driver()
    driver.upsert("k", "a")
    refused = driver.item("GET", "k", "b")

    assert refused.headers["x-ms-session-token"] == driver.item("GET", "k", "a").headers["x-ms-session-token"]
    assert "x-ms-content-path" not in refused.headers


def test_a_batch_that_reads_is_refused_if_the_replica_lags_behind_its_session():
    driver = Driver()
    driver.upsert("k", "a")
    later = {
        "x_ms_session_token": f"0:{driver.container.token_version}#99",
        "x_ms_cosmos_is_batch_request": "True",
    }

    read = driver.item("POST", "k", None, [{"operationType": "Read", "id": "a"}], **later)

    assert (404, 1002) == substatus(read)
    assert 200 == driver.item("POST", "k", None, [put("Create", "b")], **later).status


def test_a_query_with_a_continuation_limit_of_0_kb_is_refused():
    driver = Driver()
    for key in "ab":
        driver.upsert("k", key)
    limit = {"x_ms_documentdb_responsecontinuationtokenlimitinkb": "0"}

    assert (400, 0) == substatus(driver.query("SELECT * FROM c", x_ms_max_item_count="1", **limit))
    assert 200 == driver.query("SELECT * FROM c", **limit).status
