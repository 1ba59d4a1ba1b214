"""
The status page: a snapshot as HTML that needs nothing else, neither script nor style sheet nor image.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime, timedelta

from cosmos_outbox.service.health import Snapshot

REFRESH_SECONDS = 5

_STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { margin: 0 auto; max-width: 70rem; padding: 1rem 1.5rem 3rem; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
.state { border-left: .5rem solid; margin: 1rem 0; padding: .5rem 1rem; }
.ok { border-color: #1a7f37; } .bad { border-color: #c93c37; }
dl { display: flex; flex-wrap: wrap; gap: .5rem 2.5rem; margin: 1rem 0; }
dt { font-size: .85rem; opacity: .8; } dd { margin: 0; font-size: 1.35rem; font-variant-numeric: tabular-nums; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
th, td { border-bottom: 1px solid #8886; padding: .35rem 1.5rem .35rem 0; text-align: left; vertical-align: top; }
caption { text-align: left; font-size: .85rem; opacity: .8; padding-bottom: .5rem; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
td.text { overflow-wrap: break-word; } td.time { white-space: nowrap; }
footer { margin-top: 2rem; font-size: .85rem; }
"""


def page_of(snapshot: Snapshot) -> str:
    """
    Return the page; everything that comes from outside is escaped.
    """
    name = html.escape(snapshot.instance)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="refresh" content="{REFRESH_SECONDS}">
<title>{"ready" if not snapshot.unready else "NOT READY"} · {name} · cosmos-outbox</title>
<style>{_STYLE}</style>
</head>
<body>
<header>
<h1>cosmos-outbox worker {name}</h1>
<p>Relays {html.escape(snapshot.container)} to topic {html.escape(snapshot.topic)}, as one of the workers
named {html.escape(snapshot.processor)}.</p>
</header>
<main>
{_state(snapshot)}
{_figures(snapshot)}
<h2 id="leases">Leases</h2>
{_leases(snapshot)}
<h2 id="parked">Parked keys</h2>
{_parked(snapshot)}
<h2 id="errors">Last errors</h2>
{_troubles(snapshot)}
</main>
<footer>Seen at {_moment(snapshot.at)}; refreshes itself every {REFRESH_SECONDS} seconds.
Machines read <a href="/livez">/livez</a>, <a href="/readyz">/readyz</a> and <a href="/metrics">/metrics</a>.</footer>
</body>
</html>
"""


def _state(snapshot: Snapshot) -> str:
    if not snapshot.unready:
        return f'<div class="state ok" role="status"><strong>Ready</strong>, {snapshot.phase}.</div>'
    reasons = "".join(f"<li>{html.escape(reason)}</li>" for reason in snapshot.unready)
    return f'<div class="state bad" role="alert"><strong>Not ready</strong><ul>{reasons}</ul></div>'


def _figures(snapshot: Snapshot) -> str:
    lag = None if snapshot.unseen else snapshot.lag
    damaged: Mapping[str, str] = snapshot.lag.damaged if snapshot.lag else {}
    least = "at least " if damaged else ""
    figures = {
        "Running for": _duration(snapshot.at - snapshot.started_at),
        "Events sent": f"{snapshot.sent:,}",
        "Events a second, last minute": f"{snapshot.sent_per_second:,.1f}",
        "Leases of this worker": str(len({status.lease for status in snapshot.mine} - damaged.keys())),
        "Changes waiting, all leases": "unknown" if lag is None else f"{least}{lag.transactions:,}",
        "Oldest unsent": "unknown"
        if lag is None or not lag.age_known or (least and lag.oldest_age is None)
        else f"{least}{_age(lag.oldest_age)}",
        "Parked keys": "unknown" if snapshot.parked is None else f"{snapshot.parked.count:,}",
    }
    return (
        "<dl>"
        + "".join(f"<div><dt>{name}</dt><dd>{text}</dd></div>" for name, text in figures.items())
        + "</dl>"
    )


def _leases(snapshot: Snapshot) -> str:
    mine = {status.lease: status for status in snapshot.mine}
    estimated = {lease.lease: lease for lease in snapshot.lag.leases} if snapshot.lag else {}
    damaged = snapshot.lag.damaged if snapshot.lag else {}
    rows = [
        (_token(lease_id), "nobody", "unknown", "unknown", "damaged", mistake)
        for lease_id, mistake in sorted(damaged.items())
    ]
    for lease_id in sorted({*mine, *estimated} - damaged.keys()):
        status, lag = mine.get(lease_id), estimated.get(lease_id)
        owner = snapshot.instance if status else (lag.owner if lag else None)
        if snapshot.unseen:
            lag = None
        if status is None and owner == snapshot.instance:
            state = "no longer of this worker"  # which knows it sooner than the next look shows
        elif status is None and snapshot.unseen:
            state = "unknown"
        elif status is None:
            state = "elsewhere" if owner else "nobody works on it"
        elif status.stalled:
            state = f"stands still for {_duration(timedelta(seconds=status.idle_seconds))}"
        elif status.failed_attempts:
            state = f"failing, attempt {status.failed_attempts + 1}"
        else:
            state = "draining" if status.draining else "moving"
        rows.append(
            (
                _token(lease_id),
                owner or "free",
                "unknown" if lag is None else f"{lag.transactions:,}",
                "unknown" if lag is None or not lag.age_known else _age(lag.oldest_age),
                state,
                (status.error or "") if status else "",
            )
        )
    if not rows:
        return "<p>No lease is known yet.</p>"
    since = f" As of {_moment(snapshot.lag_at)}" if snapshot.lag_at else ""
    if snapshot.unseen:
        since += (
            f"; unknown since then, for {_duration(snapshot.unseen)}: what waited is older, and more may wait"
        )
    heads = ("Range", "Owner", "Waiting", "Oldest unsent", "State", "Error")
    return _table(f"All leases of the group.{since}{'.' if since else ''}", heads, rows, numbers={2, 3})


def _token(lease_id: str) -> str:
    return lease_id.rpartition("..")[2]


def _parked(snapshot: Snapshot) -> str:
    parked = snapshot.parked
    if parked is None and snapshot.parked_at is not None:
        return f"<p>Unknown since {_moment(snapshot.parked_at)}; the last errors say why.</p>"
    if parked is None or not parked.count:
        return "<p>None.</p>" if parked else "<p>Not looked at, or no parked container is set.</p>"
    if not parked.keys and not parked.unreadable:
        return f"<p>{parked.count:,} {'key' if parked.count == 1 else 'keys'}: <code>cosmos-outbox parked list</code> names them.</p>"
    rows = [
        (
            key.partition_key,
            f"{key.held:,}",
            _stored_moment(key.parked_at),
            key.failure.event_id if key.failure else "",
            key.failure.error if key.failure else "",
        )
        for key in parked.keys
    ]
    rows += [(key, "unknown", "unknown", "", error) for key, error in sorted(parked.unreadable.items())]
    heads = ("Partition key", "Held events", "Since", "Event that cannot be sent", "Error")
    caption = "Set aside until somebody acts: cosmos-outbox parked release KEY."
    return _table(caption, heads, rows, numbers={1}, times={2})


def _troubles(snapshot: Snapshot) -> str:
    if not snapshot.troubles:
        return "<p>None since the start.</p>"
    rows = [
        (_moment(trouble.at), trouble.event, f"{trouble.times:,}", trouble.text)
        for trouble in snapshot.troubles
    ]
    heads = ("Last", "Event", "Times", "What")
    return _table("Newest first; what says the same again is one line.", heads, rows, numbers={2}, times={0})


def _table(
    caption: str,
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    numbers: AbstractSet[int] = frozenset(),
    times: AbstractSet[int] = frozenset(),
) -> str:
    def kind(column: int) -> str:
        return f' class="{"n" if column in numbers else "time" if column in times else "text"}"'

    head = "".join(f'<th scope="col"{kind(column)}>{text}</th>' for column, text in enumerate(heads))
    body = "".join(
        "<tr>"
        + "".join(f"<td{kind(column)}>{html.escape(text)}</td>" for column, text in enumerate(row))
        + "</tr>\n"
        for row in rows
    )
    # Focusable, so that a table wider than the window can be scrolled by keyboard.
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{html.escape(caption)}"><table>'
        f"<caption>{html.escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table></div>"
    )


def _moment(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def _stored_moment(stored: str) -> str:
    try:
        return _moment(datetime.fromisoformat(stored))
    except ValueError:  # whoever wrote it
        return stored


def _age(age: timedelta | None) -> str:
    return "nothing waits" if age is None else _duration(age)


def _duration(length: timedelta) -> str:
    seconds = int(length.total_seconds())
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"
