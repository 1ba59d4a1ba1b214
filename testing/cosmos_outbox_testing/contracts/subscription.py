"""The promises of every Subscription."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from math import inf
from typing import Any, Protocol

import pytest

from cosmos_outbox.errors import LockLost, SubscriptionError, SubscriptionUnavailable
from cosmos_outbox.message_format import Message, OutboundMessage
from cosmos_outbox.ports import Complete, DeadLetter, Defer, Retry, Session, Settlement, Subscription

LOCK_SECONDS = 60.0
BRIEFLY = 1.0  # seconds to wait for a message that must not come
HUNG_SECONDS = 300.0  # seconds; a wait ends sooner, at the fact for which it waits


Letters = list[tuple[str, str, str]]


async def dead_letters_of(entity: SubscriptionBackend) -> Letters:
    """Return the dead letters; it may take a request to the broker."""
    found = entity.dead_letters()
    return found if isinstance(found, list) else await found


class SubscriptionBackend(Protocol):
    """A subscription under test."""

    subscription: Subscription

    async def send(self, *names: str) -> None:
        """Send messages: "a1" is message a1 of session a."""
        ...

    async def passes(self, seconds: float) -> None:
        """Have time pass at the broker."""
        ...

    async def waited_for(self) -> None:
        """Return once a call waits for a session."""
        ...

    def go_away(self) -> None:
        """Have the broker answer no request."""
        ...

    def come_back(self) -> None:
        """Have the broker answer again."""
        ...

    def dead_letters(self) -> Letters | Awaitable[Letters]:
        """Return the id, reason and description of each dead letter; this may be a coroutine."""
        ...

    def stored(self) -> int:
        """Return how many messages the broker still has, without dead letters."""
        ...


class Opened(Protocol):
    """Opens an empty subscription, with locks of `LOCK_SECONDS`."""

    def __call__(
        self, *, sessions: bool = True, max_deliveries: int = 10, prefetch: int | None = None
    ) -> AbstractAsyncContextManager[SubscriptionBackend]:
        """
        Open a subscription. `prefetch` is how many messages the client may fetch ahead, if it can. By default the client decides.
        """
        ...


def a_message(name: str) -> OutboundMessage:
    return OutboundMessage(
        message_id=name,
        session_id=name[0],
        subject="Renamed",
        body=f'{{"name":"{name}"}}'.encode(),
        properties={"entity-id": "grün ☃", "entity-version": 7},
    )


async def accept_session(entity: SubscriptionBackend) -> Session:
    session = await entity.subscription.accept(HUNG_SECONDS)
    assert session is not None
    return session


async def receive_message(session: Session) -> Message:
    message = await session.receive(HUNG_SECONDS)
    assert message is not None
    return message


async def settle_next(session: Session, settlement: Settlement | None = None) -> Message:
    """Receive a message and settle it; it is completed, unless the test says otherwise."""
    message = await receive_message(session)
    await session.settle(message, settlement or Complete())
    return message


@asynccontextmanager
async def holding(
    opened: Opened, *names: str, **options: Any
) -> AsyncIterator[tuple[SubscriptionBackend, Session]]:
    """Open a subscription, send messages, and hold the first session, or the first message."""
    async with opened(**options) as entity:
        await entity.send(*names)
        session = await accept_session(entity)
        yield entity, session
        await session.close()


async def rest(entity: SubscriptionBackend, sessions: int = 1) -> list[tuple[str, int]]:
    """Complete the messages that the next holders find. Return the id and the delivery count of each."""
    found = []
    for _ in range(sessions):
        session = await accept_session(entity)
        while message := await session.receive(BRIEFLY):
            found.append((message.message_id, message.delivery_count))
            await session.settle(message, Complete())
        await session.close()
    return found


_NOT_OPENED = "Override the fixture `opened`: it returns what opens the subscription under test."


class SubscriptionContract:
    """The promises of a Subscription with sessions: override `opened`."""

    @pytest.fixture
    def opened(self) -> Opened:
        raise NotImplementedError(_NOT_OPENED)

    async def test_a_session_is_received_in_order_one_message_after_another(self, opened: Opened) -> None:
        """The next message of a session comes after the one before was settled (I2)."""
        async with holding(opened, "a1", "b1", "a2", "b2", "a3") as (entity, session):
            assert "a" == session.id
            for name in ("a1", "a2", "a3"):
                message = await settle_next(session)
                assert (name, "a", 0) == (message.message_id, message.session_id, message.delivery_count)
            assert await session.receive(BRIEFLY) is None
            assert 2 == entity.stored()

    async def test_a_session_has_one_holder_at_a_time(self, opened: Opened) -> None:
        """No two receivers handle messages of one session (I2)."""
        async with holding(opened, "a1", "b1") as (entity, first):
            second = await accept_session(entity)
            assert {"a", "b"} == {first.id, second.id}
            assert await entity.subscription.accept(BRIEFLY) is None
            third = asyncio.create_task(accept_session(entity))
            await first.close()
            assert first.id == (await third).id
            for session in (second, await third):
                await session.close()

    async def test_a_session_that_comes_goes_to_a_call_that_waits(self, opened: Opened) -> None:
        """`accept` waits until a session has messages."""
        async with opened() as entity:
            waiting = asyncio.create_task(accept_session(entity))
            await entity.waited_for()
            await entity.send("a1")
            session = await waiting
            assert "a1" == (await receive_message(session)).message_id
            await session.close()

    async def test_a_message_that_comes_goes_to_the_holder_that_waits(self, opened: Opened) -> None:
        """`receive` waits until a message comes."""
        async with holding(opened, "a1") as (entity, session):
            await settle_next(session)
            waiting = asyncio.create_task(receive_message(session))
            await entity.send("a2")
            assert "a2" == (await waiting).message_id

    async def test_a_call_without_a_session_in_its_time_returns_none(self, opened: Opened) -> None:
        """It is no error if there is no session."""
        async with opened() as entity:
            assert await entity.subscription.accept(BRIEFLY) is None

    async def test_a_cancelled_call_keeps_no_lock(self, opened: Opened) -> None:
        """A process that stops leaves no session locked."""
        async with opened() as entity:
            waiting = asyncio.create_task(accept_session(entity))
            await entity.waited_for()
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await entity.send("a1", "b1", "c1", "d1", "e1", "f1")
            calls = [asyncio.create_task(accept_session(entity)) for _ in range(6)]
            for call in calls:
                await asyncio.sleep(0.12)  # cancel at various moments of the second that opening takes
                call.cancel()
            for ended in await asyncio.gather(*calls, return_exceptions=True):
                if not isinstance(ended, BaseException):
                    await ended.close()
            held = await asyncio.gather(*(accept_session(entity) for _ in range(6)))
            assert set("abcdef") == {session.id for session in held}
            for session in held:
                await session.close()

    async def test_what_was_settled_is_gone_comes_again_first_or_is_set_aside(self, opened: Opened) -> None:
        """
        Only `Complete` ends a message (I3). `Retry` keeps the order (I2) and counts the delivery. `Defer` keeps a message for a
        receiver that asks for its number. A dead letter has its reason and its description.
        """
        letter = DeadLetter(reason="unreadable", description="no JSON ☃")
        for settlement, left, stored in (
            (Complete(), [("a2", 0)], 1),
            (Retry(), [("a1", 1), ("a2", 0)], 2),
            (Defer(), [("a2", 0)], 2),
            (letter, [("a2", 0)], 1),
        ):
            async with holding(opened, "a1", "a2") as (entity, session):
                await settle_next(session, settlement)
                assert stored == entity.stored()
                await session.close()
                assert left == await rest(entity)
                assert (1 if isinstance(settlement, Defer) else 0) == entity.stored()
                dead = [("a1", letter.reason, letter.description)] if settlement is letter else []
                assert dead == await dead_letters_of(entity)

    async def test_later_messages_follow_a_dead_letter_in_the_same_hold(self, opened: Opened) -> None:
        """A dead letter stops no session."""
        async with holding(opened, "a1", "a2") as (_, session):
            await settle_next(session, DeadLetter(reason="r", description="d"))
            assert "a2" == (await receive_message(session)).message_id

    async def test_a_closed_session_is_free_at_once_and_its_message_not_counted(self, opened: Opened) -> None:
        """
        A process that stops hands its sessions over, and an outage uses up no deliveries; `close` may be called again.
        """
        async with opened(max_deliveries=2) as entity:
            await entity.send("a1", "a2")
            for receives in (True, True, True, False):
                session = await accept_session(entity)
                if receives:
                    assert 0 == (await receive_message(session)).delivery_count
                for _ in range(2):
                    await session.close()
            assert [("a1", 0), ("a2", 0)] == await rest(entity)

    async def test_sessions_that_are_given_back_come_in_turn(self, opened: Opened) -> None:
        """Keys that wait keep no other from being received (I4)."""
        async with opened() as entity:
            await entity.send("a1", "b1", "c1")
            taken = []
            for _ in range(6):
                session = await accept_session(entity)
                taken.append(session.id)
                await session.close()
            assert {"a", "b", "c"} == set(taken[:3]) == set(taken[3:])

    async def test_after_its_last_delivery_a_message_is_a_dead_letter(self, opened: Opened) -> None:
        """Deliveries are limited by the broker."""
        async with opened(max_deliveries=2) as entity:
            await entity.send("a1", "a2")
            for count in range(2):
                session = await accept_session(entity)
                message = await settle_next(session, Retry())
                assert ("a1", count) == (message.message_id, message.delivery_count)
                await session.close()
            assert [("a2", 0)] == await rest(entity)
            ((name, reason, _),) = await dead_letters_of(entity)
            assert ("a1", "MaxDeliveryCountExceeded") == (name, reason)

    async def test_a_renewed_lock_lasts(self, opened: Opened) -> None:
        """`renew` extends the lock and `trusted_until`."""
        async with holding(opened, "a1", "a2") as (entity, session):
            message = await receive_message(session)
            for _ in range(3):
                await entity.passes(LOCK_SECONDS * 0.7)
                before = session.trusted_until
                await session.renew()
                assert before < session.trusted_until
            await session.settle(message, Complete())
            assert "a2" == (await receive_message(session)).message_id

    async def test_a_lock_is_trusted_no_longer_than_it_lasts(self, opened: Opened) -> None:
        """`trusted_until` is never later than the end of the lock (I5)."""
        async with holding(opened, "a1") as (_, session):
            loop = asyncio.get_running_loop()
            assert loop.time() < session.trusted_until <= loop.time() + LOCK_SECONDS
            await session.renew()
            assert loop.time() < session.trusted_until <= loop.time() + LOCK_SECONDS

    async def test_a_lost_lock_shows_in_every_call_and_its_message_is_counted_for_the_next_holder(
        self,
        opened: Opened,
    ) -> None:
        """A receiver that lost the lock settles nothing (I5)."""
        async with opened(prefetch=0) as entity:
            await entity.send("a1", "a2", "b1", "b2", "c1", "c2")
            held = await asyncio.gather(*(accept_session(entity) for _ in range(3)))
            reading, renewing, settling = held
            messages = [await receive_message(session) for session in held]
            await reading.settle(messages[0], Complete())
            await entity.passes(LOCK_SECONDS + 1)
            for call in (
                reading.receive(BRIEFLY),
                renewing.renew(),
                settling.settle(messages[2], Complete()),
            ):
                with pytest.raises(LockLost):
                    await call
            for session in held:
                await session.close()
            left = dict.fromkeys(("a1", "a2", "b1", "b2", "c1", "c2"), 0)
            left |= {f"{renewing.id}1": 1, f"{settling.id}1": 1}
            del left[f"{reading.id}1"]
            assert left == dict(await rest(entity, 3))

    async def test_who_lost_the_lock_takes_nothing_from_the_next_holder(self, opened: Opened) -> None:
        """A late settlement or close changes nothing for the next holder (I5)."""
        async with holding(opened, "a1", "a2") as (entity, late):
            message = await receive_message(late)
            await entity.passes(LOCK_SECONDS + 1)
            holder = await accept_session(entity)
            again = await receive_message(holder)
            assert ("a1", 1) == (again.message_id, again.delivery_count)
            with pytest.raises(LockLost):
                await late.settle(message, Complete())
            await late.close()
            await holder.settle(again, Complete())
            assert "a2" == (await receive_message(holder)).message_id
            await holder.close()

    async def test_while_the_broker_is_away_nothing_is_received_and_afterwards_it_is(
        self, opened: Opened
    ) -> None:
        """An outage is an error of ours, and loses nothing (I3)."""
        async with holding(opened, "a1") as (entity, session):
            entity.go_away()
            with pytest.raises(SubscriptionUnavailable):
                await entity.subscription.accept(BRIEFLY)
            with pytest.raises(SubscriptionError):
                await session.receive(BRIEFLY)
            await session.close()
            entity.come_back()
            assert [("a1", 0)] == await rest(entity)

    async def test_a_call_that_waits_hears_that_the_broker_goes_away(self, opened: Opened) -> None:
        """A call does not wait for a connection that is gone."""
        async with opened() as entity:
            waiting = asyncio.create_task(entity.subscription.accept(20))
            try:
                await entity.waited_for()
                entity.go_away()
                with pytest.raises(SubscriptionUnavailable):
                    await waiting
            # a broker that cannot go away skips the rest; else this call would take a session of the next test
            finally:
                waiting.cancel()

    async def test_what_was_delivered_ahead_keeps_its_order_and_is_given_back(self, opened: Opened) -> None:
        """A client may fetch ahead, without an effect on order or delivery counts."""
        names = [f"a{number}" for number in range(8)]
        async with holding(opened, *names, prefetch=5) as (entity, session):
            assert names[:2] == [(await settle_next(session)).message_id for _ in range(2)]
            await settle_next(session, Retry())
            await session.close()
            assert [("a2", 1), *((name, 0) for name in names[3:])] == await rest(entity)

    async def test_what_was_delivered_ahead_of_a_lost_lock_is_not_settled(self, opened: Opened) -> None:
        """A client may return a message that it fetched before the lock was lost; the settlement then fails (I5)."""
        async with holding(opened, "a1", "a2", prefetch=5) as (entity, session):
            await settle_next(session)
            await entity.passes(LOCK_SECONDS + 1)
            with pytest.raises(LockLost):
                await settle_next(session)
            await session.close()
            ((name, count),) = await rest(entity)
            assert "a2" == name
            assert count <= 1

    async def test_a_message_arrives_as_it_was_sent(self, opened: Opened) -> None:
        """Subject, body, content type and properties with their types arrive."""
        async with holding(opened, "a1", "a2") as (_, session):
            first, second, sent = await settle_next(session), await settle_next(session), a_message("a1")
            for name in ("subject", "body", "content_type", "properties"):
                assert getattr(sent, name) == getattr(first, name)
            assert 0 < first.sequence_number < second.sequence_number


class SessionlessSubscriptionContract:
    """The promises of a Subscription without sessions, or of a queue: override `opened`."""

    @pytest.fixture
    def opened(self) -> Opened:
        raise NotImplementedError(_NOT_OPENED)

    async def test_without_sessions_messages_are_received_side_by_side(self, opened: Opened) -> None:
        """Each receiver locks one message."""
        async with opened(sessions=False) as entity:
            await entity.send("a1", "a2", "b1")
            receivers = await asyncio.gather(*(accept_session(entity) for _ in range(3)))
            messages = [await receive_message(receiver) for receiver in receivers]
            assert {"a1", "a2", "b1"} == {message.message_id for message in messages}
            assert {None} == {receiver.id for receiver in receivers}
            assert await entity.subscription.accept(BRIEFLY) is None
            for receiver, message in zip(receivers, messages, strict=True):
                await receiver.settle(message, Complete())
                assert inf == receiver.trusted_until
                await receiver.close()
            assert 0 == entity.stored()

    async def test_without_sessions_a_receiver_goes_from_message_to_message(self, opened: Opened) -> None:
        """A receiver locks the next message when it asks for it."""
        async with holding(opened, "a1", "b1", "a2", sessions=False) as (_, receiver):
            for name in ("a1", "b1", "a2"):
                message = await receive_message(receiver)
                assert name == message.message_id
                assert asyncio.get_running_loop().time() < receiver.trusted_until < inf
                await receiver.settle(message, Complete())
            assert await receiver.receive(BRIEFLY) is None

    async def test_without_sessions_the_lock_of_a_message_is_renewed_or_lost(self, opened: Opened) -> None:
        """The lock belongs to the message."""
        async with holding(opened, "a1", sessions=False) as (entity, receiver):
            message = await receive_message(receiver)
            for _ in range(2):
                await entity.passes(LOCK_SECONDS * 0.7)
                await receiver.renew()
            await entity.passes(LOCK_SECONDS + 1)
            with pytest.raises(LockLost):
                await receiver.settle(message, Complete())
            await receiver.close()
            assert [("a1", 1)] == await rest(entity)

    async def test_without_sessions_a_message_is_given_back_at_once_and_counted(self, opened: Opened) -> None:
        """A message that is given back counts as delivered."""
        async with opened(sessions=False) as entity:
            await entity.send("a1")
            for receiving in (True, False):
                receiver = await accept_session(entity)
                if receiving:
                    await receive_message(receiver)
                await receiver.close()
            assert [("a1", 2)] == await rest(entity)

    async def test_without_sessions_a_message_is_retried_deferred_or_a_dead_letter(
        self, opened: Opened
    ) -> None:
        """Messages are settled as with sessions."""
        async with opened(sessions=False) as entity:
            await entity.send("a1", "b1", "c1")
            for settlement in (Defer(), DeadLetter(reason="r", description="d"), Retry()):
                receiver = await accept_session(entity)
                await settle_next(receiver, settlement)
                await receiver.close()
            assert [("c1", 1)] == await rest(entity)
            assert [("b1", "r", "d")] == await dead_letters_of(entity)
            assert 1 == entity.stored()

    async def test_without_sessions_a_cancelled_call_keeps_no_message(self, opened: Opened) -> None:
        """A process that stops leaves no message locked."""
        async with opened(sessions=False) as entity:
            await entity.send("a1")
            for tenths in range(4, 8):
                call = asyncio.create_task(accept_session(entity))
                await asyncio.sleep(tenths / 10)
                call.cancel()
                (ended,) = await asyncio.gather(call, return_exceptions=True)
                if not isinstance(ended, BaseException):
                    await ended.close()
            ((name, _),) = await rest(entity)
            assert "a1" == name
