"""
The reference pages on settings and metrics say what the code says; `UPDATE_REFERENCE=1` writes them anew.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client.parser import text_string_to_metric_families

from cosmos_outbox import instrumentation
from cosmos_outbox.changefeed import Lag, LeaseLag
from tests.worker.leases import status
from worker.__main__ import EXIT_CODES
from worker.settings import PREFIX, Settings
from worker.telemetry import Telemetry, opened_telemetry
from worker.vitals import Identity, ParkedSeen, Vitals

PAGES = Path(__file__).parents[2] / "docs/reference"
BEGIN, END = "<!-- generated: begin -->", "<!-- generated: end -->"
ERROR = ValueError("no")
RECORDS = (
    instrumentation.LeaseAcquired(lease="l", owner="o", previous_owner=None),
    instrumentation.LeaseClosed(lease="l", owner="o", reason="stopped"),
    instrumentation.PageHandled(lease="l", changes=3, seconds=0.1, lag=0),
    instrumentation.PageFailed(lease="l", attempt=1, delay_seconds=1, error=ERROR),
    instrumentation.MessagesPublished(lane=0, messages=3, seconds=0.1),
    instrumentation.PublishFailed(lane=0, attempt=1, delay_seconds=1, error=ERROR),
    instrumentation.EventsHeld(lease="l", partition_key="k", events=2),
    instrumentation.EventsDeleted(partition_key="k", events=2),
    instrumentation.EventRejected(lane=0, event_id="e", partition_key="k", error=ERROR),
)
ALARM = instrumentation.LeaseHalted(lease="l", attempts=1, error=ERROR)


def is_generated(page: str, text: str) -> None:
    path = PAGES / page
    stored = path.read_text()
    before, found, rest = stored.partition(BEGIN)
    generated, closed, after = rest.partition(END)
    assert found
    assert closed
    if os.environ.get("UPDATE_REFERENCE"):
        path.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")
    else:
        assert text == generated.strip("\n"), f"{page} is old; run this test with UPDATE_REFERENCE=1"


def setting_rows() -> Iterator[str]:
    for name, field in Settings.model_fields.items():
        default = "*required*" if field.is_required() else field.get_default()
        if field.default_factory is not None:
            shown = "host, process id and a random part"
        else:
            shown = "" if default is None else default if field.is_required() else f"`{default}`"
        yield f"| `{PREFIX}{name.upper()}` | {shown} | {field.description} |"


def test_the_page_on_settings_names_them_all():
    rows = ["| Variable | Default | Meaning |", "|---|---|---|", *setting_rows()]
    is_generated("settings.md", "\n".join(rows))


def test_the_page_on_settings_tells_the_exit_codes():
    assert EXIT_CODES in (PAGES / "settings.md").read_text().replace("\n", " ")


def used(telemetry: Telemetry) -> None:
    """
    Have every instrument measure something.
    """
    lag = LeaseLag(lease="l", token="0", owner=None, transactions=1, oldest_age=timedelta(1))  # noqa: S106 - no password
    identity = Identity(instance="w", processor="p", container="c", topic="t")
    vitals = Vitals(
        identity,
        leases=lambda _: (status(),),
        stalled_after=timedelta(1),
        utcnow=lambda: datetime(2026, 1, 1, tzinfo=UTC),
    )
    vitals.measured(Lag(leases=(lag,)))
    vitals.seen_parked(ParkedSeen(count=1, events=2))
    telemetry.observed = vitals.snapshot()
    telemetry.charged(2.5)
    for record in (*RECORDS, ALARM):
        telemetry(record)


async def test_the_page_on_metrics_names_them_all():
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader], shutdown_on_exit=False)
    used(Telemetry(provider, topic="events"))
    data = reader.get_metrics_data()
    provider.shutdown()
    assert data is not None
    with opened_telemetry(topic="events", instance="w", environ={}) as telemetry:
        used(telemetry.instruments)
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
    rows = [
        f"| `{metric.name}` | `{families[metric.description]}` | {metric.unit} | {metric.description} |"
        for metric in sorted(metrics, key=lambda metric: metric.name)
    ]
    heads = ["| OpenTelemetry | Prometheus | Unit | Meaning |", "|---|---|---|---|"]
    is_generated("metrics.md", "\n".join(heads + rows))


def test_every_record_that_is_counted_is_among_those_tested():
    provider = MeterProvider(shutdown_on_exit=False)
    assert {*map(type, RECORDS), type(ALARM)} == set(Telemetry(provider, topic="events")._counted)
    provider.shutdown()
