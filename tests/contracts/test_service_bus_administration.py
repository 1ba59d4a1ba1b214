"""
Tests that `doctor` can read the settings of a Service Bus namespace, and find out why the broker refuses a
receiver.
"""

from __future__ import annotations

import pytest

from cosmos_outbox.adapters.servicebus.administration import (
    Refusal,
    SettingsUnknown,
    messages_counted,
    reading_settings,
    receiving_refused,
    source_described,
    topic_described,
)
from cosmos_outbox.adapters.servicebus.publisher import open_service_bus_client
from cosmos_outbox_emulators.servicebus.broker import Broker
from cosmos_outbox_emulators.servicebus.server import ServiceBusServer

pytestmark = pytest.mark.looptime(False)
AT = {"namespace": None, "credential": None}


async def test_a_missing_topic_or_queue_is_distinguished_from_the_wrong_kind():
    broker = Broker.default()
    broker.add_queue({"name": "orders"})
    async with ServiceBusServer(broker) as server:
        at = {"connection_string": server.connection_string, **AT}
        async with reading_settings(**at) as client:
            described = [
                *[
                    await topic_described(client, name)
                    for name in ("nowhere", "orders", "events/Subscriptions/all")
                ],
                *[(await source_described(client, name, None))[0] for name in ("nowhere", "events")],
                (await source_described(client, "orders", "all"))[0],
            ]
        assert [False, True, True, False, True, False] == [one.exists for one in described]
        assert {None} == {one.settings for one in described}
        assert (0, 0) == await messages_counted("orders", None, **at)
        for entity, subscription in (("events", None), ("orders", "all")):
            assert (None, None) == await messages_counted(entity, subscription, **at)


async def test_a_receiver_learns_why_the_broker_refuses_it():
    broker = Broker.default()
    broker.add_queue({"name": "orders"})
    async with (
        ServiceBusServer(broker) as server,
        open_service_bus_client(connection_string=server.connection_string) as bus,
    ):
        assert await receiving_refused(bus, "events", "all", sessions=True) is None
        asked = [("events", "all", False), ("orders", None, True), ("nowhere", None, True)]
        refused = [await receiving_refused(bus, name, sub, sessions=has) for name, sub, has in asked]
        assert [Refusal.SESSIONS, Refusal.SESSIONS, Refusal.MISSING] == [one and one[0] for one in refused]


@pytest.mark.parametrize(
    ("emulator", "said"),
    [("", "Manage right"), ("UseDevelopmentEmulator=true;", "answers no management requests")],
)
async def test_the_settings_of_an_unreachable_namespace_are_unknown(emulator: str, said: str):
    away = f"Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=n;SharedAccessKey=a2V5;{emulator}"
    with pytest.raises(SettingsUnknown, match=said):
        async with reading_settings(connection_string=away, **AT) as client:
            await topic_described(client, "events")
