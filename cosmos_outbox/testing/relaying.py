"""
Relaying: run a worker's processor and relay until nothing waits, without waiting for time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta

from cosmos_outbox.changefeed import ChangeFeedProcessor, ProcessorOptions
from cosmos_outbox.changefeed.estimator import estimate_lag
from cosmos_outbox.documents import claims_to_be_an_event
from cosmos_outbox.errors import BrokerUnavailable
from cosmos_outbox.messages import OutboundMessage
from cosmos_outbox.parking import Parking
from cosmos_outbox.ports import ChangeFeed, LeaseStore, Publisher
from cosmos_outbox.records import (
    BalancingFailed,
    Hook,
    MessagesPublished,
    PageFailed,
    PageHandled,
    PublishFailed,
    Record,
)
from cosmos_outbox.relay import Relay
from cosmos_outbox.retries import Backoff

AT_ONCE = Backoff(initial_seconds=0, maximum_seconds=0)
MOMENT = timedelta(milliseconds=1)
ATTEMPTS = 100  # in a row that fail; a broker that is judged needs 15 of them


class RelayStuck(Exception):
    """
    The relay failed again and again, and would go on trying; what could not be sent still waits.
    """


async def relay_everything(
    *,
    name: str,
    feed: ChangeFeed,
    leases: LeaseStore,
    publisher: Publisher,
    parking: Parking,
    notify: Hook,
    stored: tuple[ChangeFeed, LeaseStore],
    pause: timedelta = MOMENT,
) -> None:
    """
    Run one worker until every change of the feed is sent or parked, and its checkpoint is written.

    Args:
        name: of the processor.
        feed, leases, publisher, parking: what the worker uses.
        notify: hears what it reports.
        stored: the feed and the leases as they are, to see what waits.
        pause: between two looks. Defaults to a millisecond.

    Raises:
        RelayStuck: it failed many times in a row.
        OutboxError: as `ChangeFeedProcessor.run`.
    """
    if await _is_done(name, *stored):
        return
    failures: list[BaseException] = []

    def heard(record: Record) -> None:
        if isinstance(record, PageFailed | PublishFailed | BalancingFailed):
            failures.append(record.error)
            if len(failures) >= ATTEMPTS:
                running.cancel()
        elif isinstance(record, PageHandled | MessagesPublished):
            failures.clear()
        notify(record)

    relay = Relay(_Prompt(publisher), parking=parking, backoff=AT_ONCE, notify=heard)
    options = ProcessorOptions(
        processor_name=name,
        instance_name=name,  # of all workers, so that one takes at once what one before it left when it was killed
        wanted=claims_to_be_an_event,
        acquire_interval=pause,
        checkpoint_interval=timedelta(0),
        min_poll_interval=pause,
        max_poll_interval=pause,
        backoff=AT_ONCE,
    )
    processor = ChangeFeedProcessor(feed, leases, relay, options, hooks=(heard,))
    running = asyncio.create_task(processor.run())
    try:
        while not running.done():
            if await _is_done(name, *stored):
                processor.stop()
                await asyncio.wait({running})
            else:
                await asyncio.wait({running}, timeout=pause.total_seconds())
        if len(failures) >= ATTEMPTS:
            raise RelayStuck(f"The relay failed {ATTEMPTS} times in a row: {failures[-1]}") from failures[-1]
        await running
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def _is_done(name: str, feed: ChangeFeed, leases: LeaseStore) -> bool:
    lag = await estimate_lag(name, feed=feed, leases=leases)
    return bool(lag.leases) and not lag.transactions and not lag.damaged


class _Prompt:
    """
    A publisher whose broker asks for no pause.
    """

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher

    @property
    def lanes(self) -> int:
        return self._publisher.lanes

    async def publish(self, lane: int, messages: Sequence[OutboundMessage]) -> None:
        try:
            await self._publisher.publish(lane, messages)
        except BrokerUnavailable as error:
            if error.retry_after is not None:
                error.retry_after = 0.0
            raise
