"""Site: both emulators in this process, and workers and consumers in processes of their own."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import uuid
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
from azure.cosmos.aio import CosmosClient
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from opentelemetry.trace import TracerProvider

from cosmos_outbox import Outbox
from cosmos_outbox.adapters.cosmos.client import open_cosmos_client
from cosmos_outbox.adapters.cosmos.store import CosmosStore
from cosmos_outbox_emulators.cosmos.account import Account
from cosmos_outbox_emulators.cosmos.server import CosmosServer
from cosmos_outbox_emulators.servicebus.broker import Broker
from cosmos_outbox_emulators.servicebus.server import ServiceBusServer
from examples.contacts.domain import Contact, Name
from examples.contacts.provision import provision
from examples.contacts.service import ContactsUnitOfWork, create
from tests.support.patience import HUNG_SECONDS


@dataclass(slots=True)
class WorkerProcess:
    """A worker process or consumer process, and the lines that it has logged."""

    process: Process
    following: asyncio.Task[None] = field(init=False)
    lines: list[str] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    async def follow(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self.lines.append(line.decode())
            self.news.set()
        self.news.set()

    async def said(self, text: str) -> str:
        """Wait for the first log line that contains a text, and return it."""
        async with asyncio.timeout(HUNG_SECONDS):
            while True:
                found = next((line for line in self.lines if text in line), None)
                if found is not None:
                    return found
                assert self.process.returncode is None, self.output
                self.news.clear()
                await self.news.wait()

    async def health_url(self) -> str:
        line = await self.said(".started as")
        return re.search(r"status page at (\S+?)/\"?[,}\s]", line)[1]  # type: ignore[index] # the line was just found

    async def exit_code(self) -> int:
        async with asyncio.timeout(HUNG_SECONDS):
            await self.following  # read the whole log before the process counts as ended
            return await self.process.wait()

    @property
    def output(self) -> str:
        return "".join(self.lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    cosmos: CosmosServer
    bus: ServiceBusServer
    client: CosmosClient
    store: CosmosStore
    environment: dict[str, str]
    stack: AsyncExitStack

    async def commit(
        self, *, tracer_provider: TracerProvider | None = None, contact_id: str | None = None
    ) -> str:
        """Create a contact and return the id of its event."""
        outbox = Outbox(self.store, tracer_provider=tracer_provider)
        async with outbox.unit_of_work(ContactsUnitOfWork) as uow:
            contact = Contact(
                id=contact_id or str(uuid.uuid4()), name=Name(first_name="Ada", last_name="Lovelace")
            )
            created = await create(uow, contact)
        return created.commit.events[0].id

    async def send(self, *orders: tuple[str, int]) -> None:
        """Send a message OrderPaid to the topic for each order and total. Its message id is `<order>-<total>`."""
        bus = ServiceBusClient.from_connection_string(self.bus.connection_string)
        async with bus, bus.get_topic_sender("events") as sender:
            for order, total in orders:
                event = {"id": f"{order}-{total}", "action": "OrderPaid", "createdAt": "2026-01-01T00:00:00Z"}
                body = json.dumps(event | {"orderId": order, "total": total})
                message = ServiceBusMessage(
                    body, message_id=event["id"], session_id=order, subject="OrderPaid"
                )
                await sender.send_messages(message)

    async def invoices(self) -> list[tuple[str, int]]:
        """Return the order id and the total of every invoice that is stored."""
        container = self.client.get_database_client("contacts").get_container_client("data")
        return [
            (item["data"]["orderId"], item["data"]["total"])
            async for item in container.read_all_items()
            if item.get("type") == "invoice"
        ]

    async def start_worker(self, **variables: str | None) -> WorkerProcess:
        """Start a worker process. Variables with the value None are removed from its environment."""
        return await self.start("-m", "cosmos_outbox_worker", "worker", **variables)

    async def start_consumer(self, name: str, **variables: str | None) -> WorkerProcess:
        """Start a process of a consumer in `tests.service.invoices`. Variables with the value None are removed from its environment."""
        asked = {
            "OUTBOX_SUBSCRIPTION": "all",
            "OUTBOX_PARKED_CONTAINER": "parked",
        }
        command = ("-m", "cosmos_outbox_worker", "consume", f"tests.service.invoices:{name}")
        return await self.start(*command, **(asked | variables))

    async def start(self, *command: str, **variables: str | None) -> WorkerProcess:
        wanted = self.environment | variables
        env = {name: value for name, value in os.environ.items() if not name.startswith(("OUTBOX_", "OTEL_"))}
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, *command),
            env=env | {name: value for name, value in wanted.items() if value is not None},
            stdout=PIPE,
            stderr=PIPE,
        )
        worker = WorkerProcess(process)
        worker.following = asyncio.create_task(worker.follow())

        async def end() -> None:
            if process.returncode is None:
                process.kill()
            await process.wait()
            await worker.following
            process._transport.close()  # type: ignore[attr-defined] # or its stdout is closed by the garbage collector

        self.stack.push_async_callback(end)
        return worker


@asynccontextmanager
async def opened_site(*, partitions: int = 1) -> AsyncIterator[Site]:
    account = Account(partitions=partitions)
    async with (
        CosmosServer(account) as cosmos,
        ServiceBusServer(Broker.default(), port=0) as bus,
        open_cosmos_client(connection_string=cosmos.connection_string) as client,
    ):
        await provision(cosmos.connection_string)
        container = client.get_database_client("contacts").get_container_client("data")
        # This block is inside the block with the emulators, so that the processes end before the emulators
        # stop.
        async with AsyncExitStack() as workers:
            yield Site(
                cosmos=cosmos,
                bus=bus,
                client=client,
                store=CosmosStore(container),
                stack=workers,
                environment={
                    "OUTBOX_COSMOS_CONNECTION_STRING": cosmos.connection_string,
                    "OUTBOX_COSMOS_DATABASE": "contacts",
                    "OUTBOX_COSMOS_CONTAINER": "data",
                    "OUTBOX_SERVICEBUS_CONNECTION_STRING": bus.connection_string,
                    "OUTBOX_TOPIC": "events",
                    "OUTBOX_INSTANCE_NAME": "worker-1",
                    "OUTBOX_HEALTH_PORT": "0",
                    "OUTBOX_LEASE_EXPIRATION_SECONDS": "4",
                    "OUTBOX_STALLED_SECONDS": "4",
                    "NO_PROXY": "127.0.0.1,localhost",
                },
            )


async def fetched(url: str) -> tuple[int, str]:
    """Send a GET request to a URL. Return the status and the body of the answer."""
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.status, await response.text()


async def eventually(url: str, fact: Callable[[int, str], bool], *, within: float = HUNG_SECONDS) -> str:
    """Request a URL again and again until a condition holds for the status and the body of the answer. Return this body."""
    status, body = 0, ""
    try:
        async with asyncio.timeout(within):
            while True:
                status, body = await fetched(url)
                if fact(status, body):
                    return body
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"After {within} s, {url} still answered {status} {body}") from None


def json_of(body: str) -> dict[str, object]:
    found = json.loads(body)
    assert isinstance(found, dict)
    return found
