"""Reads and writes the descriptions of subscription rules in HTTP management. `rules.py` decides which messages a rule selects."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree as ET

from cosmos_outbox_emulators.servicebus import atom
from cosmos_outbox_emulators.servicebus.rules import Rule, parse_rule

RULE = "RuleDescription"
_SYSTEM = {
    "CorrelationId": "correlation-id", "MessageId": "message-id", "To": "to", "ReplyTo": "reply-to", "Label": "label",
    "SessionId": "session-id", "ReplyToSessionId": "reply-to-session-id", "ContentType": "content-type",
}  # fmt: skip
_CONSTANTS = {"TrueFilter": "1=1", "FalseFilter": "1=0"}


def read_rule(name: str, description: ET.Element) -> Rule:
    """
    Return the rule that an XML description describes.

    Raises:
        ValueError: the description is malformed.
        AmqpError: the rule asks for something that the emulator does not evaluate.
    """
    wanted = _part(description, "Filter")
    kind = _kind(wanted) if wanted is not None else "TrueFilter"
    body: dict[str, Any] = {}
    if kind in _CONSTANTS or wanted is None:
        body["sql-filter"] = {"expression": _CONSTANTS[kind]}
    elif kind == "SqlFilter":
        expression, parameters = _part(wanted, "SqlExpression"), _part(wanted, "Parameters")
        body["sql-filter"] = {
            "expression": expression.text if expression is not None else None,
            "parameters": _values(parameters),
        }
    elif kind == "CorrelationFilter":
        system = {_SYSTEM[atom.local(e)]: e.text for e in wanted if atom.local(e) in _SYSTEM and e.text}
        body["correlation-filter"] = {**system, "properties": _values(_part(wanted, "Properties"))}
    else:
        raise ValueError(f"There is no filter of the type {kind}.")
    action = _part(description, "Action")
    if action is not None and _kind(action) != "EmptyRuleAction":
        body["sql-rule-action"] = True
    return parse_rule(name, body, described=wanted)


def describe_rule(rule: Rule, created: float) -> ET.Element:
    element = ET.Element(f"{{{atom.CONNECT}}}{RULE}")
    element.append(rule.described if rule.described is not None else _filter(rule))
    ET.SubElement(element, f"{{{atom.CONNECT}}}Action", {atom.TYPE: "EmptyRuleAction"})
    element.append(atom.child("CreatedAt", atom.timestamp(created)))
    element.append(atom.child("Name", rule.name))
    return element


def _filter(rule: Rule) -> ET.Element:
    """Return the XML of the filter of a rule that a client created over AMQP."""
    element = ET.Element(f"{{{atom.CONNECT}}}Filter")
    if rule.constant is not None:
        kind = "TrueFilter" if rule.constant else "FalseFilter"
        element.append(atom.child("SqlExpression", _CONSTANTS[kind]))
        element.append(atom.child("CompatibilityLevel", "20"))
    elif rule.sql is not None:
        kind = "SqlFilter"
        element.append(atom.child("SqlExpression", rule.sql.text))
        element.append(atom.child("CompatibilityLevel", "20"))
    else:
        kind = "CorrelationFilter"
        names = {key: name for name, key in _SYSTEM.items()}
        element.extend(atom.child(names[key], str(value)) for key, value in rule.system.items())
        properties = ET.SubElement(element, f"{{{atom.CONNECT}}}Properties")
        for key, value in rule.application.items():
            pair = ET.SubElement(properties, f"{{{atom.CONNECT}}}KeyValueOfstringanyType")
            pair.append(atom.child("Key", str(key)))
            pair.append(atom.child("Value", str(value).lower() if isinstance(value, bool) else str(value)))
            # This declares the namespace prefix, because ElementTree does not: the prefix only occurs in the value of an
            # attribute.
            pair[1].set("xmlns:d", atom.SCHEMA)
            pair[1].set(atom.TYPE, f"d:{_type_name(value)}")
    element.set(atom.TYPE, kind)
    return element


def _type_name(value: Any) -> str:
    names = {bool: "boolean", float: "double", str: "string"}
    return next((name for kind, name in names.items() if isinstance(value, kind)), "long")


def _part(element: ET.Element, name: str) -> ET.Element | None:
    return next((part for part in element if atom.local(part) == name), None)


def _kind(element: ET.Element) -> str:
    return element.get(atom.TYPE, "").rpartition(":")[2]


def _values(pairs: ET.Element | None) -> dict[str, Any]:
    values = {}
    for pair in () if pairs is None else pairs:
        key, value = _part(pair, "Key"), _part(pair, "Value")
        if key is None or not key.text or value is None:
            raise ValueError("Each property of a filter must have a key and a value.")
        values[key.text] = _value(value.text or "", _kind(value))
    return values


def _value(text: str, kind: str) -> Any:
    if kind in ("int", "long", "short", "byte"):
        return int(text)
    if kind in ("double", "float", "decimal"):
        return float(text)
    return text.lower() == "true" if kind == "boolean" else text
