"""
Fault rules of the Cosmos DB emulator. A rule selects requests by operation, container and partition, and says how they fail.
`throttling.py` refuses requests that exceed the request units of a container.

A rule counts the requests that it matches, so a test knows exactly which one fails. A rule with a probability draws from a random
generator of its own, which has a seed. If several rules apply to a request, only the oldest rule strikes it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

from cosmos_outbox_emulators.cosmos.protocol import RequestKind


class When(StrEnum):
    """
    When a fault strikes: before the emulator executes the request, or after. After execution, only the answer is lost or replaced.
    """

    BEFORE = "before"
    AFTER = "after"


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRule:
    """
    A fault, and the requests that it strikes.

    Args:
        operation: Kind of the requests that are struck. Defaults to every operation.
        container: Name of the container. Defaults to every container.
        partition: Id of the physical partition (range) that a request names, or that holds its partition key. Defaults to every
            partition, and to requests that name none.
        skip: Number of matching requests that pass first. Defaults to 0.
        count: Number of requests to strike, after which the rule is removed. Defaults to all.
        probability: Chance that a matching request is struck. Defaults to 1.
        seed: Seed of the random generator for `probability`. Defaults to 0.
        delay_s: Seconds to wait before the request goes on. Defaults to 0.
        drop: Cut the TCP connection instead of answering. Defaults to False.
        status: Answer with this HTTP status. Defaults to the true answer.
        substatus: Sub-status that is sent with `status`. Defaults to 0.
        retry_after_ms: Retry delay that is sent with `status`. Defaults to none.
        when: Strike before or after execution. Defaults to before.
        op_index: Number of the only operation of a batch that fails with `status`; nothing of the batch is applied.
    """

    operation: RequestKind | None = None
    container: str | None = None
    partition: str | None = None
    skip: int = 0
    count: int | None = None
    probability: float = 1.0
    seed: int = 0
    delay_s: float = 0.0
    drop: bool = False
    status: int | None = None
    substatus: int = 0
    retry_after_ms: int | None = None
    when: When = When.BEFORE
    op_index: int | None = None

    def __post_init__(self) -> None:
        for name, low, high in _BOUNDS:
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise ValueError(f"{name} must be from {low} to {high}, not {value}")
        if self.op_index is not None and (self.operation is not RequestKind.BATCH or self.status is None):
            raise ValueError("a fault with op_index needs the operation 'batch' and a status")
        if self.op_index is not None and self.when is When.AFTER:
            raise ValueError("a fault with op_index cannot have 'after' as its `when`")
        if self.drop and self.status is not None:
            raise ValueError("a fault has either drop or status, not both")
        if not self.drop and self.status is None and not self.delay_s:
            raise ValueError("a fault needs status, drop or delay_s")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> FaultRule:
        """Return the rule that a JSON object describes. If the object has a mistake, raise a ValueError that names the field."""
        unknown = values.keys() - {field.name for field in fields(cls)}
        if unknown:
            raise ValueError(
                f"unknown field {min(unknown)!r}; the fields are {', '.join(f.name for f in fields(cls))}"
            )
        return cls(**{name: _read(name, value) for name, value in values.items() if value is not None})


_BOUNDS = (
    ("skip", 0, 10**9),
    ("count", 1, 10**9),
    ("probability", 0.0, 1.0),
    ("delay_s", 0.0, 3600.0),
    ("status", 400, 599),
    ("substatus", 0, 100_000),
    ("retry_after_ms", 0, 3_600_000),
    ("op_index", 0, 99),
)
_TYPES: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("operation", "container", "partition", "when"), (str,)),
    "probability": (int, float),
    "delay_s": (int, float),
    "drop": (bool,),
}


def _read(name: str, value: Any) -> Any:
    types = _TYPES.get(name, (int,))
    if type(value) not in types:
        raise ValueError(f"{name} must be of type {' or '.join(kind.__name__ for kind in types)}")
    kinds: dict[str, type[StrEnum]] = {"operation": RequestKind, "when": When}
    if name not in kinds:
        return value
    if value not in list(kinds[name]):
        raise ValueError(f"{name} must be one of {', '.join(kinds[name])}, not {value!r}")
    return kinds[name](value)


class _Armed:
    """A fault rule in force, with the number of requests that it still lets pass and of those that it still strikes."""

    def __init__(self, rule: FaultRule) -> None:
        self.rule = rule
        self.skip = rule.skip
        self.left = rule.count
        self.random = random.Random(rule.seed)
        self.struck = False

    def strikes(self, kind: RequestKind, container: str | None, partition: Callable[[], str | None]) -> bool:
        rule = self.rule
        if rule.operation not in (None, kind) or rule.container not in (None, container) or self.left == 0:
            return False
        if rule.partition is not None and rule.partition != partition():
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        if rule.probability < 1.0 and self.random.random() >= rule.probability:
            return False
        if self.left is not None:
            self.left -= 1
        self.struck = True
        return True


class Faults:
    """The fault rules in force, oldest first."""

    def __init__(self) -> None:
        self._armed: list[_Armed] = []

    def __len__(self) -> int:
        return len(self._armed)

    def add(self, rule: FaultRule | Mapping[str, Any]) -> FaultRule:
        rule = rule if isinstance(rule, FaultRule) else FaultRule.from_dict(rule)
        self._armed.append(_Armed(rule))
        return rule

    def clear(self) -> None:
        self._armed.clear()

    def is_idle(self, rule: FaultRule) -> bool:
        """Say whether this rule is in force and has not struck any request yet."""
        return any(armed.rule is rule and not armed.struck for armed in self._armed)

    def as_list(self) -> list[dict[str, Any]]:
        """Return each rule as a JSON object. Its `left` is the number of requests that the rule still strikes."""
        return [
            {
                **{
                    field.name: value
                    for field in fields(armed.rule)
                    if (value := getattr(armed.rule, field.name)) != field.default
                },
                "left": armed.left,
            }
            for armed in self._armed
        ]

    def strike(
        self, kind: RequestKind, container: str | None, *, partition: Callable[[], str | None] = lambda: None
    ) -> FaultRule | None:
        """
        Return the oldest rule that strikes this request, and count the strike. Return None if no rule applies. `partition` is
        called only if a rule names a partition.
        """
        for armed in self._armed:
            if armed.strikes(kind, container, partition):
                if armed.left == 0:
                    self._armed.remove(armed)
                return armed.rule
        return None
