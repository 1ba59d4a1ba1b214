"""Example code that uses the write side as programs do. mypy checks it, and it never runs."""

from __future__ import annotations

from typing import assert_type

from cosmos_outbox import (
    Commit,
    DomainEvent,
    Entity,
    EntityPage,
    Outbox,
    Repository,
    RetryOptions,
    UnitOfWork,
)
from cosmos_outbox.adapters.cosmos.client import open_cosmos_client
from cosmos_outbox.adapters.cosmos.store import CosmosStore, open_store
from cosmos_outbox.adapters.memory.container import MemoryContainer


class Paid(DomainEvent):
    amount: int


class Invoice(Entity):
    amount: int = 0

    def pay(self, amount: int) -> None:
        self.amount -= amount
        self.record(Paid(amount=amount))


class Meter(Entity):
    @property
    def partition_key(self) -> tuple[str, int]:
        return self.id, 5


async def read_under_a_hierarchical_key(uow: UnitOfWork, meter: Meter) -> None:
    assert_type(meter.partition_key, tuple[str, int])
    await uow.repository(Meter).read("id", partition_key=meter.partition_key)
    await uow.repository(Meter).read("id", partition_key=["a", 5])  # type: ignore[arg-type]
    MemoryContainer(key_paths=["/tenantId", "/number"])


class Invoices(UnitOfWork):
    @property
    def invoices(self) -> Repository[Invoice]:
        return self.repository(Invoice)


async def on_paid(event: Paid, uow: UnitOfWork) -> None:
    assert_type(await uow.repository(Invoice).read(event.id), Invoice)


async def read_one(uow: UnitOfWork) -> Invoice:
    return await uow.repository(Invoice).read("id")


async def read_with_invoices(uow: Invoices) -> Invoice:
    return await uow.invoices.read("id")


async def use() -> None:
    outbox = Outbox(MemoryContainer(), retries=RetryOptions(deadline_seconds=5))
    outbox.on(Paid, on_paid)
    outbox.on(Paid, lambda event, uow: uow.rollback())
    outbox.publishes(Paid, lambda event: Paid(amount=event.amount))
    outbox.publishes(Paid, lambda event: None)
    async with outbox.unit_of_work(Invoices) as uow:
        assert_type(uow, Invoices)
        invoice = await uow.invoices.read("id", if_none_match='"etag"')
        assert_type(await uow.invoices.find("id", partition_key=Invoice.key_of("id")), Invoice | None)
        invoice.pay(3)
        assert_type(uow.invoices.update(invoice, "etag"), Invoice)
        assert_type(await uow.commit(), Commit)
        assert_type(await uow.invoices.page_of_all_keys(10, None), EntityPage[Invoice])
        assert_type(invoice.events, tuple[DomainEvent, ...])
    assert_type(await outbox.run(read_one), Invoice)
    assert_type(await outbox.run(read_with_invoices, kind=Invoices, attempts=3), Invoice)
    async with outbox.unit_of_work() as plain:
        assert_type(plain, UnitOfWork)
    async with open_cosmos_client(endpoint="https://a.documents.azure.com") as client:
        assert_type(await open_store(client, "database", "container"), CosmosStore)
