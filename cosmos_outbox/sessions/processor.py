"""
SessionProcessor: receives the messages of a subscription or queue, session by session, and hands them to a handler. `slots.py` decides how
many sessions are handled at once, and `held_session.py` for how long a session is kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import cast

from cosmos_outbox import records
from cosmos_outbox.errors import LockLost
from cosmos_outbox.event_loop import end
from cosmos_outbox.ports import Session, Subscription
from cosmos_outbox.sessions.held_session import HeldSession, SessionEnd, SessionHandler
from cosmos_outbox.sessions.slots import SessionOptions, Slots

_ACCEPT_SECONDS = 20.0  # how long one call to the broker waits for a session that has messages
# How long a call of `accept` waits until the broker has answered for the first time. A short wait shows a silent broker soon.
_FIRST_ACCEPT_SECONDS = 1.0
# A call first opens its link, which takes half a second, or 2 s on a busy machine. After this time the call surely waits for a session.
_OPENING_SECONDS = 4.0
_GROWTH = 3  # when a call of `accept` finds a session, this many more calls may wait at once
# How long an accepted session waits for a slot: 2 s plus the time that the last message took, of which at
# most 10 s count. Then the session is given back, because no other process can handle it while this process
# has its lock.
_AHEAD_SECONDS, _MOST_MORE_SECONDS = 2.0, 10.0
_LOOK_AHEAD_SECONDS = 0.5  # how far ahead the number of free slots is predicted at most
# For at most this many sessions with a failed message, this process remembers when the next attempt is due.
_MOST_TROUBLED = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStatus:
    """
    A session whose lock a processor has, for health checks and status pages.

    messages: how many messages were settled since the session was accepted.
    handling_seconds: for how long the current message has been handled; None if no message is being handled.
    """

    session: str | None
    messages: int
    handling_seconds: float | None


class SessionProcessor:
    """
    Hand every message to a handler: one at a time for each session, in order.

        async def handler(message: Message, session: HeldSession) -> Settlement | None:
            print(message.body)             # None completes the message; or return Retry(...), DeadLetter(...), Defer()

        processor = SessionProcessor(subscription, handler)   # MemorySubscription, or ServiceBusSubscription
        await processor.run()                                 # until `processor.stop()` is called

    Args:
        subscription: where messages are received.
        handler: awaited with each message. An exception has the message delivered again.
        options: see `SessionOptions`.
        hooks: called with a record of everything that happens; must not block.
    """

    def __init__(
        self,
        subscription: Subscription,
        handler: SessionHandler,
        options: SessionOptions | None = None,
        *,
        hooks: Iterable[records.Hook] = (records.log_hook,),
    ) -> None:
        self._subscription, self._handler = subscription, handler
        self._options = options or SessionOptions()
        self._notify = records.guard(*hooks)
        self._stopping, self._changed = asyncio.Event(), asyncio.Event()
        # By the id of each session whose last message failed: when the next attempt is due.
        self._due: dict[str | None, float] = {}
        # The calls that ask the broker for a session, each with the time since when it waits.
        self._accepting: dict[asyncio.Task[None], float] = {}
        self._serving: dict[asyncio.Task[None], HeldSession] = {}
        self._slots = Slots(self._options, self._serving.values(), freed=self._changed.set)
        # How many calls may wait for a session at the same time. At the start all slots are free, so there may be a call for each slot.
        self._wanted = self._options.max_concurrent_sessions
        self._found_in = 0.0  # how many seconds `accept` took when it last found a session
        self._handled_in = 0.0  # how many seconds the last message took to be handled and settled
        self._stuck = False  # whether an accepted session found no slot, and no message was settled since
        # When the broker last worked: a message was settled, or a call was answered that no session has messages.
        self._answered_at = -inf
        self._failures = 0  # how many calls or sessions failed since the broker last worked
        self._failing_since, self._failed_at = 0.0, -inf
        self._error: BaseException | None = None  # an unexpected error, which `run` raises

    def status(self) -> tuple[SessionStatus, ...]:
        """Return a status of each session whose lock this processor has."""
        now = asyncio.get_running_loop().time()
        return tuple(
            SessionStatus(
                session=held.id,
                messages=held.messages,
                handling_seconds=None if held.handling_since is None else now - held.handling_since,
            )
            for held in self._serving.values()
        )

    @property
    def receiving(self) -> bool:
        """
        Say whether messages can be received. After a failure this is False until a message is settled, or the broker answers
        that no session has messages.
        """
        return not self._failures

    def stop(self) -> None:
        """Ask `run` to end. Messages that are being handled get the grace period to end. Then all sessions are given back."""
        self._stopping.set()
        self._changed.set()
        self._slots.send_away()

    async def run(self) -> None:
        """Handle messages until `stop` is called. A cancellation gives the sessions back and cancels the handlers at once."""
        try:
            while not self._stopping.is_set():
                self._changed.clear()
                self._fill()
                await self._changed.wait()
            for task in self._accepting:
                task.cancel()
            if self._serving:
                await asyncio.wait([*self._serving], timeout=self._options.grace_period.total_seconds())
        finally:
            await end({*self._accepting, *self._serving})
        if self._error is not None:
            raise self._error

    def _fill(self) -> None:
        # Accept a session before a slot is free only if messages have sessions. A session that waits makes other sessions give their slots
        # up in turn. Without sessions this does not happen, so an accepted message could wait too long.
        probing = not self._stuck and all(held.id is not None for held in self._serving.values())
        worth = self._slots.worth_accepting(self._found_in, probing=probing)
        for _ in range(min(self._wanted, worth) - len(self._accepting)):
            task = asyncio.create_task(self._serve())
            self._accepting[task] = asyncio.get_running_loop().time()
            task.add_done_callback(self._on_task_end)

    def _on_task_end(self, task: asyncio.Task[None]) -> None:
        self._accepting.pop(task, None)
        self._serving.pop(task, None)
        self._changed.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            self._error = error
            self.stop()

    async def _serve(self) -> None:
        task, began = cast("asyncio.Task[None]", asyncio.current_task()), asyncio.get_running_loop().time()
        if (session := await self._accept(began)) is None:
            return
        self._accepting[task], slotted = asyncio.get_running_loop().time(), False
        due = self._due.get(session.id)
        try:
            await self._end_before(session.id)
            # Wait for a slot about as long as another session takes to handle a message and free its slot, but at most for half of the
            # time that this session's lock still lasts.
            left = session.trusted_until - asyncio.get_running_loop().time()
            patience = min(_AHEAD_SECONDS + self._handled_in, left / 2)
            slotted = due is not None or await self._slots.take(patience)
        finally:
            if not slotted:
                with suppress(Exception):
                    await session.close()
        if slotted:
            held = HeldSession(
                session,
                self._handler,
                self._options,
                stopping=self._stopping,
                slots=self._slots,
                notify=self._on_record,
                due=due,
            )
            await self._hold(task, held, began)
            return
        # No slot became free, so the session was given back. Cancel the waiting calls: each of them would get this session again,
        # before another process can.
        self._stuck = True
        for call in self._accepting:
            if call is not task:
                call.cancel()

    async def _end_before(self, session: str | None) -> None:
        # If this process has had the session before, it lost the lock unnoticed. End the old task, so that two handlers do not work on one
        # session.
        for task, held in [*self._serving.items()]:
            if held.id == session is not None and task is not asyncio.current_task():
                held.error = LockLost("This process lost the session, and received it again.")
                task.cancel()
                await asyncio.wait({task})

    async def _hold(self, task: asyncio.Task[None], held: HeldSession, began: float) -> None:
        del self._accepting[task]
        self._serving[task] = held
        self._changed.set()  # one call fewer waits for a session now, so `run` may start another call
        end = SessionEnd.STOPPED
        try:
            # End an older task of this session: this process may have lost the session, and accepted it again, while this task waited for a slot.
            await self._end_before(held.id)
            end = await held.run()
        finally:
            if held.error is not None:
                end = SessionEnd.LOST
            # Forget the session before `close`, because another task of this process may accept the session once it is closed.
            self._due.pop(held.id, None)
            if held.due is not None and held.id is not None:
                self._due[held.id] = held.due
                if len(self._due) > _MOST_TROUBLED:
                    del self._due[next(iter(self._due))]
            await held.close()
            self._notify(
                records.SessionClosed(session=held.id, outcome=end, messages=held.messages, error=held.error)
            )
        if not isinstance(held.error, LockLost | None) and not self._stopping.is_set():
            # Pause, so that the processor does not accept the session and lose it again in a tight loop.
            del self._serving[task]
            self._accepting[task] = asyncio.get_running_loop().time()
            await self._back_off(held.error, began, answered_at=held.answered_at)

    async def _accept(self, began: float) -> Session | None:
        seconds = _FIRST_ACCEPT_SECONDS if self._answered_at == -inf else _ACCEPT_SECONDS
        try:
            session = await self._subscription.accept(seconds)
        except Exception as error:  # noqa: BLE001 - whatever the client raises: it is asked again
            await self._back_off(error, began, answered_at=began)
            return None
        now = asyncio.get_running_loop().time()
        if session is not None:
            self._found_in = min(now - began, _LOOK_AHEAD_SECONDS)
        # After a failure, only a call that found no session shows that the broker works again. A session that is found may still fail at its
        # first message.
        elif began > self._failed_at:
            self._note_answer()
        # Adjust the number of calls: raise it if this call found a session, halve it if not. Also halve it if another call has waited for
        # longer than it takes to open its link: if more sessions had messages, that call would have found one.
        others = (since for task, since in self._accepting.items() if task is not asyncio.current_task())
        in_vain = session is None or min(others, default=inf) < now - _OPENING_SECONDS
        self._wanted = self._wanted // 2 if in_vain or self._failures else self._wanted + _GROWTH
        self._wanted = min(max(1, self._wanted), 4 * self._options.max_concurrent_sessions)
        return session

    def _note_answer(self) -> None:
        self._failures, self._answered_at = 0, asyncio.get_running_loop().time()

    async def _back_off(self, error: BaseException, began: float, *, answered_at: float) -> None:
        """
        Report a failed call of `accept`, or a failed session, and wait before the next call.

        `began` is when the call or session began. `answered_at` is when the broker last answered it, or `began` if it never did.
        """
        self._wanted, now = 1, asyncio.get_running_loop().time()
        if not self._failures:
            self._failing_since = max(answered_at, self._answered_at)
        # Calls and sessions that ran at the same time and fail together count as one failure, so that the pauses do not grow too fast.
        one_more = began > self._failed_at or not self._failures
        self._failures, self._failed_at = self._failures + one_more, now
        delay = self._options.backoff.delay(self._failures, at_least=getattr(error, "retry_after", None))
        lasting = now - self._failing_since
        failed = records.ReceivingFailed(
            attempt=self._failures, delay_seconds=delay, lasting_seconds=lasting, error=error
        )
        if one_more:
            self._notify(failed)
        await asyncio.sleep(delay)

    def _on_record(self, record: records.Record) -> None:
        if isinstance(record, records.MessageSettled):
            self._note_answer()
            self._stuck = False
            if record.outcome != "retry":  # the time of a retry includes the pause before the next attempt
                self._handled_in = min(record.seconds, _MOST_MORE_SECONDS)
            if not self._accepting:
                self._changed.set()
        self._notify(record)
