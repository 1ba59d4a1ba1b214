"""
Inspect: read the live resources of an outbox, and try what a worker or an application has to be allowed to do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from azure.core.exceptions import AzureError
from azure.cosmos.aio import ContainerProxy

from cosmos_outbox.adapters.cosmos.client import has_several_write_regions
from cosmos_outbox.adapters.cosmos.errors import translated
from cosmos_outbox.adapters.cosmos.parked import CosmosParked
from cosmos_outbox.adapters.servicebus.preflight import Inspection, Miss, open_link
from cosmos_outbox.adapters.servicebus.source_preflight import receiving_miss, source_preflight
from cosmos_outbox.changefeed import estimate_lag
from cosmos_outbox.changefeed.coverage import located
from cosmos_outbox.changefeed.leases import STANDSTILL
from cosmos_outbox.changefeed.naming import others_on, own_prefix
from cosmos_outbox.cli.doctor.coverage import gaps, overlaps
from cosmos_outbox.cli.doctor.permissions import (
    OF_LEASES,
    OF_WRITERS,
    UNANSWERED,
    Operation,
    denied_operations,
)
from cosmos_outbox.cli.doctor.rules import ContainerDescription, LeaseDescription, Resources
from cosmos_outbox.cli.leases.actions import listed_in
from cosmos_outbox.consumer import Consumer, Inbox, OnFailure
from cosmos_outbox.errors import (
    BrokerUnavailable,
    ConfigurationError,
    OutboxError,
    RangeGone,
    StoreUnavailable,
    SubscriptionUnavailable,
)
from cosmos_outbox.parking import ParkedKeys, Scope
from cosmos_outbox.parking.park import DEFAULT_MAX_KEYS
from cosmos_outbox.partition_key import ON_PARTITION_KEY, KeyPaths
from cosmos_outbox.ports import ChangeFeed, ParkedStore, StartFrom
from cosmos_outbox.retries import RetryOptions, retry_reads
from cosmos_outbox.service.connection import Connection
from cosmos_outbox.service.consumer_settings import ConsumerSettings
from cosmos_outbox.service.polling import parked_in

_SECONDS_A_RANGE = 5.0
# Each call makes several requests, which have limits of their own.
_SEVERAL = RetryOptions(deadline_seconds=40.0, attempt_seconds=40.0)
_BY_PARTITION_KEY = ("/partitionKey",)


async def inspect(outbox: Connection, *, expiration: timedelta) -> Resources:
    """
    Return the resources as they are; what could not be read is among the refused or unanswered operations.

    Args:
        outbox: the open connection.
        expiration: a lease not written for this long is free.
    """
    found = await _begun(outbox)
    data, deletes = found.data, outbox.settings.delete_after_publish is not None
    found.deletes, found.most_parked_keys = deletes, DEFAULT_MAX_KEYS
    found.event_ttl = timedelta(seconds=outbox.settings.event_ttl_seconds)
    container = await _container(outbox.lease_container, found)
    found.lease_container = container
    if data.key_paths is not None and container.known:
        read_feed = partial(_read_any_range, outbox.feed)
        allowed = await _tried("read the change feed", lambda: retry_reads(read_feed, _SEVERAL), found)
        # A feed that does not answer says nothing about the leases.
        if (allowed or not found.denied) and await _names(outbox, found) and found.misnamed is None:
            await _leases(outbox, expiration, found)
    if container.partition_key in (("/id",), _BY_PARTITION_KEY):
        await _try_documents("leases", outbox.lease_container, OF_LEASES, found)
    if deletes and data.key_paths is not None:
        await _try_documents("events", outbox.data, [Operation.DELETE], found, data.key_paths)
    if outbox.parked is not None:
        found.parked = await _container(outbox.parked, found)
        # The resource id of the data container names the keys that are ours.
        usable = data.key_paths is not None and found.parked.partition_key == _BY_PARTITION_KEY
        if usable and await _try_documents("parked keys", outbox.parked, OF_WRITERS, found):
            await _tried("list parked keys", partial(_parked_keys, outbox, outbox.parked, found), found)
    await _topics(outbox, found)
    return found


async def inspect_for_application(outbox: Connection) -> Resources:
    """
    Return what a program needs that commits events: its container, and what it may do there.
    """
    found = await _begun(outbox)
    if (paths := found.data.key_paths) is not None:
        await _try_documents("entities and events", outbox.data, OF_WRITERS, found, paths)
    return found


async def inspect_for_consumer(
    outbox: Connection, settings: ConsumerSettings, consumer: Consumer
) -> Resources:
    """
    Return what a consumer needs: its container, its subscription or queue, its parked store, and what it may do there.
    """
    found = await inspect_for_application(outbox)
    scope = Scope(processor=consumer.name, container=settings.source)
    misses: list[Miss] = []
    if outbox.parked is not None:
        found.parked = await _container(outbox.parked, found)
        usable = found.parked.partition_key == _BY_PARTITION_KEY
        if usable and await _try_documents("parked keys", outbox.parked, OF_WRITERS, found):
            listed = partial(_keys_of, outbox.parked_store, outbox.parked, scope, found)
            await _tried("list parked keys", listed, found)
    elif consumer.policy.on_failure is OnFailure.PARK:
        misses.append(
            Miss(
                check="parked-container",
                message=f"The consumer {consumer.name!r} parks failed messages, but no parked container is set: it does not start.",
                fix='Set OUTBOX_PARKED_CONTAINER, or say on_failure="dead_letter".',
            )
        )
    try:
        async with outbox.service_bus() as bus:
            miss = await receiving_miss(
                bus, settings.topic, settings.subscription, sessions=settings.sessions
            )
    except ConfigurationError as error:
        misses.append(
            Miss(
                check="subscription",
                message=str(error),
                fix="Set it; the consumer does not start without it.",
            )
        )
    except SubscriptionUnavailable as error:
        found.unanswered += ((f"receive from {settings.source!r}", str(error)),)
    else:
        if miss is not None:
            misses.append(miss)
        else:
            policy = consumer.policy
            record_ttl = None if policy.inbox is Inbox.WATERMARK else policy.record_ttl
            found.topics = await source_preflight(
                settings.topic,
                settings.subscription,
                sessions=settings.sessions,
                deliveries=policy.least_delivery_count,
                record_ttl=record_ttl,
                **outbox.namespace,
            )
    found.topics = replace(found.topics, misses=(*misses, *found.topics.misses))
    return found


async def _begun(outbox: Connection) -> Resources:
    found = Resources(data=ContainerDescription(name=outbox.data.id))
    found.data = await _container(outbox.data, found)
    found.several_write_regions = has_several_write_regions(outbox.client)
    return found


async def _read_any_range(feed: ChangeFeed) -> None:
    """
    Read one range of the feed: one that is throttled or silent says nothing about the others.

    Raises:
        StoreError: the feed may not be read; or no range answered, for the reason that the last one gave.
    """
    container_rid = (await feed.describe()).container_rid
    failure: OutboxError = StoreUnavailable()
    for one in await feed.physical_ranges():
        try:
            async with asyncio.timeout(_SECONDS_A_RANGE):
                await feed.read_page(
                    one, container_rid=container_rid, continuation=None, start=StartFrom.NOW, max_items=1
                )
        except TimeoutError:
            failure = StoreUnavailable(f"No answer in {_SECONDS_A_RANGE:g} s.")
        except (*UNANSWERED, RangeGone) as error:
            failure = error
        else:
            return
    raise failure


async def _container(container: ContainerProxy, found: Resources) -> ContainerDescription:
    async def read() -> Mapping[str, Any]:
        async with translated():
            return await container.read()

    try:
        properties = await retry_reads(read, RetryOptions())
    except ConfigurationError:
        return ContainerDescription(name=container.id, exists=False)
    except UNANSWERED as error:
        _note(found, f"read container {container.id!r}", error)
        return ContainerDescription(name=container.id, answered=False)
    except OutboxError as error:
        return ContainerDescription(name=container.id, error=str(error))
    return ContainerDescription(
        name=container.id,
        partition_key=tuple((properties.get("partitionKey") or {}).get("paths") or ()),
        default_ttl=properties.get("defaultTtl"),
    )


async def _names(outbox: Connection, found: Resources) -> bool:
    """
    Find whether the processor's leases lie under the account's own name, and which other processors have leases.
    """

    async def read() -> None:
        container = await retry_reads(outbox.feed.describe, _SEVERAL)
        name = outbox.settings.processor_name
        others = partial(others_on, container, processor_name=name, leases=outbox.leases)
        found.other_processors = await retry_reads(others, _SEVERAL)
        try:
            await own_prefix(container, processor_name=name, leases=outbox.leases)
        except ConfigurationError as error:
            found.misnamed = str(error)

    return await _tried("list leases", read, found)


async def _leases(outbox: Connection, expiration: timedelta, found: Resources) -> None:
    async def read() -> None:
        prefix = await retry_reads(outbox.prefix, _SEVERAL)
        listing = await retry_reads(lambda: outbox.leases.list(f"{prefix}.."), _SEVERAL)
        now = listing.read_at
        skew = datetime.now(UTC) - now
        physical = await retry_reads(outbox.feed.physical_ranges, _SEVERAL)
        unplaced = listed_in(listing)
        placed, _ = await located([one.lease for one in unplaced], physical, outbox.feed)
        listed = [replace(one, lease=lease) for one, lease in zip(unplaced, placed, strict=True)]
        processor = outbox.settings.processor_name
        lag = await retry_reads(
            lambda: estimate_lag(processor, feed=outbox.feed, leases=outbox.leases), _SEVERAL
        )
        waiting = {lease.lease: lease for lease in lag.leases}
        whole = [one.lease for one in listed if not one.error]
        found.leases = tuple(
            LeaseDescription(
                token=lease.token,
                worked_on=not lease.expired(now, expiration),
                transactions=waiting[lease.id].transactions if lease.id in waiting else 0,
                oldest_age=waiting[lease.id].oldest_age if lease.id in waiting else None,
                standstill=lease.properties.get(STANDSTILL),
            )
            for lease in whole
        )
        found.heartbeats = await retry_reads(outbox.fleet.heartbeats, _SEVERAL)
        found.damaged_leases = tuple(one.error for one in listed if one.error)
        found.leases_ahead = tuple(lag.ahead.values())
        found.overlaps = overlaps(whole, now=now, expiration=expiration)
        missing = gaps(physical, listed) if listed else ()
        found.uncovered_ranges = tuple(f"{gap.min or '0'}-{gap.max}" for gap in missing)
        found.clock_skew = skew
        found.unanswered += tuple(
            (f"read what waits for lease {name}", reason) for name, reason in lag.unseen.items()
        )

    await _tried("read the leases", read, found)


async def _parked_keys(outbox: Connection, container: ContainerProxy, found: Resources) -> None:
    container_rid = (await outbox.feed.describe()).container_rid
    scope = Scope(processor=outbox.settings.processor_name, container=container_rid)
    await _keys_of(outbox.parked_store, container, scope, found)


async def _keys_of(
    store: Callable[[], Awaitable[ParkedStore]], container: ContainerProxy, scope: Scope, found: Resources
) -> None:
    parked = await parked_in(ParkedKeys(await store(), scope=scope))
    found.damaged_keys, found.parked_keys = tuple(map(str, parked.unreadable.values())), parked
    scopes = await retry_reads(CosmosParked(container).scopes, RetryOptions())
    found.strange_keys = {
        _owner(processor, of, scope): keys
        for (processor, of), keys in sorted(scopes.items())
        if (processor, of) != (scope.processor, scope.container)
    }


def _owner(name: str, of: str, ours: Scope) -> str:
    if of == ours.container:
        return f"processor {name!r}" if "/" not in of else f"consumer {name!r}"
    # A consumer's scope is its subscription, a processor's the resource id of a container.
    return f"consumer {name!r} of {of}" if "/" in of else f"processor {name!r} of another container ({of})"


async def _try_documents(
    what: str,
    container: ContainerProxy,
    operations: Sequence[Operation],
    found: Resources,
    paths: KeyPaths = ON_PARTITION_KEY,
) -> bool:
    denied = await denied_operations(container, operations, paths)
    for operation, error in denied:
        _note(found, f"{operation} {what}", error)
    return not denied


async def _topics(outbox: Connection, found: Resources) -> None:
    try:
        async with outbox.service_bus() as bus:
            for topic in outbox.settings.topics.topics:
                await _tried(f"send to topic {topic!r}", partial(open_link, bus, topic), found)
    except ConfigurationError as error:
        fix = "Set it as the workers need it; they do not start without it."
        found.topics = Inspection(misses=(Miss(check="topic", message=str(error), fix=fix),))
        return
    found.topics = await outbox.inspect_topics()


async def _tried(operation: str, attempt: Callable[[], Awaitable[None]], found: Resources) -> bool:
    try:
        await attempt()
    except (OutboxError, AzureError) as error:
        _note(found, operation, error)
        return False
    return True


def _note(found: Resources, operation: str, error: Exception) -> None:
    reason = (operation, " ".join(str(error).split()))
    if isinstance(error, (*UNANSWERED, BrokerUnavailable)):
        found.unanswered += (reason,)
    else:
        found.denied += (reason,)
