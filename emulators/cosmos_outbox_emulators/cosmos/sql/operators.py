"""The operators of query expressions as Python closures. Each closure takes a document, and returns a value or undefined."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from cosmos_outbox_emulators.cosmos.errors import bad_request
from cosmos_outbox_emulators.cosmos.sql.values import UNDEFINED, compare, equal, is_number
from cosmos_outbox_emulators.like import compile_like

Expression = Callable[[Any], Any]

_MOST_LIKE_STEPS = 5_000_000
_READING = 100  # the number of steps that reading one character of a pattern takes
_LARGEST_INTEGER = 2**63


def constant(value: Any) -> Expression:
    return lambda _: value


def path(steps: Sequence[str | int]) -> Expression:
    def walk(document: Any) -> Any:
        for step in steps:
            if isinstance(step, str):
                document = document.get(step, UNDEFINED) if isinstance(document, dict) else UNDEFINED
            else:
                inside = isinstance(document, list) and 0 <= step < len(document)
                document = document[step] if inside else UNDEFINED
        return document

    return walk


def coalesce(left: Expression, right: Expression) -> Expression:
    def first_defined(document: Any) -> Any:
        value = left(document)
        return right(document) if value is UNDEFINED else value

    return first_defined


def _truth(value: Any) -> Any:
    return value if isinstance(value, bool) else UNDEFINED


def _junction(left: Expression, right: Expression, *, decides: bool) -> Expression:
    """
    Join two conditions by OR (`decides` is true) or by AND (`decides` is false). If one condition has the value `decides`, it is
    the result, even if the other condition is undefined.
    """

    def evaluate(document: Any) -> Any:
        first = _truth(left(document))
        if first is decides:
            return decides
        second = _truth(right(document))
        return second if second is decides or first is not UNDEFINED else UNDEFINED

    return evaluate


disjunction, conjunction = partial(_junction, decides=True), partial(_junction, decides=False)


def negation(operand: Expression) -> Expression:
    def negate(document: Any) -> Any:
        value = operand(document)
        return not value if isinstance(value, bool) else UNDEFINED

    return negate


def comparison(sign: str, left: Expression, right: Expression) -> Expression:
    return lambda document: compare(sign, left(document), right(document))


def membership(left: Expression, candidates: Sequence[Expression]) -> Expression:
    def is_in(document: Any) -> Any:
        value = left(document)
        if value is UNDEFINED:
            return UNDEFINED
        return any(equal(value, candidate(document)) for candidate in candidates)

    return is_in


def like(left: Expression, right: Expression, escape: Expression) -> Expression:
    def test(document: Any) -> Any:
        text, pattern, mark = left(document), right(document), escape(document)
        if not (isinstance(text, str) and isinstance(pattern, str) and isinstance(mark, str)):
            return UNDEFINED
        if (len(text) + _READING) * len(pattern) > _MOST_LIKE_STEPS:
            raise bad_request("The LIKE pattern is too long for the text; this emulator would take seconds.")
        try:
            return compile_like(pattern, mark, sets=True).fullmatch(text) is not None
        except re.error as error:
            raise bad_request(f"The LIKE pattern has an invalid set of characters in []: {error}.") from error

    return test


def arithmetic(sign: str, left: Expression, right: Expression) -> Expression:
    def compute(document: Any) -> Any:
        first, second = left(document), right(document)
        if sign == "||":
            both = isinstance(first, str) and isinstance(second, str)
            return first + second if both else UNDEFINED
        if not (is_number(first) and is_number(second)):
            return UNDEFINED
        try:
            result = _ARITHMETIC[sign](first, second)
            # Cosmos DB computes with doubles, but Python's integers grow without bound, so a larger integer becomes a float.
            return float(result) if abs(result) > _LARGEST_INTEGER else result
        except (ArithmeticError, ValueError):
            return UNDEFINED

    return compute


def _remainder(first: float, second: float) -> float:
    return abs(first) % abs(second) * (1 if first >= 0 else -1)  # the result has the sign of the dividend


_ARITHMETIC: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "%": _remainder,
}  # fmt: skip


def application(name: str, function: Callable[..., Any], arguments: Sequence[Expression]) -> Expression:
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
