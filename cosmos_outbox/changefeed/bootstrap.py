"""
Bootstrap: create the leases of all ranges, once, however many workers start at the same time.

As in .NET: `<prefix>.info` says that it was done; `<prefix>.lock` is held while it is being done. On top of it, a lock
left behind by a crash is broken, ranges that no lease covers get one, and `.info` says where all of them begin.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from cosmos_outbox.changefeed.leases import (
    BEGINNING,
    START,
    Lease,
    format_timestamp,
    from_document,
    new_lease,
    parse_timestamp,
)
from cosmos_outbox.changefeed.partitions import ASK_AGAIN, asked_to_wait, identified, located
from cosmos_outbox.errors import Conflict, NotFound, OutboxError, PreconditionFailed, StoreError
from cosmos_outbox.feed_range import FeedRange
from cosmos_outbox.ports import ChangeFeed, Document, LeaseStore, StartFrom

LOCK_SECONDS = 30
UNLOCK_SECONDS = 5
STALE_LOCK = timedelta(seconds=2 * LOCK_SECONDS)
PATIENCE_SECONDS = 5
EVERY_KEY = FeedRange(min="", max="FF")

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Creation:
    """
    The leases that were created here, and the ranges that have none yet because their partitions do not answer now.
    """

    leases: tuple[Lease, ...] = ()
    left: Mapping[FeedRange, OutboxError] = field(default_factory=dict)


async def bootstrap(
    prefix: str,
    *,
    feed: ChangeFeed,
    store: LeaseStore,
    start: StartFrom | datetime,
    look_again: timedelta = timedelta(seconds=1),
) -> Mapping[FeedRange, OutboxError]:
    """
    Return when every range has a lease, created here or by another worker.

    Returns:
        The ranges that have none yet, with the reason: their partitions are throttled, or silent, and were asked for a
        few seconds in vain. `create_missing` is to be called for them until they answer.
    """
    by_id = await store.partitioned_by_id()
    marker = _document(f"{prefix}.info", by_id=by_id)
    lock = _document(f"{prefix}.lock", by_id=by_id) | {"ttl": LOCK_SECONDS}
    while (found := await _found(marker, store)) is None:
        try:
            held = await store.create(lock)
        except Conflict:
            await _break_if_stale(prefix, store)
            await asyncio.sleep(look_again.total_seconds())
            continue
        try:
            chosen = await _chosen_before(prefix, store) or _start_property(start, _written_at(held))
            created = await _patiently(prefix, feed=feed, store=store, start=chosen)
            with suppress(Conflict):
                await store.create(marker | {START: chosen})
        finally:  # also after a fault: whoever tries again need not wait until the lock expires
            with suppress(StoreError, TimeoutError):
                async with asyncio.timeout(UNLOCK_SECONDS):
                    await store.delete(held["id"], _routing(held), etag=held["_etag"])
        return created.left
    repaired = await _patiently(prefix, feed=feed, store=store, start=_start_in(found, start))
    tell_repaired(repaired.leases)
    return repaired.left


async def bootstrap_later(
    prefix: str,
    ranges: Collection[FeedRange],
    *,
    feed: ChangeFeed,
    store: LeaseStore,
    start: StartFrom | datetime,
) -> Creation:
    """
    Try once more to create the leases of ranges that `bootstrap` left, and of no others.
    """
    marker = _document(f"{prefix}.info", by_id=await store.partitioned_by_id())
    found = await store.read(marker["id"], _routing(marker))
    return await create_missing(prefix, feed=feed, store=store, start=_start_in(found, start), only=ranges)


def tell_repaired(leases: Sequence[Lease]) -> None:
    """
    Log that ranges had no lease.
    """
    for lease in leases:
        _logger.warning(
            "lease.repaired no lease covered the range of %s; it begins where the first leases began",
            lease.id,
        )


async def _patiently(prefix: str, *, feed: ChangeFeed, store: LeaseStore, start: str) -> Creation:
    """
    Create what is missing, and ask partitions that are throttled again, for a few seconds.
    """
    loop = asyncio.get_running_loop()
    until, attempt, created = loop.time() + PATIENCE_SECONDS, 0, list[Lease]()
    while True:
        found = await create_missing(prefix, feed=feed, store=store, start=start)
        created += found.leases
        if found.left:
            attempt += 1
            delay = ASK_AGAIN.delay(attempt, at_least=asked_to_wait(found.left.values()))
            if loop.time() + delay <= until:
                await asyncio.sleep(delay)
                continue
        return Creation(leases=tuple(created), left=found.left)


async def create_missing(
    prefix: str,
    *,
    feed: ChangeFeed,
    store: LeaseStore,
    start: str,
    only: Collection[FeedRange] | None = None,
) -> Creation:
    """
    Create a lease for every physical range that none covers, each partition being asked for its id once.

    Args:
        prefix: of the leases.
        feed: of the container.
        store: where the leases are.
        start: where they begin, as a lease's property.
        only: ranges to be given a lease; the others are left as they are. Defaults to all.
    """
    loop = asyncio.get_running_loop()
    by_id = await store.partitioned_by_id()
    properties = {START: start}
    created: list[Lease] = []
    ids: dict[FeedRange, str] = {}
    left: dict[FeedRange, OutboxError] = {}
    while True:
        # The ranges first: a split that happens in between then shows up as leases that cover more, never as a gap.
        physical = await feed.physical_ranges()
        listed_at = loop.time()
        leases = [from_document(document) for document in (await store.list(f"{prefix}..")).documents]
        placed, unplaced = await located(leases, physical, feed)
        gaps = [
            gap
            for gap in uncovered(physical, placed)
            if only is None or any(wanted.contains(gap) for wanted in only)
        ]
        # Each is asked once, however often the leases have to be listed: silent ones would hold up the rest for ever.
        found = await identified((g for g in gaps if g in physical and g not in ids and g not in left), feed)
        ids |= found.ids
        left |= {**unplaced, **found.silent}
        for gap in gaps:
            if gap in left:
                continue
            token, version = f"{gap.min}-{gap.max}", 1
            if gap in physical:  # else it can only be named by its bounds, as after a merge
                token, version = ids[gap], 0
            if loop.time() - listed_at > LOCK_SECONDS:
                # This process may have been frozen. Others have broken the lock then, and a lease of a range that they
                # have split since would have all of it handled once more, from its start.
                break
            lease = new_lease(
                prefix, token, gap, version=version, properties=properties, partitioned_by_id=by_id
            )
            with suppress(Conflict):
                await store.create(lease.raw)
                created.append(lease)
        else:
            return Creation(leases=tuple(created), left=left)


def uncovered(physical: Sequence[FeedRange], leases: Sequence[Lease]) -> tuple[FeedRange, ...]:
    """
    Return what no lease covers of each physical range; nothing where a lease has no range, for it may cover anything.
    """
    known = [lease.range for lease in leases if lease.range is not None]
    if len(known) < len(leases):
        return ()
    return tuple(gap for candidate in physical for gap in candidate.without(known))


def gaps_between(leases: Sequence[Lease]) -> tuple[FeedRange, ...]:
    """
    Return what no lease covers of all keys; nothing where a lease says by its token alone what it covers.
    """
    ranges = [lease.range for lease in leases if lease.range is not None]
    return EVERY_KEY.without(ranges) if len(ranges) == len(leases) else ()


def start_of(lease: Lease) -> StartFrom | datetime:
    """
    Return where a lease without continuation begins: what was chosen when it was created or first taken.
    """
    chosen = lease.properties.get(START, BEGINNING)
    return StartFrom.BEGINNING if chosen == BEGINNING else parse_timestamp(chosen)


def pinned(lease: Lease, start: StartFrom | datetime, *, since: datetime) -> Lease:
    """
    Return the lease with its start chosen for good, where another program created it and nothing was saved yet.

    Chosen anew by each owner, "now" would skip what the owner before read and could not handle. It counts from
    `since`, when this worker first saw the leases; or from the last write of the lease where that is earlier.
    """
    if lease.continuation is not None or START in lease.properties:
        return lease
    chosen = _start_property(start, min(since, lease.written_at()))
    return replace(lease, properties={**lease.properties, START: chosen})


async def _chosen_before(prefix: str, store: LeaseStore) -> str | None:
    """
    Return the earliest start of leases that are there already, as a worker leaves them that died while it created them.
    """
    leases = [from_document(document) for document in (await store.list(f"{prefix}..")).documents]
    chosen = {lease.properties[START]: start_of(lease) for lease in leases if START in lease.properties}
    moments = {text: start for text, start in chosen.items() if isinstance(start, datetime)}
    if len(moments) < len(chosen):
        return BEGINNING
    return min(moments, key=lambda text: moments[text], default=None)


def _start_in(marker: Document, start: StartFrom | datetime) -> str:
    """
    Return where the first leases began, which the marker says; not where it is .NET's, or older.

    A range that gets its lease later begins there too: what came since has not been handled.
    """
    chosen = marker.get(START)
    return chosen if isinstance(chosen, str) else _start_property(start, _written_at(marker))


def _start_property(start: StartFrom | datetime, now: datetime) -> str:
    if start is StartFrom.BEGINNING:
        return BEGINNING
    # "Now" is fixed here: a lease first read a minute later must not skip that minute. One second earlier, as .NET.
    moment = start if isinstance(start, datetime) else now - timedelta(seconds=1)
    return format_timestamp(moment)


async def _found(document: Document, store: LeaseStore) -> Document | None:
    try:
        return await store.read(document["id"], _routing(document))
    except NotFound:
        return None


async def _break_if_stale(prefix: str, store: LeaseStore) -> None:
    listing = await store.list(f"{prefix}.lock")
    for lock in listing.documents:
        if _written_at(lock) + STALE_LOCK < listing.read_at:
            _logger.warning("lease.lock-broken %s was left behind by a worker that died", lock["id"])
            with suppress(NotFound, PreconditionFailed):
                await store.delete(lock["id"], _routing(lock), etag=lock["_etag"])


def _written_at(document: Document) -> datetime:
    return datetime.fromtimestamp(document["_ts"], UTC)


def _document(document_id: str, *, by_id: bool) -> Document:
    return {"id": document_id} if by_id else {"id": document_id, "partitionKey": document_id}


def _routing(document: Document) -> str:
    return str(document.get("partitionKey", document["id"]))
