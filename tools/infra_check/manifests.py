"""
Whether the Kubernetes manifests are valid as kustomize renders them, and scale worker and consumer by what waits for them.
"""

from __future__ import annotations

import importlib
import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tools.infra_check.environments import misjudged_end
from tools.infra_check.tools import run
from tools.infra_check.variables import default_of, lacking, variables_of

KUBERNETES = "1.37.0"
_TELEMETRY = "APPLICATIONINSIGHTS_CONNECTION_STRING"  # opens nothing while local authentication is off
# Read by the manifests themselves, or by what the programs are made of.
_OTHERS = {"WORKER_CLIENT_ID", "CONSUMER_CLIENT_ID", "KEDA_CLIENT_ID", _TELEMETRY}
# What each program has to reach, and what has to reach it.
_EGRESS = {53: "DNS", 443: "Cosmos DB and tokens", 5671: "Service Bus"}


class _Scaler(NamedTuple):
    """
    What a scaler is told in the words of the program's settings, and what else it knows; it passes over other keys.
    """

    kind: str
    measures: str
    told: dict[str, str]
    thresholds: set[str]


_SCALERS = {
    "worker": _Scaler(
        kind="azure-cosmosdb",
        measures="the change feed's lag",
        told={
            "endpoint": "OUTBOX_COSMOS_ENDPOINT",
            "databaseId": "OUTBOX_COSMOS_DATABASE",
            "leaseDatabaseId": "OUTBOX_COSMOS_DATABASE",
            "containerId": "OUTBOX_COSMOS_CONTAINER",
            "leaseContainerId": "OUTBOX_LEASE_CONTAINER",
            "processorName": "OUTBOX_PROCESSOR_NAME",
        },
        thresholds={
            "changeFeedLagThreshold",
            "activationChangeFeedLagThreshold",
            "maxActiveLeasesPerReplica",
        },
    ),
    "consumer": _Scaler(
        kind="azure-servicebus",
        measures="the messages of its subscription",
        told={
            "namespace": "OUTBOX_SERVICEBUS_NAMESPACE",
            "topicName": "OUTBOX_TOPIC",
            "subscriptionName": "OUTBOX_SUBSCRIPTION",
        },
        thresholds={"messageCount"},
    ),
}
PROGRAMS = tuple(_SCALERS)


def render(directory: Path) -> str:
    """
    Return what `kubectl apply -k` would send.

    Raises:
        ValueError: kustomize refuses the directory; the message says why.
    """
    done = run("kubectl", "kustomize", str(directory), directory=directory)
    if done.returncode:
        raise ValueError(done.stderr.strip())
    return done.stdout


def marked(directory: Path) -> str:
    """
    Return the same with the name of each setting as its value, which shows where each one goes.
    """
    with tempfile.TemporaryDirectory() as scratch:
        copied = shutil.copytree(directory, Path(scratch) / directory.name)
        for settings in copied.glob("*.env"):
            text = settings.read_text(encoding="utf-8")
            settings.write_text(re.sub(r"^(\w+)=.*$", r"\1=\1", text, flags=re.MULTILINE), encoding="utf-8")
        return render(copied)


def read(rendered: str) -> list[dict[str, Any]]:
    """
    Return the documents.
    """
    return [document for document in yaml.safe_load_all(rendered) if document]


def problems(rendered: str, scratch: Path) -> list[str]:
    """
    Return one line a mistake in rendered manifests.
    """
    documents = read(rendered)
    file = scratch / "rendered.yaml"
    file.write_text(rendered, encoding="utf-8")
    found: list[str] = []
    done = run("kubernetes-validate", "--strict", "-k", KUBERNETES, str(file), directory=scratch)
    if done.returncode:
        said = (done.stdout + done.stderr).splitlines()
        found += [line for line in said if line.startswith("ERROR")] or said
    for document in documents:
        if document["apiVersion"].startswith("keda.sh/"):
            found += _keda(document)
    return found + judge(documents)


def _keda(document: dict[str, Any]) -> list[str]:
    models = importlib.import_module("cloudcoil.models.keda.v1alpha1")
    try:
        model = getattr(models, document["kind"]).model_validate(document)
    except ValueError as error:
        return [f"{document['kind']}: {error}"]
    # The models drop what they do not know, without a word.
    kept = json.loads(model.model_dump_json(by_alias=True, exclude_none=True))
    return [f"{document['kind']}{path}: KEDA knows no such property" for path in _lost(document, kept, "")]


def _lost(given: object, kept: object, path: str) -> Iterator[str]:
    if isinstance(given, dict):
        for key, value in given.items():
            if not isinstance(kept, dict) or key not in kept:
                yield f"{path}.{key}"
            else:
                yield from _lost(value, kept[key], f"{path}.{key}")
    elif isinstance(given, list) and isinstance(kept, list):
        for mine, theirs in zip(given, kept, strict=False):
            yield from _lost(mine, theirs, f"{path}[]")


def judge(documents: list[dict[str, Any]]) -> list[str]:
    """
    Return the violations of our own rules.
    """
    found = [
        f"{document['kind']}: something was left to replace"
        for document in documents
        if "replaced" in json.dumps(document)
    ]
    for program in PROGRAMS:
        kinds = _of(program, documents)
        found += [
            f"{program}: {problem}"
            for problem in (
                *_deployment(kinds["Deployment"], kinds["ConfigMap"]["data"], program),
                *_reach(kinds["Deployment"], program),
                *_scaling(kinds["ScaledObject"], program),
                *_references(kinds),
                *_network(kinds["NetworkPolicy"]["spec"], program),
            )
        ]
    return found


def _of(program: str, documents: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """
    Return the documents of one program by kind, and the namespace of both.
    """
    return {
        document["kind"]: document
        for document in documents
        if document["kind"] == "Namespace"
        or document["metadata"]["name"].split("-")[:2] == ["outbox", program]
    }


def wiring(documents: list[dict[str, Any]]) -> Iterator[str]:
    """
    Yield where a setting does not arrive, or another one does, in manifests whose settings are marked with their names.
    """
    for program, scaler in _SCALERS.items():
        kinds = _of(program, documents)
        account = kinds["ServiceAccount"]["metadata"]["annotations"].get("azure.workload.identity/client-id")
        keda = kinds["TriggerAuthentication"]["spec"]["podIdentity"].get("identityId")
        told = kinds["ScaledObject"]["spec"]["triggers"][0]["metadata"]
        given = {
            f"the {program}'s identity": (account, f"{program.upper()}_CLIENT_ID"),
            "KEDA's identity": (keda, "KEDA_CLIENT_ID"),
            **{
                f"{name} of the {program}'s scaler": (told.get(name), setting)
                for name, setting in scaler.told.items()
            },
        }
        for what, (setting, expected) in given.items():
            if setting != expected:
                yield f"kustomization: {what} is {setting}, not {expected}"


def _references(kinds: dict[str, dict[str, Any]]) -> Iterator[str]:
    """
    Yield what refers to nothing: names that no other document has, and selectors that no pod meets.
    """
    pod = kinds["Deployment"]["spec"]["template"]
    names = {kind: document["metadata"]["name"] for kind, document in kinds.items()}
    container = pod["spec"]["containers"][0]
    referred = {
        "ScaledObject.scaleTargetRef": (kinds["ScaledObject"]["spec"]["scaleTargetRef"], "Deployment"),
        "Deployment.serviceAccountName": ({"name": pod["spec"].get("serviceAccountName")}, "ServiceAccount"),
    }
    for source in container.get("envFrom", []):
        referred["Deployment.envFrom"] = (source.get("configMapRef", {}), "ConfigMap")
    for trigger in kinds["ScaledObject"]["spec"]["triggers"]:
        referred["ScaledObject.authenticationRef"] = (
            trigger.get("authenticationRef", {}),
            "TriggerAuthentication",
        )
    for what, (reference, kind) in referred.items():
        if reference.get("name") != names[kind]:
            yield f"{what} is {reference.get('name')}, the {kind} is {names[kind]}"
    spaces = {
        document["metadata"].get("namespace") for kind, document in kinds.items() if kind != "Namespace"
    }
    if spaces != {names["Namespace"]}:
        yield f"the manifests are in the namespaces {sorted(spaces, key=str)}, not in {names['Namespace']}"
    for kind, selector in (
        ("PodDisruptionBudget", kinds["PodDisruptionBudget"]["spec"]["selector"]),
        ("NetworkPolicy", kinds["NetworkPolicy"]["spec"]["podSelector"]),
    ):
        if not selector["matchLabels"].items() <= pod["metadata"]["labels"].items():
            yield f"{kind}: selects no pod of the Deployment"
    if not kinds["PodDisruptionBudget"]["spec"].get("maxUnavailable"):
        yield "PodDisruptionBudget: lets no pod go, so no node can be drained"
    if kinds["PodDisruptionBudget"]["spec"].get("unhealthyPodEvictionPolicy") != "AlwaysAllow":
        yield "PodDisruptionBudget: keeps an unready pod, and a lease that halts makes all unready, so no node can be drained"


def _network(spec: dict[str, Any], program: str) -> Iterator[str]:
    out = {port["port"] for rule in spec["egress"] for port in rule["ports"]}
    for port, what in _EGRESS.items():
        if port not in out:
            yield f"NetworkPolicy: keeps the {program} from {what}, port {port}"
    health = int(str(default_of(program, "OUTBOX_HEALTH_PORT")))
    if health not in {port["port"] for rule in spec["ingress"] for port in rule["ports"]}:
        yield f"NetworkPolicy: keeps everybody from the metrics, port {health}"
    for rule in spec["ingress"]:
        # An empty selector is every pod, or every namespace; without one of the two, the other's.
        if not all(
            peer.get("namespaceSelector") and peer.get("podSelector") for peer in rule.get("from", [{}])
        ):
            yield f"NetworkPolicy: every pod reads the status of the {program}, port {health}"


def _deployment(deployment: dict[str, Any], settings: dict[str, str], program: str) -> Iterator[str]:
    pod = deployment["spec"]["template"]["spec"]
    container = pod["containers"][0]
    names = settings.keys() | {variable["name"] for variable in container.get("env", [])}
    for name in sorted(names - variables_of(program) - _OTHERS):
        yield f"Deployment: {name} is no setting of the {program}"
    for problem in lacking(program, names):
        yield f"Deployment: {problem}"
    if _TELEMETRY not in names:
        yield f"Deployment: without {_TELEMETRY} no alert hears of the {program}"
    if any("CONNECTION_STRING" in name for name in names - {_TELEMETRY}):
        yield "Deployment: pods sign in with their identity, not with a connection string"
    if "replicas" in deployment["spec"]:
        yield "Deployment: the ScaledObject owns the number of replicas"
    if deployment["spec"]["template"]["metadata"]["labels"].get("azure.workload.identity/use") != "true":
        yield "Deployment: without its label no pod gets an identity"
    if misjudged := misjudged_end(program, settings, pod.get("terminationGracePeriodSeconds", 30)):
        yield f"Deployment: a pod {misjudged}"
    owner: dict[str, Any] = next(
        (v for v in container.get("env", []) if v["name"] == "OUTBOX_INSTANCE_NAME"), {}
    )
    if owner.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath") != "metadata.name":
        yield "Deployment: OUTBOX_INSTANCE_NAME is not the pod's name, so workers take each other's leases for theirs, and no alert names a pod"


def _reach(deployment: dict[str, Any], program: str) -> Iterator[str]:
    pod = deployment["spec"]["template"]
    container = pod["spec"]["containers"][0]
    expected = {"startupProbe": "/livez", "livenessProbe": "/livez", "readinessProbe": "/readyz"}
    for probe, path in expected.items():
        if container.get(probe, {}).get("httpGet") != {"path": path, "port": "health"}:
            yield f"Deployment: {probe} must ask {path} at the port health"
    port = int(str(default_of(program, "OUTBOX_HEALTH_PORT")))
    if {"name": "health", "containerPort": port} not in container.get("ports", []):
        yield f"Deployment: the {program} listens on {port}, which is not the port health"
    scraped = {"scrape": "true", "port": str(port), "path": "/metrics"}
    annotations = pod["metadata"].get("annotations", {})
    if any(annotations.get(f"prometheus.io/{key}") != value for key, value in scraped.items()):
        yield f"Deployment: its annotations send Prometheus elsewhere than to /metrics at {port}"


def _scaling(scaled: dict[str, Any], program: str) -> Iterator[str]:
    spec, scaler = scaled["spec"], _SCALERS[program]
    if spec.get("minReplicaCount", 0) < 2:  # noqa: PLR2004 # one may fail
        yield f"ScaledObject: fewer than two {program}s, so none takes over when one fails"
    if "fallback" not in spec:
        yield f"ScaledObject: needs a fallback for when KEDA cannot read {scaler.measures}"
    trigger = spec["triggers"][0]
    if trigger["type"] != scaler.kind:
        yield f"ScaledObject: must scale by {scaler.measures}"
    # By what waits in all, over the replicas; the other kind is an error with leases for each replica.
    if trigger.get("metricType") != "AverageValue":
        yield f"ScaledObject: metricType is {trigger.get('metricType')}, not AverageValue"
    for name in sorted(trigger["metadata"].keys() ^ (scaler.told.keys() | scaler.thresholds)):
        yield f"ScaledObject: {name} {'is no key of the scaler' if name in trigger['metadata'] else 'is not given'}"
