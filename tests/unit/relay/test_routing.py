"""Routes, and the topics that follow them."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmos_outbox.adapters.memory.broker import Fault, MemoryBroker
from cosmos_outbox.errors import BrokerUnavailable, ConfigurationError, MessageRejected
from cosmos_outbox.messages import OutboundMessage
from cosmos_outbox.relay import Relay
from cosmos_outbox.relay.routing import Routes, parse_routes
from cosmos_outbox.relay.topics import Topics
from cosmos_outbox.retries import Backoff
from tests.support.event_documents import batch, event

ROUTES = Routes(
    default=("events",),
    actions={"Deleted": ("deletions", "events")},
    entity_types={"order": ("orders",)},
)


def message(number: int, *, action: str = "Renamed", entity_type: str = "contact") -> OutboundMessage:
    return OutboundMessage(
        message_id=f"m{number}",
        session_id="s",
        subject=action,
        body=b"{}",
        properties={"entity-type": entity_type},
    )


class Brokers:
    """One broker a topic."""

    def __init__(self, routes: Routes = ROUTES, *, rejects: str | None = None) -> None:
        self.of = {topic: MemoryBroker(clock=time.monotonic) for topic in routes.topics}
        for topic, broker in self.of.items():
            broker.rejects = lambda sent, topic=topic: f"{topic}:{sent.message_id}" == rejects
        self.publisher = Topics(
            {topic: broker.publisher(lanes=2) for topic, broker in self.of.items()}, routes
        )

    def ids(self, topic: str) -> list[str]:
        return [sent.message_id for sent in self.of[topic].accepted]


def test_the_action_decides_before_the_entity_type_and_that_before_the_default():
    assert ("deletions", "events") == ROUTES.topics_of(message(1, action="Deleted", entity_type="order"))
    assert ("orders",) == ROUTES.topics_of(message(1, entity_type="order"))
    assert ("events",) == ROUTES.topics_of(message(1))


def test_an_event_without_entity_type_goes_to_the_default_topic():
    bare = OutboundMessage(message_id="m", session_id="s", subject="", body=b"{}", properties={})
    assert ("events",) == ROUTES.topics_of(bare)


def test_every_topic_of_the_routes_is_known_once():
    assert ("events", "deletions", "orders") == ROUTES.topics


@pytest.mark.parametrize(
    ("routes", "mistake"),
    [
        ({"default": ()}, "the default needs"),
        ({"default": ("a",), "actions": {"X": ()}}, "action 'X' needs"),
        ({"default": ("a",), "entity_types": {"y": ("b", "b")}}, "entity type 'y' names a topic twice"),
    ],
)
def test_a_route_that_would_lose_or_double_events_is_refused(routes, mistake):
    with pytest.raises(ConfigurationError, match=mistake):
        Routes(**routes)


def test_routes_can_be_written_on_one_line():
    line = " action:Deleted = deletions, events ;entity:order=orders; "
    assert ROUTES == parse_routes(line, default="events")
    assert Routes(default=("events",)) == parse_routes("", default="events")


@pytest.mark.parametrize(
    ("line", "mistake"),
    [
        ("Deleted=deletions", "'Deleted=deletions' must read"),
        ("topic:Deleted=deletions", "must read"),
        ("action:=deletions", "must read"),
        ("action:Deleted", "must read"),
        ("action:Deleted=", "at least one topic"),
        ("action:Deleted=a; action:Deleted=b", "two routes for action 'Deleted'"),
    ],
)
def test_a_line_that_cannot_be_meant_is_refused(line, mistake):
    with pytest.raises(ConfigurationError, match=mistake):
        parse_routes(line, default="events")


def test_a_topic_without_a_publisher_is_refused():
    with pytest.raises(ConfigurationError, match="deletions, orders"):
        Topics({"events": MemoryBroker().publisher()}, ROUTES)


def test_there_are_as_many_lanes_as_every_topic_has():
    brokers = {"events": MemoryBroker(), "deletions": MemoryBroker(), "orders": MemoryBroker()}
    publishers = {
        topic: broker.publisher(lanes=lanes)
        for lanes, (topic, broker) in zip((4, 2, 8), brokers.items(), strict=True)
    }
    assert 2 == Topics(publishers, ROUTES).lanes


async def test_messages_go_to_all_their_topics_in_order():
    brokers = Brokers()
    sent = [message(1), message(2, action="Deleted"), message(3, entity_type="order"), message(4)]
    await brokers.publisher.publish(0, sent)
    assert ["m1", "m2", "m4"] == brokers.ids("events")
    assert ["m2"] == brokers.ids("deletions")
    assert ["m3"] == brokers.ids("orders")


async def test_an_error_counts_only_what_all_topics_have():
    brokers = Brokers()
    brokers.of["deletions"].faults.append(Fault.LOST)
    sent = [message(1), message(2, action="Deleted"), message(3)]
    with pytest.raises(BrokerUnavailable) as failed:
        await brokers.publisher.publish(0, sent)
    assert 1 == failed.value.accepted
    assert ["m1", "m2", "m3"] == brokers.ids("events")


async def test_a_passing_fault_of_one_topic_comes_before_the_rejection_of_another():
    brokers = Brokers(rejects="orders:m1")
    brokers.of["events"].faults.append(Fault.BUSY)
    with pytest.raises(BrokerUnavailable) as failed:
        await brokers.publisher.publish(0, [message(1, entity_type="order"), message(2)])
    assert 0 == failed.value.accepted
    with pytest.raises(MessageRejected):
        await brokers.publisher.publish(0, [message(1, entity_type="order"), message(2)])


def change(number: int, action: str, entity_type: str):
    document = event(number=number, entityType=entity_type)
    document["data"]["action"] = action
    return document


@given(
    kinds=st.lists(st.sampled_from([("Renamed", "contact"), ("Deleted", "contact"), ("Added", "order")])),
    faults=st.lists(st.tuples(st.sampled_from(ROUTES.topics), st.sampled_from(list(Fault))), max_size=6),
)
async def test_a_relay_over_routes_loses_nothing_and_keeps_order_in_every_topic(kinds, faults):
    """Whatever the brokers do, each topic ends with exactly the messages routed to it, in commit order."""
    brokers = Brokers()
    for topic, fault in faults:
        brokers.of[topic].faults.append(fault)
    relay = Relay(brokers.publisher, backoff=Backoff(initial_seconds=2), notify=lambda record: None)
    documents = [change(number, *kind) for number, kind in enumerate(kinds, start=1)]
    if documents:
        await relay(batch(*documents))
    for topic in ROUTES.topics:
        expected = [
            f"contact-1/{number}"
            for number, (action, entity_type) in enumerate(kinds, start=1)
            if topic in ROUTES.topics_of(message(0, action=action, entity_type=entity_type))
        ]
        assert expected == brokers.ids(topic)
