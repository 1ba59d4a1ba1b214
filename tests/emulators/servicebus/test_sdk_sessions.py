"""Sessions with the unmodified SDK."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusSubQueue
from azure.servicebus.aio import AutoLockRenewer
from azure.servicebus.exceptions import (
    MessageNotFoundError,
    OperationTimeoutError,
    ServiceBusError,
    SessionCannotBeLockedError,
    SessionLockLostError,
)

from tests.emulators.servicebus.scenarios import Scenarios
from tests.support.servicebus_sdk import (
    messages,
    receive_all,
    serving,
    subscription_stats,
    texts,
    topic_config,
    until,
)

pytestmark = pytest.mark.looptime(False)
scenario = Scenarios()


def sessions(**config):
    return topic_config(requires_session=True, **config)


def accept(client, session_id=NEXT_AVAILABLE_SESSION, **options):
    return client.get_subscription_receiver("t", "s", session_id=session_id, **options)


async def drain(receiver, count):
    out = []
    while len(out) < count:
        for message in await receiver.receive_messages(10, max_wait_time=60):
            out.append(str(message))
            await receiver.complete_message(message)
    return out


@scenario
async def each_session_is_received_in_order_and_its_state_is_kept():
    async with serving(sessions()) as (server, client), client.get_topic_sender("t") as sender:
        for session in "AB":
            await sender.send_messages(messages(*(f"{session}{n}" for n in range(12)), session_id=session))
        got = {}
        for _ in range(2):
            async with accept(client, max_wait_time=5) as receiver:
                session = receiver.session.session_id
                got[session] = await drain(receiver, 12)
                assert await receiver.session.get_state() is None
                await receiver.session.set_state(f"state of {session}")
        assert {s: [f"{s}{n}" for n in range(12)] for s in "AB"} == got
        assert (0, 2) == (subscription_stats(server)["active"], subscription_stats(server)["sessions"])
        async with accept(client, "A") as receiver:
            assert b"state of A" == bytes(await receiver.session.get_state())
            await receiver.session.set_state(None)
        assert 1 == subscription_stats(server)["sessions"]


@scenario
async def a_waiting_receiver_gets_the_session_that_appears():
    async with serving(sessions()) as (_, client), client.get_topic_sender("t") as sender:
        receiver = accept(client, max_wait_time=10)
        waiting = asyncio.create_task(receiver.receive_messages(1, max_wait_time=60))
        await asyncio.sleep(0.7)
        await sender.send_messages(messages("a", session_id="new"))
        assert ["a"] == texts(await waiting)
        assert "new" == receiver.session.session_id
        await receiver.close()


@scenario
async def no_session_within_the_time_is_a_timeout():
    async with serving(sessions(), retry_total=0) as (_, client):
        with pytest.raises(OperationTimeoutError):
            await accept(client, max_wait_time=1).__aenter__()


@scenario
async def a_session_that_is_held_cannot_be_locked():
    async with serving(sessions(), retry_total=0) as (_, client), accept(client, "A"):
        with pytest.raises(SessionCannotBeLockedError):
            await accept(client, "A").__aenter__()


@scenario
async def the_kind_of_receiver_must_fit_the_kind_of_subscription():
    config = {
        "topics": [
            {"name": "t", "subscriptions": [{"name": "s", "requires_session": True}, {"name": "plain"}]}
        ]
    }
    async with serving(config, retry_total=0) as (_, client):
        with pytest.raises(ServiceBusError, match="non-sessionful"):
            await client.get_subscription_receiver("t", "s").__aenter__()
        with pytest.raises(ServiceBusError, match="does not require sessions"):
            await client.get_subscription_receiver("t", "plain", session_id="A").__aenter__()


@scenario
async def a_lost_session_lock_frees_the_session_and_counts_a_delivery():
    async with (
        serving(sessions(lock_s=1), retry_total=0) as (_, client),
        client.get_topic_sender("t") as sender,
    ):
        await sender.send_messages(messages("a", "b", session_id="A"))
        slow = accept(client, "A")
        received = await slow.receive_messages(1, max_wait_time=60)
        async with accept(client, max_wait_time=5) as next_one:
            got = await receive_all(next_one, 2)
            assert [("a", 1), ("b", 0)] == [(message.message_id, message.delivery_count) for message in got]
            with pytest.raises(SessionLockLostError):
                await slow.complete_message(received[0])
        await slow.close()


@scenario
async def renewing_holds_a_session_beyond_its_lock():
    # The SDK renews ten seconds before a lock ends on its own clock. The broker's clock lags so far that the SDK always
    # renews, and that no stall of this machine ends the lock. A jump of over 240 seconds would end the connection.
    moment = None
    async with (
        serving(sessions(lock_s=200), clock=lambda: time.time() - 192 if moment is None else moment) as (
            server,
            client,
        ),
        client.get_topic_sender("t") as sender,
    ):
        await sender.send_messages(messages("a", session_id="A"))
        renewer = AutoLockRenewer(max_lock_renewal_duration=600)
        async with accept(client, "A") as receiver:
            renewer.register(receiver, receiver.session, max_lock_renewal_duration=600)
            (message,) = await receiver.receive_messages(1, max_wait_time=60)
            before = receiver.session.locked_until_utc
            await until(lambda: before + timedelta(seconds=1) < receiver.session.locked_until_utc)
            moment = before.timestamp() + 0.5
            server.broker.timers.run_due()
            await receiver.complete_message(message)
        await renewer.close()
        assert 1 == subscription_stats(server)["completed"]


@scenario
async def a_closed_session_gives_its_messages_back_uncounted():
    async with serving(sessions()) as (_, client), client.get_topic_sender("t") as sender:
        await sender.send_messages(messages("a", "b", session_id="A"))
        async with accept(client, "A") as receiver:
            await receive_all(receiver, 2)
        async with accept(client, "A") as receiver:
            got = await receive_all(receiver, 2)
            assert [("a", 0), ("b", 0)] == [(message.message_id, message.delivery_count) for message in got]


@scenario
async def a_lost_connection_frees_the_session_at_once():
    async with serving(sessions(), retry_total=0) as (server, client), client.get_topic_sender("t") as sender:
        await sender.send_messages(messages("a", session_id="A"))
        first = accept(client, "A")
        (message,) = await first.receive_messages(1, max_wait_time=60)
        server.drop_connections()
        async with accept(client, "A") as second:
            assert ["a"] == texts(await second.receive_messages(1, max_wait_time=60))
        with pytest.raises(ServiceBusError):
            await first.complete_message(message)
        await first.close()


@scenario
async def dead_letters_of_a_session_subscription_are_read_without_a_session():
    async with serving(sessions()) as (_, client), client.get_topic_sender("t") as sender:
        await sender.send_messages([*messages("bad", "good", session_id="A"), *messages("homeless")])
        async with accept(client, "A") as receiver:
            bad, good = await receive_all(receiver, 2)
            await receiver.dead_letter_message(bad, reason="r", error_description="d")
            await receiver.complete_message(good)
        graves = client.get_subscription_receiver("t", "s", sub_queue=ServiceBusSubQueue.DEAD_LETTER)
        async with graves:
            got = await receive_all(graves, 2)
        expected = {("homeless", None, "Session ID is null."), ("bad", "A", "r")}
        assert expected == {(dead.message_id, dead.session_id, dead.dead_letter_reason) for dead in got}


@scenario
async def deferred_messages_and_peeking_inside_a_session():
    async with serving(sessions()) as (_, client), client.get_topic_sender("t") as sender:
        await sender.send_messages([*messages("a", "b", session_id="A"), *messages("c", session_id="B")])
        async with accept(client, "A") as receiver:
            a, b = await receive_all(receiver, 2)
            await receiver.defer_message(a)
            await receiver.complete_message(b)
            assert ["a"] == texts(await receiver.peek_messages(10, sequence_number=1))
            (deferred,) = await receiver.receive_deferred_messages(a.sequence_number)
            await receiver.complete_message(deferred)
            assert [] == await receiver.peek_messages(10, sequence_number=1)


@scenario
async def many_receivers_share_many_sessions_and_nothing_is_lost_or_doubled():
    async with serving(sessions(), retry_total=0) as (server, client), client.get_topic_sender("t") as sender:
        expected = {f"s{n}": [f"s{n}-{i}" for i in range(5)] for n in range(12)}
        for session, names in expected.items():
            await sender.send_messages(messages(*names, session_id=session))
        got = {}

        async def work():
            while sum(map(len, got.values())) < 60:
                try:
                    async with accept(client, max_wait_time=2) as receiver:
                        session = receiver.session.session_id
                        assert session not in got
                        got[session] = await drain(receiver, 5)
                except OperationTimeoutError:
                    return

        await asyncio.gather(*(work() for _ in range(6)))
        assert expected == got
        assert {
            "active": 0,
            "locked": 0,
            "dead_lettered": 0,
            "completed": 60,
            "sessions": 0,
        } == subscription_stats(server)


class Clock:
    """The broker's time, ahead of the machine's by as much as it was told to pass."""

    def __init__(self):
        self.ahead = 0

    def __call__(self):
        return time.time() + self.ahead

    def passes(self, server, seconds):
        self.ahead += seconds
        server.broker.timers.run_due()


@scenario
async def a_lost_session_is_not_renewed_and_keeps_its_state_for_the_next_holder():
    clock = Clock()
    async with (
        serving(sessions(lock_s=60), clock=clock, retry_total=0) as (server, client),
        client.get_topic_sender("t") as sender,
    ):
        await sender.send_messages(messages("a", session_id="A"))
        late = accept(client, "A")
        await late.receive_messages(1, max_wait_time=60)
        await late.session.set_state("here")
        clock.passes(server, 50)
        await late.session.renew_lock()
        clock.passes(server, 50)
        await late.session.renew_lock()
        clock.passes(server, 61)
        with pytest.raises(SessionLockLostError):
            await late.session.renew_lock()
        async with accept(client) as receiver:
            assert b"here" == bytes(await receiver.session.get_state())
            (again,) = await receiver.receive_messages(1, max_wait_time=60)
            assert ("a", 1) == (again.message_id, again.delivery_count)
        await late.close()


@scenario
async def a_session_that_is_lost_too_often_leaves_its_message_in_the_dead_letter_queue():
    clock = Clock()
    async with (
        serving(sessions(lock_s=60, max_delivery_count=2), clock=clock, retry_total=0) as (server, client),
        client.get_topic_sender("t") as sender,
    ):
        await sender.send_messages(messages("a", "b", session_id="A"))
        for count in range(2):
            receiver = accept(client, max_wait_time=5)
            (got,) = await receiver.receive_messages(1, max_wait_time=60)
            assert ("a", count) == (got.message_id, got.delivery_count)
            clock.passes(server, 61)
            await receiver.close()
        async with client.get_subscription_receiver("t", "s", sub_queue="deadletter") as graves:
            (dead,) = await graves.receive_messages(1, max_wait_time=60)
            assert ("a", "A", "MaxDeliveryCountExceeded") == (
                dead.message_id,
                dead.session_id,
                dead.dead_letter_reason,
            )
            await graves.complete_message(dead)
        async with accept(client, "A") as receiver:
            assert ["b"] == texts(await receiver.receive_messages(1, max_wait_time=60))


@scenario
async def a_deferred_message_is_received_by_its_number_in_its_session_only_and_counted_when_lost():
    clock = Clock()
    async with (
        serving(sessions(lock_s=60), clock=clock, retry_total=0) as (server, client),
        client.get_topic_sender("t") as sender,
    ):
        await sender.send_messages([*messages("a", session_id="A"), *messages("b", session_id="B")])
        async with accept(client, "A") as receiver:
            (a,) = await receiver.receive_messages(1, max_wait_time=60)
            await receiver.defer_message(a)
        async with accept(client, "B") as receiver:
            with pytest.raises(MessageNotFoundError):
                await receiver.receive_deferred_messages(a.sequence_number)
        late = accept(client, "A")
        async with late:
            assert 1 == (await late.receive_deferred_messages(a.sequence_number))[0].delivery_count
            clock.passes(server, 61)
        async with accept(client, "A") as receiver:
            (again,) = await receiver.receive_deferred_messages(a.sequence_number)
            assert 2 == again.delivery_count
            await receiver.complete_message(again)
        assert 1 == subscription_stats(server)["active"]


@scenario
async def peeking_shows_all_of_a_session_and_neither_locks_nor_counts():
    async with serving(sessions()) as (server, client), client.get_topic_sender("t") as sender:
        await sender.send_messages([*messages("a", "b", "c", session_id="A"), *messages("x", session_id="B")])
        async with accept(client, "A") as receiver:
            (a,) = await receiver.receive_messages(1, max_wait_time=60)
            await receiver.defer_message(a)
            (b,) = await receiver.receive_messages(1, max_wait_time=60)
            for _ in range(2):
                assert ["a", "b", "c"] == texts(await receiver.peek_messages(10, sequence_number=1))
            assert 1 == subscription_stats(server)["locked"]
            await receiver.abandon_message(b)
            (again,) = await receiver.receive_messages(1, max_wait_time=60)
            assert ("b", 1) == (again.message_id, again.delivery_count)


@scenario
async def a_receiver_waits_for_a_session_for_as_long_as_it_said():
    clock = Clock()
    async with serving(sessions(), clock=clock, retry_total=0) as (server, client):
        waiting = asyncio.create_task(accept(client, max_wait_time=100).__aenter__())
        queue = server.broker.queue("t/Subscriptions/s")
        await until(lambda: queue.sessions._waiting)
        clock.passes(server, 60)
        assert queue.sessions._waiting
        clock.passes(server, 41)
        assert not queue.sessions._waiting
        with pytest.raises(OperationTimeoutError):
            await waiting


@scenario
async def ids_of_sessions_have_up_to_128_units_of_utf_16():
    async with serving(sessions(), retry_total=0) as (_, client), client.get_topic_sender("t") as sender:
        for fits in ("é☃" * 64, "\N{PARTY POPPER}" * 64):
            await sender.send_messages(messages("m", session_id=fits))
            async with accept(client, max_wait_time=5) as receiver:
                assert fits == receiver.session.session_id
                (got,) = await receiver.receive_messages(1, max_wait_time=60)
                assert fits == got.session_id
                await receiver.complete_message(got)
        with pytest.raises(ServiceBusError, match="SessionId"):
            await sender.send_messages(messages("m", session_id="\N{PARTY POPPER}" * 65))


@pytest.fixture(scope="module")
def outcomes():
    return scenario.outcomes()


@pytest.mark.parametrize("name", scenario)
def test_scenario(outcomes, name):
    if outcomes[name] is not None:
        raise outcomes[name]
