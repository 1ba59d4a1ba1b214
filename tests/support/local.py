"""Local: an outbox on emulators in a thread of this process, for tests of the commands. Environment variables name the emulators."""

from __future__ import annotations

import asyncio
import json
import os
import urllib.request
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from threading import Thread
from typing import Any, TypeVar

from azure.cosmos.aio import ContainerProxy, DatabaseProxy
from typer import testing

from cosmos_outbox import Outbox
from cosmos_outbox.adapters.cosmos.client import open_cosmos_client
from cosmos_outbox.adapters.cosmos.feed import CosmosChangeFeed
from cosmos_outbox.adapters.cosmos.store import CosmosStore
from cosmos_outbox.changefeed.leases import range_of
from cosmos_outbox.ports import StartFrom
from cosmos_outbox_emulators.control import ControlServer
from cosmos_outbox_emulators.cosmos.account import Account
from cosmos_outbox_emulators.cosmos.clock import AdjustableClock
from cosmos_outbox_emulators.cosmos.server import CosmosServer
from cosmos_outbox_emulators.servicebus.broker import Broker
from cosmos_outbox_emulators.servicebus.server import ServiceBusServer
from cosmos_outbox_worker.cli.app import app
from examples.contacts.domain import Contact, Name
from examples.contacts.provision import provision
from examples.contacts.service import ContactsUnitOfWork
from tests.support.patience import HUNG_SECONDS

T = TypeVar("T")

# Cache this function of Typer, which otherwise reads the signatures of all commands again for each run of a command.
testing._get_command = cache(testing._get_command)


@dataclass(frozen=True, slots=True, kw_only=True)
class Local:
    """The addresses of the running emulators, the name of the database, and the environment variables for commands."""

    cosmos: str
    servicebus: str
    control: str
    database: str
    environment: dict[str, str]

    def run(self, *arguments: str, code: int | None = 0, **variables: str) -> testing.Result:
        """Run a command in this process, and require that it exits with `code`. None allows any exit code."""
        result = testing.CliRunner().invoke(app, arguments, env=self.environment | variables)
        assert code in (None, result.exit_code), (result.output, result.stderr, result.exception)
        return result

    def json(self, *arguments: str, code: int | None = 0, **variables: str) -> Any:
        """Run a command with --json and return its JSON output."""
        return json.loads(self.run(*arguments, "--json", code=code, **variables).stdout)

    def rows(self, *arguments: str, code: int | None = 0, **variables: str) -> Any:
        """Run a listing command with --json, and return its rows."""
        (rows,) = self.json(*arguments, code=code, **variables).values()
        return rows

    def steer(self, path: str, **body: object) -> Any:
        """Send a request to the control API of the emulators, and return its answer."""
        request = urllib.request.Request(  # noqa: S310 - our own server
            self.control + path, data=json.dumps(body).encode(), method="POST" if body else "GET"
        )
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def steer_delete(self, path: str) -> None:
        """Send a DELETE request to the control API, for example to remove all faults."""
        request = urllib.request.Request(self.control + path, method="DELETE")  # noqa: S310 - our own server
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request).close()

    def on_database(self, work: Callable[[DatabaseProxy], Awaitable[T]]) -> T:
        """Call a function with a client for the database, and return its result."""

        async def opened() -> T:
            async with open_cosmos_client(connection_string=self.cosmos) as client:
                return await work(client.get_database_client(self.database))

        return asyncio.run(opened())

    def on_leases(self, work: Callable[[ContainerProxy], Awaitable[T]]) -> T:
        return self.on_database(lambda database: work(database.get_container_client("leases")))

    def own_leases(self, owner: str | None) -> None:
        """Write an owner into every lease, as if a worker had acquired all of them."""

        async def own(leases: ContainerProxy) -> None:
            async for item in leases.read_all_items():
                if "LeaseToken" in item:
                    await leases.replace_item(item["id"], item | {"Owner": owner})

        self.on_leases(own)

    def pass_all(self) -> None:
        """Create the leases, and move the position of each to the newest change, as if workers had handled all changes."""
        self.run("bootstrap")

        async def move(database: DatabaseProxy) -> None:
            leases = database.get_container_client("leases")
            feed = CosmosChangeFeed(database.get_container_client("data"), account_host="localhost")
            container_rid = (await feed.describe()).container_rid
            async for item in leases.read_all_items():
                if (feed_range := range_of(item)) is not None:
                    page = await feed.read_page(
                        feed_range,
                        container_rid=container_rid,
                        continuation=None,
                        start=StartFrom.NOW,
                        max_items=1,
                    )
                    await leases.replace_item(item["id"], item | {"ContinuationToken": page.continuation})

        self.on_database(move)

    def commit(self, *names: str) -> list[str]:
        """For each name, create a contact and rename it. Return the ids of all events."""

        async def write(database: DatabaseProxy) -> list[str]:
            outbox = Outbox(CosmosStore(database.get_container_client("data")))
            ids = []
            for name in names:
                async with outbox.unit_of_work(ContactsUnitOfWork) as uow:
                    contact = Contact(id=name, name=Name(first_name=name, last_name="A"))
                    uow.contacts.create(contact)
                    ids += [event.id for event in (await uow.commit()).events]
                    contact.rename(Name(first_name=name, last_name="B"))
                    ids += [event.id for event in (await uow.commit()).events]
            return ids

        return self.on_database(write)

    @property
    def accepted(self) -> int:
        """Return how many messages the subscription `all` has. Duplicates that the topic dropped do not count."""
        return int(self.steer("/servicebus/stats")["topics"]["events"]["subscriptions"]["all"]["active"])


@contextmanager
def emulators(*, partitions: int = 2) -> Iterator[Local]:
    """Run the emulators in a thread of this process, and create the containers of an outbox on them."""
    addresses: Future[dict[str, str]] = Future()
    loop, over = asyncio.new_event_loop(), asyncio.Event()

    async def serve() -> None:
        clock, broker = AdjustableClock(), Broker.default()
        subscription = broker.queue("events/Subscriptions/all")
        subscription.config = replace(subscription.config, lock_s=60)  # the default lock of Azure
        async with (
            CosmosServer(Account(partitions=partitions, clock=clock)) as cosmos,
            ServiceBusServer(broker, port=0) as servicebus,
            ControlServer(cosmos, broker, clock=clock) as control,
        ):
            strings = {"cosmos": cosmos.connection_string, "servicebus": servicebus.connection_string}
            addresses.set_result(strings | {"control": control.url})
            await over.wait()

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(serve())

    thread = Thread(target=run)
    thread.start()
    try:
        yield provisioned(addresses.result(timeout=HUNG_SECONDS), "contacts")
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(timeout=HUNG_SECONDS)


def provisioned(announced: Mapping[str, str], database: str) -> Local:
    """Create the containers of an outbox on running emulators. Return the addresses and the environment variables for it."""
    asyncio.run(provision(announced["cosmos"], database=database))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OUTBOX_")}
    return Local(
        cosmos=announced["cosmos"],
        servicebus=announced["servicebus"],
        control=announced["control"],
        database=database,
        environment=environment
        | {
            "NO_PROXY": "127.0.0.1,localhost",
            "no_proxy": "127.0.0.1,localhost",
            "OUTBOX_COSMOS_CONNECTION_STRING": announced["cosmos"],
            "OUTBOX_COSMOS_DATABASE": database,
            "OUTBOX_COSMOS_CONTAINER": "data",
            "OUTBOX_SERVICEBUS_CONNECTION_STRING": announced["servicebus"],
            "OUTBOX_TOPIC": "events",
        },
    )
