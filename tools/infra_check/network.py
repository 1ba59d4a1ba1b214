"""
Whether private networking is whole: closed doors, endpoints, names that lead to them, and a way from the apps to them.
"""

from __future__ import annotations

import ipaddress
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from tools.infra_check.bicep import Template
from tools.infra_check.deployment import Deployment, Resource, deploy

_NETWORK = "Microsoft.Network"
_ENDPOINTS = f"{_NETWORK}/privateEndpoints"
_ZONES = f"{_NETWORK}/privateDnsZones"
_COSMOS = "Microsoft.DocumentDB/databaseAccounts"
_BUS = "Microsoft.ServiceBus/namespaces"
_APPS = "Microsoft.App/containerApps"
# What of each service its endpoint stands for, the zone of its name then, and the port that clients ask there.
_SERVICES = {
    _COSMOS: ("Sql", "privatelink.documents.azure.com", "443"),
    _BUS: ("namespace", "privatelink.servicebus.windows.net", "5671"),
}
# What a rule that is for everything else leaves out of nothing.
_EVERYTHING = (
    "protocol",
    "sourceAddressPrefix",
    "sourcePortRange",
    "destinationAddressPrefix",
    "destinationPortRange",
)


def private_means_private(templates: Sequence[Template]) -> Iterator[str]:
    """
    With private networking each service is closed to the internet, and can be reached, by its own name, from the apps.
    """
    made = deploy(templates, privateNetworking=True)
    apps = _subnet(made, made.of_type("Microsoft.App/managedEnvironments")[0])
    if apps is None or [d["properties"] for d in apps["properties"].get("delegations", [])] != [
        {"serviceName": "Microsoft.App/environments"}
    ]:
        yield "network: the apps' environment is in no subnet that is delegated to it"
        return
    for kind, (group, zone, port) in _SERVICES.items():
        service = made.of_type(kind)[0]
        if service.at("properties", "publicNetworkAccess") != "Disabled":
            yield f"{service.place} {kind} stays open to the internet with privateNetworking"
        endpoint = _endpoint(made, service, group)
        if endpoint is None:
            yield f"{service.place} {kind} has no private endpoint for {group}"
            continue
        yield from _names(made, endpoint, zone)
        yield from _way(made, apps, endpoint, port)
    if made.of_type(_BUS)[0].at("sku") != {"name": "Premium", "tier": "Premium", "capacity": 1}:
        yield "private endpoints of Service Bus need Premium"


def public_means_reachable(templates: Sequence[Template]) -> Iterator[str]:
    """
    Without private networking nothing is closed, there is no network to pay for, and no app is on the internet unasked.
    """
    made = deploy(templates)
    for kind in _SERVICES:
        service = made.of_type(kind)[0]
        if service.at("properties", "publicNetworkAccess") != "Enabled":
            yield f"{service.place} {kind} cannot be reached without privateNetworking"
    for resource in made.resources:
        if resource.type.startswith(f"{_NETWORK}/"):
            yield f"{resource.place} {resource.type} is made without privateNetworking"
    for app in made.of_type(_APPS):
        if app.at("properties", "configuration", "ingress", "external"):
            yield f"{app.place} {app.name} is on the internet unasked"


def subnets_fit(templates: Sequence[Template]) -> Iterator[str]:
    """
    Subnets lie in their network and do not overlap.
    """
    for network in deploy(templates, privateNetworking=True).of_type(f"{_NETWORK}/virtualNetworks"):
        spaces = [
            ipaddress.ip_network(p) for p in network.at("properties", "addressSpace", "addressPrefixes")
        ]
        subnets = {
            subnet["name"]: ipaddress.ip_network(subnet["properties"]["addressPrefix"])
            for subnet in network.at("properties", "subnets")
        }
        for name, subnet in subnets.items():
            if not any(subnet.subnet_of(space) for space in spaces):  # type: ignore[arg-type] # both of one version
                yield f"{network.place} the subnet {name} is outside of its network"
        for (one, its), (other, others) in itertools.combinations(subnets.items(), 2):
            if its.overlaps(others):
                yield f"{network.place} the subnets {one} and {other} overlap"


def apps_start_last(templates: Sequence[Template]) -> Iterator[str]:
    """
    An app is made after its rights and after the endpoints of what it calls: it would fail, or be refused, before.
    """
    main = templates[0]
    makes = {
        t.path.name: {resource.type for resource in t.resources if not resource.existing} for t in templates
    }
    modules = [(module, makes.get(module.type.rpartition("/")[2], set())) for module in main.modules]
    for app, types in modules:
        if _APPS not in types:
            continue
        waits = {str(symbol) for symbol in _list(app.body.at("dependsOn"))}
        called = str(app.body.at("params"))
        needed = {
            module.symbol
            for module, made in modules
            if f"{_COSMOS}/sqlRoleAssignments" in made
            or (
                _ENDPOINTS in made and str(module.body.at("params", "targetId")).split(".")[0] + "." in called
            )
        }
        for missing in sorted(needed - waits):
            yield f"{main.path.name}:{app.line}: {app.symbol} does not wait for {missing}"


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _subnet(made: Deployment, environment: Resource) -> dict[str, Any] | None:
    return _subnet_of(made, environment.at("properties", "vnetConfiguration", "infrastructureSubnetId"))


def _subnet_of(made: Deployment, subnet_id: object) -> dict[str, Any] | None:
    network, _, name = str(subnet_id).partition("/subnets/")
    found = made.find(network)
    subnets = found.at("properties", "subnets") if found is not None else []
    return next((subnet for subnet in subnets if subnet["name"] == name), None)


def _endpoint(made: Deployment, service: Resource, group: str) -> Resource | None:
    wanted = {"privateLinkServiceId": service.id, "groupIds": [group]}
    for endpoint in made.of_type(_ENDPOINTS):
        connections = _list(endpoint.at("properties", "privateLinkServiceConnections"))
        if [connection["properties"] for connection in connections] == [wanted]:
            return endpoint
    return None


def _names(made: Deployment, endpoint: Resource, zone: str) -> Iterator[str]:
    zone_id = f"/{_ZONES}/{zone}"
    recorded = {
        config["properties"]["privateDnsZoneId"]
        for group in made.of_type(f"{_ENDPOINTS}/privateDnsZoneGroups")
        if group.at("parent") == endpoint.id
        for config in group.at("properties", "privateDnsZoneConfigs")
    }
    if made.find(zone_id) is None or recorded != {zone_id}:
        yield f"{endpoint.place} the name behind {endpoint.name} is not in {zone}: it leads to the public address"
    network = str(endpoint.at("properties", "subnet", "id")).partition("/subnets/")[0]
    linked = {
        link.at("properties", "virtualNetwork", "id")
        for link in made.of_type(f"{_ZONES}/virtualNetworkLinks")
        if link.at("parent") == zone_id and link.at("properties", "registrationEnabled") is False
    }
    if network not in linked:
        yield f"{endpoint.place} the network of {endpoint.name} does not ask {zone}"


def _way(made: Deployment, apps: dict[str, Any], endpoint: Resource, port: str) -> Iterator[str]:
    subnet = _subnet_of(made, endpoint.at("properties", "subnet", "id"))
    guarded = (subnet or {}).get("properties", {})
    group = made.find(guarded.get("networkSecurityGroup", {}).get("id"))
    if group is None or guarded.get("privateEndpointNetworkPolicies") != "Enabled":
        yield f"{endpoint.place} no rule guards the endpoint {endpoint.name}"
        return
    rules = [rule["properties"] for rule in group.at("properties", "securityRules")]
    rules = sorted((rule for rule in rules if rule["direction"] == "Inbound"), key=lambda r: r["priority"])
    if {rules[-1]["access"]} | {rules[-1].get(name) for name in _EVERYTHING} != {"Deny", "*"}:
        yield f"{group.place} everybody in the network reaches the endpoints"
    let_in = [
        rule
        for rule in rules
        if rule["access"] == "Allow"
        and (rule["protocol"], rule["sourcePortRange"]) == ("Tcp", "*")
        and apps["properties"]["addressPrefix"] in _both(rule, "sourceAddressPrefix")
        and guarded["addressPrefix"] in _both(rule, "destinationAddressPrefix")
        and port in _both(rule, "destinationPortRange", "s")
    ]
    if not let_in:
        yield f"{group.place} keeps the apps from {endpoint.name}, port {port}"


def _both(rule: dict[str, Any], name: str, plural: str = "es") -> list[Any]:
    return [rule.get(name), *_list(rule.get(f"{name}{plural}"))]
