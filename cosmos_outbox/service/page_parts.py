"""
Page parts: what the status pages of worker and consumer are made of; everything that comes from outside is escaped.
"""

from __future__ import annotations

import html
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from cosmos_outbox.service.history import Sample
from cosmos_outbox.service.vitals import State

REFRESH_SECONDS = 5
_MOST_ROWS, _MOST_CAUSES, _MOST_REASONS = 50, 20, 10
_MOST_CHARACTERS = 500

_STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif;
  --good: light-dark(#1a7f37, #3fb950); --waits: light-dark(#9a6700, #d29922); --bad: light-dark(#c93c37, #f47067); }
body { margin: 0 auto; max-width: 70rem; padding: 1rem 1rem 3rem; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
.state { border-left: .5rem solid; margin: 1rem 0; padding: .75rem 1rem; --mood: var(--good);
  border-color: var(--mood); background: color-mix(in srgb, var(--mood) 10%, transparent); }
.state.waits { --mood: var(--waits); } .state.bad { --mood: var(--bad); }
.state ul { margin: .5rem 0 0; padding-left: 1.25rem; }
dl { display: grid; grid-template-columns: repeat(4, 1fr); gap: 1rem 1.5rem; margin: 1.5rem 0; }
dt, dd small, caption, footer, .note { font-size: .85rem; } dd small { display: block; }
dd { margin: 0; font-size: 1.35rem; font-variant-numeric: tabular-nums; }
svg { display: block; width: 100%; max-width: 12rem; height: 2rem; }
polyline { fill: none; stroke: currentColor; stroke-width: 1.5; vector-effect: non-scaling-stroke; }
.scroll { overflow-x: auto; } .scroll + .scroll, .strip, details { margin-top: 1.5rem; }
table { border-collapse: collapse; width: 100%; overflow-wrap: break-word; }
th, td { border-bottom: 1px solid #8886; padding: .35rem 1.25rem .35rem 0; text-align: left; vertical-align: top; }
th:last-child, td:last-child { padding-right: 0; }
caption { text-align: left; padding-bottom: .5rem; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
td.text { max-width: 28rem; } td.text:last-child { min-width: 9rem; overflow-wrap: anywhere; } td.time { white-space: nowrap; }
.strip svg { max-width: 40rem; height: auto; } path { stroke: var(--good); stroke-width: 8; opacity: .3; } .b { opacity: 1; }
summary { padding: .4rem 0; } code { user-select: all; }
@media (max-width: 40rem) {
  dl { grid-template-columns: repeat(2, 1fr); }
  .scroll thead { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
  .scroll tr { display: block; border-bottom: 1px solid #8886; padding: .6rem 0; }
  .scroll td { display: block; border: 0; padding: 0; text-align: left; max-width: none; overflow-wrap: anywhere; }
  .scroll td:first-child { font-weight: bold; } .scroll td:empty { display: none; }
  .scroll td::before { content: attr(data-head) ": "; font-size: .85rem; font-weight: normal; }
  details th, details td { padding-right: .5rem; }
}
footer { margin-top: 2rem; }
"""

# Progressive enhancement: without it the page is read as it was loaded. One request at a time, whatever becomes of it.
LIVE_SCRIPT = f"""
const words = part => part.textContent.replace(/\\d+/g, "");
async function renew() {{
  if (document.hidden || String(getSelection())) return;
  const answer = await fetch(location.href, {{ signal: AbortSignal.timeout({REFRESH_SECONDS * 1000}) }}).catch(() => null);
  const text = answer?.ok ? await answer.text().catch(() => null) : null;
  document.getElementById("away").hidden = text !== null;
  if (text === null) return;
  const fresh = new DOMParser().parseFromString(text, "text/html");
  document.title = fresh.title;
  for (const part of document.querySelectorAll("[data-live]")) {{
    const now = fresh.getElementById(part.id);
    if (!now || now.innerHTML === part.innerHTML || part.contains(document.activeElement)) continue;
    const open = [...part.querySelectorAll("details")].map(one => one.open);
    const left = [...part.querySelectorAll(".scroll")].map(one => one.scrollLeft);
    // A screen reader says what is new, and not that seconds have passed.
    if (part.role) part.ariaLive = words(now) === words(part) ? "off" : "polite";
    part.className = now.className;
    part.innerHTML = now.innerHTML;
    part.querySelectorAll("details").forEach((one, index) => {{ one.open = open[index] ?? false; }});
    part.querySelectorAll(".scroll").forEach((one, index) => {{ one.scrollLeft = left[index] ?? 0; }});
  }}
}}
async function keepRenewing() {{
  await renew();
  setTimeout(keepRenewing, {REFRESH_SECONDS * 1000});
}}
setTimeout(keepRenewing, {REFRESH_SECONDS * 1000});
document.addEventListener("visibilitychange", renew);
"""


# The marks, embeddings, overrides and isolates of the bidirectional algorithm.
_TURNS = dict.fromkeys((0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)), "\ufffd")


class Mood(StrEnum):
    """
    What the banner says: nothing waits for a person, something does, or work stands still.
    """

    GOOD = "good"
    WAITS = "waits"
    BAD = "bad"


_TITLES = {Mood.GOOD: "ready", Mood.WAITS: "WAITS FOR YOU", Mood.BAD: "STANDS STILL"}
_WORDS = {Mood.GOOD: "Ready", Mood.WAITS: "Something waits for you", Mood.BAD: "Not all is moving"}


def page(
    snapshot: State, name: str, lead: str, parts: Sequence[str], *, waits: Sequence[str], bad: Sequence[str]
) -> str:
    """
    Return a page of figures and sections.

    Args:
        snapshot: of the process.
        name: of the process.
        lead: what it does, in a sentence.
        parts: the sections.
        waits: what waits for a person, one sentence each.
        bad: what stands still, besides the reasons why the process is unready.
    """
    reasons = [*dict.fromkeys((*snapshot.unready, *bad))]
    mood = Mood.BAD if reasons else Mood.WAITS if waits else Mood.GOOD
    title = f"{'NOT READY' if snapshot.unready else _TITLES[mood]} · {escaped(name)} · cosmos-outbox"
    said = "".join(f"<li>{escaped(reason)}</li>" for reason in (*reasons, *waits)[:_MOST_REASONS])
    if (more := len(reasons) + len(waits) - _MOST_REASONS) > 0:
        said += f"<li>And {more:,} more; the parts below have them.</li>"
    word = "Not ready" if snapshot.unready else _WORDS[mood]
    said = f"<ul>{said}</ul>" if said else ""
    link = (
        "" if snapshot.dashboard is None else f' <a href="{html.escape(snapshot.dashboard)}">Dashboard</a>.'
    )
    body = "\n".join([*parts, section("errors", "Last errors", _errors(snapshot))])
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{_STYLE}</style>
<script src="/live.js" defer></script>
</head>
<body>
<header>
<h1>cosmos-outbox {escaped(name)}</h1>
<p>{escaped(lead)}{link}</p>
<div id="state" class="state {mood}" role="status" data-live><strong>{word}</strong>, {snapshot.phase}.{said}</div>
<p id="away" role="status" hidden>The process does not answer; below is what it said last.</p>
</header>
<main>
{body}
</main>
<footer id="footer" data-live>As of {moment_text(snapshot.at)}; with scripts, it renews itself every {REFRESH_SECONDS} seconds.
Machines read <a href="/livez">/livez</a>, <a href="/readyz">/readyz</a> and <a href="/metrics">/metrics</a>.</footer>
</body>
</html>
"""


def section(anchor: str, title: str, content: str) -> str:
    """
    Return a part of the page under a heading.
    """
    return f'<section aria-labelledby="{anchor}-head"><h2 id="{anchor}-head">{title}</h2>\n<div id="{anchor}" data-live>{content}</div></section>'


def figure_list(figures: Mapping[str, str], lines: Mapping[str, str] | None = None) -> str:
    """
    Return named figures; `lines` are drawn under those of their names.
    """
    drawn = lines or {}
    items = (
        f"<div><dt>{name}</dt><dd>{text}{drawn.get(name, '')}</dd></div>" for name, text in figures.items()
    )
    return f'<dl id="figures" data-live>{"".join(items)}</dl>'


def escaped(text: str) -> str:
    """
    Return text as HTML; a character that turns the direction of what follows it is replaced.
    """
    return html.escape(text.translate(_TURNS))


def cut(text: str) -> str:
    """
    Return text, shortened where it is very long.
    """
    return text if len(text) <= _MOST_CHARACTERS else text[:_MOST_CHARACTERS] + "…"


def number_text(number: float) -> str:
    """
    Return a number with at most one digit behind the point.
    """
    return f"{number:,.1f}".removesuffix(".0")


def sparkline(
    name: str,
    samples: Sequence[Sample],
    value_of: Callable[[Sample], float | None],
    text_of: Callable[[float], str] = number_text,
) -> str:
    """
    Return the last hour of a value as a line, with its highest; nothing where fewer than two samples know it.
    """
    known = [(sample.at, value) for sample in samples if (value := value_of(sample)) is not None]
    if len(known) < 2:  # noqa: PLR2004 - a line has two ends
        return ""
    began, most = known[0][0], max(value for _, value in known)
    length = max(known[-1][0] - began, 1.0)
    points = " ".join(
        f"{144 * (at - began) / length:.0f},{30 - 28 * value / (most or 1.0):.0f}" for at, value in known
    )
    lasting = duration_text(timedelta(seconds=length))
    said = f"{name} in the last {lasting}: at most {most:,.1f}"
    return (
        f'<svg viewBox="0 0 144 32" preserveAspectRatio="none" role="img" aria-label="{said}"><polyline points="{points}"/></svg>'
        f'<small aria-hidden="true">at most {text_of(most)} in {lasting}</small>'
    )


def parked_figures(snapshot: State) -> dict[str, str]:
    """
    Return how many keys are parked, and for how long the oldest one is.
    """
    parked = snapshot.parked
    since = parked.oldest_at if parked is not None else None
    figures = {"Parked keys": "unknown" if parked is None else f"{parked.count:,}"}
    return figures if since is None else figures | {"Oldest parked": duration_text(snapshot.at - since)}


def parked_waits(snapshot: State) -> list[str]:
    """
    Return how many keys are parked, as a sentence on what waits for a person.
    """
    parked = snapshot.parked
    if parked is None or not parked.count:
        return []
    return ["1 parked key." if parked.count == 1 else f"{parked.count:,} parked keys."]


def parked_keys(snapshot: State, *, noun: str = "event", option: str = "") -> str:
    """
    Return the parked keys by cause, with the commands to copy, and the first of them as a table.

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
    parts = []
    if parked.causes:
        rows = [
            (
                cause.error or "waits for a release",
                f"{cause.keys:,}",
                f"{cause.held:,}",
                _stored_moment(cause.parked_at),
                f"cosmos-outbox parked show {shlex.quote(cause.example)}{option}",
                f"cosmos-outbox parked release --error {shlex.quote(cause.error)}{option}"
                if cause.error
                else f"cosmos-outbox parked release {shlex.quote(cause.example)}{option}",
            )
            for cause in parked.causes[:_MOST_CAUSES]
        ]
        heads = ("Cause", "Keys", f"Held {noun}s", "Since", "To look at one", "To release them")
        parts.append(
            table(
                "Parked until an operator acts, by cause.",
                heads,
                rows,
                numbers={1, 2},
                times={3},
                code={4, 5},
            )
        )
    if (more := len(parked.causes) - _MOST_CAUSES) > 0:
        listing = f"<code>cosmos-outbox parked list --by-error{html.escape(option)}</code>"
        parts.append(f"<p>And {more:,} more causes: {listing} has them.</p>")
    rows_of_keys = [
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
        for key in parked.keys[:_MOST_ROWS]
    ]
    rows_of_keys += [
        (key, "unknown", "unknown", "", str(error)) for key, error in sorted(parked.unreadable.items())
    ]
    if rows_of_keys:
        does = "sent" if noun == "event" else "handled"
        keys = (
            "Partition key",
            f"Held {noun}s",
            "Since",
            f"{noun.capitalize()} that cannot be {does}",
            "Error",
        )
        parts.append(
            table(
                f"The oldest keys. cosmos-outbox parked release KEY{option} releases one.",
                keys,
                rows_of_keys,
                numbers={1},
                times={2},
            )
        )
    if len(rows_of_keys) < parked.count:
        listing = f"<code>cosmos-outbox parked list{html.escape(option)}</code>"
        parts.append(f"<p>{parked.count:,} keys in all: {listing} names them.</p>")
    return "\n".join(parts)


def _errors(snapshot: State) -> str:
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
    code: AbstractSet[int] = frozenset(),
) -> str:
    """
    Return a table without the columns that are empty; on a narrow screen each row becomes a list, and a cell names its column.

    Args:
        caption: what it shows.
        heads: of the columns.
        rows: of text.
        numbers: columns of numbers.
        times: columns of moments.
        code: columns of commands to copy.
    """
    rows = list(rows)
    kept = [column for column in range(len(heads)) if any(row[column] for row in rows)]

    def kind(column: int) -> str:
        return f' class="{"n" if column in numbers else "time" if column in times else "text"}"'

    def cell(column: int, text: str) -> str:
        shown = f"<code>{escaped(text)}</code>" if column in code and text else escaped(cut(text))
        return f'<td role="cell"{kind(column)} data-head="{heads[column]}">{shown}</td>'

    head = "".join(f'<th scope="col"{kind(column)}>{heads[column]}</th>' for column in kept)
    body = "".join(
        f'<tr role="row">{"".join(cell(column, row[column]) for column in kept)}</tr>\n' for row in rows
    )
    # Focusable: a table wider than the window can be scrolled by keyboard. Roles: as blocks, rows and cells would lose theirs.
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escaped(caption)}"><table role="table">'
        f"<caption>{escaped(caption)}</caption><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table></div>"
    )


def moment_text(moment: datetime) -> str:
    """
    Return a moment in UTC, to the second.
    """
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def _stored_moment(stored: str) -> str:
    try:
        return moment_text(datetime.fromisoformat(stored))
    except ValueError:  # written by another program
        return stored


def duration_text(length: timedelta) -> str:
    """
    Return a length of time in its largest unit of which it has two.
    """
    seconds = int(length.total_seconds())
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"
