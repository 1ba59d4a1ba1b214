"""
Tests of the faults that a test can plant in the Service Bus emulator: which requests a fault strikes, what the client learns, and whether
the broker stores the message all the same.
"""

from __future__ import annotations

import re

import pytest

from cosmos_outbox_emulators.servicebus.broker import Broker
from cosmos_outbox_emulators.servicebus.faults import On
from cosmos_outbox_emulators.servicebus.performatives import ACCEPTED, Code
from cosmos_outbox_emulators.servicebus.server import ServiceBusServer
from tests.emulators.servicebus import engine, wire
from tests.emulators.servicebus.engine import encoded, message

wired = pytest.mark.looptime(False)


QUEUE = {"queues": [{"name": "q"}]}
SENDER = wire.attach("out", 2, receive=False, source="x", target="q")


@pytest.fixture
def faults():
    return Broker.default().faults


def struck(faults, times, *, entity="events", on=On.SEND):
    return [faults.next(on, entity) is not None for _ in range(times)]


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({}, [True, False, False, False, False]),
        ({"skip": 2, "count": 2}, [False, False, True, True, False]),
        ({"count": None}, [True] * 5),
    ],
)
def test_skip_and_count_choose_the_requests_that_a_fault_strikes(faults, chosen, expected):
    """By default, a fault strikes the first request only."""
    fault = faults.add({"action": "lost", **chosen})
    assert expected == struck(faults, 5)
    assert sum(expected) == fault.struck


def test_a_fault_strikes_only_the_named_entity_and_kind_of_request(faults):
    faults.add({"action": "lost", "entity": "Other", "count": None})
    faults.add({"action": "no-ack", "on": "settle", "count": None})
    assert [False] == struck(faults, 1)
    assert [True] == struck(faults, 1, entity="other")
    assert [True] == struck(faults, 1, on=On.SETTLE)


def test_a_fault_with_the_same_seed_strikes_the_same_requests(faults):
    runs = []
    for _ in range(2):
        faults.clear()
        faults.add({"action": "lost", "count": None, "probability": 0.3, "seed": 7})
        runs.append(struck(faults, 1000))
    assert runs[0] == runs[1]
    assert 230 < sum(runs[0]) < 370


def test_the_latencies_of_several_planted_faults_add_up(faults):
    """A fault that only delays a request does not keep other faults from striking it."""
    faults.add({"action": "latency", "seconds": 0.02})
    faults.add({"action": "latency", "seconds": 0.01, "entity": "events"})
    faults.add({"action": "lost"})
    assert 0.03 == pytest.approx(faults.latency(On.SEND, "events"))
    assert 0.02 == pytest.approx(faults.latency(On.SEND, "other"))
    assert [True] == struck(faults, 1)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"action": "explode"}, "'explode' is not a valid Action"),
        ({}, "'' is not a valid Action"),
        ({"action": "lost", "topic": "events"}, "unknown field 'topic'"),
        ({"action": "lost", "on": "monday"}, "'monday' is not a valid On"),
        ({"action": "lost", "skip": -1}, "faults.skip: expected a number"),
        ({"action": "down"}, "down needs a positive number of seconds"),
        ({"action": "latency", "seconds": 0}, "latency needs a positive number of seconds"),
    ],
)
def test_the_error_for_a_malformed_fault_names_the_mistake(faults, fault, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        faults.add(fault)


async def learned(client):
    """
    Return what the client learns about the first message that it sent: an error, "accepted", "cut" if the broker closes the connection, or
    "nothing" if the next answer is about the second message.
    """
    while (got := await client.read()) is not None:
        code, fields, _ = got
        if code == Code.DETACH:
            return fields[2].value[0]
        if code == Code.DISPOSITION and fields[1] == 1:
            return "nothing"
        if code == Code.DISPOSITION:
            return fields[4].value[0].value[0] if fields[4].descriptor == Code.REJECTED else "accepted"
    return "cut"


@wired
@pytest.mark.parametrize(
    ("action", "expected", "stored"),
    [
        ("drop-before-store", "cut", False),
        ("drop-after-store", "cut", True),
        ("lost", "nothing", False),
        ("no-ack", "nothing", True),
        ("detach-before-store", "amqp:link:detach-forced", False),
        ("detach-after-store", "amqp:link:detach-forced", True),
        ("reject", "amqp:internal-error", False),
        ("reject-after-store", "com.microsoft:timeout", True),
        ("server-busy", "com.microsoft:server-busy", False),
        ("zero-credit", "accepted", True),
    ],
)
async def test_each_fault_decides_what_a_sender_learns_and_what_is_stored(action, expected, stored):
    async with ServiceBusServer(Broker.from_config(QUEUE)) as server, wire.connected(server) as client:
        server.broker.faults.add({"action": action})
        client.send(SENDER, wire.transfer(2, 0, encoded(message_id="struck")), wire.transfer(2, 1, encoded()))
        assert expected == await learned(client)
        entries = server.broker.queue("q").entries.values()
        assert stored == ("struck" in [entry.message.message_id for entry in entries])


@wired
@pytest.mark.parametrize(
    ("fault", "expected", "completed"),
    [
        ({"action": "reject", "condition": "com.microsoft:message-lock-lost"}, "com.microsoft:message-lock-lost", False),
        ({"action": "detach-before-store"}, "amqp:link:detach-forced", False),
        ({"action": "no-ack"}, "nothing", True),
    ],
)  # fmt: skip
async def test_a_fault_decides_which_answer_a_receiver_gets_to_its_settlement(fault, expected, completed):
    async with ServiceBusServer(Broker.from_config(QUEUE)) as server, wire.connected(server) as client:
        server.broker.topic("q").publish([message("struck"), message("next")])
        server.broker.faults.add({**fault, "on": "settle"})
        client.send(wire.attach("in", 2, receive=True, source="q", target="x"), wire.flow(2, 2))
        for _ in range(2):
            await client.until(Code.TRANSFER)
        client.send(wire.disposition(0, ACCEPTED), wire.disposition(1, ACCEPTED))
        assert expected == await learned(client)
        entries = server.broker.queue("q").entries.values()
        assert completed == ("struck" not in [entry.message.message_id for entry in entries])


@wired
async def test_a_planted_fault_with_a_duration_ends_after_its_seconds():
    """The test tries the faults that delay an answer, grant no credit, or refuse connections."""
    broker, clock = engine.broker(QUEUE)
    async with ServiceBusServer(broker) as server, wire.connected(server) as client:
        broker.faults.add({"action": "delay-ack", "seconds": 5})
        client.send(SENDER, wire.transfer(2, 0, encoded()), wire.transfer(2, 1, encoded()))
        assert 1 == (await client.until(Code.DISPOSITION))[1]
        clock.advance(5)
        assert 0 == (await client.until(Code.DISPOSITION))[1]
        broker.faults.add({"action": "zero-credit", "seconds": 5})
        client.send(wire.transfer(2, 2, encoded()))
        assert 0 == (await client.until(Code.FLOW))[6]
        clock.advance(5)
        assert 1000 == (await client.until(Code.FLOW))[6]
        broker.faults.add({"action": "down", "seconds": 60})
        assert await client.read() is None
        async with wire.connected(server, greeted=False) as refused:
            assert await refused.read() is None
        clock.advance(60)
        async with wire.connected(server):
            pass
        assert 1 == broker.stats()["refused_connections"]


@wired
@pytest.mark.parametrize(
    ("happens", "condition"),
    [
        (lambda broker, _: broker.set_disabled("q", disabled=True), "com.microsoft:entity-disabled"),
        (lambda broker, _: broker.delete("q"), "amqp:not-found"),
        (lambda _, clock: clock.advance(10), "amqp:link:detach-forced"),
    ],
    ids=["disabled", "deleted", "idle"],
)
async def test_a_link_is_detached_when_it_is_idle_or_its_queue_is_gone(happens, condition):
    broker, clock = engine.broker({**QUEUE, "link_idle_s": 10})
    async with ServiceBusServer(broker) as server, wire.connected(server) as client:
        client.send(SENDER, wire.transfer(2, 0, encoded()))
        await client.until(Code.DISPOSITION)
        happens(broker, clock)
        assert condition == (await client.until(Code.DETACH))[2].value[0]
        assert not [link for topic in broker.topics.values() for link in topic.links]
