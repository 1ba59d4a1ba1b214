"""
Reads the change feed of one partition page by page. The changes of one transaction are always on the same page.

`feeds.py` answers requests with these pages.
"""

from __future__ import annotations

from dataclasses import dataclass

from cosmos_outbox_emulators.cosmos.item import Item
from cosmos_outbox_emulators.cosmos.partition import Partition
from cosmos_outbox_emulators.cosmos.scope import Window

LARGEST_PAGE_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePage:
    """One page of the change feed: the changed items, and the LSN (log sequence number) after which the next page begins."""

    items: list[Item]
    lsn: int


def read_changes(
    partition: Partition,
    window: Window,
    *,
    after_lsn: int,
    limit: int,
    newer_than: float | None = None,
    up_to: int | None = None,
) -> ChangePage:
    """
    Read the changes after `after_lsn`. If replicas lag, `up_to` is the last LSN that the replicas have, and no later change is
    read.

    A page ends after the transaction with which it reaches `limit` items or 4 MB.
    """
    everything = window.covers(partition.low, partition.high)
    items: list[Item] = []
    size = 0
    last = after_lsn
    end = partition.lsn if up_to is None else up_to
    for item in partition.changes_after(after_lsn):
        if item.lsn != last and (len(items) >= limit or size >= LARGEST_PAGE_BYTES):
            return ChangePage(items=items, lsn=last)
        if item.lsn > end:
            break
        last = item.lsn
        if not everything and not window.contains(item):
            continue
        if newer_than is not None and item.timestamp <= newer_than:
            continue
        items.append(item)
        size += len(item.encoded)
    return ChangePage(items=items, lsn=max(after_lsn, end))
