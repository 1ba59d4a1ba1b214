"""
Splits and merges: when the range of a lease is gone, create leases for the ranges that replace it, and then delete the
old lease. `bootstrap.py` creates the leases of ranges that have none.

The rules are those of .NET's PartitionSynchronizerCore. All children exist before the parent is deleted, and each child
starts at the position of the parent. So a crash between the steps repeats work, and skips none.
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

# A split gives up this many seconds before the owner may no longer use its lease, so that the owner can still
# release the lease.
_TO_RELEASE_SECONDS = 5


def children_of(
    lease: Lease,
    feed_range: FeedRange,
    physical: Sequence[FeedRange],
    *,
    ids: Mapping[FeedRange, str],
    others: Sequence[Lease] = (),
) -> tuple[Lease, ...] | None:
    """
    Return the children of a lease that are still to be created. Return None if the lease still fits one physical range,
    so that it goes on.

    A child is left out if the id of its partition is not in `ids`. `to_identify` returns the ranges whose ids are
    needed.

    | lease     | overlaps     | children                                                        |
    | version 0 | several      | one version 0 lease for each physical range                     |
    | version 0 | one, larger  | one version 1 lease of the parent's own range (a merge)         |
    | version 1 | several      | one version 1 lease for each slice                              |
    | version 1 | one          | None: the lease goes on                                         |

    No child is wider than its parent. If a merge was followed by a split at another key, a physical range reaches into
    the range of the neighbouring lease. Then only its part inside the parent's range gets a lease, of version 1. Parts
    of the parent's range that the leases in `others` cover already get no second lease. There are such leases if a
    worker crashed before it deleted the parent, and the ranges changed again.
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
    Return the ranges for which `children_of` needs the ids of the physical partitions. A child lease of version 0 has the
    partition id as its token. If the range of a lease did not change, only its new partition id shows that there was a merge.
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
    Create the children of a lease, then delete the lease, their parent. A document that another worker created or
    deleted already is left as it is.

    Args:
        complete: whether these are all children. If not, the parent is not deleted.
        ensure_trusted: called before each write. It raises an error if the parent's owner may not write any more: an
            owner that created a child after other workers had split that child would have its changes processed again.
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
    Create all children of a lease and delete the lease. After a failure, try again as soon as the service allows it,
    until shortly before the owner has to stop work on the lease, because other workers may take it.

    Raises:
        LeaseLost: see `OwnedLease.keep`.
        ConfigurationError: another lease of this range cannot be read.
        OutboxError: in all this time, some partitions did not return their ids, or the store failed.
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
    Create a new lease (a child) for each partition that answers. If all partitions answer, delete the old lease. Return
    the errors of the partitions that did not answer.
    """
    lease, store, feed = owned.lease, owned.worker.store, owned.worker.feed
    physical = await feed.physical_ranges()
    listing = await store.list(lease.id.removesuffix(lease.token))
    # Read only the leases of this range: a damaged lease elsewhere must not block this split.
    others = [
        from_document(document)
        for document in listing.documents
        if (found := range_of(document)) and found.overlaps(owned.range)
    ]
    ids, silent = await identify(to_identify(lease, owned.range, physical, others), feed)
    children = children_of(lease, owned.range, physical, ids=ids, others=others)
    if children is None:
        raise RangeGone(f"The range of lease {lease.id} cannot be read, but was neither split nor merged.")
    if [owned.range] == list(silent):
        return list(silent.values())  # without an answer, the worker cannot know whether a split is needed
    await write_children(lease, children, store, ensure_trusted=owned.ensure_trusted, complete=not silent)
    return list(silent.values())
