"""
Whether an alert reaches an operator for each way in which the platform or the worker reports trouble.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from tools.infra_check.bicep import Template
from tools.infra_check.deployment import Deployment, deploy
from tools.infra_check.search import minutes

_BUS = "Microsoft.ServiceBus/namespaces"
_COSMOS = "Microsoft.DocumentDB/databaseAccounts"
_ON_METRICS = "Microsoft.Insights/metricAlerts"
_ON_LOGS = "Microsoft.Insights/scheduledQueryRules"
_QUERIES = Path(__file__).parents[2] / "infra/queries"
# What each alert on the platform asks: of what, which metric, how it is put together, above what, and for which values.
_ASKED = {
    "dead-letters": (_BUS, "DeadletteredMessages", "Average", 0, "EntityName", ["*"]),
    "bus-throttled": (_BUS, "ThrottledRequests", "Total", 10, "EntityName", ["*"]),
    "bus-failing": (_BUS, "ServerErrors", "Total", 10, "EntityName", ["*"]),
    "cosmos-throttled": (_COSMOS, "TotalRequests", "Count", 900, "StatusCode", ["429"]),
    "cosmos-busy": (_COSMOS, "NormalizedRUConsumption", "Average", 90, "CollectionName", ["*"]),
}
# A query says by itself what is too much; each row that it returns is a reason to wake the operator.
_ANY_ROW = {
    "timeAggregation": "Count",
    "operator": "GreaterThan",
    "threshold": 0,
    "failingPeriods": {"numberOfEvaluationPeriods": 1, "minFailingPeriodsToAlert": 1},
}
# Alerts that fire for each row by itself, and the column that names the row.
_EACH_OF = {"alarms": "alarm"}
# The tables of Container Apps, each filled by the category of logs that has its name.
_CATEGORIES = {"ContainerAppConsoleLogs", "ContainerAppSystemLogs"}
# Of all the services; a category that does not exist is refused only when it is deployed.
_KNOWN = _CATEGORIES | {"allLogs", "ControlPlaneRequests", "Requests", "OperationalLogs", "AllMetrics"}


def problems_are_reported(templates: Sequence[Template]) -> Iterator[str]:
    """
    Each way in which the platform or the worker reports trouble has an alert, and the alert has a receiver.
    """
    made = deploy(templates, alertEmail="operator")
    groups = made.of_type("Microsoft.Insights/actionGroups")
    people = [
        group.id
        for group in groups
        if group.at("properties", "enabled") is True
        and [one["emailAddress"] for one in group.at("properties", "emailReceivers")] == ["operator"]
    ]
    for alert in [*made.of_type(_ON_METRICS), *made.of_type(_ON_LOGS)]:
        to = alert.at("properties", "actions")
        to = to.get("actionGroups") if isinstance(to, dict) else [one["actionGroupId"] for one in to]
        if to != people or not people or alert.at("properties", "enabled") is not True:
            yield f"{alert.place} {alert.name} has no receiver"
        window = alert.at("properties", "windowSize")
        reach = alert.at("properties", "overrideQueryTimeRange") or window
        every, looks_back, reaches = (
            minutes(str(given)) for given in (alert.at("properties", "evaluationFrequency"), window, reach)
        )
        if not every or not every <= looks_back <= reaches:
            yield f"{alert.place} {alert.name} looks at {looks_back} minutes every {every}, by a query of {reach}"
        # The tables appear with the first line that is logged, which is after the deployment.
        if alert.type == _ON_LOGS and alert.at("properties", "skipQueryValidation") is not True:
            yield f"{alert.place} {alert.name} is refused by a workspace that is still empty"


def platform_alerts_ask_what_matters(templates: Sequence[Template]) -> Iterator[str]:
    """
    Each alert on the platform's metrics asks the service, the metric and the threshold that were decided on.
    """
    made = deploy(templates)
    given = dict(_criteria(made))
    for name in sorted(_ASKED.keys() | given.keys()):
        if given.get(name) != _ASKED.get(name):
            yield f"the alert {name} asks {given.get(name)}, not {_ASKED.get(name)}"


def _criteria(made: Deployment) -> Iterator[tuple[str, tuple[object, ...]]]:
    for alert in made.of_type(_ON_METRICS):
        (scope,) = alert.at("properties", "scopes")
        target = made.find(scope)
        for rule in alert.at("properties", "criteria", "allOf"):
            (dimension,) = rule["dimensions"]
            asked = (rule["metricName"], rule["timeAggregation"], rule["threshold"])
            including = rule["operator"] == "GreaterThan" and dimension["operator"] == "Include"
            of = target.type if target is not None and target.type == rule["metricNamespace"] else scope
            yield rule["name"], (of, *asked, dimension["name"] if including else None, dimension["values"])


def queries_are_asked(templates: Sequence[Template]) -> Iterator[str]:
    """
    Each query is an alert; on a cluster, whose logs are elsewhere, those that ask what the worker measures.
    """
    texts = {path.stem: path.read_text(encoding="utf-8") for path in sorted(_QUERIES.glob("*.kql"))}
    measured = {name: text for name, text in texts.items() if "AppMetrics" in text}
    for platform, expected in (("containerapps", texts), ("aks", measured)):
        made = deploy(templates, workerPlatform=platform)
        asked = {}
        for alert in made.of_type(_ON_LOGS):
            (rule,) = alert.at("properties", "criteria", "allOf")
            asked[alert.at("properties", "displayName")] = rule["query"]
            compared = " ".join(re.findall(r"\bContainerAppName\s*(?:==|in)(.*)", rule["query"]))
            for app in re.findall(r"'([^']+)'", compared):
                if app not in {one.name for one in made.of_type("Microsoft.App/containerApps")}:
                    yield f"{alert.place} {alert.name} asks for the logs of {app}, which is no app"
            if {key: rule[key] for key in _ANY_ROW} != _ANY_ROW:
                yield f"{alert.place} {alert.name} does not fire for each row of its query"
            workspace = made.find(next(iter(alert.at("properties", "scopes"))))
            if workspace is None or workspace.type != "Microsoft.OperationalInsights/workspaces":
                yield f"{alert.place} {alert.name} asks no workspace"
        for name in sorted(texts):
            if asked.get(name) != expected.get(name):
                wrong = "another query" if name in asked else "nothing"
                yield f"on {platform} the alert {name} asks {wrong}, not {'its own' if name in expected else 'nothing'}"


def alarms_are_reported_one_by_one(templates: Sequence[Template]) -> Iterator[str]:
    """
    An alert whose rows are different problems fires for each of them: one that has fired is silent until it has ended.
    """
    for alert in deploy(templates).of_type(_ON_LOGS):
        (rule,) = alert.at("properties", "criteria", "allOf")
        by = _EACH_OF.get(alert.at("properties", "displayName"))
        split_by = [(each["name"], each["operator"], each["values"]) for each in rule["dimensions"]]
        if split_by != ([(by, "Include", ["*"])] if by else []):
            yield f"{alert.place} {alert.name} is split by {split_by}, not by each {by}"
        # An alert can be split by texts only.
        if by and not re.search(rf"\bby\s+{by}\s*=\s*tostring\(", rule["query"]):
            yield f"{alert.place} {alert.name} has no text {by} in its rows"


def logs_arrive(templates: Sequence[Template]) -> Iterator[str]:
    """
    What the queries read of Container Apps is sent to the workspace that they ask.
    """
    made = deploy(templates)
    environment = made.of_type("Microsoft.App/managedEnvironments")[0]
    # Without it the environment has no diagnostic settings.
    if environment.at("properties", "appLogsConfiguration", "destination") != "azure-monitor":
        yield f"{environment.place} sends its logs elsewhere than to its diagnostic settings"
    for setting in made.of_type("Microsoft.Insights/diagnosticSettings"):
        for entry in [*setting.at("properties", "logs"), *(setting.at("properties", "metrics") or [])]:
            if (entry.get("categoryGroup") or entry.get("category")) not in _KNOWN or not entry["enabled"]:
                yield f"{setting.place} sends nothing by {entry}"
    sent = {
        log.get("categoryGroup") or log.get("category")
        for setting in made.of_type("Microsoft.Insights/diagnosticSettings")
        if setting.at("scope") == environment.id
        for log in setting.at("properties", "logs")
        if log.get("enabled") is True
    }
    for category in sorted(_CATEGORIES - sent):
        if "allLogs" not in sent:
            yield f"{environment.place} {category} stays empty: the environment does not send it"
