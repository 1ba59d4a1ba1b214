"""
Whether what each program finds in its environment, wherever it runs, is what the program takes, and the same everywhere.

The programs judge for themselves: their own settings, in the project's environment, read what is found here.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tools.infra_check.bicep import Template
from tools.infra_check.deployment import deploy
from tools.infra_check.variables import default_of

# A program and where it runs.
Place = tuple[str, str]
Environment = Mapping[str, str]

_ROOT = Path(__file__).parents[2]
_PYTHON = _ROOT / ".venv/bin/python"
# What workers, and who provides for them, must agree on, whatever platform they run on.
_AGREED = (
    "COSMOS_DATABASE",
    "COSMOS_CONTAINER",
    "LEASE_CONTAINER",
    "PARKED_CONTAINER",
    "TOPIC",
    "PROCESSOR_NAME",
)
# What a consumer has of its own; no other program has its documents and parked keys.
_OWN = {"COSMOS_CONTAINER", "PARKED_CONTAINER", "SUBSCRIPTION"}
# What Azure makes of the properties that are known only there.
_AT_RUNTIME = {
    "clientId": "00000000-0000-0000-0000-000000000000",
    "ConnectionString": "InstrumentationKey=00000000-0000-0000-0000-000000000000",
    "documentEndpoint": "https://account.documents.azure.com:443/",
    "serviceBusEndpoint": "https://namespace.servicebus.windows.net:443/",
}
_CLOSING_SECONDS, _LOITERING_SECONDS = 15, 60


def of_apps(templates: Sequence[Template], **parameters: object) -> dict[Place, Environment]:
    """
    Return the environments of the Container Apps.
    """
    return {
        ("Container Apps", app.symbol): {
            name: _at_runtime(value) for name, value in environment_of(app.body).items()
        }
        for app in deploy(templates, **parameters).of_type("Microsoft.App/containerApps")
    }


def environment_of(app: Mapping[str, Any]) -> dict[str, str]:
    """
    Return what the first container of an app is given, as it is declared.
    """
    containers = app["properties"]["template"]["containers"]
    return {entry["name"]: str(entry.get("value")) for entry in containers[0].get("env", [])}


def _at_runtime(value: str) -> str:
    return _AT_RUNTIME.get(value.rpartition(".properties.")[2], value)


def of_pods(documents: Sequence[Mapping[str, Any]]) -> dict[Place, Environment]:
    """
    Return the environments of the pods, as far as a file says them.
    """
    return {
        ("Kubernetes", document["metadata"]["name"].split("-")[1]): document["data"]
        for document in documents
        if document["kind"] == "ConfigMap"
    }


def of_compose(services: Mapping[str, Any]) -> dict[Place, Environment]:
    """
    Return the environments of our own programs in the compose stack.
    """
    programs = ("api", "worker", "consumer", "subscriber")
    return {
        ("compose", program): {
            name: str(value or "") for name, value in services[program]["environment"].items()
        }
        for program in programs
    }


def problems(environments: Mapping[Place, Environment]) -> Iterator[str]:
    """
    Yield one line a mistake in any of them.
    """
    for (place, program), environment in environments.items():
        for name in sorted(name for name in environment if name.startswith("OUTBOX_")):
            if not environment[name]:
                yield f"{place}: {name} of the {program} is empty"
    for name in (*_AGREED, "SUBSCRIPTION"):
        told = {
            place: environment.get(f"OUTBOX_{name}", str(default_of(place[1], f"OUTBOX_{name}")))
            for place, environment in environments.items()
        }
        told = {place: value for place, value in told.items() if value != str(None)}
        apart = {place for place in told if place[1] == "consumer" and name in _OWN}
        consumers, others = {told[place] for place in apart}, {told[place] for place in told.keys() - apart}
        if len(consumers) > 1 or len(others) > 1:
            yield f"OUTBOX_{name} is not the same everywhere: {told}"
        if consumers & others:
            yield f"OUTBOX_{name} of the consumer is another program's: {told}"
    yield from _refused(environments)


def _refused(environments: Mapping[Place, Environment]) -> Iterator[str]:
    if not _PYTHON.exists():
        yield "settings: the programs are not installed, so their environments were not checked; run make setup"
        return
    asked = [{"program": program, "environment": given} for (_, program), given in environments.items()]
    done = subprocess.run(  # noqa: S603 # the project's own interpreter, on the project's own module
        [str(_PYTHON), "-m", "tools.infra_check.reading"],
        cwd=_ROOT,
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        yield f"settings: {done.stderr.strip()[-500:]}"
        return
    for (place, program), refusal in zip(environments, json.loads(done.stdout), strict=True):
        for mistake in refusal:
            yield f"{place}: the {program} refuses {mistake}"


def number(text: object) -> float | None:
    """
    Return the number that a text is; None where it is none, which the program itself complains of.
    """
    return float(str(text)) if re.fullmatch(r"\d+(\.\d+)?", str(text)) else None


def misjudged_end(program: str, environment: Environment, allowed: object) -> str | None:
    """
    Return what is wrong with the time that a platform leaves a program to stop; None where nothing is.
    """
    default = default_of(program, "OUTBOX_GRACE_SECONDS") or 0
    grace, seconds = number(environment.get("OUTBOX_GRACE_SECONDS", default)), number(allowed)
    if grace is None or seconds is None:
        return f"is to stop within {environment.get('OUTBOX_GRACE_SECONDS', default)} of {allowed} seconds: no number"
    if seconds < grace + _CLOSING_SECONDS:
        return "is killed before it has given back what it holds"
    if seconds > grace + _LOITERING_SECONDS:
        return f"may hang for {seconds:g} seconds, and what it holds with it"
    return None
