"""Make a worker's or a consumer's telemetry measure something with each instrument, for tests of the exported metrics."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import get_args, get_type_hints

from cosmos_outbox import records
from cosmos_outbox.changefeed import Lag, LeaseLag
from cosmos_outbox.correlation import messaging_attributes, process_durations
from cosmos_outbox.errors import BrokerUnavailable
from cosmos_outbox.message_format import OutboundMessage
from cosmos_outbox.relay.ceiling import Ceiling
from cosmos_outbox.sessions import SessionStatus
from cosmos_outbox_worker.consumer_health import ConsumerVitals
from cosmos_outbox_worker.shared_health import ParkedSummary
from cosmos_outbox_worker.telemetry import Telemetry
from cosmos_outbox_worker.worker_health import WorkerVitals
from tests.support.lease_statuses import owning, status
from tests.support.worker_settings import consumer_settings, worker_settings

_EXAMPLES = {"str": "x", "int": 1, "float": 1.0, "BaseException": ValueError("no")}


def examples(kind: type[records.Record]) -> list[records.Record]:
    """Return one record of a kind for each of its possible outcomes, with a value in every field."""
    values = {one.name: _EXAMPLES.get(str(one.type).partition(" | ")[0]) for one in fields(kind)}
    if "outcome" not in values:
        return [kind(**values)]
    outcomes = get_args(get_type_hints(kind)["outcome"]) or ("x", *kind.levels)
    return [kind(**values | {"outcome": outcome}) for outcome in outcomes]


_MESSAGE = OutboundMessage(message_id="m", session_id="s", subject="a", body=b"{}", properties={})
RECORDS = tuple(record for kind in records.KINDS for record in examples(kind))


def used(telemetry: Telemetry) -> None:
    """Record a value with every instrument of a worker's telemetry, so that all of its metrics are exported."""
    lag = LeaseLag(lease=status().lease, token="0", owner=None, transactions=1, oldest_age=timedelta(1))  # noqa: S106 - no password
    vitals = WorkerVitals(
        worker_settings(stalled_seconds=86_400), utcnow=lambda: datetime(2026, 1, 1, tzinfo=UTC)
    )
    vitals.processor = owning(status())
    vitals.note_lag(Lag(leases=(lag,)))
    vitals.note_parked(ParkedSummary(count=1, events=2))
    vitals.ceiling = Ceiling(100)
    telemetry.observed = vitals.snapshot()
    around = telemetry.around_sends("servicebus", "localhost", ["events"])
    with around("events", [_MESSAGE]):
        pass
    with suppress(BrokerUnavailable), around("events", [_MESSAGE]):
        raise BrokerUnavailable("away")
    _asked(telemetry)
    for record in RECORDS:
        telemetry(record)


def _asked(telemetry: Telemetry) -> None:
    headers = {"a-im": "Incremental feed"}
    request = SimpleNamespace(method="GET", url="https://a.example:443/dbs/d/colls/c/docs", headers=headers)
    for answered in (200, 429):
        telemetry.count_charge(request, answered, {"x-ms-request-charge": "2.5"})


def used_by_a_consumer(telemetry: Telemetry) -> None:
    settings = consumer_settings(subscription="s", stalled_seconds=86_400)
    health = ConsumerVitals(settings, "c", utcnow=lambda: datetime(2026, 1, 1, tzinfo=UTC))
    sessions = (SessionStatus(session="s", messages=1, handling_seconds=1.0),)
    health.processor = SimpleNamespace(status=lambda: sessions, receiving=True)
    health.handling = SimpleNamespace(halted=False, delayed=False)
    health.note_parked(ParkedSummary(count=1, events=2))
    telemetry.observed = health.snapshot()
    source = messaging_attributes("receive", "t", "s", "localhost")
    telemetry.count_messages(source, 1)
    with telemetry.measure_operation({**source, "messaging.operation.name": "complete"}, "settle"):
        pass
    process_durations(telemetry.meter_provider).record(0.1, source)
    _asked(telemetry)
    for record in RECORDS:
        telemetry(record)
