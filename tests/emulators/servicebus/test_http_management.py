"""
Tests of HTTP management with the SDK's administration client, and of AMQP over a WebSocket on the same port.
"""

from __future__ import annotations

import datetime as dt

import aiohttp
import pytest
from azure.core.exceptions import HttpResponseError, ResourceExistsError, ResourceNotFoundError
from azure.core.pipeline.transport import AioHttpTransport
from azure.servicebus import ServiceBusMessage, TransportType
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.aio.management import ServiceBusAdministrationClient
from azure.servicebus.management import CorrelationRuleFilter, FalseRuleFilter, TrueRuleFilter

from cosmos_outbox_emulators.servicebus.administration import Administration
from cosmos_outbox_emulators.servicebus.atom import encode
from cosmos_outbox_emulators.servicebus.broker import Broker
from cosmos_outbox_emulators.servicebus.server import ServiceBusServer

pytestmark = pytest.mark.looptime(False)


class PlainHttp(AioHttpTransport):
    """
    A transport that sends the client's https requests over http, because the emulator of these tests has no TLS.
    """

    async def send(self, request, **options):
        request.url = request.url.replace("https://", "http://", 1)
        return await super().send(request, **options)


@pytest.fixture
async def server():
    async with ServiceBusServer(Broker.from_config({})) as running:
        yield running


@pytest.fixture
async def admin(server):
    options = {"transport": PlainHttp(), "retry_total": 0}
    async with ServiceBusAdministrationClient.from_connection_string(
        server.connection_string, **options
    ) as client:
        yield client


async def names(listed):
    return [item.name async for item in listed]


async def test_the_administration_client_manages_a_queue(server, admin):
    """The client creates, reads, updates, lists and deletes the queue."""
    made = await admin.create_queue(
        "a/b",
        lock_duration="PT45S",
        requires_session=True,
        requires_duplicate_detection=True,
        max_delivery_count=3,
    )
    queue = server.broker.queue("a/b")
    assert (45.0, True, 3, 600.0) == (
        queue.config.lock_s, queue.config.requires_session, queue.config.max_delivery_count,
        server.broker.topic("a/b").config.dedup_window_s,
    )  # fmt: skip
    made.lock_duration = dt.timedelta(minutes=2)
    made.default_message_time_to_live = dt.timedelta(days=1, hours=1)
    await admin.update_queue(made)
    got = await admin.get_queue("A/B")
    assert (dt.timedelta(minutes=2), dt.timedelta(days=1, hours=1), True, "Active") == (
        got.lock_duration, got.default_message_time_to_live, got.requires_session, got.status,
    )  # fmt: skip
    assert (120.0, 90_000.0) == (queue.config.lock_s, queue.config.ttl_s)
    assert ["a/b"] == await names(admin.list_queues())
    assert [] == await names(admin.list_topics())
    await admin.delete_queue("a/b")
    with pytest.raises(ResourceNotFoundError):
        await admin.get_queue("a/b")


async def test_the_administration_client_manages_subscriptions_and_rules(server, admin):
    await admin.create_topic("t", default_message_time_to_live="PT1H")
    await admin.create_subscription("t", "all", dead_lettering_on_message_expiration=True)
    await admin.create_subscription("t", "none")
    assert 3600.0 == (await admin.get_topic("t")).default_message_time_to_live.total_seconds()
    assert ["all", "none"] == await names(admin.list_subscriptions("t"))
    filters = {
        "kind": CorrelationRuleFilter(label="x", properties={"n": 1, "s": "y", "f": True}),
        "never": FalseRuleFilter(),
    }
    for name, criterion in filters.items():
        await admin.create_rule("t", "none", name, filter=criterion)
    await admin.delete_rule("t", "none", "$Default")
    assert ["kind", "never"] == await names(admin.list_rules("t", "none"))
    got = (await admin.get_rule("t", "none", "kind")).filter
    assert ("x", {"n": 1, "s": "y", "f": True}) == (got.label, got.properties)
    rule = await admin.get_rule("t", "none", "kind")
    rule.filter = TrueRuleFilter()
    await admin.update_rule("t", "none", rule)
    assert True is server.broker.topic("t").subscriptions["none"].rules["kind"].constant
    await admin.delete_subscription("t", "none")
    assert ["all"] == await names(admin.list_subscriptions("t"))


async def test_the_runtime_properties_of_topic_and_subscription_count_messages(server, admin):
    await admin.create_topic("t")
    await admin.create_subscription("t", "s", requires_session=True)
    async with (
        ServiceBusClient.from_connection_string(server.connection_string) as client,
        client.get_topic_sender("t") as sender,
    ):
        await sender.send_messages([ServiceBusMessage("x", session_id="a"), ServiceBusMessage("no session")])
        await sender.schedule_messages(
            ServiceBusMessage("x"), dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
        )
    topic = await admin.get_topic_runtime_properties("t")
    counts = await admin.get_subscription_runtime_properties("t", "s")
    assert (1, 1) == (topic.subscription_count, topic.scheduled_message_count)
    assert (1, 1, 1) == (
        counts.total_message_count,
        counts.active_message_count,
        counts.dead_letter_message_count,
    )


async def test_the_total_count_of_a_queue_includes_dead_letters_and_scheduled_messages(server, admin):
    await admin.create_queue("q")
    async with (
        ServiceBusClient.from_connection_string(server.connection_string) as client,
        client.get_queue_sender("q") as sender,
        client.get_queue_receiver("q") as receiver,
    ):
        await sender.send_messages([ServiceBusMessage("x"), ServiceBusMessage("y")])
        later = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
        await sender.schedule_messages(ServiceBusMessage("z"), later)
        (message,) = await receiver.receive_messages(1, max_wait_time=60)
        await receiver.dead_letter_message(message)

    assert 3 == (await admin.get_queue_runtime_properties("q")).total_message_count


def test_the_xml_has_a_namespace_prefix_only_where_azure_has_one():
    """
    On Azure, only the elements with message counts have a prefix. The SDK for JavaScript compares XML names with their
    prefixes, so it depends on this.
    """
    administration = Administration(Broker.from_config({"queues": [{"name": "q"}]}))
    _, entry = administration.answer("GET", "q", {}, b"", update=False, address="http://127.0.0.1")
    text = encode(entry).decode()
    assert (
        '<QueueDescription xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect">'
        in text
    )
    assert "<LockDuration>PT1M</LockDuration>" in text
    counts = '<CountDetails xmlns:d2p1="http://schemas.microsoft.com/netservices/2011/06/servicebus">'
    assert f"{counts}<d2p1:ActiveMessageCount>0<" in text
    assert text == encode(entry).decode(), "the entry that was written is as it was"


async def test_a_long_list_of_queues_is_returned_in_pages(admin):
    for number in range(5):
        await admin.create_queue(f"q{number}")
    assert [f"q{number}" for number in range(5)] == await names(admin.list_queues(max_page_size=2))


async def test_invalid_management_requests_are_refused(admin):
    await admin.create_queue("q")
    with pytest.raises(ResourceExistsError):
        await admin.create_queue("q")
    queue = await admin.get_queue("q")
    queue.requires_session = True
    with pytest.raises(HttpResponseError, match="RequiresSession"):
        await admin.update_queue(queue)
    for options in ({"lock_duration": "PT6M"}, {"max_delivery_count": 0}, {"forward_to": "q"}):
        with pytest.raises(HttpResponseError):
            await admin.create_queue("other", **options)
    for act in (
        admin.delete_queue("missing"),
        admin.create_subscription("q", "a queue has none"),
        admin.get_subscription("missing", "s"),
        admin.create_queue("no spaces"),
    ):
        with pytest.raises(HttpResponseError):
            await act
    assert ["q"] == await names(admin.list_queues())


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("PUT", "q", b"<no xml", 400),
        ("PUT", "q", b"<entry><content><No/></content></entry>", 400),
        ("POST", "q", b"", 405),
    ],
)
def test_a_malformed_management_request_is_refused(method, path, body, status):
    administration = Administration(Broker.from_config({"queues": [{"name": "q"}]}))
    found, _ = administration.answer(method, path, {}, body, update=False, address="http://127.0.0.1")
    assert status == found


async def test_a_request_with_a_wrong_or_no_key_is_unauthorized(server):
    wrong = server.connection_string.replace("SharedAccessKey=", "SharedAccessKey=x")
    async with ServiceBusAdministrationClient.from_connection_string(wrong, transport=PlainHttp()) as client:
        with pytest.raises(HttpResponseError) as caught:
            await names(client.list_queues())
    assert 401 == caught.value.status_code
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{server.port}/q") as response,
    ):
        assert 401 == response.status


@pytest.mark.filterwarnings("ignore:ssl=None is deprecated")
async def test_the_sdk_sends_and_receives_over_a_websocket(server, admin):
    await admin.create_queue("q")
    endpoint = f"sb://127.0.0.1:{server.port}"
    options = {"transport_type": TransportType.AmqpOverWebsocket, "custom_endpoint_address": endpoint}
    async with (
        ServiceBusClient.from_connection_string(server.connection_string, **options) as client,
        client.get_queue_sender("q") as sender,
        client.get_queue_receiver("q") as receiver,
    ):
        large = b"x" * 200_000
        await sender.send_messages(ServiceBusMessage(large))
        (got,) = await receiver.receive_messages(1, max_wait_time=60)
        assert large == b"".join(got.body)
        await receiver.complete_message(got)
    assert 1 == server.broker.queue("q").completed
