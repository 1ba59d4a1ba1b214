"""
Faults of the Service Bus emulator. A test adds a fault before clients send what the fault strikes. Each fault counts the
messages or settlements that match it, so a test knows exactly which of them fails. `injection.py` carries out what a fault does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import Any


class Action(StrEnum):
    DROP_BEFORE_STORE = "drop-before-store"
    DROP_AFTER_STORE = "drop-after-store"
    LOST = "lost"
    NO_ACK = "no-ack"
    DELAY_ACK = "delay-ack"
    DETACH_BEFORE_STORE = "detach-before-store"
    DETACH_AFTER_STORE = "detach-after-store"
    REJECT = "reject"
    REJECT_AFTER_STORE = "reject-after-store"
    SERVER_BUSY = "server-busy"
    ZERO_CREDIT = "zero-credit"
    LATENCY = "latency"
    DOWN = "down"


class On(StrEnum):
    """The events that a fault can strike: messages that clients send, or settlements."""

    SEND = "send"
    SETTLE = "settle"


@dataclass(slots=True, kw_only=True)
class Fault:
    """
    A fault that strikes events: sent messages, or settlements. It counts the events that it saw and those that it struck.

    Attributes:
        entity: Path of a topic, queue or subscription, in any case. Defaults to every entity.
        skip: Number of matching events that pass first. Defaults to 0.
        count: Number of events to strike; None strikes all. Defaults to 1, but to all for latency.
        probability: Chance that an event after the skipped ones is struck, drawn from a generator with `seed`. Defaults to 1.
        seconds: Length of a delay, a latency or an outage.
        condition: AMQP error condition of a rejection or a detachment. Defaults to one that suits the action.
    """

    action: Action
    on: On = On.SEND
    entity: str | None = None
    skip: int = 0
    count: int | None = 1
    probability: float = 1.0
    seed: int = 0
    seconds: float = 0.0
    condition: str | None = None
    description: str = "A fault was injected."
    seen: int = 0
    struck: int = 0
    _random: Random = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._random = Random(self.seed)

    def strikes(self, on: On, entity: str) -> bool:
        if self.on is not on or (self.entity is not None and self.entity.lower() != entity.lower()):
            return False
        if self.count is not None and self.struck >= self.count:
            return False
        self.seen += 1
        if self.seen <= self.skip or (self.probability < 1 and self._random.random() >= self.probability):
            return False
        self.struck += 1
        return True

    def as_dict(self) -> dict[str, Any]:
        return {
            "action": self.action.value, "on": self.on.value, "entity": self.entity, "seen": self.seen, "struck": self.struck,
        }  # fmt: skip


_FIELDS = {
    "action",
    "on",
    "entity",
    "skip",
    "count",
    "probability",
    "seed",
    "seconds",
    "condition",
    "description",
}
_TIMED = {Action.DELAY_ACK, Action.LATENCY, Action.DOWN}


def parse_fault(value: dict[str, Any]) -> Fault:
    """
    Return the fault that a JSON object describes.

    Raises:
        ValueError: a field is unknown or wrong; the message names it.
    """
    unknown = set(value) - _FIELDS
    if unknown:
        raise ValueError(f"faults: unknown field {min(unknown)!r}, not one of {', '.join(sorted(_FIELDS))}")
    fields = dict(value)
    try:
        fields["action"] = Action(fields.get("action", ""))
        fields["on"] = On(fields.get("on", On.SEND))
    except ValueError as error:
        raise ValueError(
            f"faults: {error}; the actions are {', '.join(Action)}; 'on' must be {' or '.join(On)}"
        ) from error
    for name in ("skip", "count", "probability", "seed", "seconds"):
        number = fields.get(name)
        if number is not None and (
            isinstance(number, bool) or not isinstance(number, (int, float)) or number < 0
        ):
            raise ValueError(f"faults.{name}: expected a number of at least 0, got {number!r}")
    if fields["action"] in _TIMED and not fields.get("seconds"):
        raise ValueError(f"faults.seconds: {fields['action']} needs a positive number of seconds")
    if fields["action"] is Action.LATENCY:
        fields.setdefault("count", None)
    return Fault(**fields)


class Faults:
    """The faults of one broker. For each sent message and each settlement, the broker asks whether a fault strikes it."""

    def __init__(self, go_down: Callable[[float], None]) -> None:
        self._go_down = go_down
        self._faults: list[Fault] = []
        self._latencies: list[Fault] = []

    def add(self, value: dict[str, Any]) -> Fault:
        """
        Add a fault. `value` has the fields of `Fault`. The action "down" takes effect at once: all connections are cut, and new
        ones are refused.
        """
        fault = parse_fault(value)
        if fault.action is Action.DOWN:
            fault.struck = 1
            self._go_down(fault.seconds)
        (self._latencies if fault.action is Action.LATENCY else self._faults).append(fault)
        return fault

    def clear(self) -> None:
        """Remove all faults. This also ends an outage that has begun."""
        self._faults.clear()
        self._latencies.clear()
        self._go_down(0.0)

    def next(self, on: On, entity: str) -> Fault | None:
        """Return the first fault that strikes this event, or None. At most one fault strikes an event."""
        for fault in self._faults:
            if fault.action is not Action.DOWN and fault.strikes(on, entity):
                return fault
        return None

    def latency(self, on: On, entity: str) -> float:
        return (
            sum(fault.seconds for fault in self._latencies if fault.strikes(on, entity))
            if self._latencies
            else 0.0
        )

    def as_list(self) -> list[dict[str, Any]]:
        return [fault.as_dict() for fault in (*self._faults, *self._latencies)]
