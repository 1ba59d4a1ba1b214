"""
OTLP: which of spans and metrics go out over HTTP by the standard `OTEL_…` variables, and what is wrong with these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from urllib.parse import urlsplit

_PROTOCOL = "http/protobuf"


class Signal(StrEnum):
    """
    What a worker sends out, as the variables call it.
    """

    TRACES = "TRACES"
    METRICS = "METRICS"


def is_sent(signal: Signal, environ: Mapping[str, str]) -> bool:
    """
    Say whether a signal goes out.
    """
    return _exporter(signal, environ) != "none" and bool(_given(signal, "ENDPOINT", environ)[1])


def mistakes_in(environ: Mapping[str, str]) -> list[str]:
    """
    Return a sentence, which shows no value, for every variable that asks for what the worker cannot do.
    """
    return list(dict.fromkeys(mistake for signal in Signal for mistake in _mistakes(signal, environ)))


def _mistakes(signal: Signal, environ: Mapping[str, str]) -> Iterator[str]:
    if _exporter(signal, environ) not in ("otlp", "none"):
        yield f"OTEL_{signal}_EXPORTER: must be otlp or none; for Prometheus, /metrics is always there"
    if not is_sent(signal, environ):
        return
    name, endpoint = _given(signal, "ENDPOINT", environ)
    if not _is_url(endpoint):
        yield f"{name}: must be a URL such as http://HOST:4318"
    name, protocol = _given(signal, "PROTOCOL", environ)
    if protocol not in ("", _PROTOCOL):
        yield f"{name}: must be {_PROTOCOL}, which collectors take at port 4318"


def _exporter(signal: Signal, environ: Mapping[str, str]) -> str:
    return environ.get(f"OTEL_{signal}_EXPORTER", "").strip().lower() or "otlp"


def _given(signal: Signal, what: str, environ: Mapping[str, str]) -> tuple[str, str]:
    """
    Return the variable that counts for a signal, and its value: its own, else that of all signals.
    """
    own, general = f"OTEL_EXPORTER_OTLP_{signal}_{what}", f"OTEL_EXPORTER_OTLP_{what}"
    name = own if environ.get(own) else general
    return name, environ.get(name, "").strip()


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # its port is no number
        return False
