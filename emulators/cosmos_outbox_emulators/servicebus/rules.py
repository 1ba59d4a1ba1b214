"""
The rules of a subscription, which decide which messages of its topic the subscription gets. `sqlfilter.py` evaluates SQL filters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cosmos_outbox_emulators.servicebus.conditions import AmqpError, Condition
from cosmos_outbox_emulators.servicebus.message import Message, read_application_properties, read_properties
from cosmos_outbox_emulators.servicebus.primitives import Described, Int, Symbol, ULong
from cosmos_outbox_emulators.servicebus.sqlfilter import SqlFilter, parse_sql

DEFAULT_RULE = "$Default"

# The position of each system property in the properties section. The keys are the names in a correlation filter.
_POSITIONS = {
    "correlation-id": 5, "message-id": 0, "to": 2, "reply-to": 4, "label": 3, "session-id": 10, "reply-to-session-id": 12,
    "content-type": 6,
}  # fmt: skip
_CONSTANT_SQL = {"1=1": True, "1=0": False, "1 = 1": True, "1 = 0": False, "true": True, "false": False}

_RULE, _NO_ACTION, _SQL, _TRUE, _FALSE, _CORRELATION = (
    ULong(0x1_3700_0000_00 + n) for n in (4, 5, 6, 7, 8, 9)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """
    A rule with one of three kinds of filter: a constant (an SQL expression such as 1=1), an SQL filter, or a correlation filter. In
    a correlation filter, every property that is set must match.
    """

    name: str
    constant: bool | None = True
    sql: SqlFilter | None = None
    system: Mapping[str, str] = field(default_factory=dict)
    application: Mapping[str, Any] = field(default_factory=dict)
    described: Any = field(default=None, compare=False)

    @property
    def is_correlation(self) -> bool:
        return self.constant is None and self.sql is None

    def accepts(self, message: Message) -> bool:
        if self.constant is not None:
            return self.constant
        if self.sql is not None:
            return self.sql.accepts(message)
        properties = read_properties(message) if self.system else []
        if any(properties[_POSITIONS[key]] != value for key, value in self.system.items()):
            return False
        own = read_application_properties(message) if self.application else {}
        return all(own.get(key) == value for key, value in self.application.items())


def parse_rule(name: Any, description: Any, *, described: Any = None) -> Rule:
    """
    Return the rule that the body of an add-rule request describes.

    Raises:
        AmqpError: the body is malformed, or asks for something that only Azure's SQL engine can do.
    """
    if not isinstance(name, str) or not name or len(name) > 50 or not isinstance(description, dict):
        raise AmqpError(
            Condition.ARGUMENT_ERROR, "A rule must have a name of 1 to 50 characters and a description."
        )
    if description.get("sql-rule-action"):
        raise AmqpError(Condition.NOT_IMPLEMENTED, "The emulator does not support rule actions.")
    if "correlation-filter" in description:
        wanted = description["correlation-filter"]
        if not isinstance(wanted, dict):
            raise AmqpError(Condition.ARGUMENT_ERROR, "A correlation filter must be a map.")
        system = {key: wanted[key] for key in _POSITIONS if wanted.get(key) is not None}
        return Rule(
            name=name,
            constant=None,
            system=system,
            application=wanted.get("properties") or {},
            described=described,
        )
    sql = description.get("sql-filter")
    expression = sql.get("expression") if isinstance(sql, dict) else None
    if not isinstance(sql, dict) or not isinstance(expression, str):
        raise AmqpError(Condition.ARGUMENT_ERROR, "A rule must have an SQL filter or a correlation filter.")
    constant = _CONSTANT_SQL.get(expression.strip().lower())
    if constant is not None:
        return Rule(name=name, constant=constant, described=described)
    try:
        parsed = parse_sql(expression, sql.get("parameters") or {})
    except ValueError as error:
        raise AmqpError(Condition.NOT_IMPLEMENTED, str(error)) from error
    return Rule(name=name, constant=None, sql=parsed, described=described)


def body_of(rule: Rule) -> dict[str, Any]:
    """Return the description from which `parse_rule` makes an equal rule."""
    if rule.is_correlation:
        return {"correlation-filter": {**rule.system, "properties": dict(rule.application)}}
    if rule.sql is not None:
        return {"sql-filter": {"expression": rule.sql.text, "parameters": dict(rule.sql.parameters)}}
    return {"sql-filter": {"expression": "1=1" if rule.constant else "1=0"}}


def describe(rule: Rule) -> dict[Any, Any]:
    """Return the description of one rule for the answer to enumerate-rules."""
    if rule.sql is not None:
        criterion = Described(_SQL, [rule.sql.text, Int(20)])
    elif rule.constant is None:
        system = [rule.system.get(key) for key in _POSITIONS]
        criterion = Described(_CORRELATION, [*system, dict(rule.application)])
    else:
        criterion = Described(_TRUE if rule.constant else _FALSE, [])
    return {Symbol("rule-description"): Described(_RULE, [criterion, Described(_NO_ACTION, []), rule.name])}
