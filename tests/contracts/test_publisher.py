"""
Every implementation of the Publisher port passes the contract tests: in memory, on the Service Bus emulator, and on Azure.

The tests run on Azure if OUTBOX_TEST_SERVICEBUS_CONNECTION_STRING is set. They need a topic with duplicate detection and a subscription
with sessions: OUTBOX_TEST_SERVICEBUS_TOPIC (default: events) and OUTBOX_TEST_SERVICEBUS_SUBSCRIPTION (default: all).
"""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import timedelta

import pytest
import pytest_asyncio
from azure.servicebus.aio import ServiceBusClient

from cosmos_outbox.adapters.memory.broker import Fault, MemoryBroker
from cosmos_outbox.adapters.servicebus.publisher import ServiceBusPublisher, open_service_bus_client
from cosmos_outbox.errors import BrokerUnavailable, MessageRejected
from cosmos_outbox.message_format import OutboundMessage
from cosmos_outbox_emulators.servicebus.broker import Broker
from cosmos_outbox_emulators.servicebus.server import ServiceBusServer
from cosmos_outbox_testing.contracts import PublisherBackend, PublisherContract, Trouble
from cosmos_outbox_testing.contracts.publisher import a_message
from cosmos_outbox_testing.verify.own_views import OwnTopic

# All tests of this module share one event loop and its links, because the SDK takes half a second to open a link and to close it.
pytestmark = [
    pytest.mark.looptime(False),
    pytest.mark.asyncio(loop_scope="module"),
    # Azure's SDK does not close its socket when the broker closes the connection. The garbage collector warns about the socket.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

AZURE = "OUTBOX_TEST_SERVICEBUS_CONNECTION_STRING"
SDK_ONLY = "emulator, messages encoded by the SDK"
KINDS = ["memory", "emulator", SDK_ONLY, *(["azure"] if AZURE in os.environ else [])]
LANES = 3


class MemoryTopic(PublisherBackend):
    def __init__(self) -> None:
        self._broker = MemoryBroker()
        self.publisher = self._broker.publisher(lanes=LANES, batch_size=20)
        self._received = Counter[str]()  # how many messages of a session a test has seen

    async def received(self, session_id: str, *, last: OutboundMessage) -> list[OutboundMessage]:
        entered = [message for message in self._broker.accepted if message.session_id == session_id]
        before, self._received[session_id] = self._received[session_id], len(entered)
        return entered[before:]

    def trouble(self, kind: Trouble) -> None:
        faults = {
            Trouble.LOST: Fault.LOST,
            Trouble.ACK_LOST: Fault.ACK_LOST,
            Trouble.BUSY: Fault.BUSY,
            Trouble.NO_TOPIC: Fault.NO_TOPIC,
        }
        self._broker.faults.append(faults[kind])

    def slow(self, seconds: float) -> None:
        self._broker.latency_seconds = seconds

    def recover(self) -> None:
        self._broker.faults.clear()
        self._broker.latency_seconds = 0.0


class ServiceBusTopic(OwnTopic):
    def __init__(
        self,
        client: ServiceBusClient,
        topic: str,
        subscription: str,
        broker: Broker | None = None,
        send_timeout: timedelta = timedelta(seconds=5),
        *,
        sdk_only: bool = False,
    ) -> None:
        self._broker = broker
        publisher = ServiceBusPublisher(
            client,
            topic,
            lanes=LANES,
            send_timeout=send_timeout,
            sdk_only=sdk_only,
            cancel_grace=timedelta(seconds=30),  # long enough for a slow machine
        )
        super().__init__(client, topic, subscription, publisher)

    def trouble(self, kind: Trouble) -> None:
        if self._broker is None:
            pytest.skip("Azure does not fail on demand")
        match kind:
            case Trouble.LOST:
                self._broker.faults.add({"action": "drop-before-store"})
            case Trouble.ACK_LOST:
                self._broker.faults.add({"action": "drop-after-store"})
            case Trouble.BUSY:
                self._broker.faults.add({"action": "server-busy"})
            case Trouble.NO_TOPIC:
                self._broker.set_disabled(self._topic, True)

    def slow(self, seconds: float) -> None:
        if self._broker is None:
            pytest.skip("Azure does not fail on demand")
        self._broker.faults.add({"action": "latency", "seconds": seconds})

    def recover(self) -> None:
        if self._broker is not None:
            self._broker.faults.clear()
            self._broker.set_disabled(self._topic, False)


@pytest_asyncio.fixture(params=KINDS, loop_scope="module", scope="module")
async def shared_topic(request: pytest.FixtureRequest) -> AsyncIterator[PublisherBackend]:
    async with AsyncExitStack() as stack:
        if request.param == "memory":
            yield MemoryTopic()
            return
        if request.param in ("emulator", SDK_ONLY):
            server = await stack.enter_async_context(ServiceBusServer(Broker.default(), port=0))
            connection_string, broker = server.connection_string, server.broker
            name, subscription = "events", "all"
        else:
            connection_string, broker = os.environ[AZURE], None
            name = os.environ.get("OUTBOX_TEST_SERVICEBUS_TOPIC", "events")
            subscription = os.environ.get("OUTBOX_TEST_SERVICEBUS_SUBSCRIPTION", "all")
        client = await stack.enter_async_context(open_service_bus_client(connection_string=connection_string))
        topic = ServiceBusTopic(client, name, subscription, broker, sdk_only=request.param == SDK_ONLY)
        await stack.enter_async_context(topic.publisher)
        yield topic
    gc.collect()  # so that warnings about the SDK's open sockets do not appear in tests of another module


class TestPublisher(PublisherContract):
    @pytest.fixture
    def backend(self, shared_topic: PublisherBackend) -> PublisherBackend:
        shared_topic.recover()
        return shared_topic

    @pytest.mark.parametrize(
        "properties",
        [
            {"correlation-id": "x" * 33_000},
            {"correlation-id": "ж" * 17_000},
            dict.fromkeys(("correlation-id", "causation-id", "tracestate", "commit-id"), "x" * 17000),
        ],
        ids=["one", "one of two bytes a letter", "all together"],
    )
    async def test_a_message_with_properties_that_are_too_large_is_rejected(
        self, backend: PublisherBackend, session: str, properties: dict[str, str | int]
    ) -> None:
        before, large = a_message(session), a_message(session, properties=properties)
        with pytest.raises(MessageRejected, match="Service Bus takes"):
            await backend.publisher.publish(0, [large])
        with pytest.raises(MessageRejected) as together:
            await backend.publisher.publish(0, [before, large])
        if not together.value.accepted:
            await backend.publisher.publish(0, [before])
        assert [before] == await backend.received(session, last=before)

    async def test_a_busy_broker_asks_the_publisher_to_wait_two_seconds(
        self, backend: PublisherBackend, session: str
    ) -> None:
        backend.trouble(Trouble.BUSY)
        with pytest.raises(BrokerUnavailable) as caught:
            await backend.publisher.publish(0, [a_message(session)])
        assert 2.0 == caught.value.retry_after

    async def test_a_publisher_sends_on_as_many_lanes_as_were_set(self, backend: PublisherBackend) -> None:
        assert LANES == backend.publisher.lanes
