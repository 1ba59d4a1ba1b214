"""The lines of the file in which the subscriber records each message that it received, in order of receipt."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedMessage:
    """The record of one delivery of a message. If the same message is delivered twice, it has two records."""

    message_id: str
    session_id: str
    subject: str
    entity_version: int | None
    sequence: int | None
    sequence_number: int  # from the broker: the order in which it accepted messages
    enqueued_at: str | None
    created_at: str | None  # when the event was created, by the API's clock
    received_ns: int  # wall clock, nanoseconds since 1970


def to_line(message: ReceivedMessage) -> str:
    """Return what is recorded of a received message, as a line of JSON."""
    return json.dumps(asdict(message), separators=(",", ":")) + "\n"
