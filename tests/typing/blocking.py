"""Example code without an event loop that uses the write side. mypy checks it, and it never runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, assert_type

from cosmos_outbox import Commit, DomainEvent, Entity, EntityPage, Outbox
from cosmos_outbox.adapters.memory import MemoryContainer
from cosmos_outbox.blocking import BlockingDocuments, BlockingOutbox, BlockingRepository, BlockingUnitOfWork


class Invoice(Entity):
    amount: int = 0


class Note:
    text: str = ""


class Invoices(BlockingUnitOfWork):
    @property
    def invoices(self) -> BlockingRepository[Invoice]:
        return self.repository(Invoice)


@asynccontextmanager
async def open_outbox() -> AsyncIterator[Outbox]:
    yield Outbox(MemoryContainer())


def read_one(uow: BlockingUnitOfWork) -> Invoice:
    return uow.repository(Invoice).read("id", partition_key="key")


def read_with_invoices(uow: Invoices) -> Invoice:
    return uow.invoices.read("id", include_deleted=True)


async def read_async(uow: BlockingUnitOfWork) -> Invoice:
    return uow.repository(Invoice).read("id")


def use() -> None:
    with BlockingOutbox(open_outbox) as outbox:
        assert_type(outbox, BlockingOutbox)
        with outbox.unit_of_work(Invoices) as uow:
            assert_type(uow, Invoices)
            invoice = uow.invoices.read("id", if_none_match='"etag"')
            assert_type(invoice, Invoice)
            assert_type(uow.invoices.create(invoice), Invoice)
            assert_type(uow.invoices.update(invoice, "etag"), Invoice)
            assert_type(uow.invoices.delete("id", hard=True), Invoice)
            assert_type(uow.invoices.page_of_key("key", page_size=5), EntityPage[Invoice])
            assert_type(uow.invoices.query("SELECT * FROM c WHERE c.n = @n", {"n": 1}), EntityPage[Invoice])
            assert_type(uow.invoices.page_of_all_keys(10, None), EntityPage[Invoice])
            assert_type(uow.documents(), BlockingDocuments[dict[str, Any]])
            assert_type(uow.documents(Note).read("id"), Note)
            assert_type(uow.save(Note()), Note)
            uow.record(DomainEvent(), about=invoice)
            assert_type(uow.commit(), Commit)
        with outbox.unit_of_work() as plain:
            assert_type(plain, BlockingUnitOfWork)
        assert_type(outbox.run(read_one), Invoice)
        assert_type(outbox.run(read_with_invoices, kind=Invoices, attempts=3), Invoice)


def misuse(uow: Invoices) -> None:
    uow.invoices.read(3)  # type: ignore[arg-type]
    uow.invoices.create(Note())  # type: ignore[arg-type]
    uow.invoices.page_of_key(page_size=2)  # type: ignore[call-arg]
    BlockingOutbox(MemoryContainer)  # type: ignore[arg-type]
    BlockingOutbox(open_outbox).run(read_with_invoices)  # type: ignore[arg-type]
