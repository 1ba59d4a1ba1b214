"""
A relay in a function with a Cosmos DB trigger: it sends one batch, and asks the parked store which of its keys are parked, as a lease would say.
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

_ASKED_AT_ONCE = 8  # keys of one batch that it asks for at the same time


class TriggeredRelay:
    """
    Publish the events of each batch that a Cosmos DB trigger passes; the invocations of a process share one.

        await relay(documents)

    Args:
        publisher: publishes to the topic.
        container: the monitored container, as `CosmosChangeFeed(…).describe()` returns it.
        processor: the name under which keys are parked, for `OUTBOX_PROCESSOR_NAME` of the commands. One that no worker on this
            container has.
        parking: holds the events of a partition key whose next event can never be sent. Defaults to none: such an event keeps its
            batch from being done.
        patience: how long one call tries. It must be shorter than `functionTimeout`. Defaults to 2 minutes.
        notify: as for `Relay`.
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
        # The trigger does not name the lease of a batch, so each call acts as the owner of a newly acquired lease.
        self._idle: list[str] = []
        self._names, self._tenures = itertools.count(1), itertools.count(1)

    async def __call__(self, documents: func.DocumentList) -> None:
        """
        Return when the topic has accepted every event of the batch, or the parked store holds it.

        Raises:
            ConfigurationError: the documents have no `_lsn`, so their order is not known. Nothing was sent.
            BrokerUnavailable: `patience` ended before the batch was done.
            OutboxError: as `Relay.handle`, and where the parked store does not say which keys are parked.
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
        Return which of these keys are parked. All events that were held for the others have been sent by now.

        Raises:
            StoreError: the store refused or failed.
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
