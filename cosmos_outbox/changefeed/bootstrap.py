"""
Bootstrap: create the leases of all ranges, once, however many workers start at the same time.

As in .NET: `<prefix>.info` says that it was done; `<prefix>.lock` is held while it is being done. On top of it, a lock
left behind by a crash is broken, and ranges that no lease covers get one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from cosmos_outbox.errors import Conflict, NotFound, PreconditionFailed, StoreError
from cosmos_outbox.leases import (
    BEGINNING,
    START,
    FeedRange,
    Lease,
    format_timestamp,
    from_document,
    new_lease,
    parse_timestamp,
)
from cosmos_outbox.ports import ChangeFeed, Document, LeaseStore, PhysicalRange, StartFrom

LOCK_SECONDS = 30
UNLOCK_SECONDS = 5
STALE_LOCK = timedelta(seconds=2 * LOCK_SECONDS)
EVERY_KEY = FeedRange(min="", max="FF")

_logger = logging.getLogger(__name__)


async def bootstrap(
    prefix: str,
    *,
    feed: ChangeFeed,
    store: LeaseStore,
    start: StartFrom | datetime,
    utcnow: Callable[[], datetime],
    look_again: timedelta = timedelta(seconds=1),
) -> None:
    """
    Return when every range has a lease, created here or by another worker.
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
            await create_missing(prefix, feed=feed, store=store, start=start, now=utcnow())
            with suppress(Conflict):
                await store.create(marker)
        finally:  # also after a fault: whoever tries again need not wait until the lock expires
            with suppress(StoreError, TimeoutError):
                async with asyncio.timeout(UNLOCK_SECONDS):
                    await store.delete(held["id"], _routing(held), etag=held["_etag"])
        return
    # "Now" is still when the first leases were created: what came since may not have been handled.
    now = datetime.fromtimestamp(found["_ts"], UTC)
    repaired = await create_missing(prefix, feed=feed, store=store, start=start, now=now)
    for lease in repaired:
        _logger.warning(
            "lease.repaired no lease covered the range of %s; it begins where the first leases began",
            lease.id,
        )


async def create_missing(
    prefix: str,
    *,
    feed: ChangeFeed,
    store: LeaseStore,
    start: StartFrom | datetime,
    now: datetime,
) -> tuple[Lease, ...]:
    """
    Create a lease for every physical range that none covers; return those created here.
    """
    loop = asyncio.get_running_loop()
    by_id = await store.partitioned_by_id()
    properties = {START: _start_property(start, now)}
    created: list[Lease] = []
    while True:
        # The ranges first: a split that happens in between then shows up as leases that cover more, never as a gap.
        physical = await feed.physical_ranges()
        listed_at = loop.time()
        leases = [from_document(document) for document in (await store.list(f"{prefix}..")).documents]
        for gap in uncovered(physical, leases):
            if loop.time() - listed_at > LOCK_SECONDS:
                # This process may have been frozen. Others have broken the lock then, and a lease of a range that they
                # have split since would have all of it handled once more, from its start.
                break
            whole = next((p for p in physical if p.range == gap), None)
            # A gap inside a partition can only be named by its bounds (version 1), as after a merge.
            token, version = (whole.id, 0) if whole else (f"{gap.min}-{gap.max}", 1)
            lease = new_lease(
                prefix, token, gap, version=version, properties=properties, partitioned_by_id=by_id
            )
            with suppress(Conflict):
                await store.create(lease.raw)
                created.append(lease)
        else:
            return tuple(created)


def uncovered(physical: Sequence[PhysicalRange], leases: Sequence[Lease]) -> tuple[FeedRange, ...]:
    """
    Return what no lease covers of each physical range.

    A lease without a range (written by an old .NET SDK) covers the physical range of its token; where there is none,
    it may cover anything, so nothing counts as uncovered.
    """
    by_id = {candidate.id: candidate.range for candidate in physical}
    covered = [lease.range or by_id.get(lease.token) for lease in leases]
    known = [feed_range for feed_range in covered if feed_range is not None]
    if len(known) < len(covered):
        return ()
    return tuple(gap for candidate in physical for gap in candidate.range.without(known))


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
    `since`, when this worker started, as in .NET; or from the last write of the lease where that is earlier.
    """
    if lease.continuation is not None or START in lease.properties:
        return lease
    chosen = _start_property(start, min(since, lease.written_at()))
    return replace(lease, properties={**lease.properties, START: chosen})


def _start_property(start: StartFrom | datetime, now: datetime) -> str:
    if start is StartFrom.BEGINNING:
        return BEGINNING
    # "Now" is fixed here: a lease first read a minute later must not skip that minute. One second earlier, as .NET, for
    # a clock that is a little ahead of the service's.
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
        if datetime.fromtimestamp(lock["_ts"], UTC) + STALE_LOCK < listing.read_at:
            _logger.warning("lease.lock-broken %s was left behind by a worker that died", lock["id"])
            with suppress(NotFound, PreconditionFailed):
                await store.delete(lock["id"], _routing(lock), etag=lock["_etag"])


def _document(document_id: str, *, by_id: bool) -> Document:
    return {"id": document_id} if by_id else {"id": document_id, "partitionKey": document_id}


def _routing(document: Document) -> str:
    return str(document.get("partitionKey", document["id"]))
