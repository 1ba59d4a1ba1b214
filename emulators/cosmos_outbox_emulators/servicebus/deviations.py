"""
Deviations of the Service Bus emulator. Each deviation does something that Service Bus does not do, to prove that a verifier
notices the difference.

Most deviations are a subclass of a class of the engine with one method overridden. While such a deviation is in force, every entity
of that class is an object of the subclass. The engine contains no code for deviations.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from cosmos_outbox_emulators.active_deviation import Switch
from cosmos_outbox_emulators.servicebus.broker import Broker
from cosmos_outbox_emulators.servicebus.conditions import AmqpError
from cosmos_outbox_emulators.servicebus.entry import Entry, Receiver, Session
from cosmos_outbox_emulators.servicebus.message import Message
from cosmos_outbox_emulators.servicebus.queue import Outcome, Queue
from cosmos_outbox_emulators.servicebus.sessions import Sessions
from cosmos_outbox_emulators.servicebus.topic import Topic

_SHORT_WINDOW_S, _AHEAD_S = 1.0, 3600.0
_LARGE_BYTES = 100 * 1024 * 1024


class _Doubling(Topic):
    def _first_copies(self, messages: list[Message], now: float) -> list[Message]:
        return messages


class _Forgetful(Topic):
    def _first_copies(self, messages: list[Message], now: float) -> list[Message]:
        self._forget(now - _SHORT_WINDOW_S)
        return super()._first_copies(messages, now)


class _Hasty(Topic):
    def _schedule(self, message: Message, when: float) -> int:
        number = self._next_number()
        self._store(message, self._timers.now(), number)
        return number


class _Swallowing(Topic):
    @property
    def largest_message(self) -> int:
        return _LARGE_BYTES


class _Silent(Queue):
    def _dead_letter(self, entry: Entry, reason: str | None, description: str | None) -> None:
        super()._dead_letter(entry, None, None)


class _Uncounted(Queue):
    def unlock(self, entry: Entry, *, counted: bool) -> None:
        super().unlock(entry, counted=False)


class _Generous(Queue):
    """Confirms the settlement of a message whose lock is lost. Azure refuses such a settlement."""

    def settle(self, token: bytes, *wanted: Any, **changes: Any) -> None:
        with suppress(AmqpError):
            super().settle(token, *wanted, **changes)


class _Demoting(Queue):
    """
    Puts an abandoned message behind the other messages, with a new sequence number. On Azure, an abandoned message keeps its
    place.
    """

    def settle(self, token: bytes, outcome: Outcome, *reasons: Any, **changes: Any) -> None:
        entry = self.locked.get(token)
        if entry and outcome is Outcome.ABANDON:
            del self.entries[entry.sequence]
            entry.sequence = self.next_sequence()
            self.entries[entry.sequence] = entry
        super().settle(token, outcome, *reasons, **changes)


class _Disordered(Sessions):
    """Reverses the order of the remaining messages of a session when the lock of the session is lost."""

    def _release(self, session: Session, *, counted: bool) -> None:
        super()._release(session, counted=counted)
        if counted:
            session.ready.reverse()


class _Reversed(Sessions):
    """Delivers the messages of a session in reverse order, the newest message first."""

    def _hold(self, session: Session, receiver: Receiver) -> Session:
        session.ready = deque(sorted(session.ready, key=lambda entry: entry.sequence, reverse=True))
        return super()._hold(session, receiver)


class _Shared(Sessions):
    def accept(self, receiver: Receiver, session_id: str | None) -> Session | None:
        if session_id is not None:
            self._find_or_create(session_id).owner = None
        return super().accept(receiver, session_id)


class _Unrenewed(Sessions):
    """Confirms the renewal of a session lock, but lets the lock end at its old time. On Azure, the lock ends later."""

    def renew(self, session: Session) -> float:
        return session.locked_until + self._queue.lock_s


class _Endless(Sessions):
    def _expire(self, session: Session) -> None:
        pass


def _every(base: type, kind: type) -> Switch[Broker]:
    """
    Return a switch that turns every object of the class `base` into an object of its subclass `kind`, and back when the deviation
    ends.
    """

    def turn(entity: Topic | Queue, before: type, after: type) -> None:
        found: tuple[object, ...] = (entity, entity.sessions if isinstance(entity, Queue) else None)
        for one in found:
            if type(one) is before:
                one.__class__ = after

    def turn_all(broker: Broker, before: type, after: type) -> None:
        entities: tuple[Topic | Queue, ...] = (*broker.topics.values(), *broker.queues.values())
        for entity in entities:
            turn(entity, before, after)

    @contextmanager
    def switch(broker: Broker) -> Iterator[None]:
        turn_all(broker, base, kind)
        broker.made = lambda entity: turn(entity, base, kind)
        yield
        broker.made = None
        turn_all(broker, kind, base)

    return switch


@contextmanager
def _ahead(broker: Broker) -> Iterator[None]:
    broker.ahead_s += _AHEAD_S
    broker.timers.run_due()
    yield
    broker.ahead_s -= _AHEAD_S


DEVIATIONS: Mapping[str, Switch[Broker]] = {
    "duplicates-kept": _every(Topic, _Doubling),
    "duplicates-forgotten": _every(Topic, _Forgetful),
    "scheduled-at-once": _every(Topic, _Hasty),
    "large-messages": _every(Topic, _Swallowing),
    "dead-letters-silent": _every(Queue, _Silent),
    "deliveries-uncounted": _every(Queue, _Uncounted),
    "lost-locks-settle": _every(Queue, _Generous),
    "abandoned-last": _every(Queue, _Demoting),
    "session-disordered": _every(Sessions, _Disordered),
    "session-reversed": _every(Sessions, _Reversed),
    "session-shared": _every(Sessions, _Shared),
    "renewals-ignored": _every(Sessions, _Unrenewed),
    "session-endless": _every(Sessions, _Endless),
    "bus-ahead": _ahead,
}
