"""
Every metric that dashboards, rules and alerts read is one that a worker really shows.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.worker.test_reference import used
from worker.exporters import opened_telemetry

OBSERVABILITY = Path(__file__).parents[2] / "infra/observability"


def shown_by_a_worker() -> set[str]:
    """
    Return the names in the exposition of a worker to which everything happened once.
    """
    with opened_telemetry(topic="events", instance="one", environ={}) as telemetry:
        used(telemetry.instruments)
        exposition = telemetry.exposition()[0].decode()
    return set(re.findall(r"^([a-z_]+)\{", exposition, re.MULTILINE))


@pytest.mark.parametrize("file", ["dashboard.json", "alerts.yaml", "alerts.test.yaml"])
async def test_only_metrics_that_exist_are_read(file: str):
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
