"""
Check the guarantees of the library at the end of a test with crash points: those on sending (G1 to G5) and on effects (I1 to I3).

The stored data shows whether these guarantees hold. Other guarantees need assertions of the test, logs or metrics. An example is G6: log,
metrics and health show that a key or range makes no progress.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from cosmos_outbox.consumer import Consumer
from cosmos_outbox.message_format import OutboundMessage, message_of
from cosmos_outbox.ports import Complete
from cosmos_outbox.stored_documents import Document, StoredEvent, stored_event
from cosmos_outbox_testing.dying_process import Batch, Run
from cosmos_outbox_testing.harness import OutboxHarness


def violations(run: Run, harness: OutboxHarness) -> Iterator[str]:
    """
    Return a text for each guarantee that was broken. Call this when all events are relayed and all messages are consumed: an event that
    waits would count as lost.
    """
    yield from _commit_violations(run.batches)
    yield from _topic_violations(run.batches, harness)
    for consumer in run.consumers.values():
        yield from _effect_violations(run.batches, harness, consumer)


def _commit_violations(batches: list[Batch]) -> Iterator[str]:
    for batch in batches:
        written = {write.id for write in batch.writes}
        for event in _events(batch.documents):
            entity = event.meta.get("entityId")
            if entity is not None and entity not in written:
                yield f"G1: {batch.step} writes {event.action} {event.id!r} without its entity {entity!r}"


def _topic_violations(batches: list[Batch], harness: OutboxHarness) -> Iterator[str]:
    paths = harness.container.key_paths
    stored = [stored_event(document, paths) for document in harness.container.documents()]
    # Sort the stored events in the order of their commits. Events that have expired may be missing, so `known` also gets the ids of the
    # events in the recorded commits.
    events = sorted((event for event in stored if event is not None), key=lambda event: event.order)
    known = {event.id for batch in batches for event in _events(batch.documents)}
    known |= {event.id for event in events}
    ids: dict[str, set[str]] = defaultdict(set)
    arrived: dict[str, None] = {}
    for message in (arrival.message for arrival in harness.broker.arrivals):
        event_id = _event_of(message, known)
        if event_id not in known:
            yield f"G1: the topic has {message.subject} {message.message_id!r}, which was never committed"
        ids[event_id].add(message.message_id)
        arrived.setdefault(event_id)
    for event_id, used in ids.items():
        if len(used) > 1:
            yield f"G4: event {event_id!r} was sent under several ids: {', '.join(sorted(used))}"
    held = _ids_of_parked(harness)
    in_order: dict[str, list[str]] = defaultdict(list)
    for event in events:
        if event.id in arrived:
            in_order[message_of(event).session_id].append(event.id)
        elif event.id not in held:
            yield f"G2: {event.action} {event.id!r} of {event.partition_key!r} was committed, and neither sent nor parked"
    places = {event_id: place for place, event_id in enumerate(arrived)}
    for session, wanted in in_order.items():
        found = sorted(wanted, key=places.__getitem__)
        if found != wanted:
            yield f"G3: the events of {session!r} arrived as {found}, and were committed as {wanted}"


def _effect_violations(batches: list[Batch], harness: OutboxHarness, consumer: Consumer) -> Iterator[str]:
    own = [batch for batch in batches if batch.process.consumer == consumer.name]
    took_effect: dict[str, list[str]] = defaultdict(list)
    for batch in own:
        for message_id in batch.inbox:
            took_effect[message_id].append(batch.step)
    for message_id, steps in took_effect.items():
        if len(steps) > 1:
            yield f"I1: message {message_id!r} took effect at {' and at '.join(steps)}"
    yield from _order_violations(took_effect, harness)
    yield from _delivery_violations(own)
    kept = took_effect.keys() | _ids_of_parked(harness)
    where = "" if own else " in a container that the harness sees"
    for message, settlement in harness.subscriptions[consumer.name].subscription.settled:
        ignored = message.subject not in consumer.subjects
        if isinstance(settlement, Complete) and not ignored and message.message_id not in kept:
            yield f"I3: {message.subject} {message.message_id!r} was completed, took no effect{where}, and is not parked"


def _order_violations(took_effect: Mapping[str, list[str]], harness: OutboxHarness) -> Iterator[str]:
    places = {message.message_id: place for place, message in enumerate(harness.broker.accepted)}
    # For each session, the place in the topic of its latest message that took effect.
    newest: dict[str, int] = defaultdict(int)
    for message_id, steps in took_effect.items():
        if (place := places.get(message_id)) is None:
            continue  # the test put the message into the subscription itself, so it has no place in the topic
        message = harness.broker.accepted[place]
        if place < newest[message.session_id]:
            yield f"I2: {message.subject} {message_id!r} took effect after a later one of its session, at {steps[0]}"
        newest[message.session_id] = max(place, newest[message.session_id])


def _delivery_violations(batches: list[Batch]) -> Iterator[str]:
    deliveries: dict[str, dict[tuple[str, int], str]] = defaultdict(dict)
    for batch in batches:
        if batch.message is not None and batch.has_effects:
            delivery = batch.process.name, batch.message.delivery_count
            deliveries[batch.message.message_id][delivery] = batch.step
    for message_id, steps in deliveries.items():
        if len(steps) > 1:
            said = " and at ".join(steps.values())
            yield f"I1: message {message_id!r} changed data in {len(steps)} deliveries, at {said}"


def _events(documents: Iterable[Document]) -> list[StoredEvent]:
    return [event for event in map(stored_event, documents) if event is not None]


def _ids_of_parked(harness: OutboxHarness) -> set[str]:
    found = (document.get("event") for document in harness.parked.documents())
    return {str(event["id"]) for event in found if event is not None}


def _event_of(message: OutboundMessage, known: set[str]) -> str:
    """Return the id of the event that a message carries: the message's id, or the id in the body if no event has the message's id."""
    if message.message_id in known:
        return message.message_id
    try:
        return str(json.loads(message.body)["id"])
    except (ValueError, KeyError, TypeError):
        return message.message_id
