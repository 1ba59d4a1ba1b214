from __future__ import annotations

import pytest

from cosmos_outbox import UsageError
from cosmos_outbox.partition_key import check_id, check_partition_key

ODD = [
    ".",
    "..",
    "a\tb",
    "\ra",
    "a\n",
    "a ",
    "a%20b",
    "%e9",
]  # ids that are changed or refused in a URL, by the gateway or by the SDK


@pytest.mark.parametrize(
    "bad", ["", "a/b", "a\\b", "a?b", "a#b", "\ud800", "x" * 1024, "é" * 512, None, 5, *ODD]
)
def test_check_id_refuses_ids_that_cosmos_db_or_its_sdk_cannot_handle(bad: str):
    with pytest.raises(UsageError, match="cannot be the id"):
        check_id(bad)


@pytest.mark.parametrize("good", ["x", "é" * 511, "a b", "a.b-c_d:e", "✓", "...", " x"])
def test_check_id_accepts_texts_that_cosmos_db_can_handle(good: str):
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
def test_check_partition_key_refuses_values_that_cosmos_db_cannot_handle(bad: str):
    with pytest.raises(UsageError, match="cannot be the partition key"):
        check_partition_key(bad)


@pytest.mark.parametrize("good", ["x", "é" * 1024, "a/b\\c?d#e", "✓"])
def test_check_partition_key_accepts_texts_that_cosmos_db_can_handle(good: str):
    check_partition_key(good)
