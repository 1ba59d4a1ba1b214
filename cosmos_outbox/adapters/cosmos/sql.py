"""
The SQL of a query. Names of properties are quoted, and values are parameters, so neither can change what is asked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cosmos_outbox.partition_key import KeyPart
from cosmos_outbox.ports import Query


@dataclass(frozen=True, slots=True)
class Condition:
    """
    A condition on documents, and the values of its parameters by their names.
    """

    text: str
    values: Mapping[str, Any]

    def where(self, path: Sequence[str], value: Any) -> Condition:
        """
        Require that a property has a value.
        """
        return self._and(f"{_property(path)} = ", value, "")

    def after(self, path: Sequence[str], value: KeyPart) -> Condition:
        """
        Require that a property comes behind a value, in the order of all values.
        """
        name = _property(path)
        # A comparison of values of two types is never true, while the order has booleans, numbers and strings.
        later = "" if isinstance(value, str) else f" OR IS_STRING({name})"
        later += f" OR IS_NUMBER({name})" if isinstance(value, bool) else ""
        return self._and(f"({name} > ", value, f"{later})")

    def of_each_type(self, path: Sequence[str]) -> list[Condition]:
        """
        Return a condition for each type that a property may have, in the order of all values.
        """
        tests = ("IS_BOOL", "IS_NUMBER", "IS_STRING")
        return [Condition(f"{self.text} AND {test}({_property(path)})", self.values) for test in tests]

    def selected(
        self, *, order_by: Sequence[str], descending: bool = False
    ) -> tuple[str, list[dict[str, Any]]]:
        """
        Return the query of all documents that meet it, and its parameters, as the SDK takes them.
        """
        order = f"{_property(order_by)} {'DESC' if descending else 'ASC'}"
        text = f"SELECT * FROM c WHERE {self.text} ORDER BY {order}"  # noqa: S608 - see above
        return text, [{"name": name, "value": value} for name, value in self.values.items()]

    def _and(self, begin: str, value: Any, end: str) -> Condition:
        parameter = f"@outbox{len(self.values)}"
        return Condition(f"{self.text} AND {begin}{parameter}{end}", {**self.values, parameter: value})


def of_types(types: Sequence[str], *, include_deleted: bool) -> Condition:
    """
    Return the condition that a document has one of the types.
    """
    values = {f"@outbox{number}": name for number, name in enumerate(types)}
    text = f"c.type IN ({', '.join(values)})" if len(types) > 1 else "c.type = @outbox0"
    if not include_deleted:
        text += " AND (NOT IS_DEFINED(c.data.deleted) OR c.data.deleted = false)"
    return Condition(text, values)


def of_query(query: Query) -> Condition:
    """
    Return what a query requires of a document, beside its partition key.
    """
    condition = of_types(query.types, include_deleted=query.include_deleted)
    for name, value in query.data.items():
        condition = condition.where(("data", name), value)
    if query.condition is None:
        return condition
    values = {f"@{name}": value for name, value in query.parameters.items()}
    return Condition(f"{condition.text} AND ({query.condition})", {**condition.values, **values})


def _property(path: Sequence[str]) -> str:
    return "c" + "".join(f"[{json.dumps(name, ensure_ascii=False)}]" for name in path)
