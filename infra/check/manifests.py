"""
Whether the Kubernetes manifests are valid as kustomize renders them, and scale what the worker can be scaled by.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from infra.check.tools import run
from infra.check.variables import default_of, required_by, variables_of

KUBERNETES = "1.37.0"
_TELEMETRY = "APPLICATIONINSIGHTS_CONNECTION_STRING"  # opens nothing while local authentication is off
# Read by the manifests themselves, or by what the worker is made of.
_OTHERS = {"AZURE_CLIENT_ID", "KEDA_CLIENT_ID", _TELEMETRY}
# What the worker has to reach, and what has to reach it.
_EGRESS = {53: "DNS", 443: "Cosmos DB and tokens", 5671: "Service Bus"}


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


def problems(rendered: str, scratch: Path) -> list[str]:
    """
    Return one line a mistake in rendered manifests.
    """
    documents = [document for document in yaml.safe_load_all(rendered) if document]
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
    kinds = {document["kind"]: document for document in documents}
    found = [
        f"{document['kind']}: something was left to replace"
        for document in documents
        if "replaced" in json.dumps(document)
    ]
    settings = kinds["ConfigMap"]["data"]
    found += _deployment(kinds["Deployment"], settings)
    found += _reach(kinds["Deployment"])
    found += _scaling(kinds["ScaledObject"], settings)
    labels = kinds["Deployment"]["spec"]["template"]["metadata"]["labels"]
    for kind, selector in (
        ("PodDisruptionBudget", kinds["PodDisruptionBudget"]["spec"]["selector"]),
        ("NetworkPolicy", kinds["NetworkPolicy"]["spec"]["podSelector"]),
    ):
        if not selector["matchLabels"].items() <= labels.items():
            found.append(f"{kind}: selects no pod of the Deployment")
    found += _network(kinds["NetworkPolicy"]["spec"])
    return found


def _network(spec: dict[str, Any]) -> Iterator[str]:
    out = {port["port"] for rule in spec["egress"] for port in rule["ports"]}
    for port, what in _EGRESS.items():
        if port not in out:
            yield f"NetworkPolicy: keeps the worker from {what}, port {port}"
    health = default_of("worker", "OUTBOX_HEALTH_PORT")
    if health not in {port["port"] for rule in spec["ingress"] for port in rule["ports"]}:
        yield f"NetworkPolicy: keeps everybody from the metrics, port {health}"


def _deployment(deployment: dict[str, Any], settings: dict[str, str]) -> Iterator[str]:
    pod = deployment["spec"]["template"]["spec"]
    container = pod["containers"][0]
    names = settings.keys() | {variable["name"] for variable in container.get("env", [])}
    for name in sorted(names - variables_of("worker") - _OTHERS):
        yield f"Deployment: {name} is no setting of the worker"
    for name in sorted(required_by("worker") - names):
        yield f"Deployment: {name} is required by the worker"
    if "OUTBOX_PARKED_CONTAINER" not in names:
        yield "Deployment: without OUTBOX_PARKED_CONTAINER one bad event halts its whole range"
    if _TELEMETRY not in names:
        yield f"Deployment: without {_TELEMETRY} no alert hears of the worker"
    if any("CONNECTION_STRING" in name for name in names - {_TELEMETRY}):
        yield "Deployment: pods sign in with their identity, not with a connection string"
    if "replicas" in deployment["spec"]:
        yield "Deployment: the ScaledObject owns the number of replicas"
    if deployment["spec"]["template"]["metadata"]["labels"].get("azure.workload.identity/use") != "true":
        yield "Deployment: without its label no pod gets an identity"
    if pod.get("terminationGracePeriodSeconds", 30) < float(settings["OUTBOX_GRACE_SECONDS"]) + 15:
        yield "Deployment: pods are killed before they have released their leases"


def _reach(deployment: dict[str, Any]) -> Iterator[str]:
    pod = deployment["spec"]["template"]
    container = pod["spec"]["containers"][0]
    expected = {"startupProbe": "/livez", "livenessProbe": "/livez", "readinessProbe": "/readyz"}
    for probe, path in expected.items():
        if container.get(probe, {}).get("httpGet") != {"path": path, "port": "health"}:
            yield f"Deployment: {probe} must ask {path} at the port health"
    port = default_of("worker", "OUTBOX_HEALTH_PORT")
    if {"name": "health", "containerPort": port} not in container.get("ports", []):
        yield f"Deployment: the worker listens on {port}, which is not the port health"
    scraped = {"scrape": "true", "port": str(port), "path": "/metrics"}
    annotations = pod["metadata"].get("annotations", {})
    if any(annotations.get(f"prometheus.io/{key}") != value for key, value in scraped.items()):
        yield f"Deployment: its annotations send Prometheus elsewhere than to /metrics at {port}"


def _scaling(scaled: dict[str, Any], settings: dict[str, str]) -> Iterator[str]:
    spec = scaled["spec"]
    if spec.get("minReplicaCount", 0) < 2:  # noqa: PLR2004 # one may fail
        yield "ScaledObject: fewer than two workers, and nobody takes over when one fails"
    if "fallback" not in spec:
        yield "ScaledObject: needs a fallback for when KEDA cannot read the leases"
    trigger = spec["triggers"][0]
    if trigger["type"] != "azure-cosmosdb" or "authenticationRef" not in trigger:
        yield "ScaledObject: must scale by the change feed's lag, signed in by identity"
    expected = {
        "endpoint": "OUTBOX_COSMOS_ENDPOINT",
        "databaseId": "OUTBOX_COSMOS_DATABASE",
        "leaseDatabaseId": "OUTBOX_COSMOS_DATABASE",
        "containerId": "OUTBOX_COSMOS_CONTAINER",
        "leaseContainerId": "OUTBOX_LEASE_CONTAINER",
        "processorName": "OUTBOX_PROCESSOR_NAME",
    }
    for name, variable in expected.items():
        if trigger["metadata"].get(name) != settings.get(variable):
            yield f"ScaledObject: {name} is {trigger['metadata'].get(name)}, the worker's is {settings.get(variable)}"
