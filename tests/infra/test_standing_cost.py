"""Tests that the costs of an idle deployment in limits-and-costs.md agree with the Bicep template."""

from __future__ import annotations

import re

from tests.infra.deployed.snapshots import BUS, CONTAINERS, deployed
from tests.support.pages import ROOT

PAGE = (ROOT / "docs/explanation/limits-and-costs.md").read_text()
TABLE = PAGE.partition("## Standing cost of the template")[2].partition("\nAzure bills")[0]
ROWS = dict(re.findall(r"^\| ([^|]+?) \| [^|]* \| ([^|]*?) \|", TABLE, re.MULTILINE))
HOURS, DAYS = 730, 30.4
SECONDS = HOURS * 3600


def made(kind: str, name: str = "defaults") -> int:
    return len(deployed(name).of_type(kind))


def test_the_cost_page_counts_the_minimum_replicas():
    templates = [app["properties"]["template"] for app in deployed("defaults").apps().values()]
    replicas = sum(template["scale"]["minReplicas"] for template in templates)
    cpu, memory = 0.0, 0
    for template in templates:
        (container,) = template["containers"]
        cpu += template["scale"]["minReplicas"] * float(container["resources"]["cpu"])
        memory += template["scale"]["minReplicas"] * int(container["resources"]["memory"].removesuffix("Gi"))

    expected = f"{replicas} replicas: {SECONDS * cpu:,.0f} vCPU-s, {SECONDS * memory:,} GiB-s"
    assert expected == ROWS["Container Apps"]


def test_the_cost_page_counts_the_requests_of_idle_workers():
    ranges, workers = 1, 2
    measured = round(SECONDS / 15) * workers
    feed, renewals = SECONDS * ranges, round(SECONDS / 17) * ranges
    listings = round(SECONDS / 13) * workers
    requests = feed + renewals + listings + measured * (5 + ranges) + 2 * measured
    units = feed + 6 * renewals + 3 * listings + measured * (3 + 4 + ranges) + measured * (3 + 6)

    assert f"1 range that is {requests:,}." in PAGE
    told = f"{requests / 1e6:.1f} million requests, {units / 1e6:.0f} million RU"
    assert ROWS["Cosmos DB, serverless"].startswith(told)


def test_the_cost_page_counts_autoscale_minimums_and_premium_units():
    containers = deployed("autoscale").properties(CONTAINERS).values()
    floor = sum(one["options"]["autoscaleSettings"]["maxThroughput"] for one in containers) // 10

    assert ROWS["Cosmos DB, autoscale"].endswith(f" {floor} RU/s: {floor * HOURS // 100:,}")
    assert "Standard" == deployed("defaults").one(BUS)["sku"]["name"]
    units = deployed("private-network").one(BUS)["sku"]["capacity"]
    assert ROWS["Service Bus Premium"].endswith(f" {units * HOURS}")


def test_the_cost_page_counts_alerts_logs_and_private_endpoints():
    logs, metrics = (made(f"Microsoft.Insights/{kind}") for kind in ("scheduledQueryRules", "metricAlerts"))
    cap = deployed("defaults").one("Microsoft.OperationalInsights/workspaces")["properties"]
    endpoints, zones = (
        made(f"Microsoft.Network/{kind}", "private-network")
        for kind in ("privateEndpoints", "privateDnsZones")
    )

    assert f"{logs} rules every 5 minutes, {metrics} on metrics" == ROWS["Alerts"]
    assert f"at most {cap['workspaceCapping']['dailyQuotaGb'] * DAYS:.0f} GB" == ROWS["Log Analytics"]
    assert ROWS["Private endpoints"].endswith(f" {endpoints}: {endpoints * HOURS:,} hours, {zones} zones")
