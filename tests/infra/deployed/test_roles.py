"""
Tests that a deployment assigns exactly the roles that each identity needs, each on the smallest possible resource.
"""

from __future__ import annotations

import itertools
import re

import pytest
import yaml

from tests.infra.deployed.snapshots import (
    BUS,
    COSMOS,
    IDENTITIES,
    INFRA,
    INSIGHTS,
    REGISTRY,
    Resource,
    deployed,
    identity,
)

ROLES = {
    "69a216fc-b8fb-44d8-bc22-1f3c2cd27a39": "Service Bus Data Sender",
    "4f6d3b9b-027b-4f4c-9142-0e5a2a2247e0": "Service Bus Data Receiver",
    "7f951dda-4ed3-4680-a7ca-43fe172d538d": "AcrPull",
    "3913510d-42f4-4e42-8a64-420c390055eb": "Monitoring Metrics Publisher",
    "acdd72a7-3385-48ef-bd42-f606fba81ae7": "Reader",
}
TOPIC = f"{BUS}/sbns-token/topics/events"
GRANTED = {
    ("worker", "Service Bus Data Sender", TOPIC),
    ("consumer", "Service Bus Data Receiver", f"{TOPIC}/subscriptions/directory"),
    *((service, "AcrPull", f"{REGISTRY}/crtoken") for service in ("api", "worker", "consumer")),
    *(
        (service, "Monitoring Metrics Publisher", f"{INSIGHTS}/appi-token")
        for service in ("api", "worker", "consumer")
    ),
}
READ_FEED = {"readMetadata", "readChangeFeed", "executeQuery"}
READ = {"readMetadata", "items/read", "executeQuery"}
WRITE = READ | {f"items/{verb}" for verb in ("create", "replace", "delete")}
# The data actions that each identity has on each container.
DOCUMENTS = {
    # The API only marks entities as deleted. So an attacker who takes it over cannot delete events that are not sent yet.
    ("api", "data"): WRITE - {"items/delete"},
    ("worker", "data"): READ_FEED,
    ("worker", "leases"): WRITE,
    ("worker", "parked"): WRITE,
    ("consumer", "directory"): WRITE,
    ("consumer", "directory-parked"): WRITE,
}
OPERATED = {
    ("worker", "data"): READ_FEED | {"items/delete"},
    ("operator", "data"): READ_FEED,
    ("operator", "leases"): READ,
    ("operator", "parked"): WRITE,
    # When an operator releases a parked key, the command runs the consumer's handlers, which write to these containers.
    ("operator", "directory"): WRITE,
    ("operator", "directory-parked"): WRITE,
    ("lease operator", "leases"): WRITE,
}
GIVEN = {"a": "operator", "b": "lease operator", "c": "further reader"}


def holder_of(assignment: Resource) -> str:
    """Return whose role an assignment is: the name of a service, or of the group that the parameters name."""
    principal = assignment["properties"]["principalId"]
    service = re.fullmatch(rf"\[{IDENTITIES}/id-(\w+)-token\.principalId\]", principal)
    return service[1] if service else GIVEN.get(principal[0], principal)


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("defaults", set()),
        # On a cluster, KEDA reads from Service Bus how many messages wait.
        ("aks", {("keda", "Reader", f"{TOPIC}/subscriptions/directory")}),
        (
            "operated",
            {
                ("operator", "Service Bus Data Sender", TOPIC),
                ("further reader", "Service Bus Data Receiver", f"{TOPIC}/subscriptions/billing"),
            },
        ),
    ],
)
def test_each_role_is_assigned_only_on_the_resource_that_needs_it(name: str, more: set[tuple[str, str, str]]):
    granted = []
    for one in deployed(name).resources:
        if one["type"] == "Microsoft.Authorization/roleAssignments":
            scope = re.match(
                r"\[extensionResourceId\('([^']+)'|(.+)/providers/Microsoft.Authorization/", one["id"]
            )
            assert scope is not None
            role = ROLES[one["properties"]["roleDefinitionId"].rpartition("/")[2]]
            granted.append((holder_of(one), role, scope[1] or scope[2]))
            # The operators are a group of people. All other identities that get a role are services.
            kind = "Group" if holder_of(one) == "operator" else "ServicePrincipal"
            assert kind == one["properties"]["principalType"]

    assert sorted(GRANTED | more) == sorted(granted)


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("defaults", {}),
        ("aks", {("keda", "data"): READ_FEED, ("keda", "leases"): READ}),
        ("operated", OPERATED),
    ],
)
def test_each_identity_has_only_the_data_actions_that_it_needs(
    name: str, more: dict[tuple[str, str], set[str]]
):
    made = deployed(name)
    actions = {
        one["id"]: {
            action.removeprefix(f"{COSMOS}/").removeprefix("sqlDatabases/containers/")
            for permission in one["properties"]["permissions"]
            for action in permission["dataActions"]
        }
        for one in made.of_type(f"{COSMOS}/sqlRoleDefinitions").values()
    }
    granted: dict[tuple[str, str], set[str]] = {}
    signing_in = []
    for one in (one for one in made.resources if one["type"] == f"{COSMOS}/sqlRoleAssignments"):
        account, _, container = one["properties"]["scope"].partition("/dbs/contacts/colls/")
        given = actions[one["properties"]["roleDefinitionId"]]
        assert f"{COSMOS}/cosmos-token" == account
        if container:
            granted[holder_of(one), container] = granted.get((holder_of(one), container), set()) | given
        else:
            # On the whole account, an identity may only read the account's description, as each SDK does when it connects.
            assert {"readMetadata"} == given
            signing_in.append(holder_of(one))

    assert DOCUMENTS | more == granted
    assert sorted({holder for holder, _ in granted}) == sorted(signing_in)


def test_changes_of_cosmos_db_roles_are_deployed_one_after_another():
    """
    An account may refuse two changes of its roles at once.

    The snapshots do not show which resource waits for which, so the test reads the template.
    """
    text = (INFRA / "modules/cosmos-roles.bicep").read_text()
    roles = {}
    for block in re.split(r"(?m)^resource ", text)[1:]:
        if "/sqlRole" in block.partition("\n")[0]:
            waits = block.partition("dependsOn: [")[2].partition("]")[0].split()
            waits += re.findall(r"roleDefinitionId: (\w+)\.id", block)
            conditions = re.findall(
                r"if \((\w+)\)|(?<=in )(union|\w*[oO]perator\w*)", block.partition("\n")[0]
            )
            roles[block.partition(" ")[0]] = (waits, {"".join(found) for found in conditions})
    choices = ("workerDeletes", "withKeda", "operatorPrincipalIds", "leaseOperatorPrincipalIds")
    assert {*choices, "union"} == set().union(*(conditions for _, conditions in roles.values()))
    for chosen in itertools.product((False, True), repeat=len(choices)):
        there = {choice for choice, taken in zip(choices, chosen, strict=True) if taken}
        if there & set(choices[2:]):
            # A resource with the condition `union(…)` is deployed if at least one of the two lists names an operator.
            there.add("union")
        before: dict[str, set[str]] = {}
        for name, (waits, conditions) in roles.items():
            # Look only at resources that are deployed: a deployment does not wait for a resource that it leaves out.
            if conditions <= there:
                named = before.keys() & set(waits)
                before[name] = named.union(*(before[other] for other in named))
        assert list(range(len(before))) == [len(earlier) for earlier in before.values()], there


@pytest.mark.parametrize("name", ["defaults", "aks"])
def test_each_app_uses_its_own_identity_to_sign_in_and_pull_its_image(name: str):
    for service, app in deployed(name).apps().items():
        registries = app["properties"]["configuration"]["registries"]
        (container,) = app["properties"]["template"]["containers"]
        server = f"[{REGISTRY}/crtoken.loginServer]"

        assert {"type": "UserAssigned", "userAssignedIdentities": {identity(service): {}}} == app["identity"]
        assert [{"server": server, "identity": identity(service)}] == registries
        assert {"name": "AZURE_CLIENT_ID", "value": f"[{identity(service)}.clientId]"} in container["env"]


def test_each_service_account_of_the_cluster_is_federated_with_an_identity():
    accounts = {"keda": "keda:keda-operator"}  # the accounts of worker and consumer are in the manifests
    for service, file in (("worker", "service-account.yaml"), ("consumer", "consumer.yaml")):
        documents = yaml.safe_load_all((INFRA / f"kubernetes/{file}").read_text())
        metadata = next(one["metadata"] for one in documents if one["kind"] == "ServiceAccount")
        accounts[service] = f"{metadata['namespace']}:{metadata['name']}"
    federated = {
        one["id"].removesuffix("/federatedIdentityCredentials/aks"): one["properties"]
        for one in deployed("aks").resources
        if one["type"].endswith("/federatedIdentityCredentials")
    }

    audience = {"issuer": "https://issuer.example", "audiences": ["api://AzureADTokenExchange"]}
    assert {
        identity(service): {**audience, "subject": f"system:serviceaccount:{account}"}
        for service, account in accounts.items()
    } == federated
