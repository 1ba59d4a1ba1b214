"""
Queries: SELECT, FROM, WHERE, ORDER BY, OFFSET LIMIT, and the condition of a patch.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cosmos_outbox_emulators.cosmos.errors import bad_request
from cosmos_outbox_emulators.cosmos.jsontext import JsonObject, decode, encode
from cosmos_outbox_emulators.cosmos.sql.expressions import ExpressionParser
from cosmos_outbox_emulators.cosmos.sql.functions import AGGREGATES
from cosmos_outbox_emulators.cosmos.sql.operators import Expression
from cosmos_outbox_emulators.cosmos.sql.tokens import TokenKind, tokenize

MOST_ROWS = 2_147_483_647
_LONGEST_QUERY = 512 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """
    One selected value; with an aggregate it is computed over all matches instead of for each.
    """

    name: str
    expression: Expression
    aggregate: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """
    A parsed query; `columns` None is `SELECT *`. Defaults to everything in scan order.
    """

    fingerprint: int
    columns: tuple[Column, ...] | None = None
    value: bool = False
    distinct: bool = False
    where: Expression | None = None
    order: tuple[tuple[Expression, bool], ...] = ()
    offset: int = 0
    limit: int | None = None

    @property
    def aggregates(self) -> bool:
        return any(column.aggregate for column in self.columns or ())


def parse_query(text: Any, parameters: Any = None) -> Query:
    """
    Compile query text; `parameters` is the wire form, a list of {"name": "@x", "value": ...}.
    """
    values = _parameter_values(parameters)
    if not isinstance(text, str) or len(text) > _LONGEST_QUERY:
        raise bad_request("The query must be text of at most 512 KB.")
    return _QueryParser(text, values).query(zlib.crc32(encode([text, values])))


def parse_request(body: bytes) -> Query:
    """
    Compile the body of a query request: an object with `query` and `parameters`, or the text alone.
    """
    request = decode(body)
    if isinstance(request, str):
        request = {"query": request}
    if not isinstance(request, dict):
        raise bad_request("The query must be a JSON object with 'query' and 'parameters'.")
    return parse_query(request.get("query"), request.get("parameters"))


def parse_condition(text: Any) -> Callable[[Any], bool]:
    """
    Compile the condition of a patch, `from c where ...`, to a predicate.
    """
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
    def __init__(self, text: str, parameters: Mapping[str, Any]) -> None:
        super().__init__(tokenize(text), parameters)

    def query(self, fingerprint: int) -> Query:
        self.expect("SELECT")
        distinct = self.accept("DISTINCT") is not None
        top = self._count() if self.accept("TOP") else None
        value = self.accept("VALUE") is not None
        columns = None if self.accept("*") else self._columns(single=value)
        alias = self._source()
        where = self.expression() if self.accept("WHERE") else None
        order = self._order() if self.accept("ORDER") else ()
        offset, limit = self._window() if self.accept("OFFSET") else (0, None)
        if not self.at(TokenKind.END):
            raise self.unexpected()
        for root in self.roots - {alias}:
            raise bad_request(f"Identifier '{root[:50]}' could not be resolved.")
        limits = [count for count in (top, limit) if count is not None]
        query = Query(
            fingerprint=fingerprint,
            columns=columns,
            value=value,
            distinct=distinct,
            where=where,
            order=order,
            offset=offset,
            limit=min(limits, default=None),
        )
        if query.aggregates and not all(column.aggregate for column in columns or ()):
            raise bad_request(
                "Aggregates beside plain values need GROUP BY, which this emulator does not have."
            )
        return query

    def _columns(self, *, single: bool) -> tuple[Column, ...]:
        columns = [self._column(1)]
        while self.accept(","):
            columns.append(self._column(len(columns) + 1))
        if single and len(columns) > 1:
            raise bad_request("SELECT VALUE takes one expression.")
        return tuple(columns)

    def _column(self, number: int) -> Column:
        name, aggregate = f"${number}", None
        if self._at_aggregate():
            aggregate = self.take().text.upper()
            self.expect("(")
            expression = self.expression()
            self.expect(")")
        else:
            start = self._next
            expression = self.expression()
            name = self._implied_name(start) or name
        if self.accept("AS"):
            token = self.take()
            if token.kind is not TokenKind.NAME:
                raise bad_request("AS must be followed by a name.")
            name = token.text
        return Column(name=name, expression=expression, aggregate=aggregate)

    def _at_aggregate(self) -> bool:
        return self.peek(*AGGREGATES) and self.peek_second("(")

    def _implied_name(self, start: int) -> str | None:
        """
        Name a column after the last step of its path: c.a.b is b, c["a"] is a, c is c.
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
        self.expect("FROM")
        source = self.take()
        if source.kind is not TokenKind.NAME:
            raise bad_request("FROM must name the container.")
        self.accept("AS")
        reserved = self.peek("WHERE", "ORDER", "OFFSET", "GROUP", "JOIN", "IN")
        if self.peek("GROUP", "JOIN", "IN", ".", "["):
            raise bad_request("This emulator reads whole documents: no JOIN, no IN after FROM, no GROUP BY.")
        return self.take().text if self.at(TokenKind.NAME) and not reserved else source.text

    def _order(self) -> tuple[tuple[Expression, bool], ...]:
        self.expect("BY")
        order: list[tuple[Expression, bool]] = []
        while not order or self.accept(","):
            expression = self.expression()
            order.append((expression, self.accept("ASC", "DESC") == "DESC"))
        return tuple(order)

    def _window(self) -> tuple[int, int]:
        offset = self._count()
        self.expect("LIMIT")
        return offset, self._count()

    def _count(self) -> int:
        token = self.take()
        value = self.parameter(token.text) if token.kind is TokenKind.PARAMETER else token.value
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MOST_ROWS:
            raise bad_request("TOP, OFFSET and LIMIT take a whole number from 0 to 2147483647.")
        return value
