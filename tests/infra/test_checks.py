"""
The offline checks of infra/ find what is planted, and nothing in the files as they are; `make check-infra` runs this.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip(
    "tree_sitter_bicep", reason="its tools have an environment of their own: make check-infra"
)

import yaml

from infra.check import bicep, compose, dashboards, manifests, policy, queries, schema, tools
from infra.check.variables import default_of, required_by, variables_of

pytestmark = pytest.mark.looptime(False)

ROOT = Path(__file__).parents[2]
INFRA = ROOT / "infra"


def planted(file: str, old: str, new: str) -> list[bicep.Template]:
    """
    Return all templates, with one text of one file replaced.
    """
    templates = []
    for template in bicep.read_templates(INFRA):
        if template.path.name == file:
            assert old in template.source, f"{old!r} is not in {file}: the test plants nothing"
            templates.append(bicep.parse(template.path, template.source.replace(old, new, 1)))
        else:
            templates.append(template)
    return templates


def test_the_templates_as_they_are_have_neither_errors_nor_violations():
    templates = bicep.read_templates(INFRA)
    assert [] == schema.problems(templates, INFRA / "main.parameters.json")
    assert [] == policy.violations(templates)


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
        ("servicebus.bicep", "minimumTlsVersion: '1.2'", "minimumTlsVersion: '1.9'", "'1.9' is not one of"),
        ("servicebus.bicep", "name: sku\n", "nam: sku\n", "sku.nam: no such property"),
        ("servicebus.bicep", "parent: namespace", "parent: namespaces", "'namespaces' is not declared"),
        ("servicebus.bicep", "    requiresSession: true", "    messageCount: 3", "messageCount: is read-only"),
        ("worker.bicep", "periodSeconds: 2", "period: 2", "period: no such"),
        ("worker.bicep", "type: 'Startup'", "type: 'Start'", "'Start' is not one of"),
        ("worker.bicep", "maxReplicas: replicas", "maxReplicas: 'many'", "expected a number"),
        ("alerts.bicep", "timeAggregation: 'Count'", "aggregation: 'Count'", "aggregation: no such property"),
        ("alerts.bicep", "    windowSize: 'PT15M'\n", "", "properties.windowSize: is required"),
        ("alerts.bicep", "queries/lease-halted.kql", "queries/gone.kql", "does not exist"),
        ("monitoring.bicep", "  kind: 'web'\n", "", ".kind: is required"),
        ("network.bicep", "direction: 'Inbound'", "direction: 'In'", "'In' is not one of"),
        ("private-endpoint.bicep", "groupIds: [\n            groupId\n          ]", "groupIds: 'Sql'", "expected a list"),
        ("identities.bicep", "    subject: workerServiceAccount", "    subjects: workerServiceAccount", "subjects"),
        ("environment.bicep", "destination: 'azure-monitor'", "target: 'x'", "target: no such property"),
        ("registry.bicep", "    name: 'Standard'", "    name: 'Gold'", "'Gold' is not one of"),
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


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("cosmos.bicep", "disableLocalAuth: true", "disableLocalAuth: false", "disableLocalAuth is False"),
        ("servicebus.bicep", "    disableLocalAuth: true\n", "", "disableLocalAuth is None"),
        ("monitoring.bicep", "DisableLocalAuth: true", "DisableLocalAuth: false", "DisableLocalAuth is False"),
        ("monitoring.bicep", "      disableLocalAuth: true\n", "", "the workspace accepts keys"),
        ("registry.bicep", "adminUserEnabled: false", "adminUserEnabled: true", "adminUserEnabled is True"),
        ("worker.bicep", "value: topicName", "value: 'Endpoint=sb://x'", "a secret is named"),
        ("cosmos.bicep", "= account.id", "= account.listKeys().primaryMasterKey", "a secret is named"),
        ("api.bicep", "value: cosmosEndpoint", "value: store.properties.connectionString", "a secret"),
        ("cosmos.bicep", "minimalTlsVersion: 'Tls12'", "minimalTlsVersion: 'Tls11'", "minimalTlsVersion is Tls11"),
        ("servicebus.bicep", "minimumTlsVersion: '1.2'", "minimumTlsVersion: '1.0'", "minimumTlsVersion is 1.0"),
        ("api.bicep", "allowInsecure: false", "allowInsecure: true", "takes plain HTTP"),
        ("cosmos.bicep", "      defaultTtl: -1\n", "", "defaultTtl must be -1"),
        ("cosmos.bicep", "'/id'", "'/leaseToken'", "containers and their partition keys"),
        ("cosmos.bicep", "excludedPaths: [\n          {\n            path: '/*'", "excludedPaths: [\n          {\n            path: '/x/*'", "every path"),
        ("cosmos.bicep", "'/type/?'", "'/kind/?'", "/type/? is not indexed"),
        ("cosmos.bicep", "'/partitionKey/?'", "'/key/?'", "/partitionKey/? is not indexed"),
        ("cosmos.bicep", "type: 'Continuous'", "type: 'Periodic'", "no continuous backup"),
        ("servicebus.bicep", "requiresDuplicateDetection: true", "requiresDuplicateDetection: false", "requiresDup"),
        ("servicebus.bicep", "enablePartitioning: false", "enablePartitioning: true", "enablePartitioning is True"),
        ("servicebus.bicep", "Window: 'P1D'", "Window: 'PT10M'", "too short"),
        ("servicebus.bicep", "requiresSession: true", "requiresSession: false", "requiresSession is False"),
        ("servicebus.bicep", "    lockDuration", "    autoDeleteOnIdle: 'P1D'\n    lockDuration", "deletes itself"),
        ("servicebus.bicep", "scope: topic", "scope: namespace", "gets Service Bus Data Sender on Microsoft.Serv"),
        ("servicebus.bicep", "'69a216fc-b8fb-44d8-bc22-1f3c2cd27a39'", "'090c5cfd-751d-490a-894a-3ce6f1109419'", "senderPrincipalId gets"),
        ("cosmos-roles.bicep", "/colls/${dataContainerName}'", "'", "is not on one container"),
        ("cosmos-roles.bicep", "roleDefinitionId: feedReader.id", "roleDefinitionId: documentWriter.id", "workerPrincipalId gets executeQuery"),
        ("cosmos-roles.bicep", "/colls/${dataContainerName}'", "/colls/${leaseContainerName}'", "apiPrincipalId gets"),
        ("cosmos-roles.bicep", "'${containers}/readChangeFeed'", "'${containers}/*'", "gets * on"),
        ("cosmos-roles.bicep", "          '${items}/delete'\n          '${containers}", "          '${containers}", "workerPrincipalId lacks items/delete on parked"),
        ("cosmos-roles.bicep", "          '${items}/delete'\n        ]", "        ]", "workerPrincipalId lacks items/delete on data"),
        ("cosmos-roles.bicep", " = if (workerDeletes) {", " = {", "gets items/delete on dataContainerName without workerDeletes"),
        ("main.bicep", "leaseContainerName: leaseContainerName\n    parkedContainerName: parkedContainerName\n    apiPrincipalId", "leaseContainerName: dataContainerName\n    parkedContainerName: parkedContainerName\n    apiPrincipalId", "cosmos-roles.bicep gets dataContainerName as leaseContainerName"),
        ("main.bicep", "workerPrincipalId: identities.outputs.workerPrincipalId\n    keda", "workerPrincipalId: identities.outputs.apiPrincipalId\n    keda", "as workerPrincipalId"),
        ("main.bicep", "senderPrincipalId: identities.outputs.worker", "senderPrincipalId: identities.outputs.api", "as senderPrincipalId"),
        ("worker.bicep", "'OUTBOX_DELETE_AFTER_PUBLISH'", "'OUTBOX_DELETE'", "OUTBOX_DELETE is no setting"),
        ("worker.bicep", "port: 8080", "port: 8081", "is probed at"),
        ("worker.bicep", "'OUTBOX_TOPIC'", "'OUTBOX_TOPICS'", "OUTBOX_TOPICS is no setting"),
        ("worker.bicep", "'OUTBOX_TOPIC'", "'OTHER'", "OUTBOX_TOPIC is required"),
        ("worker.bicep", "'OUTBOX_PARKED_CONTAINER'", "'OTHER'", "one bad event halts"),
        ("servicebus.bicep", "principalType: operatorPrincipalType", "principalType: 'User'", "principalType must be operator"),
        ("cosmos-roles.bicep", "{\n    principalId: operatorPrincipalId\n    roleDefinitionId: feedReader.id", "{\n    principalId: operatorPrincipalId\n    roleDefinitionId: documentWriter.id", "operatorPrincipalId gets"),
        ("worker.bicep", "value: identityClientId", "value: 'another'", "AZURE_CLIENT_ID"),
        ("worker.bicep", "terminationGracePeriodSeconds: 60", "terminationGracePeriodSeconds: 45", "is killed"),
        ("worker.bicep", "@minValue(2)\n", "@minValue(1)\n", "fewer than two"),
        ("worker.bicep", "path: '/readyz'", "path: '/livez'", "is probed at"),
        ("worker.bicep", "      registries", "      ingress: {\n        external: true\n      }\n      registries", "no ingress"),
        ("alerts.bicep", "'DeadletteredMessages'", "'ActiveMessages'", "no alert on DeadletteredMessages"),
        ("alerts.bicep", "queries/parked-keys.kql", "queries/lease-halted.kql", "no alert by the query parked-keys"),
        ("alerts.bicep", "queries/worker-unready.kql", "queries/lease-halted.kql", "no alert by the query worker-unready"),
        ("alerts.bicep", "measured: true", "measured: false", "whether events-late.kql asks the metrics"),
        ("alerts.bicep", "        people.id\n", "", "tells nobody"),
        ("identities.bicep", "  tags: tags\n", "", "has no tags"),
    ],
)  # fmt: skip
def test_a_planted_violation_is_found(file: str, old: str, new: str, said: str):
    found = policy.violations(planted(file, old, new))
    assert any(said in violation for violation in found), found


def test_every_policy_has_a_planted_violation():
    """
    A policy that nothing planted sets off may be one that nothing ever does.
    """
    marks = test_a_planted_violation_is_found.pytestmark  # type: ignore[attr-defined] # pytest puts it there
    cases = next(mark for mark in marks if mark.name == "parametrize").args[1]
    set_off = {
        rule.__name__
        for file, old, new, _ in cases
        for rule in policy.POLICIES
        if list(rule(planted(file, old, new)))
    }
    assert {rule.__name__ for rule in policy.POLICIES} == set_off


def _resolved() -> tuple[dict[str, Any], dict[str, Any]]:
    done = tools.run("docker-compose", "--profile", "*", "config", "--format", "json", directory=ROOT)
    bus = json.loads((INFRA / "compose/servicebus.json").read_text())
    return json.loads(done.stdout)["services"], bus


def test_the_compose_file_as_it_is_has_no_problem():
    assert [] == compose.problems(ROOT)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("services", "worker", "environment", "OUTBOX_LANES"), "4", "12 connections"),
        (("services", "worker", "environment", "OUTBOX_LANE"), "4", "OUTBOX_LANE is no setting"),
        (("services", "worker", "environment", "OUTBOX_TOPIC"), "others", "must use a topic"),
        (("services", "worker", "environment"), {"OUTBOX_TOPIC": "events"}, "one bad event halts"),
        (("services", "worker", "stop_grace_period"), "10s", "is killed"),
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
        ("terminationGracePeriodSeconds: 60", "terminationGracePeriodSeconds: 30", "are killed"),
        ("maxReplicaCount: 8", "maxReplicas: 8", "ScaledObject.spec.maxReplicas: KEDA knows no such"),
        ("minReplicaCount: 2", "minReplicaCount: 0", "fewer than two"),
        ("processorName: outbox", "processorName: other", "processorName is other"),
        ("type: azure-cosmosdb", "type: cpu", "must scale by the change feed's lag"),
        ("path: /readyz", "path: /livez", "readinessProbe must ask /readyz"),
        ("path: /livez\n            port: health\n          periodSeconds: 2", "path: /livez\n            port: 8081\n          periodSeconds: 2", "startupProbe must ask /livez at the port health"),
        ("containerPort: 8080", "containerPort: 8081", "the worker listens on 8080"),
        ('prometheus.io/port: "8080"', 'prometheus.io/port: "80"', "send Prometheus elsewhere"),
        ("port: 5671", "port: 5672", "from Service Bus, port 5671"),
        ("  - ports:\n    - port: 8080", "  - ports:\n    - port: 9090", "everybody from the metrics"),
        ("APPLICATIONINSIGHTS_CONNECTION_STRING:", "AZURE_CLIENT_ID:", "no alert hears of the worker"),
        ("OUTBOX_TOPIC:", "OUTBOX_TOPICS:", "OUTBOX_TOPICS is no setting"),
        ("  OUTBOX_PARKED_CONTAINER: parked\n", "", "one bad event halts"),
        ('azure.workload.identity/use: "true"', 'azure.workload.identity/use: "false"', "no pod gets an identity"),
        ("maxUnavailable: 1", "maxUnavailable: [1]", "poddisruptionbudget"),
        ("processorName: outbox", "processorName: replaced", "left to replace"),
        ("OUTBOX_TOPIC: events", "OUTBOX_SERVICEBUS_CONNECTION_STRING: x\n  OUTBOX_TOPIC: events", "not with a connection string"),
    ],
)  # fmt: skip
def test_a_planted_mistake_in_a_manifest_is_found(tmp_path: Path, old: str, new: str, said: str):
    rendered = manifests.render(INFRA / "kubernetes")
    assert old in rendered, f"{old!r} is not in the manifests: the test plants nothing"
    found = manifests.problems(rendered.replace(old, new), tmp_path)
    assert any(said in problem for problem in found), found


def test_a_selector_that_meets_no_pod_is_found():
    documents = list(yaml.safe_load_all(manifests.render(INFRA / "kubernetes")))
    budget = next(document for document in documents if document["kind"] == "PodDisruptionBudget")
    budget["spec"]["selector"]["matchLabels"] = {"app.kubernetes.io/name": "other"}
    assert ["PodDisruptionBudget: selects no pod of the Deployment"] == manifests.judge(documents)


EVENTS = queries.logged_events(ROOT / "cosmos_outbox/instrumentation.py")
METRICS = dashboards.metrics_of([ROOT / "worker/telemetry.py"])


def test_the_queries_as_they_are_have_no_problem():
    found = queries.problems(INFRA / "queries", ROOT / "cosmos_outbox/instrumentation.py", METRICS)
    assert [] == found


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("lease-halted", "| where ContainerAppName", "| were ContainerAppName", "syntax"),
        ("lease-halted", "ContainerAppName ==", "AppName ==", "'AppName' is no column"),
        ("lease-halted", "ContainerAppConsoleLogs", "ConsoleLogs", "no schema here describes"),
        ("lease-halted", "'LeaseHalted'", "'LeaseStopped'", "the worker logs no 'LeaseStopped'"),
        ("lease-halted", "entry.lease", "entry.leases", "LeaseHalted has no field 'leases'"),
        ("parked-keys", "max(Sum)", "max(Value)", "'Value' is no column"),
        ("parked-keys", "outbox.parked.keys", "outbox.keys.parked", "measures no 'outbox.keys.parked'"),
    ],
)
def test_a_planted_mistake_in_a_query_is_found(file: str, old: str, new: str, said: str):
    query = (INFRA / f"queries/{file}.kql").read_text()
    assert old in query, f"{old!r} is not in the query: the test plants nothing"
    found = list(queries.judge(query.replace(old, new), EVENTS, METRICS))
    assert any(said in problem for problem in found), found


def test_an_expression_that_does_not_parse_or_reads_what_nobody_makes_is_found():
    assert [] == list(
        dashboards.judge("sum by (instance) (rate(outbox_lease_moves_total[$__rate_interval]))", METRICS)
    )
    assert 1 == len(list(dashboards.judge("sum(rate(outbox_lease_moves_total[5m])", METRICS)))
    assert 1 == len(list(dashboards.judge("max(outbox_lease_lag) / max(outbox_lease_length)", METRICS)))
    assert [] == dashboards.problems(INFRA / "observability", [ROOT / "worker/telemetry.py"])


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
