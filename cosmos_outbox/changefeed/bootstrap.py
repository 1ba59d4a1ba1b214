"""
Bootstrap: create the leases of all ranges once, however many workers start at the same time, and again if all leases
were lost. `splits.py` creates the leases of a range that was split or merged.

As in .NET, a worker holds the document `<prefix>.lock` while it creates leases, and the document `<prefix>.info` says
that the leases were created. Unlike .NET, a worker of this library deletes a lock that a crashed worker left, creates
leases for ranges without one, and writes into `.info` where all leases begin.

The id of a lease begins with the processor's name, followed directly by the host of the account's global endpoint, as
in .NET. A .NET worker that was configured with a regional endpoint writes the host of that endpoint instead. Leases
under two hosts would be two sets of leases, and each event would be handled once for each set. So leases under another
host of the account are refused.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from cosmos_outbox import errors
from cosmos_outbox.changefeed.leases import (
    BEGINNING,
    START,
    Lease,
    from_document,
    lease_prefix,
    new_lease,
    start_from,
    start_of,
    start_property,
)
from cosmos_outbox.changefeed.owned_lease import Worker
from cosmos_outbox.changefeed.range_coverage import ASK_AGAIN, find_gaps, identify, locate, retry_seconds
from cosmos_outbox.partition_key import FeedRange
from cosmos_outbox.ports import ChangeFeed, Document, LeaseStore, MonitoredContainer, StartFrom
from cosmos_outbox.records import LeasesBalanced, LeasesLost

LOCK_SECONDS = 30
_UNLOCK_SECONDS = 5
_STALE_LOCK = timedelta(seconds=2 * LOCK_SECONDS)
_POLL_LOCK_SECONDS = 1
_PATIENCE_SECONDS = 5

_logger = logging.getLogger(__name__)


class Bootstrap:
    """
    Creates the leases that all workers of a processor share, and remembers what this worker knows about them.

    Args:
        failed: called with the id of a lease that cannot be created now, and the error.

    Attributes:
        container: the container whose change feed is read; set by `prepare`.
        prefix: the text with which the ids of its leases begin; set by `prepare`.
        start: where a range without a continuation begins.
        left: the ranges that still have no lease, because their partitions have not answered since this worker started.
    """

    container: MonitoredContainer
    prefix: str

    def __init__(self, worker: Worker, *, failed: Callable[[str, BaseException], None]) -> None:
        self._worker, self._failed = worker, failed
        self.start = worker.options.start
        self.left: tuple[FeedRange, ...] = ()
        self._began = False  # whether this worker has seen leases: if there are none later, they were lost
        self._told = False  # whether LeasesLost was reported: then other stores are not asked about a loss

    async def prepare(self) -> None:
        """
        Create the missing leases, and return when they exist. After a fault that passes, wait and try again.

        Raises:
            ConfigurationError, StoreError: see `ChangeFeedProcessor.run`.
        """
        options, attempt = self._worker.options, 0
        while True:
            try:
                self.container = await self._worker.feed.describe()
                self.prefix = await own_prefix(
                    self.container, processor_name=options.processor_name, leases=self._worker.store
                )
                return await self.create()
            except (errors.StoreError, errors.RangeGone, errors.ContainerRecreated) as error:
                if isinstance(error, errors.StoreError) and not error.retriable:
                    raise
                attempt += 1
                self._worker.notify(
                    LeasesBalanced(owner=options.instance_name, outcome="failed", error=error)
                )
                await asyncio.sleep(options.backoff.delay(attempt, at_least=error.retry_after))

    async def create(self, only: Collection[FeedRange] | None = None) -> None:
        """
        Create the missing leases, as `create_leases` does. If all leases were lost, emit the record LeasesLost first.
        """
        if proof := await self._earlier_life():
            if self.start is StartFrom.NOW:
                self.start = StartFrom.BEGINNING
            self._tell_lost(proof)
        left = await create_leases(
            self.prefix, feed=self._worker.feed, store=self._worker.store, start=self.start, only=only
        )
        self.left = tuple(left)
        for feed_range, error in left.items():
            self._failed(self.id_for(feed_range), error)
        # With `StartFrom.NOW`, the first leases begin at the moment of their creation, which the marker
        # document states. Remember that moment: if the leases are lost later, new leases begin there and skip
        # no change.
        if not self._began and (marker := await _marker_of(self.prefix, self._worker.store)) is not None:
            self._began = True
            # Another program, such as a .NET processor, writes the marker document without a start.
            if isinstance(began := marker.get(START), str):
                self.start = start_from(began)

    def begin_again(self) -> None:
        """
        Forget the leases of a container that was deleted and created again: the new container gets leases with other
        ids, which begin at the start of its feed.
        """
        # Read the new container from its beginning: `StartFrom.NOW` would skip the changes that it got before
        # this worker noticed that it is new.
        self.start, self._began = StartFrom.BEGINNING, False
        self._tell_lost("the container was deleted and created again")

    def id_for(self, feed_range: FeedRange) -> str:
        return f"{self.prefix}..{feed_range.min}-{feed_range.max}"

    def _tell_lost(self, reason: str) -> None:
        self._told, told = True, start_property(self.start, now=self._worker.utcnow())
        self._worker.notify(LeasesLost(owner=self._worker.options.instance_name, start=told, reason=reason))

    async def _earlier_life(self) -> str | None:
        """
        Return a text that proves that this processor had leases and has lost them. Return None if it has leases, or
        never had any.
        """
        # List the leases first. The option `earlier_life` may ask another store whether there were leases before,
        # and a worker that has leases must not wait for a store that cannot be reached.
        if await self._has_leases():
            return None
        proof: str | None = "this worker has seen them" if self._began else None
        if proof is None and not self._told and self._worker.options.earlier_life is not None:
            proof = await self._worker.options.earlier_life()
        # List the leases once more: another worker may also have noticed the loss, and created new leases.
        return None if proof is None or await self._has_leases() else proof

    async def _has_leases(self) -> bool:
        marker = await _marker_of(self.prefix, self._worker.store)
        return marker is not None or bool((await self._worker.store.list(f"{self.prefix}..")).documents)


async def create_leases(
    prefix: str,
    *,
    feed: ChangeFeed,
    store: LeaseStore,
    start: StartFrom | datetime,
    only: Collection[FeedRange] | None = None,
) -> Mapping[FeedRange, errors.OutboxError]:
    """
    Create the missing leases, and return when every range has one, created here or by another worker. Ranges whose
    partitions do not answer are left out.

    Args:
        only: the ranges that an earlier call left out; no other range gets a lease. Defaults to all ranges.

    Returns:
        The ranges that have no lease yet, each with the reason: its partition was throttled or silent for a few
            seconds. Call again with these ranges until none is left.
    """
    while (found := await _marker_of(prefix, store)) is None:
        try:
            held = await store.create({"id": f"{prefix}.lock", "ttl": LOCK_SECONDS})
        except errors.Conflict:
            await _break_if_stale(prefix, store)
            await asyncio.sleep(_POLL_LOCK_SECONDS)
            continue
        try:
            chosen = await _earliest_start(prefix, store) or start_property(start, now=_written_at(held))
            _, left = await _create_missing(prefix, feed=feed, store=store, start=chosen, only=only)
            with suppress(errors.Conflict):
                await store.create({"id": f"{prefix}.info", START: chosen})
        finally:  # delete the lock after a fault too, so that the next attempt does not wait until it expires
            with suppress(errors.StoreError, TimeoutError):
                async with asyncio.timeout(_UNLOCK_SECONDS):
                    await store.delete(held["id"], _routing(held), etag=held["_etag"])
        return left
    # A lease that is created later begins at the start of the first leases (a time or the beginning), because no
    # worker has handled the changes of its range since. A marker document that this library wrote names this start.
    # For a marker of another program, `StartFrom.NOW` means the time at which the marker was written.
    began = found.get(START)
    begin = began if isinstance(began, str) else start_property(start, now=_written_at(found))
    created, left = await _create_missing(prefix, feed=feed, store=store, start=begin, only=only)
    for lease in created if only is None else ():
        _logger.warning(
            "lease.repaired created %s, as no lease covered its range; it reads from the start of the first leases",
            lease.id,
        )
    return left


async def _marker_of(prefix: str, store: LeaseStore) -> Document | None:
    """
    Return the marker: the document `….info`, which says that the leases were created, and where they begin. Return None
    if no leases were created yet, or if they were lost.
    """
    marker = f"{prefix}.info"
    try:
        return await store.read(marker, marker)
    except errors.NotFound:
        return None


async def _create_missing(
    prefix: str, *, feed: ChangeFeed, store: LeaseStore, start: str, only: Collection[FeedRange] | None = None
) -> tuple[list[Lease], Mapping[FeedRange, errors.OutboxError]]:
    """
    Create a lease for every physical range that no lease covers. If a partition does not answer, ask it again, for a
    few seconds at most.

    Args:
        start: where the new leases begin, as the text that `start_property` returns.
        only: the ranges that may get a lease; other ranges are left as they are. None means all ranges.

    Returns:
        The leases that were created here, and the ranges that have none yet because their partitions do not answer now.
    """
    loop = asyncio.get_running_loop()
    until, attempt, created = loop.time() + _PATIENCE_SECONDS, 0, list[Lease]()
    ids, left = dict[FeedRange, str](), dict[FeedRange, errors.OutboxError]()
    while True:
        # List the ranges before the leases. If a range is split between the two requests, the leases then
        # cover all listed ranges, and no range falsely seems to lack a lease.
        physical = dict.fromkeys(await feed.physical_ranges())
        listed_at = loop.time()
        placed, unplaced = await locate(await _leases(prefix, store), tuple(physical), feed)
        gaps = [
            gap
            for gap in find_gaps(tuple(physical), placed)
            if only is None or any(wanted.contains(gap) for wanted in only)
        ]
        # Ask each partition only once, although this loop may list the leases several times. Otherwise a
        # partition that does not answer would delay the leases of the other partitions each time.
        unknown = (gap for gap in gaps if gap in physical and gap not in ids and gap not in left)
        found, silent = await identify(unknown, feed)
        ids |= found
        left |= {**unplaced, **silent}
        for gap in gaps:
            if gap in left:
                continue
            # A gap that is only a part of a physical range, as after a merge, is named by its bounds. A gap that is
            # a whole physical range is named by the id of that range.
            token, version = f"{gap.min}-{gap.max}", 1
            if gap in physical:
                token, version = ids[gap], 0
            if loop.time() - listed_at > LOCK_SECONDS:
                # This process may have been frozen while another worker broke the lock, created this lease
                # and split its range. Creating the lease this late would have the whole range handled again
                # from its start, so list the leases again.
                break
            lease = new_lease(prefix, token, gap, version=version, properties={START: start})
            with suppress(errors.Conflict):
                await store.create(lease.raw)
                created.append(lease)
        else:
            if not left:
                return created, left
            attempt += 1
            delay = ASK_AGAIN.delay(attempt, at_least=retry_seconds(left.values()))
            if loop.time() + delay > until:
                return created, left
            await asyncio.sleep(delay)
            ids, left = {}, {}


async def _leases(prefix: str, store: LeaseStore) -> list[Lease]:
    return [from_document(document) for document in (await store.list(f"{prefix}..")).documents]


async def _earliest_start(prefix: str, store: LeaseStore) -> str | None:
    """
    Return the earliest start of the leases that a worker created before it died; None if there are no leases. The leases
    that are still missing get the same start, so that they skip no change.
    """
    leases = await _leases(prefix, store)
    chosen = {lease.properties[START]: start_of(lease) for lease in leases if START in lease.properties}
    moments = {text: start for text, start in chosen.items() if isinstance(start, datetime)}
    if len(moments) < len(chosen):
        return BEGINNING
    return min(moments, key=lambda text: moments[text], default=None)


async def _break_if_stale(prefix: str, store: LeaseStore) -> None:
    listing = await store.list(f"{prefix}.lock")
    for lock in listing.documents:
        if _written_at(lock) + _STALE_LOCK < listing.read_at:
            _logger.warning("lease.lock-broken deleting the lock %s of a worker that died", lock["id"])
            with suppress(errors.NotFound, errors.PreconditionFailed):
                await store.delete(lock["id"], _routing(lock), etag=lock["_etag"])


def _written_at(document: Document) -> datetime:
    return datetime.fromtimestamp(document["_ts"], UTC)


def _routing(document: Document) -> str:
    return str(document.get("partitionKey", document["id"]))


async def own_prefix(container: MonitoredContainer, *, processor_name: str, leases: LeaseStore) -> str:
    """
    Return the text with which the ids of a processor's leases begin.

    Raises:
        ConfigurationError: the processor has leases under another name of the account, or the lease container cannot be
            used.
    """
    heads = await _heads(container, leases, processor_name)
    hosts = (head.removeprefix(processor_name) for head in heads)
    others = sorted(host for host in hosts if _is_other_name(host, container.account_host.lower()))
    if others:
        raise errors.ConfigurationError(
            f"Processor {processor_name!r} has leases under {', '.join(others)}, another name of the account "
            f"{container.account_host}. Workers under both names would send every event twice. Stop all workers. Delete the "
            f"documents of the lease container whose ids begin with {processor_name + others[0]!r}. Set the start of the workers "
            "to a time before the last write of those leases, and start them; they send the events since that time again."
        )
    return lease_prefix(processor_name, container)


async def others_on(
    container: MonitoredContainer, *, processor_name: str, leases: LeaseStore
) -> tuple[str, ...]:
    """Return the names of the other processors that have leases of the container in this lease container."""
    host = container.account_host.lower()
    heads = await _heads(container, leases) - {f"{processor_name}{host}"}
    return tuple(sorted(head.removesuffix(host) for head in heads))


async def _heads(container: MonitoredContainer, leases: LeaseStore, beginning: str = "") -> frozenset[str]:
    """
    Return the beginnings of the ids of all leases of a container. Each is a processor's name followed by a host, and so
    shows that this processor has leases of the container.
    """
    # This call raises if the lease container is missing. The listing below would only be empty.
    await leases.partitioned_by_id()
    rids = f"_{container.database_rid}_{container.container_rid}.."
    parts = (str(one["id"]).partition(rids) for one in (await leases.list(beginning)).documents)
    return frozenset(head for head, found, _ in parts if found)


def _is_other_name(host: str, account_host: str) -> bool:
    # `host` is what follows the processor's name in the id of a lease. If it ends with the account's own
    # host, the lease belongs to another processor, whose name begins with the name of this processor.
    account = re.escape(account_host.partition(".")[0])
    return not host.endswith(account_host) and re.fullmatch(rf"{account}([-.].*)?", host) is not None
