"""
The environment, read once: settings, or all mistakes together, each with the variable's name.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Collection, Mapping
from datetime import timedelta

from pydantic import ValidationError

from cosmos_outbox.adapters.cosmos.containers import shared_containers
from cosmos_outbox.errors import ConfigurationError
from cosmos_outbox.relay.ttl import require_ttls
from cosmos_outbox.service import otlp
from cosmos_outbox.service.azure_monitor import VARIABLE
from cosmos_outbox.service.settings import PREFIX, Settings

# Exactly one of each pair.
_ALTERNATIVES = (
    ("cosmos_connection_string", "cosmos_endpoint"),
    ("servicebus_connection_string", "servicebus_namespace"),
)


def load() -> Settings:
    """
    Read the settings from the environment.

    Raises:
        ConfigurationError: one line a mistake, all of them, naming the variables; values are never shown.
    """
    mistakes = []
    for first, second in _ALTERNATIVES:
        given = [name for name in (first, second) if os.environ.get(f"{PREFIX}{name.upper()}")]
        if len(given) != 1:
            wanted = "one of them is required" if not given else "give only one of them"
            mistakes.append(f"{PREFIX}{first.upper()} or {PREFIX}{second.upper()}: {wanted}")
    if (sink := os.environ.get(VARIABLE)) and "instrumentationkey=" not in sink.casefold():
        mistakes.append(f"{VARIABLE}: is no connection string: it lacks InstrumentationKey=…")
    mistakes += otlp.mistakes_in(os.environ)
    settings: Settings | None = None
    wrong: set[str] = set()
    try:
        settings = Settings()
    except ValidationError as error:
        mistakes += _described(error)
        wrong = {str(mistake["loc"][0]) for mistake in error.errors(include_url=False)}
    mistakes += _contradictions(wrong)
    if mistakes or settings is None:
        raise ConfigurationError("\n".join(sorted(mistakes)))
    return settings


def _contradictions(wrong: Collection[str]) -> list[str]:
    """
    Return what is wrong between settings that are right each by itself, whatever else is wrong.
    """
    found = []
    renew, expiration = _seconds("lease_renew_seconds", wrong), _seconds("lease_expiration_seconds", wrong)
    if renew is not None and expiration is not None and renew * 2 > expiration:
        found.append(
            f"{PREFIX}LEASE_RENEW_SECONDS: must be at most half of {PREFIX}LEASE_EXPIRATION_SECONDS ({expiration:g})"
        )
    stalled, acquire = _seconds("stalled_seconds", wrong), _seconds("lease_acquire_seconds", wrong)
    if stalled is not None and acquire is not None and stalled < acquire * 2:
        found.append(
            f"{PREFIX}STALLED_SECONDS: must be at least twice {PREFIX}LEASE_ACQUIRE_SECONDS ({acquire:g}), "
            "or a healthy worker counts as unready between two balancing passes"
        )
    ttl, outage = _seconds("event_ttl_seconds", wrong), _seconds("tolerated_outage_seconds", wrong)
    if ttl is not None and outage is not None:
        try:
            require_ttls(
                {f"{PREFIX}EVENT_TTL_SECONDS": timedelta(seconds=ttl)},
                tolerated_outage=timedelta(seconds=outage),
            )
        except ConfigurationError as error:
            found.append(f"{PREFIX}TOLERATED_OUTAGE_SECONDS: {error}")
    containers = ("cosmos_container", "lease_container", "parked_container")
    return found + shared_containers({f"{PREFIX}{name.upper()}": _text(name) for name in containers})


def _text(name: str) -> str | None:
    default = Settings.model_fields[name].get_default()
    return os.environ.get(f"{PREFIX}{name.upper()}") or (default if isinstance(default, str) else None)


def _seconds(name: str, wrong: Collection[str]) -> float | None:
    text = os.environ.get(f"{PREFIX}{name.upper()}")
    if name in wrong:
        return None
    return float(text) if text else float(Settings.model_fields[name].default)


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """
    Return a sentence for every `OUTBOX_` variable that no setting reads: most likely a typing mistake.
    """
    known = {name.upper() for name in Settings.model_fields}
    sentences = []
    for name in sorted(environ):
        short = name.removeprefix(PREFIX)  # the prefix alone would make any two names look alike
        if name.startswith(PREFIX) and short not in known:
            near = difflib.get_close_matches(short, known, n=1)
            hint = f"; did you mean {PREFIX}{near[0]}?" if near else ""
            sentences.append(f"{name} is not a setting of the worker{hint}")
    return sentences


def _described(error: ValidationError) -> list[str]:
    lines = []
    for mistake in error.errors(include_url=False, include_context=False, include_input=False):
        variable = f"{PREFIX}{str(mistake['loc'][0]).upper()}"
        message = (
            "is required" if mistake["type"] == "missing" else mistake["msg"].removeprefix("Value error, ")
        )
        lines.append(f"{variable}: {message}")
    return lines
