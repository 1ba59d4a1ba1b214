"""
The status page: a snapshot as one HTML page without scripts, style sheets or images.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime, timedelta
from typing import Any

from cosmos_outbox.changefeed import LeaseLag, LeaseStatus
from cosmos_outbox.changefeed.leases import token_of
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
    Return the page of a worker.
    """
    lead = f"Relays {snapshot.container} to topic {snapshot.topic}, as one of the workers named {snapshot.processor}."
    return page(
        snapshot,
        f"worker {snapshot.instance}",
        lead,
        [
            _figures(snapshot),
            section("leases", "Leases", _leases(snapshot)),
            section("parked", "Parked keys", parked_keys(snapshot)),
        ],
    )


def page(snapshot: Any, name: str, lead: str, parts: Sequence[str]) -> str:
    """
    Return a page of figures and sections; everything that comes from outside is escaped.
    """
    title = f"{'ready' if not snapshot.unready else 'NOT READY'} · {html.escape(name)} · cosmos-outbox"
    body = "\n".join([_state(snapshot), *parts, section("errors", "Last errors", _errors(snapshot))])
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="refresh" content="{REFRESH_SECONDS}">
<title>{title}</title>
<style>{_STYLE}</style>
</head>
<body>
<header>
<h1>cosmos-outbox {html.escape(name)}</h1>
<p>{html.escape(lead)}</p>
</header>
<main>
{body}
</main>
<footer>As of {moment_text(snapshot.at)}; refreshes itself every {REFRESH_SECONDS} seconds.
Machines read <a href="/livez">/livez</a>, <a href="/readyz">/readyz</a> and <a href="/metrics">/metrics</a>.</footer>
</body>
</html>
"""


def section(anchor: str, title: str, content: str) -> str:
    """
    Return a part of the page under a heading.
    """
    return f'<h2 id="{anchor}">{title}</h2>\n{content}'


def _state(snapshot: Any) -> str:
    if not snapshot.unready:
        return f'<div class="state ok" role="status"><strong>Ready</strong>, {snapshot.phase}.</div>'
    reasons = "".join(f"<li>{html.escape(reason)}</li>" for reason in snapshot.unready)
    return f'<div class="state bad" role="alert"><strong>Not ready</strong><ul>{reasons}</ul></div>'


def _figures(snapshot: Snapshot) -> str:
    lag = None if snapshot.unseen else snapshot.lag
    damaged = snapshot.lag.damaged if snapshot.lag else {}
    least = "at least " if damaged else ""
    oldest_unknown = lag is None or not lag.age_known or (damaged and lag.oldest_age is None)
    figures = {
        "Running for": duration_text(snapshot.at - snapshot.started_at),
        "Events sent": f"{snapshot.sent:,}",
        "Events a second, last minute": f"{snapshot.sent_per_second:,.1f}",
        "Leases of this worker": str(len({status.lease for status in snapshot.mine} - damaged.keys())),
        "Changes waiting, all leases": "unknown" if lag is None else f"{least}{lag.transactions:,}",
        "Oldest unsent": "unknown" if lag is None or oldest_unknown else f"{least}{_age(lag.oldest_age)}",
    } | parked_figures(snapshot)
    return figure_list(figures)


def figure_list(figures: Mapping[str, str]) -> str:
    """
    Return named figures.
    """
    items = (f"<div><dt>{name}</dt><dd>{text}</dd></div>" for name, text in figures.items())
    return f"<dl>{''.join(items)}</dl>"


def parked_figures(snapshot: Any) -> dict[str, str]:
    """
    Return how many keys are parked, and for how long the oldest one is.
    """
    parked = snapshot.parked
    since = parked.oldest_at if parked is not None else None
    figures = {"Parked keys": "unknown" if parked is None else f"{parked.count:,}"}
    return figures if since is None else figures | {"Oldest parked": duration_text(snapshot.at - since)}


def _leases(snapshot: Snapshot) -> str:
    mine = {status.lease: status for status in snapshot.mine}
    estimated = {lease.lease: lease for lease in snapshot.lag.leases} if snapshot.lag else {}
    damaged = snapshot.lag.damaged if snapshot.lag else {}
    rows = [
        (token_of(lease), "none", "unknown", "unknown", "damaged", error)
        for lease, error in sorted(damaged.items())
    ]
    for lease in sorted({*mine, *estimated} - damaged.keys()):
        status, lag = mine.get(lease), estimated.get(lease)
        owner = snapshot.instance if status else (lag.owner if lag else None)
        waiting, age = "unknown", "unknown"
        if lag is not None and not snapshot.unseen:
            waiting = f"{lag.transactions:,}"
            age = _age(lag.oldest_age) if lag.age_known else age
        state = _state_of(status, lag, snapshot)
        error = (status.error if status else None) or ""
        rows.append((token_of(lease), owner or "free", waiting, age, state, error))
    if not rows:
        return "<p>No lease is known yet.</p>"
    since = f" As of {moment_text(snapshot.lag_at)}" if snapshot.lag_at else ""
    if snapshot.unseen:
        late = duration_text(snapshot.unseen)
        since += f"; unknown since then, for {late}: what waited is older, and more may wait"
    heads = ("Range", "Owner", "Waiting", "Oldest unsent", "State", "Error")
    return table(f"All leases of the group.{since}{'.' if since else ''}", heads, rows, numbers={2, 3})


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


def parked_keys(snapshot: Any, *, noun: str = "event", option: str = "") -> str:
    """
    Return the parked keys as a table.

    Args:
        snapshot: of the process.
        noun: what the keys hold.
        option: of the commands.
    """
    parked = snapshot.parked
    if parked is None and snapshot.parked_at is not None:
        return f"<p>Unknown since {moment_text(snapshot.parked_at)}; the last errors say why.</p>"
    if parked is None:
        return "<p>Not polled yet, or no parked container is set.</p>"
    if not parked.count:
        return "<p>None.</p>"
    if not parked.keys and not parked.unreadable:
        keys = f"{parked.count:,} {'key' if parked.count == 1 else 'keys'}"
        return f"<p>{keys}: <code>cosmos-outbox parked list{html.escape(option)}</code> names them.</p>"
    rows = [
        (
            key.partition_key,
            f"{key.held:,}",
            _stored_moment(key.parked_at),
            key.failure.event_id if key.failure else "",
            ""
            if key.failure is None
            else key.failure.error
            if noun == "event"
            else f"{key.failure.reason}: {key.failure.error}",
        )
        for key in parked.keys
    ]
    rows += [(key, "unknown", "unknown", "", str(error)) for key, error in sorted(parked.unreadable.items())]
    does = "sent" if noun == "event" else "handled"
    heads = ("Partition key", f"Held {noun}s", "Since", f"{noun.capitalize()} that cannot be {does}", "Error")
    caption = f"Parked until an operator acts: cosmos-outbox parked release KEY{option}."
    return table(caption, heads, rows, numbers={1}, times={2})


def _errors(snapshot: Any) -> str:
    if not snapshot.errors:
        return "<p>None since the start.</p>"
    rows = [(moment_text(error.at), error.event, f"{error.times:,}", error.text) for error in snapshot.errors]
    heads = ("Last", "Event", "Times", "What")
    return table("Newest first; an error that recurs is one line.", heads, rows, numbers={2}, times={0})


def table(
    caption: str,
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    numbers: AbstractSet[int] = frozenset(),
    times: AbstractSet[int] = frozenset(),
) -> str:
    def kind(column: int) -> str:
        return f' class="{"n" if column in numbers else "time" if column in times else "text"}"'

    def cells(row: Sequence[str]) -> str:
        return "".join(f"<td{kind(column)}>{html.escape(text)}</td>" for column, text in enumerate(row))

    head = "".join(f'<th scope="col"{kind(column)}>{text}</th>' for column, text in enumerate(heads))
    body = "".join(f"<tr>{cells(row)}</tr>\n" for row in rows)
    # Focusable: a table wider than the window can be scrolled by keyboard.
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{html.escape(caption)}"><table>'
        f"<caption>{html.escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table></div>"
    )


def moment_text(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def _stored_moment(stored: str) -> str:
    try:
        return moment_text(datetime.fromisoformat(stored))
    except ValueError:  # written by another program
        return stored


def _age(age: timedelta | None) -> str:
    return "nothing waits" if age is None else duration_text(age)


def duration_text(length: timedelta) -> str:
    seconds = int(length.total_seconds())
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"
