"""
The invariants of the change feed simulation: which writes of a lease are allowed, and in which order changes reach the handler. They
check every write of a lease when it is executed, and every change when the handler gets it.

Our workers must keep the invariants whatever a foreign program does: a .NET processor or an operator. If a foreign program takes a lease
from a worker, only this worker may break an invariant, and only until the time is over for which its last renewal lets it work.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TypeVar

from cosmos_outbox.adapters.memory.container import MemoryContainer, effective_partition_key
from cosmos_outbox.changefeed import ProcessorOptions
from cosmos_outbox.changefeed.leases import Lease
from cosmos_outbox.partition_key import FeedRange
from cosmos_outbox.ports import ChangeBatch, Document
from tests.simulation.freeze import service_time

T = TypeVar("T")

STRANGERS = ("dotnet", "operator")
# These names are written out, and not imported from the library, so that a changed name in stored leases is noticed.
SIGNATURE, WISH = "handover.owner", "handover.wanted-by"


class Invariants:
    """
    The invariants of one run. `violations` has the text of each violation.

    Args:
        container: returns the monitored container.
        prefix: returns the prefix of the ids of its leases.
        now: returns the time on the service's clock, in seconds.
    """

    def __init__(
        self,
        options: ProcessorOptions,
        *,
        container: Callable[[], MemoryContainer],
        prefix: Callable[[], str],
        now: Callable[[], float],
    ) -> None:
        self._expiration, self._trust_seconds = options.expiration, options.trust_seconds
        self._container, self._prefix, self._now = container, prefix, now
        self.violations: list[str] = []
        self.leases: dict[str, Lease] = {}
        # For each key, the number of changes that have arrived in order: the changes 0 to n-1
        self.arrived: dict[str, int] = defaultdict(int)
        # For each owner and lease, the LSN of the last page that its handler finished
        self._handled: dict[tuple[str, str], int] = {}
        # For each time that an owner held a lease (tenure): the number of its last page, and the last LSN of the page
        self._pages: dict[tuple[str, str, int], tuple[int, int]] = {}
        # The owners and ids of released leases. The owner may not know of the release yet, because the answer is on its way.
        self._given_up: set[tuple[str, str]] = set()
        # When a foreign program took a lease from one of our workers, by worker and lease
        self._robbed: dict[tuple[str, str], float] = {}
        # Ranges for which a foreign program created a second lease, so that two workers may read them
        self._doubled: list[FeedRange] = []
        # Ranges that have two leases for a while: a worker created a lease late, after another worker had a lease of the range
        self._late: list[FeedRange] = []
        # Ranges in which a lease's position may go back: an operator set it too far ahead, or a failover lost handled changes
        self._astray: list[FeedRange] = []
        # Leases that a foreign program deleted, whose ranges may have no lease for a while
        self._removed: list[Lease] = []

    def violated(self, what: str) -> None:
        self.violations.append(what)

    def goes_astray(self, feed_range: FeedRange) -> None:
        """
        Stop checking the positions of leases in this range: a position no longer proves that earlier changes were handled. Check
        that the changes arrive, as before.
        """
        self._astray.append(feed_range)

    def is_astray(self, feed_range: FeedRange | None) -> bool:
        return feed_range is None or any(astray.overlaps(feed_range) for astray in self._astray)

    # what arrives

    def change_arrives(self, document: Document) -> None:
        key, number = document["partitionKey"], document["n"]
        if number > self.arrived[key]:
            if all(self._left_to_another_lease(change) for change in self._missing(key, before=number)):
                return
            self.violated(f"{key}: {number} arrived before {self.arrived[key]}")
        self.arrived[key] = max(self.arrived[key], number + 1)

    def page_begins(self, owner: str, batch: ChangeBatch) -> None:
        """
        Check that an owner of a lease handles its pages in order: after a failure the same page again, otherwise the next page,
        which begins after the last one.
        """
        lease, page, first = batch.lease, batch.page, batch.documents[0]["_lsn"]
        if (owner, lease) in self._given_up:
            self.violated(f"{owner} handles a page of {lease}, which it released")
        last, reached = self._pages.get((owner, lease, batch.tenure), (0, 0))
        found = self.leases.get(lease)
        if page not in (last, last + 1) or (
            page == last + 1 and first <= reached and not self.is_astray(found and found.range)
        ):
            self.violated(f"{owner} handles page {page} of {lease} at {first} after {last} at {reached}")
        self._pages[owner, lease, batch.tenure] = page, batch.documents[-1]["_lsn"]

    def page_is_done(self, owner: str, batch: ChangeBatch) -> None:
        self._handled[owner, batch.lease] = batch.documents[-1]["_lsn"]

    def check_trust(self, trusted: list[tuple[str, Lease, float]]) -> None:
        """
        Check that no two workers believe that they own leases with common keys, because both would handle the same changes.

        Args:
            trusted: the leases that living workers believe to own, each with the worker's name and the time until which the
            worker may work on the lease without another write.
        """
        honest = []
        for owner, lease, until in trusted:
            if not self._current(lease):
                continue
            robbed_at = self._robbed.get((owner, lease.id))
            if robbed_at is None and (owner, lease.id) not in self._given_up:
                honest.append((owner, lease))
            elif robbed_at is not None and until > robbed_at + self._trust_seconds:
                self.violated(f"{owner} trusts {lease.id} for longer than when it was robbed of it")
        for (owner, lease), (other_owner, other) in _pairs(honest, key=lambda pair: pair[1].range):
            if owner != other_owner and self._twice(lease.range, other.range, also_excused=self._late):
                self.violated(f"{owner} and {other_owner} both trust {lease.id} / {other.id}")

    def overlapping(self) -> list[tuple[str, str]]:
        """Return the pairs of leases that share keys. Leave out pairs that a foreign program caused."""
        leases = [lease for lease in self.leases.values() if self._current(lease)]
        return [
            (lease.id, other.id)
            for lease, other in _pairs(leases, key=lambda lease: lease.range)
            if self._twice(lease.range, other.range)
        ]

    def misnamed(self, partitions: Collection[str]) -> list[str]:
        """
        Return the ids of version 0 leases whose token is not the id of a partition. .NET and KEDA could not use such a lease.
        """
        leases = [lease for lease in self.leases.values() if self._current(lease) and lease.version == 0]
        return [lease.id for lease in leases if lease.token not in partitions]

    def _twice(
        self, first: FeedRange | None, second: FeedRange | None, *, also_excused: Sequence[FeedRange] = ()
    ) -> bool:
        common = _common(first, second)
        excused = (*self._doubled, *also_excused)
        return common is not None and not any(doubled.contains(common) for doubled in excused)

    def is_written(self, actor: str, before: Lease | None, after: Lease | None) -> None:
        if before is not None:
            self.leases.pop(before.id, None)
        if after is not None:
            self.leases[after.id] = after
        if after is None:
            assert before
            self._is_deleted(actor, before)
        elif before is None:
            self._is_created(actor, after)
        else:
            self._is_replaced(actor, before, after)
        if after is not None:
            self._check_not_ahead(actor, after)

    def _is_replaced(self, actor: str, before: Lease, after: Lease) -> None:
        if _position(after) < _position(before) and not self.is_astray(after.range):
            self.violated(f"{actor} moves {after.id} back from {_position(before)} to {_position(after)}")
        kept = after.continuation == before.continuation and after.range == before.range
        if actor in STRANGERS:
            if after.owner != before.owner:
                self._is_robbed(before)
        elif before.owner == actor:
            if after.owner is None:
                self._is_released(actor, after)
        elif after.owner == actor:
            self._is_taken(actor, before)
            if not kept:
                self.violated(f"{actor} moves {after.id} while it takes it")
        elif after.owner != before.owner or not kept:
            self.violated(f"{actor} writes {after.id}, which belongs to {before.owner}")

    def _is_taken(self, actor: str, lease: Lease) -> None:
        self._robbed.pop((actor, lease.id), None)
        self._given_up.discard((actor, lease.id))
        self._handled.pop((actor, lease.id), None)
        signed = lease.properties.get(SIGNATURE) == lease.owner
        if signed and not lease.expired(self._service_time(), self._expiration):
            self.violated(f"{actor} takes {lease.id} from {lease.owner}, which is alive")

    def _is_released(self, actor: str, lease: Lease) -> None:
        self._given_up.add((actor, lease.id))
        if _position(lease) < self._handled.get((actor, lease.id), 0) and not self.is_astray(lease.range):
            self.violated(f"{actor} releases {lease.id} without saving what it handled")

    def _is_robbed(self, lease: Lease) -> None:
        if lease.owner not in (None, *STRANGERS):
            self._robbed[str(lease.owner), lease.id] = service_time()

    def _is_created(self, actor: str, lease: Lease) -> None:
        others = [o for o in self.leases.values() if o.id != lease.id and self._same_container(o, lease)]
        parents = [other for other in others if _within(lease, other)]
        own = [parent for parent in parents if parent.owner == actor]
        follows = lease.continuation in [parent.continuation for parent in own]
        # A foreign program may have deleted the parent lease while its owner created this child lease. Then other workers may have
        # created leases for the same keys. That is no violation, even if this worker took one of those leases.
        orphan = not follows and self._is_orphan(actor, lease)
        held = [
            common for o in others if (orphan or o not in own) and (common := _common(lease.range, o.range))
        ]
        if actor in STRANGERS or orphan:
            self._doubled += held
            if actor in STRANGERS:
                self._skip(lease, others)
            return
        if lease.owner is not None:
            self.violated(f"{actor} creates {lease.id} with an owner")
        if not own:
            # The worker created this lease because its list of leases had none for the range. If another worker was faster, the
            # owner of this lease deletes it, or replaces both leases by one. `overlapping` checks at the end that this happened.
            self._late += held
            return
        # A new lease has to start at the position of its parent. If this worker owns several leases of the parent's range, because one
        # was created late, the position of one of them is enough. An operator may also have set the parent's position too far.
        if not follows and not any(self.is_astray(parent.range) for parent in own):
            reached = " and ".join(str(parent.continuation) for parent in own)
            self.violated(f"{lease.id} starts at {lease.continuation}, its parent is at {reached}")
        for other in others:
            if other not in parents and self._twice(lease.range, other.range):
                self.violated(f"{actor} creates {lease.id}, which overlaps {other.id}")

    def _skip(self, lease: Lease, others: Sequence[Lease]) -> None:
        """
        Stop expecting the changes that a new lease of another program skips, because it copied the position from a lease of other
        keys.
        """
        skipped = lease.range.without([o.range for o in others if o.range]) if lease.range else ()
        for change in self._changes():
            hashed = effective_partition_key(change["partitionKey"])
            if change["_lsn"] <= _position(lease) and any(_holds(part, hashed) for part in skipped):
                self.arrived[change["partitionKey"]] = max(
                    self.arrived[change["partitionKey"]], change["n"] + 1
                )

    def _is_orphan(self, actor: str, lease: Lease) -> bool:
        """
        Return whether a foreign program deleted the parent of this lease while the request that creates this lease was on its way.

        Another worker may have created a lease of the range meanwhile. Our processor cannot know which of the two leases has
        the later position, so it keeps both. Changes come twice, and none is lost.
        """
        robbed_of = [removed for removed in self._removed if (actor, removed.id) in self._robbed]
        return any(removed.id != lease.id and _within(lease, removed) for removed in robbed_of)

    def _is_deleted(self, actor: str, lease: Lease) -> None:
        if actor in STRANGERS:
            self._is_robbed(lease)
            self._removed.append(lease)
            return
        if lease.owner != actor:
            self.violated(f"{actor} deletes {lease.id}, which belongs to {lease.owner}")
        left = [
            other.range
            for other in self.leases.values()
            if other.range and self._same_container(other, lease)
        ]
        # A child lease that a foreign program deleted counts as existing, because the worker created it before it deleted the parent lease.
        left += [
            child.range
            for child in self._removed
            if child.id != lease.id and child.range and _within(child, lease)
        ]
        if lease.range is not None and self._current(lease) and lease.range.without(left):
            self.violated(f"{actor} deletes {lease.id} before all of its children are there")

    def _changes(self) -> Iterator[Document]:
        # This reads the partitions directly, because `documents()` copies all documents. With a copy at each write of a lease, a
        # run took 1.5 times as long.
        for partition in self._container()._partitions:
            yield from partition.documents.values()

    def _missing(self, key: str, *, before: int) -> Iterator[Document]:
        for change in self._changes():
            if change["partitionKey"] == key and self.arrived[key] <= change["n"] < before:
                yield change

    def _left_to_another_lease(self, change: Document) -> bool:
        """
        Return whether a lease may skip this change. It may if a foreign program created a second lease of the range, and one of the
        two leases has not reached the change yet.
        """
        hashed = effective_partition_key(change["partitionKey"])
        return any(_holds(common, hashed) for common in self._doubled) and any(
            lease.range and _holds(lease.range, hashed) and _position(lease) < change["_lsn"]
            for lease in self.leases.values()
            if self._current(lease)
        )

    def _check_not_ahead(self, actor: str, lease: Lease) -> None:
        if not self._current(lease) or self.is_astray(lease.range):
            return
        covered, reached = lease.range or FeedRange(min="", max="FF"), _position(lease)
        for change in self._changes():
            key, number = change["partitionKey"], change["n"]
            if (
                change["_lsn"] <= reached
                and number >= self.arrived[key]
                and _holds(covered, effective_partition_key(key))
                and not self._left_to_another_lease(change)
            ):
                self.violated(f"{actor} saves {lease.id} at {reached}, but {key}-{number} was not handled")

    def _current(self, lease: Lease) -> bool:
        return lease.id.startswith(f"{self._prefix()}..")

    @staticmethod
    def _same_container(one: Lease, other: Lease) -> bool:
        return one.id.removesuffix(one.token) == other.id.removesuffix(other.token)

    def _service_time(self) -> datetime:
        return datetime.fromtimestamp(int(self._now()), UTC)


def _pairs(things: Iterable[T], *, key: Callable[[T], FeedRange | None]) -> Iterator[tuple[T, T]]:
    """
    Return the pairs of things whose ranges overlap. Sorting finds them: comparing all pairs of a hundred ranges would take most of
    a run's time.
    """
    ranged = sorted(
        ((found, thing) for thing in things if (found := key(thing))), key=lambda pair: pair[0].min
    )
    for i, (covered, thing) in enumerate(ranged):
        for other, other_thing in itertools.islice(ranged, i + 1, None):
            if other.min >= covered.max:
                break
            yield thing, other_thing


def _common(first: FeedRange | None, second: FeedRange | None) -> FeedRange | None:
    if first is None or second is None or not first.overlaps(second):
        return None
    return FeedRange(min=max(first.min, second.min), max=min(first.max, second.max))


def _holds(feed_range: FeedRange, hashed: str) -> bool:
    return feed_range.min <= hashed < feed_range.max


def _position(lease: Lease) -> int:
    return int((lease.continuation or '"0"').strip('"'))


def _within(lease: Lease, parent: Lease) -> bool:
    return lease.range is not None and parent.range is not None and parent.range.contains(lease.range)
