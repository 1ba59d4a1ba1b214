"""
Parses queries (SELECT, FROM, WHERE, GROUP BY, ORDER BY, OFFSET LIMIT) and the condition of a patch. `expressions.py` parses the
expressions in them.
"""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from typing import Any

from cosmos_outbox_emulators.cosmos.errors import bad_request
from cosmos_outbox_emulators.cosmos.jsontext import JsonObject, decode, encode
from cosmos_outbox_emulators.cosmos.sql.expressions import Aggregate, ExpressionParser
from cosmos_outbox_emulators.cosmos.sql.operators import Expression
from cosmos_outbox_emulators.cosmos.sql.tokens import TokenKind
from cosmos_outbox_emulators.cosmos.sql.values import UNDEFINED, SortKey, sort_key, type_rank

MOST_ROWS = 4_294_967_295
_LONGEST_QUERY = 512 * 1024
# These words begin a clause, so they are no aliases.
_CLAUSES = ("WHERE", "GROUP", "ORDER", "OFFSET", "JOIN", "IN")
_NO_SOURCE = "\0"  # stands for a missing FROM, as no name contains this character


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """
    One selected value: its name, expression and text, and whether it contains an aggregate. `aggregate` is set if the value
    consists of one aggregate and nothing else.
    """

    name: str
    expression: Expression
    text: str
    aggregated: bool = False
    aggregate: Aggregate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The texts of a query's clauses. A query plan builds the query for each range from them."""

    alias: str
    origin: str
    where: str | None
    order: tuple[str, ...]
    groups: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeFilter:
    """
    The position from which a client resumes a query with ORDER BY: the values of a row, and the sequence number of its item.
    Without an item, the query resumes before all items with these values, or after them if `exclude` is true.
    """

    keys: tuple[SortKey, ...]
    sequence: int | None
    exclude: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A parsed query. If `columns` is None, it selects `*`. If the other fields have their defaults, it returns all items."""

    fingerprint: int
    columns: tuple[Column, ...] | None = None
    value: bool = False
    distinct: bool = False
    where: Expression | None = None
    order: tuple[tuple[Expression, bool], ...] = ()
    offset: int = 0
    limit: int | None = None
    top: int | None = None
    aggregates: tuple[Aggregate, ...] = ()
    groups: tuple[Expression, ...] = ()
    resume: ResumeFilter | None = None
    source: Source
    equalities: Mapping[tuple[str, ...], Any]

    @property
    def most(self) -> int | None:
        return min((count for count in (self.top, self.limit) if count is not None), default=None)


def parse_query(text: Any, parameters: Any = None) -> Query:
    """Compile the text of a query. `parameters` has the form that clients send: a list of {"name": "@x", "value": ...}."""
    values = _parameter_values(parameters)
    if not isinstance(text, str) or len(text) > _LONGEST_QUERY:
        raise bad_request("The query must be text of at most 512 KB.")
    return _QueryParser(text, values).query(zlib.crc32(encode([text, values])))


@lru_cache(maxsize=64)
def parse_request(body: bytes) -> Query:
    """Compile the body of a query request, which is an object with `query` and `parameters`, or only the text."""
    request = decode(body)
    if isinstance(request, str):
        request = {"query": request}
    if not isinstance(request, dict):
        raise bad_request("The query must be a JSON object with 'query' and 'parameters'.")
    query = parse_query(request.get("query"), request.get("parameters"))
    resume = request.get("resumeFilter")
    return query if resume is None else replace(query, resume=_resume_filter(resume, len(query.order)))


def _resume_filter(given: Any, columns: int) -> ResumeFilter:
    """
    Read the field `resumeFilter` of the SDK for .NET. The field has [] for the value undefined. For an array or object it has a
    hash, which this emulator cannot sort and so refuses.
    """
    try:
        values = [UNDEFINED if value == [] else value for value in given["value"]]
        rid = given.get("rid")
        sequence = None if rid is None else int.from_bytes(base64.b64decode(rid, b"+-")[-8:], "little")
        exclude = bool(given.get("exclude"))
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise bad_request("The resumeFilter must have the fields value, rid and exclude.") from error
    if len(values) != columns or any(type_rank(value) > 4 for value in values):
        raise bad_request(
            "A resumeFilter must have a value for each ORDER BY, and no value may be an array or object."
        )
    return ResumeFilter(keys=tuple(map(sort_key, values)), sequence=sequence, exclude=exclude)


def parse_condition(text: Any) -> Callable[[Any], bool]:
    """Compile the condition of a patch, `from c where ...`, to a function that tests a document."""
    if not isinstance(text, str):
        raise bad_request("The condition of a patch must be text.")
    where = parse_query(f"SELECT * {text}").where
    if where is None:
        raise bad_request("The condition of a patch must have the form 'from c where ...'.")
    return lambda document: where(document) is True


def _parameter_values(parameters: Any) -> JsonObject:
    values: JsonObject = {}
    for parameter in parameters if isinstance(parameters, list) else [] if parameters is None else [None]:
        if not isinstance(parameter, dict) or not isinstance(parameter.get("name"), str):
            raise bad_request("Query parameters must be a list of objects with 'name' and 'value'.")
        values[parameter["name"]] = parameter.get("value")
    return values


class _QueryParser(ExpressionParser):
    def query(self, fingerprint: int) -> Query:
        self.expect("SELECT")
        distinct = self.accept("DISTINCT") is not None
        top = self._count() if self.accept("TOP") else None
        value = self.accept("VALUE") is not None
        self.aggregates = []
        columns = None if self.accept("*") else self._columns(single=value)
        aggregates, self.aggregates = tuple(self.aggregates), None
        start = self.position
        alias = self._source()
        origin = self.text_from(start)
        where = where_text = None
        equalities: dict[tuple[str, ...], Any] = {}
        if self.accept("WHERE"):
            start = self.position
            first = self._next
            where = self.expression()
            equalities = self._equalities(first)
            where_text = self.text_from(start)
        groups = [(one, text) for one, _, text in self._by(paths=False)] if self.accept("GROUP") else []
        order = self._by(paths=True) if self.accept("ORDER") else []
        offset, limit = self._window() if self.accept("OFFSET") else (0, None)
        if not self.at(TokenKind.END):
            raise self.error_at_token()
        for root in self.roots - {alias}:
            raise bad_request(f"Identifier '{root[:50]}' could not be resolved.")
        query = Query(
            fingerprint=fingerprint,
            columns=columns,
            value=value,
            distinct=distinct,
            where=where,
            order=tuple((expression, descending) for expression, descending, _ in order),
            offset=offset,
            limit=limit,
            top=top,
            aggregates=aggregates,
            groups=tuple(expression for expression, _ in groups),
            equalities=equalities,
            source=Source(
                alias=alias,
                origin=origin,
                where=where_text,
                order=tuple(text for *_, text in order),
                groups=tuple(text for _, text in groups),
            ),
        )
        if columns is None and not origin:
            raise bad_request("'SELECT *' is not valid if FROM clause is omitted.")
        if groups and (order or columns is None):
            raise bad_request("'SELECT *' and ORDER BY are not allowed with GROUP BY.")
        if aggregates or groups:
            self._check_groups(query)
        return query

    def _check_groups(self, query: Query) -> None:
        """Refuse a selected value that contains no aggregate and reads anything other than the values of GROUP BY."""
        groups = sorted(query.source.groups, key=len, reverse=True)
        grouped = re.compile("|".join(rf"{re.escape(text)}(?!\w)" for text in groups) or r"(?!)")
        for column in query.columns or ():
            if not column.aggregated and re.search(
                rf"\b{query.source.alias}\b", grouped.sub("", column.text)
            ):
                raise bad_request(
                    f"Property reference '{column.text[:50]}' is invalid in the select list because it is not contained in either "
                    "an aggregate function or the GROUP BY clause."
                )

    def _equalities(self, first: int) -> dict[tuple[str, ...], Any]:
        """
        Return the paths that a filter sets equal to one value, with this value: `c.a.b = 1 AND c.x = @x`. The result is empty if
        the filter has OR, NOT, BETWEEN or parentheses.
        """
        tokens = self._tokens[first : self._next]
        if any(token.word in ("OR", "NOT", "BETWEEN", "?", "??", "(") for token in tokens):
            return {}
        found: dict[tuple[str, ...], Any] = {}
        conjuncts = [
            list(group) for is_and, group in groupby(tokens, lambda token: token.word == "AND") if not is_and
        ]
        for *path, sign, value in (conjunct for conjunct in conjuncts if len(conjunct) > 2):
            names, dots = path[2::2], path[1::2]
            plain = all(name.kind is TokenKind.NAME for name in names) and all(
                dot.word == "." for dot in dots
            )
            known = value.kind in (TokenKind.STRING, TokenKind.NUMBER, TokenKind.PARAMETER)
            if sign.word == "=" and plain and known and len(path) % 2:
                literal = self.parameter(value.text) if value.kind is TokenKind.PARAMETER else value.value
                found[tuple(name.text for name in names)] = literal
        return found

    def _columns(self, *, single: bool) -> tuple[Column, ...]:
        columns: list[Column] = []
        while not columns or self.accept(","):
            unnamed = sum(column.name.startswith("$") for column in columns)
            columns.append(self._column(unnamed + 1))
        if single and len(columns) > 1:
            raise bad_request("SELECT VALUE takes one expression.")
        return tuple(columns)

    def _column(self, number: int) -> Column:
        before, first, start = len(self.aggregates or ()), self._next, self.position
        expression = self.expression()
        text = self.text_from(start)
        name = self._infer_name(first) or f"${number}"
        inside = (self.aggregates or [])[before:]
        alone = inside[0] if self._is_call(first, inside) else None
        if self.accept("AS") or (self.at(TokenKind.NAME) and not self.peek("FROM", *_CLAUSES)):
            token = self.take()
            if token.kind is not TokenKind.NAME:
                raise bad_request("AS must be followed by a name.")
            name = token.text
        return Column(name=name, expression=expression, text=text, aggregated=bool(inside), aggregate=alone)

    def _is_call(self, first: int, inside: Sequence[Aggregate]) -> bool:
        """Say whether the expression from the token `first` to the current token is exactly one aggregate."""
        return len(inside) == 1 and (self._tokens[first].word, self._next) == (inside[0].name, inside[0].end)

    def _infer_name(self, start: int) -> str | None:
        """
        Return the name of a column without AS, which is the last step of its path: b for c.a.b, a for c["a"], c for c. Return
        None if the column is not a path.
        """
        tokens = self._tokens[start : self._next]
        if not all(
            token.kind in (TokenKind.NAME, TokenKind.STRING) or token.text in ".[]" for token in tokens
        ):
            return None
        last = next(token for token in reversed(tokens) if token.kind is not TokenKind.OPERATOR)
        if tokens[0].kind is not TokenKind.NAME:
            return None
        return last.text if last.kind is TokenKind.NAME else str(last.value)

    def _source(self) -> str:
        if self.accept("FROM") is None:
            return _NO_SOURCE
        source = self.take()
        if source.kind is not TokenKind.NAME:
            raise bad_request("FROM must name the container.")
        self.accept("AS")
        alias = self.take().text if self.at(TokenKind.NAME) and not self.peek(*_CLAUSES) else source.text
        if self.peek("JOIN", "IN", ".", "["):
            raise bad_request(
                "This emulator reads whole documents, so a query must not have JOIN, or IN after FROM."
            )
        return alias

    def _by(self, *, paths: bool) -> list[tuple[Expression, bool, str]]:
        self.expect("BY")
        order: list[tuple[Expression, bool, str]] = []
        while not order or self.accept(","):
            start, first = self.position, self._next
            expression = self.expression()
            text = self.text_from(start)
            if paths and self._infer_name(first) is None:
                raise bad_request(
                    "Unsupported ORDER BY clause. ORDER BY item expression could not be mapped to a document path."
                )
            order.append((expression, self.accept("ASC", "DESC") == "DESC", text))
        return order

    def _window(self) -> tuple[int, int]:
        offset = self._count()
        self.expect("LIMIT")
        return offset, self._count()

    def _count(self) -> int:
        token = self.take()
        value = self.parameter(token.text) if token.kind is TokenKind.PARAMETER else token.value
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MOST_ROWS:
            raise bad_request("TOP, OFFSET and LIMIT take a whole number from 0 to 4294967295.")
        return value
