"""
Leases: check that each range has exactly one lease, and that each lease has an owner and makes progress. Report other processors that
read the container. `checks.toml` has the text of each finding.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import combinations

from cosmos_outbox.changefeed import Lag, LeaseLag
from cosmos_outbox.changefeed.leases import Lease, is_child_of, range_of, readable
from cosmos_outbox.changefeed.range_coverage import find_gaps, locate
from cosmos_outbox.errors import ConfigurationError, OutboxError, RangeGone, StoreUnavailable
from cosmos_outbox.partition_key import FeedRange
from cosmos_outbox.ports import ChangeFeed, StartFrom
from cosmos_outbox.retries import RetryOptions, retry_reads
from cosmos_outbox_worker.causes import LATE, Cause, merge_causes, of_leases, of_workers
from cosmos_outbox_worker.connection import Connection
from cosmos_outbox_worker.doctor.check import UNANSWERED, Checks, Findings, finding, worse
from cosmos_outbox_worker.fleet_differences import alarms_of, differences, versions
from cosmos_outbox_worker.heartbeats import Heartbeat

_SECONDS_A_RANGE = 5.0
# The time limit of a call that makes several requests. It is longer than usual, because each request also has a time limit of its own.
_SEVERAL = RetryOptions(deadline_seconds=40.0, attempt_seconds=40.0)
_SKEW_WARNING, _SKEW_ERROR = timedelta(seconds=30), timedelta(minutes=5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """
    Two leases whose ranges overlap, so that two workers may send the same events.

    unfinished: whether the second lease was created when the range of the first one split. If so, the worker that handled the split
        ended before it deleted the first lease.
    """

    tokens: tuple[str, str]
    unfinished: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Leases:
    """
    The leases of a processor, and how much waits in their ranges, as `doctor` read them.

    damaged: for each lease that cannot be read, why it cannot be read.
    gaps: the ranges that no lease covers.
    skew: how far this machine's clock is ahead of Cosmos DB's clock; negative if it is behind.
    left: the other processors that have waiting changes but no worker. The checks of `Processors` report these, so `alarms` leaves
        out the alarms about them.
    """

    leases: Sequence[Lease]
    damaged: Sequence[str]
    gaps: Sequence[FeedRange]
    overlaps: Sequence[Overlap]
    lag: Lag
    heartbeats: Sequence[Heartbeat]
    skew: timedelta
    event_ttl: timedelta
    left: Collection[str] = ()

    @property
    def alarms(self) -> list[str]:
        known = [f"changes wait for processor {other!r}" for other in self.left]
        return [said for said in alarms_of(self.heartbeats) if not any(one in said for one in known)]

    @property
    def uncovered(self) -> str:
        return ", ".join(f"{gap.min or '0'}-{gap.max}" for gap in self.gaps)

    @property
    def idle(self) -> list[LeaseLag]:
        return [lease for lease in self.lag.leases if lease.owner is None]

    @property
    def idle_tokens(self) -> str:
        return ", ".join(lease.token for lease in self.idle)

    @property
    def idle_transactions(self) -> int:
        return sum(lease.transactions for lease in self.idle)

    @property
    def late(self) -> str:
        ages = [(lag.token, lag.oldest_age) for lag in self.lag.leases]
        return ", ".join(token for token, age in ages if age is not None and age >= LATE)

    @property
    def age_seconds(self) -> float:
        return (self.lag.oldest_age or timedelta()).total_seconds()

    @property
    def causes(self) -> tuple[Cause, ...]:
        """Return the failures that keep events from being sent, without those that another check of `doctor` reports."""
        now = datetime.now(UTC)
        found = merge_causes((*of_workers(now, self.heartbeats, self.lag), *of_leases(now, self.lag)))
        return tuple(one for one in found if not (one.words["waits"] or one.words["checked"]))

    @property
    def skewed(self) -> str:
        side = "ahead of" if self.skew > timedelta() else "behind"
        return f"{abs(self.skew).total_seconds():.0f} s {side}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Processors:
    """
    The processors that have leases for the container, as `doctor` read them.

    misnamed: an error text if this processor's leases were created under another host name of the account; None otherwise.
    alone: whether other processors have leases and this one has none.
    others: the names of the other processors.
    deletes: whether OUTBOX_DELETE_AFTER_PUBLISH is set, so that events are deleted once this processor has sent them.
    left: by the name of a processor that no worker serves, how many changes wait for it.
    """

    misnamed: str | None = None
    alone: bool = False
    others: Sequence[str] = ()
    deletes: bool = False
    left: Mapping[str, int] = field(default_factory=dict)

    @property
    def named(self) -> str:
        return ", ".join(self.others)


OF_LEASES: Checks[Leases] = {
    "damaged-lease.unreadable": lambda it: it.damaged,
    "position-ahead.halted": lambda it: it.lag.ahead.values(),
    "overlapping-leases.unfinished": lambda it: [
        " stands beside its child ".join(one.tokens) for one in it.overlaps if one.unfinished
    ],
    "overlapping-leases.twice": lambda it: [
        " and ".join(one.tokens) for one in it.overlaps if not one.unfinished
    ],
    "standstill.owned": lambda it: [one for one in it.causes if one.stands],
    "standstill.failing": lambda it: [one for one in it.causes if not one.stands],
    "age.late": lambda it: bool(it.late) and worse(if_=it.age_seconds >= it.event_ttl.total_seconds() / 2),
    "workers.silent": lambda it: [one for one in it.heartbeats if one.silent],
    "workers.alarmed": lambda it: it.alarms,
    "workers.unlike": lambda it: differences(it.heartbeats),
    "workers.versions": lambda it: versions(it.heartbeats),
    "leases.none": lambda it: not it.leases and not it.damaged,
    "leases.uncovered": lambda it: bool(it.gaps),
    "owners.idle": lambda it: bool(it.idle) and worse(if_=it.idle_transactions > 0),
    "clock.skewed": lambda it: abs(it.skew) >= _SKEW_WARNING and worse(if_=abs(it.skew) >= _SKEW_ERROR),
}
OF_PROCESSORS: Checks[Processors] = {
    "lease-names.misnamed": lambda it: it.misnamed is not None,
    "other-processors.deleting": lambda it: bool(it.others) and it.deletes,
    "other-processors.left": lambda it: it.left.items(),
    "other-processors.present": lambda it: bool(it.others) and not it.deletes,
}


async def check_leases(outbox: Connection, expiration: timedelta, found: Findings) -> None:
    """
    Check the leases of a processor, and look for other processors. To estimate the waiting changes, read one change of each range.

    Args:
        outbox: the open connection.
        expiration: after what time a lease that was not written counts as free.
        found: collects the findings.
    """
    read_feed = partial(_read_any_range, outbox.feed)
    await found.attempt("read the change feed", lambda: retry_reads(read_feed, _SEVERAL))
    # Stop only after a refusal. If the feed is busy or does not answer, the leases can still be checked.
    if found.denied:
        return
    processors = await found.attempt(
        "list leases", lambda: retry_reads(partial(_processors, outbox, expiration), _SEVERAL)
    )
    if processors is None:
        return
    found.judge(OF_PROCESSORS, processors)
    if processors.alone:
        found.add(finding("processor-name.unknown", outbox.settings.processor_name, processors.named))
    elif processors.misnamed is None:
        reading = partial(_leases, outbox, expiration)
        leases = await found.attempt("read the leases", lambda: retry_reads(reading, _SEVERAL))
        if leases is not None:
            for name, reason in leases.lag.unseen.items():
                found.note(f"read what waits for lease {name}", StoreUnavailable(reason))
            whole = tuple(replace(one, unseen=None) for one in leases.lag.leases)
            found.judge(
                OF_LEASES, replace(leases, lag=replace(leases.lag, leases=whole), left=processors.left)
            )


async def _read_any_range(feed: ChangeFeed) -> None:
    """
    Check that this identity may read the change feed. One range that answers is enough, because a single range may be throttled.

    Raises:
        StoreError: this identity may not read the feed. Or no range answered, and this is the error of the last range.
    """
    container_rid = (await feed.describe()).container_rid
    failure: OutboxError = StoreUnavailable()
    for one in await feed.physical_ranges():
        try:
            async with asyncio.timeout(_SECONDS_A_RANGE):
                await feed.read_page(
                    one, container_rid=container_rid, continuation=None, start=StartFrom.NOW, max_items=1
                )
        except TimeoutError:
            failure = StoreUnavailable(f"No answer in {_SECONDS_A_RANGE:g} s.")
        except (*UNANSWERED, RangeGone) as error:
            failure = error
        else:
            return
    raise failure


async def _processors(outbox: Connection, expiration: timedelta) -> Processors:
    misnamed, alone = None, False
    try:
        alone = bool(await outbox.others_alone())
    except ConfigurationError as error:
        misnamed = str(error)
    deletes = outbox.settings.delete_after_publish is not None
    left, others = await outbox.find_unserved_processors(expiration), await outbox.others()
    return Processors(misnamed=misnamed, alone=alone, others=others, deletes=deletes, left=left)


async def _leases(outbox: Connection, expiration: timedelta) -> Leases:
    listing = await outbox.leases.list(f"{await outbox.prefix()}..")
    now = listing.read_at
    skew = datetime.now(UTC) - now
    physical = await outbox.feed.physical_ranges()
    whole, damaged = readable(listing.documents)
    leases, _ = await locate(whole, physical, outbox.feed)
    unread = [range_of(document) for document in listing.documents if document["id"] in damaged]
    return Leases(
        leases=leases,
        damaged=[str(error) for error in damaged.values()],
        gaps=gaps(physical, leases, unread) if listing.documents else (),
        overlaps=overlaps(leases, now=now, expiration=expiration),
        lag=await outbox.lag(expiration),
        heartbeats=await outbox.fleet.heartbeats(),
        skew=skew,
        event_ttl=timedelta(seconds=outbox.settings.event_ttl_seconds),
    )


def gaps(
    physical: Sequence[FeedRange], leases: Sequence[Lease], damaged: Sequence[FeedRange | None]
) -> tuple[FeedRange, ...]:
    """Return the ranges that no lease covers. If the range of a damaged lease is unknown, return none: that lease may cover the gap."""
    known = [feed_range for feed_range in damaged if feed_range is not None]
    if len(known) < len(damaged):
        return ()
    return tuple(left for gap in find_gaps(physical, leases) for left in gap.without(known))


def overlaps(leases: Sequence[Lease], *, now: datetime, expiration: timedelta) -> tuple[Overlap, ...]:
    """
    Return the pairs of leases whose ranges overlap. After Cosmos DB splits a range, a live worker replaces its lease by two new leases.
    The overlap that this causes for a moment is left out.
    """
    found = []
    for one, other in combinations(leases, 2):
        first, second = one.range, other.range
        if first is None or second is None or not first.overlaps(second):
            continue
        if is_child_of(one, other):
            one, other = other, one  # noqa: PLW2901 - the parent first
        replaced = is_child_of(other, one)
        if replaced and not one.expired(now, expiration):
            continue
        found.append(Overlap(tokens=(one.token, other.token), unfinished=replaced))
    return tuple(found)
