"""An alert reaches an operator for each way in which the platform, a worker or a consumer reports trouble."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.infra.deployed.snapshots import APPS, BUS, COSMOS, EVERY, INFRA, WORKSPACE, deployed

ON_METRICS = "Microsoft.Insights/metricAlerts"
ON_LOGS = "Microsoft.Insights/scheduledQueryRules"
DIAGNOSTICS = "Microsoft.Insights/diagnosticSettings"
# By the names of the apps where a deployment gives them others.
RENAMED = {"ca-worker": "ca-house-relay", "ca-consumer": "ca-house-directory"}
QUERIES = {path.stem: path.read_text() for path in (INFRA / "queries").glob("*.kql")}
# What each alert on the platform asks: of what, which metric, how it is put together, above what, and for which values.
ASKED = {
    "dead-letters": (f"{BUS}/sbns-token", "DeadletteredMessages", "Average", 0, "EntityName", ["*"]),
    "topic-filling": (f"{BUS}/sbns-token", "Size", "Average", 4 << 30, "EntityName", ["*"]),
    "messages-waiting": (f"{BUS}/sbns-token", "ActiveMessages", "Average", 10_000, "EntityName", ["*"]),
    "bus-throttled": (f"{BUS}/sbns-token", "ThrottledRequests", "Total", 10, "EntityName", ["*"]),
    "bus-failing": (f"{BUS}/sbns-token", "ServerErrors", "Total", 10, "EntityName", ["*"]),
    "cosmos-throttled": (f"{COSMOS}/cosmos-token", "TotalRequests", "Count", 900, "StatusCode", ["429"]),
    "cosmos-busy": (
        f"{COSMOS}/cosmos-token",
        "NormalizedRUConsumption",
        "Average",
        90,
        "CollectionName",
        ["*"],
    ),
}


def renamed(query: str) -> str:
    for default, name in RENAMED.items():
        query = query.replace(f"'{default}'", f"'{name}'")
    return query


def rule_of(alert: dict[str, Any]) -> dict[str, Any]:
    (rule,) = alert["criteria"]["allOf"]
    return dict(rule)


def test_each_alert_is_on_and_has_the_operators_as_receiver():
    made = deployed("operated")
    (group,) = made.of_type("Microsoft.Insights/actionGroups").values()
    assert (True, ["operators@example.com"]) == (
        group["properties"]["enabled"],
        [one["emailAddress"] for one in group["properties"]["emailReceivers"]],
    )
    for alert in made.properties(ON_METRICS).values():
        assert (True, [{"actionGroupId": group["id"]}]) == (alert["enabled"], alert["actions"])
    for alert in made.properties(ON_LOGS).values():
        assert (True, {"actionGroups": [group["id"]]}) == (alert["enabled"], alert["actions"])


@pytest.mark.parametrize("name", EVERY)
def test_each_alert_on_the_platforms_metrics_asks_what_was_decided_on(name: str):
    asked = {}
    for alert in deployed(name).properties(ON_METRICS).values():
        rule = rule_of(alert)
        (dimension,), (scope,) = rule["dimensions"], alert["scopes"]
        assert ("GreaterThan", "Include") == (rule["operator"], dimension["operator"])
        assert scope.rpartition("/")[0] == rule["metricNamespace"]
        how = (rule["metricName"], rule["timeAggregation"], rule["threshold"])
        asked[rule["name"]] = (scope, *how, dimension["name"], dimension["values"])

    topic = deployed(name).properties(f"{BUS}/topics")["events"]
    filling = list(ASKED["topic-filling"])
    filling[3] = (topic["maxSizeInMegabytes"] << 20) * 80 // 100
    assert ASKED | {"topic-filling": tuple(filling)} == asked


@pytest.mark.parametrize("name", EVERY)
def test_each_query_is_an_alert_and_on_a_cluster_those_that_ask_what_is_measured(name: str):
    """The logs of a cluster are elsewhere."""
    expected = {key: text for key, text in QUERIES.items() if name != "aks" or "AppMetrics" in text}
    if name == "operated":
        expected = {key: renamed(text) for key, text in expected.items()}
    alerts = deployed(name).properties(ON_LOGS).values()

    assert expected == {alert["displayName"]: rule_of(alert)["query"] for alert in alerts}


def test_each_row_of_a_query_fires_and_those_of_alarms_one_by_one():
    """An alert that has fired is silent until it has ended, so the second of two alarms would raise none."""
    for alert in deployed("operated").properties(ON_LOGS).values():
        rule, alarms = rule_of(alert), alert["displayName"] == "alarms"
        assert [f"{WORKSPACE}/log-token"] == alert["scopes"]
        # The tables appear with the first line that is logged, which is after the deployment.
        assert alert["skipQueryValidation"] is True
        assert {
            "timeAggregation": "Count",
            "operator": "GreaterThan",
            "threshold": 0,
            "failingPeriods": {"numberOfEvaluationPeriods": 1, "minFailingPeriodsToAlert": 1},
            "dimensions": [{"name": "alarm", "operator": "Include", "values": ["*"]}] if alarms else [],
            "query": renamed(QUERIES[alert["displayName"]]),
        } == rule
    # An alert can be split by texts only.
    assert re.search(r"\bby alarm = tostring\(", QUERIES["alarms"])


def test_the_partition_keys_are_logged_only_where_the_deployer_asks_for_it():
    """They are often personal."""
    logs = {
        name: {log["category"]: log["enabled"] for log in one["properties"]["logs"]}
        for name in EVERY
        for one in deployed(name).resources
        if one["type"] == DIAGNOSTICS and f"{COSMOS}/" in one["id"]
    }

    assert {name: name == "operated" for name in EVERY} == {
        name: enabled["PartitionKeyRUConsumption"] for name, enabled in logs.items()
    }


def test_the_logs_that_are_asked_for_are_those_of_apps_and_arrive():
    made = deployed("operated")
    compared = " ".join(
        re.findall(r"\bContainerAppName\s*(?:==|in)(.*)", renamed("\n".join(QUERIES.values())))
    )
    sent = {
        one["id"].partition("/providers/")[0].split("/")[1]: one["properties"]
        for one in made.resources
        if one["type"] == DIAGNOSTICS
    }
    environment = made.one("Microsoft.App/managedEnvironments")["properties"]

    assert set(RENAMED.values()) == set(re.findall(r"'([^']+)'", compared)) <= made.of_type(APPS).keys()
    # Without it the environment has no diagnostic settings.
    assert "azure-monitor" == environment["appLogsConfiguration"]["destination"]
    # A category that does not exist is refused only when it is deployed.
    assert {
        "managedEnvironments": {"allLogs"},
        "databaseAccounts": {"ControlPlaneRequests", "PartitionKeyRUConsumption", "Requests"},
        "namespaces": {"OperationalLogs", "AllMetrics"},
    } == {
        kind: {
            entry.get("categoryGroup") or entry["category"]
            for entry in (*setting["logs"], *setting.get("metrics", []))
            if entry["enabled"]
        }
        for kind, setting in sent.items()
    }
    assert {f"{WORKSPACE}/log-token"} == {setting["workspaceId"] for setting in sent.values()}
    assert (
        f"{WORKSPACE}/log-token"
        == made.one("Microsoft.Insights/components")["properties"]["WorkspaceResourceId"]
    )
