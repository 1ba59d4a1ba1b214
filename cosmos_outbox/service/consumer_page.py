"""
Consumer page: the status page of a consumer.
"""

from __future__ import annotations

from datetime import timedelta

from cosmos_outbox.service.consumer_health import ConsumerSnapshot
from cosmos_outbox.service.page_parts import (
    duration_text,
    figure_list,
    page,
    parked_figures,
    parked_keys,
    parked_waits,
    section,
    sparkline,
    table,
)


def consumer_page_of(snapshot: ConsumerSnapshot) -> str:
    """
    Return the page.
    """
    lead = f"Handles the messages of {snapshot.source} in {snapshot.container}, as the consumer {snapshot.consumer}."
    figures = {
        "Running for": duration_text(snapshot.at - snapshot.started_at),
        "Messages handled": f"{snapshot.handled:,}",
        "Messages a second, last minute": f"{snapshot.handled_per_second:,.1f}",
        "Sessions held": f"{len(snapshot.sessions):,}",
    }
    lines = {
        "Messages a second, last minute": sparkline(
            "Messages a second", snapshot.history, lambda one: one.per_second
        ),
        "Parked keys": sparkline("Parked keys", snapshot.history, lambda one: one.parked),
    }
    parked = parked_keys(snapshot, noun="message", option=" --consumer MODULE:NAME")
    return page(
        snapshot,
        f"consumer {snapshot.instance}",
        lead,
        [
            figure_list(figures | parked_figures(snapshot), lines),
            section("sessions", "Sessions", _sessions(snapshot)),
            section("parked", "Parked keys", parked),
        ],
        waits=parked_waits(snapshot),
        bad=(),
    )


def _sessions(snapshot: ConsumerSnapshot) -> str:
    if not snapshot.sessions:
        return "<p>None is held: no message waits, or other processes hold the sessions.</p>"
    rows = [
        (
            one.session or "(no session)",
            f"{one.messages:,}",
            "waiting for a message"
            if one.handling_seconds is None
            else f"handling one for {duration_text(timedelta(seconds=one.handling_seconds))}",
        )
        for one in sorted(snapshot.sessions, key=lambda one: -(one.handling_seconds or 0))
    ]
    return table("Held by this process.", ("Session", "Messages so far", "State"), rows, numbers={1})
