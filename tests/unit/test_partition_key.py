"""Partition keys: their text (the session id), their fields in documents, and which values are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cosmos_outbox.partition_key import (
    KeyPart,
    PartitionKey,
    identity,
    key_of_text,
    key_paths_of,
    key_text,
)
from tests.support.effort import examples

TENANT = key_paths_of(["/tenantId"])
THREE = key_paths_of(["/tenantId", "/owner/userId", '/owner/"of/part"'])

strings = st.text(max_size=30) | st.sampled_from(
    ["[5]", "[true]", '["a"]', '["a","b"]', "[", "1", "true", "null"]
)
numbers = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
parts: st.SearchStrategy[KeyPart] = strings | numbers | st.booleans()
triples = st.tuples(parts, parts, parts)


def same(one: Any, other: Any) -> bool:
    """Return whether two values are equal in JSON, where all numbers are 64-bit floats."""
    if isinstance(one, tuple):
        return all(map(same, one, other))
    kinds = [
        bool if isinstance(part, bool) else str if isinstance(part, str) else float for part in (one, other)
    ]
    return kinds[0] is kinds[1] and bool(one == other)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("ada", "ada"),
        ("Zoë ☃", "Zoë ☃"),
        ("", ""),
        (("ada",), "ada"),
        (5, "[5]"),
        (5.0, "[5]"),
        (-0.0, "[0]"),
        (1.5, "[1.5]"),
        (2**53, "[9007199254740992]"),
        (1e300, "[1e+300]"),
        (True, "[true]"),
        (("t1", "u1"), '["t1","u1"]'),
        (("t1", 5, False), '["t1",5,false]'),
        (("Zoë", ""), '["Zoë",""]'),
    ],
)
def test_the_text_of_a_string_key_is_the_string(key: PartitionKey, text: str):
    """The text of any other key is a compact JSON list."""
    assert text == key_text(key)


@given(st.lists(parts, min_size=2, max_size=3).map(tuple))
@example(("t1", "u1"))
@settings(max_examples=examples(300, many=5000))
def test_the_text_of_a_hierarchical_key_is_parsed_to_the_same_key(key: tuple[KeyPart, ...]):
    assert same(key, key_of_text(key_text(key), levels=len(key)))


@given(parts.filter(lambda key: not (isinstance(key, str) and key.startswith("["))))
@settings(max_examples=examples(300, many=5000))
def test_the_text_of_a_single_value_is_parsed_to_the_same_value(key: KeyPart):
    assert same(key, key_of_text(key_text(key)))


@pytest.mark.parametrize(
    "text", ["ada", '["t1"]', '["t1","u1","x"]', '["t1",null]', '["t1",[]]', "[" * 100_000, "{}"]
)
def test_a_text_with_another_number_of_key_levels_is_refused(text: str):
    with pytest.raises(ValueError, match="is no partition key of 2 levels") as caught:
        key_of_text(text, levels=2)
    assert len(str(caught.value)) < 400


@given(parts)
@settings(max_examples=examples(300, many=5000))
def test_the_text_of_a_key_with_one_level_is_parsed_to_the_same_key(key: KeyPart):
    """The only exception is a string that looks like the JSON list of another key, such as "[5]"."""
    named = TENANT.parse(key_text(key))
    assert key_text(key) == key_text(named)
    assert same(key, named) or (isinstance(key, str) and key_text(json.loads(key)[0]) == key)


@given(parts, parts)
@example(5, "[5]")
@example(True, 1)
@example("a", "b")
@settings(max_examples=examples(300, many=5000))
def test_two_different_values_are_two_different_keys(one: KeyPart, other: KeyPart):
    """The texts of two different keys may be equal, but only if one key is a string that looks like the JSON list of the other key."""
    assert same(one, other) == (identity(one) == identity(other))
    if not same(one, other) and key_text(one) == key_text(other):
        assert {True, False} == {isinstance(one, str), isinstance(other, str)}


@given(
    triples, st.dictionaries(st.sampled_from(["owner", "tenantId", "x"]), st.dictionaries(strings, numbers))
)
def test_a_key_that_is_written_into_a_document_is_read_from_it(
    key: tuple[KeyPart, ...], stored: dict[str, Any]
):
    """The test also checks that the other fields of the document stay as they are."""
    before = json.dumps(stored)
    fields = THREE.fields(key, stored)
    assert same(key, THREE.key_of(fields))
    assert before == json.dumps(stored)
    assert {"tenantId", "owner"} == fields.keys()
    for name, value in stored.get("owner", {}).items():
        assert name in ("userId", "of/part") or fields["owner"][name] == value


@pytest.mark.parametrize(
    "missing", [{}, {"tenantId": None}, {"tenantId": {}}, {"tenantId": ["a"]}, {"tenantId": float("inf")}]
)
def test_a_document_without_a_value_at_a_key_path_has_no_key(missing: dict[str, Any]):
    assert None is TENANT.key_of(missing)
    assert None is THREE.key_of({**missing, "owner": {"userId": 1, "of/part": 2}})
    assert None is key_paths_of(["/tenantId/x"]).key_of(missing)


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ("t1", "a tuple (tenantId, userId, of/part)"),
        (("t1", "u1"), 'partitioned on /tenantId, /owner/userId, /owner/"of/part"'),
        (["t1", "u1", 1], "a tuple"),
        (("t1", None, 1), "null is no key"),
        (("t1", float("nan"), 1), "64-bit float"),
        (("t1", 2**53 + 1, 1), "64-bit float"),
        (("t1", 10**400, 1), "64-bit float"),
        (("t1", "\ud800", 1), "valid text"),
        (("t1", {"a": 1}, 1), "a string, a number or a boolean"),
        (("t" * 1000, "u" * 1049, 1), "2048 bytes"),
    ],
)
def test_an_invalid_key_of_a_container_is_refused_with_the_reason(bad: object, why: str):
    assert why in (THREE.problem(bad) or "")


@pytest.mark.parametrize("text", ["ada", "[", '["t1","u1"]', '["t1","u1",null]', "null", "[" * 100_000])
def test_the_error_of_an_invalid_key_text_has_an_example(text: str):
    with pytest.raises(ValueError, match="is no partition key") as caught:
        THREE.parse(text)
    assert '["tenantId","userId","of/part"]' in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("paths", "why"),
    [
        (["/id"], "share"),
        (["/tenantId", "/id"], "share"),
        (["/type"], "share"),
        (["/data/tenantId"], "share"),
        (["/_partitionKey"], "share"),
        ([], "1 to 3"),
        (["/a", "/b", "/c", "/d"], "1 to 3"),
        (["a"], "no path"),
        (["/a//b"], "no path"),
    ],
)
def test_key_paths_that_entities_and_events_cannot_share_are_refused(paths: list[str], why: str):
    with pytest.raises(ValueError, match=why):
        key_paths_of(paths)
