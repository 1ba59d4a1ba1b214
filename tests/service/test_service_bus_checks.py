"""
Tests of the checks of Service Bus in `cosmos-outbox doctor`: it reports each wrong setting once, with the
command that fixes it.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from azure.servicebus.management import EntityStatus, QueueProperties

from cosmos_outbox.adapters.servicebus.administration import Entity, Refusal
from cosmos_outbox.adapters.servicebus.publisher import BatchScope
from cosmos_outbox_worker.doctor.check import Checks, Finding, findings_of
from cosmos_outbox_worker.doctor.service_bus import (
    KEPT,
    SOURCE,
    SOURCE_SETTINGS,
    SUBSCRIPTION,
    TOPIC,
    TOPIC_SETTINGS,
    Source,
    Topic,
    refusal_finding,
)
from tests.support.service_bus_settings import FOREVER, GOOD, MONTH, described, subscription, topic


def told(checks: Checks[Any], it: Any) -> list[Finding]:
    return [*findings_of(checks, it)]


def of_topic(described: Entity, scope: BatchScope = BatchScope.TOPIC) -> list[Finding]:
    return told(TOPIC_SETTINGS, Topic(topic=described, batch_scope=scope))


def of_source(*, deliveries: int = 10, entered: Entity | None = None, **fields: Any) -> list[Finding]:
    source = subscription(**fields)
    return told(KEPT, source) + told(
        SOURCE_SETTINGS,
        Source(
            source=source,
            entered=entered or topic(source),
            deliveries=deliveries,
            record_ttl=MONTH,
        ),
    )


def test_a_correct_topic_and_subscription_have_no_finding():
    assert [] == of_topic(topic(subscription()))
    assert [] == told({**SUBSCRIPTION, **KEPT}, subscription())
    assert [] == of_source()
    assert [] == of_source(lock_duration=timedelta(minutes=5))
    queue = Entity(label="Queue 'orders'", settings=described(QueueProperties, "orders", **GOOD))
    assert [] == told(SOURCE_SETTINGS, Source(source=queue, entered=queue, record_ttl=MONTH))


def of_topic_with(**fields: Any) -> list[Finding]:
    return of_topic(topic(subscription(), **fields))


def of_subscription(**fields: Any) -> list[Finding]:
    return told({**SUBSCRIPTION, **KEPT}, subscription(**fields))


ON_FILTER = "dead_lettering_on_filter_evaluation_exceptions"
LONGER = MONTH + timedelta(days=1)
NO_EXPIRY = "Set defaultMessageTimeToLive to 30 days"


@pytest.mark.parametrize(
    ("check", "severity", "fix", "found"),
    [
        ("subscriptions", "error", "", of_topic(topic())),
        ("duplicate-detection", "error", "requiresDup", of_topic_with(requires_duplicate_detection=False)),
        (
            "duplicate-window",
            "warning",
            "duplicateDetectionHistoryTimeWindow",
            of_topic_with(duplicate_detection_history_time_window=timedelta(minutes=9)),
        ),
        ("auto-delete", "error", "autoDelete", of_topic_with(auto_delete_on_idle=timedelta(hours=1))),
        ("topic-status", "error", "Active", of_topic_with(status=EntityStatus.SEND_DISABLED)),
        ("topic-status", "error", "Active", of_topic_with(status="Disabled")),
        ("partitioning", "error", "batch scope to message", of_topic_with(enable_partitioning=True)),
        ("sessions", "error", "", of_subscription(requires_session=False)),
        ("auto-delete", "error", "", of_subscription(auto_delete_on_idle=timedelta(minutes=5))),
        ("subscription-status", "warning", "", of_subscription(status=EntityStatus.RECEIVE_DISABLED)),
        ("dead-lettering", "warning", "", of_subscription(dead_lettering_on_message_expiration=False)),
        ("lock-duration", "warning", "to 0:01:00", of_source(lock_duration=timedelta(seconds=30))),
        ("max-delivery-count", "warning", "Count to 10", of_source(max_delivery_count=9)),
        ("max-delivery-count", "warning", "Count to 14", of_source(deliveries=14, max_delivery_count=13)),
        ("auto-delete", "error", "autoDelete", of_source(auto_delete_on_idle=timedelta(hours=1))),
        ("subscription-status", "error", "Active", of_source(status=EntityStatus.RECEIVE_DISABLED)),
        ("dead-lettering", "warning", "OnMessage", of_source(dead_lettering_on_message_expiration=False)),
        ("dead-lettering", "warning", "deadLetteringOnFilter", of_source(**{ON_FILTER: False})),
        ("record-ttl", "error", "record_ttl of 31 days", of_source(default_message_time_to_live=LONGER)),
        ("record-ttl", "error", NO_EXPIRY, of_source(default_message_time_to_live=FOREVER)),
        ("record-ttl", "error", NO_EXPIRY, of_source(default_message_time_to_live=None)),
    ],
)
def test_each_wrong_setting_of_an_entity_gives_one_finding_with_its_fix(
    check: str, severity: str, fix: str, found: list[Finding]
):
    (finding,) = found
    assert (check, severity) == (finding.check, finding.severity)
    assert fix in finding.fix
    assert "opic 'events'" in finding.message


@pytest.mark.parametrize(
    ("dedup", "scope", "wanted"),
    # Whether the topic drops duplicates, what the messages of a batch have in common, and the batch scope
    # that doctor advises
    [
        (False, BatchScope.TOPIC, "session"),
        (False, BatchScope.SESSION, None),
        (False, BatchScope.MESSAGE, None),
        (True, BatchScope.TOPIC, "message"),
        (True, BatchScope.SESSION, "message"),
        (True, BatchScope.MESSAGE, None),
    ],
)
def test_doctor_reports_a_partitioned_topic_whose_batch_scope_does_not_fit(
    dedup: bool, scope: BatchScope, wanted: str | None
):
    partitioned = topic(subscription(), enable_partitioning=True, requires_duplicate_detection=dedup)
    found = [one for one in of_topic(partitioned, scope) if one.check == "partitioning"]
    expected = [wanted] if wanted else []
    assert expected == [one.fix.split("batch scope to ")[1].split(",")[0] for one in found]


def test_doctor_applies_a_topic_s_time_to_live_to_its_subscriptions():
    short = topic(default_message_time_to_live=timedelta(days=7))
    assert [] == of_source(default_message_time_to_live=FOREVER, entered=short)


def test_doctor_reports_a_missing_queue_or_topic_and_the_wrong_kind_of_entity():
    missing, other = Entity(label="Queue 'q'", exists=False), Entity(label="Queue 'q'")
    (first,), (second,) = told(SOURCE, missing), told(SOURCE, other)
    assert "Queue 'q' does not exist." == first.message
    assert "is no queue" in second.message
    (first,), (second,) = told(TOPIC, Topic(topic=missing)), told(TOPIC, Topic(topic=other))
    assert "does not exist" in first.message
    assert "OUTBOX_TOPIC" in second.fix


@pytest.mark.parametrize(
    ("refusal", "sessions", "check"),
    [
        (Refusal.DISABLED, True, "subscription-status"),
        (Refusal.SESSIONS, True, "sessions"),
        (Refusal.SESSIONS, False, "sessions"),
        (Refusal.DENIED, True, "permissions"),
        (Refusal.MISSING, True, "subscription"),
    ],
)
def test_doctor_reports_why_service_bus_refuses_a_receiver(refusal: Refusal, sessions: bool, check: str):
    finding = refusal_finding("Queue 'q'", refusal, "No.", sessions=sessions)
    assert (check, "error") == (finding.check, finding.severity)
