"""
Telemetry: the OpenTelemetry instruments of a worker or a consumer, a hook that counts records, and gauges of its health.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from importlib.metadata import version
from typing import Any

from opentelemetry.metrics import CallbackOptions, Counter, Meter, MeterProvider, Observation

from cosmos_outbox.records import MessageHandled, MessagesPublished, Record, level_of, names_of
from cosmos_outbox_worker.series import CONSUMER_SERIES, WORKER_SERIES, Count

_DURATIONS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)


class Telemetry:
    """
    The instruments of a process; a hook. The event loop sets `observed`, what the gauges show; any thread reads it.

    Args:
        provider: makes the instruments.
        topic: that a worker sends to; None for the instruments of a consumer.
    """

    def __init__(self, provider: MeterProvider, *, topic: str | None) -> None:
        self.observed: Any = None  # a snapshot
        meter = provider.get_meter("cosmos_outbox", version("cosmos-outbox"))
        self._loud: dict[int, tuple[Counter, str]] = {}
        for level, word in ((logging.ERROR, "alarm"), (logging.WARNING, "warning")):
            said = f"Records of the severity {logging.getLevelName(level)}, by what happened."
            counter = meter.create_counter(f"outbox.{word}s", unit=f"{{{word}}}", description=said)
            self._loud[level] = counter, f"outbox.{word}"
            # From the start: an alert on a rise would miss a series that begins at 1.
            for name in names_of(level):
                counter.add(0, {f"outbox.{word}": name})
        self._measured: dict[type, Callable[[Any], None]] = {}
        if topic is None:
            self._measure_handling(meter)
        else:
            self._measure_sends(meter, topic)
        counters, gauges = CONSUMER_SERIES if topic is None else WORKER_SERIES
        self._counted: dict[type, tuple[Counter, Count]] = {}
        for name, unit, description, known, counts in counters:
            counter = meter.create_counter(name, unit=unit, description=description)
            for attributes in known:
                counter.add(0, attributes)
            self._counted |= {kind: (counter, count) for kind, count in counts.items()}
        for name, unit, description, read in gauges:
            meter.create_observable_gauge(name, [self._reading(read)], unit=unit, description=description)

    def __call__(self, record: Record) -> None:
        """Count a record."""
        if loud := self._loud.get(level_of(record)):
            loud[0].add(1, {loud[1]: type(record).__name__})
        kind = type(record)
        if (measure := self._measured.get(kind)) is not None:
            measure(record)
        if (counted := self._counted.get(kind)) is not None:
            counter, count = counted
            counter.add(*count(record))

    def charged(self, request_units: float) -> None:
        """Count what a read of the feed cost."""
        self._request_units.add(request_units, {"outbox.operation": "read_feed"})

    def _measure_sends(self, meter: Meter, topic: str) -> None:
        destination = {
            "messaging.system": "servicebus",
            "messaging.destination.name": topic,
            "messaging.operation.name": "send",
        }
        sent = meter.create_counter(
            "messaging.client.sent.messages",
            unit="{message}",
            description="Messages that the topic accepted.",
        )
        duration = meter.create_histogram(
            "messaging.client.operation.duration",
            unit="s",
            description="How long the topic took to accept the messages of one call.",
            explicit_bucket_boundaries_advisory=_DURATIONS,
        )
        self._request_units = meter.create_counter(
            "outbox.request_units", unit="{request_unit}", description="What reading the change feed cost."
        )
        sent.add(0, destination)
        self.charged(0)

        def published(record: MessagesPublished) -> None:
            sent.add(record.messages, destination)
            duration.record(record.seconds, destination)

        self._measured[MessagesPublished] = published

    def _measure_handling(self, meter: Meter) -> None:
        duration = meter.create_histogram(
            "outbox.handler.duration",
            unit="s",
            description="How long a message took from its delivery to the commit of its effect.",
            explicit_bucket_boundaries_advisory=_DURATIONS,
        )
        age = meter.create_histogram(
            "outbox.message.age",
            unit="s",
            description="Time from when the broker took a message to the commit of its effect.",
            explicit_bucket_boundaries_advisory=(*_DURATIONS, 30, 60, 300, 1800, 7200),
        )

        def handled(record: MessageHandled) -> None:
            if record.seconds is not None:
                duration.record(record.seconds)
            if record.age_seconds is not None:
                age.record(record.age_seconds)

        self._measured[MessageHandled] = handled

    def _reading(
        self, read: Callable[[Any], Iterable[Observation]]
    ) -> Callable[[CallbackOptions], Iterable[Observation]]:
        return lambda _: read(self.observed) if self.observed is not None else ()
