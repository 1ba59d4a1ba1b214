"""
A query over documents in memory: which match, in the order that Cosmos DB gives them, and where a page ends.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from cosmos_outbox.errors import InvalidRequest, UsageError
from cosmos_outbox.ports import Document, Page, Query

_LISTED = "listed:"
_KINDS: tuple[type | tuple[type, ...], ...] = (type(None), bool, (int, float), str, object)
_ABSENT = object()


def page_of(documents: Iterable[Document], query: Query, *, page_size: int, continuation: str | None) -> Page:
    """
    Return a page of the documents that match; each is the caller's to copy.
    """
    if query.condition is not None:
        raise UsageError(
            "A MemoryContainer evaluates no SQL. Use `list(where=…)`, or test this query on the Cosmos DB emulator of "
            "cosmos-outbox-emulators."
        )
    last = None if continuation is None else _last_place(continuation)
    places = [(_place(document, query), document) for document in documents if _matches(document, query)]
    found = [(place, document) for place, document in places if last is None or _follows(place, last, query)]
    found.sort(key=lambda pair: pair[0], reverse=query.descending)
    page = found[:page_size]
    more = len(found) > page_size
    return Page(
        documents=tuple(document for _, document in page),
        continuation=_LISTED + json.dumps(page[-1][0]) if more else None,
    )


def is_listed(document: Mapping[str, Any], types: Collection[str], *, include_deleted: bool) -> bool:
    """
    Say whether a document has one of the types and, unless it may, is not marked as deleted.
    """
    data = document.get("data")
    deleted = data.get("deleted", False) if isinstance(data, Mapping) else False
    return document.get("type") in types and (include_deleted or deleted is False)


def _matches(document: Document, query: Query) -> bool:
    data = document.get("data")
    return is_listed(document, query.types, include_deleted=query.include_deleted) and all(
        isinstance(data, Mapping) and name in data and _json(data[name]) == _json(value)
        for name, value in query.data.items()
    )


def _json(value: object) -> str:
    # For Python, True is 1. For Cosmos DB, 1.0 is.
    return json.dumps(float(value) if type(value) is int else value, sort_keys=True)


def _place(document: Document, query: Query) -> list[Any]:
    value: Any = document
    for name in query.order_by:
        value = value.get(name, _ABSENT) if isinstance(value, Mapping) else _ABSENT
    if value is _ABSENT:
        return [-1, 0, document["id"]]
    rank = next(rank for rank, kind in enumerate(_KINDS) if isinstance(value, kind))
    comparable = value if isinstance(value, (bool, int, float, str)) else json.dumps(value)
    return [rank, comparable, document["id"]]


def _last_place(continuation: str) -> Any:
    try:
        return json.loads(continuation.removeprefix(_LISTED)) if continuation.startswith(_LISTED) else 0
    except (ValueError, RecursionError):
        return 0  # 0 is no place: the caller refuses the token


def _follows(place: list[Any], last: Any, query: Query) -> bool:
    try:
        return bool(place < last if query.descending else place > last)
    except TypeError:
        raise InvalidRequest("This container did not issue the continuation token.") from None
