"""
Tests of the Service Bus engine against a model, with any order of sends, receivers, settlements, lost links and time.
"""

from __future__ import annotations

from collections import defaultdict

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cosmos_outbox_emulators.servicebus.conditions import AmqpError
from cosmos_outbox_emulators.servicebus.queue import Outcome
from tests.emulators.servicebus.engine import Recorder, message, topic_broker
from tests.support.effort import examples

LOCK_S, WINDOW_S, MAX_DELIVERIES = 10, 25, 3


class Consumer(Recorder):
    """
    A receiver that remembers which of its deliveries are not settled yet, so that the model can settle them later.
    """

    def __init__(self, machine, credit):
        super().__init__(credit)
        self.machine = machine
        self.unsettled = {}
        self.closed = False

    def deliver(self, entry, token):
        super().deliver(entry, token)
        self.unsettled[token] = entry.message.message_id
        self.machine.delivered(self, entry)

    def revoke(self, failure):
        super().revoke(failure)
        self.closed = True


class SessionSubscription(RuleBasedStateMachine):
    """
    Hypothesis calls random operations of a subscription with sessions. A model of the subscription says what must be stored.

    The message ids are numbers in the order of sending, so messages are in order if their ids are.
    """

    requires_session = True

    def __init__(self):
        super().__init__()
        self.broker, self.clock = topic_broker(
            dedup_window_s=WINDOW_S,
            subscription={
                "requires_session": self.requires_session, "lock_s": LOCK_S, "max_delivery_count": MAX_DELIVERIES,
            },
        )  # fmt: skip
        self.topic = self.broker.topic("t")
        self.queue = self.broker.queue("t/Subscriptions/s")
        self.consumers = []
        self.next_id = 0
        self.sent, self.sessions = {}, {}
        self.duplicates = 0
        self.completed, self.dead = set(), set()
        self.expected_count = defaultdict(int)

    def delivered(self, consumer, entry):
        name = entry.message.message_id
        assert name not in self.completed, "a completed message was delivered"
        holders = [
            other for other in self.open_consumers() if other is not consumer and name in self.live(other)
        ]
        assert not holders, "a message was given to two holders of a lock"
        assert self.expected_count[name] == entry.delivery_count
        if self.requires_session:
            assert consumer.session is not None, "a message was delivered before its session"
            assert consumer.session.id == entry.message.session_id

    def open_consumers(self):
        return [consumer for consumer in self.consumers if not consumer.closed]

    def live(self, consumer):
        return [name for token, name in consumer.unsettled.items() if token in self.queue.locked]

    @rule(sessions=st.lists(st.sampled_from("abc"), min_size=1, max_size=4))
    def send(self, sessions):
        batch = []
        for session in sessions:
            self.next_id += 1
            name = str(self.next_id)
            self.sent[name], self.sessions[name] = self.clock(), session
            batch.append(message(name, session_id=session))
        self.topic.publish(batch)

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def send_again(self, data):
        recent = [name for name, at in self.sent.items() if self.clock() - at < WINDOW_S]
        if recent:
            name = data.draw(st.sampled_from(recent))
            self.duplicates += 1
            self.topic.publish([message(name, session_id=self.sessions[name])])

    @rule(credit=st.integers(0, 3), session=st.sampled_from(["a", "b", "c", None]))
    def open(self, credit, session):
        consumer = Consumer(self, credit)
        if not self.requires_session:
            self.queue.attach(consumer)
            self.queue.pump(consumer)
        else:
            held = {other.session.id for other in self.open_consumers() if other.session}
            try:
                consumer.session = self.queue.sessions.accept(consumer, session)
            except AmqpError:
                assert session in held
                return
            assert session is None or session not in held, "a session was locked twice"
            if consumer.session:
                self.queue.pump(consumer, consumer.session)
        self.consumers.append(consumer)

    @precondition(lambda self: self.open_consumers())
    @rule(data=st.data(), credit=st.integers(1, 5))
    def ask_for_more(self, data, credit):
        consumer = data.draw(st.sampled_from(self.open_consumers()))
        consumer.credit += credit
        if not self.requires_session or consumer.session:
            self.queue.pump(consumer, consumer.session)

    @precondition(lambda self: any(self.live(consumer) for consumer in self.consumers))
    @rule(
        data=st.data(),
        outcome=st.sampled_from([Outcome.COMPLETE, Outcome.ABANDON, Outcome.RELEASE, Outcome.DEAD_LETTER]),
    )
    def settle(self, data, outcome):
        holders = [consumer for consumer in self.consumers if self.live(consumer)]
        consumer = data.draw(st.sampled_from(holders))
        token = data.draw(st.sampled_from([t for t in consumer.unsettled if t in self.queue.locked]))
        name = consumer.unsettled.pop(token)
        if outcome is Outcome.COMPLETE:
            self.completed.add(name)
        elif outcome is Outcome.DEAD_LETTER:
            self.dead.add(name)
        elif outcome is Outcome.ABANDON:
            self.count(name)
        self.queue.settle(token, outcome, "r", "d")

    def count(self, name):
        self.expected_count[name] += 1
        if self.expected_count[name] >= MAX_DELIVERIES:
            self.dead.add(name)

    @precondition(lambda self: self.open_consumers())
    @rule(data=st.data())
    def close(self, data):
        consumer = data.draw(st.sampled_from(self.open_consumers()))
        consumer.closed = True
        self.queue.detach(consumer)

    @precondition(lambda self: self.open_consumers() and self.requires_session)
    @rule(data=st.data())
    def renew(self, data):
        consumer = data.draw(st.sampled_from(self.open_consumers()))
        if consumer.session:
            self.queue.sessions.renew(consumer.session)

    @rule(seconds=st.sampled_from([1, 4, 9, 10, 11, 30]))
    def wait(self, seconds):
        # Time moves in steps of half a second, so that the model counts each expired lock before the broker delivers the message
        # again.
        for _ in range(seconds * 2):
            due = [
                entry
                for entry in self.queue.locked.values()
                if (entry.session.locked_until if entry.session else entry.locked_until) <= self.clock() + 0.5
            ]
            for entry in due:
                self.count(entry.message.message_id)
            self.clock.advance(0.5)

    @invariant()
    def nothing_is_lost(self):
        stored = {entry.message.message_id for entry in self.queue.entries.values()}
        dead = {entry.message.message_id for entry in self.queue.dead_letters.entries.values()}
        assert set(self.sent) - self.completed - self.dead == stored
        assert self.dead == dead

    @invariant()
    def duplicates_are_counted(self):
        assert (len(self.sent), self.duplicates) == (self.topic.published, self.topic.duplicates)

    @invariant()
    def ready_messages_are_in_order(self):
        if self.requires_session:
            ready = [session.ready for session in self.queue.sessions._sessions.values()]
        else:
            ready = [self.queue._ready]
        for entries in ready:
            names = [int(entry.message.message_id) for entry in entries]
            assert sorted(names) == names

    @invariant()
    def no_receiver_waits_while_messages_are_ready(self):
        waiting = [c for c in self.open_consumers() if self.requires_session and c.session is None]
        assert not (waiting and self.queue.sessions._available)
        for consumer in self.open_consumers():
            ready = consumer.session.ready if consumer.session else self.queue._ready
            if (consumer.session or not self.requires_session) and not self.granted_now(consumer):
                assert not (consumer.credit > 0 and ready), "credit was left unused"

    def granted_now(self, consumer):
        """
        Return whether a waiting receiver has just got a session. It gets no message before its next flow frame, so unused credit
        is no mistake.
        """
        return consumer.failure is None and consumer.session is not None and not consumer.got


class PlainSubscription(SessionSubscription):
    requires_session = False


TestSessionSubscription = SessionSubscription.TestCase
TestPlainSubscription = PlainSubscription.TestCase
TestSessionSubscription.settings = TestPlainSubscription.settings = settings(
    max_examples=examples(30, many=60), stateful_step_count=40, deadline=None
)
