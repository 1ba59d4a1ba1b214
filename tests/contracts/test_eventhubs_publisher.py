"""
The example of a publisher to Event Hubs passes the contract tests. It sends with azure-eventhub to the Service Bus emulator.

So the batches, sizes, partition keys and errors of the SDK are tested, but not the service Event Hubs itself.
"""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
import pytest_asyncio

from cosmos_outbox.message_format import OutboundMessage
from cosmos_outbox_emulators.servicebus.broker import Broker
from cosmos_outbox_emulators.servicebus.message import Message
from cosmos_outbox_emulators.servicebus.server import ServiceBusServer
from cosmos_outbox_testing.contracts import PublisherBackend, PublisherContract, Trouble
from cosmos_outbox_testing.contracts.publisher import a_message

pytest.importorskip("azure.eventhub", reason="azure-eventhub is not installed (requirements/dev.txt)")

from azure.eventhub import EventData
from azure.eventhub._pyamqp._decode import decode_payload
from azure.eventhub.aio import EventHubProducerClient

from examples.eventhubs.publisher import EventHubPublisher

pytestmark = [
    pytest.mark.looptime(False),
    # Azure's SDKs do not close their sockets when the broker closes the connection. The garbage collector warns about each socket.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

HUB = {"topics": [{"name": "hub", "subscriptions": [{"name": "all", "requires_session": False}]}]}


class EventHub(PublisherBackend):
    def __init__(self, server: ServiceBusServer) -> None:
        self._broker = server.broker
        self.publisher = EventHubPublisher(
            lambda: EventHubProducerClient.from_connection_string(
                server.connection_string, eventhub_name="hub", retry_total=0
            ),
            lanes=3,
            send_timeout=timedelta(seconds=5),
            cancel_grace=timedelta(seconds=30),  # long enough for a slow machine
        )

    async def received(self, session_id: str, *, last: OutboundMessage) -> list[OutboundMessage]:
        waiting = self._broker.queue("hub/Subscriptions/all").entries
        found = [number for number, entry in waiting.items() if entry.message.partition_key == session_id]
        return [_as_sent(waiting.pop(number).message) for number in found]

    def trouble(self, kind: Trouble) -> None:
        match kind:
            case Trouble.LOST:
                self._broker.faults.add({"action": "drop-before-store"})
            case Trouble.ACK_LOST:
                self._broker.faults.add({"action": "drop-after-store"})
            case Trouble.BUSY:
                # Two strikes, because the SDK repeats a refused send once by itself.
                self._broker.faults.add({"action": "server-busy", "count": 2})
            case Trouble.NO_TOPIC:
                self._broker.set_disabled("hub", True)

    def slow(self, seconds: float) -> None:
        self._broker.faults.add({"action": "latency", "seconds": seconds})

    def recover(self) -> None:
        self._broker.faults.clear()
        self._broker.set_disabled("hub", False)


def _as_sent(message: Message) -> OutboundMessage:
    """Return a message of the emulator as a consumer with azure-eventhub reads it."""
    payload = message.properties + message.application_properties + message.body
    event = EventData._from_message(decode_payload(memoryview(payload)))
    return OutboundMessage(
        message_id=str(event.message_id),
        session_id=str(message.partition_key),
        subject=_text(event.raw_amqp_message.properties.subject),
        body=b"".join(event.body),
        content_type=str(event.content_type),
        properties={_text(name): _text(value) for name, value in event.properties.items()},
    )


def _text(value):
    return value.decode() if isinstance(value, bytes) else value


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def hub() -> AsyncIterator[EventHub]:
    async with ServiceBusServer(Broker.from_config(HUB)) as server:
        hub = EventHub(server)
        async with hub.publisher:
            yield hub
    gc.collect()


@pytest.mark.asyncio(loop_scope="module")
class TestEventHubPublisher(PublisherContract):
    drops_repetitions = False
    delivers_later = False

    @pytest.fixture
    def backend(self, hub: EventHub) -> EventHub:
        hub.recover()
        return hub

    async def test_event_hubs_gets_the_session_id_of_a_message_as_its_partition_key(
        self, backend: EventHub, session: str
    ) -> None:
        await backend.publisher.publish(0, [a_message(session), a_message(f"{session}-b")])
        assert [a_message(session)] == await backend.received(session, last=a_message(session))
