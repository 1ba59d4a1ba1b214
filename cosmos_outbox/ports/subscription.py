"""The subscription or queue that messages are received from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from cosmos_outbox.message_format import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Complete:
    """The message is done: the broker deletes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """
    The message is to be delivered again, before any later message of its session.

    after_seconds: how long the receiver keeps the message first. Defaults to 0.
    counted: whether that is a delivery, of which the broker allows a limited number; without sessions it always is one.
        Defaults to True.
    """

    after_seconds: float = 0.0
    counted: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """The message is moved to the dead-letter queue. Later messages of its session do not wait for it."""

    reason: str
    description: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Defer:
    """The message stays in the subscription, and is delivered only to a receiver that asks for its sequence number."""


Settlement = Complete | Retry | DeadLetter | Defer


class Session(Protocol):
    """
    A session that this receiver has locked; on an entity without sessions, a receiver of one message at a time.

    One task uses it, one call after another.
    """

    @property
    def id(self) -> str | None:
        """Return the session's id; None on an entity without sessions."""
        ...

    @property
    def trusted_until(self) -> float:
        """
        Return until when the lock is surely held, in the running loop's time; infinite while nothing is locked.

        On an entity without sessions it is the lock of the message that was received last.
        """
        ...

    async def receive(self, wait_seconds: float) -> Message | None:
        """
        Return the next message, or None if none came in time. Settle the message before it first.

        Raises:
            LockLost, SubscriptionUnavailable: as for each call below; the session is of no more use then.
        """
        ...

    async def renew(self) -> None:
        """Renew the lock; `trusted_until` grows."""
        ...

    async def settle(self, message: Message, settlement: Settlement) -> None:
        """
        Settle the message that was received last, and return when the broker confirmed that.

        After `Retry` the session is to be closed: what was delivered ahead must not be handled before the message. A retry
        that does not count is not settled at all: closing the session has the message delivered again.
        """
        ...

    async def close(self) -> None:
        """
        Give the session back at once. A message that is not settled is delivered again, and does not count as delivered.

        On an entity without sessions it counts: the broker has no other way to give a message back.
        """
        ...


class Subscription(Protocol):
    """
    A topic's subscription, or a queue; several programs may receive from it, and a session belongs to one of them at a time.
    """

    async def accept(self, wait_seconds: float) -> Session | None:
        """
        Lock the next session that has messages, whichever it is. Return None if there was none in time.

        Any number of calls may wait side by side. A cancelled call keeps no lock.

        Raises:
            SubscriptionUnavailable: the broker cannot be reached, or refuses.
        """
        ...
