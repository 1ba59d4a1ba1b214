"""
Tests of transactional batches against a model: all operations or none are applied, at one LSN, and etags are respected.
"""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.emulators.cosmos.driver import Driver, documents, increment, put
from tests.support.effort import examples

ids = st.sampled_from(["a", "b", "c"])
numbers = st.integers(0, 9)
operations = st.one_of(
    st.builds(put, st.sampled_from(["Create", "Upsert"]), ids, n=numbers),
    st.builds(lambda item_id, n: {**put("Replace", item_id, n=n), "id": item_id}, ids, numbers),
    st.builds(lambda item_id: {"operationType": "Delete", "id": item_id}, ids),
    st.builds(lambda item_id: {"operationType": "Read", "id": item_id}, ids),
    st.builds(increment, ids, st.integers(1, 3)),
)


def model_apply(state, operation):
    """Apply one operation to the model's state, and return the status that it should have."""
    kind, body = operation["operationType"], operation.get("resourceBody", {})
    item_id = body.get("id") if kind in ("Create", "Upsert") else operation["id"]
    exists = item_id in state
    if kind == "Create":
        if exists:
            return 409
        state[item_id] = body["n"]
        return 201
    if kind == "Upsert":
        state[item_id] = body["n"]
        return 200 if exists else 201
    if not exists:
        return 404
    if kind == "Replace":
        state[item_id] = body["n"]
    elif kind == "Delete":
        del state[item_id]
        return 204
    elif kind == "Patch":
        state[item_id] += body["operations"][0]["value"]
    return 200


@settings(max_examples=examples(50, many=150), deadline=None)
@given(st.lists(st.lists(operations, min_size=1, max_size=6), max_size=12))
def test_a_batch_is_applied_as_a_whole_or_not_at_all(batches):
    driver = Driver()
    state: dict[str, int] = {}
    continuation = driver.changes("0").headers["etag"]
    for batch in batches:
        trial = dict(state)
        statuses = []
        for operation in batch:
            statuses.append(model_apply(trial, operation))
            if statuses[-1] >= 400:
                break
        failed = statuses[-1] >= 400
        reply = driver.batch("k", batch)
        answered = [result["statusCode"] for result in json.loads(reply.body)]
        if failed:
            position = len(statuses) - 1
            assert 207 == reply.status
            assert statuses[-1] == answered[position]
            assert [424] * (len(batch) - 1) == answered[:position] + answered[position + 1 :]
        else:
            assert 200 == reply.status
            assert statuses == answered
            state = trial
        stored = {item["id"]: item["n"] for item in driver.rows("SELECT * FROM c")}
        assert state == stored
        page = driver.changes("0", continuation)
        changed = documents(page)
        assert failed is False or changed == []
        assert len({item["_lsn"] for item in changed}) <= 1
        continuation = page.headers["etag"]


def test_an_operation_with_a_wrong_etag_or_key_fails_its_batch():
    driver = Driver()
    etag = driver.upsert("k", "a", n=1).headers["etag"]
    replace = {**put("Replace", "a", n=2), "id": "a"}
    first = driver.batch("k", [{**replace, "ifMatch": etag}])
    assert 200 == first.status
    for refused, status in (({**replace, "ifMatch": etag}, 412), (put("Create", "x", "other"), 400)):
        reply = driver.batch("k", [put("Upsert", "b"), refused])
        assert [424, status] == [result["statusCode"] for result in json.loads(reply.body)]
        assert ["a"] == driver.rows("SELECT VALUE c.id FROM c")


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH"])
def test_a_write_with_a_stale_etag_gets_412(method):
    driver = Driver()
    driver.upsert("k", "a")
    body = (
        {"operations": [{"op": "set", "path": "/n", "value": 1}]}
        if method == "PATCH"
        else {"id": "a", "pk": "k"}
    )
    assert 412 == driver.item(method, "k", "a", body, if_match='"other"').status
    assert driver.item(method, "k", "a", body, if_match="*").status in (200, 204)


def test_a_patch_must_not_change_the_partition_key_of_an_item():
    driver = Driver()
    driver.upsert("k", "a")
    reply = driver.item("PATCH", "k", "a", {"operations": [{"op": "set", "path": "/pk", "value": "other"}]})
    assert (400, "1001") == (reply.status, reply.headers["x-ms-substatus"])


@pytest.mark.parametrize("ttl", [0, -2, 1.5, "10", True, 2**31, [1]])
def test_an_item_with_an_invalid_ttl_is_refused(ttl):
    assert 400 == Driver().upsert("k", "a", ttl=ttl).status


@pytest.mark.parametrize("item_id", ["", "a/b", "a\\b", "a?", "#", "x" * 1024])
def test_an_item_with_an_invalid_id_is_refused(item_id):
    assert 400 == Driver().upsert("k", item_id).status


def test_an_item_nested_deeper_than_128_levels_is_refused():
    driver, deep = Driver(), []
    for _ in range(126):
        deep = [deep]
    assert 201 == driver.upsert("k", "a", deep=deep, wide=[[]] * 200).status
    assert 400 == driver.upsert("k", "a", deep=[deep]).status
    operations = {"operations": [{"op": "set", "path": "/deep/0", "value": [deep]}]}
    assert 400 == driver.item("PATCH", "k", "a", operations).status


def test_a_patch_that_makes_an_item_larger_than_two_megabytes_is_refused():
    driver = Driver()
    driver.upsert("k", "a", text="x" * 1_500_000)
    reply = driver.item(
        "PATCH", "k", "a", {"operations": [{"op": "set", "path": "/more", "value": "x" * 1_000_000}]}
    )
    assert 413 == reply.status


def test_a_patch_is_applied_only_if_its_condition_is_true():
    driver = Driver()
    driver.upsert("k", "a", n=1)
    body = {"condition": "from c where c.n = 2", "operations": [{"op": "set", "path": "/n", "value": 5}]}
    assert 412 == driver.item("PATCH", "k", "a", body).status
    assert 200 == driver.item("PATCH", "k", "a", {**body, "condition": "from c where c.n = 1"}).status
