"""The frame, tables and links of the explorer's HTML pages. All text that comes from a client is escaped here."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from cosmos_outbox_emulators.explorer import live

_STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif;
  color: light-dark(#1f2328, #e6edf3); background: light-dark(#fff, #0d1117); }
body { margin: 0 auto; max-width: 75rem; padding: 1rem 1.25rem 3rem; }
h1 { font-size: 1.4rem; margin: 0; overflow-wrap: anywhere; } h2 { font-size: 1.1rem; margin: 2rem 0 .25rem; }
nav, footer, .none { font-size: .9rem; } footer, .none { opacity: .8; }
a { color: light-dark(#0550ae, #79c0ff); } a:visited { color: light-dark(#6639ba, #d2a8ff); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; min-width: 100%; }
th, td { border-bottom: 1px solid #8886; padding: .3rem 1.25rem .3rem 0; text-align: left; vertical-align: top; }
th { font-weight: 600; white-space: nowrap; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
pre { margin: .25rem 0; font-size: .85rem; max-width: 80vw; overflow-x: auto; }
summary { cursor: pointer; overflow-wrap: anywhere; }
form { margin: .75rem 0; } input { font: inherit; max-width: 60vw; } button { font: inherit; }
:focus-visible { outline: 2px solid #2f81f7; outline-offset: 2px; }
"""
_AWAY = '<p id="away" role="status" hidden>The emulators do not answer; below is what they said last.</p>'


class Markup(str):
    """Text that is already HTML, so that it is not escaped."""

    __slots__ = ()


def page(title: str, *parts: Markup, home: bool = False) -> str:
    """Return a complete HTML page. The first page (`home`) includes a script that keeps it up to date."""
    script = f'<script src="{live.ADDRESS}" defer></script>' if home else ""
    way = _AWAY if home else '<nav><a href="/">All entities</a></nav>'
    often = f"; with scripts, it renews itself every {live.REFRESH_S} seconds" if home else ""
    body = "\n".join(parts)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
{script}
<title>{html.escape(title)} · cosmos-outbox-emulators</title>
<style>{_STYLE}</style>
</head>
<body>
<header>{way}<h1>{html.escape(title)}</h1></header>
<main>
{body}
</main>
<footer>As of {moment(datetime.now(UTC).timestamp())}{often}. Nothing can be changed here.</footer>
</body>
</html>
"""


def section(title: str, *parts: Markup) -> Markup:
    content = "\n".join(parts)
    return Markup(f"<section><h2>{html.escape(title)}</h2>\n{content}</section>")


def note(text: str) -> Markup:
    return Markup(f'<p class="none">{html.escape(text)}</p>')


def table(heads: Sequence[str], rows: Iterable[Sequence[Any]], *, empty: str = "None.") -> Markup:
    """Return an HTML table. Numbers are right-aligned, and None becomes an empty cell."""
    lines = []
    kinds: list[str] = []
    for row in rows:
        kinds = kinds or [' class="n"' if isinstance(value, int | float) else "" for value in row]
        cells = (f"<td{kind}>{_cell(value)}</td>" for kind, value in zip(kinds, row, strict=True))
        lines.append(f"<tr>{''.join(cells)}</tr>")
    if not lines:
        return note(empty)
    head = "".join(
        f'<th scope="col"{kind}>{html.escape(text)}</th>' for kind, text in zip(kinds, heads, strict=True)
    )
    # The element can have the focus (tabindex), so that a table wider than the window can be scrolled by keyboard.
    return Markup(
        f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>\n{chr(10).join(lines)}\n</tbody></table></div>"
    )


def _cell(value: Any) -> str:
    if isinstance(value, Markup):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "" if value is None else html.escape(str(value))


def link(text: str, page_path: str, /, **query: str | int) -> Markup:
    address = f"{page_path}?{urlencode(query)}" if query else page_path
    return Markup(f'<a href="{html.escape(address)}">{html.escape(text)}</a>')


def details(summary: str, content: str) -> Markup:
    return Markup(
        f'<details><summary>{html.escape(summary)}</summary><pre tabindex="0">{html.escape(content)}</pre></details>'
    )


def filter_form(path: str, label: str, name: str, value: str, **hidden: str) -> Markup:
    """Return a form with one field. Sending it opens the same page, filtered by the text of the field."""
    kept = "".join(
        f'<input type="hidden" name="{html.escape(key)}" value="{html.escape(text)}">'
        for key, text in hidden.items()
    )
    return Markup(
        f'<form action="{html.escape(path)}" method="get">{kept}<label>{html.escape(label)} '
        f'<input name="{html.escape(name)}" value="{html.escape(value)}"></label> <button>Filter</button></form>'
    )


def json_text(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


def moment(seconds: float) -> str:
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError, OSError):
        # A time to live of centuries ends later than Python's last date.
        return "never"


def faults_table(faults: Iterable[Mapping[str, Any]]) -> Markup:
    """Return a table with one row for each fault rule, which shows its JSON."""
    return table(["Rule"], [[json.dumps(fault)] for fault in faults])
