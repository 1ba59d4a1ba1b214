"""
The built-in scalar functions and the aggregates of the query language.

A function that gets a value of the wrong type returns undefined, as in Cosmos DB, so that a filter with it does not match.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from cosmos_outbox_emulators.cosmos.errors import bad_request
from cosmos_outbox_emulators.cosmos.sql.values import UNDEFINED, equal, is_number, sort_key, type_rank

Function = Callable[..., Any]

_EARTH_METRES = 6_371_009


def _of_strings(compute: Callable[[str, str], Any]) -> Function:
    def function(left: Any, right: Any, ignore_case: Any = False) -> Any:
        if not (isinstance(left, str) and isinstance(right, str)):
            return UNDEFINED
        if ignore_case is True:
            return compute(left.lower(), right.lower())
        return compute(left, right)

    return function


def _of_string(compute: Callable[[str], Any]) -> Function:
    return lambda value: compute(value) if isinstance(value, str) else UNDEFINED


def _of_number(compute: Callable[[Any], Any]) -> Function:
    return lambda value: compute(value) if is_number(value) else UNDEFINED


def _is(rank: int) -> Function:
    return lambda value: type_rank(value) == rank


def _array_contains(array: Any, wanted: Any, partial: Any = False) -> Any:
    if not isinstance(array, list) or wanted is UNDEFINED:
        return UNDEFINED
    if partial is True and isinstance(wanted, dict):
        return any(_includes(element, wanted) for element in array)
    return any(equal(element, wanted) for element in array)


def _includes(element: Any, wanted: dict[str, Any]) -> bool:
    return isinstance(element, dict) and all(
        name in element and equal(element[name], value) for name, value in wanted.items()
    )


def _index_of(text: Any, part: Any, start: Any = 0) -> Any:
    known = isinstance(text, str) and isinstance(part, str) and is_number(start)
    return text.find(part, max(0, int(start))) if known else UNDEFINED


def _substring(text: Any, start: Any, length: Any) -> Any:
    if not (isinstance(text, str) and is_number(start) and is_number(length)):
        return UNDEFINED
    first = max(0, int(start))
    return text[first : first + max(0, int(length))]


def _right(text: Any, length: Any) -> Any:
    known = isinstance(text, str) and is_number(length)
    return text[max(0, len(text) - max(0, int(length))) :] if known else UNDEFINED


def _concat(*parts: Any) -> Any:
    return "".join(parts) if all(isinstance(part, str) for part in parts) else UNDEFINED


def _round(value: float) -> Any:
    return math.floor(value + 0.5) if value >= 0 else math.ceil(value - 0.5)


def _distance(left: Any, right: Any) -> Any:
    """
    Return the distance in metres between two GeoJSON points on a sphere. The service computes it on an ellipsoid; the results
    differ by at most half a percent.
    """
    places = [_degrees(point) for point in (left, right)]
    if UNDEFINED in places:
        return UNDEFINED
    (east, north), (other_east, other_north) = (map(math.radians, place) for place in places)
    chord = math.sin((other_north - north) / 2) ** 2
    chord += math.cos(north) * math.cos(other_north) * math.sin((other_east - east) / 2) ** 2
    return 2 * _EARTH_METRES * math.asin(math.sqrt(min(1.0, chord)))


def _degrees(point: Any) -> Any:
    if isinstance(point, dict) and point.get("type") in ("Polygon", "LineString", "MultiPolygon"):
        raise bad_request("ST_DISTANCE of this emulator takes points only.")
    match point:
        case {"type": "Point", "coordinates": [east, north, *_]} if is_number(east) and is_number(north):
            return [east, north] if abs(east) <= 180 and abs(north) <= 90 else UNDEFINED
    return UNDEFINED


def _validity(point: Any) -> Any:
    if _degrees(point) is UNDEFINED:
        return {"valid": False, "reason": "Latitude values must be between -90 and 90 degrees."}
    return {"valid": True}


FUNCTIONS: dict[str, Function] = {
    "ABS": _of_number(abs),
    "ARRAY_CONTAINS": _array_contains,
    "ARRAY_LENGTH": lambda value: len(value) if isinstance(value, list) else UNDEFINED,
    "CEILING": _of_number(math.ceil),
    "CONCAT": _concat,
    "CONTAINS": _of_strings(lambda text, part: part in text),
    "ENDSWITH": _of_strings(str.endswith),
    "FLOOR": _of_number(math.floor),
    "INDEX_OF": _index_of,
    "IS_ARRAY": _is(5),
    "IS_BOOL": _is(2),
    "IS_BOOLEAN": _is(2),  # clients use it in the filter with which they resume a query with ORDER BY
    "IS_DEFINED": lambda value: value is not UNDEFINED,
    "IS_NULL": _is(1),
    "IS_NUMBER": _is(3),
    "IS_OBJECT": _is(6),
    "IS_PRIMITIVE": lambda value: 1 <= type_rank(value) <= 4,
    "IS_STRING": _is(4),
    "LEFT": lambda text, length: _substring(text, 0, length),
    "LENGTH": _of_string(len),
    "LOWER": _of_string(str.lower),
    "LTRIM": _of_string(str.lstrip),
    "POWER": lambda base, by: math.pow(base, by) if is_number(base) and is_number(by) else UNDEFINED,
    "RIGHT": _right,
    "ROUND": _of_number(_round),
    "RTRIM": _of_string(str.rstrip),
    "SQRT": _of_number(math.sqrt),
    "ST_DISTANCE": _distance,
    "ST_ISVALID": lambda point: UNDEFINED if point is UNDEFINED else _validity(point)["valid"],
    "ST_ISVALIDDETAILED": lambda point: UNDEFINED if point is UNDEFINED else _validity(point),
    "STARTSWITH": _of_strings(str.startswith),
    "STRINGEQUALS": _of_strings(lambda left, right: left == right),
    "SUBSTRING": _substring,
    "TRIM": _of_string(str.strip),
    "UPPER": _of_string(str.upper),
}


def _total(values: Sequence[Any]) -> Any:
    return sum(values) if all(map(is_number, values)) else UNDEFINED


def _average(values: Sequence[Any]) -> Any:
    return sum(values) / len(values) if values and all(map(is_number, values)) else UNDEFINED


def _extreme(choose: Callable[..., Any], values: Sequence[Any]) -> Any:
    """Return the least or the greatest value. The result is undefined if there is no value, or if one is an array or an object."""
    if any(type_rank(value) > 4 for value in values):
        return UNDEFINED
    return choose(values, key=sort_key, default=UNDEFINED)


AGGREGATES: dict[str, Callable[[Sequence[Any]], Any]] = {
    "AVG": _average,
    "COUNT": len,
    "COUNTIF": lambda values: sum(value is True for value in values),
    "MAKELIST": list,
    "MAKESET": lambda values: [v for n, v in enumerate(values) if not any(equal(v, w) for w in values[:n])],
    "MAX": lambda values: _extreme(max, values),
    "MIN": lambda values: _extreme(min, values),
    "SUM": _total,
}
