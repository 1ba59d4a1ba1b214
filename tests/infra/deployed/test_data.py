"""Containers, topic and subscriptions are made as the code counts on."""

from __future__ import annotations

import pytest

from tests.infra.deployed.snapshots import BUS, CONTAINERS, COSMOS, EVERY, SUBSCRIPTIONS, WORKSPACE, deployed

BY_KEY = {"data": "/partitionKey", "parked": "/partitionKey", "leases": "/id"}
BY_KEY |= {"directory": "/partitionKey", "directory-parked": "/partitionKey"}
OF_VERIFY = {"verify-data": "/partitionKey", "verify-leases": "/id", "verify-parked": "/partitionKey"}


@pytest.mark.parametrize("name", EVERY)
def test_documents_lie_by_their_key_and_only_their_own_time_to_live_counts(name: str):
    made = {name: one["resource"] for name, one in deployed(name).properties(CONTAINERS).items()}
    more, databases = ({}, ["contacts"]) if name != "verify" else (OF_VERIFY, ["contacts", "verify"])

    assert {
        name: {"id": name, "partitionKey": {"paths": [path], "kind": "Hash", "version": 2}, "defaultTtl": -1}
        for name, path in (BY_KEY | more).items()
    } == {name: {key: one[key] for key in ("id", "partitionKey", "defaultTtl")} for name, one in made.items()}
    assert {one: {"resource": {"id": one}} for one in databases} == deployed(name).properties(
        f"{COSMOS}/sqlDatabases"
    )


def test_only_what_queries_filter_on_and_sort_by_is_indexed():
    """
    The payload of events is not. Without /type, a listing reads everything; without /partitionKey, one that ends among
    documents of one id is refused.
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
        # What a serverless container has, and who changes to autoscale wants more, not less.
        ("autoscale", [], {5000, 1000}),
        ("verify", [], {5000, 1000}),
    ],
)
def test_a_serverless_account_is_given_no_throughput_and_another_one_is(
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
def test_the_account_can_be_restored_and_a_reader_passes_on_its_session(name: str):
    account = deployed(name).one(COSMOS)["properties"]

    assert ("Continuous", "Session") == (
        account["backupPolicy"]["type"],
        account["consistencyPolicy"]["defaultConsistencyLevel"],
    )


def test_one_region_writes_and_the_next_in_the_given_order_takes_over():
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
def test_the_topic_drops_repeats_and_its_subscriptions_keep_sessions(name: str):
    topic = deployed(name).properties(f"{BUS}/topics")["events"]
    subscriptions = deployed(name).properties(SUBSCRIPTIONS)
    if name == "verify":
        del subscriptions["verify"], subscriptions["verify-plain"]  # see test_verify.py
    # A day: longer than an outage after which a worker sends again from an old checkpoint. Two weeks: a subscriber may be away.
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
    # Each has a reader: see the roles.
    assert {"directory"} | ({"billing"} if name == "operated" else set()) == subscriptions.keys()
    assert all(kept.items() <= subscription.items() for subscription in subscriptions.values())
    assert not [one for one in (topic, *subscriptions.values()) if "autoDeleteOnIdle" in one]


@pytest.mark.parametrize("name", EVERY)
def test_account_and_namespace_are_locked_unless_the_deployer_wants_none(name: str):
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
def test_what_logs_may_cost_in_a_day_has_an_end_unless_the_deployer_wants_none(name: str):
    expected = {"dailyQuotaGb": -1 if name == "autoscale" else 5}

    assert expected == deployed(name).one(WORKSPACE)["properties"]["workspaceCapping"]
