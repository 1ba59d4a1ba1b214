"""
Describing: look at the live resources of an outbox, and try what a worker or an application has to be allowed to do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from azure.core.exceptions import AzureError
from azure.cosmos.aio import ContainerProxy
from azure.identity.aio import DefaultAzureCredential
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import ServiceBusServerBusyError

from cosmos_outbox.adapters.cosmos.client import has_several_write_regions
from cosmos_outbox.adapters.cosmos.errors import translated
from cosmos_outbox.adapters.cosmos.parked import CosmosParked
from cosmos_outbox.adapters.servicebus.preflight import Inspection, Miss, preflight
from cosmos_outbox.changefeed import estimate_lag
from cosmos_outbox.changefeed.naming import hosts_of_leases, others_on
from cosmos_outbox.changefeed.partitions import located
from cosmos_outbox.cli.coverage import Overlap, gaps, overlaps
from cosmos_outbox.cli.findings import ContainerDescription, LeaseDescription, Resources
from cosmos_outbox.cli.leases import seen_in
from cosmos_outbox.cli.target import Opened, Target, opened_bus
from cosmos_outbox.cli.trials import (
    OF_APPLICATIONS,
    OF_LEASES,
    OF_PARKED_KEYS,
    UNANSWERED,
    Operation,
    refusals,
)
from cosmos_outbox.errors import (
    ConfigurationError,
    NotFound,
    OutboxError,
    ParkingError,
    RangeGone,
    StoreUnavailable,
)
from cosmos_outbox.ports import ChangeFeed, StartFrom
from cosmos_outbox.relay.routing import parse_routes
from cosmos_outbox.retries import RetryOptions, retry_reads

_SECONDS = 15.0
_SECONDS_A_RANGE = 5.0
# A look makes several requests, each with a limit of its own.
_LOOK = RetryOptions(deadline_seconds=40.0, attempt_seconds=40.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failures:
    """
    What was tried and failed, with the error: because it is refused, or for a reason that may pass.
    """

    denied: list[tuple[str, str]] = field(default_factory=list)
    unanswered: list[tuple[str, str]] = field(default_factory=list)

    def note(self, what: str, error: Exception) -> None:
        passing = isinstance(error, (*UNANSWERED, ServiceBusServerBusyError))
        (self.unanswered if passing else self.denied).append((what, str(error).splitlines()[0]))


async def describe(opened: Opened, *, expiration: timedelta) -> Resources:
    """
    Return the resources as they are; what cannot be looked at is described as such.
    """
    failures = _Failures()
    data = await _container(opened.data, failures)
    lease_container = await _container(opened.lease_container, failures)
    usable = data.seen and lease_container.seen
    leases: _Leases | None = None
    names = _Names()
    if usable:
        allowed = await _tried(
            "read the change feed", lambda: retry_reads(partial(_read_any, opened.feed), _LOOK), failures
        )
        if allowed or not failures.denied:  # a feed that does not answer says nothing of the leases
            names = await _names(opened, failures)
            if names.known and len(names.hosts) <= 1:  # two sets of leases are no set to look at
                leases = await _leases(opened, expiration, failures)
    if lease_container.partition_key in (("/id",), ("/partitionKey",)):
        await _try_documents("leases", opened.lease_container, OF_LEASES, failures)
    if opened.target.delete_after_publish and data.seen:
        await _try_documents("events", opened.data, [Operation.DELETE], failures)
    parked = await _container(opened.parked, failures) if opened.parked else None
    damaged_keys: tuple[str, ...] = ()
    strange_keys: Mapping[str, int] = {}
    if (
        opened.parked
        and parked
        and data.seen  # whose keys they are, its resource id tells
        and parked.partition_key == ("/partitionKey",)
        and await _try_documents("parked keys", opened.parked, OF_PARKED_KEYS, failures)
    ):
        damaged_keys = await _damaged_keys(opened, failures)
        strange_keys = await _strange_keys(opened, opened.parked, failures)
    topics = await _topics(opened.target, failures)
    return Resources(
        data=data,
        lease_container=lease_container,
        parked=parked,
        leases=leases.described if leases else None,
        damaged_leases=leases.damaged if leases else (),
        leases_ahead=leases.ahead if leases else (),
        damaged_keys=damaged_keys,
        strange_keys=strange_keys,
        overlaps=leases.overlaps if leases else (),
        uncovered_ranges=leases.uncovered if leases else (),
        denied=tuple(failures.denied),
        unanswered=tuple(failures.unanswered),
        topics=topics,
        clock_skew=leases.skew if leases else None,
        account_host=names.account_host,
        old_hosts=tuple(host for host in names.hosts if host != names.account_host),
        other_processors=names.others,
        several_write_regions=has_several_write_regions(opened.client),
        deletes=opened.target.delete_after_publish is not None,
    )


async def describe_for_application(opened: Opened) -> Resources:
    """
    Return what a program needs that commits events: its container, and what it may do there.
    """
    failures = _Failures()
    data = await _container(opened.data, failures)
    if data.partition_key == ("/partitionKey",):
        await _try_documents("entities and events", opened.data, OF_APPLICATIONS, failures)
    return Resources(
        data=data,
        denied=tuple(failures.denied),
        unanswered=tuple(failures.unanswered),
        several_write_regions=has_several_write_regions(opened.client),
    )


async def _read_any(feed: ChangeFeed) -> None:
    """
    Read some range of the feed: one that is throttled or silent says nothing of the others.

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


async def _container(container: ContainerProxy, failures: _Failures) -> ContainerDescription:
    async def read() -> Mapping[str, Any]:
        async with translated():
            return await container.read()

    try:
        properties = await retry_reads(read, RetryOptions())
    except (NotFound, ConfigurationError):
        return ContainerDescription(name=container.id, exists=False)
    except UNANSWERED as error:
        failures.note(f"read container {container.id!r}", error)
        return ContainerDescription(name=container.id, answered=False)
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
    ahead: tuple[str, ...]
    overlaps: tuple[Overlap, ...]
    uncovered: tuple[str, ...]
    skew: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class _Names:
    known: bool = False
    account_host: str = ""
    hosts: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


async def _names(opened: Opened, failures: _Failures) -> _Names:
    """
    Return under which names the processor has leases of the container, and who else has.
    """
    processor = opened.target.processor
    try:
        container = await retry_reads(opened.feed.describe, _LOOK)
        hosts, others = [
            await retry_reads(partial(look, container, processor_name=processor, leases=opened.leases), _LOOK)
            for look in (hosts_of_leases, others_on)
        ]
    except OutboxError as error:
        failures.note("list leases", error)
        return _Names()
    return _Names(known=True, account_host=container.account_host, hosts=hosts, others=others)


async def _leases(opened: Opened, expiration: timedelta, failures: _Failures) -> _Leases | None:
    try:
        prefix = await retry_reads(opened.prefix, _LOOK)
        listing = await retry_reads(lambda: opened.leases.list(f"{prefix}.."), _LOOK)
        now = listing.read_at
        skew = datetime.now(UTC) - now
        physical = await retry_reads(opened.feed.physical_ranges, _LOOK)
        listed = seen_in(listing)
        placed, _ = await located([one.lease for one in listed], physical, opened.feed)
        seen = [replace(one, lease=lease) for one, lease in zip(listed, placed, strict=True)]
        lag = await retry_reads(
            lambda: estimate_lag(opened.target.processor, feed=opened.feed, leases=opened.leases), _LOOK
        )
    except OutboxError as error:
        failures.note("look at the leases", error)
        return None
    for name, reason in lag.unseen.items():
        failures.unanswered.append((f"see what waits for lease {name}", reason))
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
        ahead=tuple(lag.ahead.values()),
        overlaps=overlaps(whole, now=now, expiration=expiration),
        uncovered=tuple(f"{gap.min or '0'}-{gap.max}" for gap in gaps(physical, seen)) if seen else (),
        skew=skew,
    )


async def _damaged_keys(opened: Opened, failures: _Failures) -> tuple[str, ...]:
    mistakes: list[str] = []

    def note(_: str, error: ParkingError) -> None:
        mistakes.append(str(error))

    try:
        await (await opened.parked_keys()).list(unreadable=note)
    except OutboxError as error:
        failures.note("list parked keys", error)
    return tuple(mistakes)


async def _strange_keys(opened: Opened, container: ContainerProxy, failures: _Failures) -> Mapping[str, int]:
    """
    Return of which other processors and containers keys are parked, and how many.
    """
    try:
        ours = opened.target.processor, (await opened.feed.describe()).container_rid
        found = await retry_reads(CosmosParked(container).scopes, RetryOptions())
    except OutboxError as error:
        failures.note("list parked keys", error)
        return {}
    return {
        f"processor {processor!r}"
        if container_rid == ours[1]
        else f"processor {processor!r} of another container ({container_rid})": keys
        for (processor, container_rid), keys in sorted(found.items())
        if (processor, container_rid) != ours
    }


async def _try_documents(
    what: str, container: ContainerProxy, operations: Sequence[Operation], failures: _Failures
) -> bool:
    refused = await refusals(container, operations)
    for operation, error in refused:
        failures.note(f"{operation} {what}", error)
    return not refused


async def _topics(target: Target, failures: _Failures) -> Inspection:
    try:
        async with opened_bus(target) as (bus, default):
            topics = parse_routes(target.routes, default=default).topics
            for topic in topics:
                await _try_sending(bus, topic, failures)
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


async def _try_sending(bus: ServiceBusClient, topic: str, failures: _Failures) -> None:
    async def open_link() -> None:
        # An empty call opens no link; a batch is made for a link that is open, and is then thrown away.
        sender = bus.get_topic_sender(topic)
        try:
            async with asyncio.timeout(_SECONDS):
                await sender.create_message_batch()
        finally:
            await sender.close()

    try:
        await _tried(f"send to topic {topic!r}", open_link, failures)
    except TimeoutError:
        failures.unanswered.append((f"send to topic {topic!r}", f"no answer in {_SECONDS:g} s"))


async def _tried(what: str, attempt: Callable[[], Awaitable[None]], failures: _Failures) -> bool:
    try:
        await attempt()
    except (OutboxError, AzureError) as error:
        failures.note(what, error)
        return False
    return True
