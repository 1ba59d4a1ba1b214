"""
Encoding: write the AMQP 1.0 bytes of a message, and append them to the SDK's batch. `message_format` decides what a
message contains, such as its id.

The SDK's `add_message` makes several objects of a message and encodes it twice, the first time only to count its bytes.
That took two thirds of the relay's CPU. This module writes the same bytes once. It relies on three private attributes
of the SDK's batch: `_message`, `_size` and `_count`. Before the first use, `difference` fills one batch in this way and
one with the SDK. If they differ, the SDK encodes all messages. It also encodes each message with unusual values.
Connection, link, frames and settlement are always left to the SDK.
"""

from __future__ import annotations

import struct
from calendar import timegm
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache, lru_cache
from typing import Any

from azure.core.settings import settings
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.exceptions import MessageSizeExceededError

from cosmos_outbox.message_format import MAX_PROPERTY_BYTES, OutboundMessage
from cosmos_outbox.partition_key import MAX_ID_LENGTH

# The codes of AMQP's types (AMQP 1.0, part 1.6), a pair for each type. The first code is for a value whose
# size is written in one byte, the second for a longer value, whose size is written in four bytes.
_STRING, _SYMBOL, _BINARY, _LIST, _MAP = (0xA1, 0xB1), (0xA3, 0xB3), (0xA0, 0xB0), (0xC0, 0xD0), (0xC1, 0xD1)
_SMALL_INT, _INT, _NULL = 0x54, 0x71, b"\x40"
_ANNOTATIONS, _PROPERTIES, _APPLICATION_PROPERTIES, _DATA = (
    bytes((0, 0x53, section)) for section in (0x72, 0x73, 0x74, 0x75)
)
_TIMESTAMP, _DELIVER_AT = b"\x83", b"x-opt-scheduled-enqueue-time"
_FIELDS = 13  # how many fields the properties section of a message has; most are null
_MOST = 255  # the largest size that one byte can hold
_pack_sized, _pack_compound = struct.Struct(">BI").pack, struct.Struct(">BII").pack
_pack_int, _pack_milliseconds = struct.Struct(">Bi").pack, struct.Struct(">q").pack

# The bytes of common values, encoded once at import:
_STRING_HEADS = tuple(bytes((_STRING[0], size)) for size in range(_MOST + 1))
_INTS = {value: bytes((_SMALL_INT, value & 0xFF)) for value in range(-128, 128)}


def fallback_cause() -> str | None:
    """
    Return why the SDK has to encode all messages: it adds traces of its own, or its bytes differ from those of
    `append`. Return None if this module may encode them.
    """
    return "the SDK traces messages" if settings.tracing_implementation() is not None else difference()


def append(batch: ServiceBusMessageBatch, message: OutboundMessage) -> bool:
    """
    Add a message to a batch. The SDK must have added the first message, because it also writes the batch's envelope.

    Returns:
        Whether the message was added. If not, pass it to the SDK, which adds it or says why it cannot be sent.

    Raises:
        MessageSizeExceededError: the message does not fit into the rest of the batch.
    """
    encoded = encode(message)
    if encoded is None:
        return False
    size = batch._size + len(encoded) + (5 if len(encoded) <= _MOST else 8)  # noqa: SLF001
    if size > batch.max_size_in_bytes:
        raise MessageSizeExceededError(message="The batch is full.")
    batch._message[5].append(encoded)  # noqa: SLF001
    batch._size = size  # noqa: SLF001
    batch._count += 1  # noqa: SLF001
    return True


def encode(message: OutboundMessage) -> bytes | None:
    """
    Return the bytes that the SDK would write for a message. Return None if the message has a value that has to be left
    to the SDK, which encodes or refuses it.
    """
    if not 0 < len(message.message_id) <= MAX_ID_LENGTH or len(message.session_id) > MAX_ID_LENGTH:
        return None
    values: list[bytes] = []
    try:
        fields = b"".join(
            (
                _string(message.message_id), _NULL * 2, _name(message.subject), _NULL * 2,
                _symbol(message.content_type), _NULL * 3, _string(message.session_id), _NULL * 2,
            )
        )  # fmt: skip
        for name, value in message.properties.items():
            values += (_name(name), _ENCODERS[type(value)](value))
    except (AttributeError, KeyError, UnicodeEncodeError, struct.error):
        return None
    body = message.body
    parts = [_PROPERTIES, _compound(_LIST, len(fields), _FIELDS), fields]
    if message.deliver_at is not None:
        at = _header(_SYMBOL, len(_DELIVER_AT)) + _DELIVER_AT + _TIMESTAMP + _milliseconds(message.deliver_at)
        parts = [_ANNOTATIONS, _compound(_MAP, len(at), 2), at, *parts]
    if values:
        properties = b"".join(values)
        if len(properties) > MAX_PROPERTY_BYTES // 2:
            return None  # perhaps too large for Service Bus, which `require_properties_that_fit` checks
        parts += (_APPLICATION_PROPERTIES, _compound(_MAP, len(properties), len(values)), properties)
    parts += (_DATA, _header(_BINARY, len(body)), body)
    return b"".join(parts)


@cache
def difference() -> str | None:
    """Fill one batch with `append` and one with the SDK. Return where the batches differ, or None if they do not."""
    theirs, ours = ServiceBusMessageBatch(), ServiceBusMessageBatch()
    try:
        for message in _SAMPLES:
            theirs.add_message(sdk_message(message))
            if not len(ours):
                ours.add_message(sdk_message(message))
            elif not append(ours, message):
                return "a message is left to the SDK"
        for what in ("_message", "_size", "_count"):
            if getattr(theirs, what) != getattr(ours, what):
                return f"{what} of a batch"
    except Exception as error:  # noqa: BLE001 - in another version of the SDK these attributes may be anything
        return repr(error)
    return None


def sdk_message(message: OutboundMessage) -> ServiceBusMessage:
    """Return a message as an object that the SDK sends."""
    return ServiceBusMessage(
        message.body,
        application_properties=dict(message.properties.items()),
        session_id=message.session_id,
        message_id=message.message_id,
        subject=message.subject,
        content_type=message.content_type,
        scheduled_enqueue_time_utc=message.deliver_at,
    )


def _header(kind: tuple[int, int], size: int) -> bytes:
    return bytes((kind[0], size)) if size <= _MOST else _pack_sized(kind[1], size)


def _compound(kind: tuple[int, int], size: int, count: int) -> bytes:
    # The written size includes the byte of the count. At exactly 255 bytes AMQP allows the short form, but
    # the SDK uses the long one, so this module does too.
    if size < _MOST and count <= _MOST:
        return bytes((kind[0], size + 1, count))
    return _pack_compound(kind[1], size + 4, count)


def _string(value: str) -> bytes:
    written = value.encode()
    size = len(written)
    return (_STRING_HEADS[size] if size <= _MOST else _pack_sized(_STRING[1], size)) + written


def _int(value: int) -> bytes:
    return _INTS.get(value) or _pack_int(_INT, value)


def _milliseconds(time: datetime) -> bytes:
    return _pack_milliseconds(int(timegm(time.utctimetuple()) * 1000 + time.microsecond / 1000))


_name = lru_cache(1024)(_string)  # cached, because most messages have the same subjects and property names


@lru_cache(64)
def _symbol(value: str) -> bytes:
    written = value.encode()
    return _header(_SYMBOL, len(written)) + written


# The encoders by the exact type of a value. A bool is an int in Python, but not in AMQP: it is left to the
# SDK.
_ENCODERS: dict[type, Callable[[Any], bytes]] = {str: _string, int: _int}

# The messages for which `difference` compares this encoder with the SDK's. Their sizes lie just below and
# above those at which the encoding changes from one byte for a size to four.
_SAMPLES = tuple(
    OutboundMessage(
        message_id=f"id-{size}",
        session_id="k-\u00e4\u20ac\U0001f600",
        subject="Renamed" if size else "",
        body=b"x" * size,
        properties={"negative": -5, "byte": 200, "int": 70_000, "text": "y" * size} if size else {},
        deliver_at=datetime(2026, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC) if size % 2 else None,
    )
    for size in (10, 0, 213, 214, 255, 256)
)
