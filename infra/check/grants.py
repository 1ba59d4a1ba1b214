"""
Who may do what: every role assignment is held against the rights that each identity needs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from infra.check.bicep import Template
from infra.check.search import created, inside, where

_COSMOS = "Microsoft.DocumentDB/databaseAccounts"
_BUS = "Microsoft.ServiceBus/namespaces"
_ROLES = {
    "69a216fc-b8fb-44d8-bc22-1f3c2cd27a39": "Service Bus Data Sender",
    "4f6d3b9b-027b-4f4c-9142-0e5a2a2247e0": "Service Bus Data Receiver",
    "7f951dda-4ed3-4680-a7ca-43fe172d538d": "AcrPull",
    "3913510d-42f4-4e42-8a64-420c390055eb": "Monitoring Metrics Publisher",
}
# Who may hold which role, and on what kind of resource; nothing else is granted.
_GRANTS = {
    ("Service Bus Data Sender", "senderPrincipalId", f"{_BUS}/topics"),
    ("Service Bus Data Receiver", "receiverPrincipalId", f"{_BUS}/topics/subscriptions"),
    ("Service Bus Data Sender", "operatorPrincipalId", f"{_BUS}/topics"),
    ("AcrPull", "principalId", "Microsoft.ContainerRegistry/registries"),
    ("Monitoring Metrics Publisher", "workerPrincipalId", "Microsoft.Insights/components"),
}
_READ_FEED = frozenset({"readMetadata", "readChangeFeed"})
_READ = frozenset({"readMetadata", "items/read", "executeQuery"})
_WRITE = _READ | {f"items/{verb}" for verb in ("create", "replace", "upsert", "delete")}
# What only those deployments grant that ask for it.
_ON_REQUEST = {("workerPrincipalId", "dataContainerName", "items/delete"): "workerDeletes"}
# What each principal may do with the documents of each container, and has to.
_DOCUMENT_RIGHTS = {
    ("apiPrincipalId", "dataContainerName"): _WRITE,
    ("workerPrincipalId", "dataContainerName"): _READ_FEED | {"items/delete"},
    ("workerPrincipalId", "leaseContainerName"): _WRITE,
    ("workerPrincipalId", "parkedContainerName"): _WRITE,
    ("operatorPrincipalId", "dataContainerName"): _READ_FEED,
    ("operatorPrincipalId", "leaseContainerName"): _WRITE,
    ("operatorPrincipalId", "parkedContainerName"): _WRITE,
    ("kedaPrincipalId", "dataContainerName"): _READ_FEED,
    ("kedaPrincipalId", "leaseContainerName"): _READ,
}


def roles_are_narrow(templates: Sequence[Template]) -> Iterator[str]:
    """
    Each role of the control plane is one that is needed, on the one resource where it is needed.
    """
    for template, assignment in created(templates, "Microsoft.Authorization/roleAssignments"):
        types = {resource.symbol: resource.type for resource in template.resources}
        scope = str(assignment.body.at("scope"))
        role = template.expand(str(assignment.body.at("properties", "roleDefinitionId")))
        name = next((known for guid, known in _ROLES.items() if guid in role), role)
        principal = str(assignment.body.at("properties", "principalId"))
        if (name, principal, types.get(scope)) not in _GRANTS:
            yield f"{where(template, assignment)} {principal} gets {name} on {types.get(scope, scope)}"
        # People are the only principals that are no service.
        expected = "operatorPrincipalType" if principal == "operatorPrincipalId" else "ServicePrincipal"
        if str(assignment.body.at("properties", "principalType")) != expected:
            yield f"{where(template, assignment)} principalType must be {expected}"


def documents_are_guarded(templates: Sequence[Template]) -> Iterator[str]:
    """
    Each role of the data plane is on one container and allows what its principal needs there, and no more.
    """
    granted: dict[tuple[str, str], frozenset[str]] = {}
    for template, assignment in created(templates, f"{_COSMOS}/sqlRoleAssignments"):
        properties = {key: str(assignment.body.at("properties", key)) for key in ("principalId", "scope")}
        scope = re.fullmatch(
            r"\$\{account\.id\}/dbs/\$\{databaseName\}/colls/\$\{(\w+)\}", properties["scope"]
        )
        if scope is None:
            yield f"{where(template, assignment)} is not on one container but on {properties['scope']}"
            continue
        actions = _actions(template, str(assignment.body.at("properties", "roleDefinitionId")))
        holder = (properties["principalId"], scope[1])
        rights = _DOCUMENT_RIGHTS.get(holder, frozenset())
        if actions is None or actions - rights:
            excess = "an unknown role" if actions is None else ", ".join(sorted(actions - rights))
            yield f"{where(template, assignment)} {holder[0]} gets {excess} on {scope[1]}"
        for action in sorted(actions or ()):
            asked = _ON_REQUEST.get((*holder, action))
            if asked not in (None, assignment.condition):
                yield f"{where(template, assignment)} {holder[0]} gets {action} on {scope[1]} without {asked}"
        granted[holder] = granted.get(holder, frozenset()) | (actions or frozenset())
    for holder, rights in _DOCUMENT_RIGHTS.items():
        if missing := rights - granted.get(holder, frozenset()):
            yield f"{holder[0]} lacks {', '.join(sorted(missing))} on {holder[1]}"


def _actions(template: Template, role: str) -> frozenset[str] | None:
    for definition in template.of_type(f"{_COSMOS}/sqlRoleDefinitions"):
        if role == f"{definition.symbol}.id":
            permissions = inside(definition.body, "properties", "permissions")
            first = permissions.value[0] if permissions and isinstance(permissions.value, list) else None
            actions = first.at("dataActions") if first is not None else None
            texts = [template.expand(str(action)) for action in actions] if isinstance(actions, list) else []
            return frozenset(
                text.removeprefix(f"{_COSMOS}/").removeprefix("sqlDatabases/containers/") for text in texts
            )
    return None
