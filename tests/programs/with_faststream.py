"""
Run faststream-azure-servicebus against the Service Bus emulator.

The program receives the messages of a queue in order, and those of a subscription. It sends a request and gets the reply. One of its
handlers fails, so the message becomes a dead letter.
"""

from __future__ import annotations

import asyncio
import os

from azure.servicebus import ServiceBusSubQueue
from azure.servicebus.aio import ServiceBusClient
from faststream_azure_servicebus import ServiceBusBroker

broker = ServiceBusBroker(os.environ["SERVICEBUS"], logger=None)
numbers: list[int] = []
news: list[str] = []


@broker.subscriber(queue="numbers")
async def take(number: int) -> None:
    if number < 0:
        raise ValueError("as it should")
    numbers.append(number)


@broker.subscriber(topic="news", subscription="all")
async def hear(body: dict[str, str]) -> None:
    news.append(body["text"])


@broker.subscriber(queue="questions")
async def double(body: dict[str, int]) -> dict[str, int]:
    return {"answer": body["value"] * 2}


async def main() -> None:
    await broker.start()
    await broker.publish(-1, queue="numbers")
    await broker.publish(0, queue="numbers")
    await broker.publish_batch(*range(1, 21), queue="numbers")
    await broker.publish({"text": "hello"}, topic="news", subject="greeting")
    reply = await broker.request({"value": 21}, queue="questions", reply_to="answers", timeout=300)
    assert await reply.decode() == {"answer": 42}
    while len(numbers) < 21 or not news:  # noqa: ASYNC110 - two handlers fill them
        await asyncio.sleep(0.1)
    await broker.stop()
    assert numbers == list(range(21)), numbers
    assert news == ["hello"], news
    async with (
        ServiceBusClient.from_connection_string(os.environ["SERVICEBUS"]) as client,
        client.get_queue_receiver("numbers", sub_queue=ServiceBusSubQueue.DEAD_LETTER) as dead,
    ):
        assert [str(message) for message in await dead.receive_messages(10, max_wait_time=10)] == ["-1"]
    print("faststream: 21 numbers in order, one dead-lettered; a topic; a request and its reply")


asyncio.run(main())
