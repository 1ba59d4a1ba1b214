"""
Splits and merges: replace the lease of a range that is gone by leases of the ranges that took its place.

The table is .NET's (PartitionSynchronizerCore). All children exist before the parent goes, and each starts where the
parent's work was done, so a crash between the steps repeats work and skips none.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from cosmos_outbox.errors import Conflict, NotFound
from cosmos_outbox.leases import FeedRange, Lease, new_lease
from cosmos_outbox.ports import LeaseStore, PhysicalRange


def children_of(
    lease: Lease, parent_range: FeedRange, physical: Sequence[PhysicalRange], *, partitioned_by_id: bool
) -> tuple[Lease, ...]:
    """
    Return the leases that replace a lease; none where the lease still fits one physical range.

    | lease     | overlaps     | children                                                        |
    | version 0 | several      | one version 0 lease for each physical range                     |
    | version 0 | one, larger  | one version 1 lease of the parent's own range (a merge)         |
    | version 1 | several      | one version 1 lease for each slice, never wider than the parent |
    | version 1 | one          | none: the lease goes on                                         |
    """
    overlapping = [candidate for candidate in physical if candidate.range.overlaps(parent_range)]
    still_there = any(candidate.id == lease.token for candidate in overlapping)
    if lease.version == 0 and len(overlapping) == 1 and still_there:
        return ()
    if lease.version == 1 and len(overlapping) == 1:
        return ()
    prefix = lease.id.removesuffix(f"..{lease.token}")
    if lease.version == 0 and len(overlapping) > 1:
        parts = [(candidate.id, candidate.range, 0) for candidate in overlapping]
    else:
        slices = [_common(parent_range, candidate.range) for candidate in overlapping]
        parts = [(f"{part.min}-{part.max}", part, 1) for part in slices]
    return tuple(
        new_lease(
            prefix,
            token,
            feed_range,
            version=version,
            continuation=lease.continuation,
            properties=lease.properties,
            partitioned_by_id=partitioned_by_id,
        )
        for token, feed_range, version in parts
    )


async def replace_lease(parent: Lease, children: Sequence[Lease], store: LeaseStore) -> None:
    """
    Create the children, then delete the parent; what another worker did already is left as it is.
    """
    for child in children:
        with suppress(Conflict):
            await store.create(child.raw)
    if children:
        with suppress(NotFound):
            await store.delete(parent.id, parent.partition_key, etag=parent.etag)


def _common(first: FeedRange, second: FeedRange) -> FeedRange:
    return FeedRange(min=max(first.min, second.min), max=min(first.max, second.max))
