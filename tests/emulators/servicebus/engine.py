"""
Helpers for the tests of the Service Bus engine: a clock that is moved by hand, messages, and a receiver without a connection.
"""

from __future__ import annotations

from random import Random

from cosmos_outbox_emulators.servicebus.broker import Broker
from cosmos_outbox_emulators.servicebus.encoding import encode
from cosmos_outbox_emulators.servicebus.message import parse_message
from cosmos_outbox_emulators.servicebus.performatives import Code, performative
from cosmos_outbox_emulators.servicebus.primitives import Symbol, Timestamp, UInt


class ManualClock:
    """
    The broker's clock. It moves only when a test calls `advance`, which also runs the broker's timers that become due.
    """

    def __init__(self):
        self.now = 1_000_000.0
        self.broker = None

    def __call__(self):
        return self.now

    def advance(self, seconds):
        target = self.now + seconds
        timers = self.broker.timers
        while timers.next_due is not None and timers.next_due <= target:
            self.now = max(self.now, timers.next_due)
            timers.run_due()
        self.now = target


def broker(config):
    clock = ManualClock()
    clock.broker = Broker.from_config(config, clock=clock, random=Random(0))
    return clock.broker, clock


def topic_broker(*, subscription=None, **topic):
    """Return a broker that has the topic "t" with the subscription "s". Also return the broker's clock."""
    return broker(
        {
            "topics": [
                {"name": "t", **topic, "subscriptions": [{"name": "s", "lock_s": 30, **(subscription or {})}]}
            ]
        }
    )


def encoded(
    body=b"x",
    *,
    message_id="m",
    session_id=None,
    ttl_ms=None,
    application=None,
    annotations=None,
    header=True,
):
    properties = [message_id, None, None, None, None, None, None, None, None, None, session_id]
    parts = (
        [performative(Code.HEADER, True, None, UInt(ttl_ms) if ttl_ms is not None else None)]
        if header
        else []
    )
    if annotations:
        parts.append(b"\x00\x53\x72" + encode({Symbol(key): value for key, value in annotations.items()}))
    parts.append(performative(Code.PROPERTIES, *properties))
    if application is not None:
        parts.append(b"\x00\x53\x74" + encode(application))
    parts.append(b"\x00\x53\x75" + encode(body))
    return b"".join(parts)


def message(message_id="m", **fields):
    return parse_message(encoded(message_id=message_id, **fields))


def scheduled(message_id, at, **fields):
    return message(
        message_id, annotations={"x-opt-scheduled-enqueue-time": Timestamp(int(at * 1000))}, **fields
    )


class Recorder:
    """
    A receiver of the broker without a connection. It keeps the deliveries that it gets, and settles none.
    """

    def __init__(self, credit=1000, *, receive_and_delete=False, container=None):
        self.credit = credit
        self.receive_and_delete = receive_and_delete
        self.container = container or self
        self.got = []
        self.session = None
        self.failure = None

    def deliver(self, entry, token):
        self.credit -= 1
        self.got.append((entry, token))

    def grant(self, session):
        self.session = session

    def revoke(self, failure):
        self.failure = failure

    @property
    def ids(self):
        return [entry.message.message_id for entry, _ in self.got]

    def take(self):
        """Return the deliveries since the last call, each as (message id, lock token, delivery count)."""
        got, self.got = self.got, []
        return [(entry.message.message_id, token, entry.delivery_count) for entry, token in got]
