"""
HeldSession: one locked session, whose messages are handled one at a time while its lock is renewed. `slots.py` decides when a session may
be handled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from enum import StrEnum
from math import inf
from typing import Any

from cosmos_outbox.errors import LockLost, SubscriptionUnavailable
from cosmos_outbox.event_loop import retrieve
from cosmos_outbox.message_format import Message
from cosmos_outbox.ports import Complete, DeadLetter, Defer, Retry, Session, Settlement
from cosmos_outbox.records import Hook, MessageFailed, MessageSettled
from cosmos_outbox.sessions.slots import AT_HAND_SECONDS, SessionOptions, Slots

_CANCELLED_SECONDS = 1.0  # how long the processor waits for the end of a task that it cancelled
# How long a session waits for a message before it looks whether the processor stops. The time is short, so that a stop is not delayed.
_SLICE_SECONDS = 1.0
_RENEWAL_SECONDS = 5.0  # how long one attempt to renew a lock may take
_RENEWAL_PAUSE_SECONDS = 0.5  # the pause after a failed attempt to renew a lock
_MARGIN = 0.1  # a handler is cancelled when this part of the lock's time is left
# How long a session may keep its slot while other sessions wait for a slot. Those sessions wait for longer
# than this before they are given back to the broker.
_TURN_SECONDS = 1.0
# Event loops may fire a timer this much too early. Without this allowance, a wait on the virtual time of tests would repeat for ever.
_EARLY_SECONDS = 0.001
OUTCOMES = {Complete: "complete", Retry: "retry", DeadLetter: "dead-letter", Defer: "defer"}

SessionHandler = Callable[[Message, "HeldSession"], Awaitable[Settlement | None]]


class SessionEnd(StrEnum):
    """Why a processor gave a session back to the broker, or lost it."""

    IDLE = "idle"  # no message of the session came for a while
    TURN = "turn"  # other sessions waited, so this session gave its slot to one of them
    RETRY = "retry"  # a message failed, and the broker has to deliver it again
    STOPPED = "stopped"  # the processor stops
    LOST = "lost"  # the lock of the session expired, or the broker cannot be reached


class HeldSession:
    """
    A session whose lock this process has.

    Args:
        session: the locked session, through which messages are received and settled.
        handler: awaited with each message.
        options: the options of the processor.
        stopping: set when no further message is to be handled.
        slots: the slots of the processor, each of which allows it to handle one session. This session has a slot, or takes one.
        notify: called with a record of everything that happens.
        due: when the next attempt at the session's first message is due, in the loop's time; then the session has no slot yet. Defaults to
            None: the last attempt did not fail, and the session has a slot.
    """

    def __init__(
        self,
        session: Session,
        handler: SessionHandler,
        options: SessionOptions,
        *,
        stopping: asyncio.Event,
        slots: Slots,
        notify: Hook,
        due: float | None = None,
    ) -> None:
        self._session, self._handler, self._options = session, handler, options
        self._stopping, self._slots, self._notify = stopping, slots, notify
        self.id = session.id  # None on an entity without sessions
        self.due = due
        # Which slot the session has. False: an ordinary slot. True: a slot for sessions in trouble, whose last message failed. None: no slot.
        self._slot: bool | None = False if due is None else None
        self._closed = False
        self._ends_at = inf  # when `_hold` stops renewing the lock, in the loop's time
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.Timeout | None = None  # the wait for a message; `leave` shortens it
        self.idle_since: float | None = None  # since when the session has had no message, in the loop's time
        self.leaving = False  # whether the session leaves its slot unless a message comes at once
        self._trusted_until = self._renew_at = self._cancel_at = 0.0
        self.messages = 0  # how many messages of the session were settled so far
        self.handling_since: float | None = None  # since when a message has been handled, in the loop's time
        self.answered_at = self._loop.time()  # when the broker answered last, in the loop's time
        self.error: BaseException | None = None  # why the session was lost

    async def run(self) -> SessionEnd:
        """
        Handle messages until no message comes, a message has to be delivered again, the processor stops or the lock is lost. Return which
        of these ended the session.
        """
        try:
            self._see_lock()
            if self.due is None or (not self._stopping.is_set() and await self._await_slot()):
                return await self._run()
        except Exception as error:  # noqa: BLE001 - one session must not end the others, whatever the client raises
            self.error = error
            return SessionEnd.LOST
        return SessionEnd.STOPPED if self._stopping.is_set() else SessionEnd.RETRY

    async def _run(self) -> SessionEnd:
        began = idle_since = self._loop.time()
        while not self._stopping.is_set():
            self._see_lock()
            now = self._loop.time()
            if now >= self._renew_at and not await self._renew():
                return SessionEnd.LOST
            idle_until = idle_since + self._options.session_idle_timeout.total_seconds()
            if now >= idle_until or self.leaving:
                return SessionEnd.IDLE
            wait = min(_SLICE_SECONDS, idle_until - now, max(self._renew_at - now, 0.01))
            message = await self._receive(wait, idle_since)
            if message is None:
                continue
            if self._stopping.is_set():
                break
            self._see_lock()
            settlement = await self._settlement_for(message)
            if settlement is None:
                return SessionEnd.LOST
            await self._settle(message, settlement)
            if isinstance(settlement, Retry):
                return SessionEnd.RETRY
            self.due = None
            # Sessions whose last message failed may have at most half of the slots. A message succeeded, so this session no longer counts
            # among them.
            if self._slot:
                self._slot = False
                self._slots.count_recovery()
            idle_since = self._loop.time()
            if idle_since >= began + _TURN_SECONDS and self._slots.waiting:
                return SessionEnd.TURN
        return SessionEnd.STOPPED

    def leave(self) -> None:
        """Make the session, which has no message now, give its slot back, unless a message is about to arrive."""
        if self._waiting is not None and self.idle_since is not None:
            self.leaving = True
            # If the session has had no message yet, its first message is on its way: wait longer for it. Otherwise the session would leave
            # without it, and the broker would give the session to this process again at once.
            at_hand = AT_HAND_SECONDS if self.messages else _SLICE_SECONDS
            self._waiting.reschedule(max(self._loop.time(), self.idle_since + at_hand))

    async def _receive(self, wait_seconds: float, idle_since: float) -> Message | None:
        # The method `leave` may end this wait for a message early. After that the SDK's session cannot be used, so `leave` also sets
        # `leaving`, and the loop that called this method closes the session.
        self.idle_since = idle_since
        message = None
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(None) as self._waiting:
                    self._slots.make_room()
                    message = await self._session.receive(wait_seconds)
        finally:
            # Clear the timeout even if the lock is lost: while this session closes, another session may call `leave`, which uses it.
            self._waiting = None
        if message is not None:
            self.idle_since = None
            if self.leaving:
                self.leaving = False
                self._slots.make_room()
        return message

    async def pause(self, seconds: float) -> None:
        """Wait before the next attempt at a message. Meanwhile another session may use the slot, unless too many sessions wait."""
        if self._slots.full or self._closed:
            await asyncio.sleep(seconds)
            return
        self.due, left, self._ends_at = self._loop.time() + seconds, self._ends_at - self._loop.time(), inf
        self._give_slot()
        try:
            with self._slots.rest(may_leave=False):
                await self._take_slot()
        finally:
            self._ends_at = self._loop.time() + left
            if self._closed:  # the session was closed during the wait, so give the new slot back
                self._give_slot()

    def _give_slot(self) -> None:
        slot, self._slot = self._slot, None
        if slot is not None:
            self._slots.give_back(troubled=slot)

    async def _take_slot(self) -> None:
        await asyncio.sleep((self.due or 0.0) - self._loop.time())
        self._slot = await self._slots.take_troubled()

    async def _await_slot(self) -> bool:
        """
        Keep the lock until the next attempt is due and the session has a slot for it. Return whether the session has a slot. It has none if
        it has to be closed to make room for another session, or lost its lock.
        """
        taking = asyncio.create_task(self._take_slot())
        try:
            with self._slots.rest(may_leave=self.id is not None) as leave:
                await self._hold({taking, leave}, inf)
        finally:
            await cancel(taking)
        return self._slot is not None

    async def _has_slot(self) -> bool:
        return not self._stopping.is_set() and (self._slot is not None or await self._await_slot())

    async def close(self) -> None:
        """
        Give the slot back, and unlock the session. If that fails, other processes get the session when its lock
        expires.
        """
        self._closed = True
        self._give_slot()
        try:
            await self._session.close()
        except (LockLost, SubscriptionUnavailable):
            pass
        except Exception as error:  # noqa: BLE001 - as in `run`
            self.error = self.error or error

    async def _settle(self, message: Message, settlement: Settlement) -> None:
        now = self._loop.time()
        began, self.handling_since = now if self.handling_since is None else self.handling_since, None
        if not isinstance(settlement, Retry) or settlement.counted:
            await self._session.settle(message, settlement)
            self.answered_at = self._loop.time()
        self.messages += 1
        self._notify(
            MessageSettled(
                session=self.id,
                message_id=message.message_id,
                outcome=OUTCOMES[type(settlement)],
                seconds=self._loop.time() - began,
            )
        )

    async def _settlement_for(self, message: Message) -> Settlement | None:
        """
        Handle a message. If it has to be tried again, keep it until then. Return how to settle it, or None if the lock may be lost.
        """
        while True:
            settlement = await self._handle(message)
            if not isinstance(settlement, Retry):
                return settlement
            if not await self._keep(settlement.after_seconds):
                return None
            # Without sessions, the broker counts a message that is given back as delivered once more. So try it again here instead.
            if self.id is not None or settlement.counted or not await self._has_slot():
                return settlement

    async def _handle(self, message: Message) -> Settlement | None:
        """Have the handler process a message. Return how to settle it, or None if the lock may be lost."""
        self.handling_since = self._loop.time()
        handling = asyncio.create_task(self._outcome(message))
        try:
            held = await self._hold({handling}, self._options.max_handling.total_seconds())
        except BaseException:  # this task was cancelled, so the handler must end too
            await self._cancel(handling, message)
            raise
        if held and handling.done():
            return handling.result()
        await self._cancel(handling, message)
        overdue = TimeoutError(f"The handler took longer than {self._options.max_handling} (max_handling).")
        return self._retry(message, overdue) if held else None

    async def _keep(self, seconds: float) -> bool:
        """
        Keep a failed message until it is due to be delivered again, or the processor stops. Return whether this process still has the lock.
        """
        seconds = 0.0 if self._stopping.is_set() else seconds
        self.due = self._loop.time() + seconds
        # Until the next attempt no handler works on the message, so `status` must not say that it is being
        # handled.
        handling_since, self.handling_since = self.handling_since, None
        # Give the slot to another session during the wait. Without sessions, do so only if there is room for one more waiting message:
        # otherwise the message would have to be given back early, which counts as a delivery.
        if seconds and (self.id is not None or not self._slots.full):
            self._give_slot()
        try:
            with self._slots.rest(may_leave=self.id is not None) as leave:
                return await self._hold({leave}, seconds)
        finally:
            self.handling_since = handling_since

    async def _hold(self, tasks: set[asyncio.Future[Any]], seconds: float) -> bool:
        """
        Renew the lock until one of the tasks is done, but only for this number of seconds. Return whether this process still has the lock.
        """
        self._ends_at = self._loop.time() + seconds
        while not any(task.done() for task in tasks) and (now := self._loop.time()) < self._ends_at:
            if now >= self._renew_at and not await self._renew():
                return False
            wake_in = max(min(self._renew_at, self._ends_at) - self._loop.time(), _EARLY_SECONDS)
            await asyncio.wait(tasks, timeout=wake_in, return_when=asyncio.FIRST_COMPLETED)
        return self._loop.time() < self._trusted_until

    async def _outcome(self, message: Message) -> Settlement:
        try:
            return await self._handler(message, self) or Complete()
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Something that the handler awaited was cancelled, and not the handler itself. So the handler failed: try the message again.
            return self._retry(message, error)
        except Exception as error:  # noqa: BLE001 - whatever a handler raises
            return self._retry(message, error)

    def _retry(self, message: Message, error: BaseException) -> Retry:
        self._report(message, error)
        return Retry(after_seconds=self._options.backoff.delay(message.delivery_count + 1))

    async def _cancel(self, task: asyncio.Task[Settlement], message: Message) -> None:
        if not await cancel(task):
            self._report(message)

    def _report(self, message: Message, error: BaseException | None = None) -> None:
        """Report that a handler raised `error`. Without an error, report that a cancelled handler did not end, and is left behind."""
        self._notify(
            MessageFailed(
                session=self.id,
                message_id=message.message_id,
                outcome="left behind" if error is None else "raised",
                delivery_count=message.delivery_count,
                error=error,
            )
        )

    async def _renew(self) -> bool:
        """Renew the lock. After a failure, try again until the lock may have expired. Return whether the lock was renewed."""
        while (now := self._loop.time()) < self._cancel_at - _EARLY_SECONDS:
            try:
                async with asyncio.timeout(min(_RENEWAL_SECONDS, self._cancel_at - now)):
                    await self._session.renew()
            except LockLost as error:
                self.error = error
                return False
            except Exception as error:  # noqa: BLE001 - as in `run`
                silent = isinstance(error, TimeoutError)
                self.error = SubscriptionUnavailable("The broker does not answer.") if silent else error
                await asyncio.sleep(min(_RENEWAL_PAUSE_SECONDS, max(self._cancel_at - self._loop.time(), 0)))
            else:
                self.error, self.answered_at = None, self._loop.time()
                self._see_lock()
                return True
        return False

    def _see_lock(self) -> None:
        # Set the time of the next renewal only if the lock was renewed. Otherwise each message of a busy session would delay the renewal.
        if self._session.trusted_until == self._trusted_until:
            return
        now, self._trusted_until = self._loop.time(), self._session.trusted_until
        left = self._trusted_until - now
        self._renew_at, self._cancel_at = now + left / 2, now + left * (1 - _MARGIN)


async def cancel(task: asyncio.Task[Any]) -> bool:
    """Cancel a task, and wait at most a second for its end. Return whether it ended, because a task may ignore its cancellation."""
    task.cancel()
    _, left = await asyncio.wait({task}, timeout=_CANCELLED_SECONDS)
    task.add_done_callback(retrieve)
    return not left
