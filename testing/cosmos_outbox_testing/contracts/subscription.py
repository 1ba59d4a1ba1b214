"""Tests that every implementation of the port Subscription has to pass. Through this port, a consumer receives and settles messages."""

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
BRIEFLY = 1.0  # how many seconds a test waits for a message that must not come
HUNG_SECONDS = 300.0  # a test that waits longer than this hangs


Letters = list[tuple[str, str, str]]


async def dead_letters_of(entity: SubscriptionBackend) -> Letters:
    """Return the id, reason and description of each dead letter. The backend's method `dead_letters` may be a coroutine or not."""
    found = entity.dead_letters()
    return found if isinstance(found, list) else await found


class SubscriptionBackend(Protocol):
    """The subscription under test, and methods with which a test sends messages, ends locks and makes the broker unavailable."""

    subscription: Subscription

    async def send(self, *names: str) -> None:
        """Send a message for each name. The first letter of the name is the session: "a1" is a message of session "a"."""
        ...

    async def passes(self, seconds: float) -> None:
        """Let this many seconds pass at the broker, for instance to end locks."""
        ...

    async def waited_for(self) -> None:
        """Wait until a call of `accept` waits for a session at the broker."""
        ...

    def go_away(self) -> None:
        """Make the broker unavailable: it answers no request until `come_back`."""
        ...

    def come_back(self) -> None:
        """Make the broker available again."""
        ...

    def dead_letters(self) -> Letters | Awaitable[Letters]:
        """Return the id, reason and description of each dead letter. This method may be a coroutine."""
        ...

    def stored(self) -> int:
        """Return how many messages the subscription still has. Deferred messages are counted, but not dead letters."""
        ...


class Opened(Protocol):
    """A function that opens an empty subscription, whose locks last `LOCK_SECONDS`."""

    def __call__(
        self, *, sessions: bool = True, max_deliveries: int = 10, prefetch: int | None = None
    ) -> AbstractAsyncContextManager[SubscriptionBackend]:
        """
        Open an empty subscription.

        `prefetch` is how many messages the client may fetch before `receive` asks for them. By default the client decides. A client that
        never fetches messages in advance may ignore it.
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
    """Receive the next message and settle it with `settlement`, by default with `Complete`. Return the message."""
    message = await receive_message(session)
    await session.settle(message, settlement or Complete())
    return message


@asynccontextmanager
async def holding(
    opened: Opened, *names: str, **options: Any
) -> AsyncIterator[tuple[SubscriptionBackend, Session]]:
    """Open a subscription, send messages, and accept a session. Yield the subscription and the session."""
    async with opened(**options) as entity:
        await entity.send(*names)
        session = await accept_session(entity)
        yield entity, session
        await session.close()


async def rest(entity: SubscriptionBackend, sessions: int = 1) -> list[tuple[str, int]]:
    """Accept this number of sessions, and complete the messages that are left in them. Return each message's id and delivery count."""
    found = []
    for _ in range(sessions):
        session = await accept_session(entity)
        while message := await session.receive(BRIEFLY):
            found.append((message.message_id, message.delivery_count))
            await session.settle(message, Complete())
        await session.close()
    return found


_NOT_OPENED = "Override the fixture `opened`: it returns a function that opens the subscription under test."


class SubscriptionContract:
    """Tests of a Subscription with sessions. Override the fixture `opened`."""

    @pytest.fixture
    def opened(self) -> Opened:
        raise NotImplementedError(_NOT_OPENED)

    async def test_the_messages_of_a_session_are_received_in_order(self, opened: Opened) -> None:
        """A receiver gets the next message of a session only after it settled the previous one, so effects happen in order."""
        async with holding(opened, "a1", "b1", "a2", "b2", "a3") as (entity, session):
            assert "a" == session.id
            for name in ("a1", "a2", "a3"):
                message = await settle_next(session)
                assert (name, "a", 0) == (message.message_id, message.session_id, message.delivery_count)
            assert await session.receive(BRIEFLY) is None
            assert 2 == entity.stored()

    async def test_a_session_has_one_holder_at_a_time(self, opened: Opened) -> None:
        """Two receivers never hold the same session at the same time. Otherwise they could handle its messages out of order."""
        async with holding(opened, "a1", "b1") as (entity, first):
            second = await accept_session(entity)
            assert {"a", "b"} == {first.id, second.id}
            assert await entity.subscription.accept(BRIEFLY) is None
            third = asyncio.create_task(accept_session(entity))
            await first.close()
            assert first.id == (await third).id
            for session in (second, await third):
                await session.close()

    async def test_accept_waits_for_a_session_with_messages(self, opened: Opened) -> None:
        """`accept` waits until a session has messages, and returns that session."""
        async with opened() as entity:
            waiting = asyncio.create_task(accept_session(entity))
            await entity.waited_for()
            await entity.send("a1")
            session = await waiting
            assert "a1" == (await receive_message(session)).message_id
            await session.close()

    async def test_receive_waits_for_the_next_message_of_the_session(self, opened: Opened) -> None:
        """`receive` waits until the session has a message, and returns it."""
        async with holding(opened, "a1") as (entity, session):
            await settle_next(session)
            waiting = asyncio.create_task(receive_message(session))
            await entity.send("a2")
            assert "a2" == (await waiting).message_id

    async def test_accept_returns_none_if_no_session_has_messages(self, opened: Opened) -> None:
        """If no session has messages, `accept` returns None after the time that it may wait, instead of raising an error."""
        async with opened() as entity:
            assert await entity.subscription.accept(BRIEFLY) is None

    async def test_a_cancelled_accept_leaves_no_session_locked(self, opened: Opened) -> None:
        """A process that stops cancels its calls of `accept`. If a session stayed locked, no other process could receive from it."""
        async with opened() as entity:
            waiting = asyncio.create_task(accept_session(entity))
            await entity.waited_for()
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await entity.send("a1", "b1", "c1", "d1", "e1", "f1")
            calls = [asyncio.create_task(accept_session(entity)) for _ in range(6)]
            for call in calls:
                # Opening a session takes about a second. Cancel each call at a different moment.
                await asyncio.sleep(0.12)
                call.cancel()
            for ended in await asyncio.gather(*calls, return_exceptions=True):
                if not isinstance(ended, BaseException):
                    await ended.close()
            held = await asyncio.gather(*(accept_session(entity) for _ in range(6)))
            assert set("abcdef") == {session.id for session in held}
            for session in held:
                await session.close()

    async def test_each_settlement_has_its_effect_at_the_broker(self, opened: Opened) -> None:
        """
        `Complete` removes a message. `Retry` delivers it again before later messages, and counts the delivery. `Defer` keeps it for a
        receiver that asks for its sequence number. `DeadLetter` moves it to the dead letters, with a reason and a description.
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

    async def test_a_session_goes_on_after_one_of_its_messages_is_dead_lettered(self, opened: Opened) -> None:
        """A message that was dead-lettered does not keep the later messages of its session waiting."""
        async with holding(opened, "a1", "a2") as (_, session):
            await settle_next(session, DeadLetter(reason="r", description="d"))
            assert "a2" == (await receive_message(session)).message_id

    async def test_a_closed_session_can_be_accepted_at_once(self, opened: Opened) -> None:
        """
        A process that stops closes its sessions, so that another process gets them at once. A message that was received but not settled
        does not count as delivered. `close` may be called twice.
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

    async def test_sessions_that_are_closed_are_accepted_in_turn(self, opened: Opened) -> None:
        """A session that was closed is accepted again only after the other sessions, so a failing key does not stop other keys."""
        async with opened() as entity:
            await entity.send("a1", "b1", "c1")
            taken = []
            for _ in range(6):
                session = await accept_session(entity)
                taken.append(session.id)
                await session.close()
            assert {"a", "b", "c"} == set(taken[:3]) == set(taken[3:])

    async def test_a_message_becomes_a_dead_letter_after_its_last_delivery(self, opened: Opened) -> None:
        """The broker dead-letters a message that was delivered `max_deliveries` times, so a message is not retried for ever."""
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

    async def test_a_renewed_lock_of_a_session_lasts_longer(self, opened: Opened) -> None:
        """`renew` extends the lock of the session, and moves `trusted_until` forward."""
        async with holding(opened, "a1", "a2") as (entity, session):
            message = await receive_message(session)
            for _ in range(3):
                await entity.passes(LOCK_SECONDS * 0.7)
                before = session.trusted_until
                await session.renew()
                assert before < session.trusted_until
            await session.settle(message, Complete())
            assert "a2" == (await receive_message(session)).message_id

    async def test_a_session_counts_as_locked_no_longer_than_its_lock_lasts(self, opened: Opened) -> None:
        """`trusted_until` is never later than the end of the lock, so a consumer settles nothing after another process got the session."""
        async with holding(opened, "a1") as (_, session):
            loop = asyncio.get_running_loop()
            assert loop.time() < session.trusted_until <= loop.time() + LOCK_SECONDS
            await session.renew()
            assert loop.time() < session.trusted_until <= loop.time() + LOCK_SECONDS

    async def test_every_call_after_a_lost_lock_raises_lock_lost(
        self,
        opened: Opened,
    ) -> None:
        """After the lock is lost, `receive`, `renew` and `settle` raise `LockLost`. For the next holder, the delivery is counted."""
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

    async def test_a_receiver_that_lost_the_lock_does_not_disturb_the_next_holder(
        self, opened: Opened
    ) -> None:
        """If a receiver settles or closes after it lost the lock, nothing changes for the receiver that holds the lock now."""
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

    async def test_a_message_is_received_after_an_outage_of_the_broker(self, opened: Opened) -> None:
        """While the broker does not answer, calls raise errors of this library. Afterwards the message is delivered again."""
        async with holding(opened, "a1") as (entity, session):
            entity.go_away()
            with pytest.raises(SubscriptionUnavailable):
                await entity.subscription.accept(BRIEFLY)
            with pytest.raises(SubscriptionError):
                await session.receive(BRIEFLY)
            await session.close()
            entity.come_back()
            assert [("a1", 0)] == await rest(entity)

    async def test_a_waiting_accept_raises_when_the_broker_goes_away(self, opened: Opened) -> None:
        """If the connection breaks while a call of `accept` waits for a session, the call raises an error at once."""
        async with opened() as entity:
            waiting = asyncio.create_task(entity.subscription.accept(20))
            try:
                await entity.waited_for()
                entity.go_away()
                with pytest.raises(SubscriptionUnavailable):
                    await waiting
            # Cancel the call even if `go_away` skips the test, because the broker cannot be made unavailable. The call would otherwise
            # accept a session of the next test.
            finally:
                waiting.cancel()

    async def test_prefetched_messages_keep_their_order_and_their_counts(self, opened: Opened) -> None:
        """A client may fetch messages before `receive` asks for them. This changes neither their order nor their delivery counts."""
        names = [f"a{number}" for number in range(8)]
        async with holding(opened, *names, prefetch=5) as (entity, session):
            assert names[:2] == [(await settle_next(session)).message_id for _ in range(2)]
            await settle_next(session, Retry())
            await session.close()
            assert [("a2", 1), *((name, 0) for name in names[3:])] == await rest(entity)

    async def test_a_message_prefetched_before_a_lost_lock_cannot_be_settled(self, opened: Opened) -> None:
        """`receive` may return a message that the client had fetched before it lost the lock. To settle this message raises `LockLost`."""
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
        """The subject, body and content type of a message arrive unchanged, and so do its properties and their types."""
        async with holding(opened, "a1", "a2") as (_, session):
            first, second, sent = await settle_next(session), await settle_next(session), a_message("a1")
            for name in ("subject", "body", "content_type", "properties"):
                assert getattr(sent, name) == getattr(first, name)
            assert 0 < first.sequence_number < second.sequence_number


class SessionlessSubscriptionContract:
    """Tests of a Subscription without sessions, or of a queue. Override the fixture `opened`."""

    @pytest.fixture
    def opened(self) -> Opened:
        raise NotImplementedError(_NOT_OPENED)

    async def test_without_sessions_several_receivers_get_messages_at_once(self, opened: Opened) -> None:
        """Without sessions, each receiver locks one message, so several receivers get different messages at the same time."""
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

    async def test_without_sessions_a_receiver_gets_one_message_after_another(self, opened: Opened) -> None:
        """Without sessions, a receiver that has settled its message receives and locks the next one."""
        async with holding(opened, "a1", "b1", "a2", sessions=False) as (_, receiver):
            for name in ("a1", "b1", "a2"):
                message = await receive_message(receiver)
                assert name == message.message_id
                assert asyncio.get_running_loop().time() < receiver.trusted_until < inf
                await receiver.settle(message, Complete())
            assert await receiver.receive(BRIEFLY) is None

    async def test_without_sessions_the_lock_of_a_message_is_renewed_or_lost(self, opened: Opened) -> None:
        """Without sessions, the lock is on a message. `renew` extends the lock. After the lock has ended, `settle` raises `LockLost`."""
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

    async def test_without_sessions_closing_a_receiver_gives_its_message_back(self, opened: Opened) -> None:
        """Without sessions, `close` makes the message available to other receivers at once, and the delivery is counted."""
        async with opened(sessions=False) as entity:
            await entity.send("a1")
            for receiving in (True, False):
                receiver = await accept_session(entity)
                if receiving:
                    await receive_message(receiver)
                await receiver.close()
            assert [("a1", 2)] == await rest(entity)

    async def test_without_sessions_a_message_can_be_settled_in_each_way(self, opened: Opened) -> None:
        """Without sessions, messages can be settled in the same ways as with sessions."""
        async with opened(sessions=False) as entity:
            await entity.send("a1", "b1", "c1")
            for settlement in (Defer(), DeadLetter(reason="r", description="d"), Retry()):
                receiver = await accept_session(entity)
                await settle_next(receiver, settlement)
                await receiver.close()
            assert [("c1", 1)] == await rest(entity)
            assert [("b1", "r", "d")] == await dead_letters_of(entity)
            assert 1 == entity.stored()

    async def test_without_sessions_a_cancelled_accept_locks_no_message(self, opened: Opened) -> None:
        """A process that stops cancels its calls of `accept`. If a message stayed locked, no other process could receive it."""
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
