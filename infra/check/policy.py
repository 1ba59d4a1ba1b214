"""
What the resources must be like, whatever else changes: each policy is a function that returns its violations.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from infra.check.alerts import alerts_ask_what_is_there, troubles_are_told
from infra.check.bicep import Declaration, Expression, Located, Template, plain
from infra.check.grants import documents_are_guarded, roles_are_narrow
from infra.check.search import created, inside, where
from infra.check.variables import default_of, required_by, variables_of

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
# Whose identity it is, where a module calls it after what it does.
_HELD_BY = {"senderPrincipalId": "workerPrincipalId", "receiverPrincipalId": "subscriberPrincipalId"}
_INDEXED = {
    "/type/?": "each listing reads everything",
    "/partitionKey/?": "a listing that is cut among documents of one id is refused",
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
    for template, workspace in created(templates, "Microsoft.OperationalInsights/workspaces"):
        if workspace.body.at("properties", "features", "disableLocalAuth") is not True:
            yield f"{where(template, workspace)} the workspace accepts keys"


def modern_tls(templates: Sequence[Template]) -> Iterator[str]:
    """
    Nothing older than TLS 1.2, and no plain HTTP.
    """
    yield from _expect(templates, COSMOS, {"minimalTlsVersion": "Tls12"})
    yield from _expect(templates, BUS, {"minimumTlsVersion": "1.2"})
    for template, app in created(templates, APPS):
        ingress = inside(app.body, "properties", "configuration", "ingress")
        if ingress is not None and ingress.at("allowInsecure") is not False:
            yield f"{where(template, app)} ingress takes plain HTTP"


def containers_fit_the_code(templates: Sequence[Template]) -> Iterator[str]:
    """
    Data and parked documents lie by /partitionKey, leases by /id; time to live is on and expires nothing by itself.
    """
    keys = {}
    for template, container in created(templates, CONTAINERS):
        resource = inside(container.body, "properties", "resource")
        if resource is None or resource.at("defaultTtl") != -1:
            yield f"{where(template, container)} defaultTtl must be -1, else the documents' own ttl is ignored"
        keys[container.symbol] = resource.at("partitionKey", "paths") if resource is not None else None
    expected = {"data": ["/partitionKey"], "leases": ["/id"], "parked": ["/partitionKey"]}
    if keys != expected:
        yield f"containers and their partition keys are {keys}, not {expected}"


def events_cost_little_to_write(templates: Sequence[Template]) -> Iterator[str]:
    """
    The payload of events is not indexed, and what queries filter on is.
    """
    for template, container in created(templates, CONTAINERS):
        if container.symbol == "data":
            policy = inside(container.body, "properties", "resource", "indexingPolicy")
            excluded = policy.at("excludedPaths") if policy is not None else None
            included = policy.at("includedPaths") if policy is not None else None
            if excluded != [{"path": "/*"}]:
                yield f"{where(template, container)} every path of an event is indexed"
            for path, why in _INDEXED.items():
                if {"path": path} not in (included if isinstance(included, list) else []):
                    yield f"{where(template, container)} {path} is not indexed, and {why}"


def backups_reach_back(templates: Sequence[Template]) -> Iterator[str]:
    """
    The account can be restored to a point in time.
    """
    for template, account in created(templates, COSMOS):
        if account.body.at("properties", "backupPolicy", "type") != "Continuous":
            yield f"{where(template, account)} no continuous backup"


def topic_keeps_order_and_drops_repeats(templates: Sequence[Template]) -> Iterator[str]:
    """
    Duplicate detection for hours, no partitioning, nothing that deletes itself, sessions on the subscription.
    """
    topic = {"requiresDuplicateDetection": True, "enablePartitioning": False, "supportOrdering": True}
    yield from _expect(templates, f"{BUS}/topics", topic)
    consumer = {"requiresSession": True, "deadLetteringOnMessageExpiration": True}
    yield from _expect(templates, f"{BUS}/topics/subscriptions", consumer)
    for template, found in created(templates, f"{BUS}/topics"):
        window = str(found.body.at("properties", "duplicateDetectionHistoryTimeWindow"))
        if not re.fullmatch(r"P[1-7]D|PT([1-9]|1\d|2[0-3])H", window):
            yield f"{where(template, found)} {window} is too short to cover an outage"
    for resource_type in (f"{BUS}/topics", f"{BUS}/topics/subscriptions"):
        for template, found in created(templates, resource_type):
            if found.body.at("properties", "autoDeleteOnIdle") is not None:
                yield f"{where(template, found)} deletes itself, and the messages with it"


def apps_are_wired(templates: Sequence[Template]) -> Iterator[str]:
    """
    Container Apps get settings that exist, all that they need, their own identity, and time to stop.
    """
    for template, app in created(templates, APPS):
        program = app.symbol
        environment = {str(item.get("name")): item for item in _containers(app, "env")}
        ours = {name for name in environment if name.startswith("OUTBOX_")}
        for name in sorted(ours - variables_of(program)):
            yield f"{where(template, app)} {name} is no setting of the {program}"
        for name in sorted(required_by(program) - ours):
            yield f"{where(template, app)} {name} is required by the {program}"
        if program == "worker" and "OUTBOX_PARKED_CONTAINER" not in ours:
            yield f"{where(template, app)} without OUTBOX_PARKED_CONTAINER one bad event halts its whole range"
        if str(environment.get("AZURE_CLIENT_ID", {}).get("value")) != "identityClientId":
            yield f"{where(template, app)} AZURE_CLIENT_ID must name the app's own identity"
        if app.body.at("identity", "type") != "UserAssigned":
            yield f"{where(template, app)} must have an identity of its own"
        grace = environment.get("OUTBOX_GRACE_SECONDS", {}).get("value", "0")
        allowed = app.body.at("properties", "template", "terminationGracePeriodSeconds")
        if not isinstance(allowed, int) or allowed < int(str(grace)) + 15:
            yield f"{where(template, app)} is killed before it has released its leases"


def worker_stays_up(templates: Sequence[Template]) -> Iterator[str]:
    """
    At least two workers, probed for the process and for progress, reachable from nowhere.
    """
    for template, app in created(templates, APPS):
        if app.symbol != "worker":
            continue
        if app.body.at("properties", "configuration", "ingress") is not None:
            yield f"{where(template, app)} needs no ingress"
        minimum = template.parameters.get(str(app.body.at("properties", "template", "scale", "minReplicas")))
        if minimum is None or (minimum.minimum or 0) < 2:  # noqa: PLR2004 # one may fail
            yield f"{where(template, app)} may run with fewer than two replicas"
        asked = {(p.get("type"), *_asked(p)) for p in _containers(app, "probes")}
        port = default_of("worker", "OUTBOX_HEALTH_PORT")
        paths = {"Startup": "/livez", "Liveness": "/livez", "Readiness": "/readyz"}
        expected = {(kind, path, port) for kind, path in paths.items()}
        if asked != expected:
            yield f"{where(template, app)} is probed at {sorted(asked, key=str)}, not {sorted(expected, key=str)}"


def names_are_passed_on(templates: Sequence[Template]) -> Iterator[str]:
    """
    A module gets what its parameter is called after: no container's name, and no identity, in the place of another.
    """
    for template in templates:
        for module in template.modules:
            params = inside(module.body, "params")
            for name, given in params.value.items() if params and isinstance(params.value, dict) else ():
                text, held = str(given.value), _HELD_BY.get(name, name)
                another = text != name and {text, name} <= template.parameters.keys()
                if another or (name.endswith("PrincipalId") and text != f"identities.outputs.{held}"):
                    yield f"{template.path.name}:{given.line}: {module.type} gets {text} as {name}"


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
                yield f"{where(template, resource)} {resource.symbol} has no tags"


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
    alerts_ask_what_is_there,
    names_are_passed_on,
    resources_are_tagged,
)


def _expect(
    templates: Sequence[Template], resource_type: str, properties: Mapping[str, bool | str]
) -> Iterator[str]:
    found = list(created(templates, resource_type))
    if not found:
        yield f"there is no {resource_type}"
    for template, resource in found:
        for name, expected in properties.items():
            if (given := resource.body.at("properties", name)) != expected:
                yield f"{where(template, resource)} {resource_type}.{name} is {given}, not {expected}"


def _containers(app: Declaration, key: str) -> Iterator[dict[str, object]]:
    """
    Yield the entries of a list of the app's containers, in whichever branch of a condition they stand.
    """
    containers = inside(app.body, "properties", "template", "containers")
    for container in containers.value if containers and isinstance(containers.value, list) else []:
        given = inside(container, key)
        for entry in _entries(given):
            found = plain(entry)
            if isinstance(found, dict):
                yield found


def _entries(given: Located | None) -> Iterator[Located]:
    value = given.value if given is not None else None
    if isinstance(value, list):
        yield from value
    elif isinstance(value, Expression):
        for alternative in value.alternatives:
            yield from _entries(alternative)


def _asked(probe: dict[str, object]) -> tuple[object, object]:
    request = probe.get("httpGet")
    return (request.get("path"), request.get("port")) if isinstance(request, dict) else (None, None)
