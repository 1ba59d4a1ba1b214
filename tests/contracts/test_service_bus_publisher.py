"""
Tests of the Service Bus publisher beyond the contract tests: its links, its time limits, and its batches on the wire.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessageBatch
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus.aio import ServiceBusClient, ServiceBusSender

from cosmos_outbox.adapters.servicebus import encoding
from cosmos_outbox.adapters.servicebus.publisher import (
    BatchScope,
    ServiceBusPublisher,
    open_service_bus_client,
)
from cosmos_outbox.errors import (
    BrokerUnavailable,
    ConfigurationError,
    MessageRejected,
    TopicUnavailable,
    UsageError,
)
from cosmos_outbox.message_format import OutboundMessage
from cosmos_outbox.ports import ChangeBatch
from cosmos_outbox.records import Record, SdkFallback
from cosmos_outbox.relay import Relay
from cosmos_outbox.retries import Backoff
from cosmos_outbox_emulators.servicebus.broker import Broker
from cosmos_outbox_emulators.servicebus.server import ServiceBusServer
from tests.support.event_documents import batch, event
from tests.support.patience import HUNG_SECONDS

pytestmark = [
    pytest.mark.looptime(False),
    # Azure's SDK does not close its socket when the broker closes the connection. The garbage collector warns about the socket.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

KEY = "SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=SAS_KEY_VALUE"


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    yield
    gc.collect()  # so that warnings about the SDK's open sockets do not appear in tests of another module


@pytest.fixture
async def server() -> AsyncIterator[ServiceBusServer]:
    async with ServiceBusServer(Broker.default(), port=0) as server:
        yield server


@asynccontextmanager
async def publisher_to(
    server: ServiceBusServer, *, topic: str = "events", **options: Any
) -> AsyncIterator[ServiceBusPublisher]:
    options = {
        "lanes": 2,
        "send_timeout": timedelta(seconds=5),
        "cancel_grace": timedelta(seconds=0.3),
    } | options
    async with (
        open_service_bus_client(connection_string=server.connection_string) as client,
        ServiceBusPublisher(client, topic, **options) as publisher,
    ):
        yield publisher


def messages(session: str, count: int, *, first: int = 0, size: int = 0) -> list[OutboundMessage]:
    return [
        OutboundMessage(
            message_id=f"{session}/{number}",
            session_id=session,
            subject="Renamed",
            body=b"x" * size,
            properties={"sequence": number},
        )
        for number in range(first, first + count)
    ]


def stats(server: ServiceBusServer) -> dict[str, Any]:
    found: dict[str, Any] = server.broker.stats()["topics"]["events"]
    return found


async def until(fact: Callable[[], bool]) -> None:
    async with asyncio.timeout(HUNG_SECONDS):
        while not fact():  # noqa: ASYNC110 - the broker has no event to wait for
            await asyncio.sleep(0.01)


# Links


async def test_a_lane_of_the_publisher_connects_when_it_is_first_used(server: ServiceBusServer) -> None:
    async with publisher_to(server, lanes=8) as publisher:
        assert 0 == server.broker.connections
        await publisher.publish(3, messages("k", 1))
        await publisher.publish(3, messages("k", 1, first=1))
        assert 1 == server.broker.connections


@pytest.mark.parametrize("how", ["detached", "disconnected"])
async def test_a_publisher_replaces_an_idle_link_that_was_cut(server: ServiceBusServer, how: str) -> None:
    async with publisher_to(server) as publisher:
        await publisher.publish(0, messages("k", 3))
        if how == "detached":
            server.broker.detach_links("events")
        else:
            server.drop_connections()
        await publisher.publish(0, messages("k", 3, first=3))
        assert (6, 0, 2) == (
            stats(server)["published"],
            stats(server)["duplicates"],
            server.broker.connections,
        )


@pytest.mark.parametrize(
    ("action", "connections", "stored", "repeated"),
    [("no-ack", 2, 2, 1), ("server-busy", 1, 2, 0)],
    ids=["a sender of unknown outcome is replaced and sends nothing later", "a busy broker keeps its link"],
)
async def test_a_publisher_replaces_its_link_only_after_a_send_of_unknown_outcome(
    server: ServiceBusServer, action: str, connections: int, stored: int, repeated: int
) -> None:
    async with publisher_to(server, send_timeout=timedelta(seconds=3)) as publisher:
        await publisher.publish(0, messages("k", 1))
        server.broker.faults.add({"action": action})
        with pytest.raises(BrokerUnavailable):
            await publisher.publish(0, messages("k", 1, first=1))
        await publisher.publish(0, messages("k", 1, first=1))
        found = stats(server)
        assert (connections, stored, repeated) == (
            server.broker.connections,
            found["published"],
            found["duplicates"],
        )


async def test_a_publisher_raises_broker_unavailable_if_its_new_link_fails(server: ServiceBusServer) -> None:
    async with publisher_to(server) as publisher:
        await publisher.publish(0, messages("k", 1))
        server.broker.faults.add({"action": "no-ack"})
        with pytest.raises(asyncio.CancelledError):
            await _cancelled(publisher, server)
        server.broker.faults.add({"action": "drop-before-store"})
        with pytest.raises(BrokerUnavailable):
            await publisher.publish(0, messages("k", 1, first=1))
        await publisher.publish(0, messages("k", 1, first=1))


async def _cancelled(publisher: ServiceBusPublisher, server: ServiceBusServer) -> None:
    call = asyncio.create_task(publisher.publish(0, messages("k", 1, first=1)))
    await until(lambda: stats(server)["published"] == 2)
    call.cancel()
    await call


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ServiceBusSender]]:
    """
    Collect the SDK's senders that the publisher opens. At the end of the test, check that all of them were closed.
    """
    opened, closed = list[ServiceBusSender](), list[ServiceBusSender]()
    give, close = ServiceBusClient.get_topic_sender, ServiceBusSender.close

    def giving(client: ServiceBusClient, topic: str, **options: Any) -> ServiceBusSender:
        opened.append(give(client, topic, **options))
        return opened[-1]

    async def closing(sender: ServiceBusSender) -> None:
        await close(sender)
        closed.append(sender)

    monkeypatch.setattr(ServiceBusClient, "get_topic_sender", giving)
    monkeypatch.setattr(ServiceBusSender, "close", closing)
    yield opened
    assert {*map(id, opened)} <= {*map(id, closed)}


async def test_a_publish_call_that_is_cancelled_while_its_link_opens_sends_nothing(
    server: ServiceBusServer, opened: list[ServiceBusSender]
) -> None:
    async with publisher_to(server) as publisher:
        call = asyncio.create_task(publisher.publish(0, messages("k", 1)))
        while not server.broker.connections:  # noqa: ASYNC110 - a pause between might last until the link is open
            await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await publisher.publish(0, messages("k", 1, first=1))
        assert (2, 1) == (len(opened), stats(server)["transfers"])


async def test_the_publisher_gives_up_a_server_that_never_answers(opened: list[ServiceBusSender]) -> None:
    """The server accepts connections and sends nothing. Without the publisher's time limit, the SDK would wait for a minute."""
    hung = asyncio.Event()

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await hung.wait()
        writer.close()

    silent = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    endpoint = f"Endpoint=sb://127.0.0.1:{port};{KEY};UseDevelopmentEmulator=true;"
    loop = asyncio.get_running_loop()
    async with (
        silent,
        open_service_bus_client(connection_string=endpoint) as client,
        ServiceBusPublisher(client, "events", send_timeout=timedelta(seconds=0.5)) as publisher,
    ):
        for attempt in (1, 2):
            started = loop.time()
            with pytest.raises(BrokerUnavailable):
                await publisher.publish(0, messages("k", 1))
            assert loop.time() - started < 30
            assert attempt == len(opened)
        hung.set()


async def test_the_publisher_gives_up_a_send_that_exceeds_its_time_limit(
    server: ServiceBusServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = []

    async def hang(*_: object, **options: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("send")

    async with publisher_to(
        server, send_timeout=timedelta(seconds=3), cancel_grace=timedelta(seconds=0.1)
    ) as publisher:
        with monkeypatch.context() as patch:
            patch.setattr(ServiceBusSender, "send_messages", hang)
            with pytest.raises(BrokerUnavailable, match="neither confirmed nor refused"):
                await publisher.publish(0, messages("k", 1))
            await until(lambda: bool(ended))
        await publisher.publish(0, messages("k", 1))
    assert (1, 1) == (stats(server)["published"], stats(server)["transfers"])


async def test_a_wrong_access_key_raises_topic_unavailable(server: ServiceBusServer) -> None:
    wrong = server.connection_string.replace("SAS_KEY_VALUE", "wrong")
    async with (
        open_service_bus_client(connection_string=wrong) as client,
        ServiceBusPublisher(client, "events") as publisher,
    ):
        with pytest.raises(TopicUnavailable):
            await publisher.publish(0, messages("k", 1))


# Cancellation and closing


@pytest.mark.parametrize(
    ("fault", "grace", "connections"),
    [({"action": "delay-ack", "seconds": 0.5}, 5, 1), ({"action": "no-ack"}, 0.3, 2)],
    ids=["known in time", "never known"],
)
async def test_a_cancelled_send_closes_its_sender_if_the_outcome_is_unknown(
    server: ServiceBusServer, fault: dict[str, Any], grace: float, connections: int
) -> None:
    async with publisher_to(server, cancel_grace=timedelta(seconds=grace)) as publisher:
        await publisher.publish(0, messages("k", 1))
        server.broker.faults.add(fault)
        with pytest.raises(asyncio.CancelledError):
            await _cancelled(publisher, server)
        await publisher.publish(0, messages("k", 1, first=2))
        assert (connections, 3) == (server.broker.connections, stats(server)["transfers"])


async def test_a_closed_publisher_raises_a_usage_error(server: ServiceBusServer) -> None:
    async with publisher_to(server) as publisher:
        pass
    with pytest.raises(UsageError):
        await publisher.publish(0, messages("k", 1))


# Batches


@pytest.mark.parametrize(("scope", "batches"), [(BatchScope.SESSION, 3), (BatchScope.MESSAGE, 12)])
async def test_the_batch_scope_limits_a_batch_to_one_session_or_one_message(
    server: ServiceBusServer, scope: BatchScope, batches: int
) -> None:
    async with publisher_to(server, batch_scope=scope) as publisher:
        await publisher.publish(0, [message for key in "abc" for message in messages(key, 4)])
        assert (12, batches) == (stats(server)["published"], stats(server)["transfers"])


@pytest.mark.parametrize("sdk_only", [False, True], ids=["our encoder", "the SDK's"])
@pytest.mark.parametrize("letter", ["x", "☃", "😀"])
async def test_a_full_batch_with_long_ids_is_not_larger_than_the_limit(
    server: ServiceBusServer, monkeypatch: pytest.MonkeyPatch, letter: str, sdk_only: bool
) -> None:
    sizes: list[int] = []
    send = ServiceBusSender.send_messages

    async def measured(sender: ServiceBusSender, batch: Any, **options: Any) -> None:
        written = bytearray()
        encode_payload(written, batch._message)
        sizes.append(len(written))
        await send(sender, batch, **options)

    monkeypatch.setattr(ServiceBusSender, "send_messages", measured)
    longest = letter * (128 // (len(letter.encode("utf-16-le")) // 2))
    page = [
        OutboundMessage(
            message_id=f"{number:03}{longest[3:]}",
            session_id=longest,
            subject="Renamed",
            body=b"",
            properties={},
        )
        for number in range(1000)
    ]
    async with publisher_to(server, sdk_only=sdk_only) as publisher:
        await publisher.publish(0, page)

    assert len(sizes) > 1
    assert 262_144 - 2_048 < max(sizes) <= 262_144


async def test_a_message_with_a_property_that_amqp_cannot_encode_is_rejected(
    server: ServiceBusServer,
) -> None:
    good, [bad] = messages("k", 2), messages("k", 1, first=2**40)
    async with publisher_to(server) as publisher:
        with pytest.raises(MessageRejected) as caught:
            await publisher.publish(0, [*good, bad])
        assert 2 == caught.value.accepted
        assert 2 == stats(server)["published"]


async def test_with_an_unknown_version_of_the_sdk_the_sdk_encodes_the_messages(
    server: ServiceBusServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoding, "difference", lambda: "_size of a batch is missing")
    monkeypatch.setattr(encoding, "append", None)
    records: list[Record] = []
    async with publisher_to(server, notify=records.append) as publisher:
        for number in (0, 3):
            await publisher.publish(0, messages("k", 3, first=number))
    assert (6, 2) == (stats(server)["published"], stats(server)["transfers"])
    assert [SdkFallback(part="encoder", entity="events", reason="_size of a batch is missing")] == records


async def test_the_library_encodes_a_batch_and_the_sdk_only_its_first_message(
    server: ServiceBusServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert None is encoding.fallback_cause(), "compared before the SDK's messages are counted"
    added, add = [], ServiceBusMessageBatch.add_message
    monkeypatch.setattr(
        ServiceBusMessageBatch,
        "add_message",
        lambda batch, message: (added.append(message), add(batch, message)),
    )
    async with publisher_to(server) as publisher:
        await publisher.publish(0, messages("k", 100, size=10_000))
    assert (100, 4, 4) == (stats(server)["published"], stats(server)["transfers"], len(added))


# Tests of a relay with the Service Bus publisher


def a_page(*keys: str, count: int) -> ChangeBatch:
    return batch(*(event(key, number) for number in range(count) for key in keys))


async def test_a_relay_sends_each_event_of_a_page_once_despite_faults(server: ServiceBusServer) -> None:
    faults = [
        {"action": "drop-before-store", "skip": 1},
        {"action": "drop-after-store", "skip": 3},
        {"action": "detach-after-store", "skip": 4},
        {"action": "reject-after-store", "condition": "com.microsoft:timeout", "skip": 5},
        {"action": "reject", "condition": "amqp:internal-error", "skip": 6},
        {"action": "no-ack", "skip": 7},
    ]
    async with publisher_to(server, send_timeout=timedelta(seconds=1)) as publisher:
        relay = Relay(
            publisher, backoff=Backoff(initial_seconds=0.01, maximum_seconds=0.05), notify=lambda record: None
        )
        for fault in faults:
            server.broker.faults.add(fault)
        for number in range(8):
            await relay(a_page(f"a{number}", f"b{number}", f"c{number}", count=5))
    assert 8 * 15 == stats(server)["published"]
    assert all(fault["struck"] == 1 for fault in server.broker.stats()["faults"])


# Clients


def test_a_service_bus_client_without_credentials_is_refused() -> None:
    with pytest.raises(ConfigurationError):
        open_service_bus_client()
    with pytest.raises(ConfigurationError):
        open_service_bus_client(namespace="contoso.servicebus.windows.net")


def test_the_error_of_an_invalid_connection_string_does_not_contain_it() -> None:
    with pytest.raises(ConfigurationError) as caught:
        open_service_bus_client(connection_string="SharedAccessKey=secret")
    assert "secret" not in str(caught.value)


def test_a_publisher_with_zero_parallel_lanes_is_refused(server: ServiceBusServer) -> None:
    client = open_service_bus_client(connection_string=server.connection_string)
    with pytest.raises(ConfigurationError):
        ServiceBusPublisher(client, "events", lanes=0)
