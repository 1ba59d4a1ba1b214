"""
Tests of the demo's audit: it finds exactly the lost, duplicated and reordered events that a test planted.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from cosmos_outbox_testing.verify.audit import CommittedEvent, audit
from examples.contacts.received import ReceivedMessage

CREATED = "2026-01-01T00:00:00+00:00"
CREATED_NS = 1_767_225_600 * 10**9


def event(contact: int, version: int, position: int = 0) -> CommittedEvent:
    return CommittedEvent(
        event_id=f"{contact}-{version}-{position}",
        contact_id=str(contact),
        version=version,
        position=position,
    )


def received(
    committed: CommittedEvent, *, after_ms: float = 1, created_at: str | None = CREATED
) -> ReceivedMessage:
    return ReceivedMessage(
        message_id=committed.event_id,
        session_id=committed.contact_id,
        subject="ContactNameUpdatedEvent",
        entity_version=committed.version,
        sequence=committed.position,
        sequence_number=1,
        enqueued_at=CREATED,
        created_at=created_at,
        received_ns=CREATED_NS + int(after_ms * 1e6),
    )


@st.composite
def histories(draw):
    """
    Return events of several contacts in the order of their commits, and the same events in an order in which a subscriber may get them.
    """
    contacts = draw(st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=5), min_size=1, max_size=5))
    queues = [
        [
            event(contact, version, position)
            for version, events in enumerate(commits, 1)
            for position in range(events)
        ]
        for contact, commits in enumerate(contacts)
    ]
    committed = [one for queue in queues for one in queue]
    arrived = []
    while any(queues):
        arrived.append(draw(st.sampled_from([queue for queue in queues if queue])).pop(0))
    return committed, arrived


@given(histories())
def test_a_correct_history_passes_the_audit_in_any_interleaving_of_its_sessions(history):
    committed, arrived = history
    verdict = audit(committed, [received(one) for one in arrived])
    assert verdict.passed
    assert len(committed) == verdict.committed == verdict.delivered


@given(histories(), st.data())
def test_exactly_the_events_that_were_not_delivered_count_as_lost(history, data):
    committed, arrived = history
    dropped = data.draw(st.sets(st.sampled_from(arrived), min_size=1))
    verdict = audit(committed, [received(one) for one in arrived if one not in dropped])
    assert {one.event_id for one in dropped} == set(verdict.lost)
    assert len(committed) - len(dropped) == verdict.delivered
    assert () == verdict.duplicated == verdict.out_of_order
    assert not verdict.passed


@given(histories(), st.data())
def test_every_further_copy_of_a_message_counts_as_a_duplicate(history, data):
    """The audit counts further copies as duplicates, and judges the order by the first copies."""
    committed, arrived = history
    messages = [received(one) for one in arrived]
    copies = data.draw(st.lists(st.sampled_from(arrived), min_size=1, max_size=5))
    for copy in copies:
        first = next(i for i, message in enumerate(messages) if message.message_id == copy.event_id)
        messages.insert(data.draw(st.integers(first + 1, len(messages))), received(copy))
    verdict = audit(committed, messages)
    assert sorted(copy.event_id for copy in copies) == sorted(verdict.duplicated)
    assert () == verdict.lost == verdict.out_of_order
    assert not verdict.passed


@given(histories(), st.data())
def test_the_audit_passes_shuffled_messages_only_if_each_contact_stays_in_order(history, data):
    committed, arrived = history
    shuffled = data.draw(st.permutations(arrived))
    in_order = all(
        [one for one in shuffled if one.contact_id == contact]
        == sorted((one for one in shuffled if one.contact_id == contact), key=lambda one: one.order)
        for contact in {one.contact_id for one in shuffled}
    )
    assert in_order == audit(committed, [received(one) for one in shuffled]).passed


def test_a_message_of_an_event_that_was_not_committed_fails_the_audit():
    first, stranger = event(1, 1), event(1, 2)
    verdict = audit([first], [received(first), received(stranger)])
    assert (stranger.event_id,) == verdict.unknown
    assert () == verdict.lost
    assert 1 == verdict.delivered
    assert not verdict.passed


def test_the_second_of_two_events_with_the_same_id_counts_as_lost():
    one, other = event(1, 1), replace(event(2, 1), event_id="1-1-0")
    verdict = audit([one, other], [received(one)])
    assert ("1-1-0",) == verdict.lost
    assert (2, 1) == (verdict.committed, verdict.delivered)


def test_the_audit_does_not_trust_the_versions_in_message_properties():
    first, second = event(1, 1), event(1, 2)
    lying = [replace(received(second), entity_version=1), replace(received(first), entity_version=2)]
    assert (first.event_id,) == audit([first, second], lying).out_of_order


def test_latency_percentiles_count_only_the_first_copy_of_each_message():
    events = [event(contact, 1) for contact in range(100)]
    messages = [received(one, after_ms=rank) for rank, one in enumerate(events, 1)]
    late_copy = received(events[0], after_ms=10_000)
    verdict = audit(events, [*messages, late_copy])
    assert (50.0, 99.0) == (verdict.p50_ms, verdict.p99_ms)
    assert (0.0, 0.0) == (verdict.topic_p50_ms, verdict.topic_p99_ms)
