"""Tests of one queue of the Service Bus engine: peek-lock, settlement, expiry and dead-lettering."""

from __future__ import annotations

import pytest

from cosmos_outbox_emulators.servicebus.conditions import AmqpError
from cosmos_outbox_emulators.servicebus.message import read_application_properties
from cosmos_outbox_emulators.servicebus.queue import Outcome
from tests.emulators.servicebus.engine import Recorder, message, topic_broker


def subscription(**config):
    broker, clock = topic_broker(subscription=config)
    return broker.queue("t/Subscriptions/s"), clock


def filled(*ids, **config):
    queue, clock = subscription(**config)
    for message_id in ids:
        queue.put(message(message_id), clock())
    return queue, clock


def dead(queue):
    return [
        (entry.message.message_id, _reason(entry)["DeadLetterReason"])
        for entry in queue.dead_letters.entries.values()
    ]


def _reason(entry):
    entry.message.application_properties = entry.application_properties
    return read_application_properties(entry.message)


def receive(queue, credit=1000, **options):
    receiver = Recorder(credit, **options)
    queue.attach(receiver)
    queue.pump(receiver)
    return receiver


def test_a_message_whose_lock_expired_is_delivered_again():
    """Its delivery count is higher then, and the first receiver cannot settle it."""
    queue, clock = filled("a", lock_s=10)
    slow = receive(queue, credit=1)
    ((_, token, _),) = slow.take()
    other = receive(queue)
    clock.advance(9.9)
    assert [] == other.ids
    clock.advance(0.1)
    assert [("a", 1)] == [(name, count) for name, _, count in other.take()]
    with pytest.raises(AmqpError, match="message-lock-lost"):
        queue.settle(token, Outcome.COMPLETE)


def test_a_message_cannot_be_settled_after_its_lock_has_expired():
    queue, clock = filled("a", lock_s=10)
    ((_, token, _),) = receive(queue, credit=1).take()
    clock.now += 10
    with pytest.raises(AmqpError, match="message-lock-lost"):
        queue.settle(token, Outcome.COMPLETE)


def test_a_renewed_lock_lasts_for_its_full_time_from_the_renewal():
    queue, clock = filled("a", lock_s=10)
    receiver = receive(queue, credit=1)
    ((_, token, _),) = receiver.take()
    clock.advance(6)
    assert clock() + 10 == queue.renew(token)
    queue.put(message("b"), clock())
    receive(queue, credit=1)
    clock.advance(9)
    assert token in queue.locked
    clock.advance(1)
    assert token not in queue.locked


def test_the_lock_of_a_message_outlives_its_receiver():
    queue, clock = filled("a", lock_s=10)
    receiver = receive(queue, credit=1)
    queue.detach(receiver)
    other = receive(queue)
    clock.advance(9)
    assert [] == other.ids
    clock.advance(1)
    assert ["a"] == other.ids


def test_a_dead_letter_cannot_be_dead_lettered_again():
    queue, clock = filled("a")
    ((_, token, _),) = receive(queue).take()
    queue.settle(token, Outcome.DEAD_LETTER, "bad")
    grave = receive(queue.dead_letters)
    ((_, token, _),) = grave.take()
    with pytest.raises(AmqpError, match="not-allowed"):
        queue.dead_letters.settle(token, Outcome.DEAD_LETTER, "again")
    for _ in range(20):
        queue.dead_letters.settle(token, Outcome.ABANDON)
        ((_, token, _),) = grave.take()
    clock.advance(1000)
    assert 1 == queue.dead_letters.active


@pytest.mark.parametrize("config", [{"ttl_s": 5}, {"ttl_s": 900}])
def test_the_shorter_time_to_live_of_message_and_queue_applies(config):
    queue, clock = subscription(**config)
    queue.put(message("a", ttl_ms=10_000), clock())
    clock.advance(4.9)
    assert 1 == queue.active
    clock.advance(5.1)
    assert 0 == queue.active


def test_an_expired_message_is_dropped_or_dead_lettered_as_configured():
    dropping, drop_clock = filled("a", ttl_s=5)
    keeping, keep_clock = filled("a", ttl_s=5, dead_letter_on_expiration=True)
    drop_clock.advance(5)
    keep_clock.advance(5)
    assert [] == dead(dropping)
    assert [("a", "TTLExpiredException")] == dead(keeping)
    keep_clock.advance(1000)
    assert 1 == keeping.dead_letters.active, "what is dead does not expire"


def test_an_expired_message_is_not_delivered_even_before_its_timer_runs():
    queue, clock = filled("a", "b", ttl_s=5)
    queue.put(message("c"), clock() + 1)
    clock.now += 5
    assert ["c"] == receive(queue).ids


def test_a_locked_message_expires_only_when_it_is_unlocked():
    queue, clock = filled("a", "b", ttl_s=5, lock_s=60)
    receiver = receive(queue)
    (_, first, _), (_, second, _) = receiver.take()
    clock.advance(10)
    queue.settle(first, Outcome.COMPLETE)
    queue.settle(second, Outcome.ABANDON)
    assert [] == receiver.take()
    assert (0, 1) == (queue.active, queue.completed)


def test_a_deferred_message_is_received_only_by_its_sequence_number():
    queue, clock = filled("a", "b")
    receiver = receive(queue)
    (_, first, _), _ = receiver.take()
    number = queue.locked[first].sequence
    queue.settle(first, Outcome.DEFER)
    clock.advance(100)
    ((token, entry),) = queue.receive_deferred([number], session=None, receive_and_delete=False)
    assert "a" == entry.message.message_id
    queue.settle(token, Outcome.ABANDON)
    ((token, entry),) = queue.receive_deferred([number], session=None, receive_and_delete=False)
    assert 2 == entry.delivery_count
    with pytest.raises(AmqpError, match="message-not-found"):
        queue.receive_deferred([number], session=None, receive_and_delete=False)
    clock.advance(31)
    ((token, entry),) = queue.receive_deferred([number], session=None, receive_and_delete=True)
    assert (3, ["b"]) == (
        entry.delivery_count,
        [entry.message.message_id for entry in queue.entries.values()],
    )


def test_a_deferred_message_expires_only_when_it_is_received():
    queue, clock = filled("a", ttl_s=5, dead_letter_on_expiration=True)
    queue.settle(receive(queue).take()[0][1], Outcome.DEFER)
    clock.advance(100)
    assert (1, []) == (queue.active, dead(queue))
    with pytest.raises(AmqpError, match="message-not-found"):
        queue.receive_deferred([1], session=None, receive_and_delete=False)
    assert [("a", "TTLExpiredException")] == dead(queue)


def test_peeking_locks_no_message():
    queue, _ = filled("a", "b", "c")
    receive(queue, credit=1)
    assert ["b", "c"] == [entry.message.message_id for entry in queue.peek(2, 10, None)]
    assert ["a"] == [entry.message.message_id for entry in queue.peek(0, 1, None)]
    assert 1 == len(queue.locked)
