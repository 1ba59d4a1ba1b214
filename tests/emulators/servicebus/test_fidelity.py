"""
Tests that the emulator copies behaviour of Azure Service Bus which does not follow from the AMQP
specification. The table in emulators/README.md gives the source of each behaviour.
"""

from __future__ import annotations

import uuid

import pytest

from cosmos_outbox_emulators.servicebus.broker import Broker
from cosmos_outbox_emulators.servicebus.conditions import AmqpError
from cosmos_outbox_emulators.servicebus.config import RIGHTS
from cosmos_outbox_emulators.servicebus.decoding import DecodeError
from cosmos_outbox_emulators.servicebus.encoding import encode
from cosmos_outbox_emulators.servicebus.message import parse_message, read_application_properties
from cosmos_outbox_emulators.servicebus.performatives import Code, error, performative
from cosmos_outbox_emulators.servicebus.primitives import (
    Array,
    Described,
    Long,
    Symbol,
    Timestamp,
    UInt,
    ULong,
)
from cosmos_outbox_emulators.servicebus.queue import Outcome
from cosmos_outbox_emulators.servicebus.server import ServiceBusServer
from tests.emulators.servicebus import engine, wire
from tests.emulators.servicebus.engine import Recorder, message, scheduled

SESSION_FILTER = Symbol("com.microsoft:session-filter")
SESSION_FILTER_CODE = ULong(0x137_0000_00C)
CONFIG = {"queues": [{"name": "q", "lock_s": 30}, {"name": "sessions", "requires_session": True}]}
wired = pytest.mark.looptime(False)


@pytest.fixture
def queue():
    broker, clock = engine.broker(CONFIG)
    queue = broker.queue("q")
    queue.broker, queue.clock, queue.topic = broker, clock, broker.topic("q")
    return queue


@pytest.fixture
async def server():
    async with ServiceBusServer(Broker.from_config(CONFIG)) as running:
        yield running


@pytest.fixture
async def client(server):
    async with wire.connected(server) as connected:
        yield connected


def locked(queue):
    """Receive the only message of a queue. Return the message and its lock token, and leave it locked."""
    receiver = Recorder()
    queue.attach(receiver)
    queue.pump(receiver)
    queue.detach(receiver)
    (got,) = receiver.got
    return got


def properties(entry):
    entry.message.application_properties = entry.application_properties
    return read_application_properties(entry.message)


def peeked(queue):
    return [(entry.message.message_id, entry.sequence, entry.state) for entry in queue.peek(0, 10, None)]


@wired
async def test_a_session_filter_is_returned_in_the_form_of_the_request(server, client):
    for handle, asked in ((3, Described(SESSION_FILTER_CODE, "ada")), (4, "bob")):
        client.send(
            wire.attach(
                str(handle),
                handle,
                receive=True,
                source="sessions",
                target="x",
                filters={SESSION_FILTER: asked},
            )
        )
        assert asked == (await client.until(Code.ATTACH))[5].value[7][SESSION_FILTER]


@wired
async def test_a_delivery_is_annotated_with_its_lock_token(server, client):
    """The test also checks that the annotations that the sender set stay in the message."""
    sent = (
        b"\x00\x53\x71"
        + encode({Symbol("mine"): 1})
        + engine.encoded()
        + b"\x00\x53\x78"
        + encode({"sum": 2})
    )
    server.broker.topic("q").publish([parse_message(sent)])
    client.send(wire.attach("in", 3, receive=True, source="q", target="x"), wire.flow(3, 1))
    fields, payload = await client.delivered()
    sections = wire.sections(payload)
    assert {"mine": 1, "x-opt-lock-token": uuid.UUID(bytes_le=fields[2])} == sections[
        Code.DELIVERY_ANNOTATIONS
    ]
    assert {"sum": 2} == sections[Code.FOOTER]


@wired
async def test_links_are_detached_when_their_token_expires():
    broker, clock = engine.broker(CONFIG)
    async with ServiceBusServer(broker) as server, wire.connected(server) as client:
        client.send(wire.attach("in", 3, receive=True, source="q", target="x"))
        await client.until(Code.ATTACH)
        (connection,) = server._connections
        connection.authorise("", clock() + 100, RIGHTS)
        clock.advance(60)
        connection.authorise("", clock() + 100, RIGHTS)
        clock.advance(99)
        assert not next(iter(broker.topic("q").links)).end.detached
        clock.advance(1)
        failure = (await client.until(Code.DETACH))[2].value
    assert "amqp:link:detach-forced" == failure[0]
    assert "Code: RenewToken" in failure[1]


@wired
@pytest.mark.parametrize("undeliverable_here", [False, True])
async def test_a_settlement_may_change_properties_of_an_abandoned_message(server, client, undeliverable_here):
    """A settlement that defers the message may change its properties, too."""
    server.broker.topic("q").publish([message("a", application={"old": 1, "kept": 2})])
    client.send(wire.attach("in", 3, receive=True, source="q", target="x"), wire.flow(3, 1))
    changes = {Symbol("old"): "new"}
    client.send(wire.disposition(0, performative(Code.MODIFIED, True, undeliverable_here, changes)))
    await client.until(Code.DISPOSITION)
    (entry,) = server.broker.queue("q").entries.values()
    assert {"old": "new", "kept": 2} == properties(entry)


@wired
async def test_dead_lettering_adds_reason_and_custom_properties(server, client):
    server.broker.topic("q").publish([message("a")])
    client.send(wire.attach("in", 3, receive=True, source="q", target="x"), wire.flow(3, 1))
    info = {"DeadLetterReason": "bad", "mine": 1}
    failure = error(AmqpError("com.microsoft:dead-letter", "", info))
    client.send(wire.disposition(0, performative(Code.REJECTED, failure)))
    await client.until(Code.DISPOSITION)
    (entry,) = server.broker.queue("q").dead_letters.entries.values()
    assert ("bad", 1) == (properties(entry)["DeadLetterReason"], properties(entry)["mine"])


def test_dead_letters_never_expire(queue):
    """The test also checks that the delivery count of a dead letter does not grow."""
    queue.topic.publish([message("a", ttl_ms=60_000)])
    entry, token = locked(queue)
    queue.settle(token, Outcome.ABANDON)
    queue.settle(locked(queue)[1], Outcome.DEAD_LETTER)
    queue.clock.advance(60)
    for _ in range(20):
        queue.dead_letters.settle(locked(queue.dead_letters)[1], Outcome.ABANDON)
    assert 1 == entry.delivery_count
    header = wire.sections(entry.encode())[Code.HEADER]
    assert 0xFFFFFFFF == header[2]


def test_dead_letters_keep_their_sequence_numbers(queue):
    """Peeking at the dead-letter queue returns the messages in the order of these numbers."""
    queue.topic.publish([message("a"), message("b")])
    receiver = Recorder()
    queue.attach(receiver)
    queue.pump(receiver)
    for _, token in reversed(receiver.got):
        queue.settle(token, Outcome.DEAD_LETTER)
    assert [("a", 1, 0), ("b", 2, 0)] == peeked(queue.dead_letters)


def test_deferring_a_message_counts_as_a_delivery(queue):
    queue.topic.publish([message("a")])
    for _ in range(9):
        entry, token = (
            locked(queue)
            if not queue._deferred
            else queue.receive_deferred([1], session=None, receive_and_delete=False)[0][::-1]
        )
        queue.settle(token, Outcome.DEFER)
    assert (9, 1) == (entry.delivery_count, queue.active)
    ((token, _),) = queue.receive_deferred([1], session=None, receive_and_delete=False)
    queue.settle(token, Outcome.DEFER)
    assert (0, 1) == (queue.active, queue.dead_letters.active)


@wired
async def test_a_delivery_in_receive_and_delete_mode_has_no_tag(server, client):
    server.broker.topic("q").publish([message("a")])
    client.send(wire.attach("in", 3, receive=True, source="q", target="x", settle_mode=1), wire.flow(3, 1))
    fields = await client.until(Code.TRANSFER)
    assert (b"", True) == (fields[2], fields[4])


def test_peeking_at_a_queue_shows_its_scheduled_messages(queue):
    """A message whose schedule was cancelled is no longer shown."""
    later = queue.clock() + 50
    queue.topic.publish([message("now"), scheduled("sent", later)])
    cancelled, waiting = queue.topic.schedule([scheduled("x", later), scheduled("y", later)])
    assert [("now", 1, 0), ("sent", 2, 2), ("x", 3, 2), ("y", 4, 2)] == peeked(queue)
    assert (3, 4) == (cancelled, waiting)
    queue.topic.cancel([cancelled])
    queue.clock.advance(50)
    # A scheduled message gets a new sequence number (the second value) when it is due, as if it had been sent at that time.
    assert [("now", 1, 0), ("sent", 5, 0), ("y", 6, 0)] == peeked(queue)


def test_peeking_at_a_subscription_shows_no_scheduled_messages():
    broker, clock = engine.topic_broker()
    broker.topic("t").publish([scheduled("later", clock() + 50)])
    assert [] == peeked(broker.queue("t/Subscriptions/s"))


def test_only_a_scheduled_message_has_an_enqueue_sequence_number(queue):
    queue.topic.publish([message("direct"), scheduled("later", queue.clock() + 50)])
    queue.clock.advance(50)
    annotations = [
        wire.sections(entry.encode())[Code.MESSAGE_ANNOTATIONS] for entry in queue.peek(0, 10, None)
    ]
    name = "x-opt-enqueue-sequence-number"
    assert [None, 2] == [found.get(name) for found in annotations]


@pytest.mark.parametrize("name", ["x-opt-scheduled-enqueue-time", "x-opt-message-state"])
def test_a_message_is_refused_if_it_sets_an_annotation_of_the_broker_to_null(name):
    with pytest.raises(DecodeError, match=name):
        message("a", annotations={name: None})
    message("a", annotations={"x-opt-partition-key": None, "x-opt-locked-until": Timestamp(1)})


def test_setting_an_empty_session_state_clears_it():
    broker, _ = engine.broker(CONFIG)
    sessions = broker.queue("sessions").sessions
    session = sessions.accept(Recorder(), "ada")
    sessions.set_state(session, b"x")
    sessions.set_state(session, b"")
    assert session.state is None


async def ask(client, entity, operation, body):
    """Send a request to the `$management` node of an entity, and return the answer."""
    address = f"{entity}/$management"
    client.send(
        wire.attach("asks", 5, receive=False, source="me", target=address),
        wire.attach("hears", 6, receive=True, source=address, target="me"),
        wire.flow(6, 1),
        wire.request(5, 0, {"operation": f"com.microsoft:{operation}"}, body),
    )
    answer = wire.sections((await client.delivered())[1])[Code.VALUE]
    client.send(wire.detach(5), wire.detach(6))
    return answer


@wired
async def test_a_deferred_message_is_annotated_with_its_lock_token(server, client):
    server.broker.topic("q").publish([message("a")])
    queue = server.broker.queue("q")
    queue.settle(locked(queue)[1], Outcome.DEFER)
    body = {"sequence-numbers": Array([Long(1)]), "receiver-settle-mode": UInt(1)}
    (answer,) = (await ask(client, "q", "receive-by-sequence-number", body))["messages"]
    annotations = wire.sections(answer["message"])[Code.DELIVERY_ANNOTATIONS]
    assert {"x-opt-lock-token": answer["lock-token"]} == annotations


@wired
async def test_a_scheduled_message_is_cancelled_by_its_sequence_number(server, client):
    later = int(server.broker.timers.now() * 1000) + 60_000
    sent = engine.encoded(annotations={"x-opt-scheduled-enqueue-time": Timestamp(later)})
    answer = await ask(client, "q", "schedule-message", {"messages": [{"message": sent}]})
    assert 1 == server.broker.topic("q").scheduled
    await ask(client, "q", "cancel-scheduled-message", {"sequence-numbers": answer["sequence-numbers"]})
    assert 0 == server.broker.topic("q").scheduled


@wired
async def test_the_holder_of_a_session_can_store_its_state(server, client):
    client.send(
        wire.attach("in", 3, receive=True, source="sessions", target="x", filters={SESSION_FILTER: "ada"})
    )
    await client.until(Code.ATTACH)
    mine = {"session-id": "ada"}
    await ask(client, "sessions", "set-session-state", {**mine, "session-state": b"half way"})
    assert b"half way" == (await ask(client, "sessions", "get-session-state", mine))["session-state"]


@wired
async def test_a_key_opens_only_the_links_that_its_rights_allow():
    keys = {"hears": {"value": "a", "rights": ["Listen"]}, "says": {"value": "b", "rights": ["Send"]}}
    async with ServiceBusServer(Broker.from_config({**CONFIG, "sas_keys": keys})) as server:
        for name, allowed in (("hears", [True, False]), ("says", [False, True])):
            async with wire.connected(server, greeted=False) as client:
                value = keys[name]["value"]
                client.send(wire.SASL, wire.sasl_init("PLAIN", f"\0{name}\0{value}".encode()))
                client.send(wire.AMQP, wire.open_frame(), wire.begin())
                await client.welcomed()
                opened = []
                for handle, receive in ((2, True), (3, False)):
                    client.send(wire.attach(str(handle), handle, receive=receive, source="q", target="q"))
                    opened.append((await client.until(Code.ATTACH))[5] is not None)
                assert allowed == opened
