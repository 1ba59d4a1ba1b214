"""How the example's programs appear in traces."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_SHOW_NAME = """
from opentelemetry import trace
from examples.contacts.telemetry import exporting
with exporting("contacts-api"):
    print(trace.get_tracer_provider().resource.attributes["service.name"])
"""


@pytest.mark.parametrize(
    ("variables", "name"),
    [
        ({}, "contacts-api"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=ours"}, "ours"),
    ],
)
def test_a_program_is_called_what_the_environment_says_or_else_its_own_name(
    variables: dict[str, str], name: str
) -> None:
    plain = {key: value for key, value in os.environ.items() if not key.startswith("OTEL_")}
    # A process of its own: a provider that is set once stays for good.
    printed = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-c", _SHOW_NAME],
        env=plain | {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"} | variables,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert name == printed.strip()
