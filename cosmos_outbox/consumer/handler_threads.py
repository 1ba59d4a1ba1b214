"""
Handler threads: the threads in which `asyncio.to_thread` runs the blocking calls of handlers in a consumer's process.

A call that hangs delays neither other calls nor the end of the process.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent import futures
from concurrent.futures import Future
from contextvars import ContextVar
from functools import partial
from queue import Empty, SimpleQueue
from socket import getaddrinfo, getnameinfo
from threading import Thread
from typing import Any, ParamSpec, TypeVar

ArgumentsT = ParamSpec("ArgumentsT")
ResultT = TypeVar("ResultT")

_IDLE_SECONDS = 60.0  # how long an idle thread waits for the next call
_END_SECONDS = 1.0  # how long the program waits at its end for calls that still run

# Calls that are not counted as blocking calls of a handler: asyncio itself submits these name lookups, and they always end.
_LOOKUPS = (getaddrinfo, getnameinfo)
# The blocking calls that the handler in this context has started and that have not ended; `submit` adds to them.
calls_of_handler: ContextVar[set[Future[Any]] | None] = ContextVar(
    "cosmos_outbox.calls_of_handler", default=None
)


class DaemonThreads(futures.ThreadPoolExecutor):
    """
    An executor for the event loop that runs each call in an idle thread, or in a new thread if none is idle.

    A call that hangs does not keep the process from ending.
    """

    # This replaces asyncio's own executor, for two reasons. First, asyncio's executor has 32 threads at most. A handler that hangs takes one
    # with each attempt, and once no thread is left, no host name can be resolved, so the messages of all keys stop. Second, Python waits for
    # the threads of that executor when the program ends, so a process with a call that hangs would never end.

    def __init__(self) -> None:
        # The event loop accepts only a ThreadPoolExecutor, so this class inherits from it. The base class never starts a thread here.
        super().__init__(max_workers=1)
        self._idle: list[SimpleQueue[Callable[[], None]]] = []
        self._calls: set[Future[Any]] = set()

    def submit(
        self, call: Callable[ArgumentsT, ResultT], /, *args: ArgumentsT.args, **kwargs: ArgumentsT.kwargs
    ) -> Future[ResultT]:
        future: Future[ResultT] = Future()
        for calls in (self._calls, None if call in _LOOKUPS else calls_of_handler.get()):
            if calls is not None:
                calls.add(future)
                future.add_done_callback(calls.discard)
        try:
            work = self._idle.pop()
        except IndexError:
            work = SimpleQueue()
            Thread(target=self._serve, args=[work], name="outbox-thread", daemon=True).start()
        work.put(partial(_answer, future, partial(call, *args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        if wait:
            futures.wait({*self._calls}, timeout=_END_SECONDS)

    def _serve(self, work: SimpleQueue[Callable[[], None]]) -> None:
        while True:
            try:
                work.get(timeout=_IDLE_SECONDS)()
            except Empty:
                try:
                    self._idle.remove(work)
                except ValueError:  # `submit` has just chosen this idle thread for a call, so go on
                    continue
                return
            self._idle.append(work)


def _answer(future: Future[ResultT], call: Callable[[], ResultT]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001 - whatever it raises is raised where it is awaited
        future.set_exception(error)
    else:
        future.set_result(result)
