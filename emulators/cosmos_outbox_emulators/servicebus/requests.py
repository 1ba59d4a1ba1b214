"""Requests and replies over a pair of links, as clients use them for $cbs and $management. `management.py` has the operations."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from cosmos_outbox_emulators.servicebus.channel import LinkEnd
from cosmos_outbox_emulators.servicebus.conditions import AmqpError, Condition
from cosmos_outbox_emulators.servicebus.decoding import DecodeError, decode
from cosmos_outbox_emulators.servicebus.encoding import encode, pack_u32
from cosmos_outbox_emulators.servicebus.inbound import Assembler
from cosmos_outbox_emulators.servicebus.performatives import (
    ACCEPTED,
    Code,
    Raw,
    encode_rejected,
    outcome_frame,
    performative,
    transfer_frames,
)
from cosmos_outbox_emulators.servicebus.primitives import Int, Symbol

CREDIT = 100
MAX_REQUEST_SIZE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    message_id: Any
    reply_to: Any
    properties: dict[Any, Any]
    body: Any

    @property
    def operation(self) -> str:
        return str(self.properties.get("operation", "")).removeprefix("com.microsoft:")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    status: int = 200
    description: str = "OK"
    body: Any = field(default_factory=dict)
    condition: str | None = None


class ReplyRouter(Protocol):
    """Finds the link of a connection over which a reply must be sent."""

    def reply_link(self, reply_to: Any, path: str) -> ReplyLink | None: ...


def read_request(payload: bytes) -> Request:
    if not payload:
        raise DecodeError("a request must have content")
    sections: dict[Any, Any] = {}
    position = 0
    while position < len(payload):
        section, position = decode(payload, position)
        descriptor = getattr(section, "descriptor", None)
        if not isinstance(descriptor, int):
            raise DecodeError("each section of a request needs a numeric AMQP descriptor")
        sections[int(descriptor)] = section.value
    properties = sections.get(Code.PROPERTIES) or []
    application = sections.get(Code.APPLICATION_PROPERTIES) or {}
    if not isinstance(properties, list) or not isinstance(application, dict):
        raise DecodeError("the properties of a request are malformed")
    properties = [*properties, None, None, None, None, None]
    return Request(
        message_id=properties[0],
        reply_to=properties[4],
        properties=application,
        body=sections.get(Code.VALUE),
    )


class RequestLink:
    """Receives requests, and sends each reply over the link that the request names."""

    def __init__(
        self, end: LinkEnd, path: str, router: ReplyRouter, answer: Callable[[Request], Reply]
    ) -> None:
        self.end = end
        self._path = path
        self._router = router
        self._answer = answer
        self._assembler = Assembler(MAX_REQUEST_SIZE)
        self._delivery_count = 0
        self._granted = CREDIT
        end.accept()
        end.grant(0, CREDIT)

    def on_transfer(self, fields: list[Any], payload: bytes) -> None:
        inbound = None if self.end.detached else self._assembler.feed(fields, payload)
        if inbound is None:
            return
        self._delivery_count += 1
        self._granted -= 1
        if self._granted <= CREDIT // 5:
            self._granted = CREDIT
            self.end.grant(self._delivery_count, CREDIT)
        outcome, request = ACCEPTED, None
        try:
            # A request that exceeds the size limit arrives here without its content, so it is refused like an empty request.
            request = read_request(inbound.payload)
        except DecodeError as error:
            outcome = encode_rejected(AmqpError(Condition.DECODE_ERROR, str(error)))
        if not inbound.settled:
            channel = self.end.channel
            channel.wire.write(outcome_frame(channel.number, inbound.delivery_id, outcome, to_sender=True))
        if request:
            link = self._router.reply_link(request.reply_to, self._path)
            reply = self._answer(request)
            if link:
                link.reply(request, reply)

    def on_flow(self, fields: list[Any]) -> None:
        if fields[9]:
            self.end.grant(self._delivery_count, self._granted)

    def close(self) -> None:
        pass


class ReplyLink:
    """Sends replies. A reply waits while the client has granted no credit for it."""

    def __init__(self, end: LinkEnd, path: str) -> None:
        self.end = end
        self.path = path
        self._delivery_count = 0
        self._credit = 0
        self._waiting: deque[bytes] = deque()
        end.accept()

    @property
    def address(self) -> Any:
        return self.end.target[0]

    def reply(self, request: Request, reply: Reply) -> None:
        # $cbs is documented with dashes in these names, $management without. Each client reads only one form, so both are sent.
        status = Int(reply.status)
        properties: dict[Any, Any] = {
            "statusCode": status, "statusDescription": reply.description,
            "status-code": status, "status-description": reply.description,
        }  # fmt: skip
        if reply.condition:
            properties["errorCondition"] = Symbol(reply.condition)
        self._waiting.append(b"".join((
            performative(Code.PROPERTIES, None, None, None, None, None, request.message_id),
            performative_value(Code.APPLICATION_PROPERTIES, properties),
            performative_value(Code.VALUE, reply.body),
        )))  # fmt: skip
        self._send()

    def _send(self) -> None:
        channel = self.end.channel
        size = channel.wire.peer_frame_size
        while self._waiting and self._credit:
            payload, number = self._waiting.popleft(), channel.next_delivery_id()
            self._delivery_count += 1
            self._credit -= 1
            tag = pack_u32(number)
            for data in transfer_frames(
                channel.number, self.end.handle, number, tag, payload, settled=True, max_frame_size=size
            ):
                channel.wire.write(data)

    def on_transfer(self, fields: list[Any], payload: bytes) -> None:
        raise AmqpError(Condition.NOT_ALLOWED, "The peer sent a transfer over a link it receives from.")

    def on_flow(self, fields: list[Any]) -> None:
        if fields[6] is not None:
            self._credit = max(0, (fields[5] or 0) + fields[6] - self._delivery_count)
            self._send()
        if fields[9]:
            self.end.grant(self._delivery_count, self._credit)

    def close(self) -> None:
        pass


def performative_value(code: Code, value: Any) -> bytes:
    return Raw(b"\x00\x53" + bytes((code,)) + encode(value))
