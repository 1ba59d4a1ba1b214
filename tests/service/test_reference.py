"""
Tests that the reference pages on settings and metrics agree with the code. `UPDATE_REFERENCE=1` rewrites these pages.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    DataPointT,
    HistogramDataPoint,
    InMemoryMetricReader,
    NumberDataPoint,
)
from prometheus_client.parser import text_string_to_metric_families
from pydantic.fields import FieldInfo

from cosmos_outbox import records
from cosmos_outbox.changefeed import CloseReason
from cosmos_outbox_worker.consumer_settings import CONSUMER_FIELDS
from cosmos_outbox_worker.main import EXIT_CODES
from cosmos_outbox_worker.settings import PREFIX, Settings
from cosmos_outbox_worker.telemetry import Telemetry, open_telemetry
from tests.support.telemetry_use import RECORDS, used, used_by_a_consumer

PAGES = Path(__file__).parents[2] / "docs/reference"
# The records for which no metric counts occurrences, each with the reason. None of them is a warning or an alarm.
UNCOUNTED = {
    records.LeaseCheckpointed: "progress is `outbox.lease.lag`",
    records.MessagesPublished: "`messaging.client.sent.messages` counts what each topic accepts",
    records.MessageSettled: "`messaging.client.operation.duration` counts settlements",
    records.SubjectIgnored: "`outbox.messages.handled` counts the messages",
}

BY_SEVERITY = {logging.ERROR: "outbox.alarms", logging.WARNING: "outbox.warnings"}


def is_generated(page: str, text: str, *, part: str = "") -> None:
    path = PAGES / page
    begin, end = (f"<!-- generated: {part}{' ' if part else ''}{edge} -->" for edge in ("begin", "end"))
    stored = path.read_text()
    before, found, rest = stored.partition(begin)
    generated, closed, after = rest.partition(end)
    assert found
    assert closed
    if os.environ.get("UPDATE_REFERENCE"):
        path.write_text(f"{before}{begin}\n{text}\n{end}{after}")
    else:
        assert text == generated.strip("\n"), f"{page} is old; run this test with UPDATE_REFERENCE=1"


def setting_rows(fields: Mapping[str, FieldInfo]) -> Iterator[str]:
    for name, field in fields.items():
        default = "*required*" if field.is_required() else field.get_default()
        if field.default_factory is not None:
            shown = "host, process id and a random part"
        else:
            shown = "" if default in (None, "") else default if field.is_required() else f"`{default}`"
        yield f"| `{PREFIX}{name.upper()}` | {shown} | {field.description} |"


def test_the_page_on_settings_lists_every_setting_of_a_worker():
    rows = ["| Variable | Default | Meaning |", "|---|---|---|", *setting_rows(Settings.model_fields)]
    is_generated("settings.md", "\n".join(rows))


def leave_out(above: set[str], rows: list[str], heads: list[str]) -> str:
    """
    Return the table of a consumer without the rows that the table of a worker above it has too. A sentence names the rows that are
    left out.
    """
    names = ", ".join(row.split(" | ")[0].removeprefix("| ") for row in rows if row in above)
    return "\n".join(
        [
            f"These have the same meaning as in the table above: {names}.",
            "",
            *heads,
            *(row for row in rows if row not in above),
        ]
    )


def test_the_page_on_settings_lists_every_setting_of_a_consumer():
    heads = ["| Variable | Default | Meaning |", "|---|---|---|"]
    rows = [*setting_rows(CONSUMER_FIELDS)]
    is_generated(
        "settings.md", leave_out({*setting_rows(Settings.model_fields)}, rows, heads), part="consumer"
    )


def test_the_page_on_settings_explains_the_exit_codes():
    assert EXIT_CODES in (PAGES / "settings.md").read_text().replace("\n", " ")


# For each program with metrics (worker and consumer): whether it is the consumer, and a function that changes all of its metrics.
PROGRAMS: tuple[tuple[bool, Callable[[Telemetry], None]], ...] = (
    (False, used),
    (True, used_by_a_consumer),
)


@pytest.mark.parametrize(("consumer", "use"), PROGRAMS)
async def test_a_scrape_of_the_metrics_contains_each_series_once(consumer, use):
    with open_telemetry(consumer=consumer, instance="w") as telemetry:
        use(telemetry)
        for outcome in CloseReason:
            telemetry(records.LeaseMoved(lease="l", owner="o", outcome=outcome))
        text = telemetry.exposition()[0].decode()
    series = Counter(line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#"))
    assert series
    assert [] == [name for name, times in series.items() if times > 1]


def metric_rows(*, consumer: bool, use: Callable[[Telemetry], None]) -> list[str]:
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader], shutdown_on_exit=False)
    use(Telemetry(provider, consumer=consumer))
    data = reader.get_metrics_data()
    provider.shutdown()
    assert data is not None
    with open_telemetry(consumer=consumer, instance="w") as telemetry:
        use(telemetry)
        families = {
            family.documentation: family.samples[0].name if family.type == "counter" else family.name
            for family in text_string_to_metric_families(telemetry.exposition()[0].decode())
        }
    metrics = [
        metric
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    ]
    return [
        f"| `{metric.name}` | `{families[metric.description]}` | {metric.description} |"
        for metric in sorted(metrics, key=lambda metric: metric.name)
    ]


async def test_the_page_on_metrics_lists_every_metric():
    heads = ["| OpenTelemetry | Prometheus | Meaning |", "|---|---|---|"]
    of_a_worker, of_a_consumer = (metric_rows(consumer=consumer, use=use) for consumer, use in PROGRAMS)
    is_generated("metrics.md", "\n".join(heads + of_a_worker))
    is_generated("metrics.md", leave_out({*of_a_worker}, of_a_consumer, heads), part="consumer")


def counted_by(record: records.Record) -> list[str]:
    """Return the names of the metrics that a record changes."""
    names = set()
    for consumer, _ in PROGRAMS:
        reader = InMemoryMetricReader()
        provider = MeterProvider(metric_readers=[reader], shutdown_on_exit=False)
        Telemetry(provider, consumer=consumer)(record)
        data = reader.get_metrics_data()
        provider.shutdown()
        scopes = [scope for one in (data.resource_metrics if data else ()) for scope in one.scope_metrics]
        metrics = [metric for scope in scopes for metric in scope.metrics]
        names |= {metric.name for metric in metrics if any(map(measured, metric.data.data_points))}
    return sorted(names)


def measured(point: DataPointT) -> bool:
    """
    Return whether a metric has counted something. A counter exists from the start with the value 0, which does not count.
    """
    return isinstance(point, HistogramDataPoint) or (isinstance(point, NumberDataPoint) and point.value != 0)


def record_rows() -> Iterator[str]:
    for kind in sorted(records.KINDS, key=lambda kind: kind.__name__):
        more = (f", {logging.getLevelName(level)} if {outcome}" for outcome, level in kind.levels.items())
        level = logging.getLevelName(kind.level) + "".join(more)
        counters = sorted({name for record in RECORDS if type(record) is kind for name in counted_by(record)})
        others = ", ".join(f"`{name}`" for name in counters if name not in BY_SEVERITY.values())
        names = others or ("" if counters else f"none: {UNCOUNTED[kind]}")
        sentence = " ".join((kind.__doc__ or "").split("\n\n")[0].split())
        yield f"| `{kind.__name__}` | {level} | {names} | {sentence} |"


def test_the_page_on_metrics_says_how_each_record_is_logged_and_counted():
    rows = ["| Record | Severity | Also counted by | Meaning |", "|---|---|---|---|", *record_rows()]
    is_generated("metrics.md", "\n".join(rows), part="records")


@pytest.mark.parametrize("record", RECORDS)
def test_each_record_is_counted_by_the_metric_of_its_severity(record):
    severity = records.level_of(record)
    expected = {BY_SEVERITY[severity]} if severity in BY_SEVERITY else set()
    assert expected == {*counted_by(record)} & {*BY_SEVERITY.values()}


def test_each_record_has_either_a_metric_or_a_reason_to_have_none():
    counted = {type(record) for record in RECORDS if counted_by(record)}
    assert set(UNCOUNTED) == set(records.KINDS) - counted
