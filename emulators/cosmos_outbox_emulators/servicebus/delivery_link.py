"""The link over which a client receives messages, with or without a session. `publish_link.py` takes what clients send."""

from __future__ import annotations

from typing import Any

from cosmos_outbox_emulators.servicebus.channel import SERIAL, LinkEnd, vendor
from cosmos_outbox_emulators.servicebus.conditions import AmqpError, Condition
from cosmos_outbox_emulators.servicebus.decoding import DecodeError
from cosmos_outbox_emulators.servicebus.encoding import encode
from cosmos_outbox_emulators.servicebus.entry import Entry, Session
from cosmos_outbox_emulators.servicebus.faults import On
from cosmos_outbox_emulators.servicebus.injection import suffer
from cosmos_outbox_emulators.servicebus.performatives import (
    ACCEPTED,
    Code,
    encode_rejected,
    performative,
    transfer_frames,
)
from cosmos_outbox_emulators.servicebus.primitives import Described, Long, UInt
from cosmos_outbox_emulators.servicebus.queue import Outcome, Queue
from cosmos_outbox_emulators.servicebus.timers import Timer

SESSION_FILTER = vendor("session-filter")
# .NET counts time in units of 100 ns from the year 1.
TICKS_AT_EPOCH, TICKS_PER_S = 621_355_968_000_000_000, 10_000_000
DEFAULT_ACCEPT_TIMEOUT_MS = 65_000
_PRE_SETTLED = 1


class DeliveryLink:
    """
    The link over which a receiver gets messages. When a link with a session is closed, its unsettled messages return to the
    queue. The messages of a link without a session stay locked until their locks expire.
    """

    def __init__(self, end: LinkEnd, queue: Queue) -> None:
        self.end = end
        self.receive_and_delete = end.settle_modes[0] == _PRE_SETTLED
        self.container: object = end.channel.wire
        self._queue = queue
        self._wire = end.channel.wire
        self._topic = self._wire.broker.owner(queue.path)
        self._credit = 0
        self._delivery_count = 0
        self._session: Session | None = None
        self._waiting: Timer | None = None
        self._attach()
        self._topic.links.add(self)

    # Attaching

    def _attach(self) -> None:
        queue, filters = self._queue, self.end.source[7] or {}
        if not isinstance(filters, dict):
            raise AmqpError(Condition.INVALID_FIELD, "The filter of the link's source must be a map.")
        wants_session = SESSION_FILTER in filters
        if queue.sessions is None:
            if wants_session:
                raise AmqpError(
                    Condition.NOT_ALLOWED,
                    "A sessionful message receiver cannot be created on an entity that does not require sessions.",
                )
            queue.attach(self)
            self.end.accept()
            return
        if not wants_session:
            raise AmqpError(
                Condition.NOT_ALLOWED,
                "It is not possible for an entity that requires sessions to create a non-sessionful message receiver.",
            )
        session_id = filters[SESSION_FILTER]
        if isinstance(session_id, Described):
            session_id = session_id.value
        if session_id is not None and not isinstance(session_id, str):
            raise AmqpError(
                Condition.INVALID_FIELD, "The session id must be a string, or null for the next session."
            )
        session = queue.sessions.accept(self, session_id)
        if session:
            self.grant(session)
            return
        timeout = self.end.properties.get(vendor("timeout"))
        milliseconds = timeout if isinstance(timeout, int) else DEFAULT_ACCEPT_TIMEOUT_MS
        timers = self._wire.broker.timers
        self._waiting = timers.at(timers.now() + milliseconds / 1000, self._give_up)

    def _give_up(self) -> None:
        self._waiting = None
        self.close()
        self.end.refuse(
            AmqpError(
                Condition.TIMEOUT,
                "The operation did not complete within the allotted timeout: no session is available.",
            )
        )

    def grant(self, session: Session) -> None:
        if self._waiting:
            self._waiting.cancel()
            self._waiting = None
        self._session = session
        source = list(self.end.source)
        filters = source[7] or {}
        asked = filters.get(SESSION_FILTER)
        # The answer names the session in the form that the client used. AMQP demands a described value, but the oldest SDKs can
        # only read a plain string.
        answer = Described(asked.descriptor, session.id) if isinstance(asked, Described) else session.id
        source[7] = {**filters, SESSION_FILTER: answer}
        ticks = Long(int(session.locked_until * TICKS_PER_S) + TICKS_AT_EPOCH)
        self.end.accept(source=source, properties={vendor("locked-until-utc"): ticks})

    # Delivering

    @property
    def credit(self) -> int:
        return 0 if self._wire.congested else self._credit

    @credit.setter
    def credit(self, value: int) -> None:
        self._credit = value

    def deliver(self, entry: Entry, token: bytes) -> None:
        channel = self.end.channel
        number = channel.next_delivery_id()
        self._credit -= 1
        self._delivery_count = (self._delivery_count + 1) & SERIAL
        if not self.receive_and_delete:
            channel.unsettled[number] = self, token
        tag = b"" if self.receive_and_delete else token
        frames = transfer_frames(
            channel.number,
            self.end.handle,
            number,
            tag,
            entry.encode(tag),
            settled=self.receive_and_delete,
            max_frame_size=self._wire.peer_frame_size,
        )
        for data in frames:
            self._wire.write(data)

    def pump(self) -> None:
        """Deliver as many messages as the credit allows. This is called again when the peer has caught up with reading."""
        if self.end.detached or self._queue.disabled:
            return
        if self._queue.sessions is None or self._session:
            self._queue.pump(self, self._session)

    def on_flow(self, fields: list[Any]) -> None:
        delivery_count, credit, drain, echo = fields[5], fields[6], fields[8], fields[9]
        if credit is not None:
            self._credit = max(0, (delivery_count or 0) + credit - self._delivery_count)
        self.pump()
        if drain:
            self._delivery_count = (self._delivery_count + self._credit) & SERIAL
            self._credit = 0
        if drain or echo:
            self.end.channel.send_flow(
                UInt(self.end.handle), UInt(self._delivery_count), UInt(self._credit), None, bool(drain)
            )

    def on_transfer(self, fields: list[Any], payload: bytes) -> None:
        raise AmqpError(Condition.NOT_ALLOWED, "The peer sent a transfer over a link it receives from.")

    # Settling

    def settle(self, delivery_id: int, token: bytes, state: Any, *, settled: bool) -> None:
        wanted = _read_outcome(state)
        if wanted is None:
            if settled:
                del self.end.channel.unsettled[delivery_id]
            return
        del self.end.channel.unsettled[delivery_id]
        outcome, reason, description, changes = wanted

        def act() -> bytes:
            try:
                self._queue.settle(token, outcome, reason, description, changes=changes)
            except AmqpError as error:
                return encode_rejected(error)
            return _echo(state)

        suffer(self.end, On.SETTLE, self._queue.path, delivery_id, settled=settled, act=act)

    # Closing

    def revoke(self, failure: AmqpError) -> None:
        self.close()
        # The broker still remembers the deliveries of the link. So a client that settles a message before it receives the detach
        # gets the answer "lock lost". If the broker forgot the deliveries first, it would ignore the settlement.
        self.end.detach(failure)

    def close(self) -> None:
        if self._waiting:
            self._waiting.cancel()
            self._waiting = None
        self._topic.links.discard(self)
        self._credit = 0
        self._queue.detach(self)
        self._session = None


_Wanted = tuple[Outcome, str | None, str | None, dict[str, Any]]


def _read_outcome(state: Described | None) -> _Wanted | None:
    """Return what a delivery state asks the broker to do. Return None if the state is not final."""
    if state is None or state.descriptor == Code.RECEIVED:
        return None
    fields = state.value
    if not isinstance(fields, list):
        raise DecodeError("a delivery state must be a described list")
    simple = {Code.ACCEPTED: Outcome.COMPLETE, Code.RELEASED: Outcome.RELEASE}.get(state.descriptor)
    if simple:
        return simple, None, None, {}
    if state.descriptor == Code.MODIFIED:
        _, undeliverable_here, annotations = (*fields[:3], None, None, None)[:3]
        outcome = Outcome.DEFER if undeliverable_here else Outcome.ABANDON
        return outcome, None, None, _changes(annotations)
    if state.descriptor != Code.REJECTED:
        raise DecodeError(f"unknown delivery state {state.descriptor!r:.80}")
    failure = fields[0].value if fields and isinstance(fields[0], Described) else []
    _, text, info = (*failure[:3], None, None, None)[:3] if isinstance(failure, list) else (None, None, None)
    info = _changes(info)
    reason, description = info.pop("DeadLetterReason", None), info.pop("DeadLetterErrorDescription", None)
    return Outcome.DEAD_LETTER, _text(reason), _text(description or text), info


def _changes(properties: Any) -> dict[str, Any]:
    return {str(key): value for key, value in properties.items()} if isinstance(properties, dict) else {}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _echo(state: Described) -> bytes:
    if state.descriptor == Code.ACCEPTED:
        return ACCEPTED
    # A request to dead-letter carries an error. The confirmation must not carry it, because the client would raise it as an
    # exception.
    return performative(Code.REJECTED) if state.descriptor == Code.REJECTED else encode(state)
