"""
Whether everything is connected to what it is meant for: ids name what is made, and each service has its own identity.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from tools.infra_check.bicep import Template
from tools.infra_check.deployment import Deployment, deploy
from tools.infra_check.environments import environment_of
from tools.infra_check.grants import IDENTITIES, identity_of

_ACCOUNT = "Microsoft.DocumentDB/databaseAccounts"
_BUS = "Microsoft.ServiceBus/namespaces"
_REGISTRY = "Microsoft.ContainerRegistry/registries"
_INSIGHTS = "Microsoft.Insights/components"
_APPS = "Microsoft.App/containerApps"
_WORKSPACE = "Microsoft.OperationalInsights/workspaces"
# A property that holds an id, and of what.
_IDS = {
    "WorkspaceResourceId": {_WORKSPACE},
    "workspaceId": {_WORKSPACE},
    "environmentId": {"Microsoft.App/managedEnvironments"},
    "privateDnsZoneId": {"Microsoft.Network/privateDnsZones"},
    "privateLinkServiceId": {_ACCOUNT, _BUS},
}
# Without it, that kind of resource reports nowhere.
_REPORTING = {_INSIGHTS: "WorkspaceResourceId", "Microsoft.Insights/diagnosticSettings": "workspaceId"}
# Who signs in from a cluster, as which service account; the others' are in the manifests.
_SERVICE_ACCOUNTS = {"keda": "system:serviceaccount:keda:keda-operator"}
_KUBERNETES = Path(__file__).parents[2] / "infra/kubernetes"


def ids_name_what_is_made(templates: Sequence[Template]) -> Iterator[str]:
    """
    Each id names a resource of this deployment that is of the right type; so does what a module calls existing.
    """
    made = deploy(templates, privateNetworking=True)
    for resource in made.resources:
        if resource.existing and made.find(resource.id) is None:
            yield f"{resource.place} refers to {resource.id}, which nothing makes"
        for name, value in _properties(resource.body):
            found = made.find(value)
            if name in _IDS and (found is None or found.type not in _IDS[name]):
                yield f"{resource.place} {name} is {value}, which is no {' or '.join(sorted(_IDS[name]))}"
        needed = _REPORTING.get(resource.type)
        if needed is not None and not resource.existing and resource.at("properties", needed) is None:
            yield f"{resource.place} has no {needed}"


def _properties(node: object) -> Iterator[tuple[str, Any]]:
    children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    if isinstance(node, dict):
        yield from node.items()
    for child in children:
        yield from _properties(child)


def services_sign_in_as_themselves(templates: Sequence[Template]) -> Iterator[str]:
    """
    An app runs, pulls its image and signs in with the identity that has its name.
    """
    made = deploy(templates)
    server = _of(made, _REGISTRY, "properties.loginServer")
    for app in made.of_type(_APPS):
        own = identity_of(made, app.symbol)
        given = {
            "identity": app.at("identity", "userAssignedIdentities"),
            "registries": app.at("properties", "configuration", "registries"),
            "AZURE_CLIENT_ID": environment_of(app.body).get("AZURE_CLIENT_ID"),
        }
        expected = {
            "identity": {own: {}},
            "registries": [{"server": server, "identity": own}],
            "AZURE_CLIENT_ID": f"{own}.properties.clientId",
        }
        for what, value in expected.items():
            if given[what] != value:
                yield f"{app.place} {what} of the {app.symbol} is {given[what]}, not {value}"


def clusters_sign_in_as_theirs(templates: Sequence[Template]) -> Iterator[str]:
    """
    A service account of the cluster becomes the identity of what runs as it.
    """
    made = deploy(templates, workerPlatform="aks", aksOidcIssuerUrl="issuer")
    accounts = _SERVICE_ACCOUNTS | dict(_service_accounts_of_pods())
    federated = {
        credential.at("parent"): credential.at("properties")
        for credential in made.of_type(f"{IDENTITIES}/federatedIdentityCredentials")
    }
    for service, subject in accounts.items():
        expected = {"issuer": "issuer", "subject": subject, "audiences": ["api://AzureADTokenExchange"]}
        if (given := federated.get(identity_of(made, service))) != expected:
            yield f"the {service} signs in from a cluster by {given}, not {expected}"


def _service_accounts_of_pods() -> Iterator[tuple[str, str]]:
    for service, file in (("worker", "service-account.yaml"), ("consumer", "consumer.yaml")):
        documents = yaml.safe_load_all((_KUBERNETES / file).read_text(encoding="utf-8"))
        metadata = next(one["metadata"] for one in documents if one["kind"] == "ServiceAccount")
        yield service, f"system:serviceaccount:{metadata['namespace']}:{metadata['name']}"


def outputs_tell_the_truth(templates: Sequence[Template]) -> Iterator[str]:
    """
    What azd keeps for the deployer, or fills in the manifests, is what its name says.
    """
    made = deploy(templates, workerPlatform="aks", aksOidcIssuerUrl="issuer")
    expected = {
        "API_URL": f"https://{_of(made, _APPS, 'properties.configuration.ingress.fqdn')}",
        "AZURE_CONTAINER_REGISTRY_ENDPOINT": _of(made, _REGISTRY, "properties.loginServer"),
        "OUTBOX_COSMOS_ENDPOINT": _of(made, _ACCOUNT, "properties.documentEndpoint"),
        "OUTBOX_SERVICEBUS_NAMESPACE": f"{made.of_type(_BUS)[0].name}.servicebus.windows.net",
        "APPLICATIONINSIGHTS_CONNECTION_STRING": _of(made, _INSIGHTS, "properties.ConnectionString"),
        **{
            f"{service.upper()}_CLIENT_ID": f"{identity_of(made, service)}.properties.clientId"
            for service in ("worker", "consumer", "keda", "subscriber")
        },
    }
    for name, value in expected.items():
        if (given := made.outputs.get(name)) != value:
            yield f"the output {name} is {given}, not {value}"
    running: dict[str, object] = {"apiExists": True, "workerExists": True, "consumerExists": True}
    for asked, left in (
        ({}, True),
        ({"apiExists": True}, True),
        (running, False),
        ({"workerPlatform": "aks"}, True),
        (running | {"workerPlatform": "aks"}, False),
    ):
        if (given := deploy(templates, **asked).outputs.get("PLACEHOLDER_LEFT")) is not left:
            yield f"the output PLACEHOLDER_LEFT is {given}, not {left}, with {asked}"


def _of(made: Deployment, resource_type: str, attribute: str) -> str:
    return f"{made.of_type(resource_type)[0].id}.{attribute}"
