"""
Tests of the emulator's AMQP protocol on the level of frames: frames that the SDK never sends, and answers on which every client relies.
"""

from __future__ import annotations

import asyncio
import socket
import uuid

import pytest

from cosmos_outbox_emulators.servicebus.broker import Broker
from cosmos_outbox_emulators.servicebus.conditions import AmqpError
from cosmos_outbox_emulators.servicebus.connection import MAX_FRAME_SIZE
from cosmos_outbox_emulators.servicebus.performatives import (
    ACCEPTED,
    BATCH_FORMAT,
    Code,
    encode_rejected,
    frame,
    performative,
)
from cosmos_outbox_emulators.servicebus.primitives import Long, Symbol, Timestamp, UInt
from cosmos_outbox_emulators.servicebus.server import ServiceBusServer
from tests.emulators.servicebus import wire
from tests.emulators.servicebus.engine import encoded, message

pytestmark = pytest.mark.looptime(False)

CONFIG = {
    "topics": [
        {
            "name": "t",
            "max_message_size": 1000,
            "subscriptions": [{"name": "s"}, {"name": "sessions", "requires_session": True}],
        }
    ]
}
SUBSCRIPTION = "t/Subscriptions/s"


@pytest.fixture
async def server():
    async with ServiceBusServer(Broker.from_config(CONFIG)) as running:
        yield running


@pytest.fixture
async def client(server):
    async with wire.connected(server) as connected:
        yield connected


def sender(handle=2, **options):
    return wire.attach("out", handle, receive=False, source="x", target="amqps://host/T", **options)


def receiver(handle=3, address=SUBSCRIPTION, **options):
    return wire.attach("in", handle, receive=True, source=address, target="x", **options)


def condition(fields, position):
    return fields[position].value[0]


async def filled(server, client, *ids):
    for name in ids:
        server.broker.topic("t").publish([message(name)])
    client.send(receiver())
    await client.until(Code.ATTACH)


async def test_a_sender_link_announces_its_size_limits_and_grants_credit(client):
    client.send(sender())
    fields = await client.until(Code.ATTACH)
    assert (1000, {"com.microsoft:max-message-batch-size": 1000}) == (fields[10], fields[13])
    fields = await client.until(Code.FLOW)
    assert (2, 1000) == (fields[4], fields[6])


async def test_a_transfer_in_several_frames_is_one_message(server, client):
    """The test also checks that an aborted transfer is no message."""
    payload = encoded(b"y" * 500, message_id="whole")
    client.send(sender(), wire.transfer(2, 0, b"half", more=True), wire.transfer(2, 0, b"", aborted=True))
    client.send(
        *[
            wire.transfer(2, 1, payload[n : n + 100], more=n + 100 < len(payload))
            for n in range(0, len(payload), 100)
        ]
    )
    fields = await client.until(Code.DISPOSITION)
    assert (1, True, Code.ACCEPTED) == (fields[1], fields[3], fields[4].descriptor)
    assert 1 == server.broker.topic("t").published


async def test_a_too_large_message_is_rejected_before_its_link_is_detached(server, client):
    client.send(
        sender(),
        *[wire.transfer(2, 0, b"z" * 50_000, more=True) for _ in range(20)],
        wire.transfer(2, 0, b""),
    )
    fields = await client.until(Code.DISPOSITION)
    assert "amqp:link:message-size-exceeded" == condition(fields[4].value, 0)
    assert "amqp:link:message-size-exceeded" == condition(await client.until(Code.DETACH), 2)
    client.send(wire.transfer(2, 1, encoded()), wire.detach(2), sender(), wire.transfer(2, 0, encoded()))
    assert Code.ACCEPTED == (await client.until(Code.DISPOSITION))[4].descriptor
    assert 1 == server.broker.topic("t").published


async def test_a_malformed_message_is_rejected_without_detaching_the_link(server, client):
    batch = b"\x00\x53\x75\xa0\x03abc"
    client.send(
        sender(),
        wire.transfer(2, 0, b"garbage"),
        wire.transfer(2, 1, batch, message_format=BATCH_FORMAT),
        wire.transfer(2, 2, encoded()),
    )
    states = [(await client.until(Code.DISPOSITION))[4] for _ in range(3)]
    assert [Code.REJECTED, Code.REJECTED, Code.ACCEPTED] == [state.descriptor for state in states]
    assert {"amqp:decode-error"} == {condition(state.value, 0) for state in states[:2]}
    assert 1 == server.broker.topic("t").published


async def test_the_broker_stores_a_settled_transfer_without_an_answer(server, client):
    client.send(sender(), wire.transfer(2, 0, encoded(), settled=True), wire.transfer(2, 1, encoded()))
    assert 1 == (await client.until(Code.DISPOSITION))[1]
    assert 2 == server.broker.topic("t").published


async def test_credit_is_counted_from_the_deliveries_that_the_receiver_has_seen(server, client):
    await filled(server, client, "a", "b", "c", "d")
    client.send(wire.flow(3, 1))
    assert 0 == (await client.until(Code.TRANSFER))[1]
    # The receiver grants two messages, counted from delivery 0, but it has got one message already. So only one more may come.
    client.send(wire.flow(3, 2, delivery_count=0), wire.flow(3, 0, delivery_count=2, echo=True))
    assert [Code.TRANSFER, Code.FLOW] == [(await client.read())[0] for _ in range(2)]


async def test_a_receiver_that_drains_its_link_uses_up_its_credit(server, client):
    await filled(server, client, "a")
    client.send(wire.flow(3, 10, drain=True))
    assert 0 == (await client.until(Code.TRANSFER))[1]
    fields = await client.until(Code.FLOW)
    assert (10, 0, True) == (fields[5], fields[6], fields[8])


async def test_a_released_message_keeps_its_place_in_the_queue(server, client):
    """
    When a receiver releases a message, it is delivered again before later messages, and its delivery count does not grow.
    """
    await filled(server, client, "a", "b")
    client.send(wire.flow(3, 1))
    await client.until(Code.TRANSFER)
    client.send(wire.disposition(0, b"\x00\x53\x26\x45", settled=True), wire.flow(3, 2, delivery_count=1))
    again = [wire.sections((await client.read())[2]) for _ in range(2)]
    assert [("a", 0), ("b", 0)] == [(item[Code.PROPERTIES][0], item[Code.HEADER][4]) for item in again]


async def test_the_broker_confirms_a_settlement_with_the_same_outcome(server, client):
    """Only the details may differ: the confirmation of a rejection lacks the error with which the receiver rejected the message."""
    await filled(server, client, "a", "b", "c")
    client.send(wire.flow(3, 3))
    for _ in range(3):
        await client.until(Code.TRANSFER)
    info = {"DeadLetterReason": "r"}
    dead = encode_rejected(AmqpError("com.microsoft:dead-letter", "d", info))
    client.send(wire.disposition(0, ACCEPTED), wire.disposition(1, performative(Code.MODIFIED, True, True)))
    client.send(wire.disposition(2, dead))
    states = [(await client.until(Code.DISPOSITION))[4] for _ in range(3)]
    assert [(Code.ACCEPTED, []), (Code.MODIFIED, [True, True]), (Code.REJECTED, [])] == [
        (state.descriptor, state.value) for state in states
    ]


async def test_one_disposition_can_settle_a_range_of_deliveries_of_any_size(server, client):
    await filled(server, client, "a", "b", "c")
    client.send(wire.flow(3, 3))
    for _ in range(3):
        await client.until(Code.TRANSFER)
    client.send(wire.disposition(0, ACCEPTED, last=0xFFFFFFFF))
    assert [0, 1, 2] == [(await client.until(Code.DISPOSITION))[1] for _ in range(3)]
    assert 3 == server.broker.queue(SUBSCRIPTION).completed


async def test_a_settlement_after_the_lock_was_lost_gets_session_lock_lost(server, client):
    server.broker.topic("t").publish([message("a", session_id="A")])
    client.send(
        receiver(address="t/subscriptions/SESSIONS", filters={Symbol("com.microsoft:session-filter"): None})
    )
    fields = await client.until(Code.ATTACH)
    assert "A" == fields[5].value[7]["com.microsoft:session-filter"]
    assert fields[13]["com.microsoft:locked-until-utc"] > 621_355_968_000_000_000
    client.send(wire.flow(3, 1))
    await client.until(Code.TRANSFER)
    queue = server.broker.queue("t/Subscriptions/sessions")
    queue.sessions.get("A", next(iter(queue.sessions._held.values())).owner.container).locked_until = 0
    queue.sessions._expire(next(iter(queue.sessions._held.values())))
    assert "com.microsoft:session-lock-lost" == condition(await client.until(Code.DETACH), 2)
    client.send(wire.disposition(0, ACCEPTED))
    fields = await client.until(Code.DISPOSITION)
    assert "com.microsoft:session-lock-lost" == condition(fields[4].value, 0)


async def test_waiting_for_a_session_ends_after_the_client_s_timeout(client):
    address, filters = "t/Subscriptions/sessions", {Symbol("com.microsoft:session-filter"): None}
    client.send(
        receiver(address=address, filters=filters, properties={Symbol("com.microsoft:timeout"): UInt(100)})
    )
    fields = await client.until(Code.ATTACH)
    assert (None, None) == (fields[5], fields[6])
    assert "com.microsoft:timeout" == condition(await client.until(Code.DETACH), 2)


@pytest.mark.parametrize(
    ("attach", "expected"),
    [
        (wire.attach("x", 5, receive=False, source="x", target="missing"), "amqp:not-found"),
        (receiver(5, "t/Subscriptions/missing"), "amqp:not-found"),
        (receiver(5, "missing/$management"), "amqp:not-found"),
        (receiver(5, "t"), "amqp:not-allowed"),
        (receiver(5, "t/Subscriptions/sessions"), "amqp:not-allowed"),
        (receiver(5, filters={Symbol("com.microsoft:session-filter"): None}), "amqp:not-allowed"),
        (receiver(5, None), "amqp:invalid-field"),
        (receiver(5, 7), "amqp:invalid-field"),
        (
            receiver(5, "t/Subscriptions/sessions", filters={Symbol("com.microsoft:session-filter"): 7}),
            "amqp:invalid-field",
        ),
    ],
)
async def test_a_link_that_cannot_be_opened_is_refused_with_the_reason(client, attach, expected):
    client.send(attach)
    fields = await client.until(Code.ATTACH)
    assert (None, None) == (fields[5], fields[6])
    assert expected == condition(await client.until(Code.DETACH), 2)


async def test_without_a_token_only_links_to_cbs_can_be_opened(server):
    async with wire.connected(server, greeted=False) as client:
        client.send(wire.SASL, wire.sasl_init(), wire.AMQP, wire.open_frame(), wire.begin(), sender())
        await client.welcomed()
        assert "amqp:unauthorized-access" == condition(await client.until(Code.DETACH), 2)


@pytest.mark.parametrize(
    ("audience", "key", "status"),
    [
        ("sb://h/t", "SAS_KEY_VALUE", 202),
        ("sb://h/t", "wrong", 401),
        ("sb://h/missing", "SAS_KEY_VALUE", 404),
    ],
)
async def test_cbs_answers_a_token_with_a_status_code(client, audience, key, status):
    client.send(wire.put_token(audience, key=key, number=1))
    assert status == wire.sections((await client.delivered())[1])[Code.APPLICATION_PROPERTIES]["status-code"]


async def test_a_key_in_sasl_plain_authorises_the_whole_connection(server):
    async with wire.connected(server, greeted=False) as client:
        plain = b"\x00RootManageSharedAccessKey\x00SAS_KEY_VALUE"
        client.send(
            wire.SASL, wire.sasl_init("PLAIN", plain), wire.AMQP, wire.open_frame(), wire.begin(), sender()
        )
        await client.welcomed()
        assert "out" == (await client.until(Code.ATTACH))[0]


@pytest.mark.parametrize(
    ("mechanism", "response"), [("PLAIN", b"\x00a\x00b"), ("PLAIN", b""), ("KERBEROS", b"")]
)
async def test_a_failed_authentication_is_answered_before_the_connection_is_closed(
    server, mechanism, response
):
    async with wire.connected(server, greeted=False) as client:
        client.send(wire.SASL, wire.sasl_init(mechanism, response))
        await client.header()
        assert 1 == (await client.until(Code.SASL_OUTCOME))[0]
        assert await client.read() is None


@pytest.mark.parametrize(
    "first", [b"HELO there", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", b"AMQP\x00\x00\x09\x01"]
)
async def test_a_peer_with_another_protocol_gets_the_broker_s_protocol_header(server, first):
    async with wire.connected(server, greeted=False) as client:
        client.send(first)
        assert wire.SASL == await client.header()
        assert await client.read() is None


MALFORMED = {
    "a frame beyond the limit": (
        (MAX_FRAME_SIZE + 1).to_bytes(4, "big") + b"\x02\x00\x00\x00",
        "framing-error",
    ),
    "a frame shorter than its header": (b"\x00\x00\x00\x04\x02\x00\x00\x00", "framing-error"),
    "an offset beyond the frame": (b"\x00\x00\x00\x0c\x04\x00\x00\x00" + b"\x00" * 4, "framing-error"),
    "an offset into the header": (b"\x00\x00\x00\x0c\x01\x00\x00\x00" + b"\x00" * 4, "framing-error"),
    "a frame type of its own": (frame(0, performative(Code.OPEN, "x"), kind=7), "framing-error"),
    "an unknown performative": (frame(1, performative(0x99, 1)), "decode-error"),
    "no performative": (frame(1, b"\x40"), "decode-error"),
    "a performative that is cut": (frame(1, wire.flow(3, 1)[8:-3]), "decode-error"),
    "a field of a wrong type": (frame(1, performative(Code.ATTACH, 5, "x", "y")), "decode-error"),
    "a mandatory field missing": (frame(1, performative(Code.ATTACH, "x")), "decode-error"),
    "SASL after the start": (frame(0, performative(Code.SASL_INIT, Symbol("ANONYMOUS"))), "decode-error"),
    "a second open": (wire.open_frame(), "not-allowed"),
    "a channel never begun": (wire.flow(3, 1, channel=9), "not-allowed"),
    "a channel in use": (wire.begin(), "framing-error"),
    "a channel beyond the limit": (wire.begin(5000), "framing-error"),
    "a handle beyond the limit": (sender(256), "framing-error"),
    "a transfer to a receiver": (receiver() + wire.transfer(3, 0, b"x"), "not-allowed"),
}


@pytest.mark.parametrize("name", MALFORMED)
async def test_a_protocol_violation_closes_only_its_own_connection(server, client, name):
    data, expected = MALFORMED[name]
    client.send(data)
    fields = await client.until(Code.CLOSE)
    assert condition(fields, 0).endswith(expected)
    assert await client.read() is None
    async with wire.connected(server):
        pass


async def test_a_transfer_on_an_unattached_handle_ends_only_its_amqp_session(client):
    client.send(wire.transfer(9, 0, b"x"))
    assert "amqp:session:unattached-handle" == condition(await client.until(Code.END), 0)
    client.send(wire.detach(2), wire.end(), wire.begin(1), sender())
    assert "out" == (await client.until(Code.ATTACH))[0]


async def test_attaching_a_handle_twice_ends_the_amqp_session(client):
    client.send(sender(), sender())
    assert "amqp:session:handle-in-use" == condition(await client.until(Code.END), 0)


async def test_an_idle_peer_gets_heartbeats(server):
    async with wire.connected(server, greeted=False) as client:
        client.send(wire.SASL, wire.sasl_init(), wire.AMQP, wire.open_frame(idle_ms=200))
        await client.welcomed()
        await client.until(Code.OPEN)
        assert b"\x00\x00\x00\x08\x02\x00\x00\x00" == await asyncio.wait_for(client.reader.readexactly(8), 5)


async def test_a_large_delivery_is_split_into_frames_of_the_peer_s_size(server):
    server.broker.topic("t").publish([message("a", body=b"b" * 900)])
    async with wire.connected(server, greeted=False) as client:
        greeting = wire.greeting().replace(wire.open_frame(), wire.open_frame(max_frame_size=512))
        client.send(greeting, receiver(), wire.flow(3, 1))
        await client.welcomed()
        pieces = []
        while not pieces or pieces[-1][1][5]:
            got = await client.read()
            if got[0] == Code.TRANSFER and got[1][0] == 3:
                pieces.append(got)
        assert len(pieces) > 2
        assert b"b" * 900 in b"".join(payload for _, _, payload in pieces)


async def test_the_broker_stops_deliveries_while_a_peer_does_not_read(server, client):
    body = b"b" * 900
    server.broker.topic("t").publish([message(str(number), body=body) for number in range(20_000)])
    client.writer.transport.pause_reading()
    client.send(receiver(settle_mode=1), wire.flow(3, 50_000))
    queue = server.broker.queue(SUBSCRIPTION)
    before = -1
    while queue.completed != before or before == 0:
        before = queue.completed
        await asyncio.sleep(0.1)
    assert 0 < queue.completed < 20_000
    client.writer.transport.resume_reading()
    for _ in range(20_000):
        await client.until(Code.TRANSFER)
    assert 20_000 == queue.completed


MANAGEMENT = f"{SUBSCRIPTION}/$management"


async def ask(client, operation, body, *, number=5, address=MANAGEMENT):
    client.send(
        wire.attach("m-out", 6, receive=False, source=address, target=address),
        wire.attach("m-in", 7, receive=True, source=address, target=address),
        wire.flow(7, 1),
        wire.request(6, number, {"operation": f"com.microsoft:{operation}"}, body),
    )
    _, payload = await client.delivered()
    client.send(wire.detach(6), wire.detach(7))
    return _reply(payload)


def _reply(payload):
    sections = wire.sections(payload)
    status = sections[Code.APPLICATION_PROPERTIES]
    return status["statusCode"], status.get("errorCondition"), sections[Code.VALUE]


async def test_the_reply_to_a_management_request_waits_for_credit(client):
    client.send(
        wire.attach("m-out", 6, receive=False, source=MANAGEMENT, target=MANAGEMENT),
        wire.attach("m-in", 7, receive=True, source=MANAGEMENT, target=MANAGEMENT),
        wire.request(6, 5, {"operation": "com.microsoft:enumerate-rules"}, {"top": 1, "skip": 0}),
        wire.flow(7, 0, echo=True),
    )
    before = [(await client.read())[0] for _ in range(5)]
    assert [Code.ATTACH, Code.FLOW, Code.ATTACH, Code.DISPOSITION, Code.FLOW] == before
    client.send(wire.flow(7, 1))
    assert 200 == _reply((await client.delivered())[1])[0]


async def test_management_requests_list_add_and_remove_rules(server, client):
    status, _, body = await ask(client, "enumerate-rules", {"top": 100, "skip": 0})
    (rule,) = body["rules"]
    filter_code, name = rule["rule-description"].value[0].descriptor, rule["rule-description"].value[2]
    assert (200, 0x13700000007, "$Default") == (status, filter_code, name)
    correlation = {"correlation-filter": {"label": "x", "properties": {"a": 1}}}
    assert 200 == (await ask(client, "add-rule", {"rule-name": "r", "rule-description": correlation}))[0]
    assert 409 == (await ask(client, "add-rule", {"rule-name": "r", "rule-description": correlation}))[0]
    assert 200 == (await ask(client, "remove-rule", {"rule-name": "$Default"}))[0]
    assert 404 == (await ask(client, "remove-rule", {"rule-name": "$Default"}))[0]
    _, _, body = await ask(client, "enumerate-rules", {"top": 100, "skip": 0})
    assert 0x13700000009 == body["rules"][0]["rule-description"].value[0].descriptor


async def test_a_management_request_lists_the_sessions_with_messages(server, client):
    server.broker.topic("t").publish([message("a", session_id="A"), message("b", session_id="B")])
    end_of_time = Timestamp(253_402_300_800_000)
    body = {"last-updated-time": end_of_time, "skip": 0, "top": 10}
    status, _, answer = await ask(
        client, "get-message-sessions", body, address="t/Subscriptions/sessions/$management"
    )
    assert (200, ["A", "B"], 2) == (status, answer["sessions-ids"], answer["skip"])


@pytest.mark.parametrize(
    ("operation", "body", "expected"),
    [
        ("fly", {}, (501, "amqp:not-implemented")),
        ("peek-message", {}, (400, "com.microsoft:argument-error")),
        ("peek-message", [], (400, "com.microsoft:argument-error")),
        (
            "peek-message",
            {"from-sequence-number": Long(1), "message-count": 5},
            (204, "com.microsoft:message-not-found"),
        ),
        ("renew-lock", {"lock-tokens": [uuid.UUID(int=1)]}, (410, "com.microsoft:message-lock-lost")),
        ("renew-lock", {"lock-tokens": ["x"]}, (400, "com.microsoft:argument-error")),
        ("renew-session-lock", {"session-id": "A"}, (400, "amqp:not-allowed")),
        (
            "update-disposition",
            {"disposition-status": "eaten", "lock-tokens": []},
            (400, "com.microsoft:argument-error"),
        ),
        (
            "receive-by-sequence-number",
            {"sequence-numbers": [Long(9)]},
            (404, "com.microsoft:message-not-found"),
        ),
        ("schedule-message", {"messages": []}, (404, "amqp:not-found")),
    ],
)
async def test_an_impossible_management_request_is_answered_with_an_error(client, operation, body, expected):
    assert expected == (await ask(client, operation, body))[:2]


async def test_an_outage_may_begin_before_a_connection_is_established(server):
    """
    asyncio accepts the socket first, and calls `connection_made` a little later, so a planted outage may begin in between.
    """
    ours, theirs = socket.socketpair()
    frames = server._accept()
    server.drop_connections()
    await asyncio.get_running_loop().connect_accepted_socket(lambda: frames, theirs)
    with ours:
        ours.setblocking(False)
        assert b"" == await asyncio.get_running_loop().sock_recv(ours, 8)
    assert set() == server._connections
