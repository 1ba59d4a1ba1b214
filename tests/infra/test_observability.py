"""
Tests that each metric in dashboards, rules and alerts is one that a worker or a consumer really exports.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from cosmos_outbox.records import level_of
from cosmos_outbox_worker.telemetry import Telemetry, open_telemetry
from tests.support.telemetry_use import RECORDS, used, used_by_a_consumer

OBSERVABILITY = Path(__file__).parents[2] / "infra/observability"
QUERIES = {path.stem: path.read_text() for path in (OBSERVABILITY.parent / "queries").glob("*.kql")}
FIRES = {
    "alarms": ("outbox.alarms", "sum(Sum)", "> 0"),
    "events-late": ("outbox.oldest_unsent.age", "max(Sum)", "min(age)", "> 300"),
    "leases-lost": ("outbox.lease.moves", "sum(Sum)", "> 3"),
    "parked-for-long": ("outbox.parked.age", "max(Sum)", "> 86400"),
    "keys-stalled": ("outbox.keys.stalled", "max(Sum)", "min(keys)", "> 0"),
    "message-waits": ("outbox.waiting.longest", "max(Sum)", "min(seconds)", "> 3600"),
    "ttl-headroom": ("outbox.ttl.headroom", "min(Sum)", "< 172800"),
    "watch-failing": ("outbox.warnings", "sum(Sum)", "count()", "> 5"),
    "messages-late": ("outbox.message.age", "max(Max)", "min(age)", "> 300"),
    "attempts-failing": ("outbox.attempt.failures", "sum(Sum)", "> 180"),
    "sessions-lost": ("outbox.sessions.closed", "sum(Sum)", "> 10"),
    "consumer-silent": ("outbox.consumer.ready", "max(TimeGenerated)", "< ago(10m)"),
    "consumer-unready": ("outbox.consumer.ready", "min(Sum)", "max(ready)", "== 0"),
    "worker-failing": ("", "count()", "> 1"),
    "worker-silent": ("outbox.leases.owned", "max(TimeGenerated)", "< ago(10m)"),
    "worker-unready": ("outbox.worker.ready", "min(Sum)", "max(ready)", "== 0"),
}
# The platform logs what happens to a replica, each time with a reason. These reasons mean trouble.
REASONS = {"ContainerBackOff", "ContainerCrashing", "ContainerTerminated", "ProbeFailed", "ReplicaUnhealthy"}


def shown_by(*, consumer: bool, after: Callable[[Telemetry], None] = lambda _: None) -> list[Sample]:
    """Return the metrics that a worker or consumer exports, optionally after it was used."""
    with open_telemetry(consumer=consumer, instance="one") as telemetry:
        after(telemetry)
        exposition = telemetry.exposition()[0].decode()
    return [sample for family in text_string_to_metric_families(exposition) for sample in family.samples]


def shown_by_new_ones() -> list[Sample]:
    return shown_by(consumer=False) + shown_by(consumer=True)


def shown_after_use() -> list[Sample]:
    return shown_by(consumer=False, after=used) + shown_by(consumer=True, after=used_by_a_consumer)


@pytest.mark.parametrize("file", ["dashboard.json", "alerts.yaml", "alerts.test.yaml"])
async def test_dashboard_and_rules_use_only_existing_metrics(file: str):
    text = (OBSERVABILITY / file).read_text()
    # Remove labels first, because some look like metrics. A label stands before an equals sign or a colon, in
    # `by (…)`, or in a legend.
    text = re.sub(r"by \([^)]*\)|\{\{[ $.\w]+\}\}|\{[^{}\n]*\}(?=['\[])|\w+(?=: )", "", text)
    read = set(re.findall(r"\b(?:outbox|messaging|azure_cosmosdb)_\w+", text))
    assert read, "no metric was found: the test reads the wrong text"
    assert set() == read - {sample.name for sample in shown_after_use()}


async def test_each_metric_is_used_in_a_panel_or_rule():
    """The test also checks that the queries of dashboard and rules use only labels that their metrics have."""
    panels = (OBSERVABILITY / "dashboard.json").read_text().replace('\\"', '"')
    text = panels + (OBSERVABILITY / "alerts.yaml").read_text()
    shown: dict[str, set[str]] = {}
    for sample in shown_after_use():
        shown.setdefault(sample.name, set()).update(sample.labels)
    names = {re.sub(r"_(bucket|count|sum|created)$", "", name) for name in shown if name != "target_info"}
    assert set() == {name for name in names if name not in text}
    asked = [
        (name, label)
        for name, labels in re.findall(r"\b((?:outbox|messaging|azure)_\w+)\{([^}]*)\}", text)
        for label in re.findall(r"(\w+)(?==|!=)", labels)
    ]
    asked += [
        (name, label.strip())
        for labels, name in re.findall(
            r"by \(([^)]*)\) \(?(?:rate|increase)?\(?((?:outbox|messaging|azure)_\w+)", text
        )
        for label in labels.split(",")
        if label.strip() not in ("instance", "le")
    ]
    assert len(asked) > 20, "the test reads the wrong text"
    assert [] == [one for one in asked if one[1] not in shown[one[0]]]


def test_each_metric_with_an_alert_on_the_observe_page_has_a_rule():
    page = (OBSERVABILITY.parents[1] / "docs/how-to/observe.md").read_text()
    named = set(re.findall(r"^\| .* \| `(\w+)` \| .* \|$", page, re.MULTILINE))
    words = re.findall(r"\w+", (OBSERVABILITY / "alerts.yaml").read_text())
    ruled = {re.sub("_(bucket|count)$", "", word) for word in words}
    assert named >= {"outbox_alarms_total", "outbox_parked_age_seconds"}
    assert set() == named - ruled


async def test_counters_whose_increase_raises_an_alert_start_at_zero():
    """If a counter first appeared with the value 1, the rule of the alert would see no increase."""
    rules = yaml.safe_load((OBSERVABILITY / "alerts.yaml").read_text())["groups"][0]["rules"]
    risen = {name for rule in rules for name in re.findall(r"increase\((\w+)", rule["expr"])}
    new = [sample for sample in shown_by_new_ones() if sample.name in risen]
    counters = ("alarms", "lease_moves", "sessions_closed", "warnings")
    assert {f"outbox_{counter}_total" for counter in counters} == risen
    assert risen == {sample.name for sample in new}
    assert {0} == {sample.value for sample in new}
    alarms = {sample.labels["outbox_alarm"] for sample in new if "outbox_alarm" in sample.labels}
    assert {type(record).__name__ for record in RECORDS if level_of(record) >= logging.ERROR} == alarms


async def test_queries_filter_metrics_only_by_existing_attributes():
    shown = {(sample.name, label) for sample in shown_after_use() for label in sample.labels}
    asked = {
        (f"{metric.replace('.', '_')}_total", attribute.replace(".", "_"))
        for query in QUERIES.values()
        for metric in re.findall(r"Name == '([^']+)'", query)
        for attribute in re.findall(r"Properties\['([^']+)'\]", query)
    }
    assert {("outbox_alarms_total", "outbox_alarm")} <= asked
    assert set() == asked - shown


async def test_queries_use_only_existing_metrics_and_records():
    text = "\n".join(QUERIES.values())
    shown = {sample.name for sample in shown_after_use()}
    named = re.findall(r"(?:entry\.event|\['outbox\.warning'\])\)?\s*==\s*'(\w+)'", text)

    metrics = {name.replace(".", "_") for name in re.findall(r"\bName\s*==\s*'([^']+)'", text)}
    units = "(_seconds|_milliseconds|_bytes|_ratio)?(_total|_bucket|_sum|_count)?"
    assert set() == {name for name in metrics if not any(re.fullmatch(name + units, one) for one in shown)}
    assert {"WatchFailed"} == set(named) <= {type(record).__name__ for record in RECORDS}


@pytest.mark.parametrize("name", QUERIES)
def test_each_alert_query_fires_at_the_expected_threshold(name: str):
    """The test compares metric, aggregations and condition of each query with a table."""
    code = re.sub(r"//.*", "", QUERIES[name]).strip()
    asked = re.search(r"(?:\bName|entry\.event\)?)\s*==\s*'([^']+)'", code)
    steps = re.findall(r"\bsummarize\s+\w+\s*=\s*(\w+\(\w*\))", code)
    last = re.search(r"\|\s*where\s+\w+\s*([<>=]=?.+)$", code.rpartition("\n")[2])

    assert FIRES[name] == (asked[1] if asked else "", *steps, last[1] if last else "")
    for reasons in re.findall(r"\bReason\s+in\s*\(([^)]*)\)", code):
        assert REASONS >= set(re.findall(r"'(\w+)'", reasons))


def test_a_query_for_silent_workers_looks_back_much_longer_than_the_silence():
    """
    A query that looked back only as far as the silence would never see a worker that had exported metrics before.
    """
    alerts = (OBSERVABILITY.parent / "modules/alerts.bicep").read_text()
    reaches = dict(re.findall(r"queries/([\w-]+)\.kql'\)[^}]*? reach: 'P(\d+D|T\d+M)'", alerts, re.DOTALL))
    silences = {name: ago for name, text in QUERIES.items() for ago in re.findall(r"ago\((\d+)m\)", text)}
    assert QUERIES.keys() == reaches.keys()
    assert {"worker-silent": "10", "consumer-silent": "10"} == silences
    assert {"2D"} == {reaches[silence] for silence in silences}
