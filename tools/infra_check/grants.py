"""
Who may do what: every role that a deployment assigns is held against the rights that each identity needs.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence

from tools.infra_check.bicep import Template, plain
from tools.infra_check.deployment import Deployment, Resource, deploy

IDENTITIES = "Microsoft.ManagedIdentity/userAssignedIdentities"
_COSMOS = "Microsoft.DocumentDB/databaseAccounts"
_BUS = "Microsoft.ServiceBus/namespaces"
_REGISTRY = "Microsoft.ContainerRegistry/registries"
_ROLES = {
    "69a216fc-b8fb-44d8-bc22-1f3c2cd27a39": "Service Bus Data Sender",
    "4f6d3b9b-027b-4f4c-9142-0e5a2a2247e0": "Service Bus Data Receiver",
    "7f951dda-4ed3-4680-a7ca-43fe172d538d": "AcrPull",
    "3913510d-42f4-4e42-8a64-420c390055eb": "Monitoring Metrics Publisher",
    "acdd72a7-3385-48ef-bd42-f606fba81ae7": "Reader",
}
_SUBSCRIPTIONS = f"{_BUS}/topics/subscriptions"
# Who holds which role, and on what kind of resource, or which subscription; nothing else is granted.
_GRANTS = {
    ("Service Bus Data Sender", "worker", f"{_BUS}/topics"),
    ("Service Bus Data Receiver", "subscriber", f"{_SUBSCRIPTIONS} all"),
    ("Service Bus Data Receiver", "consumer", f"{_SUBSCRIPTIONS} directory"),
    ("Service Bus Data Sender", "operator", f"{_BUS}/topics"),
    ("AcrPull", "worker", _REGISTRY),
    ("AcrPull", "consumer", _REGISTRY),
    ("AcrPull", "api", _REGISTRY),
    ("Monitoring Metrics Publisher", "worker", "Microsoft.Insights/components"),
    ("Monitoring Metrics Publisher", "consumer", "Microsoft.Insights/components"),
}
# What a cluster's KEDA asks of Service Bus: how many messages wait.
_GRANTS_ON_AKS = _GRANTS | {("Reader", "keda", f"{_SUBSCRIPTIONS} directory")}
_DEFINITION = "subscriptionResourceId(Microsoft.Authorization/roleDefinitions, "
_METADATA = frozenset({"readMetadata"})
_READ_FEED = _METADATA | {"readChangeFeed"}
_READ = _METADATA | {"items/read", "executeQuery"}
_WRITE = _READ | {f"items/{verb}" for verb in ("create", "replace", "delete")}
_OPERATORS: dict[str, object] = {"operatorPrincipalIds": ["operator"], "operatorPrincipalType": "Group"}
_LEASE_OPERATORS: dict[str, object] = {"leaseOperatorPrincipalIds": ["lease operator"]}

Rights = Mapping[tuple[str, str], frozenset[str]]
# What each principal may do with the documents of each container, and has to.
_DOCUMENT_RIGHTS: Rights = {
    # It marks what it deletes, so that who takes it over cannot delete events that are not sent yet.
    ("api", "data"): _WRITE - {"items/delete"},
    ("worker", "data"): _READ_FEED,
    ("worker", "leases"): _WRITE,
    ("worker", "parked"): _WRITE,
    ("consumer", "directory"): _WRITE,
    ("consumer", "directory-parked"): _WRITE,
}
# What is granted beside that, by the parameters that ask for it.
_ON_REQUEST: tuple[tuple[dict[str, object], Rights], ...] = (
    ({}, {}),
    ({"deleteAfterPublish": "*"}, {("worker", "data"): _READ_FEED | {"items/delete"}}),
    ({"workerPlatform": "aks"}, {("keda", "data"): _READ_FEED, ("keda", "leases"): _READ}),
    (
        _OPERATORS,
        {
            ("operator", "data"): _READ_FEED,
            ("operator", "leases"): _READ,
            ("operator", "parked"): _WRITE,
            # A release has the consumer's handlers take what was held.
            ("operator", "directory"): _WRITE,
            ("operator", "directory-parked"): _WRITE,
        },
    ),
    (_LEASE_OPERATORS, {("lease operator", "leases"): _WRITE}),
)


def identity_of(made: Deployment, service: str) -> str:
    """
    Return the id of the identity that is a service's own.
    """
    return next((i.id for i in made.of_type(IDENTITIES) if i.symbol == service), f"no identity of {service}")


def roles_are_narrow(templates: Sequence[Template]) -> Iterator[str]:
    """
    Each role of the control plane is one that is needed, on the one resource where it is needed, and none is missing.
    """
    for platform, expected in (("containerapps", _GRANTS), ("aks", _GRANTS_ON_AKS)):
        made = deploy(templates, **_OPERATORS, workerPlatform=platform)
        granted = set()
        for assignment in made.of_type("Microsoft.Authorization/roleAssignments"):
            holder, scope = _holder(made, assignment), made.find(assignment.at("scope"))
            role = str(assignment.at("properties", "roleDefinitionId"))
            name = _ROLES.get(role.removeprefix(_DEFINITION).removesuffix(")"), role)
            grant = (name, holder, str(assignment.at("scope")) if scope is None else _described(scope))
            granted.add(grant)
            if grant not in expected:
                yield f"{assignment.place} {holder} gets {name} on {grant[2]} on {platform}"
            # People are the only principals that are no service.
            kind = "Group" if holder == "operator" else "ServicePrincipal"
            if (given := assignment.at("properties", "principalType")) != kind:
                yield f"{assignment.place} {holder} has principalType {given}, not {kind}"
        for name, holder, where in sorted(expected - granted):
            yield f"{holder} lacks {name} on {where} on {platform}"


def _described(scope: Resource) -> str:
    return f"{scope.type} {scope.name}" if scope.type == _SUBSCRIPTIONS else scope.type


def documents_are_guarded(templates: Sequence[Template]) -> Iterator[str]:
    """
    Each role of the data plane is on one container and allows what its principal needs there, and no more.
    """
    for parameters, asked in _ON_REQUEST:
        expected = {**_DOCUMENT_RIGHTS, **asked}
        asking = f", with {', '.join(parameters)}" if parameters else ""
        made = deploy(templates, **parameters)
        granted: dict[tuple[str, str], frozenset[str]] = {}
        signing_in = set()
        for assignment in made.of_type(f"{_COSMOS}/sqlRoleAssignments"):
            holder, actions = _holder(made, assignment), _actions(made, assignment)
            container = _container(made, str(assignment.at("properties", "scope")))
            # The account's own description is all that may be read of it as a whole.
            allowed = expected.get((holder, container or ""), _METADATA if container is None else frozenset())
            if excess := ", ".join(sorted(actions - allowed)):
                on = container or assignment.at("properties", "scope")
                yield f"{assignment.place} {holder} gets {excess} on {on}{asking}"
            if container is not None:
                granted[holder, container] = granted.get((holder, container), frozenset()) | actions
            elif actions >= _METADATA:
                signing_in.add(holder)
        for holder in sorted({holder for holder, _ in granted} - signing_in):
            yield f"{holder} may not read the account, which each SDK begins with{asking}"
        for (holder, container), rights in expected.items():
            if missing := rights - granted.get((holder, container), frozenset()):
                yield f"{holder} lacks {', '.join(sorted(missing))} on {container}{asking}"


def roles_change_one_at_a_time(templates: Sequence[Template]) -> Iterator[str]:
    """
    Definitions and assignments of the data plane wait for each other, whichever of them there are: an account may refuse
    two changes at once.
    """
    for deletes, platform in itertools.product(("", "*"), ("containerapps", "aks")):
        asked = {**_OPERATORS, **_LEASE_OPERATORS, "deleteAfterPublish": deletes, "workerPlatform": platform}
        made = {(resource.file, resource.symbol) for resource in deploy(templates, **asked).resources}
        for template in templates:
            before: dict[str, set[str]] = {}
            for role in template.resources:
                # What a condition leaves out orders nothing: it leaves the lists of the resources that wait for it.
                if role.type.startswith(f"{_COSMOS}/sqlRole") and (template.path.name, role.symbol) in made:
                    named = set(re.findall(r"\w+", str(plain(role.body)))) & before.keys()
                    before[role.symbol] = named.union(*(before[symbol] for symbol in named))
            for one, other in itertools.pairwise(sorted(before, key=lambda symbol: len(before[symbol]))):
                if one not in before[other]:
                    where = f"{platform}, with deleteAfterPublish '{deletes}'"
                    yield f"{template.path.name}: {one} and {other} may change at the same time on {where}"


def _holder(made: Deployment, assignment: Resource) -> str:
    principal = str(assignment.at("properties", "principalId"))
    identity = made.find(principal.removesuffix(".properties.principalId"))
    return identity.symbol if identity is not None else principal


def _container(made: Deployment, scope: str) -> str | None:
    """
    Return the container that is the scope; None where it is wider, or there is no such container.
    """
    spelled = re.fullmatch(r"(.+)/dbs/([^/]+)/colls/([^/]+)", scope)
    if spelled is None:
        return None
    account, database, container = spelled.groups()
    found = made.find(f"{account}/sqlDatabases/{database}/containers/{container}")
    return found.name if found is not None else None


def _actions(made: Deployment, assignment: Resource) -> frozenset[str]:
    definition = made.find(assignment.at("properties", "roleDefinitionId"))
    if definition is None:
        return frozenset({"an unknown role"})
    return frozenset(
        str(action).removeprefix(f"{_COSMOS}/").removeprefix("sqlDatabases/containers/")
        for permission in definition.at("properties", "permissions")
        for action in permission["dataActions"]
    )
