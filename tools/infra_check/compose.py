"""
Whether the compose file is valid, keeps to the emulators' limits, and gives each program what it reads and no more.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tools.infra_check.environments import misjudged_end, number
from tools.infra_check.tools import run
from tools.infra_check.variables import default_of, lacking, variables_of

# Limits of the Service Bus emulator.
MAX_CONNECTIONS = 10
MAX_DELIVERY_COUNT = 10
# Connections of a consumer: one more than few sessions, else so many for each that is handled at once.
_FEW = _FOR_EACH = 8
NAMESPACE = "sbemulatorns"
_PROGRAMS = {name: name for name in ("api", "worker", "consumer", "subscriber")}
_SECONDS = {"s": 1, "m": 60, "h": 3600}
# What the emulators and tools serve, by name and port inside the stack; nothing else is to be named anywhere.
_SERVED = {
    *("cosmos:8081", "cosmos:8080/ready", "servicebus", "servicebus:5300/health", "telemetry:18890", "mssql"),
}
_READY = {"http://cosmos:8080/ready", "http://servicebus:5300/health"}
# What init makes by one variable, and the consumer finds by another.
_MADE_FOR_THE_CONSUMER = {
    "CONSUMER_CONTAINER": "OUTBOX_COSMOS_CONTAINER",
    "CONSUMER_PARKED_CONTAINER": "OUTBOX_PARKED_CONTAINER",
}
_TELEMETRY = {"OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES"}


def problems(root: Path) -> list[str]:
    """
    Return one line a mistake in docker-compose.yml and the emulator's configuration.
    """
    schema = ("--builtin-schema", "vendor.compose-spec")
    checked = run("check-jsonschema", *schema, "docker-compose.yml", directory=root)
    if checked.returncode:
        return [f"compose schema: {line}" for line in checked.stdout.strip().splitlines()]
    try:
        services = resolve(root)["services"]
    except ValueError as error:
        return [f"compose: {error}"]
    bus = json.loads((root / "infra/compose/servicebus.json").read_text(encoding="utf-8"))
    return judge(services, bus)


def resolve(root: Path) -> dict[str, Any]:
    """
    Return the model that compose makes of the file.

    Raises:
        ValueError: compose refuses the file; the message says why.
    """
    done = run("docker-compose", "--profile", "*", "config", "--format", "json", directory=root)
    if done.returncode:
        raise ValueError(done.stderr.strip())
    model: dict[str, Any] = json.loads(done.stdout)
    return model


def judge(services: dict[str, Any], bus: dict[str, Any]) -> list[str]:
    """
    Return the violations in a resolved model.
    """
    found: list[str] = []
    for name, service in services.items():
        found += _images_and_ports(name, service)
        if name in (*_PROGRAMS, "init"):
            found += _locked_down(name, service)
    for name, program in _PROGRAMS.items():
        found += _settings(name, program, services[name])
    for name in ("worker", "consumer"):
        allowed = seconds(services[name].get("stop_grace_period", "10s"))
        if misjudged := misjudged_end(name, services[name]["environment"], allowed):
            found.append(f"{name}: {misjudged}")
    found += _hosts(services)
    found += _order(services)
    found += _emulator(bus)
    found += _agreement(services, bus)
    return found


def _images_and_ports(name: str, service: dict[str, Any]) -> Iterator[str]:
    tag = service["image"].rpartition(":")[2]
    if "/" in tag or "latest" in tag:
        yield f"{name}: the image {service['image']} is not pinned"
    for port in service.get("ports", []):
        if port.get("host_ip") != "127.0.0.1":
            yield f"{name}: port {port.get('published')} is open to the network"


def _locked_down(name: str, service: dict[str, Any]) -> Iterator[str]:
    if not service.get("read_only") or service.get("cap_drop") != ["ALL"]:
        yield f"{name}: its root file system must be read-only, and all capabilities dropped"
    if "no-new-privileges:true" not in service.get("security_opt", []):
        yield f"{name}: may gain privileges"
    condition = service["depends_on"].get("init", {}).get("condition")
    if name != "init" and condition != "service_completed_successfully":
        yield f"{name}: starts before its containers exist"


def _settings(name: str, program: str, service: dict[str, Any]) -> Iterator[str]:
    given = {variable for variable in service["environment"] if variable.startswith("OUTBOX_")}
    for variable in sorted(given - variables_of(program)):
        yield f"{name}: {variable} is no setting of the {program}"
    for problem in lacking(program, given):
        yield f"{name}: {problem}"


def _hosts(services: dict[str, Any]) -> Iterator[str]:
    """
    Yield what a program is told to call that no service of the stack serves.
    """
    for name, service in services.items():
        environment = {key: str(value or "") for key, value in service.get("environment", {}).items()}
        for variable, value in environment.items():
            for url in re.findall(r"\b(?:https?|sb)://([^\s;]+?)/?(?=[\s;]|$)", value):
                if url not in _SERVED:
                    yield f"{name}: {variable} names {url}, which nothing in the stack serves"
            if variable.startswith("OTEL_") and variable not in _TELEMETRY:
                yield f"{name}: {variable} is no setting of OpenTelemetry that is used here"
            if "SERVICEBUS_CONNECTION_STRING" in variable and "UseDevelopmentEmulator=true;" not in value:
                yield f"{name}: {variable} lacks UseDevelopmentEmulator=true, so the client asks for TLS"
    for name, variable, expected in (
        # The account names it to every client as the place to go on at.
        ("cosmos", "GATEWAY_PUBLIC_ENDPOINT", "cosmos"),
        ("servicebus", "SQL_SERVER", "mssql"),
    ):
        if (given := services[name]["environment"].get(variable)) != expected:
            yield f"{name}: {variable} is {given}, not {expected}"
    if (awaited := set(services["init"]["environment"]["WAIT_FOR"].split())) != _READY:
        yield f"init: waits for {sorted(awaited)}, not for {sorted(_READY)}"


def _order(services: dict[str, Any]) -> Iterator[str]:
    """
    Yield who starts before what it needs is there, and what is mounted that does not exist.
    """
    for name, service in services.items():
        for needed, condition in service.get("depends_on", {}).items():
            checked = services[needed].get("healthcheck", {})
            if checked and not checked.get("disable") and condition["condition"] == "service_started":
                yield f"{name}: starts before {needed} is healthy"
        for volume in service.get("volumes", []):
            if volume["type"] == "bind" and not Path(volume["source"]).exists():
                yield f"{name}: mounts {Path(volume['source']).name}, which does not exist"


def _emulator(bus: dict[str, Any]) -> Iterator[str]:
    namespaces = bus["UserConfig"]["Namespaces"]
    if [namespace["Name"] for namespace in namespaces] != [NAMESPACE]:
        yield f"servicebus.json: the emulator knows one namespace, {NAMESPACE}"
    for topic in namespaces[0]["Topics"]:
        properties = topic["Properties"]
        if not properties["RequiresDuplicateDetection"]:
            yield f"servicebus.json: {topic['Name']} does not drop repeated messages"
        if properties["DuplicateDetectionHistoryTimeWindow"] not in {f"PT{n}M" for n in range(1, 6)}:
            yield f"servicebus.json: {topic['Name']}: the emulator remembers messages for five minutes at most"
        for subscription in topic["Subscriptions"]:
            name, limits = subscription["Name"], subscription["Properties"]
            if not limits["RequiresSession"]:
                yield f"servicebus.json: {name} does not keep the order of sessions"
            if limits["MaxDeliveryCount"] > MAX_DELIVERY_COUNT:
                yield f"servicebus.json: {name}: MaxDeliveryCount is at most {MAX_DELIVERY_COUNT}"
            if limits["DefaultMessageTimeToLive"] not in {"PT1H", *(f"PT{n}M" for n in range(5, 60))}:
                yield f"servicebus.json: {name}: messages live from five minutes to one hour"


def _agreement(services: dict[str, Any], bus: dict[str, Any]) -> Iterator[str]:
    topics = {
        topic["Name"]: {subscription["Name"] for subscription in topic["Subscriptions"]}
        for topic in bus["UserConfig"]["Namespaces"][0]["Topics"]
    }
    sender, receiver = services["worker"]["environment"], services["subscriber"]["environment"]
    consumer = services["consumer"]["environment"]
    for name, environment in (("subscriber", receiver), ("consumer", consumer)):
        if sender["OUTBOX_TOPIC"] not in topics or sender["OUTBOX_TOPIC"] != environment["OUTBOX_TOPIC"]:
            yield f"worker and {name} must use a topic of servicebus.json"
        elif (asked := environment.get("OUTBOX_SUBSCRIPTION")) not in topics[sender["OUTBOX_TOPIC"]]:
            yield f"{name}: {asked} is no subscription of servicebus.json"
    init = services["init"]["environment"]
    for made, used in _MADE_FOR_THE_CONSUMER.items():
        if init.get(made) != consumer.get(used):
            yield f"init: makes {init.get(made)} by {made}; the consumer's {used} is {consumer.get(used)}"
    workers = services["worker"].get("deploy", {}).get("replicas", 1)
    # What is no number is told by the program's own settings.
    lanes = number(sender.get("OUTBOX_LANES", default_of("worker", "OUTBOX_LANES"))) or 0
    receivers = number(receiver.get("OUTBOX_RECEIVERS", MAX_CONNECTIONS)) or 0
    consumers = services["consumer"].get("deploy", {}).get("replicas", 1)
    sessions = number(consumer.get("OUTBOX_CONCURRENT_SESSIONS", MAX_CONNECTIONS)) or 0
    held = sessions + 1 if sessions < _FEW else _FOR_EACH * sessions
    if (connections := workers * lanes + receivers + consumers * held) > MAX_CONNECTIONS:
        yield f"{connections:g} connections to Service Bus; the emulator takes {MAX_CONNECTIONS}"


def seconds(text: str) -> float:
    """
    Return a duration of compose, like 1m30s, in seconds.
    """
    return sum(float(number) * _SECONDS[unit] for number, unit in re.findall(r"([\d.]+)(s|m|h)", text))
