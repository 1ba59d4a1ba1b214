"""
Programs: run the checks of all resources that a worker, an application or a consumer needs, or only the few checks that a worker or
consumer makes when it starts. `containers.py`, `leases.py` and `service_bus.py` have the checks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta

from azure.cosmos.aio import ContainerProxy

from cosmos_outbox.adapters.cosmos.client import Account, account_of
from cosmos_outbox.consumer import Consumer, OnFailure
from cosmos_outbox.errors import AccessDenied, ConfigurationError, StoreUnavailable
from cosmos_outbox.parking import ParkedKeys, Scope
from cosmos_outbox.parking.park import DEFAULT_MAX_KEYS
from cosmos_outbox.retries import RetryOptions, retry_reads
from cosmos_outbox_worker.connection import Connection
from cosmos_outbox_worker.consumer_settings import ConsumerSettings
from cosmos_outbox_worker.doctor.check import GRANTS, Checks, Finding, Findings, finding, worse
from cosmos_outbox_worker.doctor.containers import DATA, DATA_TTL, LEASES, PARKED, read_container
from cosmos_outbox_worker.doctor.leases import check_leases
from cosmos_outbox_worker.doctor.permissions import OF_LEASES, OF_WRITERS, try_documents
from cosmos_outbox_worker.doctor.service_bus import check_source, check_topics
from cosmos_outbox_worker.shared_health import ParkedSummary, summarize_parked

# When a program starts, the check of its data container gives only advice. So the start must not wait long for it.
_LOOK_SECONDS = 10.0
_BY_PARTITION_KEY = ("/partitionKey",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parked:
    """
    The parked keys in a container of parked keys, as `doctor` read them.

    seen: the parked keys of this processor or consumer.
    most: how many parked keys one lease may have; 0 if there is no limit.
    strangers: the name of each other processor or consumer that uses the same parked container, and the number of its parked keys.
    """

    seen: ParkedSummary
    most: int = 0
    strangers: Mapping[str, int] = field(default_factory=dict)


ACCOUNT: Checks[Account] = {"write-regions.several": lambda account: account.several_write_regions}
OF_PARKED: Checks[Parked] = {
    "damaged-parked-key.unread": lambda it: it.seen.unreadable.values(),
    "strange-parked-keys.present": lambda it: it.strangers.items(),
    "parked-keys.present": lambda it: it.seen.count > 0 and worse(if_=0 < it.most <= it.seen.count),
}


def no_access(error: AccessDenied | StoreUnavailable) -> Finding:
    """Return the finding for an account that refuses this program or does not answer, so that nothing else can be checked."""
    if isinstance(error, StoreUnavailable):
        return finding("no-answer.service", f"The account does not answer: {error}", "")
    known = GRANTS["admissions"]
    fix = known.get(error.refused_by or "", " Or: ".join(known.values()))
    return finding("account.refused", error, fix)


async def check_start(outbox: Connection, found: Findings, *, topics: bool) -> None:
    """
    Run the checks for the start of a worker or a consumer. They cost little and need no other rights than the program itself.

    A check is skipped if its service does not answer.
    """
    found.judge(ACCOUNT, account_of(outbox.client))
    with suppress(TimeoutError):
        async with asyncio.timeout(_LOOK_SECONDS):
            found.judge(DATA_TTL, await read_container(outbox, outbox.data, {}, Findings()))
    if topics and outbox.settings.publisher is None:
        await check_topics(outbox, found)


async def check_worker(outbox: Connection, found: Findings, *, expiration: timedelta) -> None:
    """
    Run all checks for a worker: containers, leases, rights, parked keys, topics and subscriptions.

    Args:
        outbox: the open connection.
        found: collects the findings.
        expiration: after what time a lease that was not written counts as free.
    """
    found.judge(ACCOUNT, account_of(outbox.client))
    data = await read_container(outbox, outbox.data, DATA, found)
    leases = await read_container(outbox, outbox.lease_container, LEASES, found)
    if data.key_paths is not None and leases.properties is not None:
        await check_leases(outbox, expiration, found)
    if leases.paths in (("/id",), _BY_PARTITION_KEY):
        await try_documents("leases", outbox.lease_container, OF_LEASES, found)
    if outbox.settings.delete_after_publish is not None and data.key_paths is not None:
        await try_documents("events", outbox.data, ["delete"], found, data.key_paths)
    if outbox.parked is not None:
        ours = None
        # A parked key names its data container by the resource id. Read this id, to find the parked keys of this container.
        if data.key_paths is not None:
            ours = await found.attempt("read the data container", outbox.scope)
        await _check_parked(outbox, outbox.parked, ours, found, most=DEFAULT_MAX_KEYS)
    named = outbox.settings.publisher
    try:
        async with outbox.publisher(lanes=1) as publisher:
            for topic, check in publisher.checks.items():
                await found.attempt(f"{'send' if named is None else 'publish'} to topic {topic!r}", check)
    except ConfigurationError as error:
        found.add(finding("topic.unset", error))
        return
    if named is None:
        await check_topics(outbox, found)
    elif not publisher.checks:
        found.add(finding("publisher.unchecked", named))


async def check_application(outbox: Connection, found: Findings) -> None:
    """Run the checks for an application that commits entities and events: the data container, and the rights to it."""
    found.judge(ACCOUNT, account_of(outbox.client))
    data = await read_container(outbox, outbox.data, DATA, found)
    if data.key_paths is not None:
        await try_documents("entities and events", outbox.data, OF_WRITERS, found, data.key_paths)


async def check_consumer(
    outbox: Connection, found: Findings, settings: ConsumerSettings, consumer: Consumer
) -> None:
    """Run the checks for a consumer: its container, its parked store, the rights to both, and its subscription or queue."""
    await check_application(outbox, found)
    if outbox.parked is not None:
        ours = Scope(processor=consumer.name, container=settings.source)
        await _check_parked(outbox, outbox.parked, ours, found)
    elif consumer.policy.on_failure is OnFailure.PARK:
        found.add(finding("parked-container.unset", consumer))
    await check_source(outbox, settings, consumer, found)


async def _check_parked(
    outbox: Connection, container: ContainerProxy, ours: Scope | None, found: Findings, *, most: int = 0
) -> None:
    parked = await read_container(outbox, container, PARKED, found)
    if ours is None or parked.paths != _BY_PARTITION_KEY:
        return

    async def read() -> Parked:
        store = await outbox.parked_store()
        seen = summarize_parked(await ParkedKeys(store, scope=ours).list())
        scopes = await retry_reads(store.scopes, RetryOptions())
        strangers = {
            _owner(processor, of, ours): keys
            for (processor, of), keys in sorted(scopes.items())
            if (processor, of) != (ours.processor, ours.container)
        }
        return Parked(seen=seen, most=most, strangers=strangers)

    allowed = await try_documents("parked keys", container, OF_WRITERS, found)
    if allowed and (seen := await found.attempt("list parked keys", read)) is not None:
        found.judge(OF_PARKED, seen)


def _owner(name: str, of: str, ours: Scope) -> str:
    if of == ours.container:
        return f"processor {name!r}" if "/" not in of else f"consumer {name!r}"
    # If the second part of the scope has a slash, it is `topic/subscription`, and a consumer parked the keys. Otherwise it is the resource
    # id of a container, and the workers of a processor parked them.
    return f"consumer {name!r} of {of}" if "/" in of else f"processor {name!r} of another container ({of})"
