"""The report of a demo: a table for people, or one JSON object for programs."""

from __future__ import annotations

import json

from rich.console import Console
from rich.table import Table

from demo.job import Outcome

_SHOWN_IDS = 10


def to_json(outcome: Outcome) -> str:
    """Return the counts of a demo as one line of JSON."""
    audit, effects = outcome.audit, outcome.effects
    return json.dumps(
        {
            "committed": audit.committed,
            "delivered": audit.delivered,
            "lost": len(audit.lost),
            "duplicated": len(audit.duplicated),
            "out_of_order": len(audit.out_of_order),
            "p50_ms": audit.p50_ms,
            "p99_ms": audit.p99_ms,
            "seconds": outcome.seconds,
            "killed_workers": outcome.killed_workers,
            "effects": effects.effects,
            "effects_lost": len(effects.lost),
            "effects_doubled": len(effects.doubled),
            "effects_out_of_order": len(effects.out_of_order),
            "consumer_kills": outcome.killed_consumers,
        }
    )


def table(outcome: Outcome) -> Table:
    """Return the counts of a demo as a table for the terminal."""
    audit = outcome.audit
    result = Table("", "", show_header=False, title="passed" if outcome.passed else "FAILED")
    result.columns[1].justify = "right"
    result.add_row("events committed", str(audit.committed))
    result.add_row("delivered", str(audit.delivered))
    result.add_row("effects in the company directory", str(outcome.effects.effects))
    for name, ids in _wrong(outcome).items():
        result.add_row(name, f"[{'red' if ids else 'green'}]{len(ids)}")
    result.add_row("commit to receive, p50 / p99", _milliseconds(audit.p50_ms, audit.p99_ms))
    result.add_row("commit to topic, p50 / p99", _milliseconds(audit.topic_p50_ms, audit.topic_p99_ms))
    result.add_row("seconds, first request to last message", f"{outcome.seconds:.1f}")
    result.add_row("workers killed", str(outcome.killed_workers))
    result.add_row("consumers killed", str(outcome.killed_consumers))
    return result


def explain(outcome: Outcome, console: Console) -> None:
    """Print each failure of a demo, with the ids of the events that were lost, duplicated or out of order."""
    for problem in outcome.problems:
        console.print(problem, style="red", highlight=False)
    for name, ids in _wrong(outcome).items():
        if ids:
            more = " …" if len(ids) > _SHOWN_IDS else ""
            console.print(f"{name}: {' '.join(ids[:_SHOWN_IDS])}{more}", style="red", highlight=False)


def _wrong(outcome: Outcome) -> dict[str, tuple[str, ...]]:
    audit, effects = outcome.audit, outcome.effects
    return {
        "lost": audit.lost,
        "duplicated": audit.duplicated,
        "out of order": audit.out_of_order,
        "never committed": audit.unknown,
        "effects lost": effects.lost,
        "effects doubled": effects.doubled,
        "effects out of order": effects.out_of_order,
        "effects of what was never committed": effects.unknown,
    }


def _milliseconds(*values: float | None) -> str:
    return " / ".join("-" if value is None else f"{value:.0f} ms" for value in values)
