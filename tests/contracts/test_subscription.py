"""
What every Subscription keeps: in memory, in virtual time, and on the Service Bus emulator through the vendor SDK.

On the emulator all scenarios run at once, each with a broker of its own whose clock it moves: opening and closing a link costs
the SDK a second, and no lock ends before its scenario says so.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from math import inf
from typing import Any, Protocol

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageProperties

from cosmos_outbox.adapters.memory import MemorySubscription
from cosmos_outbox.adapters.servicebus import ServiceBusSubscription, open_service_bus_client
from cosmos_outbox.adapters.servicebus import subscription as adapter
from cosmos_outbox.errors import ConfigurationError, LockLost, SubscriptionError, SubscriptionUnavailable
from cosmos_outbox.messages import Message, OutboundMessage
from cosmos_outbox.ports import Complete, DeadLetter, Defer, Retry, Session, Subscription
from cosmos_outbox_emulators.servicebus.broker import Broker
from cosmos_outbox_emulators.servicebus.message import read_application_properties
from cosmos_outbox_emulators.servicebus.queue import Queue
from cosmos_outbox_emulators.servicebus.server import ServiceBusServer
from tests.emulators.servicebus.sdk import leaky_sockets, until
from tests.support.patience import HUNG_SECONDS

LOCK_SECONDS = 60.0
BRIEFLY = 1.0  # for what does not come


class Entity(Protocol):
    """
    A subscription under test.
    """

    subscription: Subscription

    async def send(self, *names: str) -> None:
        """
        Send messages: "a1" is message a1 of session a.
        """
        ...

    async def passes(self, seconds: float) -> None:
        """
        Have the broker's time pass.
        """
        ...

    async def waited_for(self) -> None:
        """
        Return when a call waits for a session.
        """
        ...

    def go_away(self) -> None: ...

    def come_back(self) -> None: ...

    def dead_letters(self) -> list[tuple[str, str, str]]:
        """
        Return the id of each dead letter, its reason and description.
        """
        ...

    def stored(self) -> int:
        """
        Return how many messages the broker still has, dead letters apart.
        """
        ...


Opened = Callable[..., AbstractAsyncContextManager[Any]]
Scenario = Callable[[Opened], Awaitable[None]]


class MemoryEntity:
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


@dataclass
class ServiceBusEntity:
    server: ServiceBusServer
    client: ServiceBusClient
    subscription: ServiceBusSubscription
    ahead: list[float]
    sent: list[str] = field(default_factory=list)

    async def send(self, *names: str) -> None:
        await self.send_as_they_are(*(_outgoing(a_message(name)) for name in names))

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


def a_message(name: str) -> OutboundMessage:
    return OutboundMessage(
        message_id=name,
        session_id=name[0],
        subject="Renamed",
        body=f'{{"name":"{name}"}}'.encode(),
        properties={"entity-id": "grün ☃", "entity-version": 7},
    )


def _outgoing(message: OutboundMessage) -> ServiceBusMessage:
    return ServiceBusMessage(
        message.body,
        application_properties=dict(message.properties.items()),
        session_id=message.session_id,
        message_id=message.message_id,
        subject=message.subject,
        content_type=message.content_type,
    )


@asynccontextmanager
async def in_memory(
    *, sessions: bool = True, max_deliveries: int = 10, prefetch: int = 0
) -> AsyncIterator[MemoryEntity]:
    yield MemoryEntity(sessions=sessions, max_deliveries=max_deliveries)


@asynccontextmanager
async def on_emulator(
    *,
    sessions: bool = True,
    max_deliveries: int = 10,
    prefetch: int = 0,
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
    async with (
        ServiceBusServer(broker) as server,
        open_service_bus_client(connection_string=server.connection_string) as client,
        ServiceBusSubscription(client, "t", "s", sessions=sessions, prefetch=prefetch) as subscription,
    ):
        yield ServiceBusEntity(server, client, subscription, ahead)


class Scenarios(dict[str, Scenario]):
    """
    Scenarios by their names, which are sentences; used as their decorator.
    """

    def __call__(self, function: Scenario) -> Scenario:
        self[getattr(function, "__name__")] = function  # noqa: B009 - a callable need not have one
        return function


scenario = Scenarios()
wire_scenario = Scenarios()  # of what memory has no counterpart for


async def accepted(entity: Entity) -> Session:
    session = await entity.subscription.accept(HUNG_SECONDS)
    assert session is not None
    return session


async def received(session: Session) -> Message:
    message = await session.receive(HUNG_SECONDS)
    assert message is not None
    return message


async def rest(entity: Entity, sessions: int = 1) -> list[tuple[str, int]]:
    """
    Complete what the next holders find, and return the id and the delivery count of each message.
    """
    found = []
    for _ in range(sessions):
        session = await accepted(entity)
        while message := await session.receive(BRIEFLY):
            found.append((message.message_id, message.delivery_count))
            await session.settle(message, Complete())
        await session.close()
    return found


# Sessions


@scenario
async def a_session_is_received_in_order_one_message_after_another(opened: Opened) -> None:
    async with opened() as entity:
        await entity.send("a1", "b1", "a2", "b2", "a3")
        session = await accepted(entity)
        assert "a" == session.id
        for name in ("a1", "a2", "a3"):
            message = await received(session)
            assert (name, "a", 0) == (message.message_id, message.session_id, message.delivery_count)
            await session.settle(message, Complete())
        assert await session.receive(BRIEFLY) is None
        assert 2 == entity.stored()
        await session.close()


@scenario
async def a_session_has_one_holder_at_a_time(opened: Opened) -> None:
    async with opened() as entity:
        await entity.send("a1", "b1")
        first, second = await asyncio.gather(accepted(entity), accepted(entity))
        assert {"a", "b"} == {first.id, second.id}
        assert await entity.subscription.accept(BRIEFLY) is None
        third = asyncio.create_task(accepted(entity))
        await first.close()
        assert first.id == (await third).id
        for session in (second, await third):
            await session.close()


@scenario
async def a_session_that_comes_goes_to_a_call_that_waits(opened: Opened) -> None:
    async with opened() as entity:
        waiting = asyncio.create_task(accepted(entity))
        await entity.waited_for()
        await entity.send("a1")
        session = await waiting
        assert "a1" == (await received(session)).message_id
        await session.close()


@scenario
async def a_message_that_comes_goes_to_the_holder_that_waits(opened: Opened) -> None:
    async with opened() as entity:
        await entity.send("a1")
        session = await accepted(entity)
        await session.settle(await received(session), Complete())
        waiting = asyncio.create_task(received(session))
        await entity.send("a2")
        assert "a2" == (await waiting).message_id
        await session.close()


@scenario
async def a_call_without_a_session_in_its_time_returns_none(opened: Opened) -> None:
    async with opened() as entity:
        assert await entity.subscription.accept(BRIEFLY) is None


@scenario
async def a_cancelled_call_keeps_no_lock(opened: Opened) -> None:
    async with opened() as entity:
        waiting = asyncio.create_task(accepted(entity))
        await entity.waited_for()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await entity.send("a1", "b1", "c1", "d1", "e1", "f1")
        calls = [asyncio.create_task(accepted(entity)) for _ in range(6)]
        for call in calls:
            await asyncio.sleep(0.12)  # at any moment of the second that opening takes
            call.cancel()
        for call in await asyncio.gather(*calls, return_exceptions=True):
            if not isinstance(call, BaseException):
                await call.close()
        held = await asyncio.gather(*(accepted(entity) for _ in range(6)))
        assert set("abcdef") == {session.id for session in held}
        for session in held:
            await session.close()


# Settling


@scenario
async def a_completed_message_is_gone(opened: Opened) -> None:
    async with opened() as entity:
        await entity.send("a1", "a2")
        session = await accepted(entity)
        await session.settle(await received(session), Complete())
        await session.close()
        assert [("a2", 0)] == await rest(entity)
        assert 0 == entity.stored()


@scenario
async def a_retry_is_counted_and_comes_again_before_later_messages(opened: Opened) -> None:
    async with opened() as entity:
        await entity.send("a1", "a2")
        session = await accepted(entity)
        await session.settle(await received(session), Retry())
        await session.close()
        assert [("a1", 1), ("a2", 0)] == await rest(entity)


@scenario
async def a_retry_that_does_not_count_is_a_close(opened: Opened) -> None:
    async with opened(max_deliveries=2) as entity:
        await entity.send("a1", "a2")
        for _ in range(3):
            session = await accepted(entity)
            assert 0 == (await received(session)).delivery_count
            await session.close()
        assert [("a1", 0), ("a2", 0)] == await rest(entity)


@scenario
async def a_dead_letter_says_why_and_later_messages_go_on(opened: Opened) -> None:
    async with opened() as entity:
        await entity.send("a1", "a2")
        session = await accepted(entity)
        letter = DeadLetter(reason="unreadable", description="no JSON ☃")
        await session.settle(await received(session), letter)
        assert "a2" == (await received(session)).message_id
        await session.close()
        assert [("a1", "unreadable", "no JSON ☃")] == entity.dead_letters()
        assert 1 == entity.stored()


@scenario
async def a_deferred_message_stays_and_is_delivered_no_more(opened: Opened) -> None:
    async with opened() as entity:
        await entity.send("a1", "a2")
        session = await accepted(entity)
        await session.settle(await received(session), Defer())
        await session.close()
        assert [("a2", 0)] == await rest(entity)
        assert 1 == entity.stored()


@scenario
async def after_its_last_delivery_a_message_is_a_dead_letter(opened: Opened) -> None:
    async with opened(max_deliveries=2) as entity:
        await entity.send("a1", "a2")
        for count in range(2):
            session = await accepted(entity)
            message = await received(session)
            assert ("a1", count) == (message.message_id, message.delivery_count)
            await session.settle(message, Retry())
            await session.close()
        assert [("a2", 0)] == await rest(entity)
        ((name, reason, _),) = entity.dead_letters()
        assert ("a1", "MaxDeliveryCountExceeded") == (name, reason)


# Locks


@scenario
async def a_renewed_lock_lasts(opened: Opened) -> None:
    async with opened() as entity:
        await entity.send("a1", "a2")
        session = await accepted(entity)
        message = await received(session)
        for _ in range(3):
            await entity.passes(LOCK_SECONDS * 0.7)
            before = session.trusted_until
            await session.renew()
            assert before < session.trusted_until
        await session.settle(message, Complete())
        assert "a2" == (await received(session)).message_id
        await session.close()


@scenario
async def a_lock_is_trusted_no_longer_than_it_lasts(opened: Opened) -> None:
    async with opened() as entity:
        await entity.send("a1")
        session = await accepted(entity)
        loop = asyncio.get_running_loop()
        assert loop.time() < session.trusted_until <= loop.time() + LOCK_SECONDS
        await session.renew()
        assert loop.time() < session.trusted_until <= loop.time() + LOCK_SECONDS
        await session.close()


@scenario
async def a_lost_lock_shows_in_every_call_and_its_message_is_counted_for_the_next_holder(
    opened: Opened,
) -> None:
    async with opened() as entity:
        await entity.send("a1", "a2", "b1", "b2", "c1", "c2")
        held = await asyncio.gather(*(accepted(entity) for _ in range(3)))
        reading, renewing, settling = held
        messages = [await received(session) for session in held]
        await reading.settle(messages[0], Complete())
        await entity.passes(LOCK_SECONDS + 1)
        with pytest.raises(LockLost):
            await reading.receive(BRIEFLY)
        with pytest.raises(LockLost):
            await renewing.renew()
        with pytest.raises(LockLost):
            await settling.settle(messages[2], Complete())
        for session in held:
            await session.close()
        expected = {
            name: 1 if first in (renewing.id, settling.id) and number == "1" else 0
            for name in ("a1", "a2", "b1", "b2", "c1", "c2")
            for first, number in [name]
            if name != f"{reading.id}1"
        }
        assert expected == dict(await rest(entity, 3))


@scenario
async def who_lost_the_lock_takes_nothing_from_the_next_holder(opened: Opened) -> None:
    async with opened() as entity:
        await entity.send("a1", "a2")
        late = await accepted(entity)
        message = await received(late)
        await entity.passes(LOCK_SECONDS + 1)
        holder = await accepted(entity)
        again = await received(holder)
        assert ("a1", 1) == (again.message_id, again.delivery_count)
        with pytest.raises(LockLost):
            await late.settle(message, Complete())
        await late.close()
        await holder.settle(again, Complete())
        assert "a2" == (await received(holder)).message_id
        await holder.close()


@scenario
async def a_closed_session_is_free_at_once_and_its_message_not_counted(opened: Opened) -> None:
    async with opened() as entity:
        await entity.send("a1", "a2")
        session = await accepted(entity)
        await received(session)
        await session.close()
        assert [("a1", 0), ("a2", 0)] == await rest(entity)


@scenario
async def closing_twice_does_no_harm(opened: Opened) -> None:
    async with opened() as entity:
        await entity.send("a1")
        session = await accepted(entity)
        await session.close()
        await session.close()
        assert [("a1", 0)] == await rest(entity)


# Faults


@scenario
async def while_the_broker_is_away_nothing_is_received_and_afterwards_it_is(opened: Opened) -> None:
    async with opened() as entity:
        await entity.send("a1")
        session = await accepted(entity)
        entity.go_away()
        with pytest.raises(SubscriptionUnavailable):
            await entity.subscription.accept(BRIEFLY)
        with pytest.raises(SubscriptionError):
            await session.receive(BRIEFLY)
        await session.close()
        entity.come_back()
        assert [("a1", 0)] == await rest(entity)


@scenario
async def a_call_that_waits_hears_that_the_broker_goes_away(opened: Opened) -> None:
    async with opened() as entity:
        waiting = asyncio.create_task(entity.subscription.accept(20))
        await entity.waited_for()
        entity.go_away()
        with pytest.raises(SubscriptionUnavailable):
            await waiting


# Without sessions


@scenario
async def without_sessions_messages_are_received_side_by_side(opened: Opened) -> None:
    async with opened(sessions=False) as entity:
        await entity.send("a1", "a2", "b1")
        receivers = await asyncio.gather(*(accepted(entity) for _ in range(3)))
        messages = [await received(receiver) for receiver in receivers]
        assert {"a1", "a2", "b1"} == {message.message_id for message in messages}
        assert {None} == {receiver.id for receiver in receivers}
        assert await entity.subscription.accept(BRIEFLY) is None
        for receiver, message in zip(receivers, messages, strict=True):
            await receiver.settle(message, Complete())
            assert inf == receiver.trusted_until
            await receiver.close()
        assert 0 == entity.stored()


@scenario
async def without_sessions_a_receiver_goes_from_message_to_message(opened: Opened) -> None:
    async with opened(sessions=False) as entity:
        await entity.send("a1", "b1", "a2")
        receiver = await accepted(entity)
        for name in ("a1", "b1", "a2"):
            message = await received(receiver)
            assert name == message.message_id
            assert asyncio.get_running_loop().time() < receiver.trusted_until < inf
            await receiver.settle(message, Complete())
        assert await receiver.receive(BRIEFLY) is None
        await receiver.close()


@scenario
async def without_sessions_the_lock_of_a_message_is_renewed_or_lost(opened: Opened) -> None:
    async with opened(sessions=False) as entity:
        await entity.send("a1")
        receiver = await accepted(entity)
        message = await received(receiver)
        for _ in range(2):
            await entity.passes(LOCK_SECONDS * 0.7)
            await receiver.renew()
        await entity.passes(LOCK_SECONDS + 1)
        with pytest.raises(LockLost):
            await receiver.settle(message, Complete())
        await receiver.close()
        assert [("a1", 1)] == await rest(entity)


@scenario
async def without_sessions_a_message_is_given_back_at_once_and_counted(opened: Opened) -> None:
    async with opened(sessions=False) as entity:
        await entity.send("a1")
        for receiving in (True, False):
            receiver = await accepted(entity)
            if receiving:
                await received(receiver)
            await receiver.close()
        assert [("a1", 2)] == await rest(entity)


@scenario
async def without_sessions_a_message_is_retried_deferred_or_a_dead_letter(opened: Opened) -> None:
    async with opened(sessions=False) as entity:
        await entity.send("a1", "b1", "c1")
        for settlement in (Defer(), DeadLetter(reason="r", description="d"), Retry()):
            receiver = await accepted(entity)
            await receiver.settle(await received(receiver), settlement)
            await receiver.close()
        assert [("c1", 1)] == await rest(entity)
        assert [("b1", "r", "d")] == entity.dead_letters()
        assert 1 == entity.stored()


@scenario
async def without_sessions_a_cancelled_call_keeps_no_message(opened: Opened) -> None:
    async with opened(sessions=False) as entity:
        await entity.send("a1")
        for tenths in range(4, 8):
            call = asyncio.create_task(accepted(entity))
            await asyncio.sleep(tenths / 10)
            call.cancel()
            (ended,) = await asyncio.gather(call, return_exceptions=True)
            if not isinstance(ended, BaseException):
                await ended.close()
        ((name, _),) = await rest(entity)
        assert "a1" == name


# Ahead


@scenario
async def what_was_delivered_ahead_keeps_its_order_and_is_given_back(opened: Opened) -> None:
    async with opened(prefetch=5) as entity:
        names = [f"a{number}" for number in range(8)]
        await entity.send(*names)
        session = await accepted(entity)
        for name in names[:2]:
            message = await received(session)
            assert name == message.message_id
            await session.settle(message, Complete())
        await session.settle(await received(session), Retry())
        await session.close()
        assert [("a2", 1), *((name, 0) for name in names[3:])] == await rest(entity)


# Messages


@scenario
async def a_message_arrives_as_it_was_sent(opened: Opened) -> None:
    async with opened() as entity:
        await entity.send("a1", "a2")
        session = await accepted(entity)
        first = await received(session)
        await session.settle(first, Complete())
        second = await received(session)
        await session.close()
        sent = a_message("a1")
        assert (sent.subject, sent.body, sent.content_type) == (first.subject, first.body, first.content_type)
        assert sent.properties == first.properties
        assert 0 < first.sequence_number < second.sequence_number


# What only a wire has


@wire_scenario
async def messages_of_other_programs_are_read_as_they_are(opened: Opened) -> None:
    async with opened(sessions=False) as entity:
        before = datetime.now(UTC) - timedelta(minutes=1)
        properties = AmqpMessageProperties(message_id="value")
        await entity.send_as_they_are(
            ServiceBusMessage(b"\xff\x00 no text", message_id="bytes"),
            AmqpAnnotatedMessage(value_body={"k": 1}, properties=properties),
            AmqpAnnotatedMessage(
                data_body=[b"in ", b"parts"], application_properties={"text": "é", "flag": True}
            ),
            ServiceBusMessage(None, message_id="empty"),
        )
        receiver, messages = await accepted(entity), []
        for _ in range(4):
            messages.append(await received(receiver))
            await receiver.settle(messages[-1], Complete())
        await receiver.close()
        binary, value, parts, empty = messages
        assert (b"\xff\x00 no text", None, "", None) == (
            binary.body,
            binary.session_id,
            binary.subject,
            binary.content_type,
        )
        assert b"k" in value.body
        assert (b"in parts", {"text": "é", "flag": True}) == (parts.body, parts.properties)
        assert (b"", {}) == (empty.body, empty.properties)
        assert all(before < message.enqueued_at for message in messages)


@wire_scenario
async def a_message_without_a_session_is_a_dead_letter_of_a_subscription_with_sessions(
    opened: Opened,
) -> None:
    async with opened() as entity:
        await entity.send_as_they_are(ServiceBusMessage(b"x", message_id="homeless"))
        await entity.send("a1")
        assert [("a1", 0)] == await rest(entity)
        ((name, reason, _),) = entity.dead_letters()
        assert ("homeless", "Session ID is null.") == (name, reason)


@wire_scenario
async def the_reason_of_a_dead_letter_is_cut_to_what_service_bus_takes(opened: Opened) -> None:
    async with opened() as entity:
        await entity.send("a1")
        session = await accepted(entity)
        await session.settle(await received(session), DeadLetter(reason="r" * 9_000, description="d" * 9_000))
        await session.close()
        assert [("a1", "r" * 4000, "d" * 4000)] == entity.dead_letters()


@wire_scenario
async def a_detached_link_ends_the_session_and_the_next_one_goes_on(opened: Opened) -> None:
    async with opened() as entity:
        await entity.send("a1", "b1")
        held = await asyncio.gather(accepted(entity), accepted(entity))
        messages = [await received(session) for session in held]
        entity.server.broker.detach_links("t")
        with pytest.raises(SubscriptionError):
            await held[0].receive(BRIEFLY)
        with pytest.raises(SubscriptionError):
            await held[1].settle(messages[1], Complete())
        for session in held:
            await session.close()
        assert {"a1": 0, "b1": 0} == dict(await rest(entity, 2))


@wire_scenario
async def a_lost_connection_ends_the_session_and_the_next_one_goes_on(opened: Opened) -> None:
    async with opened() as entity:
        await entity.send("a1", "b1")
        held = await asyncio.gather(accepted(entity), accepted(entity))
        messages = [await received(session) for session in held]
        entity.server.drop_connections()
        with pytest.raises(SubscriptionError):
            await held[0].renew()
        with pytest.raises(SubscriptionError):
            await held[1].settle(messages[1], Complete())
        for session in held:
            await session.close()
        assert {"a1": 0, "b1": 0} == dict(await rest(entity, 2))


@wire_scenario
async def a_missing_entity_is_named_with_what_to_do(opened: Opened) -> None:
    async with opened() as entity:
        for topic, name in (("t", "other"), ("other", None)):
            async with ServiceBusSubscription(entity.client, topic, name) as missing:
                with pytest.raises(SubscriptionUnavailable, match=r"other.*create it if it is missing"):
                    await missing.accept(BRIEFLY)


@wire_scenario
async def a_disabled_entity_is_received_from_once_it_is_enabled(opened: Opened) -> None:
    async with opened() as entity:
        await entity.send("a1")
        entity.server.broker.set_disabled("t", True)
        with pytest.raises(SubscriptionUnavailable, match="enable it"):
            await entity.subscription.accept(BRIEFLY)
        entity.server.broker.set_disabled("t", False)
        assert [("a1", 0)] == await rest(entity)


@wire_scenario
async def sessions_that_the_entity_does_not_have_are_refused_with_what_to_do(opened: Opened) -> None:
    for sessions in (True, False):
        async with opened(sessions=sessions, requires_session=not sessions) as entity:
            with pytest.raises(SubscriptionUnavailable, match="see that sessions are on or off"):
                await entity.subscription.accept(BRIEFLY)


@wire_scenario
async def a_settlement_that_is_refused_is_a_lost_lock(opened: Opened) -> None:
    async with opened() as entity:
        await entity.send("a1")
        session = await accepted(entity)
        entity.server.broker.faults.add(
            {"action": "reject", "on": "settle", "condition": "com.microsoft:session-lock-lost"}
        )
        with pytest.raises(LockLost):
            await session.settle(await received(session), Complete())
        await session.close()
        assert 1 == entity.stored()


@pytest.mark.parametrize("name", scenario)
async def test_in_memory(name: str) -> None:
    await scenario[name](in_memory)


ON_EMULATOR = {**scenario, **wire_scenario}


@pytest.fixture(scope="module")
def outcomes() -> dict[str, BaseException | None]:
    async def run() -> list[BaseException | None]:
        return await asyncio.gather(
            *(one(on_emulator) for one in ON_EMULATOR.values()), return_exceptions=True
        )

    with leaky_sockets(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(adapter, "_OPEN_SECONDS", HUNG_SECONDS)
        return dict(zip(ON_EMULATOR, asyncio.run(run()), strict=True))


@pytest.mark.looptime(False)
@pytest.mark.parametrize("name", ON_EMULATOR)
def test_on_the_emulator(outcomes: dict[str, BaseException | None], name: str) -> None:
    if (outcome := outcomes[name]) is not None:
        raise outcome


@pytest.mark.looptime(False)
async def test_a_broker_that_says_nothing_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
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
async def test_the_certificates_are_read_once_for_all_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []
    with leaky_sockets():
        async with on_emulator() as entity:
            monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", lambda *a, **b: reads.append(a))
            await entity.send("a1")
            await (await accepted(entity)).close()
    assert [] == reads


@pytest.mark.parametrize(
    "options", [{"lock_duration": timedelta(seconds=4)}, {"sessions": False, "prefetch": 1}], ids=str
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any]) -> None:
    client = ServiceBusClient.from_connection_string(
        "Endpoint=sb://127.0.0.1;SharedAccessKeyName=k;SharedAccessKey=v"
    )
    with pytest.raises(ConfigurationError):
        ServiceBusSubscription(client, "t", "s", **options)
