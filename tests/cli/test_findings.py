"""
The rules of `cosmos-outbox doctor`: every misconfiguration, planted alone, gives its finding and no other.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from azure.servicebus.management import SubscriptionProperties, TopicProperties

from cosmos_outbox.cli.describing import described_topic
from cosmos_outbox.cli.findings import (
    ContainerDescription,
    LeaseDescription,
    Resources,
    Severity,
    SubscriptionDescription,
    TopicDescription,
    findings_in,
)

DATA = ContainerDescription(name="data", partition_key=("/partitionKey",), default_ttl=-1)
LEASES = ContainerDescription(name="leases", partition_key=("/id",), default_ttl=-1)
PARKED = ContainerDescription(name="parked", partition_key=("/partitionKey",))
SUBSCRIPTION = SubscriptionDescription(
    name="all", requires_session=True, active=True, dead_letters_on_expiry=True
)
TOPIC = TopicDescription(
    name="events",
    active=True,
    detects_duplicates=True,
    window=timedelta(days=1),
    partitioned=False,
    auto_delete_on_idle=None,
    subscriptions=(SUBSCRIPTION,),
)


def lease(name: str, *, worked_on: bool = True, transactions: int = 0) -> LeaseDescription:
    return LeaseDescription(token=name, worked_on=worked_on, transactions=transactions)


HEALTHY = Resources(
    data=DATA,
    lease_container=LEASES,
    parked=PARKED,
    leases=(lease("0"), lease("1")),
    uncovered_ranges=(),
    denied=(),
    topic=TOPIC,
    topic_unknown=None,
    clock_skew=timedelta(seconds=1),
)


def with_topic(**changes: object) -> dict[str, object]:
    return {"topic": replace(TOPIC, **changes)}


def with_subscription(**changes: object) -> dict[str, object]:
    return with_topic(subscriptions=(replace(SUBSCRIPTION, **changes),))


PLANTED = {
    "data container missing": ({"data": replace(DATA, exists=False)}, "data-container", "error"),
    "data container unreadable": ({"data": replace(DATA, error="403")}, "data-container", "error"),
    "data on another key": ({"data": replace(DATA, partition_key=("/id",))}, "data-container", "error"),
    "data without TTL": ({"data": replace(DATA, default_ttl=None)}, "data-ttl", "error"),
    "data with a default TTL": ({"data": replace(DATA, default_ttl=60)}, "data-ttl", "warning"),
    "lease container missing": (
        {"lease_container": replace(LEASES, exists=False)},
        "lease-container",
        "error",
    ),
    "leases on another key": (
        {"lease_container": replace(LEASES, partition_key=("/pk",))},
        "lease-container",
        "error",
    ),
    "leases without TTL": ({"lease_container": replace(LEASES, default_ttl=None)}, "lease-ttl", "warning"),
    "leases that expire": ({"lease_container": replace(LEASES, default_ttl=600)}, "lease-ttl", "error"),
    "parked container missing": ({"parked": replace(PARKED, exists=False)}, "parked-container", "error"),
    "parked on another key": (
        {"parked": replace(PARKED, partition_key=("/id",))},
        "parked-container",
        "error",
    ),
    "parked events that expire": ({"parked": replace(PARKED, default_ttl=60)}, "parked-ttl", "error"),
    "no right to delete leases": ({"denied": (("delete leases", "403"),)}, "permissions", "error"),
    "no right to create leases": ({"denied": (("create leases", "403"),)}, "permissions", "error"),
    "no right to replace leases": ({"denied": (("replace leases", "403"),)}, "permissions", "error"),
    "no right to read the feed": ({"denied": (("read the change feed", "403"),)}, "permissions", "error"),
    "no right to send": ({"denied": (("send to the topic", "401"),)}, "permissions", "error"),
    "no leases": ({"leases": ()}, "leases", "warning"),
    "a range without lease": ({"uncovered_ranges": ("05-07",)}, "leases", "error"),
    "a lease without worker": ({"leases": (lease("0"), lease("1", worked_on=False))}, "owners", "warning"),
    "events without worker": ({"leases": (lease("1", worked_on=False, transactions=3),)}, "owners", "error"),
    "topic disabled": (with_topic(active=False), "topic-status", "error"),
    "no duplicate detection": (with_topic(detects_duplicates=False), "duplicate-detection", "error"),
    "a short window": (with_topic(window=timedelta(minutes=1)), "duplicate-window", "warning"),
    "a partitioned topic": (with_topic(partitioned=True), "partitioning", "error"),
    "auto-delete": (with_topic(auto_delete_on_idle=timedelta(days=7)), "auto-delete", "error"),
    "no subscription": (with_topic(subscriptions=()), "subscriptions", "error"),
    "no sessions": (with_subscription(requires_session=False), "sessions", "error"),
    "subscription disabled": (with_subscription(active=False), "subscription-status", "warning"),
    "no dead-lettering": (with_subscription(dead_letters_on_expiry=False), "dead-lettering", "warning"),
    "topic unknown": ({"topic": None, "topic_unknown": "403"}, "topic", "note"),
    "clock ahead": ({"clock_skew": timedelta(minutes=1)}, "clock", "warning"),
    "clock far behind": ({"clock_skew": timedelta(minutes=-6)}, "clock", "error"),
}


def test_a_healthy_outbox_has_no_finding():
    assert () == findings_in(HEALTHY)


@pytest.mark.parametrize(("changes", "check", "severity"), PLANTED.values(), ids=PLANTED.keys())
def test_a_planted_misconfiguration_is_the_one_finding(changes, check, severity):
    (finding,) = findings_in(replace(HEALTHY, **changes))
    assert (check, severity) == (finding.check, finding.severity)
    assert finding.message.rstrip().endswith((".", "403", "401"))
    assert finding.fix.endswith((".", ")."))


def test_the_worst_findings_come_first():
    found = findings_in(
        replace(HEALTHY, topic=None, topic_unknown="x", leases=(), data=replace(DATA, exists=False))
    )
    assert [Severity.ERROR, Severity.WARNING, Severity.NOTE] == [finding.severity for finding in found]


def topic_properties(**changes: object) -> TopicProperties:
    names = [
        "default_message_time_to_live",
        "max_size_in_megabytes",
        "requires_duplicate_detection",
        "duplicate_detection_history_time_window",
        "enable_batched_operations",
        "size_in_bytes",
        "filtering_messages_before_publishing",
        "authorization_rules",
        "status",
        "support_ordering",
        "auto_delete_on_idle",
        "enable_partitioning",
        "availability_status",
        "enable_express",
        "user_metadata",
        "max_message_size_in_kilobytes",
    ]
    return TopicProperties("events", **dict.fromkeys(names) | changes)  # type: ignore[arg-type]


def test_what_the_management_interface_says_of_a_topic_is_understood():
    described = described_topic(
        "events",
        topic_properties(
            status="Active",
            requires_duplicate_detection=True,
            duplicate_detection_history_time_window="P1DT10M",
            auto_delete_on_idle="P10675199DT2H48M5.4775807S",
            enable_partitioning=False,
        ),
        [],
    )
    assert replace(TOPIC, window=timedelta(days=1, minutes=10), subscriptions=()) == described
    idle = described_topic("events", topic_properties(auto_delete_on_idle=timedelta(minutes=5)), [])
    assert (timedelta(minutes=5), False, False) == (
        idle.auto_delete_on_idle,
        idle.active,
        idle.detects_duplicates,
    )
    assert SubscriptionProperties is not None
