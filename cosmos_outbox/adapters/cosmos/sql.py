"""
The SQL of a query. Names of properties are quoted, and values are parameters, so neither can change what is asked.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from cosmos_outbox.ports import Query


def condition_of(types: Sequence[str], *, include_deleted: bool) -> tuple[str, dict[str, Any]]:
    """
    Return the condition that documents have one of the types, and its parameters.
    """
    values: dict[str, Any] = {f"@outboxType{number}": name for number, name in enumerate(types)}
    condition = f"c.type IN ({', '.join(values)})" if len(types) > 1 else "c.type = @outboxType0"
    if not include_deleted:
        condition += " AND (NOT IS_DEFINED(c.data.deleted) OR c.data.deleted = false)"
    return condition, values


def sql_of(query: Query) -> tuple[str, list[dict[str, Any]]]:
    """
    Return the text of a query and its parameters, as the SDK takes them.
    """
    condition, values = condition_of(query.types, include_deleted=query.include_deleted)
    for number, (name, value) in enumerate(query.data.items()):
        values[f"@outboxValue{number}"] = value
        condition += f" AND {_place(('data', name))} = @outboxValue{number}"
    if query.condition is not None:
        condition += f" AND ({query.condition})"
    values |= {f"@{name}": value for name, value in query.parameters.items()}
    order = f"ORDER BY {_place(query.order_by)} {'DESC' if query.descending else 'ASC'}"
    text = f"SELECT * FROM c WHERE {condition} {order}"  # noqa: S608 - see above
    return text, [{"name": name, "value": value} for name, value in values.items()]


def _place(path: Sequence[str]) -> str:
    return "c" + "".join(f"[{json.dumps(name)}]" for name in path)
