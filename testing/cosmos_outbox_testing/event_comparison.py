"""
Event comparison: by what events say.

    order.pay()
    assert order.events == (like(OrderPaid(order_id="o1")),)
"""

from __future__ import annotations

from cosmos_outbox.domain.events import DomainEvent


def like(event: DomainEvent) -> DomainEvent:
    """
    Return what is equal to each event of the same type that says the same, whatever its id and its time.
    """
    return _Like(event)  # type: ignore[return-value] # stands where an event is expected


class _Like:
    def __init__(self, event: DomainEvent) -> None:
        self._event = event

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self._event) and _said(other) == _said(self._event)

    def __hash__(self) -> int:
        return hash(self._event.action)

    def __repr__(self) -> str:
        said = ", ".join(f"{name}={value!r}" for name, value in _said(self._event).items())
        return f"like({type(self._event).__name__}({said}))"


def _said(event: DomainEvent) -> dict[str, object]:
    return {name: value for name, value in event if name not in ("id", "created_at")}
