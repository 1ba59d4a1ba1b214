"""
Telemetry: the OpenTelemetry instruments of a worker or a consumer, a hook that counts records, and gauges of its health.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from importlib.metadata import version
from typing import Any

from opentelemetry.metrics import CallbackOptions, Counter, Histogram, MeterProvider, Observation

from cosmos_outbox.records import Record, level_of, names_of
from cosmos_outbox_worker.series import CONSUMER_SERIES, Count, Measure, worker_series


class Telemetry:
    """
    The instruments of a process; a hook. The event loop sets `observed`, what the gauges show; any thread reads it.

    Args:
        provider: makes the instruments.
        topic: that a worker sends to, "" for several; None for the instruments of a consumer.
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
        counters, histograms, gauges = CONSUMER_SERIES if topic is None else worker_series(topic)
        if topic is not None:
            self._request_units = meter.create_counter(
                "outbox.request_units",
                unit="{request_unit}",
                description="What reading the change feed cost.",
            )
            self.charged(0)
        self._measured: list[tuple[type, Histogram, Measure]] = []
        for name, description, bounds, kind, measure in histograms:
            histogram = meter.create_histogram(
                name, unit="s", description=description, explicit_bucket_boundaries_advisory=bounds
            )
            self._measured.append((kind, histogram, measure))
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
        for measured, histogram, measure in self._measured:
            if kind is measured and (found := measure(record))[0] is not None:
                histogram.record(*found)
        if (counted := self._counted.get(kind)) is not None:
            counter, count = counted
            counter.add(*count(record))

    def charged(self, request_units: float) -> None:
        """Count what a read of the feed cost."""
        self._request_units.add(request_units, {"outbox.operation": "read_feed"})

    def _reading(
        self, read: Callable[[Any], Iterable[Observation]]
    ) -> Callable[[CallbackOptions], Iterable[Observation]]:
        return lambda _: read(self.observed) if self.observed is not None else ()
