"""
Messages as the broker stores them. Sections that the broker has to read are decoded. The sender's other sections are kept byte for
byte.
"""

from __future__ import annotations

import struct
import uuid
from dataclasses import dataclass, field
from typing import Any

from cosmos_outbox_emulators.servicebus.conditions import AmqpError, Condition
from cosmos_outbox_emulators.servicebus.decoding import DecodeError, decode, skip
from cosmos_outbox_emulators.servicebus.encoding import encode, encode_map_items, pack_i64, pack_u32
from cosmos_outbox_emulators.servicebus.performatives import BATCH_FORMAT, Code, performative
from cosmos_outbox_emulators.servicebus.primitives import Described, Opaque, Symbol, Timestamp, UByte, UInt

MAX_ID_LENGTH = 128
MAX_PROPERTY_SIZE = 32 * 1024
MAX_PROPERTIES_SIZE = 64 * 1024

# The annotations that the broker itself writes. They are removed when a received message is sent again.
_BROKER_ANNOTATIONS = frozenset({
    "x-opt-enqueued-time", "x-opt-sequence-number", "x-opt-enqueue-sequence-number", "x-opt-locked-until",
    "x-opt-message-state", "x-opt-scheduled-enqueue-time",
})  # fmt: skip
_NEVER_NULL = ("x-opt-scheduled-enqueue-time", "x-opt-message-state", "x-opt-enqueue-sequence-number")
LOCK_TOKEN = Symbol("x-opt-lock-token")


# The dataclass is not frozen, because creating a frozen object with so many fields takes longer than parsing the message.
@dataclass(slots=True, kw_only=True)
class Message:
    """One message, which all queues that hold it share. It never changes after it was parsed."""

    message_id: Any = None
    session_id: str | None = None
    partition_key: str | None = None
    ttl_s: float | None = None
    scheduled_at: float | None = None
    durable_priority: bytes = b"\x40\x40"
    delivery_annotations: dict[Any, Any] = field(default_factory=dict)
    annotations: dict[Any, Any] = field(default_factory=dict)
    properties: bytes = b""
    application_properties: bytes = b""
    body: bytes = b""
    footer: bytes = b""

    @property
    def identity(self) -> str:
        """Return the text that duplicate detection compares, which is the message id."""
        return self.message_id if type(self.message_id) is str else str(self.message_id)


def parse_transfer(payload: bytes, message_format: int) -> list[Message]:
    """
    Return the messages of one transfer: those of a batch if the format says so, otherwise one message.

    Raises:
        DecodeError: the sections are malformed.
        AmqpError: a property is longer than Service Bus allows.
    """
    if message_format != BATCH_FORMAT:
        return [parse_message(payload)]
    messages, position, end = [], 0, len(payload)
    while position < end:
        code, position = _section(payload, position)
        after = skip(payload, position)
        if code == Code.DATA:
            if payload[position] & 0xEF != 0xA0:
                raise DecodeError("a data section must hold binary data")
            start = position + (5 if payload[position] == 0xB0 else 2)
            messages.append(parse_message(payload[start:after]))
        position = after
    return messages


def _section(data: bytes, position: int) -> tuple[int, int]:
    if data[position : position + 2] == b"\x00\x53" and position + 3 < len(data):
        return data[position + 2], position + 3
    if data[position] != 0:
        raise DecodeError("a message section must start with a descriptor")
    code, position = decode(data, position + 1)
    if not isinstance(code, int) or position >= len(data):
        raise DecodeError("a message section must have a numeric descriptor and a value")
    return code, position


def parse_message(data: bytes) -> Message:
    message = Message()
    body, position, end = [], 0, len(data)
    while position < end:
        start = position
        code, position = _section(data, position)
        if code == Code.PROPERTIES:
            position = _read_properties(message, data, start, position)
        elif code == Code.APPLICATION_PROPERTIES:
            if data[position] not in (0xC1, 0xD1, 0x40):
                raise DecodeError("application properties must be a map")
            position = skip(data, position)
            message.application_properties = data[start:position]
        elif Code.DATA <= code <= Code.VALUE:
            position = skip(data, position)
            body.append(data[start:position])
        elif code == Code.HEADER:
            position = _read_header(message, data, position)
        elif code in (Code.DELIVERY_ANNOTATIONS, Code.MESSAGE_ANNOTATIONS):
            position = _read_annotations(message, code, data, position)
        else:
            position = skip(data, position)
            if code == Code.FOOTER:
                message.footer = data[start:position]
    message.body = body[0] if len(body) == 1 else b"".join(body)
    if message.message_id is None:
        _assign_id(message)
    _check_limits(message)
    return message


def _read_properties(message: Message, data: bytes, start: int, position: int) -> int:
    fields, position = decode(data, position)
    if type(fields) is not list:
        raise DecodeError("the properties of a message must be a list")
    message.properties = data[start:position]
    if fields:
        message.message_id = fields[0]
        if isinstance(message.message_id, (list, dict, Described, Opaque)):
            raise DecodeError("a message id must be a string, a number, a uuid or binary")
    if len(fields) > 10:
        session_id = fields[10]
        if session_id is not None and not isinstance(session_id, str):
            raise DecodeError("a group id (SessionId) must be a string")
        message.session_id = session_id
    return position


def _read_header(message: Message, data: bytes, position: int) -> int:
    fields, position = decode(data, position)
    if type(fields) is not list:
        raise DecodeError("the header of a message must be a list")
    durable, priority, ttl = (*fields[:3], None, None, None)[:3]
    if not isinstance(durable, bool | None) or not isinstance(priority, UByte | None):
        raise DecodeError("in a message header, durable must be a boolean and priority a ubyte")
    if durable is not None or priority is not None:
        message.durable_priority = encode(durable) + encode(priority)
    if ttl is not None:
        if not isinstance(ttl, int):
            raise DecodeError("a time to live must be a number of milliseconds")
        message.ttl_s = ttl / 1000
    return position


def _read_annotations(message: Message, code: int, data: bytes, position: int) -> int:
    annotations, position = decode(data, position)
    if annotations is None:
        return position
    if type(annotations) is not dict:
        raise DecodeError("annotations must be a map")
    if code == Code.DELIVERY_ANNOTATIONS:
        annotations.pop(LOCK_TOKEN, None)
        message.delivery_annotations = annotations
        return position
    for name in _NEVER_NULL:
        if name in annotations and annotations[name] is None:
            raise DecodeError(f"the annotation {name} must not be null")
    scheduled = annotations.get("x-opt-scheduled-enqueue-time")
    if isinstance(scheduled, int):
        message.scheduled_at = scheduled / 1000
    key = annotations.get("x-opt-partition-key")
    message.partition_key = key if isinstance(key, str) else None
    message.annotations = {
        key: value
        for key, value in annotations.items()
        if key not in _BROKER_ANNOTATIONS or key == "x-opt-scheduled-enqueue-time"
    }
    return position


def _assign_id(message: Message) -> None:
    # Clients in other languages than Python cannot settle a message without a message id, so the message gets a random id.
    fields = decode(message.properties, decode(message.properties, 1)[1])[0] if message.properties else []
    message.message_id = uuid.uuid4().hex
    message.properties = performative(Code.PROPERTIES, message.message_id, *fields[1:])


def _units(text: str) -> int:
    return len(text) + sum(character > "\uffff" for character in text)  # UTF-16 code units, which .NET counts


def _check_limits(message: Message) -> None:
    if _units(message.identity) > MAX_ID_LENGTH:
        raise AmqpError(Condition.ARGUMENT_ERROR, f"The MessageId is longer than {MAX_ID_LENGTH} characters.")
    if message.session_id is not None and _units(message.session_id) > MAX_ID_LENGTH:
        raise AmqpError(Condition.ARGUMENT_ERROR, f"The SessionId is longer than {MAX_ID_LENGTH} characters.")
    if message.partition_key is not None:
        if _units(message.partition_key) > MAX_ID_LENGTH:
            raise AmqpError(
                Condition.ARGUMENT_ERROR, f"The PartitionKey is longer than {MAX_ID_LENGTH} characters."
            )
        if message.session_id is not None and message.partition_key != message.session_id:
            raise AmqpError(
                Condition.NOT_ALLOWED, "The PartitionKey and the SessionId of a message must be the same."
            )
    size = len(message.application_properties)
    if size + len(message.properties) > MAX_PROPERTIES_SIZE:
        raise AmqpError(
            Condition.ARGUMENT_ERROR, f"The properties of a message exceed {MAX_PROPERTIES_SIZE} bytes."
        )
    if size > MAX_PROPERTY_SIZE and any(
        len(encode(v)) > MAX_PROPERTY_SIZE for v in read_application_properties(message).values()
    ):
        # Azure answers with this text, although trying again never helps.
        raise AmqpError(
            Condition.INTERNAL_ERROR,
            "The service was unable to process the request; please retry the operation.",
        )


def read_application_properties(message: Message) -> dict[Any, Any]:
    if not message.application_properties:
        return {}
    value = decode(message.application_properties, 1)[1]
    fields = decode(message.application_properties, value)[0]
    return fields if isinstance(fields, dict) else {}


def read_properties(message: Message) -> list[Any]:
    """Return the thirteen fields of the properties section, with None for those that are absent."""
    fields: list[Any] = decode(message.properties, decode(message.properties, 1)[1])[0]
    return fields + [None] * (13 - len(fields))


def with_application_properties(section: bytes, extra: dict[str, Any]) -> bytes:
    """
    Set entries in an encoded section of application properties. If no entry is replaced, the existing entries keep the encoding
    that the sender chose.
    """
    content, count = b"", 0
    if section:
        position = decode(section, 1)[1]
        fields = decode(section, position)[0] or {}
        kept = {key: value for key, value in fields.items() if key not in extra}
        if len(kept) < len(fields):
            content = encode_map_items(kept)
        elif fields:
            content = section[position + (3 if section[position] == 0xC1 else 9) :]
        count = 2 * len(kept)
    content += encode_map_items(extra)
    count += 2 * len(extra)
    return b"\x00\x53\x74\xd1" + pack_u32(len(content) + 4) + pack_u32(count) + content


def _key(name: str) -> bytes:
    return encode(Symbol(name))


_ENQUEUED_TIME = _key("x-opt-enqueued-time") + b"\x83"
_SEQUENCE = _key("x-opt-sequence-number") + b"\x81"
_ENQUEUED_SEQUENCE = _key("x-opt-enqueue-sequence-number") + b"\x81"
_LOCKED_UNTIL = _key("x-opt-locked-until") + b"\x83"
_STATE = _key("x-opt-message-state") + b"\x71"
_LOCK_TOKEN = _key(LOCK_TOKEN) + b"\x98"
_pack_header = struct.Struct(">BI").pack
MAX_UINT = 0xFFFFFFFF


def encode_delivery(
    message: Message,
    *,
    application_properties: bytes,
    delivery_count: int,
    ttl_s: float | None,
    enqueued_at: float,
    sequence: int,
    enqueued_sequence: int | None,
    locked_until: float | None,
    state: int,
    token: bytes | None = None,
) -> bytes:
    """
    Return the message in the form that a receiver gets: the broker's header and annotations, then the sender's own sections.

    Args:
        token: Lock token of a delivery over a link, empty if the message is not locked. Defaults to None: the message is not
            delivered over a link.
    """
    ttl = b"\x40" if ttl_s is None or ttl_s * 1000 > MAX_UINT else encode(UInt(int(ttl_s * 1000)))
    header = message.durable_priority + ttl + b"\x40" + _pack_header(0x70, delivery_count)
    annotations = (
        _ENQUEUED_TIME + pack_i64(int(enqueued_at * 1000))
        + _SEQUENCE + pack_i64(sequence)
    )  # fmt: skip
    count = 4
    if enqueued_sequence is not None:
        annotations += _ENQUEUED_SEQUENCE + pack_i64(enqueued_sequence)
        count += 2
    if locked_until is not None:
        annotations += _LOCKED_UNTIL + pack_i64(int(locked_until * 1000))
        count += 2
    if state:
        annotations += _STATE + pack_u32(state)
        count += 2
    if message.annotations:
        annotations += encode_map_items(message.annotations)
        count += 2 * len(message.annotations)
    return b"".join((
        b"\x00\x53\x70\xc0", bytes((len(header) + 1, 5)), header, _delivery_annotations(message, token),
        b"\x00\x53\x72\xd1", pack_u32(len(annotations) + 4), pack_u32(count), annotations,
        message.properties, application_properties, message.body, message.footer,
    ))  # fmt: skip


def _delivery_annotations(message: Message, token: bytes | None) -> bytes:
    content = b""
    if token is None:  # the message is part of the answer to a request, such as a peek
        if not message.delivery_annotations:
            return b""
    elif token:
        # A delivery tag has the byte order of .NET's Guid, but AMQP writes a uuid in the order of its text, so some bytes change
        # places.
        content = _LOCK_TOKEN + token[3::-1] + token[5:3:-1] + token[7:5:-1] + token[8:]
    count = 2 * len(message.delivery_annotations) + (2 if token else 0)
    content += encode_map_items(message.delivery_annotations)
    return b"\x00\x53\x71\xd1" + pack_u32(len(content) + 4) + pack_u32(count) + content


def to_timestamp(seconds: float) -> Timestamp:
    return Timestamp(int(seconds * 1000))
