"""An AMQP session of a connection (its channel), and the broker's ends of the links in it."""

from __future__ import annotations

from typing import Any, Protocol

from cosmos_outbox_emulators.servicebus.broker import Broker
from cosmos_outbox_emulators.servicebus.conditions import AmqpError
from cosmos_outbox_emulators.servicebus.performatives import TRUE, Code, Raw, error, performative
from cosmos_outbox_emulators.servicebus.primitives import Symbol, UInt, ULong

WINDOW = 0x7FFFFFFF
SERIAL = 0xFFFFFFFF


class Wire(Protocol):
    """The part of a connection that its links use."""

    broker: Broker
    peer_frame_size: int

    @property
    def congested(self) -> bool:
        """Whether the peer reads more slowly than the broker writes."""

    def send(self, channel: int, body: bytes) -> None: ...

    def write(self, data: bytes) -> None: ...

    def abort(self) -> None:
        """Cut the connection without closing it in AMQP, as a lost network does."""

    def authorise(self, path: str, expires: float, rights: frozenset[str]) -> None: ...

    def check_authorised(self, path: str, *claims: str) -> None:
        """Raise AmqpError unless the peer has sent a valid token for this path that grants one of these rights."""


class Link(Protocol):
    end: LinkEnd

    def on_transfer(self, fields: list[Any], payload: bytes) -> None: ...

    def on_flow(self, fields: list[Any]) -> None: ...

    def close(self) -> None:
        """Release everything that the link holds. A second call has no effect."""


class Settleable(Protocol):
    end: LinkEnd

    def settle(self, delivery_id: int, token: bytes, state: Any, *, settled: bool) -> None: ...


class Channel:
    """
    One AMQP session. It numbers the transfers in both directions, and remembers the deliveries that the peer has not settled yet.
    """

    def __init__(self, wire: Wire, number: int, next_incoming_id: int) -> None:
        self.wire = wire
        self.number = number
        self.next_incoming_id = next_incoming_id
        self.links: dict[int, Link] = {}
        self.unsettled: dict[int, tuple[Settleable, bytes]] = {}
        self._next_delivery_id = 0

    def send(self, body: bytes) -> None:
        self.wire.send(self.number, body)

    def next_delivery_id(self) -> int:
        number = self._next_delivery_id
        self._next_delivery_id = (number + 1) & SERIAL
        return number

    def send_flow(self, *link_fields: Any) -> None:
        self.send(
            performative(
                Code.FLOW,
                UInt(self.next_incoming_id & SERIAL),
                UInt(WINDOW),
                UInt(self._next_delivery_id),
                UInt(WINDOW),
                *link_fields,
            )
        )

    def on_disposition(self, fields: list[Any]) -> None:
        peer_receives, first, last, settled, state = fields[:5]
        if not peer_receives:
            return
        last = first if last is None else last
        if last - first < len(self.unsettled):
            numbers = [number for number in range(first, last + 1) if number in self.unsettled]
        else:  # the range may have billions of numbers, so search the unsettled deliveries
            numbers = [number for number in self.unsettled if first <= number <= last]
        for number in numbers:
            link, token = self.unsettled[number]
            link.settle(number, token, state, settled=bool(settled))

    def forget_deliveries(self, end: LinkEnd) -> None:
        self.unsettled = {number: held for number, held in self.unsettled.items() if held[0].end is not end}

    def close(self) -> None:
        for link in list(self.links.values()):
            link.close()
        self.links.clear()
        self.unsettled.clear()


class LinkEnd:
    """The broker's end of one link. It answers the attach, grants credit and detaches the link."""

    def __init__(self, channel: Channel, attach: list[Any]) -> None:
        self.channel = channel
        self.name: str = attach[0]
        self.handle: int = attach[1]
        self.peer_receives: bool = attach[2]
        self.settle_modes = attach[3:5]
        self.source = _terminus(attach[5], Code.SOURCE)
        self.target = _terminus(attach[6], Code.TARGET)
        self.properties: dict[Any, Any] = attach[13] or {}
        # The peer needs a token for this entity, with one of the rights in `claims`.
        self.entity: str | None = None
        self.claims: tuple[str, ...] = ()
        self.detached = False

    def accept(
        self, *, source: list[Any] | None = None, max_message_size: int | None = None, properties: Any = None
    ) -> None:
        self._attach(
            Raw(performative(Code.SOURCE, *(source or self.source))),
            Raw(performative(Code.TARGET, *self.target)),
            None if max_message_size is None else ULong(max_message_size),
            properties,
        )

    def refuse(self, failure: AmqpError) -> None:
        """Refuse an attach in the way that AMQP prescribes: answer without a source and a target, then detach with the reason."""
        self._attach(None, None, None, None)
        self.detach(failure)

    def _attach(
        self, source: Raw | None, target: Raw | None, max_size: ULong | None, properties: Any
    ) -> None:
        self.channel.send(
            performative(
                Code.ATTACH,
                self.name,
                UInt(self.handle),
                not self.peer_receives,
                *self.settle_modes,
                source,
                target,
                None,
                None,
                UInt(0) if self.peer_receives else None,
                max_size,
                None,
                None,
                properties,
            )
        )

    def grant(self, delivery_count: int, credit: int) -> None:
        self.channel.send_flow(UInt(self.handle), UInt(delivery_count & SERIAL), UInt(credit))

    def detach(self, failure: AmqpError | None = None) -> None:
        if not self.detached:
            self.detached = True
            reason = error(failure) if failure else None
            self.channel.send(performative(Code.DETACH, UInt(self.handle), TRUE, reason))


def _terminus(value: Any, code: Code) -> list[Any]:
    fields = value.value if value is not None and value.descriptor == code else None
    count = 11 if code is Code.SOURCE else 7
    return (list(fields) if isinstance(fields, list) else []) + [None] * (count - len(fields or []))


def vendor(name: str) -> Symbol:
    return Symbol(f"com.microsoft:{name}")
