"""Run a worker in a test until no event waits. It reads the change feed without the pauses of a real worker."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from cosmos_outbox.changefeed import ChangeFeedProcessor, CloseReason, ProcessorOptions
from cosmos_outbox.errors import BrokerUnavailable
from cosmos_outbox.message_format import OutboundMessage
from cosmos_outbox.parking import Parking
from cosmos_outbox.ports import ChangeFeed, LeaseStore, Publisher
from cosmos_outbox.records import (
    EventRejected,
    EventsHeld,
    Hook,
    KeyParked,
    LeaseMoved,
    LeasesBalanced,
    MessagesPublished,
    PageFailed,
    PageHandled,
    PublishFailed,
    Record,
    TopicFull,
)
from cosmos_outbox.relay import Relay
from cosmos_outbox.stored_documents import claims_to_be_an_event
from cosmos_outbox_testing.running import (
    AT_ONCE,
    MOMENT,
    SHORT_WHILE,
    Allows,
    Progress,
    Stuck,
    require_no_failures,
)


async def relay_everything(
    *,
    name: str,
    feed: ChangeFeed,
    leases: LeaseStore,
    publisher: Publisher,
    parking: Parking,
    notify: Hook,
    stored: ChangeFeed,
    allows: Allows,
) -> None:
    """
    Run one worker until every event of the change feed is sent or parked, and its checkpoints are written.

    Args:
        name: the name of the processor.
        feed, leases, publisher, parking: the ports that the worker uses.
        notify: is called with each record that the worker reports.
        stored: the same change feed without the faults of the test, to find out which ranges exist.
        allows: returns whether the test asked for the error because of which an event was parked or held.

    Raises:
        MessagesFailed: events were parked or held with errors that `allows` does not allow.
        Stuck: the worker failed many times in a row, or made no progress for a long time.
        OutboxError: `ChangeFeedProcessor.run` raised it.
    """
    # Allow many failures, because a worker needs up to 15 in a row to judge whether the topic or an event is at fault.
    progress = Progress(attempts=100)
    moved, records = list[LeaseMoved](), list[Record]()

    def hear(record: Record) -> None:
        records.append(record)
        failures = PageFailed | PublishFailed | TopicFull | LeasesBalanced
        if isinstance(record, failures) and record.error is not None:
            progress.note_failure(record.error)
        elif isinstance(record, PageHandled | MessagesPublished):
            progress.note_move()
        elif isinstance(record, LeaseMoved):
            moved.append(record)
        notify(record)

    relay = Relay(_Prompt(publisher), parking=parking, backoff=AT_ONCE, notify=hear)
    options = ProcessorOptions(
        processor_name=name,
        # All workers have the same instance name. So a new worker takes the leases of a killed worker at once, before they expire.
        instance_name=name,
        wanted=claims_to_be_an_event,
        acquire_interval=SHORT_WHILE,
        checkpoint_interval=timedelta(0),
        min_poll_interval=MOMENT,
        max_poll_interval=SHORT_WHILE,
        backoff=AT_ONCE,
    )
    processor = ChangeFeedProcessor(feed, leases, relay, options, hooks=(hear,))

    async def is_done() -> bool:
        # A worker takes its leases one by one. So wait until it has taken a lease for each range, and has caught up in all of them.
        ranges = processor.status() if moved else ()
        caught_up = all(one.lag == 0 for one in ranges)
        return caught_up and len(ranges) >= len(await stored.physical_ranges())

    await progress.run(processor, until=is_done)
    for one in moved:
        if one.outcome == CloseReason.STOPPED and one.error is not None:
            raise Stuck(f"The worker could not save its last checkpoint: {one.error}") from one.error
    require_no_failures(_failures(records), allows)


def _failures(records: Sequence[Record]) -> list[tuple[str, BaseException | None]]:
    """Describe the events that a worker parked or held, according to its records. Return each description with its error."""
    errors = {record.event_id: record.error for record in records if isinstance(record, EventRejected)}
    failures: list[tuple[str, BaseException | None]] = []
    parked: dict[str, BaseException | None] = {}
    for record in records:
        match record:
            case KeyParked(event_id=event, partition_key=key, reason=reason, error=error):
                said = f"Event {event!r} of partition key {key!r} ended parked: {reason}: {error}"
                parked[key] = errors.get(event)
                failures.append((said, parked[key]))
            case EventsHeld(outcome="held", events=events, partition_key=key):
                said = f"{events} more of partition key {key!r} ended held behind the parked event."
                failures.append((said, parked.get(key)))
    return failures


class _Prompt:
    """A publisher for tests. If a broker asks for a pause before the next attempt, it shortens the pause to zero, so tests do not wait."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher, self.lanes = publisher, publisher.lanes

    async def publish(self, lane: int, messages: Sequence[OutboundMessage]) -> None:
        try:
            await self._publisher.publish(lane, messages)
        except BrokerUnavailable as error:
            if error.retry_after is not None:
                error.retry_after = 0.0
            raise
