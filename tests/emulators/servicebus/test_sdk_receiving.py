"""Receiving with the unmodified SDK from subscriptions without sessions and from dead-letter queues."""

from __future__ import annotations

import datetime as dt

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode, ServiceBusSubQueue
from azure.servicebus.exceptions import MessageLockLostError, MessageNotFoundError

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


@scenario
async def everything_a_sender_sets_arrives():
    async with (
        serving(topic_config()) as (_, client),
        client.get_topic_sender("t") as sender,
        client.get_subscription_receiver("t", "s") as receiver,
    ):
        properties = {
            "text": "é",
            "number": 3,
            "float": 1.5,
            "flag": True,
        }
        sent = ServiceBusMessage(
            b"\x00body", message_id="id", subject="subject", content_type="application/json", correlation_id="c",
            to="to", reply_to="r", time_to_live=dt.timedelta(seconds=60), application_properties=properties,
        )  # fmt: skip
        await sender.send_messages(sent)
        (got,) = await receiver.receive_messages(1, max_wait_time=60)
        fields = ("message_id", "subject", "content_type", "correlation_id", "to", "reply_to", "time_to_live")
        assert [getattr(sent, name) for name in fields] == [getattr(got, name) for name in fields]
        assert b"\x00body" == b"".join(got.body)
        text = {key.decode(): value for key, value in got.application_properties.items()}
        assert {**properties, "text": "é".encode()} == text
        assert (0, 1, 1) == (got.delivery_count, got.sequence_number, got.enqueued_sequence_number)
        now = dt.datetime.now(dt.UTC)
        assert got.enqueued_time_utc <= now < got.locked_until_utc <= now + dt.timedelta(seconds=60)


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


@scenario
async def receive_and_delete_and_prefetch():
    async with serving(topic_config()) as (server, client), client.get_topic_sender("t") as sender:
        await sender.send_messages(messages(*(str(number) for number in range(50))))
        mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
        received = []
        async with client.get_subscription_receiver(
            "t", "s", receive_mode=mode, prefetch_count=20
        ) as receiver:
            while len(received) < 50:
                received += texts(await receiver.receive_messages(20, max_wait_time=60))
        assert [str(number) for number in range(50)] == received
        assert (0, 50) == (subscription_stats(server)["active"], subscription_stats(server)["completed"])


@scenario
async def a_large_message_crosses_in_several_frames():
    config = topic_config(topic={"max_message_size": 4 * 1024 * 1024})
    async with (
        serving(config) as (_, client),
        client.get_topic_sender("t") as sender,
        client.get_subscription_receiver("t", "s") as receiver,
    ):
        body = bytes(range(256)) * 12_000
        await sender.send_messages(ServiceBusMessage(body))
        (got,) = await receiver.receive_messages(1, max_wait_time=60)
        assert body == b"".join(got.body)


@scenario
async def an_expired_lock_is_lost_and_the_message_comes_again():
    async with (
        serving(topic_config(lock_s=1)) as (server, client),
        client.get_topic_sender("t") as sender,
        client.get_subscription_receiver("t", "s") as receiver,
    ):
        await sender.send_messages(messages("a"))
        (first,) = await receiver.receive_messages(1, max_wait_time=60)
        # The SDK refuses by its own clock; what the broker answers is what matters here.
        first._raw_amqp_message.annotations[b"x-opt-locked-until"] += 60_000
        await until(lambda: subscription_stats(server)["locked"] == 0)
        with pytest.raises(MessageLockLostError):
            await receiver.complete_message(first)
        (second,) = await receiver.receive_messages(1, max_wait_time=60)
        assert ("a", 1) == (second.message_id, second.delivery_count)
        await receiver.complete_message(second)


@scenario
async def too_many_deliveries_end_in_the_dead_letter_queue():
    async with (
        serving(topic_config(max_delivery_count=3)) as (_, client),
        client.get_topic_sender("t") as sender,
        client.get_subscription_receiver("t", "s") as receiver,
    ):
        await sender.send_messages(messages("a"))
        for expected in range(3):
            (got,) = await receiver.receive_messages(1, max_wait_time=60)
            assert expected == got.delivery_count
            await receiver.abandon_message(got)
        async with client.get_subscription_receiver("t", "s", sub_queue="deadletter") as graves:
            (dead,) = await graves.receive_messages(1, max_wait_time=60)
            assert "MaxDeliveryCountExceeded" == dead.dead_letter_reason


@scenario
async def an_expired_message_is_dead_lettered_when_configured():
    config = topic_config(dead_letter_on_expiration=True)
    async with serving(config) as (server, client), client.get_topic_sender("t") as sender:
        short = ServiceBusMessage("x", message_id="a", time_to_live=dt.timedelta(milliseconds=300))
        await sender.send_messages(short)
        await until(lambda: subscription_stats(server)["dead_lettered"] == 1)
        async with client.get_subscription_receiver("t", "s", sub_queue="deadletter") as graves:
            (dead,) = await graves.receive_messages(1, max_wait_time=60)
            assert "TTLExpiredException" == dead.dead_letter_reason


@scenario
async def a_lost_connection_keeps_the_lock_until_it_expires():
    async with serving(topic_config(lock_s=1)) as (server, client), client.get_topic_sender("t") as sender:
        await sender.send_messages(messages("a"))
        receiver = client.get_subscription_receiver("t", "s")
        await receiver.receive_messages(1, max_wait_time=60)
        server.drop_connections()
        assert 1 == subscription_stats(server)["locked"]
        (again,) = await receiver.receive_messages(1, max_wait_time=60)
        assert 1 == again.delivery_count
        await receiver.close()


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


@pytest.fixture(scope="module")
def outcomes():
    return scenario.outcomes()


@pytest.mark.parametrize("name", scenario)
def test_scenario(outcomes, name):
    if outcomes[name] is not None:
        raise outcomes[name]
