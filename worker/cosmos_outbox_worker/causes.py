"""
Causes: find out why a worker or consumer makes no progress. A cause says what fails and since when, which ranges or keys it stops, and
what an operator can do.

Pure functions compute the causes from current failures, leases and heartbeats. `causes.toml` has the texts. The status page, the readiness
probe, `cosmos-outbox status`, `cosmos-outbox doctor` and the log all use this module, so that all five say the same.
"""

from __future__ import annotations

import re
import tomllib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cosmos_outbox.changefeed import Lag, LeaseStatus
from cosmos_outbox.changefeed.leases import token_of
from cosmos_outbox_worker.readable_times import clock_time, duration_text

if TYPE_CHECKING:
    from cosmos_outbox_worker.heartbeats import Heartbeat

# A failure that lasts less than this is not reported as a cause, because retries repair it.
A_WHILE = timedelta(seconds=5)
# A lease without an owner is normal for this long: after workers start or end, it takes some seconds until a worker acquires each lease.
FREE = timedelta(seconds=30)
LATE = timedelta(minutes=5)  # a change that waits for this long needs an operator
_MOST_NAMED = 20
_WORDS = tomllib.loads(Path(__file__).with_name("causes.toml").read_text("utf-8"))
_KINDS: Mapping[str, Mapping[str, Any]] = {
    kind: _WORDS["defaults"] | words for kind, words in _WORDS["kinds"].items()
}
# A worker that makes no progress on a lease writes a text into the lease document. The text begins like this, and the error follows.
_STANDSTILL = re.compile(r"No progress for (\d+) s, \d+ attempts failed: ")

# What a cause stops: the name of a worker or consumer, and the range or key that it cannot process. "" means all its ranges or keys.
Stopped = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """
    A reason why a worker or a consumer makes no progress, or why an operator has to act.

    kind: a name of `[kinds]` in `causes.toml`, which has the texts.
    said: the error text of the service, or a sentence of this library.
    stops: the ranges or keys that the cause stops, with their worker or consumer; empty if it stops none.
    stands: whether these ranges or keys make no progress at all.
    unready: whether the process that reports this cause answers `/readyz` with 503 because of it.
    """

    kind: str
    said: str = ""
    since: datetime | None = None
    stops: tuple[Stopped, ...] = ()
    stands: bool = False
    unready: bool = False

    @property
    def words(self) -> Mapping[str, Any]:
        """
        Return the texts of `causes.toml` for this kind of cause. If this version does not know the kind, because a newer worker
        reported it in a heartbeat, return the texts of the kind `failing`.
        """
        return _KINDS.get(self.kind, _KINDS["failing"])

    @property
    def key(self) -> tuple[str, ...]:
        """Return a key that is equal for two reports of the same cause, so that they can be merged."""
        return self.kind, *re.findall(self.words["each"], self.said)[:1]

    @property
    def whom(self) -> str:
        """Return a text that lists the ranges or keys that the cause stops, each with its worker or consumer."""
        named, more = defaultdict[str, list[str]](list), len(self.stops) - _MOST_NAMED
        for who, what in self.stops[:_MOST_NAMED]:
            named[who].append(what)
        said = [" of ".join(filter(None, (", ".join(things), who))) for who, things in named.items()]
        return "; ".join(said) + (f"; and {more:,} more" if more > 0 else "")

    @property
    def advice(self) -> str:
        """Return what an operator can do about this cause, and the page of the documentation about it."""
        return f"{self.words['remedy']} ({self.words['page']})"

    def facts(self) -> dict[str, Any]:
        """Return the cause as a dictionary for JSON output."""
        said = {name: self.words[name] for name in ("what", "remedy", "page")}
        return asdict(self) | said | {"since": self.since and self.since.isoformat()}

    def __str__(self) -> str:
        since = f" (since {clock_time(self.since)})" if self.since else ""
        said = ": ".join(filter(None, (self.words["what"] and f"{self.words['what']}{since}", self.said)))
        end = "" if said.endswith((".", "!", "?")) else "."
        return f"{said}{end} It stops {self.whom}." if self.stops else f"{said}{end}"


def cause_of(text: str, **known: Any) -> Cause:
    """
    Return the cause for the text of an error: the first kind in `causes.toml` whose pattern fits.

    Args:
        text: the error as `class: message`, or the text about an error that the owner of a lease wrote into the lease document.
        known: values for other fields of the returned `Cause`.
    """
    said = _STANDSTILL.sub("", text, count=1)
    fitting = (kind for kind, words in _KINDS.items() if re.match(words["when"], said, re.DOTALL))
    return Cause(kind=next(fitting), said=said, **known)


def merge_causes(found: Iterable[Cause]) -> tuple[Cause, ...]:
    """
    Merge causes that several parts reported. Return each cause once, the worst first, with all ranges and keys that it stops.

    `causes.toml` marks some kinds as symptoms, such as `late` (changes wait long). A symptom is merged into the cause that stops the
    same range or key.
    """
    found = [part for one in found for part in [replace(one, stops=(each,)) for each in one.stops] or [one]]
    reasons = {stopped: one for one in found if not one.words["symptom"] for stopped in one.stops}
    groups = defaultdict[tuple[str, ...], list[Cause]](list)
    for one in found:
        why = reasons.get(one.stops[0]) if one.words["symptom"] and one.stops else None
        groups[(why or one).key] += [replace(why, stands=one.stands, unready=one.unready) if why else one]
    order = [*_KINDS, *(kind for kind, *_ in groups)]
    causes = sorted(map(_one_of, groups.values()), key=lambda one: order.index(one.kind))
    return tuple(sorted(causes, key=lambda one: (not one.unready, not one.stands)))


def _one_of(group: Sequence[Cause]) -> Cause:
    return replace(
        group[0],
        said=next((one.said for one in group if one.said), ""),
        since=min((one.since for one in group if one.since), default=None),
        stops=tuple(dict.fromkeys(stopped for one in group for stopped in one.stops)),
        stands=any(one.stands for one in group),
        unready=any(one.unready for one in group),
    )


def of_own_work(
    now: datetime, me: str, failing: Sequence[Cause], mine: Sequence[LeaseStatus] = ()
) -> Iterator[Cause]:
    """
    Yield the causes that a worker or consumer knows from its own work.

    A lease that makes no progress may have no error of its own. For such a lease, the failures of sends are taken as the reason, or
    all failures if no send fails. Once all leases make progress, failures of sends are left out, because they may be over: a sender
    that failed and has no more messages never reports a success.

    Args:
        now: the time of the snapshot.
        me: the name of this process.
        failing: the failures that this process knows and that are not over.
        mine: the leases that this worker owns.
    """
    still = [one for one in mine if one.stalled or one.idle_seconds >= A_WHILE.total_seconds()]
    sends = [one for one in failing if one.words["sends"]]
    suspects = sends or [one for one in failing if not (one.words["quiet"] or one.words["checked"])]
    for one in failing if still else [one for one in failing if one.unready or one not in sends]:
        if (
            one.unready
            or one.since is None
            or now - one.since >= A_WHILE
            or any(one.stalled for one in still)
        ):
            held = [range_of(me, lease.token) for lease in still if lease.error is None and one in suspects]
            yield replace(one, stops=(*one.stops, *held))
    for lease in still:
        if lease.error or lease.stalled:
            since, stops = now - timedelta(seconds=lease.idle_seconds), (range_of(me, lease.token),)
            error, stands = lease.error or "A page is not done yet.", lease.stalled
            yield cause_of(error, since=since, stops=stops, stands=stands, unready=stands)


def of_workers(
    now: datetime, workers: Iterable[Heartbeat], lag: Lag, *, known: Collection[str] = ()
) -> Iterator[Cause]:
    """
    Yield the causes that the heartbeats of other workers report, and one cause for each worker that stopped sending heartbeats.

    Args:
        now: the time of the snapshot.
        workers: the heartbeats.
        lag: says which leases each worker owns.
        known: the tokens of the ranges that the calling worker itself works on. These ranges are left out of the `stops` of the
            causes, because the calling worker knows their state better than other workers do.
    """
    ours = {what for _, what in (range_of("", token) for token in known)}
    for worker in workers:
        if worker.works:
            for one in worker.causes:
                yield replace(one, unready=False, stops=tuple(one for one in one.stops if one[1] not in ours))
        elif worker.silent:
            owned = [range_of(worker.worker, one.token) for one in lag.leases if one.owner == worker.worker]
            last = next((f", with: {text}" for text in (*map(str, worker.causes), *worker.errors)), ".")
            said = f"{worker.worker} gave its last sign of life {duration_text(worker.silent_for)} ago{last}"
            if stops := tuple(one for one in owned if one[1] not in ours):
                yield Cause(kind="worker-silent", said=said, since=now - worker.silent_for, stops=stops)


def of_fleet(sentences: Iterable[str]) -> Iterator[Cause]:
    """Yield one cause for each sentence that compares the workers of a processor, such as that their settings differ."""
    return (Cause(kind="fleet", said=said) for said in sentences)


def of_leases(now: datetime, lag: Lag, *, known: Collection[str] = ()) -> Iterator[Cause]:
    """
    Yield the causes that the lease documents show: damaged leases, leases without an owner or progress, and changes that wait long.

    Args:
        now: the time of the snapshot.
        lag: the leases as the last poll found them.
        known: the tokens of the ranges that the calling worker itself works on. For these ranges, a missing owner or missing
            progress is not reported, because the calling worker knows their state better than the last poll.
    """
    for name, error in lag.damaged.items():
        yield Cause(kind="lease-damaged", said=error, stops=(range_of("", token_of(name)),), stands=True)
    for lease in lag.leases:
        stops = (range_of(lease.owner or "", lease.token),)
        if lease.ahead:
            yield Cause(kind="position-ahead", said=lease.ahead, stops=stops, stands=True)
        elif lease.standstill and lease.token not in known:
            idle = _STANDSTILL.match(lease.standstill)
            since = now - timedelta(seconds=int(idle[1])) if idle else None
            yield cause_of(lease.standstill, since=since, stops=stops, stands=True)
        if lease.unseen:
            yield cause_of(lease.unseen, stops=stops)
        since = None if lease.oldest_age is None else now - lease.oldest_age
        if lease.owner is None and lease.transactions and lease.token not in known:
            stands = lease.free_for is not None and lease.free_for >= FREE
            yield Cause(kind="no-owner", since=since, stops=stops, stands=stands)
        elif not lease.age_known or (lease.oldest_age and lease.oldest_age >= LATE):
            yield Cause(kind="late" if lease.age_known else "unknown", since=since, stops=stops)


def range_of(owner: str, token: str) -> Stopped:
    """Return the owner of a lease and a text that names the lease's range. `Cause.stops` has such pairs."""
    return owner, f"range {token}"
