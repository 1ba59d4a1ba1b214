"""What applications do with the unmodified azure-servicebus, over real sockets."""

from __future__ import annotations

import asyncio
import datetime as dt
import time

import pytest
from azure.servicebus import (
    NEXT_AVAILABLE_SESSION,
    ServiceBusSubQueue,
)
from azure.servicebus.exceptions import (
    MessageLockLostError,
    MessageNotFoundError,
    MessagingEntityDisabledError,
    OperationTimeoutError,
    ServiceBusError,
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


def stored(server, path="t/Subscriptions/s"):
    return [entry.message.message_id for entry in server.broker.queue(path).entries.values()]


# Sending


@scenario
async def a_message_can_be_scheduled_and_cancelled():
    async with serving(topic_config()) as (server, client), client.get_topic_sender("t") as sender:
        later = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
        _, drop = await sender.schedule_messages(messages("keep", "drop"), later)
        await sender.cancel_scheduled_messages(drop)
        with pytest.raises(ServiceBusError, match="does not exist"):
            await sender.cancel_scheduled_messages([drop])
        scheduled = messages("by header")[0]
        scheduled.scheduled_enqueue_time_utc = later
        await sender.send_messages(scheduled)
        assert [] == stored(server)
        assert 2 == server.broker.stats()["topics"]["t"]["scheduled"]

        soon = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=1)
        numbers = await sender.schedule_messages(messages("soon"), soon)
        scheduled.message_id, scheduled.scheduled_enqueue_time_utc = "soon by header", soon
        await sender.send_messages(scheduled)
        async with client.get_subscription_receiver("t", "s") as receiver:
            received = await receiver.receive_messages(1, max_wait_time=60)
            received += await receiver.receive_messages(1, max_wait_time=60)
        assert {"soon", "soon by header"} == {message.message_id for message in received}
        assert soon <= dt.datetime.now(dt.UTC)
        assert {numbers[0], numbers[0] + 1} == {message.enqueued_sequence_number for message in received}


@scenario
async def a_key_of_another_name_works():
    config = {**topic_config(), "sas_keys": {"sender": "c2VjcmV0"}}
    async with serving(config) as (server, client), client.get_topic_sender("t") as sender:
        assert "SharedAccessKeyName=sender;SharedAccessKey=c2VjcmV0;" in server.connection_string
        await sender.send_messages(messages("a"))
        assert ["a"] == stored(server)


@scenario
async def a_disabled_or_deleted_topic_refuses_until_it_is_back():
    async with serving(topic_config()) as (server, client), client.get_topic_sender("t") as sender:
        await sender.send_messages(messages("a"))
        server.broker.set_disabled("t", disabled=True)
        with pytest.raises(MessagingEntityDisabledError):
            await sender.send_messages(messages("b"))
        server.broker.set_disabled("t", disabled=False)
        await sender.send_messages(messages("c"))
        assert ["a", "c"] == stored(server)
        server.broker.delete("t")
        with pytest.raises(ServiceBusError):
            await sender.send_messages(messages("d"))
        server.broker.add_topic(topic_config()["topics"][0])
        await sender.send_messages(messages("e"))
        assert ["e"] == stored(server)


@scenario
async def an_idle_link_is_detached_and_the_next_send_succeeds():
    config = {**topic_config(), "link_idle_s": 1.0}
    async with serving(config) as (server, client), client.get_topic_sender("t") as sender:
        await sender.send_messages(messages("a"))
        topic = server.broker.topic("t")
        await until(lambda: not topic.links)
        await sender.send_messages(messages("b"))
        assert ["a", "b"] == stored(server)


@scenario
async def an_outage_cuts_connections_refuses_new_ones_and_ends():
    ahead = 0.0
    async with (
        serving(
            topic_config(),
            clock=lambda: time.time() + ahead,
            retry_total=1000,
            retry_mode="fixed",
            retry_backoff_factor=0.2,
        ) as (server, client),
        client.get_topic_sender("t") as sender,
    ):
        await sender.send_messages(messages("a"))
        server.broker.faults.add({"action": "down", "seconds": 120})
        sending = asyncio.create_task(sender.send_messages(messages("b")))
        await until(lambda: server.broker.stats()["refused_connections"] >= 1)
        assert ["a"] == stored(server)
        ahead = 120.0
        await sending
        assert ["a", "b"] == stored(server)


# Receiving without sessions


@scenario
async def every_way_to_settle():
    config = topic_config(lock_s=20)
    async with serving(config) as (server, client), client.get_topic_sender("t") as sender:
        await sender.send_messages(messages("complete", "abandon", "defer", "dead", "keep"))
        async with client.get_subscription_receiver("t", "s") as receiver:
            received = await receive_all(receiver, 5)
            by_id = {message.message_id: message for message in received}
            assert ["complete", "abandon", "defer", "dead", "keep"] == list(by_id)
            until_then = by_id["keep"].locked_until_utc
            assert until_then < await receiver.renew_message_lock(by_id["keep"])
            await receiver.complete_message(by_id["complete"])
            await receiver.abandon_message(by_id["abandon"])
            await receiver.defer_message(by_id["defer"])
            await receiver.dead_letter_message(by_id["dead"], reason="r", error_description="d")
            peeked = await receiver.peek_messages(10, sequence_number=1)
            assert ["abandon", "defer", "keep"] == texts(peeked)
            (again,) = await receiver.receive_messages(5, max_wait_time=60)
            assert ("abandon", 1) == (again.message_id, again.delivery_count)
            number = by_id["defer"].sequence_number
            (deferred,) = await receiver.receive_deferred_messages([number])
            assert "defer" == deferred.message_id
            await receiver.complete_message(deferred)
            with pytest.raises(MessageNotFoundError):
                await receiver.receive_deferred_messages([number])
        expected = {"active": 2, "locked": 2, "dead_lettered": 1, "completed": 2, "sessions": 0}
        assert expected == subscription_stats(server)
        async with client.get_subscription_receiver(
            "t", "s", sub_queue=ServiceBusSubQueue.DEAD_LETTER
        ) as graves:
            (dead,) = await graves.receive_messages(5, max_wait_time=60)
            assert ("dead", "r", "d") == (
                dead.message_id,
                dead.dead_letter_reason,
                dead.dead_letter_error_description,
            )
            await graves.complete_message(dead)
        assert 0 == subscription_stats(server)["dead_lettered"]


async def settle_under(fault, *, completed):
    async with (
        serving(topic_config(), retry_total=0) as (server, client),
        client.get_topic_sender("t") as sender,
        client.get_subscription_receiver("t", "s") as receiver,
    ):
        await sender.send_messages(messages("a"))
        (got,) = await receiver.receive_messages(1, max_wait_time=60)
        added = server.broker.faults.add({**fault, "on": "settle", "entity": "t/Subscriptions/s"})
        try:
            await receiver.complete_message(got)
        finally:
            assert (1, completed) == (added.struck, subscription_stats(server)["completed"])


@scenario
async def a_settlement_can_be_refused():
    with pytest.raises(MessageLockLostError):
        await settle_under({"action": "reject", "condition": "com.microsoft:message-lock-lost"}, completed=0)


@scenario
async def a_settlement_can_be_confirmed_late():
    await settle_under({"action": "latency", "seconds": 0.1}, completed=1)


@scenario
async def a_settlement_that_met_a_detach_is_repeated_over_management():
    await settle_under({"action": "detach-before-store"}, completed=1)


# Sessions


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
