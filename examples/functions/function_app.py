"""An Azure Functions app with a relay and a consumer. `docs/how-to/azure-functions.md` explains it."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack

import azure.functions as func

from cosmos_outbox import DomainEvent, Entity, Outbox, UnitOfWork
from cosmos_outbox.adapters.cosmos import (
    CosmosChangeFeed,
    account_of,
    open_cosmos_client,
    open_parked,
    open_store,
)
from cosmos_outbox.adapters.servicebus import ServiceBusPublisher, open_service_bus_client
from cosmos_outbox.consumer import Consumer, Handling, Message
from cosmos_outbox.parking import Parking
from triggers import Once, TriggeredRelay, consume

COSMOS, BUS = "OUTBOX_COSMOS_CONNECTION_STRING", "OUTBOX_SERVICEBUS_CONNECTION_STRING"
DATABASE, CONTAINER = os.environ["OUTBOX_COSMOS_DATABASE"], os.environ["OUTBOX_COSMOS_CONTAINER"]
TOPIC, PARKED = os.environ["OUTBOX_TOPIC"], os.environ["OUTBOX_PARKED_CONTAINER"]

app = func.FunctionApp()


@Once
async def events(stack: AsyncExitStack) -> TriggeredRelay:
    cosmos = await stack.enter_async_context(open_cosmos_client(connection_string=os.environ[COSMOS]))
    bus = await stack.enter_async_context(open_service_bus_client(connection_string=os.environ[BUS]))
    publisher = await stack.enter_async_context(ServiceBusPublisher(bus, TOPIC))
    container = cosmos.get_database_client(DATABASE).get_container_client(CONTAINER)
    return TriggeredRelay(
        publisher,
        await CosmosChangeFeed(container, account_host=account_of(cosmos).host).describe(),
        processor="functions",
        parking=Parking(await open_parked(cosmos, DATABASE, PARKED)),
    )


@app.cosmos_db_trigger(
    arg_name="documents",
    connection=COSMOS,
    database_name=DATABASE,
    container_name=CONTAINER,
    lease_container_name="function-leases",
    lease_container_prefix="relay",
    max_items_per_invocation=100,
    start_from_beginning=True,  # type: ignore[arg-type]  # the package annotates it as it does start_from_time
)
@app.retry(strategy="fixed_delay", max_retry_count="-1", delay_interval="00:00:10")
async def relay(documents: func.DocumentList) -> None:
    await (await events())(documents)


class PersonRenamed(DomainEvent):
    name: str


class Account(Entity):
    key_fields = ("person",)

    person: str
    name: str = ""


accounting = Consumer("accounting")


@accounting.on(PersonRenamed)
async def follow(event: PersonRenamed, message: Message, uow: UnitOfWork) -> None:
    accounts, person = uow.repository(Account), message.session_id
    account = await accounts.find(f"account-{person}", partition_key=person)
    if account is None:
        account = accounts.create(Account(id=f"account-{person}", person=person))
    account.name = event.name


@Once
async def handling(stack: AsyncExitStack) -> Handling:
    cosmos = await stack.enter_async_context(open_cosmos_client(connection_string=os.environ[COSMOS]))
    accounting.bind(Outbox(await open_store(cosmos, DATABASE, CONTAINER)))
    return accounting.handling(
        source=f"{TOPIC}/all",
        parking=Parking(await open_parked(cosmos, DATABASE, PARKED), references=False),
    )


@app.service_bus_topic_trigger(
    arg_name="message",
    connection=BUS,
    topic_name=TOPIC,
    subscription_name="all",
    is_sessions_enabled=True,
    data_type="binary",
)
async def account(message: func.ServiceBusMessage) -> None:
    await consume(message, await handling())
