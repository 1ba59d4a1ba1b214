"""
Splits and merges: create leases of the ranges that took the place of a range that is gone, then delete its lease.

The table is .NET's (PartitionSynchronizerCore). All children exist before the parent goes, and each starts where the
parent's work was done, so a crash between the steps repeats work and skips none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from cosmos_outbox.changefeed.leases import Lease, cut, from_document, new_lease, range_of
from cosmos_outbox.changefeed.owned_lease import OwnedLease
from cosmos_outbox.changefeed.range_coverage import ASK_AGAIN, identify, retry_seconds
from cosmos_outbox.errors import Conflict, NotFound, OutboxError, RangeGone, StoreError
from cosmos_outbox.partition_key import FeedRange
from cosmos_outbox.ports import LeaseStore

_TO_RELEASE_SECONDS = 5  # seconds of trust that are kept back, to release a lease that cannot be split now


def children_of(
    lease: Lease,
    feed_range: FeedRange,
    physical: Sequence[FeedRange],
    *,
    ids: Mapping[FeedRange, str],
    others: Sequence[Lease] = (),
) -> tuple[Lease, ...] | None:
    """
    Return the children of a lease that are still to be created; None where the lease still fits one physical range.

    A child whose id is not among `ids` is left out; `to_identify` returns which are needed.

    | lease     | overlaps     | children                                                        |
    | version 0 | several      | one version 0 lease for each physical range                     |
    | version 0 | one, larger  | one version 1 lease of the parent's own range (a merge)         |
    | version 1 | several      | one version 1 lease for each slice                              |
    | version 1 | one          | None: the lease goes on                                         |

    No child is wider than the parent: where a merge was followed by a split at another key, a physical range reaches
    into the neighbour's lease, and its part in ours becomes a version 1 lease. What `others` cover of the parent's range
    already, because a worker crashed between the steps and the ranges changed again, gets no second lease.
    """
    overlapping, missing = cut(lease, feed_range, physical, others)
    fits = len(overlapping) == 1 and (lease.version == 1 or ids.get(overlapping[0]) == lease.token)
    if fits and missing == [overlapping[0].intersection(feed_range)]:
        return None
    parts: list[tuple[str, FeedRange, int]] = []
    for part in missing:
        if not _is_whole(lease, part, overlapping):
            parts.append((f"{part.min}-{part.max}", part, 1))
        elif part in ids:
            parts.append((ids[part], part, 0))
    return tuple(
        new_lease(
            lease.id.removesuffix(f"..{lease.token}"),
            token,
            part,
            version=version,
            continuation=lease.continuation,
            properties=lease.properties,
        )
        for token, part, version in parts
    )


def to_identify(
    lease: Lease, feed_range: FeedRange, physical: Sequence[FeedRange], others: Sequence[Lease]
) -> tuple[FeedRange, ...]:
    """
    Return the ranges whose partition ids `children_of` needs: those of version 0 children, and those where only the
    id reveals a merge.
    """
    overlapping, missing = cut(lease, feed_range, physical, others)
    if lease.version == 0 and overlapping == [feed_range]:
        return (feed_range,) if missing == [feed_range] else ()
    return tuple(part for part in missing if _is_whole(lease, part, overlapping))


def _is_whole(lease: Lease, part: FeedRange, overlapping: Sequence[FeedRange]) -> bool:
    return lease.version == 0 and len(overlapping) > 1 and part in overlapping


async def write_children(
    parent: Lease,
    children: Sequence[Lease],
    store: LeaseStore,
    *,
    ensure_trusted: Callable[[], object],
    complete: bool = True,
) -> None:
    """
    Create the children, then delete the parent. What another worker has done already stays as it is.

    Args:
        complete: no other child is to come; else the parent stays.
        ensure_trusted: raises where the parent's owner may not write any more; called before each write. A child that
            is created late, when others have split it already, would be processed beside its own children.
    """
    for child in children:
        ensure_trusted()
        with suppress(Conflict):
            await store.create(child.raw)
    if not complete:
        return
    ensure_trusted()
    with suppress(NotFound):
        await store.delete(parent.id, parent.partition_key, etag=parent.etag)


async def split(owned: OwnedLease) -> None:
    """
    Create all children and delete the parent. Repeat after a failure, as soon as the service allows, while there is
    time.

    Raises:
        LeaseLost, ConfigurationError: as the writing of leases.
        OutboxError: partitions did not return their ids, or the store failed, until trust had nearly run out.
    """
    loop, attempt = asyncio.get_running_loop(), 0
    await owned.save()
    while True:
        try:
            failed = await _split_what_answers(owned)
        except StoreError as error:
            if not error.retriable:
                raise
            failed = [error]
        if not failed:
            return
        attempt += 1
        delay = ASK_AGAIN.delay(attempt, at_least=retry_seconds(failed))
        if loop.time() + delay > owned.trusted_until - _TO_RELEASE_SECONDS:
            raise failed[0]
        await asyncio.sleep(delay)


async def _split_what_answers(owned: OwnedLease) -> list[OutboxError]:
    """
    Create children for the partitions that answer. If that is all of them, delete the parent. Return the errors of
    the others.
    """
    lease, store, feed = owned.lease, owned.worker.store, owned.worker.feed
    physical = await feed.physical_ranges()
    listing = await store.list(lease.id.removesuffix(lease.token))
    # Only leases of this range count: a damaged lease elsewhere must not block this split.
    others = [
        from_document(document)
        for document in listing.documents
        if (found := range_of(document)) and found.overlaps(owned.range)
    ]
    ids, silent = await identify(to_identify(lease, owned.range, physical, others), feed)
    children = children_of(lease, owned.range, physical, ids=ids, others=others)
    if children is None:
        raise RangeGone(f"The range of {lease.id} cannot be read, but one partition serves it.")
    if [owned.range] == list(silent):
        return list(silent.values())  # it is not known yet whether the lease has to be split at all
    await write_children(lease, children, store, ensure_trusted=owned.ensure_trusted, complete=not silent)
    return list(silent.values())
