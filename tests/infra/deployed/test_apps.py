"""
Tests of the deployed Container Apps: their settings exist and are valid, their probes match the programs, and they have
time to stop.
"""

from __future__ import annotations

import re

import pytest

from tests.infra.deployed.snapshots import APPS, COSMOS, EVERY, INFRA, INSIGHTS, Resource, deployed, identity
from tools.infra_check.programs import problems

# Examples of the values that only Azure knows.
AT_RUNTIME = {
    "clientId": "00000000-0000-0000-0000-000000000000",
    "ConnectionString": "InstrumentationKey=00000000-0000-0000-0000-000000000000",
    "documentEndpoint": "https://account.documents.azure.com:443/",
}
TELEMETRY = {"APPLICATIONINSIGHTS_CONNECTION_STRING": f"[{INSIGHTS}/appi-token.ConnectionString]"}
OF_ALL = {
    **TELEMETRY,
    "OUTBOX_COSMOS_ENDPOINT": f"[{COSMOS}/cosmos-token.documentEndpoint]",
    "OUTBOX_COSMOS_DATABASE": "contacts",
    "OUTBOX_COSMOS_CONTAINER": "data",
}
OF_RECEIVERS = {
    "OUTBOX_SERVICEBUS_NAMESPACE": "sbns-token.servicebus.windows.net",
    "OUTBOX_TOPIC": "events",
}
CHOSEN = {
    "OUTBOX_DELETE_AFTER_PUBLISH": "*",
    "OUTBOX_SEND_RATE": "200",
    "OUTBOX_PRIORITY": "low",
    "OUTBOX_THROUGHPUT_BUCKET": "2",
}
# By app: its environment variables that name a resource of the deployment.
NAMED = {
    "api": OF_ALL,
    "worker": {
        **OF_ALL,
        **OF_RECEIVERS,
        "OUTBOX_LEASE_CONTAINER": "leases",
        "OUTBOX_PARKED_CONTAINER": "parked",
        **CHOSEN,
    },
    # The consumer stores its documents and its parked keys in containers of its own.
    "consumer": {
        **OF_ALL,
        **OF_RECEIVERS,
        "OUTBOX_COSMOS_CONTAINER": "directory",
        "OUTBOX_PARKED_CONTAINER": "directory-parked",
        "OUTBOX_SUBSCRIPTION": "directory",
    },
}
DOCKERFILE = (INFRA.parent / "worker/Dockerfile").read_text()


def container_of(app: Resource) -> Resource:
    (found,) = app["properties"]["template"]["containers"]
    return dict(found)


def environment_of(app: Resource) -> dict[str, str]:
    return {entry["name"]: entry["value"] for entry in container_of(app)["env"]}


@pytest.mark.parametrize("name", EVERY)
def test_each_program_accepts_its_environment_and_grace_period(name: str):
    for program, app in deployed(name).apps().items():
        given = {
            key: AT_RUNTIME.get(value.rpartition(".")[2].rstrip("]"), value)
            for key, value in environment_of(app).items()
        }
        seconds = app["properties"]["template"]["terminationGracePeriodSeconds"]

        assert [] == problems(program, given, None if program == "api" else seconds)


@pytest.mark.parametrize("program", NAMED)
def test_each_variable_names_a_resource_that_the_deployment_creates(program: str):
    given = environment_of(deployed("operated").apps()[program])

    assert NAMED[program] == {name: given.get(name) for name in NAMED[program]}
    assert set() == CHOSEN.keys() & environment_of(deployed("defaults").apps()[program]).keys()


def test_on_a_cluster_only_the_api_is_a_container_app():
    """
    The template must not ask for the image of an app that does not exist. The snapshots do not show such a request, so
    the test also reads `main.bicep`.
    """
    asked = re.findall(r"^    exists: (.+)$", (INFRA / "main.bicep").read_text(), re.MULTILINE)
    assert ["apiExists", "workerExists && onContainerApps", "consumerExists && onContainerApps"] == asked
    assert ({"api"}, NAMED.keys()) == (
        deployed("aks").apps().keys(),
        deployed("operated").apps().keys(),
    )


@pytest.mark.parametrize("program", NAMED)
def test_the_probes_of_an_app_use_path_and_port_of_its_image_s_health_check(program: str):
    stage = DOCKERFILE.partition(f"\nFROM runtime AS {program}\n")[2].partition("\nFROM ")[0]
    port, path = re.findall(r"http://127\.0\.0\.1:(\d+)(/\w+)", stage)[0]
    app = deployed("operated").apps()[program]
    asked = r"'type', '(\w+)', 'httpGet', createObject\('path', '([^']+)', 'port', (\d+)\)"
    ready = set() if program == "api" else {("Readiness", "/readyz", port)}

    assert {("Startup", path, port), ("Liveness", path, port)} | ready == set(
        re.findall(asked, container_of(app)["probes"])
    )
    if program == "api":
        assert app["properties"]["configuration"]["ingress"]["targetPort"].endswith(f", {port}, 80)]")


def test_a_deployment_does_not_change_the_image_of_an_app():
    apps = deployed("operated").apps()

    assert {name: f"[{APPS}/{app['name']}.template.containers[0].image]" for name, app in apps.items()} == {
        name: container_of(app)["image"] for name, app in apps.items()
    }
    assert {"mcr.microsoft.com/azuredocs/containerapps-helloworld:latest"} == {
        container_of(app)["image"] for app in deployed("defaults").apps().values()
    }


def test_each_app_scales_with_its_load_from_two_replicas():
    """Each app has two replicas at least. The deployer sets the maximum."""
    scales = {
        name: app["properties"]["template"]["scale"] for name, app in deployed("operated").apps().items()
    }
    cpu = {"type": "cpu", "metadata": {"type": "Utilization", "value": "70"}}
    messages = {
        "type": "azure-servicebus",
        "identity": identity("consumer"),
        "metadata": {
            "namespace": "sbns-token",
            "topicName": "events",
            "subscriptionName": "directory",
            "messageCount": "100",
        },
    }

    assert {"minReplicas": 2, "maxReplicas": 5, "rules": [{"name": "cpu", "custom": cpu}]} == scales["worker"]
    assert {
        "minReplicas": 2,
        "maxReplicas": 4,
        "rules": [{"name": "messages", "custom": messages}],
    } == scales["consumer"]
    assert 2 == scales["api"]["minReplicas"]
    for file in ("main.bicep", "modules/worker.bicep", "modules/consumer.bicep"):
        least = re.findall(r"@minValue\((\d)\)\nparam \w*[mM]axReplicas", (INFRA / file).read_text())
        assert {"2"} == set(least), file


def test_an_app_with_a_placeholder_image_has_port_80_and_no_probes():
    apps = deployed("defaults").apps()

    assert [[]] * 3 == [container_of(app)["probes"] for app in apps.values()]
    assert 80 == apps["api"]["properties"]["configuration"]["ingress"]["targetPort"]
