"""SessionProcessor: receives the messages of a subscription or queue, session by session, and hands them to a handler."""

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

_ACCEPT_SECONDS = 20.0  # how long one call waits for a session
# how long the first calls wait: they are short, because the first answer shows that the broker is reachable
_FIRST_ACCEPT_SECONDS = 1.0
# how long it may take until a call has opened its link and really waits for a session: half a second, and 2 s on a busy machine
_OPENING_SECONDS = 4.0
_GROWTH = 3  # by how many calls each session that is found raises the number of calls
# How long an accepted session waits for a slot: this time plus the time that the last message took, of which the second number is the
# most. Then it is given back, because no other process can handle the session while this one has it.
_AHEAD_SECONDS, _MOST_MORE_SECONDS = 2.0, 10.0
_LOOK_AHEAD_SECONDS = 0.5  # how many seconds ahead the use of slots is predicted at most
_MOST_TROUBLED = 10_000  # sessions in trouble that this process remembers


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStatus:
    """
    A session that a processor holds.

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
        # when the next attempt is due, by the id of a session in trouble
        self._due: dict[str | None, float] = {}
        # the calls that wait for a session, and since when
        self._accepting: dict[asyncio.Task[None], float] = {}
        self._serving: dict[asyncio.Task[None], HeldSession] = {}
        self._slots = Slots(self._options, self._serving.values(), freed=self._changed.set)
        # How many calls may wait for a session at the same time: at the start as many as there are slots, because all slots are free.
        self._wanted = self._options.max_concurrent_sessions
        self._found_in = 0.0  # how long the last call that found a session took
        self._handled_in = 0.0  # how long the last message took
        self._stuck = False  # whether a session waited for a slot in vain, and no message was settled since
        # when a message was last settled, or a call was last answered that no session has messages
        self._answered_at = -inf
        self._failures = 0  # how many calls or sessions failed since then
        self._failing_since, self._failed_at = 0.0, -inf
        self._error: BaseException | None = None  # an error that ended a task, and is no fault of the broker

    def status(self) -> tuple[SessionStatus, ...]:
        """Return the sessions that this processor holds."""
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
        # Probe only if messages have sessions: on an entity without sessions, a message never has to wait for another one's turn.
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
            # The session waits long enough for another session to end its turn, but at most for half of its lock's time.
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
        # Cancel the calls that wait: each would take the session again, before another process can.
        self._stuck = True
        for call in self._accepting:
            if call is not task:
                call.cancel()

    async def _end_before(self, session: str | None) -> None:
        # End an earlier hold of the same session: this process lost that hold unnoticed, and its handler must not run beside the new one.
        for task, held in [*self._serving.items()]:
            if held.id == session is not None and task is not asyncio.current_task():
                held.error = LockLost("This process lost the session, and received it again.")
                task.cancel()
                await asyncio.wait({task})

    async def _hold(self, task: asyncio.Task[None], held: HeldSession, began: float) -> None:
        del self._accepting[task]
        self._serving[task] = held
        self._changed.set()  # another call may wait for a session now
        end = SessionEnd.STOPPED
        try:
            # Check again, because the process may have accepted the session once more while this task waited for a slot.
            await self._end_before(held.id)
            end = await held.run()
        finally:
            if held.error is not None:
                end = SessionEnd.LOST
            self._due.pop(held.id, None)  # before the broker gives the session to another call
            if held.due is not None and held.id is not None:
                self._due[held.id] = held.due
                if len(self._due) > _MOST_TROUBLED:
                    del self._due[next(iter(self._due))]
            await held.close()
            self._notify(
                records.SessionClosed(session=held.id, outcome=end, messages=held.messages, error=held.error)
            )
        if not isinstance(held.error, LockLost | None) and not self._stopping.is_set():
            # Back off: without a pause, the processor would accept the session and lose it again in a tight loop.
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
        # Only a call that found no session shows that the broker works again. A session that was found may be lost at its first message.
        elif began > self._failed_at:
            self._note_answer()
        # Adjust the number of calls: raise it if a session was found, halve it if not. Also halve it if another call has waited for longer
        # than it takes to open its link: that call would have found a session if there were more of them.
        others = (since for task, since in self._accepting.items() if task is not asyncio.current_task())
        in_vain = session is None or min(others, default=inf) < now - _OPENING_SECONDS
        self._wanted = self._wanted // 2 if in_vain or self._failures else self._wanted + _GROWTH
        self._wanted = min(max(1, self._wanted), 4 * self._options.max_concurrent_sessions)
        return session

    def _note_answer(self) -> None:
        self._failures, self._answered_at = 0, asyncio.get_running_loop().time()

    async def _back_off(self, error: BaseException, began: float, *, answered_at: float) -> None:
        """
        Report a failed call or session, and wait before the next call.

        `began` is when the call or session began, `answered_at` when the broker last answered it, or `began` if it never did.
        """
        self._wanted, now = 1, asyncio.get_running_loop().time()
        if not self._failures:
            self._failing_since = max(answered_at, self._answered_at)
        # Calls and sessions that ran side by side and fail together count as one failure.
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
            if record.outcome != "retry":  # the time of this record includes the back-off
                self._handled_in = min(record.seconds, _MOST_MORE_SECONDS)
            if not self._accepting:
                self._changed.set()
        self._notify(record)
