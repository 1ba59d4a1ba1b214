"""
The offline checks of infra/ find what is planted, and nothing in the files as they are; `make check-infra` runs this.
"""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tools.infra_check import (
    azd,
    bicep,
    compose,
    dashboards,
    dockerfile,
    environments,
    manifests,
    queries,
    recipes,
    schema,
    tools,
)
from tools.infra_check.__main__ import reported
from tools.infra_check.tests.planting import as_they_are, planted, swapped
from tools.infra_check.variables import default_of, required_by, variables_of

pytestmark = pytest.mark.looptime(False)

ROOT = Path(__file__).parents[3]
INFRA = ROOT / "infra"


def test_the_templates_as_they_are_have_no_error():
    assert [] == schema.problems(as_they_are(), INFRA / "main.parameters.json")


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("cosmos.bicep", "defaultTtl: -1", "defaultTTL: -1", "defaultTTL: no such property"),
        ("cosmos.bicep", "kind: 'Hash'", "kind: 'Hashed'", "'Hashed' is not one of"),
        ("cosmos.bicep", "disableLocalAuth: true", "disableLocalAuth: 'true'", "expected true or false"),
        ("cosmos.bicep", "version: 2", "version: '2'", "expected a number"),
        ("cosmos.bicep", "name: 'EnableServerless'", "named: 'x'", "capabilities[].named: no such property"),
        ("cosmos.bicep", "tier: 'Continuous7Days'", "tiers: 'x'", "tiers: no such property"),
        ("cosmos.bicep", "@2024-11-15' = {", "@latest' = {", "'latest' is no API version"),
        ("cosmos.bicep", "databaseAccounts@2024-11-15' = {", "databaseAccounts@2031-01-01' = {", "is no API version known here"),
        ("servicebus.bicep", "minimumTlsVersion: '1.2'", "minimumTlsVersion: '1.9'", "'1.9' is not one of"),
        ("servicebus.bicep", "name: sku\n", "nam: sku\n", "sku.nam: no such property"),
        ("servicebus.bicep", "parent: namespace", "parent: namespaces", "'namespaces' is not declared"),
        ("servicebus.bicep", "    requiresSession: true", "    messageCount: 3", "messageCount: is read-only"),
        ("worker.bicep", "periodSeconds: 2", "period: 2", "period: no such"),
        ("worker.bicep", "type: 'Startup'", "type: 'Start'", "'Start' is not one of"),
        ("worker.bicep", "maxReplicas: maxReplicas", "maxReplicas: 'many'", "expected a number"),
        ("alerts.bicep", "timeAggregation: 'Count'", "aggregation: 'Count'", "aggregation: no such property"),
        ("alerts.bicep", "    windowSize: 'PT15M'\n", "", "properties.windowSize: is required"),
        ("alerts.bicep", "queries/lease-halted.kql", "queries/gone.kql", "does not exist"),
        ("monitoring.bicep", "  kind: 'web'\n", "", ".kind: is required"),
        ("network.bicep", "direction: 'Inbound'", "direction: 'In'", "'In' is not one of"),
        ("private-endpoint.bicep", "groupIds: [\n            groupId\n          ]", "groupIds: 'Sql'", "expected a list"),
        ("identities.bicep", "    subject: 'system", "    subjects: 'system", "subjects"),
        ("environment.bicep", "destination: 'azure-monitor'", "target: 'x'", "target: no such property"),
        ("registry.bicep", "    name: 'Standard'", "    name: 'Gold'", "'Gold' is not one of"),
        ("main.bicep", "    zoneRedundant: zoneRedundant\n    replica", "    zoneRedundant: databaseName\n    replica", "isZoneRedundant: expected true or"),
        ("main.bicep", "capacityMode string = 'serverless'", "capacityMode string = 'free'", "'free' is not one of"),
        ("main.bicep", "    capacityMode: capacityMode\n", "", "needs parameter 'capacityMode'"),
        ("main.bicep", "    topicName: topicName\n", "    topic: topicName\n", "has no parameter 'topic'"),
        ("main.bicep", "cosmos.outputs.endpoint", "cosmos.outputs.url", "has no output 'url'"),
        ("main.bicep", "modules/worker.bicep", "modules/workers.bicep", "does not exist"),
        ("main.bicep", "param apiExternal bool = false", "param apiExternal bool = = false", "syntax error"),
        ("main.bicep", "alertEmail string", "alertMail string", "'alertEmail' is not declared"),
    ],
)  # fmt: skip
def test_a_planted_error_is_found(file: str, old: str, new: str, said: str):
    found = schema.problems(planted(file, old, new), INFRA / "main.parameters.json")
    assert any(said in problem for problem in found), found


def test_a_parameter_file_with_an_unknown_or_without_a_required_parameter_is_found(tmp_path: Path):
    file = tmp_path / "main.parameters.json"
    file.write_text(json.dumps({"parameters": {"location": {"value": "x"}, "colour": {"value": "red"}}}))
    found = schema.problems(bicep.read_templates(INFRA), file)
    assert 2 == len(found)
    assert "no parameter 'colour'" in found[0]
    assert "'environmentName' is required" in found[1]


def _resolved() -> tuple[dict[str, Any], dict[str, Any]]:
    return compose.resolve(ROOT)["services"], json.loads((INFRA / "compose/servicebus.json").read_text())


def test_the_compose_file_as_it_is_has_no_problem():
    assert [] == compose.problems(ROOT)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("services", "worker", "environment", "OUTBOX_LANES"), "4", "13 connections"),
        (("services", "consumer", "environment", "OUTBOX_CONCURRENT_SESSIONS"), "32", "262 connections"),
        (("services", "consumer", "environment", "OUTBOX_SUBSCRIPTION"), "some", "consumer: some is no subscription"),
        (("services", "consumer", "environment", "OUTBOX_COSMOS_CONTAINER"), "data", "init: makes directory by CONSUMER_CONTAINER; the consumer's OUTBOX_COSMOS_CONTAINER is data"),
        (("services", "consumer", "environment", "OUTBOX_LEASE_CONTAINER"), "leases", "OUTBOX_LEASE_CONTAINER is no setting of the consumer"),
        (("services", "consumer", "environment"), {"OUTBOX_TOPIC": "events"}, "consumer: without OUTBOX_SUBSCRIPTION"),
        (("services", "consumer", "stop_grace_period"), "10s", "consumer: is killed"),
        (("services", "consumer", "read_only"), False, "read-only"),
        (("services", "worker", "environment", "OUTBOX_LANE"), "4", "OUTBOX_LANE is no setting"),
        (("services", "worker", "environment", "OUTBOX_TOPIC"), "others", "must use a topic"),
        (("services", "worker", "environment"), {"OUTBOX_TOPIC": "events"}, "one bad event halts"),
        (("services", "worker", "stop_grace_period"), "10s", "is killed"),
        (("services", "worker", "stop_grace_period"), "10m", "may hang for 600 seconds"),
        (("services", "worker", "environment", "OUTBOX_SERVICEBUS_CONNECTION_STRING"), "Endpoint=sb://localhost;UseDevelopmentEmulator=true;", "names localhost"),
        (("services", "worker", "environment", "OUTBOX_SERVICEBUS_CONNECTION_STRING"), "Endpoint=sb://servicebus;", "asks for TLS"),
        (("services", "worker", "environment", "OTEL_EXPORTER_OTLP_ENDPONT"), "", "no setting of OpenTelemetry"),
        (("services", "init", "environment", "WAIT_FOR"), "http://cosmos:8081/ready http://servicebus:5300/health", "init: waits for"),
        (("services", "cosmos", "environment", "GATEWAY_PUBLIC_ENDPOINT"), "localhost", "GATEWAY_PUBLIC_ENDPOINT is localhost"),
        (("services", "servicebus", "environment", "SQL_SERVER"), "sql", "SQL_SERVER is sql"),
        (("services", "servicebus", "depends_on", "mssql", "condition"), "service_started", "before mssql is healthy"),
        (("services", "servicebus", "volumes", 0, "source"), "/nowhere/config.json", "config.json, which does not exist"),
        (("services", "worker", "read_only"), False, "read-only"),
        (("services", "worker", "depends_on", "init", "condition"), "service_started", "before its containers"),
        (("services", "api", "security_opt"), [], "may gain privileges"),
        (("services", "api", "ports", 0, "host_ip"), "0.0.0.0", "open to the network"),  # noqa: S104 # the planted error
        (("services", "mssql", "image"), "mcr.microsoft.com/mssql/server:latest", "not pinned"),
        (("services", "subscriber", "environment", "OUTBOX_SUBSCRIPTION"), "some", "is no subscription"),
        (("bus", "UserConfig", "Namespaces", 0, "Name"), "mine", "knows one namespace"),
        (("bus", "UserConfig", "Namespaces", 0, "Topics", 0, "Properties", "DuplicateDetectionHistoryTimeWindow"), "P1D", "five minutes"),
        (("bus", "UserConfig", "Namespaces", 0, "Topics", 0, "Properties", "RequiresDuplicateDetection"), False, "does not drop"),
        (("bus", "UserConfig", "Namespaces", 0, "Topics", 0, "Subscriptions", 0, "Properties", "RequiresSession"), False, "order of sessions"),
        (("bus", "UserConfig", "Namespaces", 0, "Topics", 0, "Subscriptions", 0, "Properties", "MaxDeliveryCount"), 20, "MaxDeliveryCount"),
        (("bus", "UserConfig", "Namespaces", 0, "Topics", 0, "Subscriptions", 0, "Properties", "DefaultMessageTimeToLive"), "P14D", "one hour"),
    ],
)  # fmt: skip
def test_a_planted_mistake_in_the_compose_stack_is_found(path: tuple[Any, ...], value: object, said: str):
    services, bus = _resolved()
    model = copy.deepcopy({"services": services, "bus": bus})
    here: Any = model
    for key in path[:-1]:
        here = here[key]
    here[path[-1]] = value
    found = compose.judge(model["services"], model["bus"])
    assert any(said in problem for problem in found), found


def test_compose_refuses_a_file_that_waits_for_what_does_not_exist(tmp_path: Path):
    (tmp_path / "docker-compose.yml").write_text("services: {a: {image: 'a:1', depends_on: [b]}}")
    assert any("undefined service" in problem for problem in compose.problems(tmp_path))
    (tmp_path / "docker-compose.yml").write_text("services: {a: {image: 'a:1', depend_on: []}}")
    assert any("depend_on" in problem for problem in compose.problems(tmp_path))


def test_the_manifests_as_they_are_have_no_problem(tmp_path: Path):
    assert [] == manifests.problems(manifests.render(INFRA / "kubernetes"), tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("terminationGracePeriodSeconds: 60", "terminationGracePeriod: 60", "terminationGracePeriod"),
        ("terminationGracePeriodSeconds: 60", "terminationGracePeriodSeconds: 30", "is killed"),
        ("maxReplicaCount: 8", "maxReplicas: 8", "ScaledObject.spec.maxReplicas: KEDA knows no such"),
        ("minReplicaCount: 2", "minReplicaCount: 0", "fewer than two"),
        ("terminationGracePeriodSeconds: 60", "terminationGracePeriodSeconds: 600", "may hang for 600 seconds"),
        ("changeFeedLagThreshold:", "changefeedLagThreshold:", "changefeedLagThreshold is no key of the scaler"),
        ("  scaleTargetRef:\n    name: outbox-worker", "  scaleTargetRef:\n    name: worker", "scaleTargetRef is worker"),
        ("authenticationRef:\n      name: outbox-worker", "authenticationRef:\n      name: outbox", "authenticationRef is outbox"),
        ("serviceAccountName: outbox-worker", "serviceAccountName: default", "serviceAccountName is default"),
        ("      - configMapRef:\n            name: outbox", "      - configMapRef:\n            name: other", "envFrom is other"),
        ("fieldPath: metadata.name", "fieldPath: metadata.namespace", "take each other's leases"),
        ("maxUnavailable: 1\n  selector", "maxUnavailable: 0\n  selector", "lets no pod go"),
        ("namespace: outbox\nspec:\n  podIdentity", "namespace: other\nspec:\n  podIdentity", "are in the namespaces"),
        ('OUTBOX_GRACE_SECONDS: "40"', "OUTBOX_GRACE_SECONDS: forty", "seconds: no number"),
        ("type: azure-cosmosdb", "type: cpu", "must scale by the change feed's lag"),
        ("path: /readyz", "path: /livez", "readinessProbe must ask /readyz"),
        ("path: /livez\n            port: health\n          periodSeconds: 2", "path: /livez\n            port: 8081\n          periodSeconds: 2", "startupProbe must ask /livez at the port health"),
        ("containerPort: 8080", "containerPort: 8081", "the worker listens on 8080"),
        ('prometheus.io/port: "8080"', 'prometheus.io/port: "80"', "send Prometheus elsewhere"),
        ("port: 5671", "port: 5672", "from Service Bus, port 5671"),
        ("    ports:\n    - port: 8080", "    ports:\n    - port: 9090", "everybody from the metrics"),
        ("      podSelector:\n        matchLabels:\n          rsName: ama-metrics\n", "", "every pod reads the status of the worker"),
        ("    - namespaceSelector:\n        matchLabels:\n          kubernetes.io/metadata.name: monitoring\n      podSelector", "    - podSelector", "every pod reads the status of the consumer"),
        ("metricType: AverageValue", "metricType: Value", "metricType is Value"),
        ("maxActiveLeasesPerReplica", "maxLeasesPerReplica", "maxActiveLeasesPerReplica is not given"),
        ("APPLICATIONINSIGHTS_CONNECTION_STRING:", "AZURE_CLIENT_ID:", "no alert hears of the worker"),
        ("OUTBOX_TOPIC:", "OUTBOX_TOPICS:", "OUTBOX_TOPICS is no setting"),
        ("  OUTBOX_PARKED_CONTAINER: parked\n", "", "one bad event halts"),
        ('azure.workload.identity/use: "true"', 'azure.workload.identity/use: "false"', "no pod gets an identity"),
        ("unhealthyPodEvictionPolicy: AlwaysAllow", "unhealthyPodEvictionPolicy: IfHealthyBudget", "keeps an unready pod"),
        ("maxUnavailable: 1", "maxUnavailable: [1]", "poddisruptionbudget"),
        ("processorName: outbox", "processorName: replaced", "left to replace"),
        ("subscriptionName: directory", "subscriptionName: replaced", "left to replace"),
        ("type: azure-servicebus", "type: cpu", "must scale by the messages of its subscription"),
        ("messageCount:", "messagesCount:", "messagesCount is no key of the scaler"),
        ("  OUTBOX_SUBSCRIPTION: directory\n", "", "consumer: Deployment: without OUTBOX_SUBSCRIPTION"),
        ("OUTBOX_SUBSCRIPTION: directory", "OUTBOX_SUBSCRIPTION: directory\n  OUTBOX_LANES: '8'", "OUTBOX_LANES is no setting of the consumer"),
        ("  scaleTargetRef:\n    name: outbox-consumer", "  scaleTargetRef:\n    name: outbox-worker", "consumer: ScaledObject.scaleTargetRef is outbox-worker"),
        ("serviceAccountName: outbox-consumer", "serviceAccountName: outbox-worker", "consumer: Deployment.serviceAccountName is outbox-worker"),
        ("OUTBOX_TOPIC: events", "OUTBOX_SERVICEBUS_CONNECTION_STRING: x\n  OUTBOX_TOPIC: events", "not with a connection string"),
    ],
)  # fmt: skip
def test_a_planted_mistake_in_a_manifest_is_found(tmp_path: Path, old: str, new: str, said: str):
    rendered = manifests.render(INFRA / "kubernetes")
    found = manifests.problems(swapped(rendered, old, new), tmp_path)
    assert any(said in problem for problem in found), found


def test_a_selector_that_meets_no_pod_is_found():
    documents = list(yaml.safe_load_all(manifests.render(INFRA / "kubernetes")))
    for budget in documents:
        if budget["kind"] == "PodDisruptionBudget":
            budget["spec"]["selector"]["matchLabels"] = {"app.kubernetes.io/name": "other"}
    missed = "PodDisruptionBudget: selects no pod of the Deployment"
    assert [f"{program}: {missed}" for program in manifests.PROGRAMS] == manifests.judge(documents)


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("kustomization.yaml", "data.WORKER_CLIENT_ID", "data.KEDA_CLIENT_ID", "the worker's identity is KEDA_CLIENT_ID"),
        ("kustomization.yaml", "data.CONSUMER_CLIENT_ID", "data.WORKER_CLIENT_ID", "the consumer's identity is WORKER_CLIENT_ID"),
        ("kustomization.yaml", "name: outbox-consumer, fieldPath: data.OUTBOX_SUBSCRIPTION", "name: outbox-consumer, fieldPath: data.OUTBOX_TOPIC", "subscriptionName of the consumer's scaler is OUTBOX_TOPIC"),
        ("kustomization.yaml", "data.KEDA_CLIENT_ID", "data.WORKER_CLIENT_ID", "KEDA's identity is WORKER_CLIENT_ID"),
        ("kustomization.yaml", "data.OUTBOX_LEASE_CONTAINER", "data.OUTBOX_COSMOS_CONTAINER", "leaseContainerId of the worker's scaler"),
        ("kustomization.yaml", "metadata.processorName", "metadata.databaseId", "processorName of the worker's scaler is replaced"),
    ],
)  # fmt: skip
def test_a_setting_that_goes_astray_is_found(tmp_path: Path, file: str, old: str, new: str, said: str):
    copied = shutil.copytree(INFRA / "kubernetes", tmp_path / "kubernetes")
    text = (copied / file).read_text()
    (copied / file).write_text(swapped(text, old, new, 1))
    found = list(manifests.wiring(manifests.read(manifests.marked(copied))))
    assert any(said in problem for problem in found), found


def test_every_setting_of_the_manifests_arrives():
    assert [] == list(manifests.wiring(manifests.read(manifests.marked(INFRA / "kubernetes"))))


def _environments() -> dict[environments.Place, dict[str, str]]:
    found = {
        **environments.of_apps(as_they_are()),
        **environments.of_pods(manifests.read(manifests.render(INFRA / "kubernetes"))),
        **environments.of_compose(compose.resolve(ROOT)["services"]),
    }
    return {place: dict(environment) for place, environment in found.items()}


def test_each_program_takes_the_environment_it_is_given_and_names_every_mistake_in_it():
    given = _environments()
    assert [] == list(environments.problems(given))
    given["Container Apps", "worker"]["OUTBOX_GRACE_SECONDS"] = "forty"
    given["Container Apps", "worker"]["OUTBOX_PROCESSOR_NAME"] = ""
    given["Container Apps", "api"]["OUTBOX_COSMOS_ENDPOINT"] = "account"
    given["Kubernetes", "worker"]["OUTBOX_SERVICEBUS_NAMESPACE"] = "https://namespace"
    given["Kubernetes", "worker"]["OUTBOX_LANES"] = "nonsense"
    given["Kubernetes", "worker"]["OUTBOX_TOPIC"] = "event"
    given["Container Apps", "consumer"]["OUTBOX_CONCURRENT_SESSIONS"] = "none"
    given["Kubernetes", "consumer"]["OUTBOX_SUBSCRIPTION"] = "director"
    given["compose", "consumer"]["OUTBOX_PARKED_CONTAINER"] = "parked"
    given["compose", "worker"]["OUTBOX_LANES"] = "two"
    given["compose", "subscriber"]["OUTBOX_RECEIVERS"] = "0"
    found = "\n".join(environments.problems(given))
    for said in (
        "Container Apps: the worker refuses OUTBOX_GRACE_SECONDS:",
        "Container Apps: OUTBOX_PROCESSOR_NAME of the worker is empty",
        "Container Apps: the api refuses OUTBOX_COSMOS_ENDPOINT:",
        "Kubernetes: the worker refuses OUTBOX_SERVICEBUS_NAMESPACE: must be a host",
        "Kubernetes: the worker refuses OUTBOX_LANES:",
        "OUTBOX_TOPIC is not the same everywhere",
        "Container Apps: the consumer refuses OUTBOX_CONCURRENT_SESSIONS:",
        "OUTBOX_SUBSCRIPTION is not the same everywhere",
        "OUTBOX_PARKED_CONTAINER of the consumer is another program's",
        "compose: the worker refuses OUTBOX_LANES:",
        "compose: the subscriber refuses",
    ):
        assert said in found


DOCKERFILE = (INFRA / "docker/Dockerfile").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("ENV OUTBOX_HEALTH_PORT=0.0.0.0:8080\n", "", "worker listens on its loopback"),
        ('"0.0.0.0", "--port", "8000"', '"127.0.0.1", "--port", "8000"', "api listens on its loopback"),
        (
            "127.0.0.1:8080/livez",
            "127.0.0.1:8000/livez",
            "worker listens on 8080, exposes 8080 and is asked at 8000",
        ),
        ("EXPOSE 8000", "EXPOSE 80", "api listens on 8000, exposes 80"),
        ("8000/healthz", "8000/health", "api serves no /health"),
        ("COPY worker /app/worker", "COPY worker /app/wrkr", "starts worker, which is not copied"),
        ("COPY examples /app/examples", "COPY example /app/examples", "copies example, which does not exist"),
        ("USER 10001:10001\nEXPOSE", "EXPOSE", "api runs as root"),
        ("directory:consumer", "directory", "consumer starts cosmos_outbox, which is not copied"),
        ("examples.contacts.directory:", "mine.directory:", "consumer starts mine, which is not copied"),
    ],
)
def test_an_image_that_cannot_be_started_or_probed_is_found(old: str, new: str, said: str):
    assert [] == list(dockerfile.problems(DOCKERFILE))
    found = list(dockerfile.problems(swapped(DOCKERFILE, old, new)))
    assert any(said in problem for problem in found), found


def test_azd_finds_what_its_project_names():
    assert [] == azd.problems(as_they_are())


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("infra", "module"), "mian", "provisions infra/mian.bicep"),
        (("services", "worker", "docker", "target"), "api", "worker is built from the stage api"),
        (
            ("services", "worker", "docker", "buildArgs"),
            ["SERVICE=api"],
            "worker is built from the stage api",
        ),
        (("services", "worker", "docker", "buildArgs"), [], "worker is built from the stage None"),
        (("services", "worker", "docker", "buildArgs"), ["SERVICE=worker"], "worker is built on None"),
        (("hooks",), {}, "on posix nothing is provisioned again"),
        (
            ("hooks", "postdeploy", "windows", "run"),
            "azd provision",
            "on windows nothing is provisioned again",
        ),
        (("services", "worker", "docker", "path"), "docker/Dockerfile", "which does not exist"),
        (("services", "worker", "docker", "context"), "infra", "is not built at the top"),
        (("services", "worker", "host"), "appservice", "is no container app"),
        (("services", "subscriber"), {"project": "."}, "the apps are tagged"),
    ],
)
def test_a_planted_mistake_in_azds_project_is_found(path: tuple[str, ...], value: object, said: str):
    project = yaml.safe_load((ROOT / "azure.yaml").read_text(encoding="utf-8"))
    here = project
    for key in path[:-1]:
        here = here[key]
    here[path[-1]] = value
    found = list(azd.judge(project, as_they_are(), DOCKERFILE))
    assert any(said in problem for problem in found), found


def test_an_image_that_the_last_stage_does_not_choose_is_found():
    project = yaml.safe_load((ROOT / "azure.yaml").read_text(encoding="utf-8"))
    found = list(azd.judge(project, as_they_are(), swapped(DOCKERFILE, "\nFROM ${SERVICE}\n", "\n")))
    assert 3 == sum("is built from the last stage" in problem for problem in found), found
    told = planted("main.bicep", "output PLACEHOLDER_LEFT", "output PLACEHOLDERS")
    assert any("tells no PLACEHOLDER_LEFT" in problem for problem in azd.judge(project, told, DOCKERFILE))


@pytest.mark.parametrize(("told", "provisions"), [("true", 1), ("false", 0), ("", 1)])
def test_a_deployment_provisions_again_while_a_placeholder_was_left(
    tmp_path: Path, told: str, provisions: int
):
    hook = yaml.safe_load((ROOT / "azure.yaml").read_text(encoding="utf-8"))["hooks"]["postdeploy"]["posix"]
    (tmp_path / "azd").write_text('#!/bin/sh\necho "$@" >> calls\n')
    (tmp_path / "azd").chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "PLACEHOLDER_LEFT": told}
    command = [hook["shell"], "-ec", hook["run"]]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True)  # noqa: S603 # the hook itself
    calls = tmp_path / "calls"
    assert ["provision --no-state --no-prompt"] * provisions == (
        calls.read_text().splitlines() if calls.exists() else []
    )


def test_an_app_or_a_parameter_that_azd_would_mistake_for_another_is_found():
    project = yaml.safe_load((ROOT / "azure.yaml").read_text(encoding="utf-8"))
    templates = planted("worker.bicep", "'azd-service-name': 'worker'", "'azd-service-name': 'wroker'")
    assert any("wroker" in problem for problem in azd.judge(project, templates, DOCKERFILE))
    given = {"workerExists": {"value": "${SERVICE_API_RESOURCE_EXISTS=false}"}}
    assert ["main.parameters.json: workerExists is filled with SERVICE_API_RESOURCE_EXISTS"] == list(
        azd.misfilled(given)
    )


def test_a_parameter_that_azd_gives_another_default_is_found():
    given = {"dataMaxThroughput": {"value": "${COSMOS_DATA_MAX_THROUGHPUT=1000}"}}
    assert ["main.parameters.json: dataMaxThroughput is 1000 with azd and 5000 without"] == list(
        azd.defaulted(given, as_they_are()[0])
    )


def test_what_a_check_cannot_go_on_from_is_a_finding_and_not_the_end(capsys: pytest.CaptureFixture[str]):
    assert 1 == reported(lambda: iter([str(1 // 0)]))
    assert "cannot be checked any further: ZeroDivisionError" in capsys.readouterr().out


PAGE = (ROOT / "docs/how-to/deploy.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("triggerType: Manual", "triggerType: ByHand", "the job: Microsoft.App/jobs.properties.configuration.triggerType"),
        ("replicaTimeout: 3600", "timeout: 3600", "timeout: no such property"),
        ("replicaRetryLimit: 0", "replicaRetryLimit: 3", "is run again where it fails"),
        ("{name: OUTBOX_TOPIC,", "{name: OUTBOX_TOPICS,", "OUTBOX_TOPICS is no setting of the worker"),
        ("          - {name: OUTBOX_COSMOS_DATABASE, value: contacts}\n", "", "OUTBOX_COSMOS_DATABASE is required"),
        ('"seccompProfile": {"type": "RuntimeDefault"}', '"runAsGroup": 1', "refuses outbox-command for its seccompProfile"),
        ('"allowPrivilegeEscalation": false, ', "", "refuses outbox-command for its allowPrivilegeEscalation"),
        ('"drop": ["ALL"]', '"drop": []', "refuses outbox-command for its capabilities"),
        ('"runAsNonRoot": true, ', "", "refuses outbox-command for its runAsNonRoot"),
        ("--labels azure.workload.identity/use=true", "--labels app=x", "does not get the worker's identity"),
        ("kubectl run", "kubectl create", "1 jobs and 0 pods"),
    ],
)  # fmt: skip
def test_a_recipe_that_a_platform_refuses_is_found(old: str, new: str, said: str):
    assert [] == list(recipes.problems(PAGE))
    found = list(recipes.problems(swapped(PAGE, old, new)))
    assert any(said in problem for problem in found), found


EVENTS = queries.logged_events(ROOT / "cosmos_outbox/records.py")
METRICS = dashboards.metrics_of(dashboards.SOURCES)


def test_the_queries_as_they_are_have_no_problem():
    found = queries.problems(INFRA / "queries", ROOT / "cosmos_outbox/records.py", METRICS)
    assert [] == found


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("lease-halted", "| where ContainerAppName", "| were ContainerAppName", "syntax"),
        ("lease-halted", "ContainerAppName ==", "AppName ==", "'AppName' is no column"),
        ("lease-halted", "ContainerAppConsoleLogs", "ConsoleLogs", "no schema here describes"),
        ("lease-halted", "'LeaseHalted'", "'LeaseStopped'", "the worker logs no 'LeaseStopped'"),
        ("lease-halted", "entry.lease", "entry.leases", "LeaseHalted has no field 'leases'"),
        ("watch-failing", "'WatchFailed'", "'WatchStopped'", "the worker logs no 'WatchStopped'"),
        ("parked-keys", "max(Sum)", "max(Value)", "'Value' is no column"),
        ("parked-keys", "outbox.parked.keys", "outbox.keys.parked", "measures no 'outbox.keys.parked'"),
    ],
)
def test_a_planted_mistake_in_a_query_is_found(file: str, old: str, new: str, said: str):
    query = (INFRA / f"queries/{file}.kql").read_text()
    found = list(queries.judge(swapped(query, old, new), EVENTS, METRICS))
    assert any(said in problem for problem in found), found


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("events-late", "least > 300", "least > 3000000", "fires for"),
        ("worker-unready", "best == 0", "best == 1", "fires for"),
        ("parked-keys", "keys > 0", "keys < 0", "fires for"),
        ("ttl-headroom", "min(Sum)", "max(Sum)", "fires for"),
        ("alarms", "outbox.alarms", "outbox.parked.keys", "fires for"),
        ("worker-silent", "ago(10m)", "ago(10d)", "fires for"),
        ("watch-failing", "minutes > 5", "minutes > 15", "fires for"),
        ("messages-late", "max(Max)", "max(Sum)", "fires for"),
        ("sessions-lost", "sessions > 10", "sessions > 0", "fires for"),
        ("attempts-failing", "outbox.attempt.failures", "outbox.page.failures", "fires for"),
        ("consumer-unready", "best == 0", "best == 1", "fires for"),
        ("consumer-silent", "ago(10m)", "ago(10d)", "fires for"),
        ("worker-failing", "'ContainerBackOff'", "'ContainerBakOff'", "gives no reason 'ContainerBakOff'"),
    ],
)
def test_a_query_that_fires_at_another_time_is_found(file: str, old: str, new: str, said: str):
    query = (INFRA / f"queries/{file}.kql").read_text()
    assert [] == list(queries.misfires(file, query))
    assert any(said in problem for problem in queries.misfires(file, swapped(query, old, new)))


def test_an_alert_that_no_test_has_seen_firing_is_found():
    rules = "groups: [{rules: [{alert: Seen}, {alert: Silent}, {alert: Forgotten}]}]"
    checks = "[{alertname: Seen, exp_alerts: [{}]}, {alertname: Silent, exp_alerts: []}]"
    tests = f"tests: [{{alert_rule_test: {checks}}}]"
    assert [f"alerts.test.yaml: no test lets {name} fire" for name in ("Silent", "Forgotten")] == list(
        dashboards.untested(rules, tests)
    )


def test_an_expression_that_does_not_parse_or_reads_an_unknown_metric_is_found():
    assert [] == list(
        dashboards.judge("sum by (instance) (rate(outbox_lease_moves_total[$__rate_interval]))", METRICS)
    )
    assert 1 == len(list(dashboards.judge("sum(rate(outbox_lease_moves_total[5m])", METRICS)))
    assert 1 == len(list(dashboards.judge("max(outbox_lease_lag) / max(outbox_lease_length)", METRICS)))
    assert [] == dashboards.problems(INFRA / "observability", dashboards.SOURCES)


def test_a_directory_without_dashboards_is_not_called_verified(tmp_path: Path):
    assert None is dashboards.problems(tmp_path, [])


def test_hadolint_and_checkov_report_what_is_planted(tmp_path: Path):
    (tmp_path / "Dockerfile").write_text("FROM python\nRUN cd /tmp && pip install x\n")
    assert any("DL3006" in finding for finding in tools.hadolint(tmp_path / "Dockerfile"))
    assert any("CKV_DOCKER_3" in finding for finding in tools.checkov(tmp_path, "dockerfile"))


def test_variables_are_read_from_the_programs_sources():
    assert {"OUTBOX_TOPIC", "OUTBOX_GRACE_SECONDS"} < variables_of("worker")
    assert {"OUTBOX_TOPIC", "OUTBOX_COSMOS_DATABASE", "OUTBOX_COSMOS_CONTAINER"} == required_by("worker")
    assert isinstance(default_of("worker", "OUTBOX_GRACE_SECONDS"), float)


def test_a_consumers_variables_are_its_own_and_those_of_a_worker_that_it_reads():
    read = variables_of("consumer")
    assert {"OUTBOX_SUBSCRIPTION", "OUTBOX_HEALTH_PORT", "OUTBOX_COSMOS_ENDPOINT"} < read
    assert not {"OUTBOX_LEASE_CONTAINER", "OUTBOX_LANES"} & read
    assert {"OUTBOX_COSMOS_DATABASE", "OUTBOX_COSMOS_CONTAINER"} == required_by("consumer")
    assert None is default_of("consumer", "OUTBOX_LEASE_CONTAINER")
