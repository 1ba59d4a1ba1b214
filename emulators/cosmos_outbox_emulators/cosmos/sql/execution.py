"""
Runs a query page by page, with continuations that stay valid while the data changes. `plan.py` decides which queries a client has to
merge itself.

A continuation says which ranges and items are still to be read after the last returned row and, with ORDER BY, the values of this
row. It has no row number, so items that are written between two pages cannot make a query repeat or skip other items. Without
ORDER BY, a full page has a continuation even if no row is left.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from cosmos_outbox_emulators.cosmos import jsontext
from cosmos_outbox_emulators.cosmos.errors import CosmosError, bad_request
from cosmos_outbox_emulators.cosmos.item import Item
from cosmos_outbox_emulators.cosmos.sql.expressions import Aggregate
from cosmos_outbox_emulators.cosmos.sql.functions import AGGREGATES
from cosmos_outbox_emulators.cosmos.sql.parser import MOST_ROWS, Query, ResumeFilter
from cosmos_outbox_emulators.cosmos.sql.values import UNDEFINED, Aggregated, SortKey, sort_key
from cosmos_outbox_emulators.cosmos.walk import Listed, Segment, Walk

# Python types of the values in a continuation, by their rank in ORDER BY
_CONTENT = (int, int, bool, (int, float), str, str, str)
LARGEST_PAGE_BYTES = 4 * 1024 * 1024
_NO_ITEM = {"_rid": "AQ=="}  # the only item that a query without FROM reads
_LONGEST_CONTINUATION = 6000  # clients refuse header lines over 8 KB


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryPage:
    """One page of a query's result: rows as JSON, and a continuation if there may be more rows."""

    rows: list[bytes]
    continuation: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    item: Item
    keys: tuple[SortKey, ...]
    encoded: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Resume:
    segments: tuple[Segment, ...]
    keys: tuple[SortKey, ...] = ()
    sequence: int | None = None
    skip: int = 0
    left: int | None = None


def run(query: Query, walk: Walk, *, page_size: int, continuation: str | None = None) -> QueryPage:
    """Run a query over the items that a walk visits, and return one page of rows."""
    resume = (
        _decode(continuation, query)
        if continuation
        else _Resume(segments=walk.whole, skip=query.offset, left=query.most)
    )
    if not query.source.origin:
        walk = Listed([_NO_ITEM] if walk.is_first else [])
    if query.aggregates or query.groups:
        return QueryPage(rows=list(islice(_aggregate(query, walk.items()), *_slice(resume))))
    if query.order or query.distinct:
        rows = _behind(_sort(query, _rows(query, walk.items())), query, resume)
        return _page(query, rows, resume, (), page_size, ahead=bool(query.order))
    here, later = walk.head(resume.segments)
    items = iter(()) if here is None else walk.items(here)
    segments = (here, *later) if here else ()
    return _page(query, _rows(query, items), resume, segments, page_size, ahead=walk.looks_ahead)


def _slice(resume: _Resume) -> tuple[int, int | None]:
    return resume.skip, None if resume.left is None else resume.skip + resume.left


def _page(
    query: Query,
    rows: Iterator[_Row],
    resume: _Resume,
    segments: Sequence[Segment],
    page_size: int,
    *,
    ahead: bool,
) -> QueryPage:
    page: list[_Row] = []
    size = 0
    full = False
    rows = islice(rows, *_slice(resume))
    for row in rows:
        if page and size + len(row.encoded) > LARGEST_PAGE_BYTES:
            full = True
            break
        page.append(row)
        size += len(row.encoded)
        if len(page) >= page_size:
            full = not ahead or next(rows, None) is not None
            break
    left = None if resume.left is None else resume.left - len(page)
    more = None
    if full and left != 0:
        last = page[-1]
        here = [(low, high, last.item.sequence) for low, high, _ in segments[:1]]
        rest = _Resume(
            segments=(*here, *segments[1:]), keys=last.keys, sequence=last.item.sequence, left=left
        )
        more = _encode(query, rest)
    elif segments[1:] and left != 0:
        more = _encode(query, _Resume(segments=tuple(segments[1:]), left=left))
    return QueryPage(rows=[row.encoded for row in page], continuation=more)


def _rows(query: Query, items: Iterable[Item]) -> Iterator[_Row]:
    for item in items:
        if query.where is not None and query.where(item.body) is not True:
            continue
        encoded = item.encoded if query.columns is None else _select(query, item.body)
        if encoded is not None:
            keys = tuple(sort_key(expression(item.body)) for expression, _ in query.order)
            yield _Row(item=item, keys=keys, encoded=encoded)


def _select(query: Query, document: dict[str, Any]) -> bytes | None:
    columns = query.columns or ()
    if query.value:
        value = columns[0].expression(document)
        return None if value is UNDEFINED else jsontext.encode(value)
    named = ((column.name, column.expression(document)) for column in columns)
    return jsontext.encode({name: value for name, value in named if value is not UNDEFINED})


def _aggregate(query: Query, items: Iterable[Item]) -> Iterator[bytes]:
    # Without GROUP BY, all items form one group, which exists even if there is no item.
    groups: dict[tuple[SortKey, ...], list[Item]] = {} if query.groups else {(): []}
    for item in items:
        if query.where is None or query.where(item.body) is True:
            key = tuple(sort_key(expression(item.body)) for expression in query.groups)
            groups.setdefault(key, []).append(item)
    for members in groups.values():
        results = [_result(aggregate, members) for aggregate in query.aggregates]
        row = _select(query, Aggregated(results, members[0].body if query.groups else {}))
        if row is not None:
            yield row


def _result(aggregate: Aggregate, items: Iterable[Item]) -> Any:
    values = [value for item in items if (value := aggregate.argument(item.body)) is not UNDEFINED]
    try:
        return AGGREGATES[aggregate.name](values)
    except ArithmeticError:  # the sum is too large for a double
        return UNDEFINED


def _sort(query: Query, rows: Iterable[_Row]) -> Iterator[_Row]:
    ordered = [row for row in rows if query.resume is None or _is_resumed(row, query, query.resume)]
    if _is_reversed(query):
        ordered.reverse()
    for index, (_, descending) in reversed(list(enumerate(query.order))):
        ordered.sort(key=lambda row: row.keys[index], reverse=descending)
    if not query.distinct:
        yield from ordered
        return
    seen: set[SortKey] = set()
    for row in ordered:
        key = sort_key(jsontext.decode(row.encoded))
        if key not in seen:
            seen.add(key)
            yield row


def _is_reversed(query: Query) -> bool:
    """
    Say whether, among rows with equal ORDER BY values, the newest comes first. This is so in descending order, as if an index
    were read from its end.
    """
    return bool(query.order) and query.order[0][1]


def _is_resumed(row: _Row, query: Query, resume: ResumeFilter) -> bool:
    place = _place(row, query, resume)
    return place > 0 or (place == 0 and (resume.sequence is not None or not resume.exclude))


def _behind(rows: Iterable[_Row], query: Query, resume: _Resume) -> Iterator[_Row]:
    return (row for row in rows if resume.sequence is None or _place(row, query, resume) > 0)


def _place(row: _Row, query: Query, resume: ResumeFilter | _Resume) -> int:
    """
    Compare a row with the position from which a query resumes. Return a positive number for a row after this position, a negative
    number for a row before it, and 0 for the row at it. Rows with equal values are in the order in which their items were
    created, or in the reverse order.
    """
    for (_, descending), key, last in zip(query.order, row.keys, resume.keys, strict=True):
        if key != last:
            return 1 if (key < last) is descending else -1
    age = 0 if resume.sequence is None else row.item.sequence - resume.sequence
    return -age if _is_reversed(query) else age


def _encode(query: Query, resume: _Resume) -> str:
    state = [query.fingerprint, resume.segments, resume.keys, resume.sequence, resume.left]
    text = base64.b64encode(jsontext.encode(state)).decode()
    if len(text) > _LONGEST_CONTINUATION:
        raise bad_request("The ORDER BY values are too long for a continuation. Ask for larger pages.")
    return text


def _decode(text: str, query: Query) -> _Resume:
    try:
        fingerprint, segments, keys, sequence, left = jsontext.decode(base64.b64decode(text, validate=True))
        resume = _Resume(
            segments=tuple(map(_segment, segments)),
            keys=tuple(map(_sort_key, keys)),
            sequence=None if sequence is None else _whole(sequence),
            left=_check_rows_left(left),
        )
    except (ValueError, TypeError, IndexError, CosmosError) as error:
        raise bad_request("The continuation token is malformed.") from error
    if fingerprint != query.fingerprint or len(resume.keys) != len(query.order):
        raise bad_request("The continuation token belongs to another query.")
    return resume


def _segment(value: Sequence[Any]) -> Segment:
    low, high, after = value
    if not isinstance(low, str) or not isinstance(high, str):
        raise TypeError(value)
    return low, high, _whole(after)


def _whole(value: Any) -> int:
    if not isinstance(value, int):
        raise TypeError(value)
    return value


def _sort_key(value: Sequence[Any]) -> SortKey:
    rank, content = value
    if not isinstance(content, _CONTENT[_whole(rank)]):
        raise TypeError(value)
    return rank, content


def _check_rows_left(value: Any) -> int | None:
    if value is not None and (not isinstance(value, int) or not 0 <= value <= MOST_ROWS):
        raise TypeError(value)
    return value
