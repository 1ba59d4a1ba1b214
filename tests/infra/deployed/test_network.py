"""
Tests of the private networking: public access is off, and each service has an endpoint that the apps find and reach.
"""

from __future__ import annotations

import ipaddress

import pytest

from tests.infra.deployed.snapshots import BUS, COSMOS, EVERY, INFRA, deployed

NETWORK = "Microsoft.Network"
ENDPOINTS = f"{NETWORK}/privateEndpoints"
ZONES = f"{NETWORK}/privateDnsZones"
# For each private endpoint: the service to which it leads, the part of that service, and its private DNS zone.
EXPECTED = {
    "pep-cosmos-token": (f"{COSMOS}/cosmos-token", "Sql", "privatelink.documents.azure.com"),
    "pep-servicebus-token": (f"{BUS}/sbns-token", "namespace", "privatelink.servicebus.windows.net"),
}


@pytest.mark.parametrize("name", EVERY)
def test_without_private_networking_no_network_is_deployed(name: str):
    """
    Without private networking, the services are open to the public network, and no network costs anything.
    """
    made, private = deployed(name), name == "private-network"
    access = {made.one(kind)["properties"]["publicNetworkAccess"] for kind in (COSMOS, BUS)}

    assert {"Disabled" if private else "Enabled"} == access
    assert private == any(one["type"].startswith(f"{NETWORK}/") for one in made.resources)


@pytest.mark.parametrize("name", EVERY)
def test_no_app_is_reachable_from_the_internet_by_default(name: str):
    configured = {app: one["properties"]["configuration"] for app, one in deployed(name).apps().items()}
    ingress = {app: one["ingress"] for app, one in configured.items() if "ingress" in one}

    assert {"api": False} == {app: one["external"] for app, one in ingress.items()}


def test_each_service_has_a_private_endpoint():
    """
    Service Bus has the tier Premium with private networking, because its private endpoints need that tier.
    """
    made = deployed("private-network")
    connections = {
        name: connection["properties"]
        for name, endpoint in made.properties(ENDPOINTS).items()
        for connection in endpoint["privateLinkServiceConnections"]
    }

    assert {
        name: {"privateLinkServiceId": service, "groupIds": [group]}
        for name, (service, group, _) in EXPECTED.items()
    } == connections
    assert {"name": "Premium", "tier": "Premium", "capacity": 1} == made.one(BUS)["sku"]


def test_each_network_resolves_a_service_s_name_to_its_endpoint():
    made = deployed("private-network")
    zones = {
        one["id"].split("/")[2]: one["properties"]["privateDnsZoneConfigs"][0]["properties"][
            "privateDnsZoneId"
        ]
        for one in made.resources
        if one["type"] == f"{ENDPOINTS}/privateDnsZoneGroups"
    }
    links = {
        (one["id"].split("/")[2], one["properties"]["virtualNetwork"]["id"].rpartition("/")[2])
        for one in made.resources
        if one["type"] == f"{ZONES}/virtualNetworkLinks" and one["properties"]["registrationEnabled"] is False
    }

    assert {name: f"{ZONES}/{zone}" for name, (*_, zone) in EXPECTED.items()} == zones
    assert {(zone, net) for *_, zone in EXPECTED.values() for net in ("vnet-token", "vnet-peer")} == links


def test_only_the_apps_and_peered_networks_can_reach_the_endpoints():
    made = deployed("private-network")
    network = made.one(f"{NETWORK}/virtualNetworks")
    apps, endpoints = ({**one["properties"], "name": one["name"]} for one in network["properties"]["subnets"])
    spaces = [ipaddress.ip_network(one["addressPrefix"]) for one in (apps, endpoints)]
    whole = ipaddress.ip_network(network["properties"]["addressSpace"]["addressPrefixes"][0])
    group = made.one(f"{NETWORK}/networkSecurityGroups")
    allowed, denied = (rule["properties"] for rule in group["properties"]["securityRules"])

    assert all(space.subnet_of(whole) for space in spaces)
    assert not spaces[0].overlaps(spaces[1])
    assert ["Microsoft.App/environments"] == [one["properties"]["serviceName"] for one in apps["delegations"]]
    assert (
        f"{network['id']}/subnets/{apps['name']}"
        == (
            made.one("Microsoft.App/managedEnvironments")["properties"]["vnetConfiguration"][
                "infrastructureSubnetId"
            ]
        )
    )
    assert {f"{network['id']}/subnets/{endpoints['name']}"} == {
        one["subnet"]["id"] for one in made.properties(ENDPOINTS).values()
    }
    # Network policies have to be on, because otherwise the security group does not apply to private endpoints.
    assert ({"id": group["id"]}, "Enabled") == (
        endpoints["networkSecurityGroup"],
        endpoints["privateEndpointNetworkPolicies"],
    )
    assert {
        "direction": "Inbound",
        "access": "Allow",
        "protocol": "Tcp",
        "priority": 100,
        "sourcePortRange": "*",
        "sourceAddressPrefixes": [apps["addressPrefix"], "10.224.0.0/16"],
        "destinationAddressPrefix": endpoints["addressPrefix"],
        "destinationPortRanges": ["443", "5671"],
    } == allowed
    every = (
        "protocol",
        "sourceAddressPrefix",
        "sourcePortRange",
        "destinationAddressPrefix",
        "destinationPortRange",
    )
    assert {"direction": "Inbound", "access": "Deny", "priority": 4096, **dict.fromkeys(every, "*")} == denied


def test_an_app_is_created_after_its_roles_and_endpoints():
    """
    An app would fail before its roles and endpoints exist.

    The snapshots do not show which resource waits for which, so the test reads the template.
    """
    blocks = (INFRA / "main.bicep").read_text().split("\nmodule ")
    waits = {
        block.partition(" ")[0]: block.partition("dependsOn: [")[2].partition("]")[0].split()
        for block in blocks
    }

    called = ["cosmosRoles", "cosmosEndpoint", "serviceBusEndpoint"]
    assert (called[:2], called, called) == (waits["api"], waits["worker"], waits["consumer"])
