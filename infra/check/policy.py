"""
What the resources must be like, whatever else changes: each policy is a function that returns its violations.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from infra.check.bicep import Declaration, Expression, Located, Template, plain
from infra.check.variables import required_by, variables_of

Policy = Callable[[Sequence[Template]], Iterator[str]]

COSMOS = "Microsoft.DocumentDB/databaseAccounts"
CONTAINERS = f"{COSMOS}/sqlDatabases/containers"
BUS = "Microsoft.ServiceBus/namespaces"
APPS = "Microsoft.App/containerApps"
_SECRETS = re.compile(
    r"list(Keys|ConnectionStrings|Credentials|AccountSas|Secrets)\s*\(|Endpoint=sb://|AccountKey=|SharedAccessKey"
    r"|sharedKey|adminPassword|\.(primary|secondary)\w*Key|connectionString",
    re.IGNORECASE,
)
# Says where to send telemetry and opens nothing while local authentication is off, which is held below.
_TELEMETRY = re.compile(
    r"APPLICATIONINSIGHTS_CONNECTION_STRING|applicationInsights\.properties\.ConnectionString"
)
_ROLES = {
    "69a216fc-b8fb-44d8-bc22-1f3c2cd27a39": "Service Bus Data Sender",
    "4f6d3b9b-027b-4f4c-9142-0e5a2a2247e0": "Service Bus Data Receiver",
    "7f951dda-4ed3-4680-a7ca-43fe172d538d": "AcrPull",
    "3913510d-42f4-4e42-8a64-420c390055eb": "Monitoring Metrics Publisher",
}
# Who may hold which role, and on what kind of resource; nothing else is granted.
_GRANTS = {
    ("Service Bus Data Sender", "senderPrincipalId", f"{BUS}/topics"),
    ("Service Bus Data Receiver", "receiverPrincipalId", f"{BUS}/topics/subscriptions"),
    ("AcrPull", "principalId", "Microsoft.ContainerRegistry/registries"),
    ("Monitoring Metrics Publisher", "principalId", "Microsoft.Insights/components"),
}
_READ_FEED = frozenset({"readMetadata", "readChangeFeed"})
_READ = frozenset({"readMetadata", "items/read", "executeQuery"})
_WRITE = _READ | {f"items/{verb}" for verb in ("create", "replace", "upsert", "delete")}
# What each principal may do with the documents of each container, at most.
_DOCUMENT_RIGHTS = {
    ("apiPrincipalId", "dataContainerName"): _WRITE,
    ("workerPrincipalId", "dataContainerName"): _READ_FEED,
    ("workerPrincipalId", "leaseContainerName"): _WRITE,
    ("workerPrincipalId", "parkedContainerName"): _WRITE,
    ("kedaPrincipalId", "dataContainerName"): _READ_FEED,
    ("kedaPrincipalId", "leaseContainerName"): _READ,
}
_ALERTED = {
    "DeadletteredMessages",
    "ThrottledRequests",
    "ServerErrors",
    "TotalRequests",
    "NormalizedRUConsumption",
}


def violations(templates: Sequence[Template]) -> list[str]:
    """
    Return one line a violation of any policy.
    """
    return [violation for policy in POLICIES for violation in policy(templates)]


def no_secrets(templates: Sequence[Template]) -> Iterator[str]:
    """
    No key, SAS or connection string is written down, asked for, or passed on.
    """
    for template in templates:
        for number, line in enumerate(template.source.splitlines(), 1):
            code = _TELEMETRY.sub("", line.partition("//")[0] if "://" not in line else line)
            if _SECRETS.search(code):
                yield f"{template.path.name}:{number}: a secret is named: {line.strip()}"


def no_local_authentication(templates: Sequence[Template]) -> Iterator[str]:
    """
    Every service that could be opened with a key refuses keys.
    """
    expected = {
        COSMOS: {"disableLocalAuth": True, "disableKeyBasedMetadataWriteAccess": True},
        BUS: {"disableLocalAuth": True},
        "Microsoft.Insights/components": {"DisableLocalAuth": True},
        "Microsoft.ContainerRegistry/registries": {"adminUserEnabled": False, "anonymousPullEnabled": False},
    }
    for resource_type, properties in expected.items():
        yield from _expect(templates, resource_type, properties)
    for template, workspace in _all(templates, "Microsoft.OperationalInsights/workspaces"):
        if workspace.body.at("properties", "features", "disableLocalAuth") is not True:
            yield f"{_where(template, workspace)} the workspace accepts keys"


def modern_tls(templates: Sequence[Template]) -> Iterator[str]:
    """
    Nothing older than TLS 1.2, and no plain HTTP.
    """
    yield from _expect(templates, COSMOS, {"minimalTlsVersion": "Tls12"})
    yield from _expect(templates, BUS, {"minimumTlsVersion": "1.2"})
    for template, app in _all(templates, APPS):
        ingress = _located(app.body, "properties", "configuration", "ingress")
        if ingress is not None and ingress.at("allowInsecure") is not False:
            yield f"{_where(template, app)} ingress takes plain HTTP"


def containers_fit_the_code(templates: Sequence[Template]) -> Iterator[str]:
    """
    Data and parked documents lie by /partitionKey, leases by /id; time to live is on and expires nothing by itself.
    """
    keys = {}
    for template, container in _all(templates, CONTAINERS):
        resource = _located(container.body, "properties", "resource")
        if resource is None or resource.at("defaultTtl") != -1:
            yield f"{_where(template, container)} defaultTtl must be -1, else the documents' own ttl is ignored"
        keys[container.symbol] = resource.at("partitionKey", "paths") if resource is not None else None
    expected = {"data": ["/partitionKey"], "leases": ["/id"], "parked": ["/partitionKey"]}
    if keys != expected:
        yield f"containers and their partition keys are {keys}, not {expected}"


def events_cost_little_to_write(templates: Sequence[Template]) -> Iterator[str]:
    """
    The payload of events is not indexed, and what queries filter on is.
    """
    for template, container in _all(templates, CONTAINERS):
        if container.symbol == "data":
            policy = _located(container.body, "properties", "resource", "indexingPolicy")
            excluded = policy.at("excludedPaths") if policy is not None else None
            included = policy.at("includedPaths") if policy is not None else None
            if excluded != [{"path": "/*"}]:
                yield f"{_where(template, container)} every path of an event is indexed"
            if {"path": "/type/?"} not in (included if isinstance(included, list) else []):
                yield f"{_where(template, container)} /type is not indexed, and each listing reads everything"


def backups_reach_back(templates: Sequence[Template]) -> Iterator[str]:
    """
    The account can be restored to a point in time.
    """
    for template, account in _all(templates, COSMOS):
        if account.body.at("properties", "backupPolicy", "type") != "Continuous":
            yield f"{_where(template, account)} no continuous backup"


def topic_keeps_order_and_drops_repeats(templates: Sequence[Template]) -> Iterator[str]:
    """
    Duplicate detection for hours, no partitioning, nothing that deletes itself, sessions on the subscription.
    """
    topic = {"requiresDuplicateDetection": True, "enablePartitioning": False, "supportOrdering": True}
    yield from _expect(templates, f"{BUS}/topics", topic)
    consumer = {"requiresSession": True, "deadLetteringOnMessageExpiration": True}
    yield from _expect(templates, f"{BUS}/topics/subscriptions", consumer)
    for template, found in _all(templates, f"{BUS}/topics"):
        window = str(found.body.at("properties", "duplicateDetectionHistoryTimeWindow"))
        if not re.fullmatch(r"P[1-7]D|PT([1-9]|1\d|2[0-3])H", window):
            yield f"{_where(template, found)} {window} is too short to cover an outage"
    for resource_type in (f"{BUS}/topics", f"{BUS}/topics/subscriptions"):
        for template, found in _all(templates, resource_type):
            if found.body.at("properties", "autoDeleteOnIdle") is not None:
                yield f"{_where(template, found)} deletes itself, and the messages with it"


def roles_are_narrow(templates: Sequence[Template]) -> Iterator[str]:
    """
    Each role of the control plane is one that is needed, on the one resource where it is needed.
    """
    for template, assignment in _all(templates, "Microsoft.Authorization/roleAssignments"):
        types = {resource.symbol: resource.type for resource in template.resources}
        scope = str(assignment.body.at("scope"))
        role = template.expand(str(assignment.body.at("properties", "roleDefinitionId")))
        name = next((known for guid, known in _ROLES.items() if guid in role), role)
        principal = str(assignment.body.at("properties", "principalId"))
        if (name, principal, types.get(scope)) not in _GRANTS:
            yield f"{_where(template, assignment)} {principal} gets {name} on {types.get(scope, scope)}"
        if assignment.body.at("properties", "principalType") != "ServicePrincipal":
            yield f"{_where(template, assignment)} principalType must be ServicePrincipal"


def documents_are_guarded(templates: Sequence[Template]) -> Iterator[str]:
    """
    Each role of the data plane is on one container and allows no more than its principal needs there.
    """
    for template, assignment in _all(templates, f"{COSMOS}/sqlRoleAssignments"):
        properties = {key: str(assignment.body.at("properties", key)) for key in ("principalId", "scope")}
        scope = re.fullmatch(
            r"\$\{account\.id\}/dbs/\$\{databaseName\}/colls/\$\{(\w+)\}", properties["scope"]
        )
        if scope is None:
            yield f"{_where(template, assignment)} is not on one container but on {properties['scope']}"
            continue
        actions = _actions(template, str(assignment.body.at("properties", "roleDefinitionId")))
        rights = _DOCUMENT_RIGHTS.get((properties["principalId"], scope[1]), frozenset())
        if actions is None or actions - rights:
            excess = "an unknown role" if actions is None else ", ".join(sorted(actions - rights))
            yield f"{_where(template, assignment)} {properties['principalId']} gets {excess} on {scope[1]}"


def _actions(template: Template, role: str) -> frozenset[str] | None:
    for definition in template.of_type(f"{COSMOS}/sqlRoleDefinitions"):
        if role == f"{definition.symbol}.id":
            permissions = _located(definition.body, "properties", "permissions")
            first = permissions.value[0] if permissions and isinstance(permissions.value, list) else None
            actions = first.at("dataActions") if first is not None else None
            texts = [template.expand(str(action)) for action in actions] if isinstance(actions, list) else []
            return frozenset(
                text.removeprefix(f"{COSMOS}/").removeprefix("sqlDatabases/containers/") for text in texts
            )
    return None


def apps_are_wired(templates: Sequence[Template]) -> Iterator[str]:
    """
    Container Apps get settings that exist, all that they need, their own identity, and time to stop.
    """
    for template, app in _all(templates, APPS):
        program = app.symbol
        environment = {str(item.get("name")): item for item in _containers(app, "env")}
        ours = {name for name in environment if name.startswith("OUTBOX_")}
        for name in sorted(ours - variables_of(program)):
            yield f"{_where(template, app)} {name} is no setting of the {program}"
        for name in sorted(required_by(program) - ours):
            yield f"{_where(template, app)} {name} is required by the {program}"
        if str(environment.get("AZURE_CLIENT_ID", {}).get("value")) != "identityClientId":
            yield f"{_where(template, app)} AZURE_CLIENT_ID must name the app's own identity"
        if app.body.at("identity", "type") != "UserAssigned":
            yield f"{_where(template, app)} must have an identity of its own"
        grace = environment.get("OUTBOX_GRACE_SECONDS", {}).get("value", "0")
        allowed = app.body.at("properties", "template", "terminationGracePeriodSeconds")
        if not isinstance(allowed, int) or allowed < int(str(grace)) + 15:
            yield f"{_where(template, app)} is killed before it has released its leases"


def worker_stays_up(templates: Sequence[Template]) -> Iterator[str]:
    """
    At least two workers, probed for the process and for progress, reachable from nowhere.
    """
    for template, app in _all(templates, APPS):
        if app.symbol != "worker":
            continue
        if app.body.at("properties", "configuration", "ingress") is not None:
            yield f"{_where(template, app)} needs no ingress"
        minimum = template.parameters.get(str(app.body.at("properties", "template", "scale", "minReplicas")))
        if minimum is None or (minimum.minimum or 0) < 2:  # noqa: PLR2004 # one may fail
            yield f"{_where(template, app)} may run with fewer than two replicas"
        paths = {(p.get("type"), _path(p)) for p in _containers(app, "probes")}
        expected = {("Startup", "/livez"), ("Liveness", "/livez"), ("Readiness", "/readyz")}
        if paths != expected:
            yield f"{_where(template, app)} is probed at {sorted(paths, key=str)}, not {sorted(expected)}"


def troubles_are_told(templates: Sequence[Template]) -> Iterator[str]:
    """
    There is an alert for each way in which the platform tells of trouble, and somebody who gets it.
    """
    text = "\n".join(t.source for t in templates if any(t.of_type("Microsoft.Insights/metricAlerts")))
    for metric in sorted(_ALERTED):
        if f"'{metric}'" not in text:
            yield f"no alert on {metric}"
    for resource_type in ("Microsoft.Insights/metricAlerts", "Microsoft.Insights/scheduledQueryRules"):
        for template, alert in _all(templates, resource_type):
            if (
                "people.id" not in _everything(alert.body)
                or alert.body.at("properties", "enabled") is not True
            ):
                yield f"{_where(template, alert)} tells nobody"


def resources_are_tagged(templates: Sequence[Template]) -> Iterator[str]:
    """
    What azd made can be found, and removed, by its tag.
    """
    for template in templates:
        for resource in template.resources:
            child = {"parent", "scope"} & (
                resource.body.value.keys() if isinstance(resource.body.value, dict) else set()
            )
            if not resource.existing and not child and "tags" not in str(resource.body.at("tags")):
                yield f"{_where(template, resource)} {resource.symbol} has no tags"


POLICIES: tuple[Policy, ...] = (
    no_secrets,
    no_local_authentication,
    modern_tls,
    containers_fit_the_code,
    events_cost_little_to_write,
    backups_reach_back,
    topic_keeps_order_and_drops_repeats,
    roles_are_narrow,
    documents_are_guarded,
    apps_are_wired,
    worker_stays_up,
    troubles_are_told,
    resources_are_tagged,
)


def _where(template: Template, resource: Declaration) -> str:
    return f"{template.path.name}:{resource.line}:"


def _all(templates: Sequence[Template], resource_type: str) -> Iterator[tuple[Template, Declaration]]:
    return ((template, found) for template in templates for found in template.of_type(resource_type))


def _expect(
    templates: Sequence[Template], resource_type: str, properties: Mapping[str, bool | str]
) -> Iterator[str]:
    found = list(_all(templates, resource_type))
    if not found:
        yield f"there is no {resource_type}"
    for template, resource in found:
        for name, expected in properties.items():
            if (given := resource.body.at("properties", name)) != expected:
                yield f"{_where(template, resource)} {resource_type}.{name} is {given}, not {expected}"


def _located(located: Located, *path: str) -> Located | None:
    here: Located | None = located
    for key in path:
        here = here.value.get(key) if here is not None and isinstance(here.value, dict) else None
    return here


def _containers(app: Declaration, key: str) -> Iterator[dict[str, object]]:
    """
    Yield the entries of a list of the app's containers, in whichever branch of a condition they stand.
    """
    containers = _located(app.body, "properties", "template", "containers")
    for container in containers.value if containers and isinstance(containers.value, list) else []:
        given = _located(container, key)
        value = given.value if given is not None else None
        lists = [a.value for a in value.alternatives] if isinstance(value, Expression) else [value]
        for entries in lists:
            for entry in entries if isinstance(entries, list) else []:
                found = plain(entry)
                if isinstance(found, dict):
                    yield found


def _path(probe: dict[str, object]) -> object:
    request = probe.get("httpGet")
    return request.get("path") if isinstance(request, dict) else None


def _everything(located: Located) -> str:
    value = located.value
    if isinstance(value, dict):
        return " ".join(_everything(item) for item in value.values())
    if isinstance(value, list):
        return " ".join(_everything(item) for item in value)
    return str(value)
