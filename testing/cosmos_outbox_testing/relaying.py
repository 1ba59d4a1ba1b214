"""Relaying: run a worker's processor and relay until nothing waits, without waiting for time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from cosmos_outbox.changefeed import ChangeFeedProcessor, CloseReason, ProcessorOptions
from cosmos_outbox.documents import claims_to_be_an_event
from cosmos_outbox.errors import BrokerUnavailable
from cosmos_outbox.messages import OutboundMessage
from cosmos_outbox.parking import Parking
from cosmos_outbox.ports import ChangeFeed, LeaseStore, Publisher
from cosmos_outbox.records import (
    Hook,
    LeaseMoved,
    LeasesBalanced,
    MessagesPublished,
    PageFailed,
    PageHandled,
    PublishFailed,
    Record,
)
from cosmos_outbox.relay import Relay
from cosmos_outbox_testing.running import AT_ONCE, MOMENT, SHORT_WHILE, Progress, Stuck

_ATTEMPTS = 100  # failures in a row; the verdict on a broker needs 15 of them


async def relay_everything(
    *,
    name: str,
    feed: ChangeFeed,
    leases: LeaseStore,
    publisher: Publisher,
    parking: Parking,
    notify: Hook,
    stored: ChangeFeed,
    pause: timedelta = MOMENT,
) -> None:
    """
    Run one worker until every change of the feed is sent or parked, and its checkpoint is written.

    Args:
        name: of the processor.
        feed, leases, publisher, parking: what the worker uses.
        notify: hears what it reports.
        stored: the feed as it is, which names the ranges.
        pause: between two looks. Defaults to a millisecond.

    Raises:
        Stuck: it failed many times in a row, or did nothing for long.
        OutboxError: as `ChangeFeedProcessor.run`.
    """
    progress, unsaved = Progress(attempts=_ATTEMPTS), list[BaseException]()

    def heard(record: Record) -> None:
        if isinstance(record, PageFailed | PublishFailed | LeasesBalanced) and record.error is not None:
            progress.failed(record.error)
        elif isinstance(record, PageHandled | MessagesPublished):
            progress.moved()
        elif isinstance(record, LeaseMoved) and record.outcome == CloseReason.STOPPED and record.error:
            unsaved.append(record.error)
        notify(record)

    relay = Relay(_Prompt(publisher), parking=parking, backoff=AT_ONCE, notify=heard)
    options = ProcessorOptions(
        processor_name=name,
        instance_name=name,  # of all workers, so that one takes at once what one before it left when it was killed
        wanted=claims_to_be_an_event,
        acquire_interval=SHORT_WHILE,
        checkpoint_interval=timedelta(0),
        min_poll_interval=pause,
        max_poll_interval=SHORT_WHILE,
        backoff=AT_ONCE,
    )
    processor = ChangeFeedProcessor(feed, leases, relay, options, hooks=(heard,))

    async def is_done() -> bool:
        ranges = processor.status()
        # A worker that has just begun takes its leases one by one.
        return len(ranges) >= len(await stored.physical_ranges()) and all(one.lag == 0 for one in ranges)

    await progress.run(processor, until=is_done, pause=pause)
    if unsaved:
        raise Stuck(f"The last checkpoint could not be written: {unsaved[0]}") from unsaved[0]


class _Prompt:
    """A publisher whose broker asks for no pause."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher, self.lanes = publisher, publisher.lanes

    async def publish(self, lane: int, messages: Sequence[OutboundMessage]) -> None:
        try:
            await self._publisher.publish(lane, messages)
        except BrokerUnavailable as error:
            if error.retry_after is not None:
                error.retry_after = 0.0
            raise
