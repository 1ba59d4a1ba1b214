"""Carries out what a fault does to one transfer or settlement of a client. `faults.py` decides which of them a fault strikes."""

from __future__ import annotations

from collections.abc import Callable

from cosmos_outbox_emulators.servicebus.channel import LinkEnd
from cosmos_outbox_emulators.servicebus.conditions import AmqpError, Condition
from cosmos_outbox_emulators.servicebus.faults import Action, Fault, On
from cosmos_outbox_emulators.servicebus.performatives import ACCEPTED, encode_rejected, outcome_frame

_CONDITIONS = {Action.SERVER_BUSY: Condition.SERVER_BUSY, Action.REJECT: Condition.INTERNAL_ERROR}
_BEFORE = {
    Action.DROP_BEFORE_STORE, Action.LOST, Action.DETACH_BEFORE_STORE, Action.REJECT, Action.SERVER_BUSY,
}  # fmt: skip


def suffer(
    end: LinkEnd, on: On, entity: str, delivery_id: int, *, settled: bool, act: Callable[[], bytes]
) -> Fault | None:
    """
    Run `act`, which returns the outcome, and acknowledge the delivery with this outcome. A fault that strikes may prevent or
    change the act or the acknowledgement.

    Return the fault that struck, or None. The caller needs it because the caller has to carry out some faults itself.
    """
    faults = end.channel.wire.broker.faults
    fault = faults.next(on, entity)
    action = fault.action if fault else None
    outcome = ACCEPTED if action in _BEFORE else act()
    delay = faults.latency(on, entity)
    if fault is None:
        if not settled:
            acknowledge(end, delivery_id, outcome, delay, to_sender=on is On.SEND)
        return None
    if action in (Action.DROP_BEFORE_STORE, Action.DROP_AFTER_STORE):
        end.channel.wire.abort()
    elif action in (Action.DETACH_BEFORE_STORE, Action.DETACH_AFTER_STORE):
        end.detach(AmqpError(fault.condition or Condition.LINK_DETACH_FORCED, fault.description))
    elif action in (Action.REJECT, Action.REJECT_AFTER_STORE, Action.SERVER_BUSY):
        condition = fault.condition or _CONDITIONS.get(fault.action, Condition.TIMEOUT)
        outcome = encode_rejected(AmqpError(condition, fault.description))
        acknowledge(end, delivery_id, outcome, delay, to_sender=on is On.SEND)
    elif action in (Action.DELAY_ACK, Action.ZERO_CREDIT) and not settled:
        delay += fault.seconds if action is Action.DELAY_ACK else 0.0
        acknowledge(end, delivery_id, outcome, delay, to_sender=on is On.SEND)
    return fault


def acknowledge(end: LinkEnd, delivery_id: int, outcome: bytes, delay: float, *, to_sender: bool) -> None:
    data = outcome_frame(end.channel.number, delivery_id, outcome, to_sender=to_sender)
    wire = end.channel.wire
    if delay:
        timers = wire.broker.timers
        timers.at(timers.now() + delay, lambda: wire.write(data))
    else:
        wire.write(data)
