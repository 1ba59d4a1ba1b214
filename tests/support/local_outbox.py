"""Fill the outbox on which tests run the commands of the how-to pages: some events are sent, and the key `ada` is parked."""

from __future__ import annotations

from azure.cosmos.aio import DatabaseProxy

from cosmos_outbox import DomainEvent, Entity, Outbox
from cosmos_outbox.adapters.cosmos.feed import CosmosChangeFeed
from cosmos_outbox.adapters.cosmos.parked import CosmosParked
from cosmos_outbox.adapters.cosmos.store import CosmosStore
from cosmos_outbox.adapters.memory.broker import MemoryBroker
from cosmos_outbox.parking import Parking
from cosmos_outbox.ports import ChangeBatch, StartFrom
from cosmos_outbox.relay import Relay
from cosmos_outbox_worker.cli.replay import read_events
from tests.support.local import Local

PARKED_KEY = "ada"


class PersonRenamed(DomainEvent):
    name: str


class Person(Entity):
    name: str

    def rename(self, name: str, event_id: str) -> None:
        self.name = name
        self.record(PersonRenamed(id=event_id, name=name))


def fill(local: Local) -> None:
    """
    Commit two events for each of three keys. A relay then parks the key `ada` and sends the events of the other keys.
    All leases are moved to the newest change.
    """
    local.on_database(_commit)
    local.on_database(_relay)
    local.pass_all()


async def _commit(database: DatabaseProxy) -> None:
    outbox = Outbox(CosmosStore(database.get_container_client("data")))
    for key in (PARKED_KEY, "grace", "alan"):
        async with outbox.unit_of_work() as uow:
            person = Person(id=key, name=key)
            person.rename(key.title(), f"{key}-1")
            person.rename(key.upper(), f"{key}-2")
            uow.repository(Person).create(person)
            await uow.commit()


async def _relay(database: DatabaseProxy) -> None:
    broker = MemoryBroker(rejects=lambda message: message.session_id == PARKED_KEY)
    relay = Relay(
        broker.publisher(lanes=1), parking=Parking(CosmosParked(database.get_container_client("parked")))
    )
    feed = CosmosChangeFeed(database.get_container_client("data"), account_host="localhost")
    container_rid = (await feed.describe()).container_rid
    async for found in read_events(feed, start=StartFrom.BEGINNING):
        if found.documents:
            await relay(
                ChangeBatch(
                    lease="l", documents=found.documents, processor="outbox", container_rid=container_rid
                )
            )
