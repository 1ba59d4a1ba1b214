"""
OTLP: the URLs that the standard `OTEL_…` variables name for spans and metrics, and the errors in these variables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum

from cosmos_outbox.adapters.cosmos.client import is_url

_PROTOCOL = "http/protobuf"
_GENERAL = "OTEL_EXPORTER_OTLP_ENDPOINT"  # each signal adds its path to it


class Signal(StrEnum):
    """
    What a worker exports, as the variables name it.
    """

    TRACES = "TRACES"
    METRICS = "METRICS"


def destination(signal: Signal, environ: Mapping[str, str]) -> str:
    """
    Return the URL that a signal is sent to, or an empty text if it is not sent.
    """
    if "otlp" not in _exporters(signal, environ) or _protocol(signal, environ)[1] != _PROTOCOL:
        return ""
    name, endpoint = _given(signal, "ENDPOINT", environ)
    if not endpoint or name != _GENERAL:
        return endpoint
    return f"{endpoint.removesuffix('/')}/v1/{signal.lower()}"


def errors_in(environ: Mapping[str, str]) -> list[str]:
    """
    Return a sentence for every endpoint that is not a URL; values are never shown.
    """
    names = dict.fromkeys(
        _given(signal, "ENDPOINT", environ)[0]
        for signal in Signal
        if (url := destination(signal, environ)) and not is_url(url)
    )
    return [f"{name}: must be a URL such as http://HOST:4318" for name in names]


def unsupported_in(environ: Mapping[str, str]) -> list[str]:
    """
    Return a sentence for every variable that asks for what the worker cannot do; values are never shown.

    These are warnings: some clusters give such variables to all of their pods.
    """
    return list(dict.fromkeys(sentence for signal in Signal for sentence in _unsupported(signal, environ)))


def _unsupported(signal: Signal, environ: Mapping[str, str]) -> Iterator[str]:
    exporters = _exporters(signal, environ)
    if not exporters <= {"otlp", "none"}:
        yield f"OTEL_{signal}_EXPORTER: must be otlp or none; Prometheus reads /metrics in any case"
    name, protocol = _protocol(signal, environ)
    if "otlp" in exporters and _given(signal, "ENDPOINT", environ)[1] and protocol != _PROTOCOL:
        yield f"{name}: must be {_PROTOCOL}, which collectors take at port 4318; otherwise nothing is sent"


def _exporters(signal: Signal, environ: Mapping[str, str]) -> set[str]:
    given = environ.get(f"OTEL_{signal}_EXPORTER", "").lower().split(",")
    return {name.strip() for name in given if name.strip()} or {"otlp"}


def _protocol(signal: Signal, environ: Mapping[str, str]) -> tuple[str, str]:
    name, protocol = _given(signal, "PROTOCOL", environ)
    return name, protocol or _PROTOCOL


def _given(signal: Signal, what: str, environ: Mapping[str, str]) -> tuple[str, str]:
    """
    Return the variable that counts for a signal, and its value: the signal's own, else the one of all signals.
    """
    own, general = f"OTEL_EXPORTER_OTLP_{signal}_{what}", f"OTEL_EXPORTER_OTLP_{what}"
    name = own if environ.get(own, "").strip() else general
    return name, environ.get(name, "").strip()
