"""Sending with the unmodified SDK: links, batches, duplicates, schedules, rights and outages."""

from __future__ import annotations

import asyncio
import datetime as dt
import time

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    ServiceBusAuthenticationError,
    ServiceBusError,
)

from tests.emulators.servicebus.scenarios import Scenarios
from tests.support.servicebus_sdk import messages, serving, subscription_stats, topic_config, until

pytestmark = pytest.mark.looptime(False)
scenario = Scenarios()


def stored(server, path="t/Subscriptions/s"):
    return [entry.message.message_id for entry in server.broker.queue(path).entries.values()]


@scenario
async def a_batch_of_several_sessions_arrives_whole_in_order_and_only_once():
    async with serving() as (server, client), client.get_topic_sender("events") as sender:
        batch = await sender.create_message_batch()
        expected = []
        for number in range(30):
            session = "ABC"[number % 3]
            batch.add_message(ServiceBusMessage("x", message_id=f"{session}{number}", session_id=session))
            expected.append(f"{session}{number}")
        await sender.send_messages(batch)
        await sender.send_messages(batch)
        await sender.send_messages([*messages("A0", "A99", session_id="A"), *messages("A99", session_id="A")])
        assert [*expected, "A99"] == stored(server, "events/Subscriptions/all")
        stats = server.broker.stats()["topics"]["events"]
        assert (31, 32, 3) == (stats["published"], stats["duplicates"], stats["transfers"])
        assert 3 == stats["subscriptions"]["all"]["sessions"]


@scenario
async def the_link_tells_the_sdk_how_large_a_batch_may_be():
    config = topic_config(topic={"max_message_size": 1024 * 1024})
    async with serving(config) as (server, client), client.get_topic_sender("t") as sender:
        batch = await sender.create_message_batch()
        assert 1024 * 1024 == batch.max_size_in_bytes
        for _ in range(104):
            batch.add_message(ServiceBusMessage(b"x" * 10_000))
        with pytest.raises(MessageSizeExceededError):
            batch.add_message(ServiceBusMessage(b"x" * 10_000))
        await sender.send_messages(batch)
        assert 104 == subscription_stats(server)["active"]


@scenario
async def a_refused_message_detaches_the_link_and_the_next_send_opens_another():
    async with serving(topic_config()) as (server, client), client.get_topic_sender("t") as sender:
        with pytest.raises(MessageSizeExceededError, match="exceeds the limit"):
            await sender.send_messages(ServiceBusMessage(b"x" * 300_000))
        await sender.send_messages(messages("after"))
        assert ["after"] == stored(server)


@scenario
async def one_bad_message_refuses_its_whole_batch_and_leaves_the_link_usable():
    async with serving(topic_config()) as (server, client), client.get_topic_sender("t") as sender:
        with pytest.raises(ServiceBusError, match="MessageId"):
            await sender.send_messages([*messages("good", "x" * 128), _with_long_id()])
        await sender.send_messages(messages("after"))
        assert ["after"] == stored(server)


def _with_long_id():
    # The SDK checks the length of an id itself, but not on the raw message.
    message = ServiceBusMessage("x", message_id="bad")
    message.raw_amqp_message.properties.message_id = "x" * 129
    return message


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
async def queues_are_served_too_and_a_session_queue_wants_a_session():
    async with serving({"queues": [{"name": "q"}, {"name": "sq", "requires_session": True}]}) as (
        _server,
        client,
    ):
        async with client.get_queue_sender("q") as sender, client.get_queue_receiver("q") as receiver:
            await sender.send_messages(messages("a"))
            (received,) = await receiver.receive_messages(1, max_wait_time=60)
            await receiver.complete_message(received)
        async with client.get_queue_sender("sq") as sender:
            with pytest.raises(ServiceBusError, match="SessionId was not set"):
                await sender.send_messages(messages("a"))
            await sender.send_messages(messages("b", session_id="s"))
        async with client.get_queue_receiver("sq", session_id="s") as receiver:
            assert ["b"] == [
                message.message_id for message in await receiver.receive_messages(1, max_wait_time=60)
            ]


async def fail_at_the_token(secret, topic):
    async with serving() as (server, _):
        text = server.connection_string.replace("SAS_KEY_VALUE", secret)
        async with ServiceBusClient.from_connection_string(text, retry_total=0) as client:
            with pytest.raises(ServiceBusAuthenticationError):
                await client.get_topic_sender(topic).send_messages(messages("a"))


@scenario
async def a_wrong_key_fails_at_the_token():
    await fail_at_the_token("wrong", "events")


@scenario
async def a_missing_topic_fails_at_the_token():
    await fail_at_the_token("SAS_KEY_VALUE", "missing")


@scenario
async def a_key_of_another_name_works():
    config = {**topic_config(), "sas_keys": {"sender": "c2VjcmV0"}}
    async with serving(config) as (server, client), client.get_topic_sender("t") as sender:
        assert "SharedAccessKeyName=sender;SharedAccessKey=c2VjcmV0;" in server.connection_string
        await sender.send_messages(messages("a"))
        assert ["a"] == stored(server)


@scenario
async def a_disabled_topic_refuses_until_it_is_enabled():
    async with serving(topic_config()) as (server, client), client.get_topic_sender("t") as sender:
        await sender.send_messages(messages("a"))
        server.broker.set_disabled("t", disabled=True)
        with pytest.raises(MessagingEntityDisabledError):
            await sender.send_messages(messages("b"))
        server.broker.set_disabled("t", disabled=False)
        await sender.send_messages(messages("c"))
        assert ["a", "c"] == stored(server)


@scenario
async def a_deleted_topic_fails_and_a_new_one_of_its_name_works():
    async with serving(topic_config()) as (server, client), client.get_topic_sender("t") as sender:
        await sender.send_messages(messages("a"))
        server.broker.delete("t")
        with pytest.raises(ServiceBusError):
            await sender.send_messages(messages("b"))
        server.broker.add_topic(topic_config()["topics"][0])
        await sender.send_messages(messages("c"))
        assert ["c"] == stored(server)


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


@scenario
async def latency_delays_every_acknowledgement_and_keeps_their_order():
    async with serving(topic_config()) as (server, client), client.get_topic_sender("t") as sender:
        await sender.send_messages(messages("first"))
        server.broker.faults.add({"action": "latency", "seconds": 0.05})
        started = time.monotonic()
        for number in range(4):
            await sender.send_messages(messages(str(number)))
        assert time.monotonic() - started >= 0.2
        assert ["first", "0", "1", "2", "3"] == stored(server)


@pytest.fixture(scope="module")
def outcomes():
    return scenario.outcomes()


@pytest.mark.parametrize("name", scenario)
def test_scenario(outcomes, name):
    if outcomes[name] is not None:
        raise outcomes[name]
