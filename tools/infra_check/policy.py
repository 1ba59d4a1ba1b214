"""
What the resources must be like, whatever else changes: each policy is a function that returns its violations.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from tools.infra_check.alerts import (
    alarms_are_reported_one_by_one,
    logs_arrive,
    platform_alerts_ask_what_matters,
    problems_are_reported,
    queries_are_asked,
)
from tools.infra_check.apps import (
    APPS,
    apps_are_probed_where_they_listen,
    apps_are_wired,
    apps_stay_up,
    consumers_follow_their_messages,
    running_images_stay,
    workers_follow_their_load,
)
from tools.infra_check.bicep import Template
from tools.infra_check.deployment import deploy
from tools.infra_check.grants import documents_are_guarded, roles_are_narrow, roles_change_one_at_a_time
from tools.infra_check.network import (
    apps_start_last,
    private_means_private,
    public_means_reachable,
    subnets_fit,
)
from tools.infra_check.search import created, inside, minutes, where
from tools.infra_check.wiring import (
    clusters_sign_in_as_theirs,
    ids_name_what_is_made,
    outputs_tell_the_truth,
    services_sign_in_as_themselves,
)

Policy = Callable[[Sequence[Template]], Iterator[str]]

COSMOS = "Microsoft.DocumentDB/databaseAccounts"
CONTAINERS = f"{COSMOS}/sqlDatabases/containers"
BUS = "Microsoft.ServiceBus/namespaces"
_SECRETS = re.compile(
    r"list(Keys|ConnectionStrings|Credentials|AccountSas|Secrets)\s*\(|Endpoint=sb://|AccountKey=|SharedAccessKey"
    r"|sharedKey|adminPassword|\.(primary|secondary)\w*Key|connectionString",
    re.IGNORECASE,
)
# Says where to send telemetry and opens nothing while local authentication is off, which is held below.
_TELEMETRY = re.compile(
    r"APPLICATIONINSIGHTS_CONNECTION_STRING|applicationInsights\.properties\.ConnectionString"
)
# What is queried for in each container of entities and events. The handlers of the directory list nothing.
_INDEXED: dict[str, dict[str, str]] = {
    "data": {
        "/type/?": "each listing reads everything",
        "/data/deleted/?": "each listing reads what is deleted, too",
        "/partitionKey/?": "a listing that is cut among documents of one id is refused",
    },
    "directory": {},
}
# RU/s of a serverless container; who changes to autoscale wants more, not less.
_SERVERLESS_PEAK = 5000
_GLOBAL = {
    "Microsoft.Insights/actionGroups",
    "Microsoft.Insights/metricAlerts",
    "Microsoft.Network/privateDnsZones",
    "Microsoft.Network/privateDnsZones/virtualNetworkLinks",
}
# Longest that the service takes, and shortest that keeps what the topic promises; in minutes.
_DURATIONS = {
    "duplicateDetectionHistoryTimeWindow": (
        60,
        7 * 24 * 60,
        "is too short to cover an outage, or longer than P7D",
    ),
    "defaultMessageTimeToLive": (
        24 * 60,
        366 * 24 * 60,
        "is too short for a subscriber that is away for a day",
    ),
    "lockDuration": (1, 5, "is no time to lock a message for: PT1M to PT5M"),
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
    for container in deploy(templates).of_type(CONTAINERS):
        resource = container.at("properties", "resource")
        if resource.get("defaultTtl") != -1:
            yield f"{container.place} defaultTtl must be -1, else the documents' own ttl is ignored"
        keys[container.name] = resource.get("partitionKey")
    for named in (
        *deploy(templates).of_type(f"{COSMOS}/sqlDatabases"),
        *deploy(templates).of_type(CONTAINERS),
    ):
        if (given := named.at("properties", "resource", "id")) != named.name:
            yield f"{named.place} {named.name} calls itself {given}"
    paths = dict.fromkeys(("data", "parked", "directory", "directory-parked"), "/partitionKey") | {
        "leases": "/id"
    }
    expected = {name: {"paths": [path], "kind": "Hash", "version": 2} for name, path in paths.items()}
    if keys != expected:
        yield f"containers and their partition keys are {keys}, not {expected}"


def throughput_fits_the_account(templates: Sequence[Template]) -> Iterator[str]:
    """
    A serverless account refuses throughput, and without it another one gives each container the least there is.
    """
    for mode, capabilities in (("serverless", [{"name": "EnableServerless"}]), ("autoscale", [])):
        made = deploy(templates, capacityMode=mode)
        if (given := made.of_type(COSMOS)[0].at("properties", "capabilities")) != capabilities:
            yield f"{mode}: the account has the capabilities {given}, not {capabilities}"
        for container in made.of_type(CONTAINERS):
            throughput = container.at("properties", "options", "autoscaleSettings", "maxThroughput")
            # Azure takes autoscale in steps of a thousand.
            if (throughput is None) != (mode == "serverless") or (throughput or 0) % 1000:
                yield f"{container.place} {mode}: the container's throughput is {throughput}"
            elif container.symbol == "data" and throughput is not None and throughput < _SERVERLESS_PEAK:
                yield f"{container.place} {mode} lowers the peak from {_SERVERLESS_PEAK} to {throughput} RU/s unasked"


def events_cost_little_to_write(templates: Sequence[Template]) -> Iterator[str]:
    """
    The payload of events is not indexed, and what queries filter on is.
    """
    for template, container in created(templates, CONTAINERS):
        if container.symbol in _INDEXED:
            policy = inside(container.body, "properties", "resource", "indexingPolicy")
            excluded = policy.at("excludedPaths") if policy is not None else None
            included = policy.at("includedPaths") if policy is not None else None
            if excluded != [{"path": "/*"}]:
                yield f"{where(template, container)} every path of an event is indexed"
            for path, why in _INDEXED[container.symbol].items():
                if {"path": path} not in (included if isinstance(included, list) else []):
                    yield f"{where(template, container)} {path} is not indexed, and {why}"


def accounts_fit_the_code(templates: Sequence[Template]) -> Iterator[str]:
    """
    The account can be restored to a point in time, and a writer reads its own writes.
    """
    for account in deploy(templates).of_type(COSMOS):
        if account.at("properties", "backupPolicy", "type") != "Continuous":
            yield f"{account.place} no continuous backup"
        level = account.at("properties", "consistencyPolicy", "defaultConsistencyLevel")
        if level != "Session":
            yield f"{account.place} {level}: readers pass on session tokens, which weaker levels do not know"


def regions_take_over_as_asked(templates: Sequence[Template]) -> Iterator[str]:
    """
    One region unasked; with others, one writes, the next takes over in the order asked for, and messages are copied.
    """
    for others, failover in (([], True), (["there", "beyond"], True), (["there"], False)):
        made = deploy(
            templates,
            location="here",
            capacityMode="autoscale",
            zoneRedundant=True,
            cosmosReplicaLocations=others,
            cosmosAutomaticFailover=failover,
            serviceBusSku="Premium",
            serviceBusReplicaLocation=others[0] if others else "",
        )
        (account,), (namespace,) = made.of_type(COSMOS), made.of_type(BUS)
        expected = [
            {"locationName": name, "failoverPriority": order, "isZoneRedundant": True}
            for order, name in enumerate(["here", *others])
        ]
        if (given := account.at("properties", "locations")) != expected:
            yield f"{account.place} the account is in {given}, not {expected}"
        if account.at("properties", "enableAutomaticFailover") is not (failover and bool(others)):
            yield f"{account.place} fails over by itself, or does not, unasked"
        if account.at("properties", "enableMultipleWriteLocations") is not False:
            yield f"{account.place} several regions write, so the changes of a key have no one order"
        roles = {"here": "Primary", others[0]: "Secondary"} if others else {}
        copied = namespace.at("properties", "geoDataReplication") or {"locations": []}
        if (given := {one["locationName"]: one["roleType"] for one in copied["locations"]}) != roles:
            yield f"{namespace.place} the messages are in {given}, not {roles}"


def topic_keeps_order_and_drops_repeats(templates: Sequence[Template]) -> Iterator[str]:
    """
    Duplicate detection for hours, no partitioning, nothing that deletes itself, sessions on the subscription.
    """
    topic = {"requiresDuplicateDetection": True, "enablePartitioning": False, "supportOrdering": True}
    yield from _expect(templates, f"{BUS}/topics", topic)
    consumer = {"requiresSession": True, "deadLetteringOnMessageExpiration": True}
    consumer["deadLetteringOnFilterEvaluationExceptions"] = True
    yield from _expect(templates, f"{BUS}/topics/subscriptions", consumer)
    for resource_type in (f"{BUS}/topics", f"{BUS}/topics/subscriptions"):
        for template, found in created(templates, resource_type):
            if found.body.at("properties", "autoDeleteOnIdle") is not None:
                yield f"{where(template, found)} deletes itself, and the messages with it"
            for name, (least, most, problem) in _DURATIONS.items():
                given = found.body.at("properties", name)
                if given is not None and not least <= minutes(str(given)) <= most:
                    yield f"{where(template, found)} {name}: {given} {problem}"
    for sku in ("Standard", "Premium"):
        (namespace,) = deploy(templates, serviceBusSku=sku).of_type(BUS)
        expected = {"name": sku, "tier": sku, "capacity": 1 if sku == "Premium" else None}
        if (given := namespace.at("sku")) != expected:
            yield f"{namespace.place} sku is {given}, not {expected}"


def resources_are_tagged(templates: Sequence[Template]) -> Iterator[str]:
    """
    What azd made can be found, and removed, by its tag.
    """
    for resource in deploy(
        templates, environmentName="ours", privateNetworking=True, alertEmail="x"
    ).resources:
        child = resource.existing or "parent" in resource.body or "scope" in resource.body
        if not child and (resource.at("tags") or {}).get("azd-env-name") != "ours":
            yield f"{resource.place} {resource.symbol} has no tags of its environment"


def resources_are_where_they_are_wanted(templates: Sequence[Template]) -> Iterator[str]:
    """
    What has a location is in the one that was asked for; what Azure keeps everywhere is global.
    """
    for resource in deploy(templates, location="here", privateNetworking=True, alertEmail="x").resources:
        expected = "global" if resource.type in _GLOBAL else "here"
        if resource.body.get("location", expected) != expected:
            yield f"{resource.place} {resource.symbol} is in {resource.at('location')}, not {expected}"


POLICIES: tuple[Policy, ...] = (
    no_secrets,
    no_local_authentication,
    modern_tls,
    containers_fit_the_code,
    throughput_fits_the_account,
    events_cost_little_to_write,
    accounts_fit_the_code,
    regions_take_over_as_asked,
    topic_keeps_order_and_drops_repeats,
    roles_are_narrow,
    documents_are_guarded,
    roles_change_one_at_a_time,
    ids_name_what_is_made,
    services_sign_in_as_themselves,
    clusters_sign_in_as_theirs,
    outputs_tell_the_truth,
    private_means_private,
    public_means_reachable,
    subnets_fit,
    apps_start_last,
    apps_are_wired,
    apps_are_probed_where_they_listen,
    running_images_stay,
    apps_stay_up,
    consumers_follow_their_messages,
    workers_follow_their_load,
    problems_are_reported,
    platform_alerts_ask_what_matters,
    queries_are_asked,
    alarms_are_reported_one_by_one,
    logs_arrive,
    resources_are_tagged,
    resources_are_where_they_are_wanted,
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
