"""
The sessions of one queue: which receiver holds each session, which session is available next, and the state of each session.
`queue.py` delivers the messages of a session.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Protocol

from cosmos_outbox_emulators.servicebus.conditions import AmqpError, Condition
from cosmos_outbox_emulators.servicebus.entry import Entry, Receiver, Session, put_in_order
from cosmos_outbox_emulators.servicebus.timers import Timers


class Delivery(Protocol):
    """The part of a queue that its sessions use."""

    @property
    def lock_s(self) -> float: ...

    def pump(self, receiver: Receiver, session: Session | None = None) -> None: ...

    def unlock(self, entry: Entry, *, counted: bool) -> None: ...


class Sessions:
    """The sessions of one queue. A session exists while it has messages, a state or a holder, and at most one receiver holds it."""

    def __init__(self, queue: Delivery, timers: Timers) -> None:
        self._queue = queue
        self._timers = timers
        self._sessions: dict[str, Session] = {}
        self._available: OrderedDict[str, Session] = OrderedDict()
        self._waiting: deque[Receiver] = deque()
        self._held: dict[int, Session] = {}
        self.on_state: Callable[[Session], None] | None = None

    @property
    def count(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._sessions.values())

    def _find_or_create(self, session_id: str) -> Session:
        session = self._sessions.get(session_id)
        if session is None:
            session = self._sessions[session_id] = Session(session_id)
        return session

    # Messages

    def add(self, entry: Entry) -> None:
        session = self._find_or_create(entry.message.session_id or "")
        put_in_order(session.ready, entry)
        if session.owner:
            self._queue.pump(session.owner, session)
            return
        self._available[session.id] = session
        while self._waiting and self._available:
            receiver = self._waiting.popleft()
            receiver.grant(self._hold(self._available.popitem(last=False)[1], receiver))

    def ready_of(self, entry: Entry) -> deque[Entry]:
        return self._find_or_create(entry.message.session_id or "").ready

    def shrink(self, entry: Entry) -> None:
        """Forget the session of an expired message, unless the session has other messages, a lock or a state."""
        session = self._sessions.get(entry.message.session_id or "")
        if session and not session.ready:
            self._available.pop(session.id, None)
            self._forget_if_empty(session)

    def _forget_if_empty(self, session: Session) -> None:
        if not session.ready and session.owner is None and session.state is None:
            self._sessions.pop(session.id, None)

    # Holding

    def accept(self, receiver: Receiver, session_id: str | None) -> Session | None:
        """
        Lock a session for a receiver: the session with this id, or the next available session. If no session is available, return
        None. The receiver then waits until its `grant` is called.
        """
        if session_id is None:
            if not self._available:
                self._waiting.append(receiver)
                return None
            return self._hold(self._available.popitem(last=False)[1], receiver)
        session = self._find_or_create(session_id)
        if session.owner:
            raise AmqpError(
                Condition.SESSION_CANNOT_BE_LOCKED,
                f"The requested session '{session_id}' cannot be accepted. It may be locked by another receiver.",
            )
        self._available.pop(session_id, None)
        return self._hold(session, receiver)

    def stop_waiting(self, receiver: Receiver) -> None:
        if receiver in self._waiting:
            self._waiting.remove(receiver)

    def _hold(self, session: Session, receiver: Receiver) -> Session:
        session.owner = receiver
        session.locked_until = self._timers.now() + self._queue.lock_s
        session.timer = self._timers.at(session.locked_until, lambda: self._expire(session))
        self._held[id(receiver)] = session
        return session

    def _expire(self, session: Session) -> None:
        if session.owner is None:
            return
        if session.locked_until > self._timers.now():
            session.timer = self._timers.at(session.locked_until, lambda: self._expire(session))
            return
        owner = session.owner
        self._release(session, counted=True)
        owner.revoke(
            AmqpError(
                Condition.SESSION_LOCK_LOST,
                "The session lock has expired on the MessageSession. Accept a new MessageSession.",
            )
        )

    def abandon_by(self, receiver: Receiver) -> None:
        """
        Release the session of a receiver that has closed. The messages that the receiver did not settle do not count as
        delivered.
        """
        self.stop_waiting(receiver)
        session = self._held.get(id(receiver))
        if session:
            self._release(session, counted=False)

    def _release(self, session: Session, *, counted: bool) -> None:
        if session.timer:
            session.timer.cancel()
        self._held.pop(id(session.owner), None)
        # The session has no owner now, but is not available yet. So no message of the session is delivered before all of them are
        # back in the queue.
        session.owner, session.timer = None, None
        waiting, self._waiting = self._waiting, deque()
        for entry in sorted(session.locked.values(), key=lambda entry: entry.sequence, reverse=True):
            self._queue.unlock(entry, counted=counted)
        self._waiting = waiting
        if not session.ready:
            self._forget_if_empty(session)
            return
        self._available[session.id] = session
        self._available.move_to_end(session.id)
        while self._waiting and self._available:
            receiver = self._waiting.popleft()
            receiver.grant(self._hold(self._available.popitem(last=False)[1], receiver))

    def get(self, session_id: str, container: object) -> Session:
        """Return the session with this id. Refuse the request if no receiver of this connection holds the session's lock."""
        session = self._sessions.get(session_id)
        if (
            session is None
            or session.owner is None
            or session.owner.container is not container
            or session.locked_until <= self._timers.now()
        ):
            raise AmqpError(
                Condition.SESSION_LOCK_LOST, "The session lock has expired on the MessageSession."
            )
        return session

    def renew(self, session: Session) -> float:
        session.locked_until = self._timers.now() + self._queue.lock_s
        for entry in session.locked.values():
            entry.locked_until = session.locked_until
        return session.locked_until

    def set_state(self, session: Session, state: bytes | None) -> None:
        session.state = state or None
        session.state_changed_at = self._timers.now()
        if self.on_state:
            self.on_state(session)

    def restore_state(self, session_id: str, state: bytes, changed_at: float) -> None:
        session = self._find_or_create(session_id)
        session.state, session.state_changed_at = state, changed_at

    def ids(self, changed_after: float | None) -> list[str]:
        """
        Return the ids of all sessions with messages or a state. If `changed_after` is given, return only sessions whose state
        changed after this time.
        """
        if changed_after is None:
            return sorted(
                session.id
                for session in self._sessions.values()
                if session.ready or session.locked or session.state is not None
            )
        return sorted(
            s.id
            for s in self._sessions.values()
            if s.state is not None and s.state_changed_at > changed_after
        )
