"""
Tests that an alert reaches the operators for each kind of trouble that the platform, a worker or a consumer reports.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.infra.deployed.snapshots import APPS, BUS, COSMOS, EVERY, INFRA, WORKSPACE, deployed

ON_METRICS = "Microsoft.Insights/metricAlerts"
ON_LOGS = "Microsoft.Insights/scheduledQueryRules"
DIAGNOSTICS = "Microsoft.Insights/diagnosticSettings"
# The default name of each app, and the name that the deployment "operated" gives to it.
RENAMED = {"ca-worker": "ca-house-relay", "ca-consumer": "ca-house-directory"}
QUERIES = {path.stem: path.read_text() for path in (INFRA / "queries").glob("*.kql")}
# For each alert on a metric of the platform: resource, metric, aggregation, threshold, and the dimension with its values.
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


def test_each_alert_is_enabled_and_notifies_the_operators():
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
def test_each_alert_on_a_platform_metric_has_the_expected_threshold(name: str):
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
def test_each_query_file_becomes_an_azure_alert(name: str):
    """
    Each file in infra/queries has the query of an alert.

    With workers on a cluster, only the queries of metrics become alerts, because the logs of a cluster are elsewhere.
    """
    expected = {key: text for key, text in QUERIES.items() if name != "aks" or "AppMetrics" in text}
    if name == "operated":
        expected = {key: renamed(text) for key, text in expected.items()}
    alerts = deployed(name).properties(ON_LOGS).values()

    assert expected == {alert["displayName"]: rule_of(alert)["query"] for alert in alerts}


def test_each_row_that_a_query_returns_fires_its_own_alert():
    """
    The query of alarms fires for each alarm separately, because an alert that has fired is silent until it has ended.
    """
    for alert in deployed("operated").properties(ON_LOGS).values():
        rule, alarms = rule_of(alert), alert["displayName"] == "alarms"
        assert [f"{WORKSPACE}/log-token"] == alert["scopes"]
        # Azure cannot validate the queries at the deployment: it creates the tables of the logs only later,
        # with the first line.
        assert alert["skipQueryValidation"] is True
        assert {
            "timeAggregation": "Count",
            "operator": "GreaterThan",
            "threshold": 0,
            "failingPeriods": {"numberOfEvaluationPeriods": 1, "minFailingPeriodsToAlert": 1},
            "dimensions": [{"name": "alarm", "operator": "Include", "values": ["*"]}] if alarms else [],
            "query": renamed(QUERIES[alert["displayName"]]),
        } == rule
    # Azure fires an alert separately for each alarm only if the column with the alarm's name is a text, so
    # the query converts it.
    assert re.search(r"\bby alarm = tostring\(", QUERIES["alarms"])


def test_partition_keys_are_logged_only_if_the_deployer_asks_for_it():
    """Partition keys often contain personal data."""
    logs = {
        name: {log["category"]: log["enabled"] for log in one["properties"]["logs"]}
        for name in EVERY
        for one in deployed(name).resources
        if one["type"] == DIAGNOSTICS and f"{COSMOS}/" in one["id"]
    }

    assert {name: name == "operated" for name in EVERY} == {
        name: enabled["PartitionKeyRUConsumption"] for name, enabled in logs.items()
    }


def test_the_queries_name_existing_apps_whose_logs_reach_the_workspace():
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
    # Azure applies the diagnostic settings of the environment only with this destination of its logs.
    assert "azure-monitor" == environment["appLogsConfiguration"]["destination"]
    # List the expected categories here, because only a real deployment would notice a category that does not
    # exist.
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
