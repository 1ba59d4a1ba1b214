"""
The interface (port) to a subscription or queue from which messages are received. `adapters/servicebus/subscription.py`
implements it on the SDK.
"""

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

    after_seconds: how long the receiver keeps the message before it gives the message back. Defaults to 0.
    counted: whether the broker counts this delivery against the subscription's maximum delivery count. Without sessions, it always does.
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
    A session that this receiver has locked. On an entity without sessions, it is a receiver of one message at a time.

    Only one task uses the object, with one call after another.
    """

    @property
    def id(self) -> str | None:
        """Return the session's id; None on an entity without sessions."""
        ...

    @property
    def trusted_until(self) -> float:
        """
        Return until when the lock is surely held, in the running loop's time; infinite while nothing is locked.

        On a subscription or queue without sessions, the lock is that of the message that was received last.
        """
        ...

    async def receive(self, wait_seconds: float) -> Message | None:
        """
        Return the next message, or None if none came in time. The caller has to settle the previous message first.

        Raises:
            LockLost, SubscriptionUnavailable: the session can no longer be used. `renew` and `settle` raise these errors as well.
        """
        ...

    async def renew(self) -> None:
        """Renew the lock, so that the receiver may use it for longer (`trusted_until`)."""
        ...

    async def settle(self, message: Message, settlement: Settlement) -> None:
        """
        Settle the message that was received last, and return when the broker confirmed that.

        After a `Retry`, the caller has to close the session, because messages that were delivered ahead must not be handled before this
        one. A `Retry` that is not `counted` is not settled at all: the broker delivers the message again when the session is closed.
        """
        ...

    async def close(self) -> None:
        """
        Give the session back at once. A message that is not settled is delivered again, without counting as delivered.

        On an entity without sessions it counts as delivered, because the broker has no other way to take a message back.
        """
        ...


class Subscription(Protocol):
    """
    A topic's subscription, or a queue. Several programs may receive from it, and one of them at a time has a session.
    """

    async def accept(self, wait_seconds: float) -> Session | None:
        """
        Lock any session that has messages, and return it. Return None if no session had messages in time.

        Any number of calls may wait at the same time. A cancelled call keeps no lock.

        Raises:
            SubscriptionUnavailable: the broker cannot be reached, or refuses.
        """
        ...
