"""
SessionProcessor: one of the processes that share the sessions of a subscription or queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from cosmos_outbox.errors import LockLost, SubscriptionError, SubscriptionUnavailable
from cosmos_outbox.ports import Session, Subscription
from cosmos_outbox.records import (
    Hook,
    MessageSettled,
    ReceivingFailed,
    Record,
    SessionClosed,
    SessionOpened,
    guarded,
    log_hook,
)
from cosmos_outbox.sessions.held import HeldSession, SessionEnd, SessionHandler
from cosmos_outbox.sessions.options import SessionOptions

_ACCEPT_SECONDS = 20.0  # how long one call waits for a session
_FIRST_ACCEPT_SECONDS = 1.0  # a short first call: when it returns, the broker is reachable
_OPENING_SECONDS = 3.0  # how long a call may take before it waits for a session
_CLOSE_SECONDS = 2.0  # between two cancellations of a task that ends


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStatus:
    """
    A session that a processor holds.

    messages: settled since it was accepted.
    handling_seconds: for how long the message at hand has been handled; None if none is.
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
        hooks: Iterable[Hook] = (log_hook,),
    ) -> None:
        self._subscription, self._handler = subscription, handler
        self._options = options or SessionOptions()
        self._notify = guarded(*hooks)
        self._stopping, self._changed = asyncio.Event(), asyncio.Event()
        self._accepting: dict[asyncio.Task[None], float] = {}  # since when
        self._serving: dict[asyncio.Task[None], HeldSession] = {}
        self._wanted = 1  # calls that wait for a session side by side
        self._answered_at = -inf  # when a message was last settled, or a call found none waiting
        self._failures = 0  # since then
        self._failing_since, self._failed_at = 0.0, -inf
        self._error: BaseException | None = None  # that ended a task: no fault of the broker

    def status(self) -> tuple[SessionStatus, ...]:
        """
        Return the sessions that this processor holds.
        """
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
        Say whether messages can be received: false from a failure until a message is settled, or none waits.
        """
        return not self._failures

    def stop(self) -> None:
        """
        Ask `run` to end: messages at hand are handled within the grace period, all sessions given back.
        """
        self._stopping.set()
        self._changed.set()

    async def run(self) -> None:
        """
        Handle messages until `stop` is called; a cancellation gives the sessions back, and cancels the handlers, at once.
        """
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
            await _end({*self._accepting, *self._serving})
        if self._error is not None:
            raise self._error

    def _fill(self) -> None:
        free = self._options.max_concurrent_sessions - len(self._serving) - len(self._accepting)
        for _ in range(min(self._wanted - len(self._accepting), free)):
            task = asyncio.create_task(self._serve())
            self._accepting[task] = asyncio.get_running_loop().time()
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._accepting.pop(task, None)
        self._serving.pop(task, None)
        self._changed.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            self._error = error
            self.stop()

    async def _serve(self) -> None:
        began = asyncio.get_running_loop().time()
        session = await self._accepted(began)
        if session is None:
            return
        held = HeldSession(
            session,
            self._handler,
            self._options,
            stopping=self._stopping,
            crowded=lambda: len(self._serving) + self._wanted > self._options.max_concurrent_sessions,
            notify=self._heard,
        )
        before = {task: one for task, one in self._serving.items() if one.id == held.id is not None}
        task = asyncio.current_task()
        if task is not None:
            self._accepting.pop(task, None)
            self._serving[task] = held
        self._changed.set()  # one more may wait for a session
        self._notify(SessionOpened(session=held.id))
        end = SessionEnd.STOPPED
        try:
            # This process lost the session without noticing: the old handler must not run beside the new one.
            for other, one in before.items():
                one.error = LockLost("The broker gave the session away, then to this process again.")
                other.cancel()
                await asyncio.wait({other})
            end = await held.run()
        finally:
            if held.error is not None:
                end = SessionEnd.LOST
            await held.close()
            self._notify(SessionClosed(session=held.id, reason=end, messages=held.messages, error=held.error))
        if isinstance(held.error, SubscriptionUnavailable) and not self._stopping.is_set():
            # Without a pause the processor would accept it and lose it again in a tight loop.
            if task is not None:
                del self._serving[task]
                self._accepting[task] = asyncio.get_running_loop().time()
            await self._failed(held.error, began, answered_at=held.answered_at)

    async def _accepted(self, began: float) -> Session | None:
        try:
            session = await self._subscription.accept(
                _FIRST_ACCEPT_SECONDS if self._answered_at == -inf else _ACCEPT_SECONDS
            )
        except SubscriptionError as error:
            await self._failed(error, began, answered_at=began)
            return None
        # A session that was found may be lost with its first message.
        if session is None and began > self._failed_at:
            self._answered()
        # What is asked for follows what is found. A call that has waited for so long has a link: had there been a session, it
        # would have found one.
        others = (since for task, since in self._accepting.items() if task is not asyncio.current_task())
        now = asyncio.get_running_loop().time()
        in_vain = session is None or min(others, default=inf) < now - _OPENING_SECONDS
        self._wanted = self._wanted // 2 if in_vain or self._failures else self._wanted + 1
        self._wanted = min(max(1, self._wanted), self._options.max_concurrent_sessions)
        return session

    def _answered(self) -> None:
        self._failures, self._answered_at = 0, asyncio.get_running_loop().time()

    async def _failed(self, error: SubscriptionError, began: float, *, answered_at: float) -> None:
        """
        Back off before the next call. `began`: of the failed call or session; `answered_at`: the broker's last answer to it, or `began`.
        """
        self._wanted, now = 1, asyncio.get_running_loop().time()
        if not self._failures:
            self._failing_since = max(answered_at, self._answered_at)
        # Calls and sessions that ran side by side fail together: count one failure.
        if began > self._failed_at or not self._failures:
            self._failures += 1
        self._failed_at = now
        delay = self._options.backoff.delay(self._failures, at_least=getattr(error, "retry_after", None))
        lasting = now - self._failing_since
        self._notify(
            ReceivingFailed(attempt=self._failures, delay_seconds=delay, lasting_seconds=lasting, error=error)
        )
        await asyncio.sleep(delay)

    def _heard(self, record: Record) -> None:
        if isinstance(record, MessageSettled):
            self._answered()
        self._notify(record)


async def _end(tasks: set[asyncio.Task[None]]) -> None:
    # More than once: the SDK waits by `asyncio.wait_for`, which before Python 3.12 loses a cancellation that comes together
    # with the result it waits for.
    while tasks:
        for task in tasks:
            task.cancel()
        _, tasks = await asyncio.wait(tasks, timeout=_CLOSE_SECONDS)
