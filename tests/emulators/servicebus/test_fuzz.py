"""
Fuzz tests of the Service Bus emulator, with random bytes and damaged frames of a client. The broker must answer or close the connection,
and serve other clients.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from cosmos_outbox_emulators.servicebus.broker import Broker
from cosmos_outbox_emulators.servicebus.channel import LinkEnd
from cosmos_outbox_emulators.servicebus.connection import Connection
from cosmos_outbox_emulators.servicebus.encoding import encode
from cosmos_outbox_emulators.servicebus.performatives import ACCEPTED, BATCH_FORMAT, Code, performative
from cosmos_outbox_emulators.servicebus.primitives import Symbol, UInt
from tests.emulators.servicebus import wire
from tests.emulators.servicebus.engine import encoded
from tests.support.effort import examples

CONFIG = {
    "topics": [
        {
            "name": "t",
            "dedup_window_s": 60,
            "subscriptions": [{"name": "s"}, {"name": "sessions", "requires_session": True}],
        }
    ]
}
PLAIN, SESSIONS = "t/Subscriptions/s", "t/Subscriptions/sessions"
NEXT_SESSION = {Symbol("com.microsoft:session-filter"): None}


class Socket:
    def setsockopt(self, *arguments):
        pass


class Memory(asyncio.Transport):
    """A transport without a socket, which keeps what the broker writes."""

    def __init__(self):
        super().__init__()
        self.written = b""
        self.closed = False

    def get_extra_info(self, name, default=None):
        return Socket()

    def write(self, data):
        self.written += data

    def is_closing(self):
        return self.closed

    def close(self):
        self.closed = True

    abort = close


class Records(logging.Handler):
    def __init__(self):
        super().__init__()
        self.messages = []

    def emit(self, record):
        self.messages.append(self.format(record))


def talk(broker, chunks):
    """
    Send chunks of bytes to the broker over a new connection, which then breaks.

    Return the broker's answer, and whether the broker had closed the connection itself.
    """
    connection = Connection(broker, lambda _: None)
    transport = Memory()
    connection.frames.connection_made(transport)
    for chunk in chunks:
        if not transport.closed:
            connection.frames.data_received(chunk)
    closed = transport.closed
    connection.frames.connection_lost(None)
    return transport.written, closed


def dialogue():
    """Return the frames of a client that uses every feature of the broker."""
    management = f"{PLAIN}/$management"
    batch = b"".join(b"\x00\x53\x75" + encode(encoded(message_id=str(n), session_id="A")) for n in range(3))
    return [
        wire.SASL, wire.sasl_init(), wire.AMQP, wire.open_frame(idle_ms=60_000), wire.begin(0), wire.begin(1),
        wire.attach("cbs-out", 0, receive=False, source="$cbs", target="$cbs", channel=0),
        wire.attach("cbs-in", 1, receive=True, source="$cbs", target="$cbs", channel=0),
        wire.flow(1, 10, channel=0), wire.put_token("sb://host/"),
        wire.attach("out", 2, receive=False, source="x", target="amqps://host/t"),
        wire.transfer(2, 0, encoded(message_id="one", application={"a": 1}, ttl_ms=60_000)),
        wire.transfer(2, 1, batch, message_format=BATCH_FORMAT),
        wire.transfer(2, 2, encoded(message_id="two")[:20], more=True),
        wire.transfer(2, 2, encoded(message_id="two")[20:]),
        wire.attach("in", 3, receive=True, source=PLAIN, target="x"),
        wire.flow(3, 10, drain=True), wire.flow(3, 10, delivery_count=10, echo=True),
        wire.disposition(0, ACCEPTED), wire.disposition(1, performative(Code.MODIFIED, True, True), last=2),
        wire.disposition(3, performative(Code.REJECTED)), wire.disposition(4, b"\x00\x53\x26\x45", settled=True),
        wire.attach(
            "session", 4, receive=True, source=SESSIONS, target="x", filters=NEXT_SESSION,
            properties={Symbol("com.microsoft:timeout"): UInt(50)},
        ),
        wire.flow(4, 5),
        wire.attach("m-out", 6, receive=False, source=management, target=management),
        wire.attach("m-in", 7, receive=True, source=management, target=management), wire.flow(7, 2),
        wire.request(6, 5, {"operation": "com.microsoft:peek-message"}, {"from-sequence-number": 1, "message-count": 3}),
        wire.request(6, 6, {"operation": "com.microsoft:enumerate-rules"}, {"top": 5, "skip": 0}),
        wire.detach(3), wire.detach(4), wire.end(), wire.close(),
    ]  # fmt: skip


# The frames are built once for all examples. Otherwise the token could have another length in each run, and a failing example could not
# be reproduced.
DIALOGUE = tuple(dialogue())


def is_usable(broker):
    """Return whether the broker still lets another client send a message and receive it."""
    before = broker.topic("t").published
    frames = [
        wire.greeting(),
        wire.attach("out", 2, receive=False, source="x", target="t"),
        wire.transfer(2, 0, encoded(message_id=f"check-{before}", body=b"still here")),
        wire.attach("in", 3, receive=True, source=PLAIN, target="x", settle_mode=1),
        wire.flow(3, 100_000),
    ]
    written, closed = talk(broker, [b"".join(frames)])
    return not closed and broker.topic("t").published == before + 1 and b"still here" in written


def check(chunks):
    async def run():
        broker, records = Broker.from_config(CONFIG), Records()
        log = logging.getLogger("cosmos_outbox_emulators.servicebus")
        log.addHandler(records)
        try:
            written, closed = talk(broker, chunks)
            assert [] == records.messages, "the broker logged an unforeseen error"
            assert is_usable(broker)
            assert set() == broker.topic("t").links
            for path in (PLAIN, SESSIONS):
                queue = broker.queue(path)
                assert not queue.receivers
                assert not (queue.sessions and (queue.sessions._held or queue.sessions._waiting))
        finally:
            log.removeHandler(records)
        return written, closed

    return asyncio.run(run())


def test_the_broker_answers_the_undamaged_dialogue_without_an_error():
    written, closed = check(DIALOGUE)
    assert closed, "its last frame is a close"
    assert b"amqp:" not in written.replace(b"amqp:not-allowed", b""), "nothing was refused"


# For each answer of the broker, the shortest bytes that a fuzz run found for it.
CORPUS = json.loads((Path(__file__).parent / "corpus/dialogues.json").read_text())


def test_the_broker_gives_the_recorded_answer_to_each_recorded_dialogue():
    for kept in CORPUS:
        data = bytes.fromhex(kept["hex"])
        written, _ = check([wire.greeting(), data] if kept["greeted"] else [data])
        assert kept["answer"].encode() in written, kept


def test_a_lost_connection_leaves_no_objects_in_memory():
    def held():
        gc.collect()
        return sum(isinstance(each, Connection | LinkEnd) for each in gc.get_objects())

    async def run():
        broker, before = Broker.from_config(CONFIG), held()
        for kept in CORPUS:
            talk(broker, [wire.greeting() * kept["greeted"] + bytes.fromhex(kept["hex"])])
        assert before == held()

    asyncio.run(run())


@given(st.data())
@settings(deadline=None, max_examples=examples(100, many=300))
def test_a_damaged_dialogue_does_not_harm_the_broker(data):
    frames = list(DIALOGUE)
    position = st.integers(0, len(frames) - 1)
    for _ in range(data.draw(st.integers(1, 4))):
        index = data.draw(position)
        damage = data.draw(st.sampled_from(["drop", "repeat", "swap", "bytes", "cut", "insert"]))
        if damage == "drop":
            frames[index] = b""
        elif damage == "repeat":
            frames[index] *= 2
        elif damage == "swap":
            other = data.draw(position)
            frames[index], frames[other] = frames[other], frames[index]
        elif frames[index]:
            place = data.draw(st.integers(0, len(frames[index]) - 1))
            head, tail = frames[index][:place], frames[index][place:]
            if damage == "bytes":
                frames[index] = head + data.draw(st.binary(min_size=1, max_size=2)) + tail[1:]
            elif damage == "cut":
                frames[index] = head
            else:
                frames[index] = head + data.draw(st.binary(min_size=1, max_size=5)) + tail
    stream = b"".join(frames)
    size = data.draw(st.sampled_from([1, 7, 100, len(stream) or 1]))
    check([stream[start : start + size] for start in range(0, len(stream), size)])


@given(st.data())
@settings(deadline=None, max_examples=examples(100, many=300))
def test_a_performative_with_damaged_fields_does_not_harm_the_broker(data):
    """
    The frame keeps its size, so the damaged values reach the code that handles the fields of a performative (an AMQP command).
    """
    frames = list(DIALOGUE)
    index = data.draw(st.integers(3, len(frames) - 1))
    damaged = bytearray(frames[index])
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(8, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    frames[index] = bytes(damaged)
    check(frames)
