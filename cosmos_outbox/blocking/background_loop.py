"""
Portal: keeps an asynchronous object, such as an outbox, open on an event loop in a thread of its own, so that other threads can use it.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, suppress
from contextvars import Context
from typing import Generic, TypeVar

from cosmos_outbox.errors import UsageError

OpenedT = TypeVar("OpenedT")
ResultT = TypeVar("ResultT")
Opener = Callable[[], AbstractAsyncContextManager[OpenedT]]

_EXIT_SECONDS = 10.0
_CLOSED = "The outbox was closed; make another one to go on."


class Portal(Generic[OpenedT]):
    """
    Opens an object at the first call, on an event loop in a thread of its own. `close`, or the end of the process, closes the object.

    Args:
        opener: a function that returns an asynchronous context manager, which yields the object. It is entered and left on the loop.
    """

    def __init__(self, opener: Opener[OpenedT]) -> None:
        self._opener = opener
        # The lock is reentrant, because a signal handler may call this object while its thread holds the lock.
        self._lock = threading.RLock()
        self._pid: int | None = None
        self._loop: _LoopThread[OpenedT] | None = None

    def get(self) -> OpenedT:
        """Return the open object, to call methods of it that are not coroutines."""
        loop = self._running()
        loop.check()
        return loop.opened.result()

    def call(self, work: Callable[[], Awaitable[ResultT]]) -> ResultT:
        """
        Run `work()` on the portal's event loop, with this thread's context variables, wait for it and return its result.

        If an exception interrupts the thread meanwhile (Ctrl-C, a signal handler), the work is cancelled. The exception is raised once the
        work has ended.

        Raises:
            UsageError: this thread runs an event loop; the portal was closed; or it was opened before this process was forked.
        """
        return self._running().call(work)

    def close(self) -> None:
        """Close the object for good when the calls under way have ended. If an exception interrupts the wait, cancel the calls."""
        if self._loop is not None and self._pid == os.getpid():
            _check_thread()
            atexit.unregister(self._close_at_exit)
            self._loop.close()

    def _running(self) -> _LoopThread[OpenedT]:
        _check_thread()
        if self._pid not in (
            None,
            os.getpid(),
        ):  # checked without the lock: if a thread of the parent process held it at the fork, it stays locked
            raise UsageError(
                f"This process was forked from process {self._pid}, which had opened the outbox, and has neither its thread "
                "nor its connections. Use the outbox for the first time after the fork."
            )
        with self._lock:
            if self._loop is None:
                self._pid = os.getpid()
                loop = _LoopThread(self._opener)
                try:
                    loop.open()
                except BaseException:
                    self._pid = None
                    raise
                self._loop = loop
                atexit.register(self._close_at_exit)
            return self._loop

    def _close_at_exit(self) -> None:
        if self._loop is not None and self._pid == os.getpid():
            self._loop.abandon()


class _LoopThread(Generic[OpenedT]):
    """
    The thread in which a portal runs its event loop, from opening to closing.

    It is a daemon thread, because only an `atexit` handler ends it. Python calls these handlers after all threads that are no daemons have
    ended. If this thread were no daemon, Python would wait for it for ever.
    """

    def __init__(self, opener: Opener[OpenedT]) -> None:
        self._opener = opener
        self._lock = threading.RLock()
        self._closed = self._abandoned = False
        # A loop factory is given because the runner would otherwise make its loop the current loop of the calling thread.
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop = self._runner.get_loop()
        self._stop, self._calls = asyncio.Event(), asyncio.TaskGroup()
        self.opened: Future[OpenedT] = Future()
        self.ended: Future[None] = Future()
        # The task is created before the thread runs, so that it can already be cancelled. It gets an empty context, because the loop lives
        # longer than the caller whose context variables it would copy.
        self._serving = self._loop.create_task(self._serve(), context=Context())
        self._thread = threading.Thread(target=self._run, name="cosmos-outbox", daemon=True)

    async def _serve(self) -> None:
        async with self._opener() as opened:
            # If this task is cancelled, end only the calls. What the opener opened is then closed as after a normal end,
            # not as after an error.
            with suppress(asyncio.CancelledError):
                await self._take_calls(opened)

    async def _take_calls(self, opened: OpenedT) -> None:
        async with self._calls:
            self.opened.set_result(opened)
            try:
                await self._stop.wait()
            finally:
                with self._lock:
                    self._closed = True
                await asyncio.sleep(0)  # let the calls start that came before `close`

    def _run(self) -> None:
        try:
            with self._runner:
                self._loop.run_until_complete(self._serving)
        except BaseException as error:  # noqa: BLE001 - the thread that waits for the opener raises it
            if not self.opened.done():
                self.opened.set_exception(error)
            self.ended.set_exception(error)
        else:
            self.ended.set_result(None)

    def check(self) -> None:
        """Raise UsageError if the portal, through which callers reach this thread, was closed."""
        if self._closed:
            raise UsageError(_CLOSED)

    def call(self, work: Callable[[], Awaitable[ResultT]]) -> ResultT:
        outcome: Future[ResultT] = Future()
        tasks: list[asyncio.Task[None]] = []

        async def settle() -> None:
            try:
                outcome.set_result(await work())
            except BaseException as error:  # noqa: BLE001 - also a handler's SystemExit, which must not end this thread
                fail(error)

        def start() -> None:
            tasks.append(self._calls.create_task(settle()))
            # If the task is cancelled before its first step, `settle` never runs, so the outcome is set here.
            tasks[0].add_done_callback(lambda _: fail(asyncio.CancelledError()))

        def fail(error: BaseException) -> None:
            if not (outcome.done() or self._abandoned):
                outcome.set_exception(error)

        try:
            with self._lock:
                if self._closed:
                    outcome.set_exception(UsageError(_CLOSED))
                else:
                    self._loop.call_soon_threadsafe(start)
            return outcome.result()
        except BaseException:
            self._end(outcome, lambda: tasks[0].cancel() if tasks else fail(asyncio.CancelledError()))
            raise

    def open(self) -> None:
        try:
            self._thread.start()
            self.opened.result()
        except BaseException:
            self._end(self.ended, self._serving.cancel)
            raise

    def close(self) -> None:
        try:
            self._post(self._stop.set)
            self.ended.result()
        except BaseException:
            self._end(self.ended, self._serving.cancel)
            raise

    def abandon(self) -> None:
        """
        Close the object when the interpreter exits, and cancel the calls under way.

        Only daemon threads can still wait for calls. Their calls neither return nor raise: with an error, such a thread would print a traceback,
        which may abort the process at this time.
        """
        self._abandoned = True
        with suppress(TimeoutError):
            self._post(self._serving.cancel)
            self.ended.result(timeout=_EXIT_SECONDS)

    def _end(self, outcome: Future[ResultT], cancel: Callable[[], object]) -> None:
        """If an exception interrupted the wait for an outcome, cancel the work, and wait until it has ended."""
        if not outcome.done() and self._post(cancel) and self._thread.ident is not None:
            outcome.exception()

    def _post(self, callback: Callable[[], object]) -> bool:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(callback)
            return True
        return False


def _check_thread() -> None:
    with suppress(RuntimeError):
        asyncio.get_running_loop()
        raise UsageError(
            "A blocking call would stop the event loop that runs in this thread. In async code, use Outbox. In an event "
            "handler, use the unit of work that it receives; an `async def` handler can also read with it."
        )
