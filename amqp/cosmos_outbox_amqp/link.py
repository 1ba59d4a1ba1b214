"""
Link: receive the messages of one session of Service Bus, on a channel of its own. `session.py` renews the session's lock.

The broker may send only as many messages as this side has granted credit for. A *drain* takes unused credit back, and the broker answers
that it sends no more messages. So this side knows when a session is empty, and no message arrives between two calls of `receive`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, NamedTuple
from uuid import uuid4

from cosmos_outbox_amqp.connection import WINDOW, Connection
from cosmos_outbox_amqp.decoding import Described
from cosmos_outbox_amqp.encoding import Symbol, ubyte
from cosmos_outbox_amqp.errors import AmqpError, Condition, ProtocolError
from cosmos_outbox_amqp.frames import CLOSED, RECEIVING, SETTLED, Code, fields_of, performative, read_error

_SESSION_FILTER, _LOCKED_UNTIL = "com.microsoft:session-filter", "com.microsoft:locked-until-utc"
_TIMEOUT, _DEAD_LETTER = Symbol(Condition.TIMEOUT), Symbol("com.microsoft:dead-letter")
_FILTERS = 8  # the filters are the eighth field of a source
_LARGEST = 101 << 20  # bytes of a message: Service Bus takes 100 MB
_SERIAL = 2**32 - 1
_HANDLE, _UNSETTLED, _SECOND = 0, ubyte(0), ubyte(1)

ACCEPTED = Described(Code.ACCEPTED, [])
ABANDONED = Described(Code.MODIFIED, [True, False])
DEFERRED = Described(Code.MODIFIED, [True, True])


def dead_lettered(reason: str, description: str) -> Described:
    """Return the outcome with which a settlement makes the broker move a message to the dead-letter queue."""
    info = {Symbol("DeadLetterReason"): reason, Symbol("DeadLetterErrorDescription"): description}
    return Described(Code.REJECTED, [Described(Code.ERROR, [_DEAD_LETTER, None, info])])


class Delivery(NamedTuple):
    """A message that the broker delivered: the number of the delivery, and the encoded message."""

    number: int
    payload: bytes


class Attached(NamedTuple):
    """
    The broker's answer to an attach, the request that opens a link.

    session_id: the session that the broker has locked for this link.
    locked_until: the end of the lock, in units of 100 ns since the year 1; None if the broker does not say it.
    """

    session_id: str
    locked_until: int | None


class Link:
    """
    A link that receives the messages of one session. The attach frame is sent when the object is created.

    Args:
        connection: the connection that the link uses.
        address: the address of the subscription or queue.
        wait_seconds: how long the broker may wait for a session that has messages.
        ahead: how many messages the broker may deliver before they are asked for.
    """

    needed_by_all = False

    def __init__(self, connection: Connection, address: str, *, wait_seconds: float, ahead: int) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self.name = str(uuid4())
        self.error: AmqpError | None = None
        self._wanted = max(1, ahead)
        self._credit = self._received = 0  # how many messages may still come, and how many came
        self._frames = 0  # the number of the next transfer frame of the broker
        self._ready: deque[Delivery] = deque()
        self._first: int | None = None  # the number of a message whose last frame has not come yet
        self._parts: list[bytes] = []
        self._size = 0
        self._attached: asyncio.Future[Attached] = self._loop.create_future()
        self._arrival: asyncio.Future[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        self._settling: tuple[int, Described, asyncio.Future[None]] | None = None
        self.waiting_since: float | None = self._loop.time() + wait_seconds
        self._channel = connection.begin(self)
        self._attach(address, wait_seconds)

    def _write(self, code: int, *fields: Any) -> None:
        self._connection.write(self._channel, performative(code, *fields))

    def _attach(self, address: str, wait_seconds: float) -> None:
        asked = {Symbol(_SESSION_FILTER): None}
        properties = {_TIMEOUT: max(1, int(wait_seconds * 1000))}
        source = Described(Code.SOURCE, [address, *[None] * 6, asked])
        target, nothing = Described(Code.TARGET, [self.name]), [None] * 6
        modes = _UNSETTLED, _SECOND
        self._write(Code.ATTACH, self.name, _HANDLE, RECEIVING, *modes, source, target, *nothing, properties)

    # Callers use these methods.

    async def wait_attached(self) -> Attached:
        """
        Wait for the broker's answer to the attach, and return it.

        Raises:
            AmqpError: the broker locked no session for this link. The error says why.
        """
        return await self._attached

    async def receive(self, wait_seconds: float) -> Delivery | None:
        """
        Return the next message, or None if none arrived in time. After None, the broker sends no message until the next call.

        Raises:
            AmqpError: the link is gone.
        """
        if self._drained is not None:  # an earlier call of `receive`, which was cancelled, began this drain
            await asyncio.shield(self._drained)
        ready = self._ready
        if self.error is None and self._credit + len(ready) <= self._wanted // 2:
            self._grant(self._wanted - len(ready))
        if not ready and self.error is None and wait_seconds > 0:
            await self._wait_for_arrival(wait_seconds)
        if not ready and self.error is None:
            await self.drain()
        if self.error is not None:
            raise self.error
        return ready.popleft() if ready else None

    async def _wait_for_arrival(self, seconds: float) -> None:
        self._arrival = arrival = self._loop.create_future()
        timer = self._loop.call_later(seconds, _complete, arrival)
        try:
            await arrival
        finally:
            timer.cancel()
            self._arrival = None

    async def drain(self) -> None:
        """Take unused credit back, and return when the broker has answered that it sends no more messages."""
        if self._credit and self._drained is None and self.error is None:
            self._drained = self._loop.create_future()
            self.waiting_since = self._loop.time()
            self._grant(self._credit, drain=True)
        if self._drained is not None:
            await asyncio.shield(self._drained)

    async def settle(self, number: int, outcome: Described) -> None:
        """
        Settle a message, and return when the broker has confirmed the settlement.

        Raises:
            AmqpError: the broker did not confirm the settlement.
        """
        # A call of `receive` that was cancelled may have asked the broker to stop sending (a drain). Wait for the end of the drain first,
        # because the time limit for the answer to the settlement must not include it.
        if self._drained is not None:
            await asyncio.shield(self._drained)
        if self.error is not None:
            raise self.error
        answer = self._loop.create_future()
        self._settling = number, outcome, answer
        self.waiting_since = self._loop.time()
        self._write(Code.DISPOSITION, RECEIVING, number, number, not SETTLED, outcome)
        try:
            await answer
        finally:
            self._settling = self.waiting_since = None

    def detach(self) -> None:
        """Release the session and its unsettled messages, without waiting for the broker's answer."""
        if self.error is None:
            self._give_up(AmqpError(Condition.SESSION_LOCK_LOST, "This receiver gave the session back."))

    def _give_up(self, error: AmqpError) -> None:
        self._write(Code.DETACH, _HANDLE, CLOSED)
        self._connection.end(self._channel)
        self._fail(error)

    def _grant(self, credit: int, *, drain: bool = False) -> None:
        self._credit = credit
        window = self._frames & _SERIAL, WINDOW, 0, WINDOW
        self._write(Code.FLOW, *window, _HANDLE, self._received, credit, 0, drain)

    # These methods handle frames from the broker.

    def on_frame(self, code: int, fields: list[Any], payload: bytes) -> None:
        match code:
            case Code.TRANSFER:
                self._on_transfer(fields, payload)
            case Code.DISPOSITION:
                self._on_disposition(*fields[:5])
            case Code.FLOW:
                if fields[4] is not None and self._credit and self._drained is not None:
                    self._on_drained(int(fields[5]) & _SERIAL)
                if fields[9]:
                    self._grant(self._credit, drain=self._drained is not None)
            case Code.BEGIN:
                self._frames = int(fields[1])  # the number of the broker's first frame
            case Code.ATTACH:
                self._on_attach(fields)
            case Code.DETACH:
                self._give_up(read_error(fields[2]) or AmqpError("", "The broker detached the link."))

    def on_lost(self, error: AmqpError) -> None:
        self._fail(error)

    def _on_attach(self, fields: list[Any]) -> None:
        source, count, properties = fields_of(fields[5]), fields[9], fields[13] or {}
        self._received = int(count or 0) & _SERIAL
        *_, filters = (*source, *[None] * _FILTERS)[:_FILTERS]
        given = (filters or {}).get(_SESSION_FILTER)
        session = given.value if isinstance(given, Described) else given
        if not isinstance(session, str):
            return  # the broker refuses the link, and will send a detach that says why
        self.waiting_since = None
        if not self._attached.done():
            ticks = properties.get(_LOCKED_UNTIL)
            self._attached.set_result(Attached(session, ticks if isinstance(ticks, int) else None))

    def _on_transfer(self, fields: list[Any], payload: bytes) -> None:
        self._frames += 1
        if self._first is None:
            self._first = int(fields[1]) & _SERIAL
        self._size += len(payload)
        if self._size > _LARGEST or not self._credit:
            self._give_up(ProtocolError("The broker sent more than this link's credit or size limit allows."))
            return
        if fields[5] and not fields[9]:
            self._parts.append(payload)
            return
        if self._parts:
            payload = b"".join((*self._parts, payload))
        number, self._first, self._parts, self._size = self._first, None, [], 0
        if fields[9]:  # aborted: the broker will not send the rest of the message
            return
        self._received = (self._received + 1) & _SERIAL
        self._credit -= 1
        self._ready.append(Delivery(number, payload))
        if self._arrival is not None:
            _complete(self._arrival)
        if not self._credit:
            self._no_credit()

    def _on_drained(self, received: int) -> None:
        # The drain is complete if all credit is used up, by messages that arrived and by the drain itself.
        if (self._received + self._credit - received) & _SERIAL == 0:
            self._received, self._credit = received, 0
            self._no_credit()

    def _no_credit(self) -> None:
        if self._drained is not None:
            _complete(self._drained)
            self._drained = self.waiting_since = None

    def _on_disposition(self, role: bool, first: int, last: int | None, settled: bool, state: Any) -> None:
        # Ignore a disposition without `settled`: it only reports that the broker is still working on the settlement.
        if self._settling is None or role or not settled:
            return
        number, outcome, answer = self._settling
        if (number - first) & _SERIAL > ((first if last is None else last) - first) & _SERIAL:
            return
        error = _refusal(state, outcome)
        if error is None:
            _complete(answer)
        elif not answer.done():
            answer.set_exception(error)

    def _fail(self, error: AmqpError) -> None:
        if self.error is not None:
            return
        self.error, self.waiting_since = error, None
        for waiting in (self._arrival, self._drained):
            if waiting is not None:
                _complete(waiting)
        self._drained = None
        for asking in (self._attached, self._settling and self._settling[2]):
            if asking is not None and not asking.done():
                asking.set_exception(error)
                asking.exception()  # reading the error keeps asyncio from logging it if no call waits


def _refusal(state: Any, outcome: Described) -> AmqpError | None:
    said = fields_of(state)
    error = read_error(said[0]) if said and state.descriptor == Code.REJECTED else None
    if error is not None and outcome.descriptor == Code.REJECTED and error.condition == _DEAD_LETTER:
        return None  # no refusal: the broker confirms a dead-lettering with the outcome REJECTED
    if error is None and outcome == ACCEPTED and getattr(state, "descriptor", Code.ACCEPTED) != Code.ACCEPTED:
        return AmqpError("", "The broker settled the message with another outcome than requested.")
    return error


def _complete(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
