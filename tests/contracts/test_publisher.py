"""
What every Publisher keeps: in memory, on the Service Bus emulator through the vendor SDK, and on Azure if it is set.

Azure needs OUTBOX_TEST_SERVICEBUS_CONNECTION_STRING, and a topic with duplicate detection and a session subscription:
OUTBOX_TEST_SERVICEBUS_TOPIC (events) and OUTBOX_TEST_SERVICEBUS_SUBSCRIPTION (all).
"""

from __future__ import annotations

import asyncio
import gc
import os
import uuid
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from enum import StrEnum
from typing import Any, Protocol

import pytest
import pytest_asyncio
from azure.servicebus import ServiceBusReceivedMessage, ServiceBusReceiveMode
from azure.servicebus.aio import ServiceBusClient

from cosmos_outbox.adapters.memory.broker import Fault, MemoryBroker
from cosmos_outbox.adapters.servicebus.publisher import ServiceBusPublisher, open_service_bus_client
from cosmos_outbox.errors import BrokerUnavailable, MessageRejected, PublishError, TopicUnavailable
from cosmos_outbox.messages import OutboundMessage
from cosmos_outbox.ports import Publisher
from cosmos_outbox_emulators.servicebus.broker import Broker
from cosmos_outbox_emulators.servicebus.server import ServiceBusServer

# One loop for the module: opening and closing a link costs the SDK half a second each.
pytestmark = [
    pytest.mark.looptime(False),
    pytest.mark.asyncio(loop_scope="module"),
    # The SDK forgets to close its socket when the broker hangs up; the garbage collector does it.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

AZURE = "OUTBOX_TEST_SERVICEBUS_CONNECTION_STRING"
KINDS = ["memory", "emulator", "azure"] if AZURE in os.environ else ["memory", "emulator"]
LANES = 3


class Trouble(StrEnum):
    """
    A fault that strikes the next send.
    """

    LOST = "the connection breaks before the batch is stored"
    ACK_LOST = "the connection breaks after the batch was stored"
    BUSY = "the broker is busy"
    NO_TOPIC = "the topic is disabled"


class Topic(Protocol):
    """
    A topic under test; `trouble` and `slow` only where the broker is ours.
    """

    publisher: Publisher

    async def received(self, session_id: str, *, last: OutboundMessage) -> list[OutboundMessage]: ...

    def trouble(self, kind: Trouble) -> None: ...

    def slow(self, seconds: float) -> None: ...

    def recover(self) -> None: ...


class MemoryTopic:
    def __init__(self) -> None:
        self._broker = MemoryBroker()
        self.publisher = self._broker.publisher(lanes=LANES, batch_size=20)

    async def received(self, session_id: str, *, last: OutboundMessage) -> list[OutboundMessage]:
        messages = []
        while message := self._broker.receive(session_id):
            messages.append(message)
        return messages

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


class ServiceBusTopic:
    def __init__(
        self, client: ServiceBusClient, topic: str, subscription: str, broker: Broker | None = None
    ) -> None:
        self._client, self._topic, self._subscription = client, topic, subscription
        self._broker = broker
        self.publisher = ServiceBusPublisher(
            client,
            topic,
            lanes=LANES,
            send_timeout=timedelta(seconds=5),
            cancel_grace=timedelta(seconds=0.5),
        )

    async def received(self, session_id: str, *, last: OutboundMessage) -> list[OutboundMessage]:
        messages: list[ServiceBusReceivedMessage] = []
        async with self._client.get_subscription_receiver(
            self._topic,
            self._subscription,
            session_id=session_id,
            receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE,
        ) as receiver:
            while not messages or messages[-1].message_id != last.message_id:
                if not (more := await receiver.receive_messages(100, max_wait_time=60)):
                    break
                messages += more
            messages += await receiver.receive_messages(1, max_wait_time=0.1)  # one too many must show
        return [_as_sent(message) for message in messages]

    def trouble(self, kind: Trouble) -> None:
        assert self._broker is not None
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
        assert self._broker is not None
        self._broker.faults.add({"action": "latency", "seconds": seconds})

    def recover(self) -> None:
        if self._broker is not None:
            self._broker.faults.clear()
            self._broker.set_disabled(self._topic, False)


def _as_sent(message: ServiceBusReceivedMessage) -> OutboundMessage:
    properties = {_text(name): _text(value) for name, value in (message.application_properties or {}).items()}
    return OutboundMessage(
        message_id=str(message.message_id),
        session_id=str(message.session_id),
        subject=str(message.subject),
        body=b"".join(message.body),
        content_type=str(message.content_type),
        properties=properties,
    )


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


@pytest_asyncio.fixture(params=KINDS, loop_scope="module", scope="module")
async def shared_topic(request: pytest.FixtureRequest) -> AsyncIterator[Topic]:
    async with AsyncExitStack() as stack:
        if request.param == "memory":
            yield MemoryTopic()
            return
        if request.param == "emulator":
            server = await stack.enter_async_context(ServiceBusServer(Broker.default(), port=0))
            connection_string, broker = server.connection_string, server.broker
            name, subscription = "events", "all"
        else:
            connection_string, broker = os.environ[AZURE], None
            name = os.environ.get("OUTBOX_TEST_SERVICEBUS_TOPIC", "events")
            subscription = os.environ.get("OUTBOX_TEST_SERVICEBUS_SUBSCRIPTION", "all")
        client = await stack.enter_async_context(open_service_bus_client(connection_string=connection_string))
        topic = ServiceBusTopic(client, name, subscription, broker)
        await stack.enter_async_context(topic.publisher)
        yield topic
    gc.collect()  # what the SDK left open must not be found in another module's test


@pytest.fixture
def topic(shared_topic: Topic) -> Topic:
    shared_topic.recover()
    return shared_topic


@pytest.fixture
def breakable(topic: Topic) -> Topic:
    if isinstance(topic, ServiceBusTopic) and topic._broker is None:
        pytest.skip("nobody breaks Azure on demand")
    return topic


@pytest.fixture
def session() -> str:
    return f"session-{uuid.uuid4()}"


def a_message(
    session: str, number: int = 0, *, size: int = 0, properties: Mapping[str, str | int] | None = None
) -> OutboundMessage:
    return OutboundMessage(
        message_id=f"{session}/{number}",
        session_id=session,
        subject="ContactNameUpdatedEvent",
        body=b'{"number":%d,"padding":"%s"}' % (number, b"x" * size),
        properties=properties or {},
    )


def messages_of(session: str, count: int, *, first: int = 0, size: int = 0) -> list[OutboundMessage]:
    return [a_message(session, number, size=size) for number in range(first, first + count)]


async def publish_until_accepted(
    publisher: Publisher, lane: int, messages: Sequence[OutboundMessage]
) -> list[PublishError]:
    """
    What a caller that keeps the order does; returns the failures on the way.
    """
    failures = []
    while messages:
        try:
            await publisher.publish(lane, messages)
        except PublishError as error:
            failures.append(error)
            messages = messages[error.accepted :]
        else:
            break
    return failures


async def everything_received(
    topic: Topic, sent: Iterable[Sequence[OutboundMessage]]
) -> list[list[OutboundMessage]]:
    """
    What arrived of several sessions, each given by what was sent to it.
    """
    return await asyncio.gather(*(topic.received(each[-1].session_id, last=each[-1]) for each in sent))


async def test_a_message_arrives_as_it_was_sent(topic: Topic, session: str) -> None:
    properties = {
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "entity-version": 7,
        "sequence": 0,
        "correlation-id": "grün ☃",
        "commit-id": str(2**63),
        "big": 2**31 - 1,
        "negative": -1,
    }
    sent = a_message(session, properties=properties)
    await topic.publisher.publish(0, [sent])
    assert [sent] == await topic.received(session, last=sent)


@pytest.mark.parametrize(
    "properties",
    [
        {"correlation-id": "x" * 33_000},
        {"correlation-id": "ж" * 17_000},
        dict.fromkeys(("correlation-id", "causation-id", "tracestate", "commit-id"), "x" * 17000),
    ],
    ids=["one", "one of two bytes a letter", "all together"],
)
async def test_a_message_with_properties_that_service_bus_does_not_take_is_rejected_and_those_before_it_arrive(
    topic: Topic, session: str, properties: dict[str, str | int]
) -> None:
    before, large = a_message(session), a_message(session, properties=properties)
    with pytest.raises(MessageRejected, match="Service Bus takes"):
        await topic.publisher.publish(0, [large])
    with pytest.raises(MessageRejected) as together:
        await topic.publisher.publish(0, [before, large])
    if not together.value.accepted:
        await topic.publisher.publish(0, [before])
    assert [before] == await topic.received(session, last=before)


async def test_ids_may_have_128_characters_of_any_script(topic: Topic) -> None:
    session = ("é☃" * 64)[: 128 - 32] + uuid.uuid4().hex
    sent = replace(a_message(session), message_id=uuid.uuid4().hex + "ж" * 96)
    await topic.publisher.publish(0, [sent])
    assert [sent] == await topic.received(session, last=sent)


async def test_nothing_to_publish_is_published_at_once(topic: Topic) -> None:
    await topic.publisher.publish(0, [])


async def test_messages_of_a_session_arrive_in_the_order_of_call_after_call(
    topic: Topic, session: str
) -> None:
    sent = messages_of(session, 60)
    for start in range(0, 60, 7):
        await topic.publisher.publish(1, sent[start : start + 7])
    assert sent == await topic.received(session, last=sent[-1])


async def test_one_call_may_carry_many_sessions_each_in_order(topic: Topic, session: str) -> None:
    sessions = [f"{session}-{letter}" for letter in "abc"]
    sent = {name: messages_of(name, 10) for name in sessions}
    interleaved = [message for group in zip(*sent.values(), strict=True) for message in group]
    await topic.publisher.publish(0, interleaved)
    assert list(sent.values()) == await everything_received(topic, sent.values())


async def test_what_does_not_fit_one_batch_goes_in_several_in_order(topic: Topic, session: str) -> None:
    sent = messages_of(session, 50, size=10_000)
    await topic.publisher.publish(0, sent)
    assert sent == await topic.received(session, last=sent[-1])


async def test_calls_on_one_lane_go_one_after_another(topic: Topic, session: str) -> None:
    sessions = [f"{session}-{number}" for number in range(4)]
    calls = [[*messages_of(name, 5), *messages_of(name, 5, first=5)] for name in sessions]
    await asyncio.gather(*(topic.publisher.publish(2, call) for call in calls))
    assert calls == await everything_received(topic, calls)


async def test_lanes_work_side_by_side(topic: Topic, session: str) -> None:
    assert LANES == topic.publisher.lanes
    sent = [messages_of(f"{session}-{lane}", 30) for lane in range(LANES)]
    await asyncio.gather(*(topic.publisher.publish(lane, messages) for lane, messages in enumerate(sent)))
    assert sent == await everything_received(topic, sent)


async def test_what_is_sent_again_is_dropped(topic: Topic, session: str) -> None:
    sent, new = messages_of(session, 5), a_message(session, 5)
    await topic.publisher.publish(0, sent)
    await topic.publisher.publish(1, [*sent, new])
    assert [*sent, new] == await topic.received(session, last=new)


async def test_a_message_that_is_too_large_is_rejected_and_nothing_behind_it_is_sent(
    topic: Topic, session: str
) -> None:
    before, after = messages_of(session, 3), a_message(session, 4)
    giant = a_message(session, 3, size=1_100_000)
    with pytest.raises(MessageRejected) as together:
        await topic.publisher.publish(0, [*before, giant, after])
    await topic.publisher.publish(0, before[together.value.accepted :])
    with pytest.raises(MessageRejected) as alone:
        await topic.publisher.publish(0, [giant])
    assert 0 == alone.value.accepted
    await topic.publisher.publish(0, [after])
    assert [*before, after] == await topic.received(session, last=after)


@pytest.mark.parametrize("kind", [Trouble.LOST, Trouble.ACK_LOST, Trouble.BUSY])
async def test_after_a_failure_the_same_messages_again_keep_the_order(
    breakable: Topic, session: str, kind: Trouble
) -> None:
    sent = messages_of(session, 40)
    await breakable.publisher.publish(0, sent[:10])
    breakable.trouble(kind)
    failures = await publish_until_accepted(breakable.publisher, 0, sent[10:30])
    assert all(isinstance(failure, BrokerUnavailable) for failure in failures)
    await breakable.publisher.publish(0, sent[30:])
    assert sent == await breakable.received(session, last=sent[-1])


async def test_a_busy_broker_says_when_to_come_back(breakable: Topic, session: str) -> None:
    breakable.trouble(Trouble.BUSY)
    with pytest.raises(BrokerUnavailable) as caught:
        await breakable.publisher.publish(0, [a_message(session)])
    assert 2.0 == caught.value.retry_after


async def test_a_topic_that_is_disabled_is_used_again_once_it_is_enabled(
    breakable: Topic, session: str
) -> None:
    breakable.trouble(Trouble.NO_TOPIC)
    with pytest.raises(TopicUnavailable):
        await breakable.publisher.publish(0, [a_message(session)])
    breakable.recover()
    await breakable.publisher.publish(0, [a_message(session)])
    sent = a_message(session)
    assert [sent] == await breakable.received(session, last=sent)


async def test_a_cancelled_call_sends_nothing_after_it_returned(breakable: Topic, session: str) -> None:
    sent = messages_of(session, 60, size=10_000)
    breakable.slow(0.2)
    call = asyncio.create_task(breakable.publisher.publish(0, sent))
    await asyncio.sleep(0.3)  # the SDK's clock: inside the first or second of three batches
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    breakable.recover()
    marker = a_message(session, 999)
    await breakable.publisher.publish(0, [marker])
    received = await breakable.received(session, last=marker)
    assert received[-1] == marker
    assert received[:-1] == sent[: len(received) - 1]
    assert len(received) - 1 < 60
    # Sent again from the start, as the next owner of the lease does: the rest arrives, in order.
    await breakable.publisher.publish(0, sent)
    assert sent[len(received) - 1 :] == await breakable.received(session, last=sent[-1])
