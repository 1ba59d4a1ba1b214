"""
Every metric that dashboards, rules and alerts read is one that a worker really shows.
"""

from __future__ import annotations

import json
import re
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from cosmos_outbox.instrumentation import (
    EventRejected,
    LeaseAcquired,
    LeaseHalted,
    MessagesPublished,
    PageFailed,
    PageHandled,
    PublishFailed,
)
from worker.telemetry import opened_telemetry

OBSERVABILITY = Path(__file__).parents[2] / "infra/observability"


def shown_by_a_worker() -> set[str]:
    """
    Return the names in the exposition of a worker to which everything happened once.
    """
    error = ValueError("planted")
    with opened_telemetry(topic="events", instance="one", environ={}) as telemetry:
        instruments = telemetry.instruments
        lease = SimpleNamespace(transactions=3, oldest_age=timedelta(seconds=5), owner=None)
        lease.token = "0"  # noqa: S105 # the name of a range, no secret
        instruments.observed = SimpleNamespace(  # type: ignore[assignment] # only what gauges read
            lag=SimpleNamespace(leases=[lease]), mine=[SimpleNamespace(stalled=True)], unready=()
        )
        for record in (
            MessagesPublished(lane=0, messages=1, seconds=0.1),
            PublishFailed(lane=0, attempt=1, delay_seconds=1, error=error),
            EventRejected(lane=0, event_id="e", partition_key="p", error=error),
            PageHandled(lease="l", changes=1, seconds=1, lag=1),
            PageFailed(lease="l", attempt=1, delay_seconds=1, error=error),
            LeaseHalted(lease="l", attempts=1, error=error),
            LeaseAcquired(lease="l", owner="o", previous_owner=None),
        ):
            instruments(record)
        instruments.charged(1.0)
        exposition = telemetry.exposition()[0].decode()
    return set(re.findall(r"^([a-z_]+)\{", exposition, re.MULTILINE))


@pytest.mark.parametrize("file", ["dashboard.json", "alerts.yaml", "alerts.test.yaml"])
def test_only_metrics_that_exist_are_read(file: str):
    text = (OBSERVABILITY / file).read_text()
    # Not the labels: those stand before an equals sign, in by (…), or in a legend.
    text = re.sub(r"by \([^)]*\)|\{\{\w+\}\}|\{[^{}\n]*\}(?=')", "", text)
    read = set(re.findall(r"\b(?:outbox|messaging)_\w+", text))
    assert read, "no metric was found: the test reads the wrong text"
    assert set() == read - shown_by_a_worker()


def test_every_panel_has_a_title_an_expression_and_a_place_of_its_own():
    panels = json.loads((OBSERVABILITY / "dashboard.json").read_text())["panels"]
    cells: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        taken = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, f"{panel['title']} lies on another panel"
        cells |= taken
        assert panel["title"]
        assert all(target["expr"] for target in panel["targets"])
    assert len(panels) == len({panel["id"] for panel in panels})
