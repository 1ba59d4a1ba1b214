"""
MemorySubscription: a subscription in memory, which defines the behavior of the Subscription port.

It is for tests and simulations of programs that use this library. A test can make it lose locks and fail.
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
# How many seconds to wait beyond a deadline. A timer may fire a little early, and then the wait starts again. With
# virtual time, in which no time passes between two calls, it would start again for ever.
_EARLY_SECONDS = 0.001


FoundT = TypeVar("FoundT")


@dataclass(slots=True, eq=False)
class _Queue:
    """
    The messages of one session, and the receiver that has locked the session. Without sessions, there is one such queue
    for all messages and all receivers.
    """

    ready: deque[Message] = field(default_factory=deque)
    holders: list[MemorySession] = field(default_factory=list)


class MemorySubscription:
    """
    A subscription in memory, whose messages are received by session. One receiver at a time locks a session.

    Args:
        sessions: whether receivers lock whole sessions, not one message at a time. Defaults to True.
        lock_seconds: how long a lock lasts. Defaults to 60 s.
        max_deliveries: after how many deliveries a message is dead-lettered. Defaults to 10.
        trust_seconds: how long receivers believe that a lock lasts. Defaults to `lock_seconds`.

    Attributes:
        down: whether the broker refuses everything.
        dead_letters: the dead-lettered messages, each with the reason and its description.
        deferred: the deferred messages, by sequence number.
        settled: the settled messages, in order, each with its settlement.
        changed: an asyncio.Event that wakes the calls that wait for a message.
        confirms: a function that returns False for a settlement whose confirmation is lost. The settlement takes
            effect, but the receiver gets an error.
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
        Put a message at the end of its session, and return it with its sequence number. A message without a session id
        is dead-lettered if receivers lock sessions, as in Service Bus.
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
                # Move this session behind the other sessions, so that the next call accepts another one.
                self._queues[name] = self._queues.pop(name)
                return MemorySession(self, queue, name if self.with_sessions else None)
        return None

    # MemorySession calls the methods below.

    async def until(self, found: Callable[[], FoundT | None], seconds: float) -> FoundT | None:
        """Call `found` until it returns something, and return that. Return None if it returns nothing in time."""
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
        Make a message ready for its next delivery, or dead-letter it if it was delivered too often. If `counted` is
        True, the delivery count of the message grows by one.
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
    The Session port on a MemorySubscription: what a receiver has locked. If `id` is None, the subscription has no
    sessions. Then the receiver locks one message at a time, the first one as soon as it is accepted.
    """

    def __init__(self, subscription: MemorySubscription, queue: _Queue, session_id: str | None) -> None:
        self._subscription, self._queue, self.id = subscription, queue, session_id
        self._loop = asyncio.get_running_loop()
        self.message: Message | None = None  # the message that was delivered and not yet settled
        # whether `receive` still has to return the message that was locked when the session was accepted
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
        """Return the event loop's time at which the lock expires. It is infinite if nothing is locked."""
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
        End the lock. A message that was not settled is delivered again. If `counted` is True, its delivery count grows
        by one.
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
            raise LockLost("This receiver's lock has ended: accept the session again.")
