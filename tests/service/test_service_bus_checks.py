"""The checks of Service Bus: each setting that is wrong is told alone, with its fix."""

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
    refused,
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


def test_a_topic_and_a_source_as_they_should_be_have_no_finding():
    assert [] == of_topic(topic(subscription()))
    assert [] == told({**SUBSCRIPTION, **KEPT}, subscription())
    assert [] == of_source()
    assert [] == of_source(lock_duration=timedelta(minutes=5))
    queue = Entity(label="Queue 'orders'", settings=described(QueueProperties, "orders", **GOOD))
    source = Source(source=queue, entered=queue, record_ttl=MONTH)
    assert [] == told(SOURCE_SETTINGS, source)


@pytest.mark.parametrize(
    ("fields", "check", "severity", "fix"),
    [
        (
            {"requires_duplicate_detection": False},
            "duplicate-detection",
            "error",
            "requiresDuplicateDetection",
        ),
        (
            {"duplicate_detection_history_time_window": timedelta(minutes=9)},
            "duplicate-window",
            "warning",
            "duplicateDetectionHistoryTimeWindow",
        ),
        ({"auto_delete_on_idle": timedelta(hours=1)}, "auto-delete", "error", "autoDeleteOnIdle"),
        ({"status": EntityStatus.SEND_DISABLED}, "topic-status", "error", "Active"),
        ({"status": "Disabled"}, "topic-status", "error", "Active"),
        ({"enable_partitioning": True}, "partitioning", "error", "batch scope to message"),
    ],
)
def test_each_setting_of_a_topic_is_told_alone_with_its_fix(
    fields: dict[str, Any], check: str, severity: str, fix: str
):
    (finding,) = of_topic(topic(subscription(), **fields))
    assert (check, severity) == (finding.check, finding.severity)
    assert "'events'" in finding.message
    assert fix in finding.fix


@pytest.mark.parametrize(
    ("dedup", "scope", "wanted"),
    [
        (False, BatchScope.TOPIC, "session"),
        (False, BatchScope.SESSION, None),
        (False, BatchScope.MESSAGE, None),
        (True, BatchScope.TOPIC, "message"),
        (True, BatchScope.SESSION, "message"),
        (True, BatchScope.MESSAGE, None),
    ],
)
def test_a_partitioned_topic_needs_the_batch_scope_that_fits(
    dedup: bool, scope: BatchScope, wanted: str | None
):
    partitioned = topic(subscription(), enable_partitioning=True, requires_duplicate_detection=dedup)
    found = [one for one in of_topic(partitioned, scope) if one.check == "partitioning"]
    expected = [wanted] if wanted else []
    assert expected == [one.fix.split("batch scope to ")[1].split(",")[0] for one in found]


@pytest.mark.parametrize(
    ("fields", "check", "severity"),
    [
        ({"requires_session": False}, "sessions", "error"),
        ({"auto_delete_on_idle": timedelta(minutes=5)}, "auto-delete", "error"),
        ({"status": EntityStatus.RECEIVE_DISABLED}, "subscription-status", "warning"),
        ({"dead_lettering_on_message_expiration": False}, "dead-lettering", "warning"),
    ],
)
def test_each_setting_of_a_subscription_is_told_alone_by_name(
    fields: dict[str, Any], check: str, severity: str
):
    (finding,) = told({**SUBSCRIPTION, **KEPT}, subscription(**fields))
    assert (check, severity) == (finding.check, finding.severity)
    assert "Subscription 'all' of topic 'events'" in finding.message


def test_a_topic_without_subscription_loses_what_is_sent():
    (finding,) = of_topic(topic())
    assert ("subscriptions", "error") == (finding.check, finding.severity)


@pytest.mark.parametrize(
    ("fields", "check", "severity", "fix"),
    [
        ({"lock_duration": timedelta(seconds=30)}, "lock-duration", "warning", "lockDuration to 0:01:00"),
        ({"max_delivery_count": 9}, "max-delivery-count", "warning", "maxDeliveryCount to 10"),
        (
            {"deliveries": 14, "max_delivery_count": 13},
            "max-delivery-count",
            "warning",
            "maxDeliveryCount to 14",
        ),
        ({"auto_delete_on_idle": timedelta(hours=1)}, "auto-delete", "error", "autoDeleteOnIdle"),
        ({"status": EntityStatus.RECEIVE_DISABLED}, "subscription-status", "error", "Active"),
        ({"dead_lettering_on_message_expiration": False}, "dead-lettering", "warning", "OnMessageExpiration"),
        (
            {"dead_lettering_on_filter_evaluation_exceptions": False},
            "dead-lettering",
            "warning",
            "deadLetteringOnFilterEvaluationExceptions",
        ),
        (
            {"default_message_time_to_live": MONTH + timedelta(days=1)},
            "record-ttl",
            "error",
            "record_ttl of 31 days, 0:00:00",
        ),
        (
            {"default_message_time_to_live": FOREVER},
            "record-ttl",
            "error",
            "Set defaultMessageTimeToLive to 30 days",
        ),
        (
            {"default_message_time_to_live": None},
            "record-ttl",
            "error",
            "Set defaultMessageTimeToLive to 30 days",
        ),
    ],
)
def test_each_setting_of_a_source_is_told_alone_with_its_fix(
    fields: dict[str, Any], check: str, severity: str, fix: str
):
    (finding,) = of_source(**fields)
    assert (check, severity) == (finding.check, finding.severity)
    assert fix in finding.fix


def test_a_message_lives_no_longer_than_its_topic_lets_it():
    short = topic(default_message_time_to_live=timedelta(days=7))
    assert [] == of_source(default_message_time_to_live=FOREVER, entered=short)


def test_an_entity_that_is_missing_or_another_one_is_named():
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
def test_what_a_receiver_is_told_is_a_finding(refusal: Refusal, sessions: bool, check: str):
    finding = refused("Queue 'q'", refusal, "No.", sessions=sessions)
    assert (check, "error") == (finding.check, finding.severity)
