"""
Assertions about the events that were recorded or sent. They ignore ids and times. A failure names the event and the field that differs.

    assert_recorded(order, OrderPlaced(total=5), OrderPaid())
    assert_messages(await harness.relay_all(), OrderPlaced(total=5), OrderPaid())
    assert order.events == (like(OrderPaid(order_id="o1")),)

Another assertion checks that the AsyncAPI description of a service is up to date:

    assert_described("asyncapi.json", "shop.orders")
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from cosmos_outbox.domain.entities import Entity
from cosmos_outbox.domain.events import DomainEvent
from cosmos_outbox.message_format import Message, OutboundMessage


@dataclass(frozen=True, slots=True)
class _Event:
    """The parts of an event that an assertion compares, which are its type and its content, but not its id and time."""

    name: str
    fields: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{name}={value!r}' for name, value in self.fields.items())})"


def assert_recorded(entity: Entity, *expected: DomainEvent) -> None:
    """
    Require that the next commit of an entity would write exactly these events, in this order.

    Raises:
        AssertionError: names each event and field that differs.
    """
    __tracebackhide__ = True
    actual, wanted = map(_event_from, entity.events), map(_event_from, expected)
    _require(f"The events of {type(entity).__name__} {entity.id!r}", [*actual], [*wanted])


def assert_messages(
    messages: Iterable[OutboundMessage | Message], *expected: DomainEvent, key: str | None = None
) -> None:
    """
    Require that messages carry exactly these events, in this order.

    Args:
        messages: the messages, as `relay_all` returns them.
        expected: the events that the messages have to carry.
        key: compare only the messages of this partition key. Messages of different keys may arrive in any order. Defaults to all.

    Raises:
        AssertionError: names each event and field that differs.
    """
    __tracebackhide__ = True
    actual = [_event_in(one.subject, one.body) for one in messages if key is None or one.session_id == key]
    wanted = [_event_in(event.action, json.dumps(event.payload()).encode()) for event in expected]
    _require("The messages" if key is None else f"The messages of {key!r}", actual, wanted)


def assert_described(file: str | os.PathLike[str], *modules: str) -> None:
    """
    Require that an AsyncAPI file is what the command `cosmos-outbox events describe` writes for these modules.

    The command has to be installed (`cosmos-outbox-worker`).

    Args:
        file: the AsyncAPI file.
        modules: the modules with the events and consumers, such as `shop.orders`. Options of the command may be among them, such as
            `--topic`, `orders`.

    Raises:
        AssertionError: the file is out of date, or the modules break what it promises. The error says how.
    """
    __tracebackhide__ = True
    command = [sys.executable, "-m", "cosmos_outbox_worker", "events", "describe", *modules, "--exact"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command += ["--check", os.fspath(file)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)  # noqa: S603 - the caller's own modules
    if ended.returncode:
        raise AssertionError(f"{ended.stdout}{ended.stderr}".strip())


def _event_from(event: DomainEvent) -> _Event:
    return _Event(type(event).__name__, event.model_dump(exclude={"id", "created_at"}))


def _event_in(subject: str, body: bytes) -> _Event:
    payload = json.loads(body)
    return _Event(subject, {k: v for k, v in payload.items() if k not in ("id", "action", "createdAt")})


def _require(subject: str, actual: Sequence[_Event], expected: Sequence[_Event]) -> None:
    __tracebackhide__ = True
    if differences := list(_differences(actual, expected)):
        lines = [f"{subject} are not as expected:", *(f"  {line}" for line in differences)]
        lines += ["actual:", *(f"  {number}. {event}" for number, event in enumerate(actual, 1))]
        raise AssertionError("\n".join(lines if actual else [*lines, "  none"]))


def _differences(actual: Sequence[_Event], expected: Sequence[_Event]) -> Iterator[str]:
    names, wanted = [event.name for event in actual], [event.name for event in expected]
    for tag, a, a_end, e, e_end in SequenceMatcher(None, names, wanted, autojunk=False).get_opcodes():
        if tag == "equal":
            for number, (one, other) in enumerate(
                zip(actual[a:a_end], expected[e:e_end], strict=True), a + 1
            ):
                for line in _unlike("", one.fields, other.fields):
                    yield f"{number}. {one.name}: {line}"
            continue
        for number, event in enumerate(actual[a:a_end], a + 1):
            yield f"{number}. {event.name}: not expected"
        for event in expected[e:e_end]:
            yield f"{event}: missing after {a_end}."


def _unlike(path: str, actual: object, expected: object) -> Iterator[str]:
    match actual, expected:
        case Mapping(), Mapping():
            for name in {**expected, **actual}:
                inner = f"{path}.{name}" if path else str(name)
                if name not in actual:
                    yield f"{inner} is missing, expected {expected[name]!r}"
                elif name not in expected:
                    yield f"{inner} is {actual[name]!r}, expected none"
                else:
                    yield from _unlike(inner, actual[name], expected[name])
        case list() | tuple(), list() | tuple() if len(actual) == len(expected):
            for number, (one, other) in enumerate(zip(actual, expected, strict=True)):
                yield from _unlike(f"{path}[{number}]", one, other)
        case _ if actual != expected:
            yield f"{path} is {actual!r}, expected {expected!r}"


def like(event: DomainEvent) -> DomainEvent:
    """Return an object that equals every event of the same type with the same content. Ids and times are not compared."""
    return _Like(event)  # type: ignore[return-value] # stands where an event is expected


class _Like:
    def __init__(self, event: DomainEvent) -> None:
        self._event = event

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self._event) and _event_from(other) == _event_from(self._event)

    def __hash__(self) -> int:
        return hash(self._event.action)

    def __repr__(self) -> str:
        return f"like({_event_from(self._event)})"
