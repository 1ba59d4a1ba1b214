"""
Handler call: a handler is called for a bounded time, and one that goes on after it was cancelled is left behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

from cosmos_outbox.consumer.threads import calls_of_handler
from cosmos_outbox.errors import HandlerTimeout, MessageError, said
from cosmos_outbox.sessions.held_session import cancelled
from cosmos_outbox.write.unit_of_work import commits_left_to


class HandlerStuck(HandlerTimeout):
    """
    A handler, or a thread that it started, went on after it was cancelled; it was left behind, and its unit of work commits nothing.
    """


async def called(handler: Callable[[], Awaitable[None]], *, of: str, subject: str, within: timedelta) -> None:
    """
    Call a handler, and raise what it raises.

    Args:
        handler: with its arguments.
        of: the consumer, which commits in its place.
        subject: of the message.
        within: the time that it may take.

    Raises:
        HandlerTimeout: it took longer; HandlerStuck if it, or a thread of it, still runs.
        MessageError: other code cancelled it, or it raised what ends a process.
    """
    threads: set[Future[Any]] = set()

    async def ended() -> None:
        calls_of_handler.set(threads)
        try:
            await handler()
        except (Exception, asyncio.CancelledError, KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            # sys.exit() in a library, or a panic of Rust: the process would end at each delivery, and every key would stop
            raise MessageError(
                f"The handler of {subject} raised {type(error).__name__}, which would have ended the process: {said(error)}"
            ) from error

    with commits_left_to(f"The consumer {of!r}"):
        task = asyncio.ensure_future(ended())
    try:
        done, _ = await asyncio.wait({task}, timeout=within.total_seconds())
    except BaseException:  # the lock is lost, or the process ends
        await cancelled(task)
        raise
    if task.cancelled():  # by other code, not by this attempt: report an error, not a cancellation
        raise MessageError(f"The handler of {subject} ended because what it awaited was cancelled.")
    if done:
        return task.result()
    late = f"The handler of {subject} did not end within {within}"
    if not await cancelled(task):
        raise HandlerStuck(f"{late}, and went on after it was cancelled. It must let CancelledError pass.")
    if threads:
        raise HandlerStuck(
            f"{late}, and a thread that it started goes on. Give what blocks there a time-out of its own."
        )
    raise HandlerTimeout(f"{late}.")
