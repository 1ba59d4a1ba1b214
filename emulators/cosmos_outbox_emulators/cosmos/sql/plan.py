"""
Query plans: what a client needs in order to run a query range by range and merge the rows itself.

The gateway serves a query over several partition keys only if it can return the rows as they come. For any other it makes a plan:
the query that each range shall run, and what the client then does with the rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from cosmos_outbox_emulators.cosmos.errors import CosmosError, bad_request
from cosmos_outbox_emulators.cosmos.jsontext import JsonObject, encode
from cosmos_outbox_emulators.cosmos.sql.parser import Query

_NOT_SERVABLE = 1004
_FILTER = "{documentdb-formattableorderbyquery-filter}"  # a client puts in what resumes the query
_AGGREGATES = {"AVG": "Average", "COUNT": "Count", "MAX": "Max", "MIN": "Min", "SUM": "Sum"}


def is_servable(query: Query) -> bool:
    """Say whether rows of several ranges, one after the other, are the answer."""
    return not (query.order or query.aggregates or query.distinct or query.offset or query.most is not None)


def not_servable(query: Query, ranges: Sequence[JsonObject]) -> CosmosError:
    """Return the refusal that makes a client ask for the plan."""
    return CosmosError(
        400,
        "The provided cross partition query can not be directly served by the gateway. This is a first chance (internal) "
        "exception that all newer clients will know how to handle gracefully. This exception is traced, but unless you see "
        "it bubble up as an exception (which only happens on older SDK clients), then you can safely ignore this message.",
        substatus=_NOT_SERVABLE,
        details={"additionalErrorInfo": encode(execution_info(query, ranges)).decode()},
    )


def execution_info(query: Query, ranges: Sequence[JsonObject]) -> JsonObject:
    """Return the plan of a query over ranges of effective partition keys."""
    # One aggregated row has no order
    order = (
        []
        if query.aggregates
        else ["Descending" if descending else "Ascending" for _, descending in query.order]
    )
    return {
        "partitionedQueryExecutionInfoVersion": 2,
        "queryInfo": {
            "distinctType": "None" if not query.distinct else "Ordered" if order else "Unordered",
            "top": query.top,
            "offset": query.offset if query.limit is not None else None,
            "limit": query.limit,
            "orderBy": order,
            "orderByExpressions": list(query.source.order) if order else [],
            "groupByExpressions": [],
            "groupByAliases": [],
            "aggregates": [_AGGREGATES[aggregate.name] for aggregate in query.aggregates],
            "groupByAliasToAggregateType": {},
            "rewrittenQuery": _rewritten(query),
            "hasSelectValue": query.value,
            "hasNonStreamingOrderBy": False,
        },
        "queryRanges": list(ranges),
    }


def check_features(query: Query, supported: str) -> None:
    """Refuse a plan that the client says it cannot carry out."""
    has = {feature.strip() for feature in supported.split(",")}
    needed = {
        "OrderBy": bool(query.order),
        "MultipleOrderBy": len(query.order) > 1,
        "Aggregate": bool(query.aggregates),
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
    """Return the query that each range runs; empty where that is the query itself."""
    source = query.source
    # What is equal in several ranges counts once, so the client alone can count rows that are distinct
    top, limit = (None, None) if query.distinct else (query.top, query.limit)
    head = "SELECT " + ("DISTINCT " if query.distinct else "") + (f"TOP {top} " if top is not None else "")
    tail = "" if limit is None else f" OFFSET 0 LIMIT {query.offset + limit}"
    where = "" if source.where is None else f" WHERE {source.where}"
    if query.aggregates:
        items = ", ".join(f'{{"item": {_partial(a.name, a.text)}}}' for a in query.aggregates)
        return f"{head}VALUE [{items}] {source.origin}{where}{tail}".strip()
    if query.order:
        directions = ("DESC" if descending else "ASC" for _, descending in query.order)
        items = ", ".join(f'{{"item": {text}}}' for text in source.order)
        by = ", ".join(
            f"{text} {direction}" for text, direction in zip(source.order, directions, strict=True)
        )
        rid = "" if query.distinct else f"{source.alias}._rid, "
        where = f" WHERE ({source.where}) AND ({_FILTER})" if source.where else f" WHERE ({_FILTER})"
        return f"{head}{rid}[{items}] AS orderByItems, {_payload(query)} AS payload {source.origin}{where} ORDER BY {by}{tail}"
    return f"{head}{_selection(query)} {source.origin}{where}{tail}"


def _partial(name: str, text: str) -> str:
    return f'{{"sum": SUM({text}), "count": COUNT({text})}}' if name == "AVG" else f"{name}({text})"


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
        return query.columns[0].text
    return "{" + ", ".join(f"{_quoted(column.name)}: {column.text}" for column in query.columns) + "}"


def _quoted(name: str) -> str:
    return encode(name).decode()


def range_of(low: str, high: str, *, point: bool) -> JsonObject:
    return {"min": low, "max": high, "isMinInclusive": True, "isMaxInclusive": point}
