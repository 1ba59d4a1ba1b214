"""
Parses the expressions of a query by recursive descent, and compiles them to Python closures. `parser.py` parses the clauses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cosmos_outbox_emulators.cosmos.errors import bad_request
from cosmos_outbox_emulators.cosmos.sql import operators
from cosmos_outbox_emulators.cosmos.sql.functions import AGGREGATES, FUNCTIONS
from cosmos_outbox_emulators.cosmos.sql.operators import Expression
from cosmos_outbox_emulators.cosmos.sql.tokens import Token, TokenKind, syntax_error, tokenize
from cosmos_outbox_emulators.cosmos.sql.values import UNDEFINED, Aggregated

_CONSTANTS: dict[str, Any] = {"TRUE": True, "FALSE": False, "NULL": None, "UNDEFINED": UNDEFINED}
_COMPARISONS = ("=", "!=", "<>", "<", "<=", ">", ">=")


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregate:
    """An aggregate in a query: its name, its argument, the text of the argument, and the number of the token that follows it."""

    name: str
    argument: Expression
    text: str
    end: int


class ExpressionParser:
    """
    A recursive descent parser. It works on a list of tokens, from the operators that bind most loosely (??, ?:) to those that bind
    most tightly (property access).
    """

    def __init__(self, text: str, parameters: Mapping[str, Any]) -> None:
        self._text = text
        self._tokens: Sequence[Token] = tokenize(text)
        self._parameters = parameters
        self._next = 0
        # The names with which paths begin. They are compared with the name in FROM later, because FROM comes after SELECT in the
        # text.
        self.roots: set[str] = set()
        # The aggregates that SELECT contains. It is None while an expression is parsed that must not contain an aggregate.
        self.aggregates: list[Aggregate] | None = None

    # Tokens

    def peek(self, *words: str) -> bool:
        return self._tokens[self._next].word in words

    @property
    def position(self) -> int:
        return self._tokens[self._next].start

    def text_from(self, start: int) -> str:
        return self._text[start : self.position].strip()

    def at(self, kind: TokenKind) -> bool:
        return self._tokens[self._next].kind is kind

    def take(self) -> Token:
        token = self._tokens[self._next]
        if token.kind is not TokenKind.END:
            self._next += 1
        return token

    def accept(self, *words: str) -> str | None:
        return self.take().text.upper() if self.peek(*words) else None

    def expect(self, word: str) -> None:
        if self.accept(word) is None:
            raise self.error_at_token()

    def error_at_token(self) -> Exception:
        return syntax_error(self._tokens[self._next].text)

    def parameter(self, name: str) -> Any:
        if name not in self._parameters:
            raise bad_request(f"The query has no value for parameter {name[:50]}.")
        return self._parameters[name]

    # Operators

    def expression(self) -> Expression:
        condition = self._coalesce()
        if self.accept("?") is None:
            return condition
        positive = self.expression()
        self.expect(":")
        negative = self.expression()
        return lambda document: (positive if condition(document) is True else negative)(document)

    def _coalesce(self) -> Expression:
        left = self._either()
        while self.accept("??"):
            left = operators.coalesce(left, self._either())
        return left

    def _either(self) -> Expression:
        left = self._both()
        while self.accept("OR"):
            left = operators.disjunction(left, self._both())
        return left

    def _both(self) -> Expression:
        left = self._negation()
        while self.accept("AND"):
            left = operators.conjunction(left, self._negation())
        return left

    def _negation(self) -> Expression:
        if self.accept("NOT") is None:
            return self._comparison()
        return operators.negation(self._negation())

    def _comparison(self) -> Expression:
        left = self._sum()
        operator = self.accept(*_COMPARISONS)
        if operator is not None:
            return operators.comparison(operator, left, self._sum())
        negated = self.peek("NOT") and self.accept("NOT") is not None
        if self.accept("IN"):
            test = operators.membership(left, self._list("(", ")"))
        elif self.accept("BETWEEN"):
            low = self._sum()
            self.expect("AND")
            above = operators.comparison(">=", left, low)
            test = operators.conjunction(above, operators.comparison("<=", left, self._sum()))
        elif self.accept("LIKE"):
            pattern = self._sum()
            escape = self._sum() if self.accept("ESCAPE") else operators.constant("")
            test = operators.like(left, pattern, escape)
        elif negated:
            raise self.error_at_token()
        else:
            return left
        return operators.negation(test) if negated else test

    def _sum(self) -> Expression:
        left = self._product()
        while operator := self.accept("+", "-", "||"):
            left = operators.arithmetic(operator, left, self._product())
        return left

    def _product(self) -> Expression:
        left = self._unary()
        while operator := self.accept("*", "/", "%"):
            left = operators.arithmetic(operator, left, self._unary())
        return left

    def _unary(self) -> Expression:
        if self.accept("-"):
            return operators.arithmetic("-", lambda _: 0, self._unary())
        if self.accept("+"):
            return self._unary()
        return self._primary()

    # Operands

    def _primary(self) -> Expression:
        if self.peek("["):
            elements = self._list("[", "]")
            return lambda document: [
                v for v in (element(document) for element in elements) if v is not UNDEFINED
            ]
        if self.peek("{"):
            return self._object()
        if self.accept("("):
            inner = self.expression()
            self.expect(")")
            return inner
        token = self.take()
        match token.kind:
            case TokenKind.NUMBER | TokenKind.STRING:
                return operators.constant(token.value)
            case TokenKind.PARAMETER:
                return operators.constant(self.parameter(token.text))
            case TokenKind.NAME:
                return self._name_or_call(token)
            case _:
                raise syntax_error(token.text)

    def _name_or_call(self, token: Token) -> Expression:
        if token.text.upper() in _CONSTANTS:
            return operators.constant(_CONSTANTS[token.text.upper()])
        if self.peek("("):
            return self._call(token.text)
        if token.word == "UDF" and self.peek("."):
            raise bad_request("This emulator has no user-defined functions, so a query must not use 'udf.'.")
        self.roots.add(token.text)
        return operators.path(self._steps())

    def _aggregate(self, name: str) -> Expression:
        """
        Parse the argument of an aggregate. Return an expression that looks up the aggregate's value among the results of all
        aggregates.
        """
        outer, self.aggregates = self.aggregates or [], None
        self.expect("(")
        start = self.position
        argument = self.expression()
        text = self.text_from(start)
        self.expect(")")
        index = len(outer)
        outer.append(Aggregate(name=name, argument=argument, text=text, end=self._next))
        self.aggregates = outer

        def find(document: Any) -> Any:
            return document.results[index] if isinstance(document, Aggregated) else UNDEFINED

        return find

    def _call(self, name: str) -> Expression:
        if self.aggregates is not None and name.upper() in AGGREGATES:
            return self._aggregate(name.upper())
        function = FUNCTIONS.get(name.upper())
        if function is None:
            known = "an aggregate, which only SELECT may use" if name.upper() in AGGREGATES else "not known"
            raise bad_request(f"Function '{name[:50]}' is {known} in this emulator.")
        return operators.application(name, function, self._list("(", ")"))

    def _list(self, opening: str, closing: str) -> list[Expression]:
        self.expect(opening)
        elements: list[Expression] = []
        while self.accept(closing) is None:
            if elements:
                self.expect(",")
            elements.append(self.expression())
        return elements

    def _object(self) -> Expression:
        self.expect("{")
        fields: dict[str, Expression] = {}
        while self.accept("}") is None:
            if fields:
                self.expect(",")
            token = self.take()
            if token.kind not in (TokenKind.NAME, TokenKind.STRING):
                raise syntax_error(token.text)
            self.expect(":")
            fields[token.text if token.kind is TokenKind.NAME else token.value] = self.expression()
        return lambda document: {
            name: value for name, field in fields.items() if (value := field(document)) is not UNDEFINED
        }

    def _steps(self) -> list[str | int]:
        steps: list[str | int] = []
        while True:
            if self.accept("."):
                token = self.take()
                if token.kind is not TokenKind.NAME:
                    raise syntax_error(token.text)
                steps.append(token.text)
            elif self.accept("["):
                token = self.take()
                value = self.parameter(token.text) if token.kind is TokenKind.PARAMETER else token.value
                if not isinstance(value, str | int):
                    raise syntax_error(token.text)
                steps.append(value)
                self.expect("]")
            else:
                return steps
