"""
Requests: questions and answers over a pair of links, as $cbs and $management take them.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from cosmos_outbox_amqp.connection import Connection
from cosmos_outbox_amqp.encoding import (
    FALSE,
    NULL,
    TRUE,
    binary,
    described,
    listed,
    mapped,
    string,
    ubyte,
    uint,
    uuid,
)
from cosmos_outbox_amqp.errors import AmqpError, ProtocolError, denied_by
from cosmos_outbox_amqp.frames import Code, fields_of, performative, read_error
from cosmos_outbox_amqp.message import Sections

_SENDER, _RECEIVER = 0, 1  # handles
_CREDIT = 1000
_OK = range(200, 300)
_WINDOW = uint(2**31 - 1)
_OVERHEAD = 512  # of a frame, beside the request in it
_ACCEPTED = described(Code.ACCEPTED, listed([]))
_LARGEST = 1 << 20  # answer


class _Asked(NamedTuple):
    """
    A request that waits for its answer, also after the call that made it was cancelled.
    """

    since: float
    delivery: int
    answer: asyncio.Future[Sections]


class Requests:
    """
    The pair of links to one address, on a channel of its own; opened with the first request.
    """

    needed_by_all = True

    def __init__(self, connection: Connection, address: str) -> None:
        self._connection, self._address = connection, address
        self._loop = asyncio.get_running_loop()
        self._reply_to = f"{address}-{uuid4()}"
        self._waiting: dict[UUID, _Asked] = {}  # the oldest first
        self._missing = {_SENDER, _RECEIVER, _CREDIT}  # until a request may go out
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._delivery_ids = itertools.count()
        self._frames = self._answers = 0
        self._parts: list[bytes] = []
        self.error: AmqpError | None = None
        self.waiting_since: float | None = self._loop.time()
        self._channel = connection.begin(self)
        self._attach()

    def _attach(self) -> None:
        source = described(Code.SOURCE, listed([string(self._address)]))
        target = described(Code.TARGET, listed([string(self._address)]))
        mine = described(Code.TARGET, listed([string(self._reply_to)]))
        for role, handle, ends in ((FALSE, _SENDER, (source, target)), (TRUE, _RECEIVER, (source, mine))):
            name, count = string(str(uuid4())), NULL if role == TRUE else uint(0)
            self._write(Code.ATTACH, name, uint(handle), role, ubyte(0), ubyte(0), *ends, NULL, NULL, count)

    def _write(self, code: int, *fields: bytes) -> None:
        self._connection.write(self._channel, performative(code, *fields))

    def _grant(self) -> None:
        window = uint(self._frames % 2**32), _WINDOW, uint(0), _WINDOW
        self._write(Code.FLOW, *window, uint(_RECEIVER), uint(self._answers), uint(_CREDIT))

    async def ask(self, operation: str, properties: dict[str, bytes], body: bytes) -> Sections:
        """
        Return the answer to a request.

        Raises:
            AmqpError: the peer refused, or the connection is gone.
        """
        await asyncio.shield(self._ready)
        if self.error is not None:
            raise self.error
        number, answer = uuid4(), self._loop.create_future()
        names = {"operation": string(operation), **properties}
        message = b"".join(
            (
                performative(Code.PROPERTIES, uuid(number), NULL, NULL, NULL, string(self._reply_to)),
                described(Code.APPLICATION_PROPERTIES, mapped((string(k), v) for k, v in names.items())),
                described(Code.VALUE, body),
            )
        )
        if len(message) + _OVERHEAD > self._connection.peer_frame_size:
            raise AmqpError("", "A request is larger than a frame of the broker.")
        delivery = next(self._delivery_ids) % 2**32
        self._waiting[number] = _Asked(self._loop.time(), delivery, answer)
        self._see_waiting()
        transfer = performative(
            Code.TRANSFER, uint(_SENDER), uint(delivery), binary(number.bytes), uint(0), FALSE, FALSE
        )
        self._connection.write(self._channel, transfer + message)
        return accepted(await answer)

    def _see_ready(self) -> None:
        if not self._missing and not self._ready.done():
            self._ready.set_result(None)
            self._see_waiting()

    def _see_waiting(self) -> None:
        self.waiting_since = next((asked.since for asked in self._waiting.values()), None)

    def on_frame(self, code: int, fields: list[Any], payload: bytes) -> None:
        match code:
            case Code.BEGIN:
                self._frames = int(fields[1])  # the number of the first
            case Code.ATTACH:
                if fields[1] in self._missing and fields[1] == _RECEIVER:
                    self._grant()
                self._missing.discard(fields[1])
                self._see_ready()
            case Code.FLOW if fields[4] is not None:
                self._missing.discard(_CREDIT)
                self._see_ready()
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
            delivery = uint(int(fields[1]) % 2**32)
            self._write(Code.DISPOSITION, TRUE, delivery, delivery, TRUE, _ACCEPTED)
        if self._answers % (_CREDIT // 2) == 0:
            self._grant()
        answer = Sections(payload)
        number = answer.properties[5]
        asked = self._waiting.pop(number, None) if isinstance(number, UUID) else None
        if asked is not None and not asked.answer.done():
            asked.answer.set_result(answer)
        self._see_waiting()

    def on_lost(self, error: AmqpError) -> None:
        self.error = error
        if not self._ready.done():
            self._ready.set_exception(error)
            self._ready.exception()
        self._fail(error, range(2**32))

    def _fail(self, error: AmqpError, deliveries: range) -> None:
        for number, asked in [*self._waiting.items()]:
            if asked.delivery in deliveries:
                del self._waiting[number]
                if not asked.answer.done():
                    asked.answer.set_exception(error)
        self._see_waiting()


def accepted(answer: Sections) -> Sections:
    """
    Return an answer unless it is a refusal.

    Raises:
        AmqpError: it is a refusal.
    """
    said = answer.application_properties
    status = said.get("statusCode", said.get("status-code"))
    if isinstance(status, int) and status in _OK:
        return answer
    condition = said.get("errorCondition", said.get("error-condition")) or denied_by(status)
    text = said.get("statusDescription", said.get("status-description"))
    raise AmqpError(str(condition), f"{status}: {text}")


def value_of(answer: Sections) -> Any:
    """
    Return the value in an answer.
    """
    return answer.body[0] if answer.body else None
