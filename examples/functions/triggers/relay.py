"""
Send the events of a batch in a function with a Cosmos DB trigger.

A worker's lease says which keys are parked. A function has no lease, so the relay asks the parked store about the keys of each batch.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable
from datetime import timedelta

import azure.functions as func

from cosmos_outbox.errors import BrokerUnavailable, ConfigurationError, OutboxError
from cosmos_outbox.parking import Parking, Scope
from cosmos_outbox.parking.lease_notes import ParkedNames
from cosmos_outbox.ports import ChangeBatch, MonitoredContainer, Publisher
from cosmos_outbox.records import Hook, log_hook
from cosmos_outbox.relay import Relay
from cosmos_outbox.relay.sending_lanes import event_page

_ASKED_AT_ONCE = 8  # how many keys are looked up in the parked store at the same time


class TriggeredRelay:
    """
    Publish the events of the batches that a Cosmos DB trigger passes. All invocations in a process share one relay.

        await relay(documents)

    Args:
        publisher: publishes to the topic.
        container: the monitored container, as `CosmosChangeFeed(…).describe()` returns it.
        processor: the processor name under which keys are parked. No worker on this container may have the same name. Commands for
            parked keys find it in `OUTBOX_PROCESSOR_NAME`.
        parking: holds the events of a partition key whose next event can never be sent. Defaults to none: then a batch with such an
            event is never finished.
        patience: how long one call tries to send a batch. It must be shorter than `functionTimeout`. Defaults to 2 minutes.
        notify: is called with each record of the relay, as in `Relay`.
    """

    def __init__(
        self,
        publisher: Publisher,
        container: MonitoredContainer,
        *,
        processor: str,
        parking: Parking | None = None,
        patience: timedelta = timedelta(minutes=2),
        notify: Hook = log_hook,
    ) -> None:
        self._relay = Relay(publisher, parking=parking, notify=notify)
        self._container, self._parking, self._patience = container, parking, patience
        self._scope = Scope(processor=processor, container=container.container_rid)
        # The trigger does not say from which lease a batch comes. So each call gives the relay the name of a lease that no other call
        # uses at that time, and a new number (tenure), as if a worker had just acquired this lease.
        self._idle: list[str] = []
        self._names, self._tenures = itertools.count(1), itertools.count(1)

    async def __call__(self, documents: func.DocumentList) -> None:
        """
        Send a batch. Return when the topic has accepted every event of the batch, or the parked store holds the event.

        Raises:
            ConfigurationError: the documents have no `_lsn`, so their order is not known. No event was sent.
            BrokerUnavailable: `patience` ended before all events were sent or held.
            OutboxError: `Relay.handle` raised it, or the parked store did not answer which keys are parked.
        """
        changes = tuple(dict(document) for document in documents)
        if any(not isinstance(change.get("_lsn"), int) for change in changes):
            raise ConfigurationError(
                "Documents of the batch have no `_lsn`, so the order of their events is unknown: use extension "
                "bundle 4 or later, with the change feed mode 'latest version'."
            )
        lease = self._idle.pop() if self._idle else f"trigger {next(self._names)}"
        batch = ChangeBatch(
            lease=lease,
            documents=changes,
            tenure=next(self._tenures),
            processor=self._scope.processor,
            container_rid=self._container.container_rid,
            key_paths=self._container.key_paths,
        )
        page = event_page(batch)
        try:
            async with asyncio.timeout(self._patience.total_seconds()):
                if self._parking is not None:
                    keys = {delivery.event.partition_key for delivery in page.events}
                    ParkedNames(batch.notes).add(*await self._parked_of(self._parking, keys))
                await self._relay.handle(page)
        except TimeoutError as error:
            raise BrokerUnavailable(
                f"The relay did not finish the batch in {self._patience}; its log records say why. The host has to deliver the batch again."
            ) from error
        finally:
            self._idle.append(lease)

    async def _parked_of(self, parking: Parking, keys: Iterable[str]) -> list[str]:
        """
        Ask the parked store which of these keys are parked. If it held events of the other keys, a release has sent all of them.

        Raises:
            StoreError: the parked store refused a read or could not be reached.
        """
        places = asyncio.Semaphore(_ASKED_AT_ONCE)
        parked: list[str] = []
        errors: list[OutboxError] = []

        async def ask(key: str) -> None:
            async with places:
                try:
                    if not errors and await parking.is_key_parked(key, self._scope):
                        parked.append(key)
                except OutboxError as error:
                    errors.append(error)

        async with asyncio.TaskGroup() as group:
            for key in keys:
                group.create_task(ask(key))
        if errors:
            raise errors[0]
        return parked
