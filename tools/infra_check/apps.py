"""
Whether the Container Apps are given settings that exist and are right, are probed where they listen, and may stop slowly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tools.infra_check.bicep import Template
from tools.infra_check.deployment import Deployment, Resource, deploy
from tools.infra_check.dockerfile import health_of
from tools.infra_check.environments import environment_of, misjudged_end
from tools.infra_check.grants import identity_of
from tools.infra_check.variables import lacking, variables_of

APPS = "Microsoft.App/containerApps"
_COSMOS = "Microsoft.DocumentDB/databaseAccounts"
_BUS = "Microsoft.ServiceBus/namespaces"
_DOCKERFILE = Path(__file__).parents[2] / "infra/docker/Dockerfile"
# As after the first `azd deploy`: no placeholder runs any more.
RUNNING = {"apiExists": True, "workerExists": True, "consumerExists": True}
# Where a program's documents and its parked keys are, if not with the others'.
_CONTAINERS = {"consumer": ("directory", "directoryParked")}
_SUBSCRIPTIONS = f"{_BUS}/topics/subscriptions"
_WITH_HEALTH = ("worker", "consumer")


def apps_are_wired(templates: Sequence[Template]) -> Iterator[str]:
    """
    Container Apps get settings that exist, all that they need, each with its value, and an identity.
    """
    made = deploy(templates, **RUNNING, deleteAfterPublish="*")
    environment_properties = made.of_type("Microsoft.App/managedEnvironments")[0].at("properties")
    profiles = [profile["name"] for profile in environment_properties["workloadProfiles"]]
    for app in made.of_type(APPS):
        program, environment = app.symbol, environment_of(app.body)
        ours = {name for name in environment if name.startswith("OUTBOX_")}
        for name in sorted(ours - variables_of(program)):
            yield f"{app.place} {name} is no setting of the {program}"
        for problem in lacking(program, ours):
            yield f"{app.place} {problem}"
        values = _values(made, program)
        for name in sorted(environment.keys() & values.keys()):
            if environment[name] != values[name]:
                yield f"{app.place} {name} of the {program} is {environment[name]}, not {values[name]}"
        resources = _container(app)["resources"]
        # The one ratio that the plan offers.
        if resources["memory"] != f"{resources['cpu'] * 2:g}Gi":
            yield f"{app.place} {resources['cpu']:g} CPU cannot be had with {resources['memory']}"
        profile = app.at("properties", "workloadProfileName")
        if profile not in profiles:
            yield f"{app.place} the environment has the profiles {profiles}, not {profile}"
        if app.at("identity", "type") != "UserAssigned":
            yield f"{app.place} must have an identity of its own"


def _values(made: Deployment, program: str) -> dict[str, str]:
    containers = {
        container.symbol: container for container in made.of_type(f"{_COSMOS}/sqlDatabases/containers")
    }
    data, parked = _CONTAINERS.get(program, ("data", "parked"))
    subscription = _consumed(made)
    return {
        "OUTBOX_COSMOS_ENDPOINT": f"{made.of_type(_COSMOS)[0].id}.properties.documentEndpoint",
        "OUTBOX_COSMOS_DATABASE": made.of_type(f"{_COSMOS}/sqlDatabases")[0].name,
        "OUTBOX_COSMOS_CONTAINER": containers[data].name,
        "OUTBOX_LEASE_CONTAINER": containers["leases"].name,
        "OUTBOX_PARKED_CONTAINER": containers[parked].name,
        "OUTBOX_SERVICEBUS_NAMESPACE": f"{made.of_type(_BUS)[0].name}.servicebus.windows.net",
        "OUTBOX_TOPIC": made.of_type(f"{_BUS}/topics")[0].name,
        "OUTBOX_SUBSCRIPTION": subscription.name,
        "OUTBOX_DELETE_AFTER_PUBLISH": "*",
        "APPLICATIONINSIGHTS_CONNECTION_STRING": (
            f"{made.of_type('Microsoft.Insights/components')[0].id}.properties.ConnectionString"
        ),
    }


_PLACEHOLDER_PORT = 80


def apps_are_probed_where_they_listen(templates: Sequence[Template]) -> Iterator[str]:
    """
    Probes and ingress ask the port and the path that the image's own health check asks.
    """
    for app in deploy(templates, **RUNNING).of_type(APPS):
        path, port = health_of(_DOCKERFILE.read_text(encoding="utf-8"), app.symbol)
        expected = {("Startup", path, port), ("Liveness", path, port)}
        if app.symbol in _WITH_HEALTH:
            expected.add(("Readiness", "/readyz", port))
        asked = {_asked(probe) for probe in _container(app).get("probes", [])}
        if asked != expected:
            yield f"{app.place} is probed at {sorted(asked, key=str)}, not {sorted(expected, key=str)}"
        ingress = app.at("properties", "configuration", "ingress")
        if app.symbol in _WITH_HEALTH and ingress is not None:
            yield f"{app.place} needs no ingress"
        if ingress is not None and ingress.get("targetPort") != port:
            yield f"{app.place} listens on {port}; its ingress sends to {ingress.get('targetPort')}"
    for app in deploy(templates).of_type(APPS):
        ingress = app.at("properties", "configuration", "ingress")
        if ingress is not None and ingress.get("targetPort") != _PLACEHOLDER_PORT:
            yield f"{app.place} holds a placeholder, which listens on {_PLACEHOLDER_PORT}; its ingress sends elsewhere"


def _consumed(made: Deployment) -> Resource:
    """
    Return the subscription of the consumer.
    """
    return next(one for one in made.of_type(_SUBSCRIPTIONS) if one.symbol == "directory")


def consumers_follow_their_messages(templates: Sequence[Template]) -> Iterator[str]:
    """
    The number of consumers follows the messages of their own subscription, which they ask for as themselves.
    """
    made = deploy(templates, **RUNNING)
    for app in made.of_type(APPS):
        if app.symbol != "consumer":
            continue
        expected = {
            "type": "azure-servicebus",
            "identity": identity_of(made, app.symbol),
            "metadata": {
                "namespace": made.of_type(_BUS)[0].name,
                "topicName": made.of_type(f"{_BUS}/topics")[0].name,
                "subscriptionName": _consumed(made).name,
                "messageCount": "100",
            },
        }
        rules = app.at("properties", "template", "scale", "rules") or []
        if (given := [rule.get("custom") for rule in rules]) != [expected]:
            yield f"{app.place} the {app.symbol} scales by {given}, not {[expected]}"


def workers_follow_their_load(templates: Sequence[Template]) -> Iterator[str]:
    """
    Two workers at least, more while their cores are busy, and no more than the deployer says that there are leases.
    """
    most = 5
    rule = {"type": "cpu", "metadata": {"type": "Utilization", "value": "70"}}
    expected = {"minReplicas": 2, "maxReplicas": most, "rules": [{"name": "cpu", "custom": rule}]}
    for app in deploy(templates, **RUNNING, workerMaxReplicas=most).of_type(APPS):
        if app.symbol == "worker" and (given := app.at("properties", "template", "scale")) != expected:
            yield f"{app.place} the worker scales by {given}, not {expected}"


def _asked(probe: dict[str, Any]) -> tuple[object, object, object]:
    request = probe.get("httpGet", {})
    return probe.get("type"), request.get("path"), request.get("port")


def running_images_stay(templates: Sequence[Template]) -> Iterator[str]:
    """
    Deploying the template again leaves each app with the image that it runs, and its probes with it.
    """
    for app in deploy(templates, **RUNNING).of_type(APPS):
        running = f"{app.id}.properties.template.containers[0].image"
        if (given := _container(app)["image"]) != running:
            yield f"{app.place} the {app.symbol} gets the image {given} instead of the one that it runs"
    for platform in ("containerapps", "aks"):
        made = deploy(templates, **RUNNING, workerPlatform=platform)
        for asked in made.resources:
            if asked.type == APPS and asked.existing and made.find(asked.id) is None:
                yield f"{asked.place} {asked.name} is asked for its image, and is not there"
    for app in deploy(templates).of_type(APPS):
        if _container(app).get("probes"):
            yield f"{app.place} probes fail on the placeholder of the {app.symbol}"


def apps_stay_up(templates: Sequence[Template]) -> Iterator[str]:
    """
    At least two of each, whatever is asked for, with time to give back what they hold and no time to loiter.
    """
    for template in templates:
        for name in ("workerMaxReplicas", "consumerMaxReplicas", "maxReplicas"):
            asked = template.parameters.get(name)
            if asked is not None and (asked.minimum or 0) < 2:  # noqa: PLR2004 # one may fail
                yield f"{template.path.name}:{asked.line}: may run with fewer than two replicas"
    for app in deploy(templates, **RUNNING).of_type(APPS):
        if app.at("properties", "template", "scale", "minReplicas") in (None, 0, 1):
            yield f"{app.place} may run with fewer than two replicas"
        allowed = app.at("properties", "template", "terminationGracePeriodSeconds")
        if misjudged := misjudged_end(app.symbol, environment_of(app.body), allowed):
            yield f"{app.place} {misjudged}"


def _container(app: Resource) -> dict[str, Any]:
    containers: list[dict[str, Any]] = app.at("properties", "template", "containers")
    return containers[0]
