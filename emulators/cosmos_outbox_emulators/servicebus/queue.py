"""
A queue, a subscription or a dead-letter queue: peek-lock delivery, settlement, deferral, expiry and dead-lettering.

Duplicates are dropped before they come here, in `topic.py`.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from random import Random
from typing import Any

from cosmos_outbox_emulators.servicebus.conditions import AmqpError, Condition
from cosmos_outbox_emulators.servicebus.config import QueueConfig
from cosmos_outbox_emulators.servicebus.entry import (
    ACTIVE,
    DEFERRED,
    SCHEDULED,
    Entry,
    Receiver,
    Session,
    put_in_order,
)
from cosmos_outbox_emulators.servicebus.message import MAX_UINT, Message, with_application_properties
from cosmos_outbox_emulators.servicebus.sessions import Sessions
from cosmos_outbox_emulators.servicebus.timers import Timers

_LOCK_LOST = (
    "The lock supplied is invalid. Either the lock expired, or the message has already been removed from the queue, "
    "or was received by a different receiver instance."
)


class Outcome(StrEnum):
    COMPLETE = "completed"
    ABANDON = "abandoned"
    RELEASE = "released"
    DEFER = "defered"  # as Service Bus spells it on the wire
    DEAD_LETTER = "suspended"


class Queue:
    """The messages of a queue or a subscription. Every entry is in exactly one place: ready, locked under a token, or deferred."""

    def __init__(
        self,
        path: str,
        config: QueueConfig,
        *,
        timers: Timers,
        random: Random,
        dead_letters: Queue | None = None,
    ) -> None:
        self.path = path
        self.config = config
        self.dead_letters = dead_letters
        self.completed = 0
        self.disabled = False
        self.sessions = Sessions(self, timers) if config.requires_session else None
        self.receivers: deque[Receiver] = deque()
        self.entries: dict[int, Entry] = {}
        self.locked: dict[bytes, Entry] = {}
        self._deferred: dict[int, Entry] = {}
        self._scheduled: dict[int, Entry] = {}
        self._ready: deque[Entry] = deque()
        self._last_sequence = 0
        self._timers = timers
        self._random = random
        self._lock_expiry: list[tuple[float, bytes]] = []
        self._lock_timer_set = False
        self._expiring: list[tuple[float, int]] = []
        self._expiry_timer_at: float | None = None

    @property
    def active(self) -> int:
        return len(self.entries)

    @property
    def size(self) -> int:
        """Return the size of all bodies and properties in the queue, in bytes."""
        messages = [entry.message for entry in self.entries.values()]
        return sum(
            len(item.body) + len(item.application_properties) + len(item.properties) for item in messages
        )

    @property
    def lock_s(self) -> float:
        return self.config.lock_s

    def next_sequence(self) -> int:
        self._last_sequence += 1
        return self._last_sequence

    # Storing

    def show_scheduled(self, message: Message, number: int, when: float) -> None:
        """Let clients that peek at the queue find a scheduled message. The topic keeps the message itself until its time."""
        entry = self._scheduled[number] = Entry(message, number, None, when)
        entry.state = SCHEDULED

    def hide_scheduled(self, number: int) -> None:
        self._scheduled.pop(number, None)

    def put(self, message: Message, now: float, enqueued_sequence: int | None = None) -> None:
        entry = Entry(message, self.next_sequence(), enqueued_sequence, now)
        if self.sessions and message.session_id is None:
            self._dead_letter(
                entry,
                "Session ID is null.",
                "Session enabled entity doesn't allow a message whose session identifier is null.",
            )
            return
        limits = [ttl for ttl in (message.ttl_s, self.config.ttl_s) if ttl is not None]
        if limits:
            entry.ttl_s = min(limits)
            entry.expires_at = now + entry.ttl_s
            self._watch_expiry(entry)
        self._store(entry)

    def _store(self, entry: Entry) -> None:
        self.entries[entry.sequence] = entry
        self._make_ready(entry)

    def _make_ready(self, entry: Entry) -> None:
        if self.sessions:
            self.sessions.add(entry)
            return
        put_in_order(self._ready, entry)
        if self.receivers:
            self._offer()

    def _offer(self) -> None:
        for _ in range(len(self.receivers)):
            if not self._ready:
                return
            receiver = self.receivers[0]
            self.receivers.rotate(-1)
            self.pump(receiver)

    # Delivering

    def attach(self, receiver: Receiver) -> None:
        self.receivers.append(receiver)

    def detach(self, receiver: Receiver) -> None:
        """
        Forget a receiver. Messages that it has locked stay locked until their locks expire. Only messages of a session are
        released at once.
        """
        if self.sessions:
            self.sessions.abandon_by(receiver)
        elif receiver in self.receivers:
            self.receivers.remove(receiver)

    def pump(self, receiver: Receiver, session: Session | None = None) -> None:
        """Deliver ready messages to a receiver, as many as its credit allows."""
        ready = session.ready if session else self._ready
        if not ready or receiver.credit <= 0:
            return
        now = self._timers.now()
        while receiver.credit > 0 and ready:
            entry = ready.popleft()
            if self._expire(entry, now):
                continue
            receiver.deliver(entry, self._take(entry, receiver.receive_and_delete, session, now))

    def _take(self, entry: Entry, receive_and_delete: bool, session: Session | None, now: float) -> bytes:
        """Lock an entry, or delete it in receive-and-delete mode, and return its lock token."""
        token = self._random.getrandbits(128).to_bytes(16, "little")
        if receive_and_delete:
            del self.entries[entry.sequence]
            self.completed += 1
        else:
            self.lock(entry, token, session, now)
        return token

    def lock(self, entry: Entry, token: bytes, session: Session | None, now: float) -> None:
        entry.token = token
        self.locked[token] = entry
        if session:
            entry.session = session
            entry.locked_until = session.locked_until
            session.locked[token] = entry
            return
        entry.locked_until = now + self.lock_s
        heapq.heappush(self._lock_expiry, (entry.locked_until, token))
        if not self._lock_timer_set:
            self._lock_timer_set = True
            self._timers.at(entry.locked_until, self._expire_locks)

    def _expire_locks(self) -> None:
        now = self._timers.now()
        waiting = self._lock_expiry
        while waiting and waiting[0][0] <= now:
            token = heapq.heappop(waiting)[1]
            entry = self.locked.get(token)
            if entry is None or entry.locked_until is None:
                continue
            if entry.locked_until <= now:
                self.unlock(entry, counted=True)
            else:  # the lock was renewed
                heapq.heappush(waiting, (entry.locked_until, token))
        self._lock_timer_set = bool(waiting)
        if waiting:
            self._timers.at(waiting[0][0], self._expire_locks)

    def renew(self, token: bytes) -> float:
        entry = self._require_locked(token)
        if entry.session:
            raise AmqpError(
                Condition.NOT_ALLOWED, "A session's message has no lock of its own: renew the session."
            )
        entry.locked_until = self._timers.now() + self.lock_s
        return entry.locked_until

    def _require_locked(self, token: bytes) -> Entry:
        entry = self.locked.get(token)
        if entry is None or (entry.locked_until or 0) <= self._timers.now():
            raise AmqpError(
                Condition.SESSION_LOCK_LOST if self.sessions else Condition.MESSAGE_LOCK_LOST, _LOCK_LOST
            )
        return entry

    # Settling

    def settle(
        self,
        token: bytes,
        outcome: Outcome,
        reason: str | None = None,
        description: str | None = None,
        *,
        changes: Mapping[str, Any] | None = None,
    ) -> None:
        """
        Settle a locked message with this outcome.

        Args:
            changes: Application properties that an abandoned, deferred or dead-lettered message has from then on.

        Raises:
            AmqpError: the lock is lost; nothing was changed.
        """
        entry = self._require_locked(token)
        if outcome is Outcome.COMPLETE:
            self._forget_lock(entry)
            del self.entries[entry.sequence]
            self.completed += 1
            return
        if outcome is Outcome.DEAD_LETTER and self.dead_letters is None:
            raise AmqpError(
                Condition.NOT_ALLOWED, "A message cannot be dead-lettered from a dead-letter queue."
            )
        if changes:
            entry.application_properties = with_application_properties(
                entry.application_properties, dict(changes)
            )
        if outcome is Outcome.DEFER:
            entry.state = DEFERRED
            self.unlock(entry, counted=True)
        elif outcome is Outcome.DEAD_LETTER:
            self._forget_lock(entry)
            del self.entries[entry.sequence]
            self._dead_letter(entry, reason, description)
        else:
            self.unlock(entry, counted=outcome is Outcome.ABANDON)

    def _forget_lock(self, entry: Entry) -> None:
        if entry.token is not None:
            del self.locked[entry.token]
            if entry.session:
                del entry.session.locked[entry.token]
        entry.token = entry.locked_until = entry.session = None

    def unlock(self, entry: Entry, *, counted: bool) -> None:
        """
        Return a locked entry to where it was before, ready or deferred. Dead-letter it if it was delivered too often.

        `counted` says whether its last delivery counts.
        """
        self._forget_lock(entry)
        if counted and self.dead_letters:  # deliveries from a dead-letter queue are not counted
            entry.delivery_count += 1
            if entry.delivery_count >= self.config.max_delivery_count:
                del self.entries[entry.sequence]
                self._dead_letter(
                    entry,
                    "MaxDeliveryCountExceeded",
                    f"Message could not be consumed after {entry.delivery_count} delivery attempts.",
                )
                return
        if entry.state == DEFERRED:
            self._defer(entry)
        elif not self._expire(entry, self._timers.now()):
            self._make_ready(entry)

    def _defer(self, entry: Entry) -> None:
        entry.state = DEFERRED
        self._deferred[entry.sequence] = entry

    def _dead_letter(self, entry: Entry, reason: str | None, description: str | None) -> None:
        if self.dead_letters is None:
            return
        extra = {"DeadLetterReason": reason, "DeadLetterErrorDescription": description}
        self.dead_letters.take_in(entry, {key: value for key, value in extra.items() if value is not None})

    def take_in(self, entry: Entry, extra: dict[str, str]) -> None:
        """
        Store an entry that another queue has dead-lettered, with the reason. In this dead-letter queue, the entry never expires.
        """
        entry.state = ACTIVE
        entry.ttl_s, entry.expires_at = MAX_UINT / 1000, None
        if extra:
            entry.application_properties = with_application_properties(entry.application_properties, extra)
        self._store(entry)

    # Expiring

    def _watch_expiry(self, entry: Entry) -> None:
        if entry.expires_at is None:
            return
        heapq.heappush(self._expiring, (entry.expires_at, entry.sequence))
        if len(self._expiring) > 2 * len(self.entries) + 1024:
            # Remove completed messages from the heap. Otherwise messages with a long time to live would fill the heap.
            self._expiring = [
                item for item in self._expiring if item[1] in self.entries or item[1] == entry.sequence
            ]
            heapq.heapify(self._expiring)
        if self._expiry_timer_at is None or entry.expires_at < self._expiry_timer_at:
            self._expiry_timer_at = entry.expires_at
            self._timers.at(entry.expires_at, self._expire_due)

    def _expire_due(self) -> None:
        now = self._timers.now()
        while self._expiring and self._expiring[0][0] <= now:
            entry = self.entries.get(heapq.heappop(self._expiring)[1])
            # A locked message is checked when it is unlocked. A deferred message expires only when a client asks for it.
            if entry is None or entry.token is not None or entry.state == DEFERRED:
                continue
            ready = self.sessions.ready_of(entry) if self.sessions else self._ready
            ready.remove(entry)
            self._expire(entry, now)
            if self.sessions:
                self.sessions.shrink(entry)
        self._expiry_timer_at = self._expiring[0][0] if self._expiring else None
        if self._expiry_timer_at is not None:
            self._timers.at(self._expiry_timer_at, self._expire_due)

    def _expire(self, entry: Entry, now: float) -> bool:
        if entry.expires_at is None or entry.expires_at > now:
            return False
        del self.entries[entry.sequence]
        if self.config.dead_letter_on_expiration:
            self._dead_letter(entry, "TTLExpiredException", "The message expired and was dead lettered.")
        return True

    def _expire_deferred(self, sequence: int) -> None:
        """Expire a deferred message if its time to live is over. This is called only when a client asks for the message."""
        entry = self._deferred.get(sequence)
        if entry and self._expire(entry, self._timers.now()):
            del self._deferred[sequence]

    # These methods peek at messages, or receive messages by their sequence numbers.

    def peek(self, from_sequence: int, count: int, session_id: str | None) -> Iterator[Entry]:
        entries: Iterable[Entry] = self.entries.values()
        # In a dead-letter queue, which has no dead-letter queue itself, messages keep their sequence numbers but arrive in any order.
        if self.dead_letters is None:
            entries = sorted(entries, key=lambda entry: entry.sequence)
        for entry in heapq.merge(entries, self._scheduled.values(), key=lambda entry: entry.sequence):
            if count <= 0:
                return
            wanted = session_id is None or entry.message.session_id == session_id
            if wanted and entry.sequence >= from_sequence:
                count -= 1
                yield entry

    def receive_deferred(
        self, sequences: list[int], *, session: Session | None, receive_and_delete: bool
    ) -> list[tuple[bytes, Entry]]:
        """Lock deferred messages by their sequence numbers, and return them. If one of them is missing, lock none."""
        for sequence in sequences:
            self._expire_deferred(sequence)
        entries = [self._deferred.get(sequence) for sequence in sequences]
        found = [entry for entry in entries if entry is not None]
        if len(found) < len(entries) or (session and any(e.message.session_id != session.id for e in found)):
            raise AmqpError(
                Condition.MESSAGE_NOT_FOUND,
                "Failed to lock one or more specified messages. The message does not exist.",
            )
        now, out = self._timers.now(), []
        for entry in found:
            del self._deferred[entry.sequence]
            out.append((self._take(entry, receive_and_delete, session, now), entry))
        return out

    # These methods restore data that was saved before a restart.

    @property
    def last_sequence(self) -> int:
        return self._last_sequence

    def restore(self, entries: Iterable[Entry], last_sequence: int) -> None:
        """Take over the entries that were saved before a restart. Entries that were locked are ready again."""
        self._last_sequence = last_sequence
        for entry in entries:
            self.entries[entry.sequence] = entry
            self._watch_expiry(entry)
            if entry.state == DEFERRED:
                self._defer(entry)
            else:
                self._make_ready(entry)
