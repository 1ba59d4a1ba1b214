"""
Tests that the compose file is valid, keeps to the limits of the emulators, and gives each program only settings that it reads.
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
# Limits of Microsoft's Service Bus emulator.
MAX_CONNECTIONS, MAX_DELIVERY_COUNT, MAX_MEMORY, MAX_LIFE = 10, 10, "PT5M", "PT1H"
# With fewer sessions at once than this, a consumer opens one connection for each session, and one more.
FEW_SESSIONS = 8
# The addresses of emulators and tools inside the stack. No environment variable may name another address.
SERVED = {
    *("cosmos:8081", "cosmos:8080/ready", "servicebus", "servicebus:5300/health", "telemetry:18890", "mssql"),
}
# AGREED: settings that must be the same on every platform. OWN: those of them that have another value for a
# consumer.
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


def test_docker_compose_accepts_the_compose_file():
    output("check-jsonschema", "--builtin-schema", "vendor.compose-spec", "docker-compose.yml")


def test_compose_gives_each_program_valid_settings(services: dict[str, Any]):
    """The test also checks that worker and consumer get enough time to stop."""

    def asking(program: str) -> dict[str, Any]:
        environment = {name: str(value or "") for name, value in services[program]["environment"].items()}
        stopped = services[program].get("stop_grace_period")
        minutes, seconds = re.findall(r"(?:(\d+)m)?(?:(\d+)s)?", stopped or "")[0]
        after = int(minutes or 0) * 60 + int(seconds or 0) if stopped else None
        return {"program": program, "environment": environment, "stopped_after": after}

    assert [[]] * 3 == asked([asking(program) for program in PROGRAMS])
    assert ["worker", "consumer"] == [program for program in PROGRAMS if asking(program)["stopped_after"]]


def test_compose_pins_the_version_of_each_image(services: dict[str, Any]):
    """This also checks that all ports are open to this machine only."""
    for service in services.values():
        assert re.search(r":(?!latest)[\w.-]+$", service["image"]), service["image"]
        assert {"127.0.0.1"} >= {port["host_ip"] for port in service.get("ports", [])}


@pytest.mark.parametrize("name", ["init", *PROGRAMS])
def test_our_programs_run_with_as_few_rights_as_possible(services: dict[str, Any], name: str):
    """This also checks that all programs but `init` start only after `init` has created the containers."""
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


def test_a_service_waits_until_the_services_it_needs_are_healthy(services: dict[str, Any]):
    """This also checks that each file or folder that a service mounts exists."""
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


def test_compose_settings_name_only_addresses_inside_the_stack(services: dict[str, Any]):
    for service in services.values():
        for name, value in service.get("environment", {}).items():
            assert (
                set(re.findall(r"\b(?:https?|sb)://([^\s;]+?)/?(?=[\s;]|$)", str(value or ""))) <= SERVED
            ), name
            # Without this field, the client would connect with TLS, which the emulator does not offer.
            assert "SERVICEBUS_CONNECTION_STRING" not in name or "UseDevelopmentEmulator=true;" in value
            assert not name.startswith("OTEL_") or name == "OTEL_EXPORTER_OTLP_ENDPOINT"
    # The emulator tells clients to connect to this host, so it must be the name inside the stack.
    assert "cosmos" == services["cosmos"]["environment"]["GATEWAY_PUBLIC_ENDPOINT"]
    assert "mssql" == services["servicebus"]["environment"]["SQL_SERVER"]


def test_the_topic_keeps_to_the_limits_of_microsofts_emulator(topic: dict[str, Any]):
    """This also checks that the topic detects duplicates, and that its subscriptions have sessions."""
    assert (True, MAX_MEMORY) == (
        topic["Properties"]["RequiresDuplicateDetection"],
        topic["Properties"]["DuplicateDetectionHistoryTimeWindow"],
    )
    for subscription in topic["Subscriptions"]:
        limits = subscription["Properties"]
        assert (True, MAX_LIFE) == (limits["RequiresSession"], limits["DefaultMessageTimeToLive"])
        assert limits["MaxDeliveryCount"] <= MAX_DELIVERY_COUNT


def test_programs_use_the_topic_and_containers_that_the_stack_creates(
    services: dict[str, Any], topic: dict[str, Any]
):
    environments = {name: services[name].get("environment", {}) for name in ("init", *PROGRAMS)}
    consumer, init = environments["consumer"], environments["init"]

    assert {topic["Name"]} == {environments[name]["OUTBOX_TOPIC"] for name in ("worker", "consumer")}
    # A subscription that no program reads would fill the topic.
    assert [consumer["OUTBOX_SUBSCRIPTION"]] == [one["Name"] for one in topic["Subscriptions"]]
    assert (init["CONSUMER_CONTAINER"], init["CONSUMER_PARKED_CONTAINER"]) == (
        consumer["OUTBOX_COSMOS_CONTAINER"],
        consumer["OUTBOX_PARKED_CONTAINER"],
    )


def test_programs_open_no_more_connections_than_the_emulator_accepts(services: dict[str, Any]):
    def of_each(name: str, variable: str) -> int:
        replicas = services[name].get("deploy", {}).get("replicas", 1)
        return int(replicas * int(services[name]["environment"][variable]))

    sessions = of_each("consumer", "OUTBOX_CONCURRENT_SESSIONS")

    assert sessions < FEW_SESSIONS
    assert of_each("worker", "OUTBOX_LANES") + sessions + 1 <= MAX_CONNECTIONS


def test_every_platform_uses_the_same_names_of_containers_and_topics(services: dict[str, Any]):
    """This also checks that a consumer has a subscription and containers of its own."""
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

        # All programs have the same value of a setting, except a setting in OWN: there the consumers share one value, and the
        # programs that are no consumers share another. Only consumers have a subscription.
        assert (1 if name in OWN else 0, 0 if name == "SUBSCRIPTION" else 1) == (
            len(of_consumers),
            len(of_others),
        ), (name, values)
        assert not of_consumers & of_others


def test_docker_compose_refuses_a_dependency_on_an_unknown_service(tmp_path: Path):
    (tmp_path / "docker-compose.yml").write_text("services: {a: {image: 'a:1', depends_on: [b]}}")
    with pytest.raises(ValueError, match="undefined service"):
        output("docker-compose", "config", directory=tmp_path)
