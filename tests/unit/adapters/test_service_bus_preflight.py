"""
Preflight: each miss of a described topic or subscription is told alone, with its fix.
"""

from __future__ import annotations

import inspect
from datetime import timedelta

import pytest
from azure.core.exceptions import ResourceNotFoundError
from azure.servicebus.aio.management import ServiceBusAdministrationClient
from azure.servicebus.management import EntityStatus, SubscriptionProperties, TopicProperties

from cosmos_outbox.adapters.servicebus import preflight as service_bus_preflight
from cosmos_outbox.adapters.servicebus.preflight import (
    Inspection,
    preflight,
    subscription_misses,
    topic_misses,
)
from cosmos_outbox.adapters.servicebus.publisher import BatchScope

FOREVER = timedelta(days=10_675_199)  # what the service says where it never deletes


def described(kind, name, **fields):
    """
    A description as the SDK makes it of the service's answer; what is not given is None.
    """
    names = [
        parameter.name
        for parameter in inspect.signature(kind.__init__).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY
    ]
    return kind(name, **dict.fromkeys(names) | fields)


def topic(**fields) -> TopicProperties:
    good = {
        "requires_duplicate_detection": True,
        "duplicate_detection_history_time_window": timedelta(minutes=10),
        "enable_partitioning": False,
        "auto_delete_on_idle": FOREVER,
        "status": EntityStatus.ACTIVE,
    }
    return described(TopicProperties, "events", **good | fields)


def subscription(**fields) -> SubscriptionProperties:
    good = {
        "requires_session": True,
        "auto_delete_on_idle": FOREVER,
        "status": EntityStatus.ACTIVE,
        "dead_lettering_on_message_expiration": True,
    }
    return described(SubscriptionProperties, "all", **good | fields)


def test_a_topic_as_it_should_be_has_no_miss():
    assert [] == list(topic_misses(topic(), batch_scope=BatchScope.TOPIC))
    assert [] == list(subscription_misses("events", [subscription()]))


@pytest.mark.parametrize(
    ("fields", "check", "grave", "fix"),
    [
        ({"requires_duplicate_detection": False}, "duplicate-detection", True, "requiresDuplicateDetection"),
        (
            {"duplicate_detection_history_time_window": timedelta(minutes=9)},
            "duplicate-window",
            False,
            "duplicateDetectionHistoryTimeWindow",
        ),
        ({"auto_delete_on_idle": timedelta(hours=1)}, "auto-delete", True, "autoDeleteOnIdle"),
        ({"status": EntityStatus.SEND_DISABLED}, "topic-status", True, "Active"),
        ({"status": "Disabled"}, "topic-status", True, "Active"),
        ({"enable_partitioning": True}, "partitioning", True, "batch scope to message"),
    ],
)
def test_each_miss_of_a_topic_is_told_alone_with_its_fix(fields, check, grave, fix):
    (miss,) = topic_misses(topic(**fields), batch_scope=BatchScope.TOPIC)
    assert (check, grave) == (miss.check, miss.grave)
    assert "'events'" in miss.message
    assert fix in miss.fix


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
def test_a_partitioned_topic_needs_the_batch_scope_that_fits(dedup, scope, wanted):
    partitioned = topic(enable_partitioning=True, requires_duplicate_detection=dedup)
    misses = [miss for miss in topic_misses(partitioned, batch_scope=scope) if miss.check == "partitioning"]
    expected = [wanted] if wanted else []
    assert expected == [miss.fix.split("batch scope to ")[1].split(",")[0] for miss in misses]


@pytest.mark.parametrize(
    ("fields", "check", "grave"),
    [
        ({"requires_session": False}, "sessions", True),
        ({"auto_delete_on_idle": timedelta(minutes=5)}, "auto-delete", True),
        ({"status": EntityStatus.RECEIVE_DISABLED}, "subscription-status", False),
        ({"dead_lettering_on_message_expiration": False}, "dead-lettering", False),
    ],
)
def test_each_miss_of_a_subscription_is_told_alone_by_name(fields, check, grave):
    (miss,) = subscription_misses("events", [subscription(**fields), subscription()])
    assert (check, grave) == (miss.check, miss.grave)
    assert "Subscription 'all' of topic 'events'" in miss.message


def test_a_topic_without_subscription_loses_what_is_sent():
    (miss,) = subscription_misses("events", [])
    assert ("subscriptions", True) == (miss.check, miss.grave)


class Administration(ServiceBusAdministrationClient):
    """
    A namespace with one topic, whose only subscription has no sessions.
    """

    async def get_topic(self, topic_name, **_):
        if topic_name != "events":
            raise ResourceNotFoundError("no such topic")
        return topic(requires_duplicate_detection=False)

    def list_subscriptions(self, topic_name, **_):
        async def found():
            yield subscription(requires_session=False)

        return found()


async def test_every_topic_is_looked_at_and_one_that_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(service_bus_preflight, "ServiceBusAdministrationClient", Administration)
    inspected = await preflight(
        ["nowhere", "events"], connection_string="Endpoint=sb://x;SharedAccessKeyName=n;SharedAccessKey=a2V5"
    )
    assert ["topic", "duplicate-detection", "sessions"] == [miss.check for miss in inspected.misses]
    assert "'nowhere' does not exist" in str(inspected.misses[0])
    assert None is inspected.unknown


@pytest.mark.looptime(False)
async def test_an_emulator_without_management_gets_one_sentence():
    emulator = (
        "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=n;SharedAccessKey=a2V5;UseDevelopmentEmulator=true;"
    )
    inspected = await preflight(["a", "b"], connection_string=emulator)
    assert Inspection(unknown=inspected.unknown) == inspected
    assert "emulator answers no management requests on its port. Check yourself" in str(inspected.unknown)


@pytest.mark.looptime(False)
async def test_a_namespace_that_cannot_be_asked_gets_one_sentence():
    refused = "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=n;SharedAccessKey=a2V5"
    inspected = await preflight(["events"], connection_string=refused)
    assert () == inspected.misses
    assert "Manage right" in str(inspected.unknown)
