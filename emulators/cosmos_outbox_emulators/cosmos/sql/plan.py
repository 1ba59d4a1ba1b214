"""
Query plans: what a client needs in order to run a query on each range and merge the rows itself. `execution.py` runs a query.

The gateway answers a query over several partition keys only if the rows need no merging. For any other query it makes a plan, which
consists of the query that each range runs and of what the client does with the rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from cosmos_outbox_emulators.cosmos.errors import CosmosError, bad_request
from cosmos_outbox_emulators.cosmos.jsontext import JsonObject, encode
from cosmos_outbox_emulators.cosmos.sql.expressions import Aggregate
from cosmos_outbox_emulators.cosmos.sql.parser import Column, Query

_NOT_SERVABLE = 1004
# A client that resumes the query replaces this placeholder by a filter.
_FILTER = "{documentdb-formattableorderbyquery-filter}"
_NAMES = {"AVG": "Average", "COUNTIF": "CountIf", "MAKELIST": "MakeList", "MAKESET": "MakeSet"}


def is_servable(query: Query) -> bool:
    """Say whether the rows of several ranges need no merging, so that the gateway can return them one range after the other."""
    merged = query.order or query.aggregates or query.groups or query.distinct or query.offset
    return not merged and query.most is None


def not_servable(query: Query, ranges: Sequence[JsonObject]) -> CosmosError:
    """Return the refusal that makes a client ask for the query plan."""
    return CosmosError(
        400,
        "The provided cross partition query can not be directly served by the gateway. This is a first chance (internal) "
        "exception that all newer clients will know how to handle gracefully. This exception is traced, but unless you see "
        "it bubble up as an exception (which only happens on older SDK clients), then you can safely ignore this message.",
        substatus=_NOT_SERVABLE,
        details={"additionalErrorInfo": encode(execution_info(query, ranges)).decode()},
    )


def execution_info(query: Query, ranges: Sequence[JsonObject]) -> JsonObject:
    """Return the plan of a query over these ranges of effective partition keys."""
    # An aggregate over all rows gives one row, so the plan has no order.
    directions = () if query.aggregates else query.order
    order = ["Descending" if descending else "Ascending" for _, descending in directions]
    if any(column.aggregated and column.aggregate is None for column in query.columns or ()):
        raise bad_request("Compositions of aggregates and other expressions are not allowed.")
    # If a query is ordered by everything that it selects, equal rows follow each other, and the plan calls DISTINCT ordered.
    matching = {column.text for column in query.columns or ()} == set(query.source.order)
    # Without SELECT VALUE, the client needs the names of the columns to merge the rows of several ranges.
    named = {} if query.value or not (query.aggregates or query.groups) else _operators(query)
    return {
        "partitionedQueryExecutionInfoVersion": 2,
        "queryInfo": {
            "distinctType": "None" if not query.distinct else "Ordered" if matching else "Unordered",
            "top": query.top,
            "offset": query.offset if query.limit is not None else None,
            "limit": query.limit,
            "orderBy": order,
            "orderByExpressions": list(query.source.order) if order else [],
            "groupByExpressions": list(query.source.groups),
            "groupByAliases": list(named),
            "aggregates": [_operator(aggregate) for aggregate in query.aggregates if query.value],
            "groupByAliasToAggregateType": named,
            "rewrittenQuery": _rewritten(query),
            "hasSelectValue": query.value,
            "hasNonStreamingOrderBy": False,
        },
        "queryRanges": list(ranges),
    }


def _operator(aggregate: Aggregate) -> str:
    return _NAMES.get(aggregate.name, aggregate.name.capitalize())


def _operators(query: Query) -> dict[str, str | None]:
    return {
        column.name: _operator(column.aggregate) if column.aggregate else None
        for column in query.columns or ()
    }


def check_features(query: Query, supported: str) -> None:
    """Refuse a query whose plan needs features that the client does not support, according to its request."""
    has = {feature.strip() for feature in supported.split(",")}
    needed = {
        "OrderBy": bool(query.order),
        "MultipleOrderBy": len(query.order) > 1,
        "Aggregate": bool(query.aggregates),
        "NonValueAggregate": bool(query.aggregates) and not query.value and not query.groups,
        "CountIf": any(aggregate.name == "COUNTIF" for aggregate in query.aggregates),
        "GroupBy": bool(query.groups),
        "Distinct": query.distinct,
        "Top": query.top is not None,
        "OffsetAndLimit": query.limit is not None,
    }
    missing = [feature for feature, is_needed in needed.items() if is_needed and feature not in has]
    if missing:
        raise bad_request(
            "Query contains 1 or more unsupported features. Upgrade your SDK to a version that does support the requested "
            f"features: Query contained {', '.join(missing)}, which the calling client does not support."
        )


def _rewritten(query: Query) -> str:
    """Return the query that each range runs, in the form that the tests of the SDK for .NET expect (its QueryPlanBaselineTests)."""
    source = query.source
    # Only the client can merge and count the rows of a query with DISTINCT, an aggregate or GROUP BY, because several ranges may
    # return the same row. So the ranges run such a query without TOP and LIMIT.
    counted = not (query.distinct or query.aggregates or query.groups)
    head = f"SELECT TOP {query.top} " if counted and query.top is not None else "SELECT "
    tail = f" OFFSET 0 LIMIT {query.offset + query.limit}" if counted and query.limit is not None else ""
    origin, payload = f"{source.origin}{_where(source.where)}", _payload(query)
    if query.groups:
        items, by = _items(source.groups), ", ".join(source.groups)
        return f"{head}{items} AS groupByItems, {payload} AS payload {origin} GROUP BY {by}"
    if query.aggregates:
        return f"{head}VALUE {payload} {origin}" if query.value else f"{head}{payload} AS payload {origin}"
    if not query.order:
        return f"{head}{'DISTINCT ' if query.distinct else ''}{_selection(query)} {origin}{tail}"
    directions = ("DESC" if descending else "ASC" for _, descending in query.order)
    by = ", ".join(f"{text} {direction}" for text, direction in zip(source.order, directions, strict=True))
    # With SELECT VALUE, a document without the value gives no row. A filter excludes it, so that TOP and LIMIT do not count it.
    where = _where(source.where, _FILTER, f"IS_DEFINED({payload})" if query.value else None)
    items = f"{head}{source.alias}._rid, {_items(source.order)} AS orderByItems, {payload} AS payload"
    return f"{items} {source.origin}{where} ORDER BY {by}{tail}"


def _items(texts: Sequence[str]) -> str:
    return "[" + ", ".join(f'{{"item": {text}}}' for text in texts) + "]"


def _where(*conditions: str | None) -> str:
    given = [f"({condition})" for condition in conditions if condition is not None]
    return f" WHERE {' AND '.join(given)}" if given else ""


def _partial(aggregate: Aggregate) -> str:
    """
    Return the part of an aggregate that each range computes. For AVG, MIN and MAX it includes a count, which shows whether the
    range had any value.
    """
    name, text = aggregate.name, aggregate.text
    if name == "AVG":
        return f'{{"item": {{"sum": SUM({text}), "count": COUNT({text})}}}}'
    also = f', "item2": {{"{name.lower()}": {name}({text}), "count": COUNT({text})}}'
    return f'{{"item": {name}({text}){also if name in ("MIN", "MAX") else ""}}}'


def _selection(query: Query) -> str:
    if query.columns is None:
        return "*"
    if query.value:
        return f"VALUE {query.columns[0].text}"
    return ", ".join(
        column.text if column.name.startswith("$") else f"{column.text} AS {column.name}"
        for column in query.columns
    )


def _payload(query: Query) -> str:
    if query.columns is None:
        return query.source.alias
    if query.value:
        return _value_to_merge(query.columns[0], "[{}]")
    fields = (f"{_quote(column.name)}: {_value_to_merge(column, '{}')}" for column in query.columns)
    return "{" + ", ".join(fields) + "}"


def _value_to_merge(column: Column, around: str) -> str:
    return column.text if column.aggregate is None else around.format(_partial(column.aggregate))


def _quote(name: str) -> str:
    return encode(name).decode()


def range_of(low: str, high: str, *, point: bool) -> JsonObject:
    return {"min": low, "max": high, "isMinInclusive": True, "isMaxInclusive": point}
