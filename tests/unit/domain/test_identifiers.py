from __future__ import annotations

import uuid

import pytest

from cosmos_outbox import UsageError
from cosmos_outbox.domain.events import new_id
from cosmos_outbox.partition_key import check_id, check_partition_key


def test_an_id_is_a_random_uuid_in_its_usual_form():
    for _ in range(300):
        made = new_id()
        parsed = uuid.UUID(made)
        assert (made, 4, uuid.RFC_4122) == (str(parsed), parsed.version, parsed.variant)


ODD = [".", "..", "a\tb", "\ra", "a\n", "a "]  # a URL or the SDK loses or refuses them


@pytest.mark.parametrize(
    "bad", ["", "a/b", "a\\b", "a?b", "a#b", "\ud800", "x" * 1024, "é" * 512, None, 5, *ODD]
)
def test_what_cosmos_db_or_its_sdk_cannot_take_is_refused_as_an_id(bad: str):
    with pytest.raises(UsageError, match="cannot be the id"):
        check_id(bad)


@pytest.mark.parametrize("good", ["x", "é" * 511, "a b", "a.b-c_d:e", "✓", "...", " x"])
def test_any_other_text_is_an_id(good: str):
    check_id(good)


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "\ud800",
        "x" * 2049,
        "é" * 1025,
        None,
        {},
        float("nan"),
        float("inf"),
        2**53 + 1,
        ("a", "b"),
        ["a"],
    ],
)
def test_what_cosmos_db_or_its_sdk_cannot_take_is_refused_as_a_partition_key(bad: str):
    with pytest.raises(UsageError, match="cannot be the partition key"):
        check_partition_key(bad)


@pytest.mark.parametrize("good", ["x", "é" * 1024, "a/b\\c?d#e", "✓"])
def test_any_other_text_is_a_partition_key(good: str):
    check_partition_key(good)


def test_what_is_far_too_long_is_not_shown_whole():
    for check in (check_id, check_partition_key):
        with pytest.raises(UsageError) as caught:
            check("x" * 5000)
        assert len(str(caught.value)) < 300
