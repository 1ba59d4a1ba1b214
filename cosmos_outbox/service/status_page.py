"""
The status page of a worker: its own state, and the fleet's as the leases show it; trouble first. It reads without a script.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from cosmos_outbox.changefeed import LeaseLag, LeaseStatus
from cosmos_outbox.changefeed.leases import token_of
from cosmos_outbox.service.health import Snapshot
from cosmos_outbox.service.page_parts import (
    duration_text,
    escaped,
    figure_list,
    moment_text,
    page,
    parked_figures,
    parked_keys,
    parked_waits,
    section,
    sparkline,
    table,
)
from cosmos_outbox.service.vitals import LATE


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """
    A lease as the page shows it; `trouble` where it needs a look, `halted` where it makes no progress.
    """

    token: str
    owner: str | None
    waiting: int | None
    age: timedelta | None
    age_text: str
    state: str
    error: str
    trouble: bool
    halted: bool

    @property
    def cells(self) -> tuple[str, ...]:
        waiting = "unknown" if self.waiting is None else f"{self.waiting:,}"
        return self.token, self.owner or "free", waiting, self.age_text, self.state, self.error

    @property
    def order(self) -> tuple[int, str]:
        # Tokens of partitions are numbers.
        return len(self.token), self.token


def page_of(snapshot: Snapshot) -> str:
    """
    Return the page of a worker.
    """
    lead = f"Relays {snapshot.container} to topic {snapshot.topic}, as one of the workers named {snapshot.processor}."
    rows = sorted(_rows(snapshot), key=lambda row: (not row.halted, *row.order))
    halted = [
        f"Range {row.token} ({row.owner}): {row.error or row.state}"
        for row in rows
        if row.halted and not (snapshot.unready and row.owner == snapshot.instance)
    ]  # the reasons name those
    free = [
        f"Range {row.token} has no owner, and {row.waiting:,} changes wait."
        for row in rows
        if row.owner is None and row.waiting
    ]
    return page(
        snapshot,
        f"worker {snapshot.instance}",
        lead,
        [
            _figures(snapshot),
            section("leases", "Leases", _leases(snapshot, rows)),
            section("workers", "Workers", _workers(snapshot, rows)),
            section("parked", "Parked keys", parked_keys(snapshot)),
        ],
        waits=[*parked_waits(snapshot), *_late(snapshot), *free, *_unready(snapshot, rows)],
        bad=halted,
    )


def _late(snapshot: Snapshot) -> list[str]:
    oldest = None if snapshot.lag is None or snapshot.unseen else snapshot.lag.oldest_age
    return (
        [f"The oldest unsent change waits for {duration_text(oldest)}."] if oldest and oldest >= LATE else []
    )


def _unready(snapshot: Snapshot, rows: Sequence[_Row]) -> list[str]:
    named = {row.owner for row in rows if row.halted}
    return [
        f"Worker {other.worker} is not ready: {' '.join(other.unready)}"
        for other in snapshot.others or ()
        if other.troubled and other.worker not in named
    ]


def _figures(snapshot: Snapshot) -> str:
    lag = None if snapshot.unseen else snapshot.lag
    damaged = snapshot.lag.damaged if snapshot.lag else {}
    least = "at least " if damaged else ""
    oldest_unknown = lag is None or not lag.age_known or (damaged and lag.oldest_age is None)
    figures = {
        "Running for": duration_text(snapshot.at - snapshot.started_at),
        "Events sent by this worker": f"{snapshot.sent:,}",
        "Events a second, this worker": f"{snapshot.sent_per_second:,.1f}",
        "Leases of this worker": str(len({status.lease for status in snapshot.mine} - damaged.keys())),
        "Changes waiting, all leases": "unknown" if lag is None else f"{least}{lag.transactions:,}",
        "Oldest unsent": "unknown" if lag is None or oldest_unknown else f"{least}{_age(lag.oldest_age)}",
    } | parked_figures(snapshot)
    history = snapshot.history
    lines = {
        "Events a second, this worker": sparkline("Events a second", history, lambda one: one.per_second),
        "Changes waiting, all leases": sparkline("Changes waiting", history, lambda one: one.waiting),
        "Oldest unsent": sparkline(
            "Seconds of the oldest unsent",
            history,
            lambda one: one.oldest_seconds,
            lambda most: duration_text(timedelta(seconds=most)),
        ),
        "Parked keys": sparkline("Parked keys", history, lambda one: one.parked),
    }
    return figure_list(figures, lines)


def _rows(snapshot: Snapshot) -> list[_Row]:
    mine = {status.lease: status for status in snapshot.mine}
    estimated = {lease.lease: lease for lease in snapshot.lag.leases} if snapshot.lag else {}
    damaged = snapshot.lag.damaged if snapshot.lag else {}
    rows = [
        _Row(
            token=token_of(lease),
            owner="none",
            waiting=None,
            age=None,
            age_text="unknown",
            state="damaged",
            error=error,
            trouble=True,
            halted=True,
        )
        for lease, error in damaged.items()
    ]
    for lease in {*mine, *estimated} - damaged.keys():
        status, lag = mine.get(lease), estimated.get(lease)
        known = lag is not None and not snapshot.unseen
        standstill = lag.standstill if lag is not None and status is None else None
        rows.append(
            _Row(
                token=token_of(lease),
                owner=snapshot.instance if status else (lag.owner if lag else None),
                waiting=lag.transactions if known and lag else None,
                age=lag.oldest_age if known and lag else None,
                age_text=_age(lag.oldest_age) if known and lag and lag.age_known else "unknown",
                state="stands still" if standstill else _state_of(status, lag, snapshot),
                error=(status.error if status else standstill) or "",
                trouble=_is_trouble(status, lag) or standstill is not None,
                halted=(status is not None and status.stalled) or standstill is not None,
            )
        )
    return rows


def _is_trouble(status: LeaseStatus | None, lag: LeaseLag | None) -> bool:
    if status is not None:
        return status.stalled or status.failed_attempts > 0
    return lag is not None and not lag.owner and lag.transactions > 0


def _leases(snapshot: Snapshot, rows: Sequence[_Row]) -> str:
    if not rows:
        return "<p>No lease is known yet.</p>"
    since = f" As of {moment_text(snapshot.lag_at)}" if snapshot.lag_at else ""
    if snapshot.unseen:
        late = duration_text(snapshot.unseen)
        since += f"; unknown since then, for {late}: what waited is older, and more may wait"
    since += "." if since else ""
    heads = ("Range", "Owner", "Waiting", "Oldest unsent", "State", "Error")
    troubled, healthy = [row for row in rows if row.trouble], [row for row in rows if not row.trouble]
    parts = []
    if troubled:
        caption = f"Leases that need a look.{since}"
        parts.append(table(caption, heads, [row.cells for row in troubled[:_MOST]], numbers={2, 3}))
        if len(troubled) > _MOST:
            parts.append(
                f"<p>And {len(troubled) - _MOST:,} more: <code>cosmos-outbox status</code> names them.</p>"
            )
    if healthy:
        number = f"{len(healthy):,} {'lease' if len(healthy) == 1 else 'leases'} without trouble."
        if len(healthy) > _FOLDED:
            parts.append(_strip(number, healthy))
            parts.append(
                f"<details><summary>{number} Show them.{since}</summary>{_compact(healthy)}</details>"
            )
        else:
            parts.append(table(f"{number}{since}", heads, [row.cells for row in healthy], numbers={2, 3}))
    return "\n".join(parts)


_FOLDED, _MOST, _COLUMNS = 20, 50, 50


def _strip(said: str, rows: Sequence[_Row]) -> str:
    busy = sum(bool(row.waiting) for row in rows)
    drawn = {"": "", "b": ""}
    for index, row in enumerate(rows):
        drawn["b" if row.waiting else ""] += f"M{index % _COLUMNS * 10} {index // _COLUMNS * 10 + 4}h8"
    paths = "".join(f'<path class="{name}" d="{cells}"/>' for name, cells in drawn.items())
    size = f"0 0 {_COLUMNS * 10} {-(-len(rows) // _COLUMNS) * 10}"
    said = f"{said} In {busy:,} of them something waits."
    return (
        f'<div class="strip" role="img" aria-label="{said}"><svg viewBox="{size}" aria-hidden="true">{paths}</svg></div>'
        '<p class="note">Each square is a lease; in the dark ones something waits.</p>'
    )


def _compact(rows: Sequence[_Row]) -> str:
    body = "".join(
        f"<tr><td>{escaped(row.token)}</td><td>{escaped(row.owner or 'free')}</td>"
        f"<td>{'unknown' if row.waiting is None else row.waiting}</td><td>{escaped(row.age_text)}</td></tr>\n"
        for row in rows
    )
    heads = "".join(f'<th scope="col">{head}</th>' for head in ("Range", "Owner", "Waiting", "Oldest unsent"))
    return f"<table><caption>Leases without trouble.</caption><thead><tr>{heads}</tr></thead><tbody>\n{body}</tbody></table>"


def _workers(snapshot: Snapshot, rows: Sequence[_Row]) -> str:
    owned: dict[str, list[_Row]] = defaultdict(list)
    for row in rows:
        if row.owner and row.state != "damaged":
            owned[row.owner].append(row)
    others = {other.worker: other for other in snapshot.others or ()}
    shown = []
    for worker in sorted({snapshot.instance, *owned, *others}):
        leases, other = owned[worker], others.get(worker)
        ages = [row.age for row in leases if row.age is not None]
        waiting = f"{sum(row.waiting or 0 for row in leases):,}"
        age = _age(max(ages, default=None))
        if any(row.age_text == "unknown" for row in leases):
            age = "unknown"
        if any(row.waiting is None for row in leases):
            waiting = "unknown"
        seen, state = "now: this page", "not ready" if snapshot.unready else str(snapshot.phase)
        if worker != snapshot.instance:
            # A program of another kind, or an older worker, is known by its leases alone.
            seen = duration_text(other.silent_for) + " ago" if other else "by its leases"
            state = other.state(owns=bool(leases)) if other else ""
        troubled = ", ".join(row.token for row in leases if row.trouble)
        fine = not troubled and state not in ("not ready", "silent")
        shown.append((fine, (worker, state, seen, f"{len(leases):,}", waiting, age, troubled)))
    rows_shown = [cells for _, cells in sorted(shown)]
    heads = ("Worker", "State", "Last seen", "Leases", "Waiting", "Oldest unsent", "Ranges in trouble")
    parts = [table("All workers, also those that own no lease.", heads, rows_shown, numbers={3, 4, 5})]
    errors = [(other.worker, error) for other in others.values() for error in other.errors]
    if errors:
        parts.append(table("The newest errors of the others.", ("Worker", "What"), errors))
    if snapshot.others is None:
        parts.append("<p>No heartbeats are known now, so workers that own no lease may be missing.</p>")
    return "\n".join(parts)


def _state_of(status: LeaseStatus | None, lag: LeaseLag | None, snapshot: Snapshot) -> str:
    if status is None:
        owner = lag.owner if lag else None
        if owner == snapshot.instance:
            return "no longer of this worker"  # the worker knows before the next poll does
        if snapshot.unseen:
            return "unknown"
        return "elsewhere" if owner else "no owner"
    if status.stalled:
        return f"stalled for {duration_text(timedelta(seconds=status.idle_seconds))}"
    if status.failed_attempts:
        return f"failing, attempt {status.failed_attempts + 1}"
    return "draining" if status.draining else "moving"


def _age(age: timedelta | None) -> str:
    return "nothing waits" if age is None else duration_text(age)
