"""
Every implementation of the Subscription port passes the contract tests: in memory, with the Azure SDK, and with the lean receiver.

In memory, the tests run in virtual time. On the Service Bus emulator, all tests of the contract run at the same time, because the SDK
takes a second to open and close a link. Each of these tests has its own broker and moves the broker's clock, so locks end only when the
test lets them end.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Self

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageProperties
from azure.servicebus.exceptions import ServiceBusError

from cosmos_outbox.adapters.memory import MemorySubscription
from cosmos_outbox.adapters.servicebus import ServiceBusSubscription, administration, open_service_bus_client
from cosmos_outbox.adapters.servicebus import subscription as adapter
from cosmos_outbox.adapters.servicebus.encoding import sdk_message
from cosmos_outbox.errors import ConfigurationError, LockLost, SubscriptionError, SubscriptionUnavailable
from cosmos_outbox.ports import Complete, DeadLetter
from cosmos_outbox_amqp import AmqpSubscription, FallbackSubscription
from cosmos_outbox_emulators import certificate
from cosmos_outbox_emulators.servicebus.broker import Broker
from cosmos_outbox_emulators.servicebus.message import read_application_properties
from cosmos_outbox_emulators.servicebus.queue import Queue
from cosmos_outbox_emulators.servicebus.server import ServiceBusServer
from cosmos_outbox_testing.contracts import (
    Opened,
    SessionlessSubscriptionContract,
    SubscriptionBackend,
    SubscriptionContract,
)
from cosmos_outbox_testing.contracts.subscription import (
    BRIEFLY,
    LOCK_SECONDS,
    a_message,
    accept_session,
    receive_message,
    rest,
)
from tests.support.patience import HUNG_SECONDS
from tests.support.servicebus_sdk import leaky_sockets, unlogged, until

Scenario = Callable[[Any], Awaitable[None]]


class MemoryEntity(SubscriptionBackend):
    def __init__(self, *, sessions: bool, max_deliveries: int) -> None:
        self.subscription = MemorySubscription(
            sessions=sessions, lock_seconds=LOCK_SECONDS, max_deliveries=max_deliveries
        )

    async def send(self, *names: str) -> None:
        for name in names:
            self.subscription.deliver(a_message(name))

    async def passes(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def waited_for(self) -> None:
        await asyncio.sleep(1)

    def go_away(self) -> None:
        self.subscription.down = True

    def come_back(self) -> None:
        self.subscription.down = False

    def dead_letters(self) -> list[tuple[str, str, str]]:
        return [(dead.message_id, reason, text) for dead, reason, text in self.subscription.dead_letters]

    def stored(self) -> int:
        return len(self.subscription.waiting) + len(self.subscription.deferred)


AdapterSubscription = ServiceBusSubscription | AmqpSubscription
# A class or function that opens a subscription, given a client and the name of a subscription or queue
Receiving = Callable[..., AdapterSubscription]


@dataclass
class ServiceBusEntity(SubscriptionBackend):
    server: ServiceBusServer
    client: ServiceBusClient
    receiving: Receiving
    subscription: AdapterSubscription
    ahead: list[float]
    sent: list[str] = field(default_factory=list)

    async def send(self, *names: str) -> None:
        await self.send_as_they_are(*(sdk_message(a_message(name)) for name in names))

    async def send_as_they_are(self, *messages: Any) -> None:
        async with self.client.get_topic_sender("t") as sender:
            for message in messages:
                await sender.send_messages(message)

    async def passes(self, seconds: float) -> None:
        self.ahead[0] += seconds
        self.server.broker.timers.run_due()

    async def waited_for(self) -> None:
        sessions = self.queue.sessions
        await until(lambda: sessions is None or sessions._waiting)

    def go_away(self) -> None:
        self.server.broker.faults.add({"action": "down", "seconds": 10_000})

    def come_back(self) -> None:
        self.server.broker.faults.clear()

    @property
    def queue(self) -> Queue:
        return self.server.broker.queue("t/Subscriptions/s")

    def dead_letters(self) -> list[tuple[str, str, str]]:
        assert self.queue.dead_letters is not None
        letters = []
        for entry in self.queue.dead_letters.entries.values():
            entry.message.application_properties = entry.application_properties
            said = read_application_properties(entry.message)
            letters.append(
                (
                    str(entry.message.message_id),
                    str(said["DeadLetterReason"]),
                    str(said["DeadLetterErrorDescription"]),
                )
            )
        return letters

    def stored(self) -> int:
        return self.queue.active


@asynccontextmanager
async def in_memory(
    *, sessions: bool = True, max_deliveries: int = 10, prefetch: int | None = None
) -> AsyncIterator[MemoryEntity]:
    yield MemoryEntity(sessions=sessions, max_deliveries=max_deliveries)


def lean(client: ServiceBusClient, *names: Any, sessions: bool = True, **options: Any) -> AmqpSubscription:
    assert sessions
    return AmqpSubscription(client, *names, **options)


@asynccontextmanager
async def on_emulator(
    *,
    receiving: Receiving = ServiceBusSubscription,
    sessions: bool = True,
    max_deliveries: int = 10,
    prefetch: int | None = None,
    requires_session: bool | None = None,
) -> AsyncIterator[ServiceBusEntity]:
    config = {
        "name": "s",
        "requires_session": sessions if requires_session is None else requires_session,
        "lock_s": LOCK_SECONDS,
        "max_delivery_count": max_deliveries,
    }
    ahead = [0.0]
    broker = Broker.from_config(
        {"topics": [{"name": "t", "subscriptions": [config]}]}, clock=lambda: time.time() + ahead[0]
    )
    options = {} if prefetch is None else {"prefetch": prefetch}
    async with (
        ServiceBusServer(broker) as server,
        open_service_bus_client(connection_string=server.connection_string) as client,
        receiving(client, "t", "s", sessions=sessions, **options) as subscription,
    ):
        yield ServiceBusEntity(server, client, receiving, subscription, ahead)


class TestInMemory(SubscriptionContract):
    @pytest.fixture
    def opened(self) -> Opened:
        return in_memory


class TestInMemoryWithoutSessions(SessionlessSubscriptionContract):
    @pytest.fixture
    def opened(self) -> Opened:
        return in_memory


# The lean receiver supports only sessions, so these tests do not run with it.
WITHOUT_SESSIONS = {
    *(name for name in dir(SessionlessSubscriptionContract) if name.startswith("test_")),
    "a_receiver_without_sessions_is_refused_if_the_entity_requires_them",
}
ON_EMULATOR: dict[str, Scenario] = {
    name: getattr(contract, name)
    for contract in (SubscriptionContract(), SessionlessSubscriptionContract())
    for name in dir(contract)
    if name.startswith("test_")
}


def wire_scenario(function: Scenario) -> Scenario:
    """
    Mark a function as a test that runs only on the emulator, because a subscription in memory has no connections and links.
    """
    ON_EMULATOR[getattr(function, "__name__")] = function  # noqa: B009 - a callable need not have one
    return function


# Tests that run only on the emulator, because they need a network connection


@wire_scenario
async def messages_of_other_programs_can_be_read(opened: Opened) -> None:
    async with opened() as entity:
        before = datetime.now(UTC) - timedelta(minutes=1)
        properties, *others = (
            AmqpMessageProperties(message_id=name, group_id="a") for name in ("v", *[None] * 3)
        )
        time, moment = datetime(2026, 5, 1, tzinfo=UTC), 1777593600000
        await entity.send_as_they_are(
            ServiceBusMessage(b"\xff\x00 no text", message_id="bytes", session_id="a"),
            AmqpAnnotatedMessage(value_body={"k": [1, "é", None]}, properties=properties),
            AmqpAnnotatedMessage(
                data_body=[b"in ", b"parts"],
                application_properties={"text": "é", "flag": True, "cloudEvents:time": time},
                properties=others[0],
            ),
            AmqpAnnotatedMessage(value_body='{"é": 1}', properties=others[1]),
            AmqpAnnotatedMessage(sequence_body=[[{"k": "é"}, 2]], properties=others[2]),
            ServiceBusMessage(None, message_id="empty", session_id="a"),
        )
        receiver, messages = await accept_session(entity), []
        for _ in range(6):
            messages.append(await receive_message(receiver))
            await receiver.settle(messages[-1], Complete())
        await receiver.close()
        binary, value, parts, text, sequence, empty = messages
        assert (b"\xff\x00 no text", "a", "", None) == (
            binary.body,
            binary.session_id,
            binary.subject,
            binary.content_type,
        )
        assert {"k": [1, "é", None]} == json.loads(value.body)
        said = {"text": "é", "flag": True, "cloudEvents:time": moment}
        assert (b"in parts", said) == (parts.body, parts.properties)
        assert ('{"é": 1}'.encode(), [{"k": "é"}, 2]) == (text.body, json.loads(sequence.body))
        assert (b"", {}) == (empty.body, empty.properties)
        assert all(before < message.enqueued_at for message in messages)


@wire_scenario
async def the_reason_of_a_dead_letter_is_cut_to_4000_characters(
    opened: Opened,
) -> None:
    async with opened() as entity:
        await entity.send("a1")
        session = await accept_session(entity)
        await session.settle(
            await receive_message(session), DeadLetter(reason="r" * 9_000, description="\ud800" + "d" * 9_000)
        )
        await session.close()
        assert [("a1", "r" * 4000, "?" + "d" * 3999)] == entity.dead_letters()


@wire_scenario
async def a_session_ends_when_its_link_or_connection_is_lost(
    opened: Opened,
) -> None:
    for lost in (False, True):
        async with opened() as entity:
            await entity.send("a1", "b1")
            held = await asyncio.gather(accept_session(entity), accept_session(entity))
            messages = [await receive_message(session) for session in held]
            if lost:
                entity.server.drop_connections()
            else:
                entity.server.broker.detach_links("t")
            with pytest.raises(SubscriptionError):
                await (held[0].renew() if lost else held[0].receive(BRIEFLY))
            with pytest.raises(SubscriptionError):
                await held[1].settle(messages[1], Complete())
            for session in held:
                await session.close()
            assert {"a1": 0, "b1": 0} == dict(await rest(entity, 2))


@wire_scenario
async def the_error_of_a_missing_entity_says_to_create_it(opened: Opened) -> None:
    async with opened() as entity:
        for topic, name in (("t", "other"), ("other", None)):
            async with entity.receiving(entity.client, topic, name) as missing:
                with pytest.raises(SubscriptionUnavailable, match=r"other.*create it if it is missing"):
                    await missing.accept(BRIEFLY)


@wire_scenario
async def an_enabled_subscription_is_received_from_again(opened: Opened) -> None:
    async with opened() as entity:
        await entity.send("a1")
        entity.server.broker.set_disabled("t", True)
        with pytest.raises(SubscriptionUnavailable, match="enable it"):
            await entity.subscription.accept(BRIEFLY)
        entity.server.broker.set_disabled("t", False)
        assert [("a1", 0)] == await rest(entity)


@wire_scenario
async def a_receiver_with_sessions_is_refused_if_the_entity_has_none(opened: Opened) -> None:
    async with opened(sessions=True, requires_session=False) as entity:
        with pytest.raises(SubscriptionUnavailable, match="see that sessions are on or off"):
            await entity.subscription.accept(BRIEFLY)


@wire_scenario
async def a_receiver_without_sessions_is_refused_if_the_entity_requires_them(
    opened: Opened,
) -> None:
    async with opened(sessions=False, requires_session=True) as entity:
        with pytest.raises(SubscriptionUnavailable, match="see that sessions are on or off"):
            await entity.subscription.accept(BRIEFLY)


@wire_scenario
async def a_refused_settlement_raises_lock_lost(opened: Opened) -> None:
    async with opened() as entity:
        await entity.send("a1")
        session = await accept_session(entity)
        entity.server.broker.faults.add(
            {"action": "reject", "on": "settle", "condition": "com.microsoft:session-lock-lost"}
        )
        with pytest.raises(LockLost):
            await session.settle(await receive_message(session), Complete())
        await session.close()
        assert 1 == entity.stored()


# The receivers are tested over TCP only. test_websockets.py tests connections over WebSockets.
WAYS: list[Receiving] = [ServiceBusSubscription, lean]


def scenarios_of(way: Receiving) -> dict[str, Scenario]:
    left_out = WITHOUT_SESSIONS if way is lean else ()
    return {name: scenario for name, scenario in ON_EMULATOR.items() if name not in left_out}


@pytest.fixture(scope="module", params=WAYS)
def outcomes(request: pytest.FixtureRequest) -> dict[str, BaseException | None]:
    opened, scenarios = partial(on_emulator, receiving=request.param), scenarios_of(request.param)

    async def run() -> list[BaseException | None]:
        return await asyncio.gather(*(one(opened) for one in scenarios.values()), return_exceptions=True)

    with leaky_sockets(), unlogged(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(adapter, "_OPEN_SECONDS", HUNG_SECONDS)
        return dict(zip(scenarios, asyncio.run(run()), strict=True))


@pytest.mark.looptime(False)
@pytest.mark.parametrize("name", ON_EMULATOR)
def test_a_subscription_on_the_emulator_passes_the_contract_tests(
    outcomes: dict[str, BaseException | None], name: str
) -> None:
    if name not in outcomes:
        pytest.skip("the lean receiver receives sessions only")
    if (outcome := outcomes[name]) is not None:
        raise outcome


@pytest.mark.looptime(False)
async def test_a_broker_that_does_not_answer_raises_subscription_unavailable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(adapter, "_OPEN_SECONDS", 0.5)
    connected = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.set()
        await reader.read()
        writer.close()

    with leaky_sockets():
        async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            said = "SharedAccessKeyName=k;SharedAccessKey=v;UseDevelopmentEmulator=true;"
            async with (
                open_service_bus_client(connection_string=f"Endpoint=sb://127.0.0.1:{port};{said}") as client,
                ServiceBusSubscription(client, "t", "s") as subscription,
            ):
                with pytest.raises(SubscriptionUnavailable):
                    await subscription.accept(0.5)
        assert connected.is_set()


@pytest.mark.looptime(False)
async def test_the_certificates_are_loaded_once_for_all_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []
    with leaky_sockets():
        async with on_emulator() as entity:
            monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", lambda *a, **b: reads.append(a))
            await entity.send("a1")
            await (await accept_session(entity)).close()
    assert [] == reads


@pytest.mark.looptime(False)
async def test_the_lean_receiver_trusts_the_certificates_of_ssl_cert_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Broker.from_config(
        {"topics": [{"name": "t", "subscriptions": [{"name": "s", "requires_session": True}]}]}
    )
    for name, addresses in (("its", ("127.0.0.1",)), ("another", ("127.0.0.9",))):
        monkeypatch.setattr(certificate, "_ADDRESSES", addresses)
        (folder := tmp_path / name).mkdir()
        async with ServiceBusServer(broker, tls=certificate.server_context(folder)) as server:
            for known in (False, True):
                with monkeypatch.context() as patch:
                    patch.delenv("SSL_CERT_DIR", raising=False)
                    patch.delenv("SSL_CERT_FILE", raising=False)
                    if known:
                        patch.setenv("SSL_CERT_FILE", str(folder / certificate.AUTHORITY))
                    client = open_service_bus_client(connection_string=server.connection_string)
                async with AmqpSubscription(client, "t", "s") as subscription:
                    # The lean receiver uses port 5671, unless the connection string names an emulator. This emulator has another
                    # port.
                    subscription.namespace = replace(subscription.namespace, port=server.port)
                    if known and name == "its":
                        assert await subscription.accept(0.1) is None
                    else:
                        with pytest.raises(SubscriptionUnavailable, match="certificate verify failed"):
                            await subscription.accept(0.1)


class LosingReceiver:
    """
    A fake receiver of the SDK. If a call of it is cancelled, it ignores the first cancellation and returns an answer.

    The SDK's receiver may do so before Python 3.12. A message in such an answer would be lost.
    """

    session = None

    def __init__(self, *, opens: bool, answer: object = ()) -> None:
        self._opens, self._answer = opens, answer
        self.waits, self.calls = asyncio.Event(), list[str]()

    async def _lose(self) -> None:
        self.waits.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    async def __aenter__(self) -> Self:
        if not self._opens:
            await self._lose()
            try:
                await asyncio.Event().wait()
            finally:
                self.calls.append("opening ended")
        return self

    async def receive_messages(self, *_: object, **options: Any) -> object:
        await self._lose()
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer

    async def abandon_message(self, message: object) -> None:
        self.calls.append(f"{message} abandoned")

    async def close(self) -> None:
        self.calls.append("closed")


class Receivers:
    """A fake client of the SDK that returns the given receiver."""

    def __init__(self, receiver: LosingReceiver) -> None:
        self._receiver = receiver

    def get_subscription_receiver(self, *_: object, **options: Any) -> LosingReceiver:
        return self._receiver


async def cancelled_once(receiver: LosingReceiver, call: Coroutine[Any, Any, object]) -> bool:
    """
    Start a call and cancel it while its receiver waits. Return whether the caller sees that the call was cancelled.
    """
    task = asyncio.create_task(call)
    await receiver.waits.wait()
    task.cancel()
    await asyncio.wait({task})
    return task.cancelled()


@pytest.mark.parametrize(
    ("answer", "calls"),
    [
        ([], ["closed"]),
        (["m"], ["m abandoned", "closed"]),
        (ServiceBusError("broken"), ["closed"]),
    ],
    ids=["nothing", "a message", "an error"],
)
async def test_a_cancelled_receive_abandons_the_message_that_the_sdk_returns_late(
    answer: object, calls: list[str]
) -> None:
    receiver = LosingReceiver(opens=True, answer=answer)
    async with ServiceBusSubscription(Receivers(receiver), "t", "s", sessions=False) as subscription:  # type: ignore[arg-type]
        session = adapter.ServiceBusSession(subscription, receiver)  # type: ignore[arg-type]
        assert await cancelled_once(receiver, session.receive(60))
        await session.close()
    assert calls == receiver.calls


@pytest.mark.parametrize(
    ("opens", "calls"),
    [(True, ["m abandoned", "closed"]), (False, ["opening ended", "closed"])],
    ids=["while it waits for a message", "while it opens"],
)
async def test_a_cancelled_accept_closes_its_receiver(opens: bool, calls: list[str]) -> None:
    receiver = LosingReceiver(opens=opens, answer=["m"])
    async with ServiceBusSubscription(Receivers(receiver), "t", "s", sessions=False) as subscription:  # type: ignore[arg-type]
        assert await cancelled_once(receiver, subscription.accept(60))
    assert calls == receiver.calls


async def test_the_check_of_a_subscription_closes_its_receiver() -> None:
    receiver = LosingReceiver(opens=True)
    client: Any = Receivers(receiver)
    assert None is await administration.receiving_refused(client, "t", "s", sessions=False)
    assert ["closed"] == receiver.calls


def test_invalid_options_of_a_subscription_are_refused() -> None:
    client = ServiceBusClient.from_connection_string(
        "Endpoint=sb://127.0.0.1;SharedAccessKeyName=k;SharedAccessKey=v"
    )
    for options in ({"lock_duration": timedelta(seconds=4)}, {"receivers": 0}):
        for kind in (ServiceBusSubscription, FallbackSubscription):
            with pytest.raises(ConfigurationError):
                kind(client, "t", "s", **options)  # type: ignore[arg-type]
