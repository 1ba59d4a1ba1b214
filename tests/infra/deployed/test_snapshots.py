"""Tests that the snapshots are up to date and complete, and that they contain no secrets."""

from __future__ import annotations

import re

import pytest

from tests.infra.deployed.snapshots import EVERY, INFRA, deployed, nested
from tools.infra_check.snapshots import HASH, sources_hash

# A subnet has no resource of its own: it is part of its network.
SUBNET = re.compile(r"/subnets/\w+$")
BUILT_IN = re.compile(r"^Microsoft\.Authorization/roleDefinitions/|/sqlRoleDefinitions/0{8}-")
ID = re.compile(r"Microsoft\.\w+(?:/[\w.-]+){2,}")
EVERYWHERE = {"actionGroups", "metricAlerts", "privateDnsZones", "virtualNetworkLinks"}


def test_the_snapshots_are_up_to_date_with_the_template():
    assert HASH.read_text().strip() == sources_hash(), (
        "infra/snapshots is stale: run make snapshots (it needs bicep)"
    )


def test_each_file_of_parameters_has_a_snapshot():
    assert EVERY == sorted(file.stem for file in (INFRA / "parameters").glob("*.bicepparam"))


@pytest.mark.parametrize("name", EVERY)
def test_the_deployment_engine_reported_no_problem(name: str):
    assert [] == deployed(name).diagnostics


@pytest.mark.parametrize("name", EVERY)
def test_every_id_in_a_snapshot_names_a_resource_of_the_deployment(name: str):
    made = deployed(name)
    named = {
        SUBNET.sub("", value)
        for resource in made.resources
        for key, value in nested(resource.get("properties", {}))
        if isinstance(value, str) and ID.fullmatch(value) and "/dbs/" not in value
    }
    named -= {value for value in named if BUILT_IN.search(value)}

    assert len(named) > 5
    assert (set(), set()) == (named - made.ids, made.referenced - made.ids)


@pytest.mark.parametrize("name", EVERY)
def test_each_resource_has_the_tag_of_azd_and_the_requested_location(name: str):
    for resource in deployed(name).resources:
        if "location" in resource:
            kind = resource["type"].rpartition("/")[2]
            assert ("global" if kind in EVERYWHERE else "westeurope") == resource["location"]
            assert "azd-env-name" in resource["tags"], resource["id"]
            assert (name == "operated") == ("cost-center" in resource["tags"]), resource["id"]


@pytest.mark.parametrize("name", EVERY)
def test_no_snapshot_contains_or_requests_a_key(name: str):
    text = (INFRA / f"snapshots/{name}.json").read_text()

    assert [] == re.findall(r"(?i)\blist\w+\(|Endpoint=sb|AccountKey|SharedAccess|sharedKey|password", text)


@pytest.mark.parametrize("name", EVERY)
def test_the_services_disable_access_by_keys_and_require_tls(name: str):
    found = {
        (resource["type"].rpartition("/")[2], key): value
        for resource in deployed(name).resources
        for key, value in nested(resource.get("properties", {}))
        if re.search(r"(?i)localAuth|adminUser|anonymous|KeyBased|tls|insecure", key)
    }

    assert {
        ("workspaces", "disableLocalAuth"): True,
        ("components", "DisableLocalAuth"): True,
        ("databaseAccounts", "disableLocalAuth"): True,
        ("databaseAccounts", "disableKeyBasedMetadataWriteAccess"): True,
        ("databaseAccounts", "minimalTlsVersion"): "Tls12",
        ("namespaces", "disableLocalAuth"): True,
        ("namespaces", "minimumTlsVersion"): "1.2",
        ("registries", "adminUserEnabled"): False,
        ("registries", "anonymousPullEnabled"): False,
        ("containerApps", "allowInsecure"): False,
    } == found


def test_resource_names_begin_with_microsoft_s_abbreviations_by_default():
    prefixes = {
        kind.rpartition("/")[2]: {one.split("-token")[0] for one in deployed("private-network").of_type(kind)}
        for kind in {one["type"] for one in deployed("private-network").resources if "location" in one}
    }
    of_alerts = {"metricAlerts", "scheduledQueryRules", "privateDnsZones", "virtualNetworkLinks"}

    assert {
        "containerApps": {"ca-api", "ca-worker", "ca-consumer"},
        "databaseAccounts": {"cosmos"},
        "managedEnvironments": {"cae"},
        "namespaces": {"sbns"},
        "networkSecurityGroups": {"nsg-endpoints"},
        "privateEndpoints": {"pep-cosmos", "pep-servicebus"},
        "registries": {"crtoken"},
        "resourceGroups": {"rg-private"},
        "userAssignedIdentities": {"id-api", "id-worker", "id-consumer", "id-keda"},
        "virtualNetworks": {"vnet"},
        "workspaces": {"log"},
        "components": {"appi"},
    } == {kind: names for kind, names in prefixes.items() if kind not in of_alerts}
    assert {"ca-api", "ca-house-relay", "ca-house-directory"} == deployed("operated").of_type(
        "Microsoft.App/containerApps"
    ).keys()
    assert {"rg-house"} == deployed("operated").of_type("Microsoft.Resources/resourceGroups").keys()
