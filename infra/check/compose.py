"""
Whether the compose file is valid, keeps to the emulators' limits, and gives each program what it reads and no more.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from infra.check.tools import run
from infra.check.variables import default_of, required_by, variables_of

# Limits of the Service Bus emulator.
MAX_CONNECTIONS = 10
MAX_DELIVERY_COUNT = 10
NAMESPACE = "sbemulatorns"
_PROGRAMS = {"api": "api", "worker": "worker", "subscriber": "subscriber"}
_SECONDS = {"s": 1, "m": 60, "h": 3600}


def problems(root: Path) -> list[str]:
    """
    Return one line a mistake in docker-compose.yml and the emulator's configuration.
    """
    schema = ("--builtin-schema", "vendor.compose-spec")
    checked = run("check-jsonschema", *schema, "docker-compose.yml", directory=root)
    if checked.returncode:
        return [f"compose schema: {line}" for line in checked.stdout.strip().splitlines()]
    resolved = run("docker-compose", "--profile", "*", "config", "--format", "json", directory=root)
    if resolved.returncode:
        return [f"compose: {resolved.stderr.strip()}"]
    bus = json.loads((root / "infra/compose/servicebus.json").read_text(encoding="utf-8"))
    return judge(json.loads(resolved.stdout)["services"], bus)


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
    found += _grace(services["worker"])
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
    for variable in sorted(required_by(program) - given):
        yield f"{name}: {variable} is required"
    if program == "worker" and "OUTBOX_PARKED_CONTAINER" not in given:
        yield "worker: without OUTBOX_PARKED_CONTAINER one bad event halts its whole range"


def _grace(worker: dict[str, Any]) -> Iterator[str]:
    default = default_of("worker", "OUTBOX_GRACE_SECONDS")
    wanted = float(worker["environment"].get("OUTBOX_GRACE_SECONDS", default))
    if seconds(worker.get("stop_grace_period", "10s")) < wanted + 15:
        yield "worker: is killed before it has released its leases"


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
    if sender["OUTBOX_TOPIC"] not in topics or sender["OUTBOX_TOPIC"] != receiver["OUTBOX_TOPIC"]:
        yield "worker and subscriber must use a topic of servicebus.json"
    elif receiver["OUTBOX_SUBSCRIPTION"] not in topics[sender["OUTBOX_TOPIC"]]:
        yield f"subscriber: {receiver['OUTBOX_SUBSCRIPTION']} is no subscription of servicebus.json"
    workers = services["worker"].get("deploy", {}).get("replicas", 1)
    lanes = int(sender.get("OUTBOX_LANES", default_of("worker", "OUTBOX_LANES")))
    receivers = int(receiver.get("OUTBOX_RECEIVERS", MAX_CONNECTIONS))
    if (connections := workers * lanes + receivers) > MAX_CONNECTIONS:
        yield f"{connections} connections to Service Bus; the emulator takes {MAX_CONNECTIONS}"


def seconds(text: str) -> float:
    """
    Return a duration of compose, like 1m30s, in seconds.
    """
    return sum(float(number) * _SECONDS[unit] for number, unit in re.findall(r"([\d.]+)(s|m|h)", text))
