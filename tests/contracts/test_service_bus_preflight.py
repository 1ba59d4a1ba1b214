"""
The preflights ask a live namespace, and say what is wrong with its entities.
"""

from __future__ import annotations

from datetime import timedelta

import pytest

from cosmos_outbox.adapters.servicebus.preflight import Inspection, preflight
from cosmos_outbox.adapters.servicebus.source_preflight import messages_counted, source_preflight
from cosmos_outbox_emulators.servicebus.broker import Broker
from cosmos_outbox_emulators.servicebus.server import ServiceBusServer

pytestmark = pytest.mark.looptime(False)


async def test_topics_and_sources_of_an_emulator_are_looked_at():
    broker = Broker.default()
    broker.add_topic({"name": "careless", "subscriptions": [{"name": "s"}]})
    async with ServiceBusServer(broker) as server:
        options = {"connection_string": server.connection_string}
        assert Inspection() == await preflight(["events"], **options)
        inspected = await preflight(["careless", "nowhere"], **options)
        assert ["duplicate-detection", "sessions", "dead-lettering", "topic"] == [
            miss.check for miss in inspected.misses
        ]
        assert inspected.unknown is None
        lock = timedelta(seconds=30)
        assert Inspection() == await source_preflight("events", "all", sessions=True, lock=lock, **options)
        source = await source_preflight("careless", "s", sessions=True, lock=lock * 3, **options)
        assert ["sessions", "lock-duration", "dead-lettering"] == [miss.check for miss in source.misses]


async def test_an_entity_of_another_kind_is_named_as_such():
    broker = Broker.default()
    broker.add_queue({"name": "orders"})
    async with ServiceBusServer(broker) as server:
        options = {"connection_string": server.connection_string}
        inspected = await preflight(["orders", "events/Subscriptions/all", "events"], **options)
        assert [
            "'orders' is no topic, but a queue or a subscription.",
            "'events/Subscriptions/all' is no topic, but a queue or a subscription.",
        ] == [miss.message for miss in inspected.misses]
        assert all(miss.grave and "OUTBOX_TOPIC" in miss.fix for miss in inspected.misses)
        asked = {"sessions": True, "lock": timedelta(seconds=30), "record_ttl": timedelta(days=7), **options}
        for name in ("events", "events/Subscriptions/all"):
            (miss,) = (await source_preflight(name, None, **asked)).misses
            assert f"{name!r} is no queue, but a topic or a subscription." == miss.message
            assert (None, None) == await messages_counted(name, None, **options)
        (miss,) = (await source_preflight("orders", "all", **asked)).misses
        assert "Subscription 'all' of topic 'orders' does not exist." == miss.message
        assert (None, None) == await messages_counted("orders", "all", **options)
