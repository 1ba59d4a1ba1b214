from __future__ import annotations

import json

import pytest

from cosmos_outbox_emulators.cosmos.errors import CosmosError
from cosmos_outbox_emulators.cosmos.patch import apply_patch

DOCUMENT = {"id": "1", "n": 1, "s": "x", "list": [1, 2, 3], "o": {"a": {"b": 1}}, "a/b": 0, "m~n": 0}


def patched(*operations, document=DOCUMENT):
    return apply_patch(json.dumps(document).encode(), list(operations))


@pytest.mark.parametrize(
    ("operation", "path", "expected"),
    [
        ({"op": "add", "path": "/new", "value": [1]}, "new", [1]),
        ({"op": "add", "path": "/n", "value": 5}, "n", 5),
        ({"op": "add", "path": "/list/0", "value": 9}, "list", [9, 1, 2, 3]),
        ({"op": "add", "path": "/list/3", "value": 9}, "list", [1, 2, 3, 9]),
        ({"op": "add", "path": "/list/-", "value": 9}, "list", [1, 2, 3, 9]),
        ({"op": "set", "path": "/list/1", "value": 9}, "list", [1, 9, 3]),
        ({"op": "set", "path": "/o/a/c", "value": None}, "o", {"a": {"b": 1, "c": None}}),
        ({"op": "replace", "path": "/s", "value": "y"}, "s", "y"),
        ({"op": "remove", "path": "/list/0"}, "list", [2, 3]),
        ({"op": "remove", "path": "/o/a"}, "o", {}),
        ({"op": "incr", "path": "/n", "value": 2}, "n", 3),
        ({"op": "incr", "path": "/missing", "value": -1.5}, "missing", -1.5),
        ({"op": "incr", "path": "/list/2", "value": 1}, "list", [1, 2, 4]),
        ({"op": "move", "from": "/o/a/b", "path": "/moved"}, "moved", 1),
        ({"op": "move", "from": "/list/0", "path": "/list/2"}, "list", [2, 3, 1]),
        ({"op": "set", "path": "/a~1b", "value": 7}, "a/b", 7),
        ({"op": "set", "path": "/m~0n", "value": 7}, "m~n", 7),
    ],
)
def test_each_patch_operation_does_what_cosmos_db_documents(operation, path, expected):
    assert expected == patched(operation)[path]


@pytest.mark.parametrize(
    "operation",
    [
        None,
        "set",
        {},
        {"op": "set"},
        {"op": "set", "path": "n", "value": 1},
        {"op": "set", "path": "/", "value": 1},
        {"op": "set", "path": 5, "value": 1},
        {"op": "set", "path": "/n"},
        {"op": "explode", "path": "/n", "value": 1},
        {"op": ["set"], "path": "/n", "value": 1},
        {"op": "set", "path": "/id", "value": "2"},
        {"op": "remove", "path": "/_etag"},
        {"op": "move", "from": "/id", "path": "/x"},
        {"op": "replace", "path": "/nothing", "value": 1},
        {"op": "remove", "path": "/nothing"},
        {"op": "remove", "path": "/list/9"},
        {"op": "add", "path": "/list/5", "value": 1},
        {"op": "add", "path": "/list/-1", "value": 1},
        {"op": "add", "path": "/list/x", "value": 1},
        {"op": "set", "path": "/s/inside", "value": 1},
        {"op": "set", "path": "/nothing/inside", "value": 1},
        {"op": "incr", "path": "/s", "value": 1},
        {"op": "incr", "path": "/n", "value": "1"},
        {"op": "incr", "path": "/n", "value": True},
        {"op": "incr", "path": "/list/9", "value": 1},
        {"op": "move", "from": "/nothing", "path": "/x"},
        {"op": "move", "from": "/o", "path": "/o/a"},
        {"op": "move", "from": "/o", "path": "/o"},
        {"op": "move", "path": "/o"},
    ],
)
def test_a_wrong_patch_operation_is_refused(operation):
    with pytest.raises(CosmosError) as caught:
        patched(operation)
    assert 400 == caught.value.status


@pytest.mark.parametrize("operations", [None, [], {}, [{"op": "set", "path": "/n", "value": 1}] * 11])
def test_a_patch_has_one_to_ten_operations(operations):
    with pytest.raises(CosmosError) as caught:
        apply_patch(b"{}", operations)
    assert 400 == caught.value.status
