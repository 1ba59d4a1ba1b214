"""
Handling: one page through the handler, as often as it takes; slow and failing handlers are told of by name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from cosmos_outbox.changefeed.options import ProcessorOptions
from cosmos_outbox.changefeed.progress import Progress
from cosmos_outbox.changefeed.tenure import Tenure
from cosmos_outbox.ports import ChangeBatch, ChangeHandler, ChangePage
from cosmos_outbox.records import HandlerSlow, Hook, LeaseHalted, PageFailed, PageHandled


async def handle(
    page: ChangePage,
    *,
    tenure: Tenure,
    container_rid: str,
    handler: ChangeHandler,
    options: ProcessorOptions,
    progress: Progress,
    notify: Hook,
    pause: Callable[[float], Awaitable[bool]],
    again: Callable[[], Awaitable[ChangePage | None]],
) -> ChangePage | None:
    """
    Have a page handled, again and again until it is done.

    Args:
        pause: waits so many seconds and returns False where the work is to end instead of being tried again.
        again: reads the page anew, after every `halt_after_attempts` failures: what is deleted meanwhile no
            longer holds up what comes behind it.

    Returns:
        The page that is done, which may have been read anew; one without documents where nothing is left to handle, and
        None when the work is to end before.

    Raises:
        LeaseLost, asyncio.CancelledError: as `Tenure.ensure_active`; the page does not count as done.
    """
    loop = asyncio.get_running_loop()
    lease, attempt, started = tenure.lease.id, 0, loop.time()
    batch = ChangeBatch(
        lease=lease,
        documents=page.documents,
        tenure=tenure.number,
        page=tenure.pages + 1,
        processor=options.processor_name,
        container_rid=container_rid,
        notes=tenure.notes,
    )
    with _told_when_slow(lease, options, notify):
        while True:
            attempt += 1
            tenure.ensure_active()
            try:
                await handler(batch)
            except Exception as error:  # noqa: BLE001 - a handler may raise anything; the page must not be lost
                tenure.ensure_active()
                progress.failed(error)
                delay = options.backoff.delay(attempt)
                notify(PageFailed(lease=lease, attempt=attempt, delay_seconds=delay, error=error))
                if attempt % options.halt_after_attempts == 0:
                    unsolved = await _unsolved(batch, error, attempt, options)
                    tenure.ensure_active()
                    if unsolved is None:
                        break
                    notify(LeaseHalted(lease=lease, attempts=attempt, error=unsolved))
                    # Its traceback has this frame, and this frame the page: a ring that would outlive both.
                    del unsolved
                if not await pause(delay):
                    return None
                if attempt % options.halt_after_attempts == 0:
                    anew = await again()
                    if anew is None or not anew.documents:
                        return anew
                    page, batch = anew, replace(batch, documents=anew.documents)
            else:
                break
    tenure.ensure_active()
    done(page, lease=lease, seconds=loop.time() - started, progress=progress, notify=notify)
    return page


def done(page: ChangePage, *, lease: str, seconds: float, progress: Progress, notify: Hook) -> None:
    """
    Note that all changes of a page are done, the dropped ones included.
    """
    last = page.last_lsn
    lag = page.latest_lsn - last if page.latest_lsn is not None and last is not None else None
    progress.moved(asyncio.get_running_loop().time(), lag=lag)
    changes = len(page.documents) + page.dropped
    notify(PageHandled(lease=lease, changes=changes, seconds=seconds, lag=lag))


async def _unsolved(
    batch: ChangeBatch, error: Exception, attempts: int, options: ProcessorOptions
) -> Exception | None:
    """
    Return what keeps the page from being done: nothing, where `on_failure` takes it over.
    """
    if options.on_failure is None:
        return error
    try:
        await options.on_failure(batch, error, attempts)
    except Exception as second:  # noqa: BLE001 - as the handler's
        return second
    return None


@contextmanager
def _told_when_slow(lease: str, options: ProcessorOptions, notify: Hook) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    started, limit = loop.time(), options.slow_handler_after.total_seconds()
    told = False
    timer: asyncio.TimerHandle

    def tell() -> None:
        nonlocal timer, told
        told = True
        notify(HandlerSlow(lease=lease, seconds=loop.time() - started))
        timer = loop.call_later(limit, tell)

    timer = loop.call_later(limit, tell)
    try:
        yield
    finally:
        timer.cancel()
        if not told and loop.time() - started >= limit:  # it blocked the loop, so the timer had no chance
            notify(HandlerSlow(lease=lease, seconds=loop.time() - started))
