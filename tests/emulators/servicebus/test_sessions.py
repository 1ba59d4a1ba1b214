"""
Tests of sessions in the Service Bus engine: which receiver holds a session, and what happens to its messages.
"""

from __future__ import annotations

import pytest

from cosmos_outbox_emulators.servicebus.conditions import AmqpError
from cosmos_outbox_emulators.servicebus.message import read_application_properties
from cosmos_outbox_emulators.servicebus.queue import Outcome
from tests.emulators.servicebus.engine import Recorder, message, topic_broker


def session_queue(**config):
    broker, clock = topic_broker(subscription={"requires_session": True, "lock_s": 30, **config})
    return broker.queue("t/Subscriptions/s"), clock


def put(queue, clock, *names):
    """Put a message with each of these ids into the queue. The first letter of an id is its session: "a1" is of session a."""
    for name in names:
        queue.put(message(name, session_id=name[0]), clock())


def accept(queue, session_id=None, credit=1000, container=None):
    receiver = Recorder(credit, container=container)
    session = queue.sessions.accept(receiver, session_id)
    if session:
        receiver.session = session
        queue.pump(receiver, session)
    return receiver


def test_a_receiver_of_any_session_gets_the_oldest_session_that_is_not_locked():
    queue, clock = session_queue()
    put(queue, clock, "a1", "b1", "c1")
    assert ["a", "b", "c"] == [accept(queue).session.id for _ in range(3)]
    assert accept(queue).session is None


def test_a_waiting_receiver_gets_the_next_session_that_becomes_free():
    queue, clock = session_queue()
    first, second = accept(queue), accept(queue)
    put(queue, clock, "a1")
    assert ("a", None) == (first.session.id, second.session)
    queue.detach(first)
    assert "a" == second.session.id


def test_a_receiver_cannot_lock_a_session_that_is_already_locked():
    queue, clock = session_queue()
    put(queue, clock, "a1")
    accept(queue, "a")
    with pytest.raises(AmqpError, match="session-cannot-be-locked"):
        accept(queue, "a")


def test_a_session_without_messages_can_be_accepted_by_name():
    queue, _ = session_queue()
    assert "new" == accept(queue, "new").session.id


def test_a_session_whose_lock_expired_goes_to_the_next_receiver():
    """
    The link of the old receiver is detached. Its unsettled delivery counts as a delivery of the message.
    """
    queue, clock = session_queue(lock_s=10)
    put(queue, clock, "a1", "a2")
    slow = accept(queue, "a", credit=1)
    ((_, token, _),) = slow.take()
    waiting = accept(queue)
    clock.advance(10)
    assert "com.microsoft:session-lock-lost" == slow.failure.condition
    assert "a" == waiting.session.id
    queue.pump(waiting, waiting.session)
    assert [("a1", 1), ("a2", 0)] == [(name, count) for name, _, count in waiting.take()]
    with pytest.raises(AmqpError, match="session-lock-lost"):
        queue.settle(token, Outcome.COMPLETE)


def test_only_the_connection_that_holds_a_session_may_act_on_it():
    queue, clock = session_queue()
    put(queue, clock, "a1")
    receiver = accept(queue, "a", container="mine")
    assert receiver.session is queue.sessions.get("a", "mine")
    with pytest.raises(AmqpError, match="session-lock-lost"):
        queue.sessions.get("a", "yours")
    with pytest.raises(AmqpError, match="session-lock-lost"):
        queue.sessions.get("b", "mine")


def test_a_subscription_with_sessions_dead_letters_a_message_without_session_id():
    queue, clock = session_queue()
    queue.put(message("lost"), clock())
    (entry,) = queue.dead_letters.entries.values()
    entry.message.application_properties = entry.application_properties
    assert "Session ID is null." == read_application_properties(entry.message)["DeadLetterReason"]
    assert 0 == queue.active


def test_the_state_of_a_session_is_kept_until_it_is_cleared():
    """The state stays even if the session has no messages, and no receiver has locked it."""
    queue, clock = session_queue()
    put(queue, clock, "a1")
    receiver = accept(queue, "a")
    queue.sessions.set_state(receiver.session, b"here")
    queue.settle(receiver.take()[0][1], Outcome.COMPLETE)
    queue.detach(receiver)
    assert 1 == queue.sessions.count
    again = accept(queue, "a")
    assert b"here" == again.session.state
    queue.sessions.set_state(again.session, None)
    queue.detach(again)
    assert 0 == queue.sessions.count


def test_a_finished_session_without_state_is_removed_from_memory():
    queue, clock = session_queue()
    for number in range(200):
        queue.put(message(str(number), session_id=f"s{number}"), clock())
        receiver = accept(queue)
        queue.settle(receiver.take()[0][1], Outcome.COMPLETE)
        queue.detach(receiver)
    assert (0, 0, 0) == (queue.sessions.count, queue.active, len(queue.sessions._held))


def test_no_receiver_gets_a_session_whose_messages_have_expired():
    queue, clock = session_queue(ttl_s=5)
    put(queue, clock, "a1")
    clock.advance(5)
    assert accept(queue).session is None
    assert 0 == queue.sessions.count


def test_a_deferred_message_stays_deferred_when_its_session_is_lost():
    """Only a receiver that has locked the session can receive the message, by its sequence number."""
    queue, clock = session_queue(lock_s=10)
    put(queue, clock, "a1")
    receiver = accept(queue, "a")
    queue.settle(receiver.take()[0][1], Outcome.DEFER)
    queue.receive_deferred([1], session=receiver.session, receive_and_delete=False)
    queue.detach(receiver)
    other = accept(queue, "b")
    with pytest.raises(AmqpError, match="message-not-found"):
        queue.receive_deferred([1], session=other.session, receive_and_delete=False)
    again = accept(queue, "a")
    assert 1 == len(queue.receive_deferred([1], session=again.session, receive_and_delete=False))


def test_the_list_of_sessions_has_those_with_messages_or_state():
    """The test also checks a request that names a time: the list then has only the sessions whose state was changed since that time."""
    queue, clock = session_queue()
    put(queue, clock, "b1", "a1")
    receiver = accept(queue, "c")
    queue.sessions.set_state(receiver.session, b"x")
    assert ["a", "b", "c"] == queue.sessions.ids(None)
    assert ["c"] == queue.sessions.ids(clock() - 1)
    assert [] == queue.sessions.ids(clock())
