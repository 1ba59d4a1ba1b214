"""
Breaking changes: compare two AsyncAPI descriptions of a service, and find changes that break consumers or stored events.
`asyncapi.py` creates the descriptions.

The schema of a payload is turned into a set of facts, such as "`total` may be null". For each kind of fact, `breaking_changes.toml` says
what breaks if only the new description has the fact, or only the old one, and what to do instead.

An event that the service sends is compared in both directions: the consumers that run now have to accept new events, and the new class
has to accept events that are already stored. A message that the service handles is compared in one direction: the consumer has to accept
all messages that it accepted before.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

Json = Mapping[str, Any]
VERSION, UPCASTS = "x-schema-version", "x-upcasts-from"  # properties of a message in a description
RULES = tomllib.loads(Path(__file__).with_name("breaking_changes.toml").read_text())
_TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
_TYPE_OF = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    """A change of a description that breaks consumers or stored events. `field` is empty if the change concerns the whole event."""

    event: str
    field: str
    problem: str
    remedy: str


class Fact(NamedTuple):
    """
    One statement of a JSON Schema about one field of a payload, such as that it is required.

    field: the path of the field.
    kind: the kind of statement: field, required, type, value, or a keyword that limits values.
    what: the type, the value or the limit.
    """

    field: str
    kind: str
    what: Any = ""


class Promise(NamedTuple):
    """
    What a description says about the messages of one subject that a service sends or handles.

    facts: for each schema version, what its payload has and allows, each as a `Fact`. The version None stands for any version.
    upcasts: the earlier versions that upcasters can convert to a described version.
    topics: the topics, if the description names them.
    """

    facts: dict[int | None, frozenset[Fact]]
    upcasts: set[int]
    topics: set[str]


def breaks(before: Json, after: Json) -> list[Break]:
    """
    Compare two descriptions of a service, and return what the change from `before` to `after` breaks.

    Raises:
        LookupError, TypeError, AttributeError: one of the descriptions was not written by this library.
    """
    found: dict[tuple[str, ...], Break] = {}
    now = _promises(after)
    for key, was in _promises(before).items():
        side, who, event = key
        for rule, fact, may, version in _find_breaks(side, was, now.get(key, Promise({}, set(), set()))):
            said = {"event": event, "who": who, "what": fact.what, "kind": fact.kind, "version": version}
            said |= {"may": may.format(**said), "next": (version or 0) + 1}
            problem, remedy = (text.format(**said) for text in RULES["breaks"][rule])
            one = Break(event=event, field=fact.field, problem=problem, remedy=remedy)
            found.setdefault((*key, fact.field), one)
    return list(found.values())


def _find_breaks(side: str, was: Promise, now: Promise) -> Iterator[tuple[str, Fact, str, int | None]]:
    """
    Compare what the old and the new description say about the same messages. For each change that breaks something, yield the name of
    the rule, the fact that was gained or lost, words for the message (what payloads may do now, such as "lack it"), and the schema version.
    """
    if not now.facts:
        yield f"{side}-gone", Fact("", ""), "", None
        return
    for topic in sorted(was.topics - now.topics if now.topics else ()):
        yield "topic-gone", Fact("", "", topic), "", None
    for version in sorted({*was.facts, *was.upcasts}, key=lambda one: one or 0):
        before, after = was.facts.get(version), now.facts.get(version, now.facts.get(None))
        if after is None and version not in now.upcasts:
            yield "version-gone" if version else "any-gone", Fact("", ""), "", version
        elif before and after:
            found = *_changes(f"{side}-gained", before, after), *_changes(f"{side}-lost", after, before)
            for rule, fact, may in sorted(found, key=lambda one: one[1].field):
                yield rule, fact, may, version


def _changes(change: str, less: frozenset[Fact], more: frozenset[Fact]) -> Iterator[tuple[str, Fact, str]]:
    """
    Find the facts that only the payload `more` has, and yield those that break something, each with its rule and its text.

    Args:
        change: the direction of the comparison, such as "send-gained", as `breaking_changes.toml` names it.
        less: the facts of one payload.
        more: the facts of the other payload. Those that `less` has, too, are not yielded.
    """
    fields = [fact.field for fact in more - less if fact.kind == "field"]
    inside = tuple(f"{field}{end}" for field in fields for end in (".", "["))
    for fact in sorted(more - less, key=repr):
        rule, may, *if_closed = (
            RULES["changes"].get(fact.kind, RULES["changes"]["limit"]).get(change, ("", ""))
        )
        closed = Fact(fact.field.rpartition(".")[0], "closed") in less
        # If only one of the two payloads has a field at all, report the field alone, and not also its type and limits.
        told = fact.field in fields and fact.kind not in ("field", "required")
        implied = told or fact.field.startswith(inside) or any(_covers(other, fact) for other in less)
        if rule and not implied and (closed or not if_closed):
            yield rule, fact, may


def _covers(other: Fact, fact: Fact) -> bool:
    """Return whether the fact `other` allows all values that `fact` allows. If it does, the change from one to the other is harmless."""
    if other.kind == "any":
        return re.match(rf"{re.escape(other.field)}($|[.\[])", fact.field) is not None
    if other.field == fact.field and (other.kind, fact.kind) == ("type", "value"):
        return bool(other.what == _TYPE_OF[type(json.loads(fact.what))])
    if other[:2] != fact[:2]:
        return False
    if fact.kind in RULES["limits"]["least"]:
        return bool(other.what >= fact.what)
    return fact.kind in RULES["limits"]["most"] and bool(other.what <= fact.what)


def _promises(document: Json) -> dict[tuple[str, str, str], Promise]:
    """Return what a description says about its messages, by side ("send" or "receive"), consumer ("" for sent events) and subject."""
    found: dict[tuple[str, str, str], Promise] = {}
    for name, operation in document["operations"].items():
        side, _, who = name.partition(".")
        address = _follow(document, operation["channel"]).get("address")
        for message in (_follow(document, one) for one in operation["messages"]):
            key = side, "" if side == "send" else who, message["name"]
            promise = found.setdefault(key, Promise({}, set(), set()))
            promise.facts[message.get(VERSION)] = frozenset(_facts(document, message["payload"]))
            promise.upcasts.update(message.get(UPCASTS, ()))
            promise.topics.update([address] if address else ())
    return found


def _follow(document: Json, schema: Json) -> Json:
    while "$ref" in schema:
        target = document
        for step in schema["$ref"].removeprefix("#/").split("/"):
            target = target[step]
        schema = {**target, **{key: value for key, value in schema.items() if key != "$ref"}}
    return schema


def _facts(
    document: Json, schema: Json, field: str = "", met: frozenset[str] = frozenset()
) -> Iterator[Fact]:
    if (name := schema.get("$ref", "")) in met:
        return  # the schema contains itself, so its facts are found already
    schema, met, inside = _follow(document, schema), met | {name} - {""}, f"{field}." if field else ""
    if options := schema.get("anyOf") or schema.get("oneOf"):
        models = [one for one in (_follow(document, option) for option in options) if "properties" in one]
        yield from (Fact(field, "model", one.get("title")) for one in models if len(models) > 1)
        for option in options:
            yield from _facts(document, option, field, met)
        return
    said = schema.get("type", _TYPES)
    types = {said} if isinstance(said, str) else {*said}
    values = [schema["const"]] if "const" in schema else schema.get("enum", ())
    yield from (Fact(field, "value", json.dumps(value)) for value in values)
    if not values:
        yield from (Fact(field, "type", one) for one in types | ({"integer"} if "number" in types else set()))
        yield from [Fact(field, "any")] if len(types) == len(_TYPES) else []
    for key in schema.keys() & {one for limits in RULES["limits"].values() for one in limits}:
        limit = schema[key]
        yield Fact(field, key, limit if isinstance(limit, int | float) else json.dumps(limit))
    for name, part in schema.get("properties", {}).items():
        yield Fact(inside + name, "field")
        yield from _facts(document, part, inside + name, met)
    yield from (Fact(inside + name, "required") for name in schema.get("required", ()))
    for part in (*schema.get("prefixItems", ()), *([schema["items"]] if "items" in schema else [])):
        yield from _facts(document, part, f"{field}[]", met)
    if (others := schema.get("additionalProperties")) not in (None, True):
        yield Fact(field, "closed")
    if others not in (None, False):
        yield from _facts(document, {} if others is True else others, f"{inside}*", met)
