"""
Source preflight: each miss of a described subscription or queue is told alone, with its fix.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from azure.core.exceptions import ResourceNotFoundError
from azure.servicebus.aio.management import ServiceBusAdministrationClient
from azure.servicebus.management import EntityStatus, QueueProperties, SubscriptionProperties, TopicProperties

from cosmos_outbox.adapters.servicebus.preflight import Miss
from cosmos_outbox.adapters.servicebus.source_preflight import memory_misses, source_misses, source_preflight
from tests.unit.adapters.test_service_bus_preflight import FOREVER, described

GOOD: dict[str, Any] = {
    "requires_session": True,
    "lock_duration": timedelta(seconds=60),
    "max_delivery_count": 10,
    "auto_delete_on_idle": FOREVER,
    "status": EntityStatus.ACTIVE,
    "dead_lettering_on_message_expiration": True,
}
ALSO: dict[str, Any] = {"dead_lettering_on_filter_evaluation_exceptions": True}
WINDOW, LOCK = timedelta(days=1), timedelta(minutes=1)
REACHABLE = "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=n;SharedAccessKey=a2V5"


def misses(*, sessions: bool = True, deliveries: int = 10, **fields: Any) -> list[Miss]:
    source = described(SubscriptionProperties, "all", **GOOD | ALSO | fields)
    lock = timedelta(seconds=60)
    return list(source_misses("It", source, sessions=sessions, lock=lock, deliveries=deliveries))


def test_a_source_as_it_should_be_has_no_miss():
    assert [] == misses()
    assert [] == misses(lock_duration=timedelta(minutes=5))
    queue = described(QueueProperties, "orders", **GOOD)
    assert [] == list(source_misses("It", queue, sessions=True, lock=timedelta(seconds=60)))
    assert [] == misses(requires_session=False, sessions=False)


@pytest.mark.parametrize(
    ("fields", "check", "grave", "fix"),
    [
        ({"requires_session": False}, "sessions", True, "OUTBOX_SESSIONS=false"),
        ({"sessions": False}, "sessions", True, "Take OUTBOX_SESSIONS away"),
        ({"lock_duration": timedelta(seconds=30)}, "lock-duration", False, "Set lockDuration to 0:01:00."),
        ({"max_delivery_count": 9}, "max-delivery-count", False, "maxDeliveryCount to 10"),
        (
            {"deliveries": 14, "max_delivery_count": 13},
            "max-delivery-count",
            False,
            "maxDeliveryCount to 14",
        ),
        ({"auto_delete_on_idle": timedelta(hours=1)}, "auto-delete", True, "autoDeleteOnIdle"),
        ({"status": EntityStatus.RECEIVE_DISABLED}, "subscription-status", True, "Active"),
        (
            {"dead_lettering_on_message_expiration": False},
            "dead-lettering",
            False,
            "deadLetteringOnMessageExpiration",
        ),
        (
            {"dead_lettering_on_filter_evaluation_exceptions": False},
            "dead-lettering",
            False,
            "deadLetteringOnFilterEvaluationExceptions",
        ),
    ],
)
def test_each_miss_is_told_alone_with_its_fix(fields: dict[str, Any], check: str, grave: bool, fix: str):
    (miss,) = misses(**fields)
    assert (check, grave) == (miss.check, miss.grave)
    assert fix in miss.fix


@pytest.mark.parametrize(
    ("deduplicates", "record_ttl", "told"),
    [(True, WINDOW, True), (True, WINDOW + LOCK, False), (False, WINDOW, False)],
)
def test_records_that_the_broker_outlives_are_told(deduplicates: bool, record_ttl: timedelta, told: bool):
    settings = {
        "requires_duplicate_detection": deduplicates,
        "duplicate_detection_history_time_window": WINDOW,
    }
    for kind in (TopicProperties, QueueProperties):
        entity = described(kind, "events", **settings)
        found = list(memory_misses(entity, lock=LOCK, record_ttl=record_ttl))
        assert [("record-ttl", False)] * told == [(miss.check, miss.grave) for miss in found]
        assert not told or "1 day, 0:01:00 or more" in found[0].fix


@pytest.mark.looptime(False)
async def test_a_namespace_that_cannot_be_asked_gets_one_sentence():
    inspected = await source_preflight(
        "events", "all", sessions=True, lock=timedelta(seconds=60), connection_string=REACHABLE
    )
    assert () == inspected.misses
    assert "Subscription 'all' of topic 'events' could not be checked" in str(inspected.unknown)
    assert "Manage right" in str(inspected.unknown)


@pytest.mark.parametrize("subscription", ["all", None])
async def test_a_source_that_is_read_is_judged_and_one_that_is_missing_is_a_miss(
    subscription: str | None, monkeypatch: pytest.MonkeyPatch
):
    found: Any = described(QueueProperties, "q", **GOOD | {"requires_session": False})

    async def read(*_: object) -> Any:
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(ServiceBusAdministrationClient, "get_queue", read)
    monkeypatch.setattr(ServiceBusAdministrationClient, "get_subscription", read)
    asked = {"sessions": True, "lock": timedelta(seconds=60), "connection_string": REACHABLE}
    (miss,) = (await source_preflight("events", subscription, **asked)).misses
    assert "sessions" == miss.check
    found = ResourceNotFoundError("no")
    (miss,) = (await source_preflight("events", subscription, **asked)).misses
    assert "does not exist" in miss.message
