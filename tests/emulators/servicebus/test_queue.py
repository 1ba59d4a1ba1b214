"""Peek-lock, settlement, expiry and dead-lettering of one queue, without a socket."""

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


def test_messages_are_delivered_in_order_as_far_as_the_credit_goes():
    queue, _ = filled("a", "b", "c")
    receiver = receive(queue, credit=2)
    assert ["a", "b"] == receiver.ids
    receiver.credit = 5
    queue.pump(receiver)
    assert ["a", "b", "c"] == receiver.ids


def test_a_completed_message_is_gone():
    queue, clock = filled("a")
    ((_, token, count),) = receive(queue).take()
    queue.settle(token, Outcome.COMPLETE)
    clock.advance(100)
    assert (0, 0, 1) == (count, queue.active, queue.completed)


def test_receive_and_delete_leaves_nothing_to_settle():
    queue, _ = filled("a", "b")
    receiver = receive(queue, receive_and_delete=True)
    assert ["a", "b"] == receiver.ids
    assert (0, {}) == (queue.active, queue.locked)


def test_an_abandoned_message_comes_back_counted_and_a_released_one_uncounted():
    queue, _ = filled("a", "b")
    receiver = receive(queue, credit=2)
    (_, first, _), (_, second, _) = receiver.take()
    receiver.credit = 2
    queue.settle(first, Outcome.ABANDON)
    queue.settle(second, Outcome.RELEASE)
    assert [("a", 1), ("b", 0)] == [(name, count) for name, _, count in receiver.take()]


def test_a_returned_message_keeps_its_place():
    queue, clock = filled("a", "b", "c")
    receiver = receive(queue, credit=2)
    (_, first, _), (_, second, _) = receiver.take()
    queue.settle(first, Outcome.RELEASE)
    queue.settle(second, Outcome.RELEASE)
    queue.put(message("d"), clock())
    receiver.credit = 10
    queue.pump(receiver)
    assert ["a", "b", "c", "d"] == receiver.ids


def test_an_expired_lock_gives_the_message_to_the_next_receiver_and_counts():
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


def test_a_renewed_lock_holds_from_the_renewal_on_whatever_was_locked_meanwhile():
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


def test_the_lock_outlives_the_receiver():
    queue, clock = filled("a", lock_s=10)
    receiver = receive(queue, credit=1)
    queue.detach(receiver)
    other = receive(queue)
    clock.advance(9)
    assert [] == other.ids
    clock.advance(1)
    assert ["a"] == other.ids


def test_the_last_delivery_too_many_dead_letters():
    queue, _ = filled("a", max_delivery_count=3)
    receiver = receive(queue)
    for expected in range(3):
        ((_, token, count),) = receiver.take()
        assert expected == count
        queue.settle(token, Outcome.ABANDON)
    assert [] == receiver.take()
    assert [("a", "MaxDeliveryCountExceeded")] == dead(queue)


def test_a_dead_lettered_message_carries_why_and_its_own_properties():
    queue, clock = subscription()
    queue.put(message("a", application={"mine": 1}), clock())
    ((_, token, _),) = receive(queue).take()
    queue.settle(token, Outcome.DEAD_LETTER, "bad", "very bad")
    (entry,) = queue.dead_letters.entries.values()
    expected = {"mine": 1, "DeadLetterReason": "bad", "DeadLetterErrorDescription": "very bad"}
    assert expected == _reason(entry)
    assert 0 == queue.active


def test_a_dead_letter_is_received_from_there_and_cannot_be_dead_lettered_again():
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
def test_the_shorter_time_to_live_holds(config):
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


def test_an_expired_message_is_not_delivered_even_before_its_timer_ran():
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


def test_a_deferred_message_is_received_only_by_number():
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


def test_a_deferred_message_expires_when_it_is_asked_for():
    queue, clock = filled("a", ttl_s=5, dead_letter_on_expiration=True)
    queue.settle(receive(queue).take()[0][1], Outcome.DEFER)
    clock.advance(100)
    assert (1, []) == (queue.active, dead(queue))
    with pytest.raises(AmqpError, match="message-not-found"):
        queue.receive_deferred([1], session=None, receive_and_delete=False)
    assert [("a", "TTLExpiredException")] == dead(queue)


def test_deferred_messages_are_received_all_or_none():
    queue, _ = filled("a")
    ((_, token, _),) = receive(queue).take()
    queue.settle(token, Outcome.DEFER)
    with pytest.raises(AmqpError, match="message-not-found"):
        queue.receive_deferred([1, 99], session=None, receive_and_delete=False)
    assert 1 == len(queue.receive_deferred([1], session=None, receive_and_delete=False))


def test_peeking_shows_everything_and_locks_nothing():
    queue, _ = filled("a", "b", "c")
    receive(queue, credit=1)
    assert ["b", "c"] == [entry.message.message_id for entry in queue.peek(2, 10, None)]
    assert ["a"] == [entry.message.message_id for entry in queue.peek(0, 1, None)]
    assert 1 == len(queue.locked)


def test_two_receivers_share_the_messages():
    queue, clock = subscription()
    one, two = receive(queue, credit=3), receive(queue, credit=3)
    for number in range(6):
        queue.put(message(str(number)), clock())
    assert (3, 3) == (len(one.ids), len(two.ids))
    assert {"0", "1", "2", "3", "4", "5"} == {*one.ids, *two.ids}


def test_long_times_to_live_leave_no_trace_of_completed_messages():
    queue, clock = subscription(ttl_s=1_000_000)
    receiver = receive(queue, credit=10**9, receive_and_delete=True)
    for number in range(5000):
        queue.put(message(str(number)), clock())
    assert 5000 == len(receiver.got)
    assert len(queue._expiring) < 2000
