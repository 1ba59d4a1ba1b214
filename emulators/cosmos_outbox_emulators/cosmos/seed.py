"""A seed: a JSON document with the databases, containers and items that an account has from its start."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cosmos_outbox_emulators.cosmos import jsontext
from cosmos_outbox_emulators.cosmos.account import Account
from cosmos_outbox_emulators.cosmos.container import Container
from cosmos_outbox_emulators.cosmos.documents import item_reply
from cosmos_outbox_emulators.cosmos.errors import CosmosError
from cosmos_outbox_emulators.cosmos.protocol import Request, RequestKind

_CONFLICT = 409
_MOST_RANGES = 1000
_OF_CONTAINER = frozenset(
    {"id", "partitionKey", "defaultTtl", "indexingPolicy", "uniqueKeyPolicy", "ranges", "items"}
)


def plant(account: Account, seed: Any) -> None:
    """
    Create the databases, containers and items of a seed that the account does not have yet. What exists already is not changed.

    Raises:
        ValueError: the seed has a mistake. The message names the path of the wrong field.
    """
    for path, database in _objects(_check_object(seed, "seed", {"databases"}), "databases"):
        _check_object(database, path, {"id", "containers"})
        if database.get("id") not in account.databases:
            _at(path, account.create_database, {"id": database.get("id")})
        for container_path, container in _objects(database, "containers", path):
            _plant_container(account, database["id"], container, container_path)


def _plant_container(account: Account, database: str, fields: Mapping[str, Any], path: str) -> None:
    _check_object(fields, path, _OF_CONTAINER)
    containers = account.database(database).containers
    if fields.get("id") not in containers:
        ranges = fields.get("ranges", 1)
        if not isinstance(ranges, int) or isinstance(ranges, bool) or not 1 <= ranges <= _MOST_RANGES:
            raise ValueError(f"{path}.ranges: expected a number from 1 to {_MOST_RANGES}, got {ranges!r:.80}")
        properties = {name: value for name, value in fields.items() if name not in ("ranges", "items")}
        properties["partitionKey"] = _definition(fields.get("partitionKey", "/partitionKey"))
        usual, account.partitions = account.partitions, max(account.partitions, ranges)
        try:
            _at(path, account.create_container, database, properties)
        finally:
            account.partitions = usual
    container = containers[fields["id"]]
    for item_path, item in _objects(fields, "items", path):
        _at(item_path, _plant_item, account, container, item)


def _plant_item(account: Account, container: Container, item: Mapping[str, Any]) -> None:
    key = [_value_at(item, names) for names in container.key_paths]
    headers = {"x-ms-documentdb-partitionkey": jsontext.encode(key).decode()}
    request = Request(method="POST", target=container.path, headers=headers, body=jsontext.encode(item))
    try:
        item_reply(container, request, RequestKind.CREATE, None, account.clock())
    except CosmosError as error:
        if error.status != _CONFLICT:
            raise


def _value_at(value: Any, names: tuple[str, ...]) -> Any:
    for name in names:
        if not isinstance(value, Mapping) or name not in value:
            return {}  # {} in a partition key means that the item has no such property
        value = value[name]
    return value


def _definition(key: Any) -> Any:
    """
    Return the partition key definition for a seed's `partitionKey`, which is a path, a list of the paths of a hierarchical key, or
    a complete definition.
    """
    if isinstance(key, str):
        return {"paths": [key], "kind": "Hash", "version": 2}
    return {"paths": key, "kind": "MultiHash", "version": 2} if isinstance(key, list) else key


def _objects(owner: Mapping[str, Any], name: str, path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    here = f"{path}.{name}" if path else name
    values = owner.get(name, [])
    if not isinstance(values, list):
        raise ValueError(f"{here}: expected a list, got {values!r:.80}")  # noqa: TRY004  # one error type for all bad input
    for index, value in enumerate(values):
        yield f"{here}[{index}]", _check_object(value, f"{here}[{index}]")


def _check_object(value: Any, path: str, known: frozenset[str] | set[str] | None = None) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{path}: expected an object, got {value!r:.80}")  # noqa: TRY004  # as above
    for name in value:
        if known is not None and name not in known:
            raise ValueError(f"{path}.{name}: unknown field, not one of {', '.join(sorted(known))}")
    return value


def _at(path: str, act: Any, *arguments: Any) -> None:
    try:
        act(*arguments)
    except CosmosError as error:
        raise ValueError(f"{path}: {error.message}") from error
