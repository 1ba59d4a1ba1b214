"""
Tests that the manifests which `kubectl apply -k infra/kubernetes` would send are valid and refer to each other correctly, and that
worker and consumer are scaled by the work that waits for them.
"""

from __future__ import annotations

import functools
import importlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tools.infra_check.programs import asked
from tools.infra_check.running import INFRA, output

pytestmark = pytest.mark.looptime(False)

KUBERNETES = "1.37.0"
PROGRAMS = ("worker", "consumer")
each_program = pytest.mark.parametrize("program", PROGRAMS)
# This string says where telemetry is sent. It is no secret, because local authentication is switched off.
TELEMETRY = "APPLICATIONINSIGHTS_CONNECTION_STRING"
# For each program: the type of its KEDA scaler, the setting that each key of the scaler must get, and the
# keys of its thresholds. A scaler silently ignores keys that it does not know, so the manifests may have no
# other keys.
SCALERS = {
    "worker": (
        "azure-cosmosdb",
        {
            "endpoint": "OUTBOX_COSMOS_ENDPOINT",
            "databaseId": "OUTBOX_COSMOS_DATABASE",
            "leaseDatabaseId": "OUTBOX_COSMOS_DATABASE",
            "containerId": "OUTBOX_COSMOS_CONTAINER",
            "leaseContainerId": "OUTBOX_LEASE_CONTAINER",
            "processorName": "OUTBOX_PROCESSOR_NAME",
        },
        {"changeFeedLagThreshold", "activationChangeFeedLagThreshold", "maxActiveLeasesPerReplica"},
    ),
    "consumer": (
        "azure-servicebus",
        {
            "namespace": "OUTBOX_SERVICEBUS_NAMESPACE",
            "topicName": "OUTBOX_TOPIC",
            "subscriptionName": "OUTBOX_SUBSCRIPTION",
        },
        {"messageCount"},
    ),
}


@functools.cache
def rendered(directory: Path = INFRA / "kubernetes") -> str:
    return output("kubectl", "kustomize", str(directory))


def documents(text: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the manifests in a text by their kind and name, without the hash at the end of a ConfigMap's name."""
    found = [document for document in yaml.safe_load_all(text) if document]
    return {(one["kind"], re.sub(r"-\w{10}$", "", one["metadata"]["name"])): one for one in found}


def of(kind: str, program: str) -> dict[str, Any]:
    found: dict[str, Any] = documents(rendered())[kind, f"outbox-{program}"]
    return found


def pod_of(program: str) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return the metadata and the specification of a program's pod, and the pod's only container."""
    template = of("Deployment", program)["spec"]["template"]
    (container,) = template["spec"]["containers"]
    return template["metadata"], template["spec"], container


def test_the_manifests_conform_to_the_schemas_of_kubernetes(tmp_path: Path):
    (tmp_path / "rendered.yaml").write_text(rendered())

    output("kubernetes-validate", "--strict", "-k", KUBERNETES, str(tmp_path / "rendered.yaml"))


def dropped(given: object, kept: object) -> list[str]:
    """
    Return the names of the properties of `given` that are missing in `kept`, the same document after a model has read it. A model silently
    drops properties that it does not know.
    """
    if isinstance(given, dict) and isinstance(kept, dict):
        lost = [key for key in given if key not in kept]
        return lost + [name for key in given if key in kept for name in dropped(given[key], kept[key])]
    if isinstance(given, list) and isinstance(kept, list):
        return [name for mine, theirs in zip(given, kept, strict=True) for name in dropped(mine, theirs)]
    return []


def test_keda_knows_every_property_in_its_manifests():
    models = importlib.import_module("cloudcoil.models.keda.v1alpha1")
    ours = [one for one in documents(rendered()).values() if one["apiVersion"].startswith("keda.sh/")]
    assert 4 == len(ours)
    for one in ours:
        model = getattr(models, one["kind"]).model_validate(one)
        assert [] == dropped(one, json.loads(model.model_dump_json(by_alias=True, exclude_none=True)))


def test_each_kubernetes_setting_fills_the_field_that_its_name_says(tmp_path: Path):
    """Give each setting in a copy of the manifests its own name as value. So the rendered manifests show which field gets which setting."""
    copied = shutil.copytree(INFRA / "kubernetes", tmp_path / "kubernetes")
    for settings in copied.glob("*.env"):
        settings.write_text(re.sub(r"^(\w+)=.*$", r"\1=\1", settings.read_text(), flags=re.MULTILINE))
    marked = documents(output("kubectl", "kustomize", str(copied)))
    for program in PROGRAMS:
        kind, told, thresholds = SCALERS[program]
        account, keda, scaled = (
            marked[of_kind, f"outbox-{program}"]
            for of_kind in ("ServiceAccount", "TriggerAuthentication", "ScaledObject")
        )
        (trigger,) = scaled["spec"]["triggers"]

        assert {"azure.workload.identity/client-id": f"{program.upper()}_CLIENT_ID"} == account["metadata"][
            "annotations"
        ]
        assert "KEDA_CLIENT_ID" == keda["spec"]["podIdentity"]["identityId"]
        assert told == {key: value for key, value in trigger["metadata"].items() if key not in thresholds}
        assert thresholds <= trigger["metadata"].keys()
        # With AverageValue, KEDA divides all waiting work by the number of replicas. With the metric type Value, KEDA
        # refuses `maxActiveLeasesPerReplica`.
        assert (kind, "AverageValue") == (trigger["type"], trigger["metricType"])
    assert "replaced" not in rendered()


@each_program
def test_the_manifests_give_each_pod_valid_settings(program: str):
    """This also checks that the pod gets enough time to stop, and that its instance has the name of the pod."""
    _, spec, container = pod_of(program)
    settings = of("ConfigMap", program)["data"]
    seconds = spec["terminationGracePeriodSeconds"]
    asking = {"program": program, "environment": {**settings, TELEMETRY: ""}, "stopped_after": seconds}

    assert [[]] == asked([asking])
    assert TELEMETRY in settings, "no alert hears of it"
    assert [] == [name for name in settings if "CONNECTION_STRING" in name and name != TELEMETRY]
    # With equal names, each worker would believe that it owns the leases of the others too, and no alert could name a pod.
    by_name = {"fieldRef": {"fieldPath": "metadata.name"}}
    assert [{"name": "OUTBOX_INSTANCE_NAME", "valueFrom": by_name}] == container["env"]


@each_program
def test_probes_call_the_port_on_which_the_program_listens(program: str):
    """This also checks that Prometheus reads the metrics at this port, and that the network policy opens it."""
    metadata, _, container = pod_of(program)
    (known,) = asked([{"program": program}])
    port = int(known["OUTBOX_HEALTH_PORT"])

    probes = {"startupProbe": "/livez", "livenessProbe": "/livez", "readinessProbe": "/readyz"}
    assert probes == {name: container[name]["httpGet"]["path"] for name in probes}
    assert {"health"} == {container[name]["httpGet"]["port"] for name in probes}
    assert [{"name": "health", "containerPort": port}] == container["ports"]
    assert {
        "prometheus.io/scrape": "true",
        "prometheus.io/path": "/metrics",
        "prometheus.io/port": str(port),
    } == metadata["annotations"]
    (rule,) = of("NetworkPolicy", program)["spec"]["ingress"]
    assert [port] == [each["port"] for each in rule["ports"]]
    # An empty selector would let in every pod or every namespace. So each peer needs a namespace selector and
    # a pod selector that are not empty.
    assert rule["from"]
    assert all(peer.get("namespaceSelector") and peer.get("podSelector") for peer in rule["from"])


@each_program
def test_the_network_policy_lets_a_pod_reach_dns_and_azure(program: str):
    (rule,) = of("NetworkPolicy", program)["spec"]["egress"]

    assert {53, 443, 5671} <= {each["port"] for each in rule["ports"]}


@each_program
def test_keda_runs_at_least_two_replicas(program: str):
    """The Deployment names no number of replicas, so that only KEDA decides it."""
    spec = of("ScaledObject", program)["spec"]

    assert (2, 2) == (spec["minReplicaCount"], spec["fallback"]["replicas"])
    assert "replicas" not in of("Deployment", program)["spec"]


@each_program
def test_replicas_run_on_different_nodes_if_another_node_is_free(program: str):
    """A drained or tainted node is not free. A node is free if its only pod of the program has an old version, because that pod ends soon."""
    _, spec, _ = pod_of(program)
    by_node, by_zone = spec["topologySpreadConstraints"]

    assert {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "DoNotSchedule",
        "nodeTaintsPolicy": "Honor",
        "matchLabelKeys": ["pod-template-hash"],
        "labelSelector": {"matchLabels": {"app.kubernetes.io/name": f"outbox-{program}"}},
    } == by_node
    assert ("topology.kubernetes.io/zone", "ScheduleAnyway") == (
        by_zone["topologyKey"],
        by_zone["whenUnsatisfiable"],
    )
    # The images are for Linux. A Windows node has no taint, so only a node selector keeps the pods away from it.
    assert {"kubernetes.io/os": "linux"} == spec["nodeSelector"]


def test_the_pod_monitor_names_the_metrics_port_of_each_pod(tmp_path: Path):
    """The PodMonitor is optional: it is deployed only if the kustomization names its component."""
    copied = shutil.copytree(INFRA / "kubernetes", tmp_path / "kubernetes")
    kustomization = copied / "kustomization.yaml"
    kustomization.write_text(kustomization.read_text() + "components: [pod-monitor]\n")
    monitor = documents(output("kubectl", "kustomize", str(copied)))["PodMonitor", "outbox"]["spec"]
    (endpoint,), (selected,) = monitor["podMetricsEndpoints"], monitor["selector"]["matchExpressions"]

    assert selected["values"] == [pod_of(program)[0]["labels"][selected["key"]] for program in PROGRAMS]
    for program in PROGRAMS:
        metadata, _, container = pod_of(program)
        assert endpoint["port"] in {port["name"] for port in container["ports"]}
        assert endpoint["path"] == metadata["annotations"]["prometheus.io/path"]
    assert "PodMonitor" not in rendered()


@each_program
def test_a_node_can_be_drained_while_its_pods_are_unready(program: str):
    """A halted lease makes all pods of a program unready, and must not keep a node from being drained."""
    spec = of("PodDisruptionBudget", program)["spec"]

    assert (1, "AlwaysAllow") == (spec["maxUnavailable"], spec["unhealthyPodEvictionPolicy"])


@each_program
def test_names_and_selectors_of_a_manifest_refer_to_its_own_program(program: str):
    metadata, pod, container = pod_of(program)
    scaled = of("ScaledObject", program)["spec"]
    name, labels = f"outbox-{program}", {"app.kubernetes.io/name": f"outbox-{program}"}

    assert {**labels, "azure.workload.identity/use": "true"} == metadata["labels"]
    assert (name, name) == (pod["serviceAccountName"], scaled["scaleTargetRef"]["name"])
    assert [{"configMapRef": {"name": of("ConfigMap", program)["metadata"]["name"]}}] == container["envFrom"]
    assert {"name": name} == scaled["triggers"][0]["authenticationRef"]
    assert labels == of("PodDisruptionBudget", program)["spec"]["selector"]["matchLabels"]
    assert labels == of("NetworkPolicy", program)["spec"]["podSelector"]["matchLabels"]


def test_all_manifests_belong_to_one_namespace():
    found = documents(rendered())

    assert [("Namespace", "outbox")] == [key for key in found if key[0] == "Namespace"]
    assert {"outbox"} == {one["metadata"].get("namespace", "outbox") for one in found.values()}
