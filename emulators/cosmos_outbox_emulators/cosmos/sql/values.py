"""
Values as the query language sees them: JSON plus undefined, equality by type, and the order of types for ORDER BY.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Final


class Undefined(Enum):
    """The value of a property that a document does not have."""

    UNDEFINED = 0


class Aggregated(dict[str, Any]):
    """
    Takes the place of a document while a SELECT with aggregates is evaluated, which happens once for all matches or once for each
    group. With groups, it has the properties of the group's first document.
    """

    def __init__(self, results: list[Any], first: Mapping[str, Any]) -> None:
        super().__init__(first)
        self.results = results


UNDEFINED: Final = Undefined.UNDEFINED

SortKey = tuple[int, Any]


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def type_rank(value: Any) -> int:
    """Return the rank of a value's type in ORDER BY: undefined, null, boolean, number, string, array, object."""
    if value is UNDEFINED:
        return 0
    if value is None:
        return 1
    for rank, types in enumerate((bool, (int, float), str, list), start=2):
        if isinstance(value, types):  # type: ignore[arg-type]  # a tuple of types is a class info too
            return rank
    return 6


def sort_key(value: Any) -> SortKey:
    rank = type_rank(value)
    if rank < 2:
        return rank, 0
    if rank < 5:
        return rank, value
    # Equal arrays or objects must give equal texts. So numbers in them become floats (1 is 1.0), and properties are sorted.
    return rank, json.dumps(json.loads(json.dumps(value), parse_int=float), sort_keys=True)


def equal(left: Any, right: Any) -> bool:
    """Compare two values, including all values nested in them. Unlike in Python, true is not equal to 1."""
    if type_rank(left) != type_rank(right):
        return False
    if isinstance(left, list):
        return len(left) == len(right) and all(map(equal, left, right))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(equal(value, right[name]) for name, value in left.items())
    return bool(left == right)


def compare(sign: str, left: Any, right: Any) -> Any:
    """
    Compare two values with an operator such as `<`. The result is undefined for the order of different types, of arrays and of
    objects.
    """
    if left is UNDEFINED or right is UNDEFINED:
        return UNDEFINED
    if sign in ("=", "!=", "<>"):
        return equal(left, right) is (sign == "=")
    rank = type_rank(left)
    if rank != type_rank(right) or rank > 4:
        return UNDEFINED
    return _ORDERINGS[sign](sort_key(left), sort_key(right))


_ORDERINGS: Mapping[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
