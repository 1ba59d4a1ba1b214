"""
The preflights ask a live namespace, and say what is wrong with its entities.
"""

from __future__ import annotations

from datetime import timedelta

import pytest

from cosmos_outbox.adapters.servicebus.preflight import Inspection, preflight
from cosmos_outbox.adapters.servicebus.source_preflight import source_preflight
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
