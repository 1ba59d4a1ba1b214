"""
Private networking is whole: closed doors, endpoints, names that lead to them, and a way from the apps to them.
"""

from __future__ import annotations

import ipaddress

import pytest

from tests.infra.deployed.snapshots import BUS, COSMOS, EVERY, INFRA, deployed

NETWORK = "Microsoft.Network"
ENDPOINTS = f"{NETWORK}/privateEndpoints"
ZONES = f"{NETWORK}/privateDnsZones"
# Each endpoint, the service and what of it it stands for, and the zone of the service's name then.
EXPECTED = {
    "pep-cosmos-token": (f"{COSMOS}/cosmos-token", "Sql", "privatelink.documents.azure.com"),
    "pep-servicebus-token": (f"{BUS}/sbns-token", "namespace", "privatelink.servicebus.windows.net"),
}


@pytest.mark.parametrize("name", EVERY)
def test_without_private_networking_nothing_is_closed_and_there_is_no_network_to_pay_for(name: str):
    made, private = deployed(name), name == "private-network"
    access = {made.one(kind)["properties"]["publicNetworkAccess"] for kind in (COSMOS, BUS)}

    assert {"Disabled" if private else "Enabled"} == access
    assert private == any(one["type"].startswith(f"{NETWORK}/") for one in made.resources)


@pytest.mark.parametrize("name", EVERY)
def test_no_app_is_on_the_internet_unasked(name: str):
    configured = {app: one["properties"]["configuration"] for app, one in deployed(name).apps().items()}
    ingress = {app: one["ingress"] for app, one in configured.items() if "ingress" in one}

    assert {"api": False} == {app: one["external"] for app, one in ingress.items()}


def test_each_service_has_an_endpoint_for_what_is_used_of_it_and_premium_where_it_takes_that():
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


def test_each_name_leads_to_its_endpoint_in_each_network_that_asks():
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


def test_the_apps_and_the_peers_reach_the_endpoints_and_no_other_source_does():
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
    # Without the policy the group does not apply to endpoints.
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


def test_an_app_is_made_after_its_rights_and_after_the_endpoints_of_what_it_calls():
    """It would fail, or be refused, before. A snapshot does not show what waits for what."""
    blocks = (INFRA / "main.bicep").read_text().split("\nmodule ")
    waits = {
        block.partition(" ")[0]: block.partition("dependsOn: [")[2].partition("]")[0].split()
        for block in blocks
    }

    called = ["cosmosRoles", "cosmosEndpoint", "serviceBusEndpoint"]
    assert (called[:2], called, called) == (waits["api"], waits["worker"], waits["consumer"])
