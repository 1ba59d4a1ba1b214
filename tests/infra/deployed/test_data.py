"""Tests that the deployed containers, topic and subscriptions have the properties that the library needs."""

from __future__ import annotations

import pytest

from tests.infra.deployed.snapshots import BUS, CONTAINERS, COSMOS, EVERY, SUBSCRIPTIONS, WORKSPACE, deployed

BY_KEY = {"data": "/partitionKey", "parked": "/partitionKey", "leases": "/id"}
BY_KEY |= {"directory": "/partitionKey", "directory-parked": "/partitionKey"}
OF_VERIFY = {"verify-data": "/partitionKey", "verify-leases": "/id", "verify-parked": "/partitionKey"}


@pytest.mark.parametrize("name", EVERY)
def test_each_container_has_its_partition_key_and_no_default_expiry(name: str):
    """With a default time to live of -1, only documents with their own time to live expire."""
    made = {name: one["resource"] for name, one in deployed(name).properties(CONTAINERS).items()}
    more, databases = ({}, ["contacts"]) if name != "verify" else (OF_VERIFY, ["contacts", "verify"])

    assert {
        name: {"id": name, "partitionKey": {"paths": [path], "kind": "Hash", "version": 2}, "defaultTtl": -1}
        for name, path in (BY_KEY | more).items()
    } == {name: {key: one[key] for key in ("id", "partitionKey", "defaultTtl")} for name, one in made.items()}
    assert {one: {"resource": {"id": one}} for one in databases} == deployed(name).properties(
        f"{COSMOS}/sqlDatabases"
    )


def test_only_fields_that_queries_filter_or_sort_by_are_indexed():
    """
    The payloads of events are not indexed.

    Without an index of /type, a listing of entities would read all documents. Without an index of /partitionKey, Cosmos
    DB would refuse a listing that ends among documents of the same id.
    """
    made = deployed("defaults").properties(CONTAINERS)
    indexed = {
        name: {path["path"] for path in one["resource"]["indexingPolicy"]["includedPaths"]}
        for name, one in made.items()
        if one["resource"].get("indexingPolicy", {}).get("excludedPaths") == [{"path": "/*"}]
    }

    assert {"data": {"/type/?", "/data/deleted/?", "/partitionKey/?"}, "directory": set()} == indexed


@pytest.mark.parametrize(
    ("name", "capabilities", "throughput"),
    [
        ("defaults", [{"name": "EnableServerless"}], {None}),
        # The most RU/s of a container: 5,000 for events, as a serverless container has, and 1,000 for everything
        # else.
        ("autoscale", [], {5000, 1000}),
        ("verify", [], {5000, 1000}),
    ],
)
def test_only_an_account_that_is_not_serverless_has_throughput_settings(
    name: str, capabilities: list[object], throughput: set[int | None]
):
    containers = deployed(name).properties(CONTAINERS)
    given = {
        key: one["options"].get("autoscaleSettings", {}).get("maxThroughput")
        for key, one in containers.items()
    }

    assert capabilities == deployed(name).one(COSMOS)["properties"]["capabilities"]
    assert (throughput, given["data"]) == (set(given.values()), max(throughput, key=lambda most: most or 0))


@pytest.mark.parametrize("name", EVERY)
def test_the_account_has_continuous_backup_and_session_consistency(name: str):
    account = deployed(name).one(COSMOS)["properties"]

    assert ("Continuous", "Session") == (
        account["backupPolicy"]["type"],
        account["consistencyPolicy"]["defaultConsistencyLevel"],
    )


def test_the_account_fails_over_to_its_regions_in_the_given_order():
    for name, others, roles in (
        ("defaults", [], {}),
        (
            "autoscale",
            ["northeurope", "francecentral"],
            {"westeurope": "Primary", "northeurope": "Secondary"},
        ),
    ):
        account, bus = (deployed(name).one(kind)["properties"] for kind in (COSMOS, BUS))
        copies = (bus["geoDataReplication"] or {"locations": []})["locations"]

        assert [
            {"locationName": region, "failoverPriority": order, "isZoneRedundant": name == "autoscale"}
            for order, region in enumerate(["westeurope", *others])
        ] == account["locations"]
        assert (bool(others), False) == (
            account["enableAutomaticFailover"],
            account["enableMultipleWriteLocations"],
        )
        assert roles == {copy["locationName"]: copy["roleType"] for copy in copies}


@pytest.mark.parametrize("name", EVERY)
def test_the_topic_detects_duplicates_and_its_subscriptions_need_sessions(name: str):
    topic = deployed(name).properties(f"{BUS}/topics")["events"]
    subscriptions = deployed(name).properties(SUBSCRIPTIONS)
    if name == "verify":
        del subscriptions["verify"], subscriptions["verify-plain"]  # see test_verify.py
    # Duplicate detection covers a day, because a worker may send again from an old checkpoint after an
    # outage. Messages live for two weeks, because a subscriber may be down for long.
    promised = {
        "maxSizeInMegabytes": 81920 if name == "autoscale" else 5120,
        "requiresDuplicateDetection": True,
        "enablePartitioning": False,
        "supportOrdering": True,
        "duplicateDetectionHistoryTimeWindow": "P1D",
        "defaultMessageTimeToLive": "P14D",
    }
    kept = {
        "requiresSession": True,
        "lockDuration": "PT1M",
        "defaultMessageTimeToLive": "P14D",
        "deadLetteringOnMessageExpiration": True,
        "deadLetteringOnFilterEvaluationExceptions": True,
    }

    assert promised.items() <= topic.items()
    # Each of these subscriptions has a reader, so none of them fills the topic. `test_roles.py` tests what a reader may do.
    assert {"directory"} | ({"billing"} if name == "operated" else set()) == subscriptions.keys()
    assert all(kept.items() <= subscription.items() for subscription in subscriptions.values())
    assert not [one for one in (topic, *subscriptions.values()) if "autoDeleteOnIdle" in one]


@pytest.mark.parametrize("name", EVERY)
def test_account_and_namespace_have_delete_locks_by_default(name: str):
    made = deployed(name)
    locks = {
        one["id"].partition("/providers/Microsoft.Authorization")[0]: one
        for one in made.resources
        if one["type"].endswith("/locks")
    }

    expected = set() if name == "autoscale" else {made.one(kind)["id"] for kind in (COSMOS, BUS)}
    assert expected == locks.keys()
    assert {"CanNotDelete"} >= {lock["properties"]["level"] for lock in locks.values()}


@pytest.mark.parametrize("name", EVERY)
def test_the_workspace_has_a_daily_quota_for_logs_by_default(name: str):
    expected = {"dailyQuotaGb": -1 if name == "autoscale" else 5}

    assert expected == deployed(name).one(WORKSPACE)["properties"]["workspaceCapping"]
