"""Partial updates (patches) of a document: add, set, replace, remove, incr and move, with the rules of Cosmos DB for each."""

from __future__ import annotations

from typing import Any

from cosmos_outbox_emulators.cosmos import jsontext
from cosmos_outbox_emulators.cosmos.errors import CosmosError, bad_request
from cosmos_outbox_emulators.cosmos.jsontext import JsonObject

_MOST_OPERATIONS = 10
_SYSTEM = frozenset({"id", "_rid", "_self", "_etag", "_ts", "_attachments", "_lsn"})
_MISSING: Any = object()


def apply_patch(encoded: bytes, operations: Any) -> JsonObject:
    """Apply patch operations to a copy of the document in `encoded`, and return the copy."""
    if not isinstance(operations, list) or not operations:
        raise bad_request("A patch needs at least one operation.")
    if len(operations) > _MOST_OPERATIONS:
        raise bad_request(f"The number of patch operations can't exceed '{_MOST_OPERATIONS}'.")
    document = jsontext.decode_object(encoded)
    for operation in operations:
        _apply(document, operation)
    return document


def _apply(document: JsonObject, operation: Any) -> None:
    if not isinstance(operation, dict):
        raise bad_request("A patch operation must be a JSON object.")
    kind, path = operation.get("op"), _path(operation.get("path"))
    parent, leaf = _locate(document, path)
    match kind:
        case "add":
            _add(parent, leaf, _value(operation), path)
        case "set":
            _set(parent, leaf, _value(operation), path)
        case "replace":
            _existing(parent, leaf, path)
            _set(parent, leaf, _value(operation), path)
        case "remove":
            _remove(parent, leaf, path)
        case "incr" | "increment":
            _increment(parent, leaf, _value(operation), path)
        case "move":
            source = _path(operation.get("from"))
            _refuse_move_into_itself(source, path)
            source_parent, source_leaf = _locate(document, source)
            value = _remove(source_parent, source_leaf, source)
            # The target is located again, because removing an element from an array changes which element the target path means.
            parent, leaf = _locate(document, path)
            _add(parent, leaf, value, path)
        case _:
            raise bad_request(f"Patch operation {str(kind)[:50]!r} is not known.")


def _path(path: Any) -> str:
    if not isinstance(path, str) or not path.startswith("/") or path == "/":
        raise bad_request("A patch path must start with '/' and name a property.")
    return path


def _locate(document: JsonObject, path: str) -> tuple[Any, str]:
    segments = [segment.replace("~1", "/").replace("~0", "~") for segment in path[1:].split("/")]
    if segments[0] in _SYSTEM:
        raise bad_request(f"A patch must not change '{path}'.")
    node: Any = document
    for segment in segments[:-1]:
        node = _child(node, segment)
        if not isinstance(node, dict | list):
            raise _no_such(path)
    return node, segments[-1]


def _child(node: Any, segment: str) -> Any:
    if isinstance(node, list):
        index = _index(segment)
        return node[index] if index is not None and index < len(node) else _MISSING
    return node.get(segment, _MISSING)


def _index(segment: str) -> int | None:
    return int(segment) if segment.isascii() and segment.isdigit() and len(segment) < 10 else None


def _value(operation: JsonObject) -> Any:
    if "value" not in operation:
        raise bad_request("The patch operation has no 'value'.")
    return operation["value"]


def _add(parent: Any, leaf: str, value: Any, path: str) -> None:
    if isinstance(parent, dict):
        parent[leaf] = value
        return
    index = len(parent) if leaf == "-" else _index(leaf)
    if index is None or index > len(parent):
        raise _no_such(path)
    parent.insert(index, value)


def _set(parent: Any, leaf: str, value: Any, path: str) -> None:
    index = _index(leaf)
    if isinstance(parent, list) and index is not None and index < len(parent):
        parent[index] = value
    else:
        _add(parent, leaf, value, path)


def _existing(parent: Any, leaf: str, path: str) -> Any:
    value = _child(parent, leaf)
    if value is _MISSING:
        raise _no_such(path)
    return value


def _remove(parent: Any, leaf: str, path: str) -> Any:
    value = _existing(parent, leaf, path)
    del parent[int(leaf) if isinstance(parent, list) else leaf]
    return value


def _increment(parent: Any, leaf: str, by: Any, path: str) -> None:
    current = _child(parent, leaf)
    if current is _MISSING and isinstance(parent, dict):
        current = 0
    if not (_is_number(current) and _is_number(by)):
        raise bad_request(f"'{path}' cannot be incremented: both values must be numbers.")
    try:
        _set(parent, leaf, current + by, path)
    except OverflowError as error:
        raise bad_request(f"'{path}' cannot be incremented: the result does not fit a double.") from error


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _refuse_move_into_itself(source: str, path: str) -> None:
    if f"{path}/".startswith(f"{source}/"):
        raise bad_request("The 'path' of a move must not be its 'from', or a path below its 'from'.")


def _no_such(path: str) -> CosmosError:
    return bad_request(f"For the patch operation, no such path '{path[:200]}' exists.")
