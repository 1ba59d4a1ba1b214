"""
The SQL filters of rules: comparisons of properties, joined by AND, OR and NOT, with the three truth values of SQL.

A property that a message does not have is null, and a comparison with null is unknown (None). Arithmetic and functions are not
supported.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cosmos_outbox_emulators.like import compile_like
from cosmos_outbox_emulators.servicebus.message import Message, read_application_properties, read_properties

_Value = Callable[["Scope"], Any]

_TOKEN = re.compile(
    r"\s*(?:(?P<text>'(?:[^']|'')*')|(?P<number>-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)|(?P<word>[A-Za-z_][\w.]*)"
    r"|(?P<parameter>@\w+)|(?P<name>\[[^\]]+\]|\"[^\"]+\")|(?P<sign><=|>=|<>|!=|[=<>(),.]))"
)
_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq, "<>": operator.ne, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt,
    ">=": operator.ge,
}  # fmt: skip
_SYSTEM = {
    "messageid": 0, "to": 2, "label": 3, "subject": 3, "replyto": 4, "correlationid": 5, "contenttype": 6, "sessionid": 10,
    "replytosessionid": 12,
}  # fmt: skip
_KEYWORDS = frozenset({"and", "or", "not", "like", "in", "is", "null", "exists", "escape", "true", "false"})
_DEEPEST = 50


@dataclass(frozen=True, slots=True)
class Scope:
    """The properties of one message that a filter can read: the system properties and the application properties."""

    system: list[Any]
    user: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlFilter:
    """An SQL filter that was parsed, with its text and its parameters."""

    text: str
    condition: _Value
    parameters: Mapping[str, Any]

    def accepts(self, message: Message) -> bool:
        scope = Scope(read_properties(message), read_application_properties(message))
        return self.condition(scope) is True


def parse_sql(text: str, parameters: Mapping[str, Any]) -> SqlFilter:
    """
    Parse the text of an SQL filter.

    Raises:
        ValueError: the text is not a condition, or the emulator does not evaluate it.
    """
    return SqlFilter(text=text, condition=_Parser(text, parameters).parse(), parameters=parameters)


class _Parser:
    def __init__(self, text: str, parameters: Mapping[str, Any]) -> None:
        self._tokens = [*_tokens(text), ("end", "")]
        self._position = 0
        self._depth = 0
        self._parameters = parameters

    def parse(self) -> _Value:
        condition = self._or()
        if self._kind != "end":
            raise self._syntax_error()
        return condition

    @property
    def _kind(self) -> str:
        return self._tokens[self._position][0]

    def _syntax_error(self) -> ValueError:
        return ValueError(
            f"The emulator does not understand the SQL filter at {self._tokens[self._position][1]!r:.40}."
        )

    def _next(self) -> tuple[str, str]:
        token = self._tokens[self._position]
        self._position += token[0] != "end"
        return token

    def _takes(self, word: str) -> bool:
        kind, text = self._tokens[self._position]
        found = kind in ("keyword", "sign") and text == word
        self._position += found
        return found

    def _expect(self, word: str) -> None:
        if not self._takes(word):
            raise self._syntax_error()

    def _or(self) -> _Value:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise ValueError("The SQL filter is nested too deeply.")
        parts = [self._and()]
        while self._takes("or"):
            parts.append(self._and())
        self._depth -= 1
        return parts[0] if len(parts) == 1 else lambda scope: _any([part(scope) for part in parts])

    def _and(self) -> _Value:
        parts = [self._not()]
        while self._takes("and"):
            parts.append(self._not())
        if len(parts) == 1:
            return parts[0]
        return lambda scope: _not(_any([_not(part(scope)) for part in parts]))

    def _not(self) -> _Value:
        turns = 0
        while self._takes("not"):
            turns += 1
        part = self._predicate()
        return (lambda scope: _not(part(scope))) if turns % 2 else part

    def _predicate(self) -> _Value:
        if self._takes("exists"):
            self._expect("(")
            value = self._property(*self._next())
            self._expect(")")
            return lambda scope: value(scope) is not None
        if self._takes("("):
            condition = self._or()
            self._expect(")")
            return condition
        left = self._operand()
        if self._takes("is"):
            negated = self._takes("not")
            self._expect("null")
            return lambda scope: (left(scope) is None) is not negated
        return self._comparison(left)

    def _comparison(self, left: _Value) -> _Value:
        negated = self._takes("not")
        if self._takes("like"):
            return _negate_if(self._like(left), negated)
        if self._takes("in"):
            return _negate_if(self._in(left), negated)
        if negated:
            raise self._syntax_error()
        compare = _COMPARISONS.get(self._tokens[self._position][1]) if self._kind == "sign" else None
        if compare is None:  # without a comparison, the property itself has to be true or false
            return lambda scope: value if isinstance(value := left(scope), bool) else None
        self._next()
        right = self._operand()
        return lambda scope: _compare(compare, left(scope), right(scope))

    def _like(self, left: _Value) -> _Value:
        pattern = self._operand()
        escape = self._next()[1][1:-1] if self._takes("escape") else ""

        def like(scope: Scope) -> bool | None:
            value, wanted = left(scope), pattern(scope)
            if not isinstance(value, str) or not isinstance(wanted, str):
                return None
            return compile_like(wanted, escape).fullmatch(value) is not None

        return like

    def _in(self, left: _Value) -> _Value:
        self._expect("(")
        choices = [self._operand()]
        while self._takes(","):
            choices.append(self._operand())
        self._expect(")")
        return lambda scope: _any([_compare(operator.eq, left(scope), one(scope)) for one in choices])

    def _operand(self) -> _Value:
        kind, text = self._next()
        if kind == "text":
            return _constant(text[1:-1].replace("''", "'"))
        if kind == "number":
            return _constant(float(text) if re.search(r"[.eE]", text) else int(text))
        if kind == "parameter":
            if text not in self._parameters:
                raise ValueError(f"The parameter {text} has no value.")
            return _constant(self._parameters[text])
        if kind == "keyword" and text in ("true", "false", "null"):
            return _constant({"true": True, "false": False, "null": None}[text])
        return self._property(kind, text)

    def _property(self, kind: str, text: str) -> _Value:
        if kind == "name":
            name = text[1:-1]
            return lambda scope: scope.user.get(name)
        if kind != "word":
            self._position -= 1
            raise self._syntax_error()
        area, _, name = text.rpartition(".")
        if area.lower() == "sys":
            position = _SYSTEM.get(name.lower())
            if position is None:
                raise ValueError(f"The emulator has no system property {text!r:.60}.")
            return lambda scope: scope.system[position]
        if area.lower() in ("", "user"):
            return lambda scope: scope.user.get(name)
        raise ValueError(f"There is no scope {area!r:.60}; the scopes are sys and user.")


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    position, end = 0, len(text.rstrip())
    while position < end:
        found = _TOKEN.match(text, position)
        if found is None:
            raise ValueError(f"The emulator does not understand the SQL filter at {text[position:]!r:.40}.")
        kind, token = found.lastgroup or "", found[found.lastgroup or 0]
        is_keyword = kind == "word" and token.lower() in _KEYWORDS
        yield ("keyword", token.lower()) if is_keyword else (kind, token)
        position = found.end()


def _constant(value: Any) -> _Value:
    return lambda _scope: value


def _negate_if(condition: _Value, negated: bool) -> _Value:
    return (lambda scope: _not(condition(scope))) if negated else condition


def _not(value: bool | None) -> bool | None:
    return None if value is None else not value


def _any(values: list[bool | None]) -> bool | None:
    return True if True in values else None if None in values else False


def _compare(compare: Callable[[Any, Any], bool], left: Any, right: Any) -> bool | None:
    """Compare two values of the same kind. If their kinds differ or one is null, the result is unknown (None)."""
    kinds = {bool: bool, str: str, bytes: bytes}
    of_left, of_right = (
        next((kind for kind in kinds if isinstance(v, kind)), float if isinstance(v, int | float) else None)
        for v in (left, right)
    )
    if of_left is None or of_left is not of_right:
        return None
    return compare(left, right)
