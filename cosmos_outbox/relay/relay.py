"""
Relay: the handler that turns pages of changes into messages, and returns when the broker has all of them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from cosmos_outbox.backoff import Backoff
from cosmos_outbox.errors import MessageRejected, PublishError
from cosmos_outbox.instrumentation import EventRejected, Hook, MessagesPublished, PublishFailed, log_hook
from cosmos_outbox.ports import ChangeBatch, Publisher
from cosmos_outbox.relay.delivery import LANE_BYTES, Delivery, EventKey, plan


@dataclass(slots=True)
class _Outcome:
    """
    How far a lane came: an event behind a rejected one of its partition key is in neither list.
    """

    accepted: set[EventKey] = field(default_factory=set)
    rejected: list[tuple[Delivery, MessageRejected]] = field(default_factory=list)


@dataclass(slots=True)
class _Lease:
    """
    What a relay remembers of a lease from page to page.
    """

    first_lane: int
    accepted: set[EventKey] = field(
        default_factory=set
    )  # what a page that could not be finished has in the topic


class Relay:
    """
    Publish the events of each batch it is called with; a handler for a ChangeFeedProcessor.

    One relay serves all leases of a worker at once.

    Args:
        publisher: the topic.
        lane_bytes: how much of a page one lane takes before another one helps. Defaults to about one batch of the
            Standard tier; on Premium, 900 KiB makes fuller batches.
        backoff: between attempts while the broker is unavailable. Defaults to 100 ms … 30 s, full jitter.
        notify: hears of every publication, failure and rejection. Defaults to logging them.
    """

    def __init__(
        self,
        publisher: Publisher,
        *,
        lane_bytes: int = LANE_BYTES,
        backoff: Backoff | None = None,
        notify: Hook = log_hook,
    ) -> None:
        self._publisher, self._lane_bytes = publisher, lane_bytes
        self._backoff, self._notify = backoff or Backoff(), notify
        self._leases: dict[str, _Lease] = {}

    async def __call__(self, batch: ChangeBatch) -> None:
        """
        Return when the broker has accepted every event of the batch; as long as it is unavailable, keep trying.

        Raises:
            MessageRejected: an event can never be sent as it is; all events of other partition keys were accepted.
        """
        # Leases begin on different lanes, or those with little to send would all wait for one another.
        lease = self._leases.setdefault(batch.lease, _Lease(first_lane=len(self._leases)))
        # A page with a rejected event comes again and again, perhaps for longer than the broker remembers ids.
        accepted, lease.accepted = lease.accepted, set()
        lanes = self._publisher.lanes
        shares = plan(batch.documents, lanes=lanes, lane_bytes=self._lane_bytes, accepted=accepted)
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._send((lease.first_lane + number) % lanes, share))
                for number, share in enumerate(shares)
            ]
        outcomes = [task.result() for task in tasks]
        rejected = [rejection for outcome in outcomes for rejection in outcome.rejected]
        if rejected:
            lease.accepted = accepted.union(*(outcome.accepted for outcome in outcomes))
            first, error = rejected[0]
            raise MessageRejected(
                f"Event {first.event.id!r} of partition key {first.event.partition_key!r} cannot be sent, and "
                f"lease {batch.lease!r} goes no further ({len(rejected)} such partition keys in this page): {error}"
            ) from error

    async def _send(self, lane: int, due: Sequence[Delivery]) -> _Outcome:
        """
        Send the deliveries of one lane in order; around a rejected one, only its own partition key stops.
        """
        outcome = _Outcome()
        stopped: set[str] = set()
        chunks = deque([list(due)])
        attempt = 0
        loop = asyncio.get_running_loop()
        while chunks:
            chunk = [delivery for delivery in chunks.popleft() if delivery.event.partition_key not in stopped]
            if not chunk:
                continue
            started = loop.time()
            try:
                await self._publisher.publish(lane, [delivery.message for delivery in chunk])
            except PublishError as error:
                outcome.accepted.update(delivery.key for delivery in chunk[: error.accepted])
                rest = chunk[error.accepted :]
                if error.retriable:
                    # The same messages first: a later one must not enter the topic before them.
                    chunks.appendleft(rest)
                    attempt = 1 if error.accepted else attempt + 1
                    await self._back_off(lane, attempt, error)
                elif not isinstance(error, MessageRejected):
                    raise
                elif len(rest) == 1:
                    outcome.rejected.append((rest[0], error))
                    stopped.add(rest[0].event.partition_key)
                    self._tell_rejected(lane, rest[0], error)
                else:
                    middle = len(rest) // 2
                    chunks.extendleft((rest[middle:], rest[:middle]))
            else:
                attempt = 0
                outcome.accepted.update(delivery.key for delivery in chunk)
                self._notify(MessagesPublished(lane=lane, messages=len(chunk), seconds=loop.time() - started))
        return outcome

    async def _back_off(self, lane: int, attempt: int, error: PublishError) -> None:
        delay = self._backoff.delay(attempt, at_least=getattr(error, "retry_after", None))
        self._notify(PublishFailed(lane=lane, attempt=attempt, delay_seconds=delay, error=error))
        await asyncio.sleep(delay)

    def _tell_rejected(self, lane: int, delivery: Delivery, error: MessageRejected) -> None:
        event = delivery.event
        self._notify(
            EventRejected(lane=lane, event_id=event.id, partition_key=event.partition_key, error=error)
        )
