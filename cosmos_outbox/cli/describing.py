"""
Describing: look at the live resources of an outbox, and try what a worker has to be allowed to do.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

from azure.core.exceptions import AzureError
from azure.cosmos.aio import ContainerProxy
from azure.identity.aio import DefaultAzureCredential
from azure.servicebus.aio.management import ServiceBusAdministrationClient
from azure.servicebus.management import SubscriptionProperties, TopicProperties

from cosmos_outbox.adapters.cosmos_errors import translated
from cosmos_outbox.changefeed import estimate_lag
from cosmos_outbox.changefeed.bootstrap import uncovered
from cosmos_outbox.cli.findings import (
    ContainerDescription,
    LeaseDescription,
    Resources,
    SubscriptionDescription,
    TopicDescription,
)
from cosmos_outbox.cli.leases import leases_in
from cosmos_outbox.cli.target import Opened, Target, opened_bus
from cosmos_outbox.errors import ConfigurationError, NotFound, OutboxError
from cosmos_outbox.ports import LeaseStore, StartFrom

_NEVER = timedelta(days=3650)  # the service says "never" with the longest time it knows
_SECONDS = 15.0
_Denied = list[tuple[str, str]]


async def describe(opened: Opened, *, expiration: timedelta) -> Resources:
    """
    Return the resources as they are; what cannot be looked at is described as such.
    """
    denied: _Denied = []
    data, lease_container = await _container(opened.data), await _container(opened.lease_container)
    usable = all(one.exists and one.error is None for one in (data, lease_container))
    leases: tuple[LeaseDescription, ...] | None = None
    missing: tuple[str, ...] = ()
    skew: timedelta | None = None
    if usable:
        feed = opened.feed

        async def read_feed() -> None:
            ranges = await feed.physical_ranges()
            await feed.read_page(
                ranges[0].range,
                container_rid=(await feed.describe()).container_rid,
                continuation=None,
                start=StartFrom.NOW,
                max_items=1,
            )

        if await _tried("read the change feed", read_feed, denied):
            leases, missing, skew = await _leases(opened, expiration, denied)
        if lease_container.partition_key in (("/id",), ("/partitionKey",)):
            await _try_writing(opened.leases, by_id=lease_container.partition_key == ("/id",), denied=denied)
    topic, unknown = await _topic(opened.target, denied)
    return Resources(
        data=data,
        lease_container=lease_container,
        parked=await _container(opened.parked) if opened.parked else None,
        leases=leases,
        uncovered_ranges=missing,
        denied=tuple(denied),
        topic=topic,
        topic_unknown=unknown,
        clock_skew=skew,
    )


def described_topic(
    name: str,
    topic: TopicProperties,
    subscriptions: list[SubscriptionProperties],
) -> TopicDescription:
    """
    Return what the management interface of Service Bus says of a topic.
    """
    idle = topic.auto_delete_on_idle
    return TopicDescription(
        name=name,
        active=str(topic.status) == "Active",
        detects_duplicates=bool(topic.requires_duplicate_detection),
        window=_duration(topic.duplicate_detection_history_time_window) or timedelta(0),
        partitioned=bool(topic.enable_partitioning),
        auto_delete_on_idle=None if (length := _duration(idle)) is None or length >= _NEVER else length,
        subscriptions=tuple(
            SubscriptionDescription(
                name=subscription.name,
                requires_session=bool(subscription.requires_session),
                active=str(subscription.status) == "Active",
                dead_letters_on_expiry=bool(subscription.dead_lettering_on_message_expiration),
            )
            for subscription in subscriptions
        ),
    )


async def _container(container: ContainerProxy) -> ContainerDescription:
    try:
        async with translated():
            properties = await container.read()
    except (NotFound, ConfigurationError):
        return ContainerDescription(name=container.id, exists=False)
    except OutboxError as error:
        return ContainerDescription(name=container.id, error=str(error))
    return ContainerDescription(
        name=container.id,
        partition_key=tuple(properties["partitionKey"]["paths"]),
        default_ttl=properties.get("defaultTtl"),
    )


async def _leases(
    opened: Opened, expiration: timedelta, denied: _Denied
) -> tuple[tuple[LeaseDescription, ...] | None, tuple[str, ...], timedelta | None]:
    try:
        listing = await opened.leases.list(f"{await opened.prefix()}..")
        skew = datetime.now(UTC) - listing.read_at
        found = leases_in(listing)
        missing = uncovered(await opened.feed.physical_ranges(), found)
        lag = await estimate_lag(opened.target.processor, feed=opened.feed, leases=opened.leases)
    except OutboxError as error:
        denied.append(("read leases", str(error)))
        return None, (), None
    waiting = {lease.lease: lease.transactions for lease in lag.leases}
    described = tuple(
        LeaseDescription(
            token=lease.token,
            worked_on=not lease.expired(listing.read_at, expiration),
            transactions=waiting.get(lease.id, 0),
        )
        for lease in found
    )
    gaps = tuple(f"{gap.min or '0'}-{gap.max}" for gap in missing)
    return described, gaps if found else (), skew


async def _try_writing(store: LeaseStore, *, by_id: bool, denied: _Denied) -> None:
    """
    Create, replace and delete a document that no processor takes for a lease.
    """
    name = f"cosmos-outbox-doctor-{uuid.uuid4()}"
    # It goes by itself where it may not be deleted.
    document: dict[str, object] = {"id": name, "ttl": 60} | ({} if by_id else {"partitionKey": name})
    stored: dict[str, object] = {}

    async def create() -> None:
        stored.update(await store.create(document))

    async def replace() -> None:
        stored.update(await store.replace(document, etag=str(stored["_etag"])))

    async def delete() -> None:
        await store.delete(name, name)

    if await _tried("create leases", create, denied):
        await _tried("replace leases", replace, denied)
        await _tried("delete leases", delete, denied)


async def _topic(target: Target, denied: _Denied) -> tuple[TopicDescription | None, str | None]:
    try:
        async with asyncio.timeout(_SECONDS), opened_bus(target) as (bus, topic):

            async def open_link() -> None:
                # An empty call opens no link; a batch is made for a link that is open, and is then thrown away.
                sender = bus.get_topic_sender(topic)
                try:
                    await sender.create_message_batch()
                finally:
                    await sender.close()

            await _tried("send to the topic", open_link, denied)
    except ConfigurationError as error:
        return None, str(error)
    except TimeoutError:
        denied.append(("send to the topic", f"no answer in {_SECONDS:g} s"))
    if "UseDevelopmentEmulator=true" in (target.servicebus_connection_string or ""):
        return None, "the namespace is an emulator."
    try:
        async with asyncio.timeout(_SECONDS):
            return await _managed(target), None
    except (AzureError, TimeoutError, ValueError) as error:
        return None, f"{type(error).__name__}: {error}".splitlines()[0]


async def _managed(target: Target) -> TopicDescription:
    name = str(target.topic)
    if target.servicebus_connection_string is not None:
        client = ServiceBusAdministrationClient.from_connection_string(target.servicebus_connection_string)
        async with client:
            return await _asked(client, name)
    async with (
        DefaultAzureCredential() as credential,
        ServiceBusAdministrationClient(str(target.servicebus_namespace), credential) as client,
    ):
        return await _asked(client, name)


async def _asked(client: ServiceBusAdministrationClient, name: str) -> TopicDescription:
    topic = await client.get_topic(name)
    return described_topic(name, topic, [one async for one in client.list_subscriptions(name)])


async def _tried(what: str, attempt: Callable[[], Awaitable[None]], denied: _Denied) -> bool:
    try:
        await attempt()
    except (OutboxError, AzureError) as error:
        denied.append((what, str(error).splitlines()[0]))
        return False
    return True


def _duration(length: timedelta | str | None) -> timedelta | None:
    if length is None or isinstance(length, timedelta):
        return length
    # ISO 8601, as the interface writes it: P10675199DT2H48M5.4775807S, PT10M
    days, _, clock = length.removeprefix("P").partition("T")
    parts = {"D": 0.0, "H": 0.0, "M": 0.0, "S": 0.0}
    number = ""
    for character in days + clock:
        if character in parts:
            parts[character], number = float(number), ""
        else:
            number += character
    return timedelta(days=parts["D"], hours=parts["H"], minutes=parts["M"], seconds=parts["S"])
