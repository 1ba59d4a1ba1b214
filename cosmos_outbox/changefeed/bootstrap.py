"""
Bootstrap: create the leases of all ranges, once, however many workers start at the same time.

As in .NET: `<prefix>.info` says that it was done; `<prefix>.lock` is held while it is being done. On top of it, a lock
left behind by a crash is broken, ranges that no lease covers get one, and `.info` says where all of them begin.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from cosmos_outbox.changefeed.coverage import ASK_AGAIN, asked_to_wait, identified, located, uncovered
from cosmos_outbox.changefeed.leases import (
    BEGINNING,
    START,
    Lease,
    from_document,
    new_lease,
    start_of,
    start_property,
)
from cosmos_outbox.errors import Conflict, NotFound, OutboxError, PreconditionFailed, StoreError
from cosmos_outbox.feed_range import FeedRange
from cosmos_outbox.ports import ChangeFeed, Document, LeaseStore, StartFrom

LOCK_SECONDS = 30
_UNLOCK_SECONDS = 5
_STALE_LOCK = timedelta(seconds=2 * LOCK_SECONDS)
_POLL_LOCK_SECONDS = 1
_PATIENCE_SECONDS = 5

_logger = logging.getLogger(__name__)


# The leases that were created here, and the ranges that have none yet because their partitions do not answer now.
Creation = tuple[list[Lease], Mapping[FeedRange, OutboxError]]


async def bootstrap(
    prefix: str,
    *,
    feed: ChangeFeed,
    store: LeaseStore,
    start: StartFrom | datetime,
    only: Collection[FeedRange] | None = None,
) -> Mapping[FeedRange, OutboxError]:
    """
    Return when every range has a lease, created here or by another worker.

    Args:
        only: the ranges that an earlier call left; no other gets a lease. Defaults to all.

    Returns:
        The ranges that have none yet, with the reason: their partitions are throttled, or silent, and did not answer for a
        few seconds. Call again for them until they do.
    """
    while (found := await marker_of(prefix, store)) is None:
        try:
            held = await store.create({"id": f"{prefix}.lock", "ttl": LOCK_SECONDS})
        except Conflict:
            await _break_if_stale(prefix, store)
            await asyncio.sleep(_POLL_LOCK_SECONDS)
            continue
        try:
            chosen = await _chosen_before(prefix, store) or start_property(start, now=_written_at(held))
            _, left = await _create_patiently(prefix, feed=feed, store=store, start=chosen, only=only)
            with suppress(Conflict):
                await store.create({"id": f"{prefix}.info", START: chosen})
        finally:  # also after a fault: the next attempt need not wait until the lock expires
            with suppress(StoreError, TimeoutError):
                async with asyncio.timeout(_UNLOCK_SECONDS):
                    await store.delete(held["id"], _routing(held), etag=held["_etag"])
        return left
    begin = _start_in(found, start)
    created, left = await _create_patiently(prefix, feed=feed, store=store, start=begin, only=only)
    for lease in created if only is None else ():
        _logger.warning(
            "lease.repaired no lease covered the range of %s; it begins where the first leases began",
            lease.id,
        )
    return left


async def marker_of(prefix: str, store: LeaseStore) -> Document | None:
    """Return the document that says that leases were created, and where they begin; None if there are none, or they are lost."""
    marker = f"{prefix}.info"
    try:
        return await store.read(marker, marker)
    except NotFound:
        return None


async def _create_patiently(
    prefix: str, *, feed: ChangeFeed, store: LeaseStore, start: str, only: Collection[FeedRange] | None = None
) -> Creation:
    loop = asyncio.get_running_loop()
    until, attempt, created = loop.time() + _PATIENCE_SECONDS, 0, list[Lease]()
    while True:
        leases, left = await _create_missing(prefix, feed=feed, store=store, start=start, only=only)
        created += leases
        if not left:
            break
        attempt += 1
        delay = ASK_AGAIN.delay(attempt, at_least=asked_to_wait(left.values()))
        if loop.time() + delay > until:
            break
        await asyncio.sleep(delay)
    return created, left


async def _create_missing(
    prefix: str, *, feed: ChangeFeed, store: LeaseStore, start: str, only: Collection[FeedRange] | None
) -> Creation:
    """
    Create a lease for every physical range that none covers, each partition being asked for its id once.

    Args:
        start: where they begin, as a lease's property.
        only: ranges to be given a lease; the others are left as they are. None for all.
    """
    loop = asyncio.get_running_loop()
    created: list[Lease] = []
    ids: dict[FeedRange, str] = {}
    left: dict[FeedRange, OutboxError] = {}
    while True:
        # List ranges before leases: a split in between then shows as leases that cover more, never as a gap.
        physical = dict.fromkeys(await feed.physical_ranges())
        listed_at = loop.time()
        placed, unplaced = await located(await _leases(prefix, store), tuple(physical), feed)
        gaps = [
            gap
            for gap in uncovered(tuple(physical), placed)
            if only is None or any(wanted.contains(gap) for wanted in only)
        ]
        # Ask each partition once, however often the leases are listed: silent ones would delay the rest each time.
        unknown = (gap for gap in gaps if gap in physical and gap not in ids and gap not in left)
        found, silent = await identified(unknown, feed)
        ids |= found
        left |= {**unplaced, **silent}
        for gap in gaps:
            if gap in left:
                continue
            token, version = f"{gap.min}-{gap.max}", 1
            if gap in physical:  # else it can only be named by its bounds, as after a merge
                token, version = ids[gap], 0
            if loop.time() - listed_at > LOCK_SECONDS:
                # This process may have been frozen, and another worker may have broken the lock and split the range since: a
                # late lease would have all of the range handled again, from its start.
                break
            properties = {START: start}
            lease = new_lease(prefix, token, gap, version=version, properties=properties)
            with suppress(Conflict):
                await store.create(lease.raw)
                created.append(lease)
        else:
            return created, left


async def _leases(prefix: str, store: LeaseStore) -> list[Lease]:
    return [from_document(document) for document in (await store.list(f"{prefix}..")).documents]


async def _chosen_before(prefix: str, store: LeaseStore) -> str | None:
    """
    Return the earliest start of leases that are there already, left by a worker that died while it created them.
    """
    leases = await _leases(prefix, store)
    chosen = {lease.properties[START]: start_of(lease) for lease in leases if START in lease.properties}
    moments = {text: start for text, start in chosen.items() if isinstance(start, datetime)}
    if len(moments) < len(chosen):
        return BEGINNING
    return min(moments, key=lambda text: moments[text], default=None)


def _start_in(marker: Document, start: StartFrom | datetime) -> str:
    """
    Return where the first leases began, as the marker says, and `start` where it does not (.NET's, or an old one).

    A range that gets its lease later begins there too: what came since has not been handled.
    """
    chosen = marker.get(START)
    return chosen if isinstance(chosen, str) else start_property(start, now=_written_at(marker))


async def _break_if_stale(prefix: str, store: LeaseStore) -> None:
    listing = await store.list(f"{prefix}.lock")
    for lock in listing.documents:
        if _written_at(lock) + _STALE_LOCK < listing.read_at:
            _logger.warning("lease.lock-broken %s was left behind by a worker that died", lock["id"])
            with suppress(NotFound, PreconditionFailed):
                await store.delete(lock["id"], _routing(lock), etag=lock["_etag"])


def _written_at(document: Document) -> datetime:
    return datetime.fromtimestamp(document["_ts"], UTC)


def _routing(document: Document) -> str:
    return str(document.get("partitionKey", document["id"]))
