"""The explorer's pages about Cosmos DB: the databases with their containers, and the items of a container."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

from cosmos_outbox_emulators.cosmos.account import Account
from cosmos_outbox_emulators.cosmos.container import Container
from cosmos_outbox_emulators.cosmos.errors import CosmosError
from cosmos_outbox_emulators.cosmos.item import Item
from cosmos_outbox_emulators.explorer.html import (
    Markup,
    details,
    filter_form,
    json_text,
    link,
    moment,
    page,
    section,
    table,
)

CONTAINER = "/explorer/container"
_PAGE = 50


def databases_section(account: Account) -> Markup:
    """Return the section of the first page that lists all containers of all databases."""
    now = account.clock()
    rows: list[tuple[Any, ...]] = []
    for name, database in account.databases.items():
        for container_name, container in database.containers.items():
            shown = link(container_name, CONTAINER, database=name, container=container_name)
            paths = ", ".join(container.properties["partitionKey"]["paths"])
            count, ranges = container.item_count(now), len(container.partitions)
            rows.append((name, shown, paths, count, ranges, container.default_ttl))
        if not database.containers:
            rows.append((name, None, None, None, None, None))
    heads = ("Database", "Container", "Partition key", "Items", "Ranges", "Default TTL")
    return section("Cosmos DB", table(heads, rows, empty="No databases yet."))


def container_page(account: Account, database: str, name: str, key: str, number: int) -> str:
    """Return a page that shows some of a container's items, either of all partition keys or of one."""
    container = account.container(database, name)
    now = account.clock()
    count = container.item_count(now)
    found = _of_key(container, key) if key else _all(container)
    items = list(islice(found, number * _PAGE, (number + 1) * _PAGE + 1))
    where = {"database": database, "container": name, **({"key": key} if key else {})}
    turns = [link("Previous page", CONTAINER, **where, page=number - 1)] if number else []
    if len(items) > _PAGE:
        turns.append(link("Next page", CONTAINER, **where, page=number + 1))
    ranges = [(part.range_id, part.low, part.high, part.lsn, len(part)) for part in container.partitions]
    return page(
        f"{database} / {name}",
        section("Ranges", table(("Range", "From", "To", "LSN", "Items"), ranges)),
        section(
            f"Items ({count:,})",
            filter_form(
                CONTAINER, "Partition key, as text or JSON", "key", key, database=database, container=name
            ),
            table(
                ("Item", "Partition key", "Range", "LSN", "Changed", "Expires"),
                [_row(container, item) for item in items[:_PAGE]],
                empty="No items.",
            ),
            Markup(" · ".join(turns)),
        ),
        section("Properties", details("of the container", json_text(container.properties))),
    )


def _row(container: Container, item: Item) -> tuple[Any, ...]:
    range_id = container.partition_of(item.epk).range_id
    expires = moment(item.expires_at) if item.expires_at is not None else None
    key = ", ".join(_key_text(_value_at(item.body, names)) for names in container.key_paths)
    changed = moment(item.timestamp)
    return details(item.key[1], json_text(item.body)), key, range_id, item.lsn, changed, expires


def _value_at(value: Any, names: tuple[str, ...]) -> Any:
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _key_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _all(container: Container) -> Iterator[Item]:
    for partition in container.partitions:
        yield from partition.changes_after(0)


def _of_key(container: Container, text: str) -> Iterator[Item]:
    for header in _headers(text):
        try:
            key = container.key_from_header(header)
        except CosmosError:
            continue  # the key has more or fewer parts than keys of this container
        for item in container.partition_of(key.epk).changes_after(0):
            if item.key[0] == key.encoded:
                yield item


def _headers(text: str) -> Iterator[str]:
    """
    Yield each partition key header that a key typed by the user can mean: the text itself, a JSON value, or the array of a
    hierarchical key.
    """
    yield json.dumps([text])
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return
    if isinstance(value, list):
        yield text
    elif not isinstance(value, str | dict):
        yield json.dumps([value])
