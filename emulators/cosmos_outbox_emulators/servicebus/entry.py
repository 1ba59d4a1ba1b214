"""
A stored message (an entry) with its place in the queue, its lock and its delivery count, the session that it belongs to, and the
receiver that gets it.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from typing import Protocol

from cosmos_outbox_emulators.servicebus.conditions import AmqpError
from cosmos_outbox_emulators.servicebus.message import Message, encode_delivery
from cosmos_outbox_emulators.servicebus.timers import Timer

ACTIVE, DEFERRED, SCHEDULED = 0, 1, 2


class Receiver(Protocol):
    """
    The part of a receiver that a queue uses.

    `deliver` must lower `credit` by one, and must not call back into the queue.
    """

    credit: int
    receive_and_delete: bool
    container: object

    def deliver(self, entry: Entry, token: bytes) -> None: ...

    def grant(self, session: Session) -> None:
        """Give the receiver the session for which it waited."""

    def revoke(self, failure: AmqpError) -> None:
        """Close the receiver with this error, for example because its session lock is lost or its entity is deleted."""


class Entry:
    """A stored message in one queue. It is mutable: there is one object for each message, and only its queue changes it."""

    __slots__ = (
        "application_properties", "delivery_count", "enqueued_at", "enqueued_sequence", "expires_at", "locked_until",
        "message", "sequence", "session", "state", "token", "ttl_s",
    )  # fmt: skip

    def __init__(
        self, message: Message, sequence: int, enqueued_sequence: int | None, enqueued_at: float
    ) -> None:
        self.message = message
        self.sequence = sequence
        self.enqueued_sequence = enqueued_sequence
        self.enqueued_at = enqueued_at
        self.application_properties = message.application_properties
        self.delivery_count = 0
        self.ttl_s: float | None = None
        self.expires_at: float | None = None
        self.token: bytes | None = None
        self.locked_until: float | None = None
        self.session: Session | None = None
        self.state = ACTIVE

    def encode(self, token: bytes | None = None) -> bytes:
        return encode_delivery(
            self.message,
            application_properties=self.application_properties,
            delivery_count=self.delivery_count,
            ttl_s=self.ttl_s,
            enqueued_at=self.enqueued_at,
            sequence=self.sequence,
            enqueued_sequence=self.enqueued_sequence,
            locked_until=self.locked_until,
            state=self.state,
            token=token,
        )


class Session:
    """A session of a queue. It is mutable, and only the `Sessions` object of the queue changes it."""

    __slots__ = ("id", "locked", "locked_until", "owner", "ready", "state", "state_changed_at", "timer")

    def __init__(self, session_id: str) -> None:
        self.id = session_id
        self.ready: deque[Entry] = deque()
        self.locked: dict[bytes, Entry] = {}
        self.owner: Receiver | None = None
        self.locked_until = 0.0
        self.timer: Timer | None = None
        self.state: bytes | None = None
        self.state_changed_at = 0.0


def _sequence(entry: Entry) -> int:
    return entry.sequence


def put_in_order(ready: deque[Entry], entry: Entry) -> None:
    """
    Insert an entry in the order of sequence numbers. New messages belong at the end, and returned messages mostly at the front,
    so these two cases are checked first.
    """
    if not ready or entry.sequence > ready[-1].sequence:
        ready.append(entry)
    elif entry.sequence < ready[0].sequence:
        ready.appendleft(entry)
    else:
        insort(ready, entry, key=_sequence)
