"""Requests: send requests to the broker's nodes $cbs (which takes tokens) and $management, and return the answers."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from cosmos_outbox_amqp.connection import WINDOW, Connection
from cosmos_outbox_amqp.decoding import Described
from cosmos_outbox_amqp.encoding import encode, ubyte
from cosmos_outbox_amqp.errors import AmqpError, ProtocolError, denial_condition
from cosmos_outbox_amqp.frames import RECEIVING, SENDING, SETTLED, Code, fields_of, performative, read_error
from cosmos_outbox_amqp.message import Sections

_SENDER, _RECEIVER = 0, 1  # the client's handles of its two links; the broker has its own handles
_CREDIT = 1000
_OK = range(200, 300)
_SERIAL = 2**32 - 1
_HEAD_OF_FRAME = 64  # more bytes than the head of a frame and its transfer performative need
_LARGEST = 1 << 20  # how many bytes an answer may have


class _Asked(NamedTuple):
    """A request without an answer yet. It stays in the list of requests even if the call that sent it was cancelled."""

    since: float
    delivery: int
    answer: asyncio.Future[Sections]


class Requests:
    """A pair of links to one node of the broker, for requests and for answers, on a channel of its own."""

    needed_by_all = True

    def __init__(self, connection: Connection, address: str) -> None:
        self._connection, self._address = connection, address
        self._loop = asyncio.get_running_loop()
        self._reply_to = f"{address}-{uuid4()}"
        self._names = {str(uuid4()): _SENDER, str(uuid4()): _RECEIVER}
        self._sender: int | None = None  # the peer's handle of the link that carries requests
        self._waiting: dict[UUID, _Asked] = {}  # requests without an answer, the oldest first
        self._unsent: deque[bytes] = deque()
        # How many requests callers made, how many of them were sent completely, and how many bytes of the next request were sent
        self._asked = self._sent = self._begun = 0
        self._limit = 0  # how many requests this side may send: the peer's credit
        # The frames written, and the number up to which the peer accepts frames.
        self._written, self._window = 0, 0
        self._frames = self._answers = 0
        self._parts: list[bytes] = []
        self.error: AmqpError | None = None
        self._channel = connection.begin(self)
        source, target = Described(Code.SOURCE, [address]), Described(Code.TARGET, [address])
        mine = Described(Code.TARGET, [self._reply_to])
        for name, handle in self._names.items():
            role, to = (RECEIVING, mine) if handle == _RECEIVER else (SENDING, target)
            count = None if role == RECEIVING else 0
            self._write(Code.ATTACH, name, handle, role, ubyte(0), ubyte(0), source, to, None, None, count)

    def _write(self, code: int, *fields: Any) -> None:
        self._connection.write(self._channel, performative(code, *fields))

    def _grant(self) -> None:
        window = self._frames & _SERIAL, WINDOW, self._written & _SERIAL, WINDOW
        self._write(Code.FLOW, *window, _RECEIVER, self._answers & _SERIAL, _CREDIT)

    async def ask(self, operation: str, properties: dict[str, Any], body: Any) -> Any:
        """
        Send a request, wait for the answer, and return the value in its body.

        Raises:
            AmqpError: the broker refused the request, or the connection is lost.
        """
        if self.error is not None:
            raise self.error
        number, answer = uuid4(), self._loop.create_future()
        said = Described(Code.APPLICATION_PROPERTIES, {"operation": operation, **properties})
        head = performative(Code.PROPERTIES, number, None, None, None, self._reply_to)
        self._waiting[number] = _Asked(self._loop.time(), self._asked, answer)
        self._asked += 1
        self._unsent.append(head + encode(said) + encode(Described(Code.VALUE, body)))
        self._send()
        return value_in(await answer)

    def _send(self) -> None:
        room = self._connection.peer_frame_size - _HEAD_OF_FRAME
        while self._unsent and self._sender is not None and self._sent < self._limit:
            if self._written >= self._window:
                return
            message, start = self._unsent[0], self._begun
            delivery, more = self._sent & _SERIAL, start + room < len(message)
            tag = self._sent.to_bytes(8, "big")
            transfer = performative(Code.TRANSFER, _SENDER, delivery, tag, 0, not SETTLED, more)
            self._connection.write(self._channel, transfer + message[start : start + room])
            self._written += 1
            self._begun = start + room
            if not more:
                self._unsent.popleft()
                self._sent, self._begun = self._sent + 1, 0

    @property
    def waiting_since(self) -> float | None:
        return next((asked.since for asked in self._waiting.values()), None)

    def on_frame(self, code: int, fields: list[Any], payload: bytes) -> None:
        match code:
            case Code.BEGIN:
                self._frames, self._window = int(fields[1]), int(fields[2])
            case Code.ATTACH:
                mine = self._names.get(fields[0])
                if mine == _RECEIVER:
                    self._grant()
                elif mine == _SENDER:
                    self._sender = fields[1]
            case Code.FLOW:
                self._on_flow(fields)
            case Code.TRANSFER:
                self._on_transfer(fields, payload)
            case Code.DISPOSITION:
                if (error := read_error((fields_of(fields[4]) or [None])[0])) is not None:
                    first, last = int(fields[1]), int(fields[1] if fields[2] is None else fields[2])
                    self._fail(error, range(first, last + 1))
            case Code.DETACH:
                error = read_error(fields[2]) or AmqpError("", f"The broker detached {self._address}.")
                self._connection.end(self._channel)
                self.on_lost(error)

    def _on_flow(self, fields: list[Any]) -> None:
        # The broker counts the credit from the frames and requests that it had received when it sent this flow, so add their numbers.
        self._window = int(fields[0] or 0) + int(fields[1])
        if fields[4] is not None and fields[4] == self._sender:
            self._limit = int(fields[5] or 0) + int(fields[6] or 0)
        if fields[9]:
            self._grant()
        self._send()

    def _on_transfer(self, fields: list[Any], payload: bytes) -> None:
        self._frames += 1
        self._parts.append(payload)
        if sum(map(len, self._parts)) > _LARGEST:
            raise ProtocolError("The peer's answer exceeds the size limit.")
        if fields[5]:
            return
        payload, self._parts = b"".join(self._parts), []
        self._answers += 1
        if not fields[4] and fields[1] is not None:
            delivery = int(fields[1]) & _SERIAL
            self._write(
                Code.DISPOSITION, RECEIVING, delivery, delivery, SETTLED, Described(Code.ACCEPTED, [])
            )
        if self._answers % (_CREDIT // 2) == 0:
            self._grant()
        answer = Sections(payload)
        number = answer.properties[5]
        asked = self._waiting.pop(number, None) if isinstance(number, UUID) else None
        if asked is not None and not asked.answer.done():
            asked.answer.set_result(answer)

    def on_lost(self, error: AmqpError) -> None:
        self.error = error
        self._fail(error, range(2**32))

    def _fail(self, error: AmqpError, deliveries: range) -> None:
        for number, asked in [*self._waiting.items()]:
            if asked.delivery in deliveries:
                del self._waiting[number]
                if not asked.answer.done():
                    asked.answer.set_exception(error)


def value_in(answer: Sections) -> Any:
    """
    Return the value in the body of an answer.

    Raises:
        AmqpError: the status of the answer says that the broker refused the request.
    """
    said = answer.application_properties
    status = said.get("statusCode", said.get("status-code"))
    if isinstance(status, int) and status in _OK:
        return answer.body[0] if answer.body else None
    condition = said.get("errorCondition", said.get("error-condition")) or denial_condition(status)
    text = said.get("statusDescription", said.get("status-description"))
    raise AmqpError(str(condition), f"{status}: {text}")
