"""
A container that an application had before it used the outbox. It has orders, and its partition key paths are `/tenantId` and `/userId`.
"""

from __future__ import annotations

from azure.cosmos import PartitionKey
from azure.cosmos.aio import CosmosClient

from cosmos_outbox import DomainEvent, Entity, Outbox
from cosmos_outbox.adapters.cosmos.store import CosmosStore, open_store

PATHS = ["/tenantId", "/userId"]
NAME = "orders"


class OrderPlaced(DomainEvent):
    total: int


class OrderPaid(DomainEvent):
    total: int


class Order(Entity):
    tenant: str
    user: int
    total: int

    @property
    def partition_key(self) -> tuple[str, int]:
        return self.tenant, self.user

    def created_event(self) -> OrderPlaced:
        return OrderPlaced(total=self.total)

    def pay(self) -> None:
        self.record(OrderPaid(total=self.total))


async def create_container(client: CosmosClient, database: str) -> CosmosStore:
    """Create the container `orders`, which has a hierarchical partition key, and return a store for it."""
    await client.get_database_client(database).create_container(NAME, PartitionKey([*PATHS]), default_ttl=-1)
    return await open_store(client, database, NAME)


async def place(store: CosmosStore, tenant: str, user: int, *, order_id: str = "1") -> list[str]:
    """Place and pay an order in one commit. Return the ids of the two events."""
    async with Outbox(store).unit_of_work() as uow:
        order = Order(id=order_id, tenant=tenant, user=user, total=5)
        uow.repository(Order).create(order).pay()
        return [event.id for event in (await uow.commit()).events]
