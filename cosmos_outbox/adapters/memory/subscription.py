"""
MemorySubscription: a subscription in memory, which defines the behavior of the Subscription port.

It is for tests and simulations of programs that use this library: it loses locks and fails on demand.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from math import inf
from typing import Any, TypeVar

from cosmos_outbox.domain.events import utc_now
from cosmos_outbox.errors import LockLost, SubscriptionUnavailable
from cosmos_outbox.message_format import Message, OutboundMessage
from cosmos_outbox.ports import DeadLetter, Defer, Retry, Settlement

MAX_DELIVERIES = "MaxDeliveryCountExceeded"
# How many seconds to wait beyond a deadline. A timer may fire this early, and an event loop on virtual time
# would then spin for ever.
_EARLY_SECONDS = 0.001


FoundT = TypeVar("FoundT")


@dataclass(slots=True, eq=False)
class _Queue:
    """
    The messages of one session, and the receiver that has locked it. On an entity without sessions, one queue has all
    messages and all receivers.
    """

    ready: deque[Message] = field(default_factory=deque)
    holders: list[MemorySession] = field(default_factory=list)


class MemorySubscription:
    """
    Messages by session. Each session is locked by one receiver at a time.

    Args:
        sessions: whether receivers lock sessions. Defaults to True; else they lock one message at a time.
        lock_seconds: how long a lock lasts. Defaults to 60 s.
        max_deliveries: after so many deliveries a message is dead-lettered. Defaults to 10.
        trust_seconds: how long receivers believe that a lock lasts. Defaults to `lock_seconds`.

    Attributes:
        down: whether the broker refuses everything.
        dead_letters: the dead-lettered messages, each with the reason and its description.
        deferred: the deferred messages, by sequence number.
        settled: the settled messages, in order, each with its settlement.
        changed: an event that wakes the calls that wait for a message.
        confirms: returns whether a settlement is confirmed to the receiver. A settlement that is not confirmed takes
            effect all the same.
    """

    def __init__(
        self,
        *,
        sessions: bool = True,
        lock_seconds: float = 60.0,
        max_deliveries: int = 10,
        trust_seconds: float | None = None,
    ) -> None:
        self.with_sessions, self.lock_seconds, self._max_deliveries = sessions, lock_seconds, max_deliveries
        self.trust_seconds = lock_seconds if trust_seconds is None else trust_seconds
        self._queues: dict[str, _Queue] = {}
        self._last_number = 0
        self.changed = asyncio.Event()
        self.down = False
        self.dead_letters: list[tuple[Message, str, str]] = []
        self.deferred: dict[int, Message] = {}
        self.settled: list[tuple[Message, Settlement]] = []
        self.confirms: Callable[[Message, Settlement], bool] = lambda message, settlement: True

    def deliver(self, message: Message | OutboundMessage, **said: Any) -> Message:
        """
        Put a message at the end of its session, and return it as it is delivered. A message without a session is
        dead-lettered, as Service Bus does.
        """
        self._last_number += 1
        if isinstance(message, OutboundMessage):
            known = (one.name for one in fields(Message) if hasattr(message, one.name))
            message = Message(**{name: getattr(message, name) for name in known})
        message = replace(message, **said)
        enqueued_at = message.enqueued_at or utc_now()
        message = replace(message, sequence_number=self._last_number, enqueued_at=enqueued_at)
        if self.with_sessions and message.session_id is None:
            self.dead_letters.append((message, "Session ID is null.", ""))
            return message
        self._queue_of(message).ready.append(message)
        self.changed.set()
        return message

    @property
    def waiting(self) -> tuple[Message, ...]:
        """Return the messages that are neither settled nor deferred nor dead-lettered."""
        return tuple(
            message
            for queue in self._queues.values()
            for message in (*(h.message for h in queue.holders if h.message is not None), *queue.ready)
        )

    def lose_lock(self, session_id: str) -> None:
        """Take a session from the receiver that locked it, as if the lock had expired."""
        for holder in [*self._queues[session_id].holders]:
            holder.give_back(counted=True)

    async def accept(self, wait_seconds: float) -> MemorySession | None:
        return await self.until(self._available, wait_seconds)

    def _available(self) -> MemorySession | None:
        for name, queue in self._queues.items():
            if queue.ready and not (self.with_sessions and queue.holders):
                # Move this session behind the others, so that the next call prefers them.
                self._queues[name] = self._queues.pop(name)
                return MemorySession(self, queue, name if self.with_sessions else None)
        return None

    # The methods below are called by the sessions.

    async def until(self, found: Callable[[], FoundT | None], seconds: float) -> FoundT | None:
        """Wait until `found` returns something, and return that. Return None if it returns nothing in time."""
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + seconds
        while True:
            self.changed.clear()
            self.check()
            if (one := found()) is not None or loop.time() >= ends_at:
                return one
            locks = (h.expires_at for queue in self._queues.values() for h in queue.holders)
            with suppress(TimeoutError):
                async with asyncio.timeout_at(min([ends_at, *locks]) + _EARLY_SECONDS):
                    await self.changed.wait()

    def check(self) -> None:
        """
        Take back each lock that has expired.

        Raises:
            SubscriptionUnavailable: the broker is down.
        """
        if self.down:
            raise SubscriptionUnavailable
        now = asyncio.get_running_loop().time()
        for queue in self._queues.values():
            for holder in [*queue.holders]:
                if holder.expires_at <= now:
                    holder.give_back(counted=True)

    def put_back(self, message: Message, *, counted: bool) -> None:
        """
        Deliver a message again, or dead-letter it if it was delivered too often. `counted` says whether the last
        delivery counts.
        """
        again = replace(message, delivery_count=message.delivery_count + counted)
        if again.delivery_count >= self._max_deliveries:
            self.dead_letters.append((again, MAX_DELIVERIES, ""))
        else:
            self._queue_of(message).ready.appendleft(again)
        self.changed.set()

    def _queue_of(self, message: Message) -> _Queue:
        return self._queues.setdefault(message.session_id or "" if self.with_sessions else "", _Queue())


class MemorySession:
    """
    The Session port on a MemorySubscription. A session without an id locks one message at a time; it locks the first
    one when it is accepted.
    """

    def __init__(self, subscription: MemorySubscription, queue: _Queue, session_id: str | None) -> None:
        self._subscription, self._queue, self.id = subscription, queue, session_id
        self._loop = asyncio.get_running_loop()
        self.message: Message | None = None  # the message that was delivered and is not settled
        # a message was delivered when the session was accepted, and `receive` has not returned it yet
        self._unread = False
        queue.holders.append(self)
        self._locked_at = self._loop.time()
        if session_id is None:
            self._take()
            self._unread = True

    @property
    def trusted_until(self) -> float:
        return self.expires_at - self._subscription.lock_seconds + self._subscription.trust_seconds

    @property
    def expires_at(self) -> float:
        """Return when the broker takes the lock back."""
        locked = self.id is not None or self.message is not None
        return self._locked_at + self._subscription.lock_seconds if locked else inf

    async def receive(self, wait_seconds: float) -> Message | None:
        self._require_lock()
        if self._unread:
            self._unread = False
            return self.message
        await self._subscription.until(lambda: self._queue.ready or None, wait_seconds)
        self._require_lock()
        return self._take() if self._queue.ready else None

    async def renew(self) -> None:
        self._require_lock()
        self._locked_at = self._loop.time()

    async def settle(self, message: Message, settlement: Settlement) -> None:
        self._require_lock()
        if self.message is None:
            raise LockLost("The message is not locked.")
        message, self.message = self.message, None
        self._subscription.settled.append((message, settlement))
        match settlement:
            case Retry():
                self._subscription.put_back(message, counted=True)
            case DeadLetter(reason=reason, description=description):
                self._subscription.dead_letters.append((message, reason, description))
            case Defer():
                self._subscription.deferred[message.sequence_number] = message
        if not self._subscription.confirms(message, settlement):
            raise SubscriptionUnavailable("The broker did not confirm the settlement.")

    async def close(self) -> None:
        if self in self._queue.holders:
            self.give_back(counted=self.id is None)

    def give_back(self, *, counted: bool) -> None:
        """
        End the lock. A message that is not settled is delivered again; `counted` says whether the delivery that ends
        counts.
        """
        self._queue.holders.remove(self)
        message, self.message = self.message, None
        if message is not None:
            self._subscription.put_back(message, counted=counted)
        self._subscription.changed.set()

    def _take(self) -> Message:
        self.message = self._queue.ready.popleft()
        if self.id is None:
            self._locked_at = self._loop.time()
        return self.message

    def _require_lock(self) -> None:
        self._subscription.check()
        if self not in self._queue.holders:
            raise LockLost("Another receiver holds the session, or none does.")
