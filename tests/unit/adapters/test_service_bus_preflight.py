"""
Preflight: each miss of a described topic or subscription is one warning with its fix.
"""

from __future__ import annotations

import inspect
from datetime import timedelta

import pytest
from azure.servicebus.management import EntityStatus, SubscriptionProperties, TopicProperties

from cosmos_outbox.adapters.service_bus import BatchScope
from cosmos_outbox.adapters.service_bus_preflight import preflight, subscription_misses, topic_misses

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
    good = {"requires_session": True, "auto_delete_on_idle": FOREVER}
    return described(SubscriptionProperties, "all", **good | fields)


def test_a_topic_as_it_should_be_has_no_miss():
    assert [] == topic_misses(topic(), batch_scope=BatchScope.TOPIC)
    assert [] == subscription_misses("events", [subscription()])


@pytest.mark.parametrize(
    ("fields", "miss", "fix"),
    [
        ({"requires_duplicate_detection": False}, "does not detect duplicates", "requiresDuplicateDetection"),
        (
            {"duplicate_detection_history_time_window": timedelta(seconds=20)},
            "for 0:00:20 only",
            "duplicateDetectionHistoryTimeWindow",
        ),
        ({"auto_delete_on_idle": timedelta(hours=1)}, "deletes itself", "autoDeleteOnIdle"),
        ({"status": EntityStatus.SEND_DISABLED}, "refuses", "Active"),
        ({"status": "Disabled"}, "refuses", "Active"),
    ],
)
def test_each_miss_of_a_topic_is_one_warning_with_its_fix(fields, miss, fix):
    (warning,) = topic_misses(topic(**fields), batch_scope=BatchScope.TOPIC)
    assert "'events'" in warning
    assert miss in warning
    assert fix in warning


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
    misses = [miss for miss in topic_misses(partitioned, batch_scope=scope) if "partitioned" in miss]
    expected = [wanted] if wanted else []
    assert expected == [miss.split("batch scope to ")[1].split(",")[0] for miss in misses]


def test_a_subscription_without_sessions_or_that_deletes_itself_is_told_of_by_name():
    misses = subscription_misses(
        "events",
        [
            subscription(requires_session=False),
            subscription(auto_delete_on_idle=timedelta(minutes=5)),
            subscription(),
        ],
    )
    assert ["no sessions", "deletes itself"] == [
        text for miss in misses for text in ("no sessions", "deletes itself") if text in miss
    ]


def test_a_topic_without_subscription_loses_what_is_sent():
    (warning,) = subscription_misses("events", [])
    assert "no subscription" in warning


async def test_an_emulator_gets_one_warning_and_no_request():
    emulator = (
        "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=n;SharedAccessKey=a2V5;UseDevelopmentEmulator=true;"
    )
    assert [
        "The topics were not checked: the Service Bus emulator has no management API."
    ] == await preflight(["a", "b"], connection_string=emulator)


@pytest.mark.looptime(False)
async def test_a_namespace_that_cannot_be_asked_gets_one_warning():
    refused = "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=n;SharedAccessKey=a2V5"
    (warning,) = await preflight(["events"], connection_string=refused)
    assert "Manage right" in warning
