"""
The compose file is valid, keeps to the emulators' limits, and gives each program what it reads and no more.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tools.infra_check.programs import asked
from tools.infra_check.running import INFRA, output
from tools.infra_check.tests.test_manifests import of

pytestmark = pytest.mark.looptime(False)

PROGRAMS = ("api", "worker", "consumer")
# Limits of the Service Bus emulator.
MAX_CONNECTIONS, MAX_DELIVERY_COUNT, MAX_MEMORY, MAX_LIFE = 10, 10, "PT5M", "PT1H"
# So few sessions of a consumer hold one connection each, and one is opened ahead.
FEW_SESSIONS = 8
# What the emulators and tools serve, by name and port inside the stack; nothing else is to be named anywhere.
SERVED = {
    *("cosmos:8081", "cosmos:8080/ready", "servicebus", "servicebus:5300/health", "telemetry:18890", "mssql"),
}
# What all must agree on wherever they run; a consumer has two of them of its own, and no other program its subscription.
AGREED = ("COSMOS_DATABASE", "COSMOS_CONTAINER", "LEASE_CONTAINER", "PARKED_CONTAINER", "TOPIC", "PROCESSOR_NAME", "SUBSCRIPTION")  # fmt: skip
OWN = ("COSMOS_CONTAINER", "PARKED_CONTAINER", "SUBSCRIPTION")


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    resolved = output("docker-compose", "--profile", "*", "config", "--format", "json")
    found: dict[str, Any] = json.loads(resolved)["services"]
    return found


@pytest.fixture(scope="module")
def topic() -> dict[str, Any]:
    (namespace,) = json.loads((INFRA / "compose/servicebus.json").read_text())["UserConfig"]["Namespaces"]
    assert "sbemulatorns" == namespace["Name"], "the emulator knows no other"
    (found,) = namespace["Topics"]
    return dict(found)


def test_compose_takes_the_file():
    output("check-jsonschema", "--builtin-schema", "vendor.compose-spec", "docker-compose.yml")


def test_a_program_takes_its_environment_and_has_the_time_to_stop(services: dict[str, Any]):
    def asking(program: str) -> dict[str, Any]:
        environment = {name: str(value or "") for name, value in services[program]["environment"].items()}
        stopped = services[program].get("stop_grace_period")
        minutes, seconds = re.findall(r"(?:(\d+)m)?(?:(\d+)s)?", stopped or "")[0]
        after = int(minutes or 0) * 60 + int(seconds or 0) if stopped else None
        return {"program": program, "environment": environment, "stopped_after": after}

    assert [[]] * 3 == asked([asking(program) for program in PROGRAMS])
    assert ["worker", "consumer"] == [program for program in PROGRAMS if asking(program)["stopped_after"]]


def test_an_image_is_pinned_and_a_port_is_open_to_this_machine_alone(services: dict[str, Any]):
    for service in services.values():
        assert re.search(r":(?!latest)[\w.-]+$", service["image"]), service["image"]
        assert {"127.0.0.1"} >= {port["host_ip"] for port in service.get("ports", [])}


@pytest.mark.parametrize("name", ["init", *PROGRAMS])
def test_a_program_of_ours_is_locked_down_and_starts_once_its_containers_exist(
    services: dict[str, Any], name: str
):
    service = services[name]

    assert (True, ["ALL"], ["no-new-privileges:true"]) == (
        service["read_only"],
        service["cap_drop"],
        service["security_opt"],
    )
    if name != "init":
        assert {"init": "service_completed_successfully"} == {
            needed: condition["condition"] for needed, condition in service["depends_on"].items()
        }


def test_what_has_a_health_check_is_waited_for_and_what_is_mounted_exists(services: dict[str, Any]):
    for service in services.values():
        for needed, condition in service.get("depends_on", {}).items():
            check = services[needed].get("healthcheck", {"disable": True})
            assert check.get("disable") or condition["condition"] != "service_started", needed
        for volume in service.get("volumes", []):
            assert volume["type"] != "bind" or Path(volume["source"]).exists(), volume["source"]
    assert (
        "http://cosmos:8080/ready http://servicebus:5300/health"
        == services["init"]["environment"]["WAIT_FOR"]
    )


def test_a_program_is_told_to_call_what_the_stack_serves(services: dict[str, Any]):
    for service in services.values():
        for name, value in service.get("environment", {}).items():
            assert (
                set(re.findall(r"\b(?:https?|sb)://([^\s;]+?)/?(?=[\s;]|$)", str(value or ""))) <= SERVED
            ), name
            # The client asks for TLS otherwise.
            assert "SERVICEBUS_CONNECTION_STRING" not in name or "UseDevelopmentEmulator=true;" in value
            assert not name.startswith("OTEL_") or name == "OTEL_EXPORTER_OTLP_ENDPOINT"
    # The account names it to every client as the place to go on at.
    assert "cosmos" == services["cosmos"]["environment"]["GATEWAY_PUBLIC_ENDPOINT"]
    assert "mssql" == services["servicebus"]["environment"]["SQL_SERVER"]


def test_the_topic_drops_repeats_and_keeps_sessions_within_what_the_emulator_takes(topic: dict[str, Any]):
    assert (True, MAX_MEMORY) == (
        topic["Properties"]["RequiresDuplicateDetection"],
        topic["Properties"]["DuplicateDetectionHistoryTimeWindow"],
    )
    for subscription in topic["Subscriptions"]:
        limits = subscription["Properties"]
        assert (True, MAX_LIFE) == (limits["RequiresSession"], limits["DefaultMessageTimeToLive"])
        assert limits["MaxDeliveryCount"] <= MAX_DELIVERY_COUNT


def test_topic_subscriptions_and_containers_are_those_that_the_stack_makes(
    services: dict[str, Any], topic: dict[str, Any]
):
    environments = {name: services[name].get("environment", {}) for name in ("init", *PROGRAMS)}
    consumer, init = environments["consumer"], environments["init"]

    assert {topic["Name"]} == {environments[name]["OUTBOX_TOPIC"] for name in ("worker", "consumer")}
    # One without a reader would fill the topic.
    assert [consumer["OUTBOX_SUBSCRIPTION"]] == [one["Name"] for one in topic["Subscriptions"]]
    assert (init["CONSUMER_CONTAINER"], init["CONSUMER_PARKED_CONTAINER"]) == (
        consumer["OUTBOX_COSMOS_CONTAINER"],
        consumer["OUTBOX_PARKED_CONTAINER"],
    )


def test_the_emulator_is_asked_for_no_more_connections_than_it_takes(services: dict[str, Any]):
    def of_each(name: str, variable: str) -> int:
        replicas = services[name].get("deploy", {}).get("replicas", 1)
        return int(replicas * int(services[name]["environment"][variable]))

    sessions = of_each("consumer", "OUTBOX_CONCURRENT_SESSIONS")

    assert sessions < FEW_SESSIONS
    assert of_each("worker", "OUTBOX_LANES") + sessions + 1 <= MAX_CONNECTIONS


def test_names_are_the_same_on_every_platform_and_a_consumers_are_its_own(services: dict[str, Any]):
    snapshot = json.loads((INFRA / "snapshots/defaults.json").read_text())
    apps = {
        one["tags"]["azd-service-name"]: {
            variable["name"]: variable["value"]
            for variable in one["properties"]["template"]["containers"][0]["env"]
        }
        for one in snapshot["predictedResources"]
        if one["type"] == "Microsoft.App/containerApps"
    }
    told = [(program, apps[program]) for program in apps]
    told += [(program, of("ConfigMap", program)["data"]) for program in ("worker", "consumer")]
    told += [(program, services[program]["environment"]) for program in PROGRAMS]
    defaults = dict(zip(PROGRAMS, asked([{"program": program} for program in PROGRAMS]), strict=True))
    for name in AGREED:
        variable = f"OUTBOX_{name}"
        values = [
            (
                program == "consumer" and name in OWN,
                environment.get(variable, defaults[program].get(variable)),
            )
            for program, environment in told
        ]
        of_consumers, of_others = (
            {value for own, value in values if own is whose and value} for whose in (True, False)
        )

        # The others have no subscription.
        assert (1 if name in OWN else 0, 0 if name == "SUBSCRIPTION" else 1) == (
            len(of_consumers),
            len(of_others),
        ), (name, values)
        assert not of_consumers & of_others


def test_compose_refuses_what_waits_for_what_does_not_exist(tmp_path: Path):
    (tmp_path / "docker-compose.yml").write_text("services: {a: {image: 'a:1', depends_on: [b]}}")
    with pytest.raises(ValueError, match="undefined service"):
        output("docker-compose", "config", directory=tmp_path)
