"""Routes: to which topics the relay sends an event."""

from __future__ import annotations

import time

import pytest

from cosmos_outbox.adapters.memory.broker import Fault, MemoryBroker
from cosmos_outbox.errors import BrokerUnavailable, ConfigurationError, MessageRejected
from cosmos_outbox.message_format import OutboundMessage
from cosmos_outbox.relay.routing import Routes, parse_routes
from cosmos_outbox.relay.topics_and_refusals import Topics

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
    """One broker in memory for each topic of the routes."""

    def __init__(self, routes: Routes = ROUTES, *, rejects: str | None = None) -> None:
        self.of = {topic: MemoryBroker(clock=time.monotonic) for topic in routes.topics}
        for topic, broker in self.of.items():
            broker.rejects = lambda sent, topic=topic: f"{topic}:{sent.message_id}" == rejects
        self.publisher = Topics(
            {topic: broker.publisher(lanes=2) for topic, broker in self.of.items()}, routes
        )

    def ids(self, topic: str) -> list[str]:
        return [sent.message_id for sent in self.of[topic].accepted]


def test_a_route_by_action_takes_precedence_over_one_by_entity_type():
    assert ("deletions", "events") == ROUTES.topics_of(message(1, action="Deleted", entity_type="order"))
    assert ("orders",) == ROUTES.topics_of(message(1, entity_type="order"))
    assert ("events",) == ROUTES.topics_of(message(1))


@pytest.mark.parametrize(
    ("routes", "mistake"),
    [
        ({"default": ()}, "the default needs"),
        ({"default": ("a",), "actions": {"X": ()}}, "action 'X' needs"),
        ({"default": ("a",), "entity_types": {"y": ("b", "b")}}, "entity type 'y' names a topic twice"),
    ],
)
def test_a_route_without_a_topic_or_with_a_repeated_topic_is_refused(routes, mistake):
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
def test_a_malformed_line_of_routes_is_refused(line, mistake):
    with pytest.raises(ConfigurationError, match=mistake):
        parse_routes(line, default="events")


@pytest.mark.parametrize(("routes", "missing"), [(ROUTES, "deletions, orders"), (None, "any topic")])
def test_a_topic_without_a_publisher_is_refused(routes: Routes | None, missing: str):
    with pytest.raises(ConfigurationError, match=missing):
        Topics({"events": MemoryBroker().publisher()} if routes else {}, routes)


async def test_an_error_counts_a_message_as_accepted_if_all_its_topics_took_it():
    brokers = Brokers()
    brokers.of["deletions"].faults.append(Fault.LOST)
    sent = [message(1), message(2, action="Deleted"), message(3)]
    with pytest.raises(BrokerUnavailable) as failed:
        await brokers.publisher.publish(0, sent)
    assert 1 == failed.value.accepted
    assert ["m1", "m2", "m3"] == brokers.ids("events")


async def test_an_outage_of_one_topic_is_reported_rather_than_a_rejection_of_another():
    brokers = Brokers(rejects="orders:m1")
    brokers.of["events"].faults.append(Fault.BUSY)
    with pytest.raises(BrokerUnavailable) as failed:
        await brokers.publisher.publish(0, [message(1, entity_type="order"), message(2)])
    assert 0 == failed.value.accepted
    with pytest.raises(MessageRejected):
        await brokers.publisher.publish(0, [message(1, entity_type="order"), message(2)])
