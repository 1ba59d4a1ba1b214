"""Tests that a mistake in the configuration of the Service Bus emulator is reported with its path."""

from __future__ import annotations

import re

import pytest

from cosmos_outbox_emulators.servicebus.broker import Broker


def test_the_default_configuration_has_the_topic_events():
    topic = Broker.default().topic("events")
    queue = Broker.default().queue("events/Subscriptions/all")
    assert 600 == topic.config.dedup_window_s
    assert (True, 30, 10) == (
        queue.config.requires_session,
        queue.config.lock_s,
        queue.config.max_delivery_count,
    )


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ([], "config: expected an object"),
        ({"topic": []}, "topic: unknown field, not one of"),
        ({"topics": {}}, "topics: expected a list"),
        ({"topics": [{}]}, "topics[0].name: is missing"),
        ({"topics": [{"name": ""}]}, "topics[0].name: expected an entity name"),
        ({"topics": [{"name": "a"}, {"name": "A"}]}, "topics[1].name: 'a' is already used"),
        (
            {"topics": [{"name": "a"}], "queues": [{"name": "A"}]},
            "queues[0].name: 'A' is already the name of a topic",
        ),
        (
            {"topics": [{"name": "a", "dedup_window_s": 0}]},
            "topics[0].dedup_window_s: expected a positive number",
        ),
        (
            {"topics": [{"name": "a", "max_message_size": 1.5}]},
            "topics[0].max_message_size: expected a whole number",
        ),
        (
            {"topics": [{"name": "a", "subscriptions": [{"name": "s"}, {"name": "r", "lock_s": "30"}]}]},
            "topics[0].subscriptions[1].lock_s: expected a positive number of seconds, got '30'",
        ),
        ({"sas_keys": {}}, "sas_keys: expected an object"),
        (
            {"sas_keys": {"k": {"value": "v", "rights": ["All"]}}},
            "sas_keys.k: expected a value, or a value and rights",
        ),
    ],
)
def test_a_mistake_in_the_configuration_is_reported_with_its_path(config, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        Broker.from_config(config)
