"""The snapshots are those of the template as it is, and whole."""

from __future__ import annotations

import re

import pytest

from tests.infra.deployed.snapshots import EVERY, INFRA, deployed, nested
from tools.infra_check.snapshots import HASH, sources_hash

# The one subnet of a network is part of it.
SUBNET = re.compile(r"/subnets/\w+$")
BUILT_IN = re.compile(r"^Microsoft\.Authorization/roleDefinitions/|/sqlRoleDefinitions/0{8}-")
ID = re.compile(r"Microsoft\.\w+(?:/[\w.-]+){2,}")
EVERYWHERE = {"actionGroups", "metricAlerts", "privateDnsZones", "virtualNetworkLinks"}


def test_the_snapshots_are_those_of_the_template_as_it_is():
    assert HASH.read_text().strip() == sources_hash(), (
        "infra/snapshots is stale: run make snapshots (it needs bicep)"
    )


def test_there_is_a_snapshot_of_each_file_of_parameters():
    assert EVERY == sorted(file.stem for file in (INFRA / "parameters").glob("*.bicepparam"))


@pytest.mark.parametrize("name", EVERY)
def test_the_engine_could_evaluate_everything(name: str):
    assert [] == deployed(name).diagnostics


@pytest.mark.parametrize("name", EVERY)
def test_every_id_names_what_is_made(name: str):
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
def test_what_azd_made_is_found_by_its_tag_and_is_where_it_was_asked_for(name: str):
    for resource in deployed(name).resources:
        if "location" in resource:
            kind = resource["type"].rpartition("/")[2]
            assert ("global" if kind in EVERYWHERE else "westeurope") == resource["location"]
            assert "azd-env-name" in resource["tags"], resource["id"]
            assert (name == "operated") == ("cost-center" in resource["tags"]), resource["id"]


@pytest.mark.parametrize("name", EVERY)
def test_no_key_is_written_down_or_asked_for(name: str):
    text = (INFRA / f"snapshots/{name}.json").read_text()

    assert [] == re.findall(r"(?i)\blist\w+\(|Endpoint=sb|AccountKey|SharedAccess|sharedKey|password", text)


@pytest.mark.parametrize("name", EVERY)
def test_keys_are_off_and_tls_is_on(name: str):
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


def test_a_name_is_microsofts_abbreviation_unless_the_deployer_gives_another():
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
