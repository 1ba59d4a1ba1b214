"""
Describing: look at the live resources of an outbox, and try what a worker or an application has to be allowed to do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from azure.core.exceptions import AzureError
from azure.cosmos.aio import ContainerProxy
from azure.identity.aio import DefaultAzureCredential
from azure.servicebus.aio import ServiceBusClient

from cosmos_outbox.adapters.cosmos_errors import translated
from cosmos_outbox.adapters.cosmos_parked import CosmosParked
from cosmos_outbox.adapters.service_bus_preflight import Inspection, Miss, preflight
from cosmos_outbox.changefeed import estimate_lag
from cosmos_outbox.cli.coverage import Overlap, gaps, overlaps
from cosmos_outbox.cli.findings import ContainerDescription, LeaseDescription, Resources
from cosmos_outbox.cli.leases import seen_in
from cosmos_outbox.cli.target import Opened, Target, opened_bus
from cosmos_outbox.cli.trials import OF_APPLICATIONS, OF_LEASES, OF_PARKED_KEYS, Operation, refusals
from cosmos_outbox.errors import ConfigurationError, NotFound, OutboxError, ParkingError
from cosmos_outbox.ports import StartFrom
from cosmos_outbox.relay import ParkedKeys
from cosmos_outbox.relay.routing import parse_routes

_SECONDS = 15.0
_Denied = list[tuple[str, str]]


async def describe(opened: Opened, *, expiration: timedelta) -> Resources:
    """
    Return the resources as they are; what cannot be looked at is described as such.
    """
    denied: _Denied = []
    data, lease_container = await _container(opened.data), await _container(opened.lease_container)
    usable = all(one.exists and one.error is None for one in (data, lease_container))
    leases: _Leases | None = None
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
            leases = await _leases(opened, expiration, denied)
    if lease_container.partition_key in (("/id",), ("/partitionKey",)):
        await _try_documents("leases", opened.lease_container, OF_LEASES, denied)
    if opened.target.delete_after_publish and data.exists and data.error is None:
        await _try_documents("events", opened.data, [Operation.DELETE], denied)
    parked = await _container(opened.parked) if opened.parked else None
    damaged_keys: tuple[str, ...] = ()
    if (
        opened.parked
        and parked
        and parked.partition_key == ("/partitionKey",)
        and await _try_documents("parked keys", opened.parked, OF_PARKED_KEYS, denied)
    ):
        damaged_keys = await _damaged_keys(opened.parked, denied)
    topics = await _topics(opened.target, denied)
    return Resources(
        data=data,
        lease_container=lease_container,
        parked=parked,
        leases=leases.described if leases else None,
        damaged_leases=leases.damaged if leases else (),
        damaged_keys=damaged_keys,
        overlaps=leases.overlaps if leases else (),
        uncovered_ranges=leases.uncovered if leases else (),
        denied=tuple(denied),
        topics=topics,
        clock_skew=leases.skew if leases else None,
    )


async def describe_for_application(opened: Opened) -> Resources:
    """
    Return what a program needs that commits events: its container, and what it may do there.
    """
    denied: _Denied = []
    data = await _container(opened.data)
    if data.partition_key == ("/partitionKey",):
        await _try_documents("entities and events", opened.data, OF_APPLICATIONS, denied)
    return Resources(data=data, denied=tuple(denied))


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Leases:
    described: tuple[LeaseDescription, ...]
    damaged: tuple[str, ...]
    overlaps: tuple[Overlap, ...]
    uncovered: tuple[str, ...]
    skew: timedelta


async def _leases(opened: Opened, expiration: timedelta, denied: _Denied) -> _Leases | None:
    try:
        listing = await opened.leases.list(f"{await opened.prefix()}..")
        now = listing.read_at
        skew = datetime.now(UTC) - now
        physical = await opened.feed.physical_ranges()
        lag = await estimate_lag(opened.target.processor, feed=opened.feed, leases=opened.leases)
    except OutboxError as error:
        denied.append(("list leases", _first_line(error)))
        return None
    seen = seen_in(listing)
    whole = [one.lease for one in seen if not one.mistake]
    waiting = {lease.lease: lease.transactions for lease in lag.leases}
    return _Leases(
        described=tuple(
            LeaseDescription(
                token=lease.token,
                worked_on=not lease.expired(now, expiration),
                transactions=waiting.get(lease.id, 0),
            )
            for lease in whole
        ),
        damaged=tuple(one.mistake for one in seen if one.mistake),
        overlaps=overlaps(physical, whole, now=now, expiration=expiration),
        uncovered=tuple(f"{gap.min or '0'}-{gap.max}" for gap in gaps(physical, seen)) if seen else (),
        skew=skew,
    )


async def _damaged_keys(container: ContainerProxy, denied: _Denied) -> tuple[str, ...]:
    mistakes: list[str] = []

    def note(_: str, error: ParkingError) -> None:
        mistakes.append(str(error))

    try:
        await ParkedKeys(CosmosParked(container)).list(unreadable=note)
    except ParkingError as error:  # the index, without which nobody knows which keys there are
        mistakes.append(str(error))
    except OutboxError as error:
        denied.append(("list parked keys", _first_line(error)))
    return tuple(mistakes)


async def _try_documents(
    what: str, container: ContainerProxy, operations: Sequence[Operation], denied: _Denied
) -> bool:
    refused = await refusals(container, operations)
    denied += [(f"{operation} {what}", _first_line(error)) for operation, error in refused]
    return not refused


async def _topics(target: Target, denied: _Denied) -> Inspection:
    try:
        async with opened_bus(target) as (bus, default):
            topics = parse_routes(target.routes, default=default).topics
            for topic in topics:
                await _try_sending(bus, topic, denied)
    except ConfigurationError as error:
        fix = "Set it as the workers need it; they do not start like this."
        return Inspection(misses=(Miss(check="topic", message=str(error), fix=fix),))
    credential = None if target.servicebus_connection_string else DefaultAzureCredential()
    async with credential or nullcontext():
        return await preflight(
            topics,
            batch_scope=target.batch_scope,
            connection_string=target.servicebus_connection_string,
            namespace=target.servicebus_namespace,
            credential=credential,
        )


async def _try_sending(bus: ServiceBusClient, topic: str, denied: _Denied) -> None:
    async def open_link() -> None:
        # An empty call opens no link; a batch is made for a link that is open, and is then thrown away.
        sender = bus.get_topic_sender(topic)
        try:
            async with asyncio.timeout(_SECONDS):
                await sender.create_message_batch()
        finally:
            await sender.close()

    try:
        await _tried(f"send to topic {topic!r}", open_link, denied)
    except TimeoutError:
        denied.append((f"send to topic {topic!r}", f"no answer in {_SECONDS:g} s"))


async def _tried(what: str, attempt: Callable[[], Awaitable[None]], denied: _Denied) -> bool:
    try:
        await attempt()
    except (OutboxError, AzureError) as error:
        denied.append((what, _first_line(error)))
        return False
    return True


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]
