"""
Splits and merges: replace the lease of a range that is gone by leases of the ranges that took its place.

The table is .NET's (PartitionSynchronizerCore). All children exist before the parent goes, and each starts where the
parent's work was done, so a crash between the steps repeats work and skips none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from cosmos_outbox.changefeed.leases import Lease, new_lease
from cosmos_outbox.errors import Conflict, NotFound
from cosmos_outbox.feed_range import FeedRange
from cosmos_outbox.ports import LeaseStore


def children_of(
    lease: Lease,
    parent_range: FeedRange,
    physical: Sequence[FeedRange],
    *,
    ids: Mapping[FeedRange, str],
    others: Sequence[Lease] = (),
    partitioned_by_id: bool,
) -> tuple[Lease, ...] | None:
    """
    Return the leases that are missing to replace a lease; None where it still fits one physical range.

    One whose id is not among `ids` is left out; `to_identify` tells which are needed.

    | lease     | overlaps     | children                                                        |
    | version 0 | several      | one version 0 lease for each physical range                     |
    | version 0 | one, larger  | one version 1 lease of the parent's own range (a merge)         |
    | version 1 | several      | one version 1 lease for each slice                              |
    | version 1 | one          | None: the lease goes on                                         |

    No child is wider than the parent: where a merge was followed by a split at another key, a physical range reaches
    into the neighbour's lease, and its part in ours becomes a version 1 lease. What `others` hold of the parent's range
    already, because somebody crashed between the steps and the ranges changed again, gets no second lease.
    """
    overlapping = [candidate for candidate in physical if candidate.overlaps(parent_range)]
    fits = len(overlapping) == 1 and (lease.version == 1 or ids.get(overlapping[0]) == lease.token)
    descendants = _descendants(lease, parent_range, others)
    if fits and not descendants:
        return None
    prefix = lease.id.removesuffix(f"..{lease.token}")
    parts: list[tuple[str, FeedRange, int]] = []
    for part in _missing(parent_range, overlapping, descendants):
        if not _is_whole(lease, part, overlapping):
            parts.append((f"{part.min}-{part.max}", part, 1))
        elif part in ids:
            parts.append((ids[part], part, 0))
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


def to_identify(
    lease: Lease, parent_range: FeedRange, physical: Sequence[FeedRange], others: Sequence[Lease]
) -> tuple[FeedRange, ...]:
    """
    Return the ranges whose ids `children_of` needs: of version 0 children, and where the id alone tells of a merge.
    """
    overlapping = [candidate for candidate in physical if candidate.overlaps(parent_range)]
    descendants = _descendants(lease, parent_range, others)
    if lease.version == 0 and overlapping == [parent_range]:
        return () if descendants else (parent_range,)
    missing = _missing(parent_range, overlapping, descendants)
    return tuple(part for part in missing if _is_whole(lease, part, overlapping))


def half_replaced(lease: Lease, parent_range: FeedRange, others: Sequence[Lease]) -> bool:
    """
    Say whether somebody began to replace a lease and did not finish: it must be replaced now, even if it can be read.
    """
    return bool(_descendants(lease, parent_range, others))


def descends(other: Lease, lease: Lease, parent_range: FeedRange) -> bool:
    """
    Say whether another lease took the place of a part of this one, or of all of it.
    """
    if other.id == lease.id or other.range is None or not parent_range.contains(other.range):
        return False
    return other.range != parent_range or (lease.version, other.version) == (0, 1)


async def replace_lease(
    parent: Lease,
    children: Sequence[Lease],
    store: LeaseStore,
    *,
    ensure_trusted: Callable[[], None],
    complete: bool = True,
) -> None:
    """
    Create the children, then delete the parent; what another worker did already is left as it is.

    Args:
        parent: the lease to replace.
        children: leases to create.
        store: where leases are.
        complete: whether no other child is to come; else the parent stays.
        ensure_trusted: raises where the parent's owner may not write any more; called before each write. A child that
            is created late, when others have replaced it already, would be processed beside its own children for ever.
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


def _descendants(lease: Lease, parent_range: FeedRange, others: Sequence[Lease]) -> list[FeedRange]:
    return [other.range for other in others if other.range and descends(other, lease, parent_range)]


def _missing(
    parent_range: FeedRange, overlapping: Sequence[FeedRange], descendants: Sequence[FeedRange]
) -> list[FeedRange]:
    return [
        part for candidate in overlapping for part in _common(parent_range, candidate).without(descendants)
    ]


def _is_whole(lease: Lease, part: FeedRange, overlapping: Sequence[FeedRange]) -> bool:
    return lease.version == 0 and len(overlapping) > 1 and part in overlapping


def _common(first: FeedRange, second: FeedRange) -> FeedRange:
    return FeedRange(min=max(first.min, second.min), max=min(first.max, second.max))
