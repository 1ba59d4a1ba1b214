"""Tests of sending to a topic of the Service Bus engine: duplicates, batches, schedules, rules and limits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmos_outbox_emulators.servicebus.conditions import AmqpError
from cosmos_outbox_emulators.servicebus.rules import Rule, parse_rule
from tests.emulators.servicebus.engine import broker, message, scheduled, topic_broker


def stored(instance, path="t/Subscriptions/s"):
    return [entry.message.message_id for entry in instance.queue(path).entries.values()]


@given(st.lists(st.tuples(st.integers(0, 5), st.floats(0, 30)), max_size=40))
def test_a_topic_drops_copies_of_a_message_only_within_its_window(sends):
    instance, clock = topic_broker(dedup_window_s=40)
    topic = instance.topic("t")
    first_seen, expected = {}, 0
    for number, pause in sends:
        clock.advance(pause)
        if number not in first_seen or clock() - first_seen[number] >= 40:
            first_seen[number] = clock()
            expected += 1
        topic.publish([message(str(number))])
    assert expected == topic.published
    assert len(sends) - expected == topic.duplicates


def test_an_idle_topic_forgets_old_message_ids():
    instance, clock = topic_broker(dedup_window_s=60)
    topic = instance.topic("t")
    for number in range(100):
        topic.publish([message(str(number))])
        clock.advance(1)
    assert 60 == topic.remembered
    clock.advance(120)
    assert 0 == topic.remembered


def test_a_topic_stores_no_message_of_a_batch_with_one_refused_message():
    instance, _ = broker({"queues": [{"name": "q", "requires_session": True, "dedup_window_s": 60}]})
    with pytest.raises(AmqpError, match="not-allowed"):
        instance.topic("q").publish([message("a", session_id="s"), message("b")])
    assert [] == stored(instance, "q")
    instance.topic("q").publish([message("a", session_id="s")])
    assert ["a"] == stored(instance, "q"), "a refused message is no earlier copy"


def test_every_subscription_gets_its_own_copy_of_a_message():
    config = {
        "topics": [
            {"name": "t", "subscriptions": [{"name": "one"}, {"name": "two", "requires_session": True}]}
        ]
    }
    instance, _ = broker(config)
    instance.topic("t").publish([message("a", session_id="s"), message("b")])
    assert ["a", "b"] == stored(instance, "t/subscriptions/ONE")
    assert ["a"] == stored(instance, "t/Subscriptions/two")
    assert ["b"] == stored(instance, "t/Subscriptions/two/$DeadLetterQueue")


def test_the_time_to_live_of_the_topic_limits_that_of_its_messages():
    instance, clock = topic_broker(ttl_s=5, subscription={"ttl_s": 100})
    instance.topic("t").publish([message("a", ttl_ms=50_000), message("b", ttl_ms=2_000)])
    clock.advance(2)
    assert ["a"] == stored(instance)
    clock.advance(3)
    assert [] == stored(instance)


def test_the_topic_detects_duplicates_of_a_scheduled_message_before_it_is_due():
    """While the scheduled message waits, the topic already drops other messages with the same id."""
    instance, clock = topic_broker(dedup_window_s=600)
    topic = instance.topic("t")
    topic.publish([scheduled("later", clock() + 50)])
    topic.publish([message("later"), message("now")])
    assert (["now"], 1, 1) == (stored(instance), topic.duplicates, topic.scheduled)
    clock.advance(50)
    assert ["now", "later"] == stored(instance)


def test_the_time_to_live_of_a_scheduled_message_begins_when_it_is_due():
    instance, clock = topic_broker(ttl_s=5)
    instance.topic("t").publish([scheduled("later", clock() + 50)])
    clock.advance(54)
    assert ["later"] == stored(instance)
    clock.advance(1)
    assert [] == stored(instance)


def test_a_scheduled_message_can_be_cancelled_only_once():
    instance, clock = topic_broker()
    topic = instance.topic("t")
    first, second = topic.schedule([scheduled("a", clock() + 50), scheduled("b", clock() + 50)])
    topic.cancel([first])
    with pytest.raises(AmqpError, match="message-not-found"):
        topic.cancel([second, first])
    clock.advance(50)
    assert ["b"] == stored(instance)


def test_a_message_scheduled_for_the_past_is_available_at_once():
    instance, clock = topic_broker()
    instance.topic("t").publish([scheduled("a", clock() - 5)])
    assert ["a"] == stored(instance)


def test_the_rules_of_a_subscription_select_its_messages():
    instance, _ = topic_broker()
    subscription = instance.topic("t").subscriptions["s"]
    description = {"correlation-filter": {"session-id": "s1", "properties": {"kind": "x"}}}
    subscription.rules = {"only": parse_rule("only", description)}
    instance.topic("t").publish([
        message("a", session_id="s1", application={"kind": "x"}),
        message("b", session_id="s2", application={"kind": "x"}),
        message("c", session_id="s1", application={"kind": "y"}),
        message("d", session_id="s1"),
    ])  # fmt: skip
    assert ["a"] == stored(instance)
    subscription.rules["all"] = Rule(name="all")
    instance.topic("t").publish([message("e")])
    assert ["a", "e"] == stored(instance)
    subscription.rules = {}
    instance.topic("t").publish([message("f")])
    assert ["a", "e"] == stored(instance)


@pytest.mark.parametrize(
    ("name", "description", "condition"),
    [
        ("r", {"sql-filter": {"expression": "price + 1 > 3"}}, "amqp:not-implemented"),
        (
            "r",
            {"sql-filter": {"expression": "1=1"}, "sql-rule-action": {"expression": "SET a=1"}},
            "amqp:not-implemented",
        ),
        ("", {"sql-filter": {"expression": "1=1"}}, "com.microsoft:argument-error"),
        ("r", None, "com.microsoft:argument-error"),
        ("r", {"correlation-filter": []}, "com.microsoft:argument-error"),
    ],
)
def test_a_rule_that_the_emulator_cannot_evaluate_is_refused(name, description, condition):
    with pytest.raises(AmqpError) as caught:
        parse_rule(name, description)
    assert condition == caught.value.condition


def test_a_disabled_topic_refuses_messages_until_it_is_enabled():
    instance, _ = topic_broker()
    instance.set_disabled("t", disabled=True)
    with pytest.raises(AmqpError, match="entity-disabled"):
        instance.topic("t").publish([message("a")])
    instance.set_disabled("t", disabled=False)
    instance.topic("t").publish([message("a")])
    assert ["a"] == stored(instance)
