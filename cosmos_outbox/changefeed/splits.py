"""
Splits and merges: replace the lease of a range that is gone by leases of the ranges that took its place.

The table is .NET's (PartitionSynchronizerCore). All children exist before the parent goes, and each starts where the
parent's work was done, so a crash between the steps repeats work and skips none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from cosmos_outbox.errors import Conflict, NotFound
from cosmos_outbox.leases import FeedRange, Lease, new_lease
from cosmos_outbox.ports import LeaseStore, PhysicalRange


def children_of(
    lease: Lease,
    parent_range: FeedRange,
    physical: Sequence[PhysicalRange],
    *,
    others: Sequence[Lease] = (),
    partitioned_by_id: bool,
) -> tuple[Lease, ...] | None:
    """
    Return the leases that are missing to replace a lease; None where it still fits one physical range.

    | lease     | overlaps     | children                                                        |
    | version 0 | several      | one version 0 lease for each physical range                     |
    | version 0 | one, larger  | one version 1 lease of the parent's own range (a merge)         |
    | version 1 | several      | one version 1 lease for each slice                              |
    | version 1 | one          | None: the lease goes on                                         |

    No child is wider than the parent: where a merge was followed by a split at another key, a physical range reaches
    into the neighbour's lease, and its part in ours becomes a version 1 lease. What `others` hold of the parent's range
    already, because somebody crashed between the steps and the ranges changed again, gets no second lease.
    """
    descendants = [other.range for other in others if other.range and descends(other, lease, parent_range)]
    overlapping = [candidate for candidate in physical if candidate.range.overlaps(parent_range)]
    fits = len(overlapping) == 1 and (lease.version == 1 or overlapping[0].id == lease.token)
    if fits and not descendants:
        return None
    prefix = lease.id.removesuffix(f"..{lease.token}")
    parts: list[tuple[str, FeedRange, int]] = []
    for candidate in overlapping:
        for part in _common(parent_range, candidate.range).without(descendants):
            whole = lease.version == 0 and len(overlapping) > 1 and part == candidate.range
            parts.append((candidate.id, part, 0) if whole else (f"{part.min}-{part.max}", part, 1))
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


def half_replaced(lease: Lease, parent_range: FeedRange, others: Sequence[Lease]) -> bool:
    """
    Say whether somebody began to replace a lease and did not finish: it must be replaced now, even if it can be read.
    """
    return any(descends(other, lease, parent_range) for other in others)


def descends(other: Lease, lease: Lease, parent_range: FeedRange) -> bool:
    """
    Say whether another lease took the place of a part of this one, or of all of it.
    """
    if other.id == lease.id or other.range is None or not parent_range.contains(other.range):
        return False
    return other.range != parent_range or (lease.version, other.version) == (0, 1)


async def replace_lease(
    parent: Lease, children: Sequence[Lease], store: LeaseStore, *, ensure_trusted: Callable[[], None]
) -> None:
    """
    Create the children, then delete the parent; what another worker did already is left as it is.

    Args:
        ensure_trusted: raises where the parent's owner may not write any more; called before each write. A child that
            is created late, when others have replaced it already, would be processed beside its own children for ever.
    """
    for child in children:
        ensure_trusted()
        with suppress(Conflict):
            await store.create(child.raw)
    ensure_trusted()
    with suppress(NotFound):
        await store.delete(parent.id, parent.partition_key, etag=parent.etag)


def _common(first: FeedRange, second: FeedRange) -> FeedRange:
    return FeedRange(min=max(first.min, second.min), max=min(first.max, second.max))
