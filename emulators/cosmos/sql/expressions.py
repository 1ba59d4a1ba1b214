"""
Expressions: from tokens to closures that take a document and return a value or undefined.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from emulators.cosmos.errors import bad_request
from emulators.cosmos.sql.functions import AGGREGATES, FUNCTIONS
from emulators.cosmos.sql.tokens import Token, TokenKind, syntax_error
from emulators.cosmos.sql.values import UNDEFINED, compare, equal, is_number

Expression = Callable[[Any], Any]

_CONSTANTS: dict[str, Any] = {"TRUE": True, "FALSE": False, "NULL": None, "UNDEFINED": UNDEFINED}
_MOST_LIKE_STEPS = 5_000_000
_LARGEST_INTEGER = 2**63
_COMPARISONS = ("=", "!=", "<>", "<", "<=", ">", ">=")


class ExpressionParser:
    """
    A recursive descent over a list of tokens, from the loosest operator (??, ?:) to the tightest (property access).
    """

    def __init__(self, tokens: Sequence[Token], parameters: Mapping[str, Any]) -> None:
        self._tokens = tokens
        self._parameters = parameters
        self._next = 0
        self.roots: set[str] = (
            set()
        )  # what paths start with; checked against FROM, which comes later in the text

    # Tokens

    def peek(self, *words: str) -> bool:
        return any(self._tokens[self._next].is_word(word) for word in words)

    def at(self, kind: TokenKind) -> bool:
        return self._tokens[self._next].kind is kind

    def peek_second(self, word: str) -> bool:
        return self._next + 1 < len(self._tokens) and self._tokens[self._next + 1].is_word(word)

    def take(self) -> Token:
        token = self._tokens[self._next]
        if token.kind is not TokenKind.END:
            self._next += 1
        return token

    def accept(self, *words: str) -> str | None:
        return self.take().text.upper() if self.peek(*words) else None

    def expect(self, word: str) -> None:
        if self.accept(word) is None:
            raise self.unexpected()

    def unexpected(self) -> Exception:
        return syntax_error(self._tokens[self._next].text)

    def parameter(self, name: str) -> Any:
        if name not in self._parameters:
            raise bad_request(f"The query has no value for parameter {name[:50]}.")
        return self._parameters[name]

    # Operators

    def expression(self) -> Expression:
        condition = self._coalesced()
        if self.accept("?") is None:
            return condition
        positive = self.expression()
        self.expect(":")
        negative = self.expression()
        return lambda document: (positive if condition(document) is True else negative)(document)

    def _coalesced(self) -> Expression:
        left = self._either()
        while self.accept("??"):
            left = _coalesce(left, self._either())
        return left

    def _either(self) -> Expression:
        left = self._both()
        while self.accept("OR"):
            left = _or(left, self._both())
        return left

    def _both(self) -> Expression:
        left = self._negated()
        while self.accept("AND"):
            left = _and(left, self._negated())
        return left

    def _negated(self) -> Expression:
        if self.accept("NOT") is None:
            return self._comparison()
        return _not(self._negated())

    def _comparison(self) -> Expression:
        left = self._sum()
        operator = self.accept(*_COMPARISONS)
        if operator is not None:
            return _comparison(operator, left, self._sum())
        negated = self.peek("NOT") and self.accept("NOT") is not None
        if self.accept("IN"):
            test = _is_in(left, self._list("(", ")"))
        elif self.accept("BETWEEN"):
            low = self._sum()
            self.expect("AND")
            test = _and(_comparison(">=", left, low), _comparison("<=", left, self._sum()))
        elif self.accept("LIKE"):
            test = _like(left, self._sum())
        elif negated:
            raise self.unexpected()
        else:
            return left
        return _not(test) if negated else test

    def _sum(self) -> Expression:
        left = self._product()
        while operator := self.accept("+", "-", "||"):
            left = _arithmetic(operator, left, self._product())
        return left

    def _product(self) -> Expression:
        left = self._signed()
        while operator := self.accept("*", "/", "%"):
            left = _arithmetic(operator, left, self._signed())
        return left

    def _signed(self) -> Expression:
        if self.accept("-"):
            return _arithmetic("-", lambda _: 0, self._signed())
        if self.accept("+"):
            return self._signed()
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
                return _constant(token.value)
            case TokenKind.PARAMETER:
                return _constant(self.parameter(token.text))
            case TokenKind.NAME:
                return self._named(token)
            case _:
                raise syntax_error(token.text)

    def _named(self, token: Token) -> Expression:
        if token.text.upper() in _CONSTANTS:
            return _constant(_CONSTANTS[token.text.upper()])
        if self.peek("("):
            return self._call(token.text)
        self.roots.add(token.text)
        return _path(self._steps())

    def _call(self, name: str) -> Expression:
        function = FUNCTIONS.get(name.upper())
        if function is None:
            known = "an aggregate, which only SELECT may use" if name.upper() in AGGREGATES else "not known"
            raise bad_request(f"Function '{name[:50]}' is {known} in this emulator.")
        arguments = self._list("(", ")")
        return _application(name, function, arguments)

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


def _constant(value: Any) -> Expression:
    return lambda _: value


def _path(steps: Sequence[str | int]) -> Expression:
    def walk(document: Any) -> Any:
        for step in steps:
            if isinstance(step, str):
                document = document.get(step, UNDEFINED) if isinstance(document, dict) else UNDEFINED
            else:
                inside = isinstance(document, list) and 0 <= step < len(document)
                document = document[step] if inside else UNDEFINED
        return document

    return walk


def _coalesce(left: Expression, right: Expression) -> Expression:
    def coalesce(document: Any) -> Any:
        value = left(document)
        return right(document) if value is UNDEFINED else value

    return coalesce


def _truth(value: Any) -> Any:
    return value if isinstance(value, bool) else UNDEFINED


def _or(left: Expression, right: Expression) -> Expression:
    def either(document: Any) -> Any:
        first = _truth(left(document))
        if first is True:
            return True
        second = _truth(right(document))
        return second if second is True or first is False else UNDEFINED

    return either


def _and(left: Expression, right: Expression) -> Expression:
    def both(document: Any) -> Any:
        first = _truth(left(document))
        if first is False:
            return False
        second = _truth(right(document))
        return second if second is False or first is True else UNDEFINED

    return both


def _not(operand: Expression) -> Expression:
    def negation(document: Any) -> Any:
        value = operand(document)
        return not value if isinstance(value, bool) else UNDEFINED

    return negation


def _comparison(operator: str, left: Expression, right: Expression) -> Expression:
    return lambda document: compare(operator, left(document), right(document))


def _is_in(left: Expression, candidates: Sequence[Expression]) -> Expression:
    def is_in(document: Any) -> Any:
        value = left(document)
        if value is UNDEFINED:
            return UNDEFINED
        return any(equal(value, candidate(document)) for candidate in candidates)

    return is_in


def _like(left: Expression, right: Expression) -> Expression:
    def like(document: Any) -> Any:
        text, pattern = left(document), right(document)
        if not (isinstance(text, str) and isinstance(pattern, str)):
            return UNDEFINED
        if len(text) * len(pattern) > _MOST_LIKE_STEPS:
            raise bad_request("The LIKE pattern is too long for the text; this emulator would take seconds.")
        return _matches(text, pattern)

    return like


def _matches(text: str, pattern: str) -> bool:
    """
    Match % (any text) and _ (any character) by backing up to the last % only: no pattern can take exponential time.
    """
    at = in_pattern = retry_at = 0
    last_percent = -1
    while at < len(text):
        if in_pattern < len(pattern) and pattern[in_pattern] == "%":
            last_percent, retry_at = in_pattern, at
            in_pattern += 1
        elif in_pattern < len(pattern) and pattern[in_pattern] in ("_", text[at]):
            at += 1
            in_pattern += 1
        elif last_percent >= 0:
            retry_at += 1
            at, in_pattern = retry_at, last_percent + 1
        else:
            return False
    return not pattern[in_pattern:].strip("%")


def _arithmetic(operator: str, left: Expression, right: Expression) -> Expression:
    def compute(document: Any) -> Any:
        first, second = left(document), right(document)
        if operator == "||":
            both = isinstance(first, str) and isinstance(second, str)
            return first + second if both else UNDEFINED
        if not (is_number(first) and is_number(second)):
            return UNDEFINED
        try:
            result = _number(operator, first, second)
            # Beyond it Python's integers would grow without bound where Cosmos DB has doubles.
            return float(result) if abs(result) > _LARGEST_INTEGER else result
        except (ArithmeticError, ValueError):
            return UNDEFINED

    return compute


def _number(operator: str, first: float, second: float) -> float:
    match operator:
        case "+":
            return first + second
        case "-":
            return first - second
        case "*":
            return first * second
        case "/":
            return first / second
        case _:
            return abs(first) % abs(second) * (1 if first >= 0 else -1)  # the sign follows the dividend


def _application(name: str, function: Callable[..., Any], arguments: Sequence[Expression]) -> Expression:
    def apply(document: Any) -> Any:
        values = [argument(document) for argument in arguments]
        try:
            return function(*values)
        except TypeError as error:
            raise bad_request(
                f"Function '{name}' does not take {len(values)} arguments of these types."
            ) from error
        except (ArithmeticError, ValueError):  # infinity has no floor
            return UNDEFINED

    return apply
