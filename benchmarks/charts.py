"""Turn the results of `benchmarks.growth` into the charts and tables of the page of figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.growth import DELAYS_MS, FLEET_PARTITIONS

Rows = Sequence[Mapping[str, float]]

_KNEES = f"""
## How cost grows

A worker reads one page of each partition at a time and sends while it reads, so sixteen partitions fill its
core. Further partitions cost an event nothing while all have a backlog. A consumer handles the messages of a session one after another, so
its rate grows with the sessions until its core is full. It handles 32 sessions at once, and more sessions have to wait.

A slow network costs a worker little, because it waits for its {FLEET_PARTITIONS} partitions at the same time. More workers need more CPU
for each event, because each reads smaller pages. Here the workers share two cores with the emulators, so their rate soon stops growing.
Start another worker when the first needs more than half of its core, or to survive the loss of one.
"""


def draw(figures: Mapping[str, Any]) -> str:
    """Return the section of the page about how cost grows. Return an empty text if `benchmarks.growth` was not run."""
    rows = figures.get("growth")
    if not rows:
        return ""
    fleets = [rows[f"fleet_{delay}ms"] for delay in DELAYS_MS]
    delays = ", ".join(str(delay) for delay in DELAYS_MS)
    return _KNEES + "".join(
        [
            _chart("Events/s of one worker by number of partitions", [rows["partitions"]], "events/s"),
            _chart("Messages/s of one consumer by number of sessions", [rows["sessions"]], "messages/s"),
            _chart(f"Events/s by number of workers, with replies {delays} ms later", fleets, "events/s"),
            "\n| What grows | Number | Events or messages per second | CPU ms per event or message |\n|---|---|---|---|\n",
            *_table("partitions of one worker", rows["partitions"]),
            *_table("sessions of one consumer", rows["sessions"]),
            *(
                line
                for delay, fleet in zip(DELAYS_MS, fleets, strict=True)
                for line in _table(f"workers, replies {delay} ms later", fleet)
            ),
        ]
    )


def _chart(title: str, lines: Sequence[Rows], unit: str) -> str:
    counts = ", ".join(f'"{row["count"]:g}"' for row in lines[0])
    drawn = [f"line [{', '.join(f'{rate:.0f}' for rate in _rates(rows))}]" for rows in lines]
    highest = max(max(_rates(rows)) for rows in lines)
    chart = (
        f'title "{title}"',
        f"x-axis [{counts}]",
        f'y-axis "{unit}" 0 --> {_round_up(highest):g}',
        *drawn,
    )
    return "\n    ".join(["\n```mermaid\nxychart-beta", *chart]) + "\n```\n"


def _rates(rows: Rows) -> list[float]:
    return [row["per_second"] for row in rows]


def _round_up(highest: float) -> float:
    step = 10.0 ** math.floor(math.log10(highest))
    return math.ceil(highest / step) * step


def _table(what: str, rows: Rows) -> list[str]:
    return [f"| {what} | {row['count']:g} | {row['per_second']:.0f} | {row['cpu_ms']:g} |\n" for row in rows]
