"""An example application of FastAPI. mypy checks it, and it never runs."""

from __future__ import annotations

from typing import Annotated, assert_type

from fastapi import Depends, FastAPI, Response

from cosmos_outbox import Entity, Outbox, Repository, UnitOfWork
from cosmos_outbox.adapters.memory import MemoryContainer
from cosmos_outbox.fastapi import (
    NOT_MODIFIED,
    PROBLEMS,
    DocumentId,
    IfMatch,
    IfNoneMatch,
    Match,
    NoneMatch,
    OutboxDep,
    RequiredIfMatch,
    UnitOfWorkDep,
    install,
    set_etag,
    unit_of_work,
)


class Invoice(Entity):
    amount: int = 0


class Invoices(UnitOfWork):
    @property
    def invoices(self) -> Repository[Invoice]:
        return self.repository(Invoice)


InvoicesDep = Annotated[Invoices, Depends(unit_of_work(Invoices))]

app = FastAPI(responses=PROBLEMS)
install(app)
install(app, Outbox(MemoryContainer()), invalid_status=400)


@app.get("/{invoice_id}", responses=NOT_MODIFIED)
async def read(invoice_id: DocumentId, uow: InvoicesDep, known: IfNoneMatch, response: Response) -> Invoice:
    assert_type(invoice_id, str)
    assert_type(uow, Invoices)
    assert_type(known, NoneMatch)
    invoice = await uow.invoices.read(invoice_id)
    known.check(invoice)
    set_etag(response, invoice)
    return invoice


@app.delete("/")
async def delete(uow: UnitOfWorkDep, outbox: OutboxDep, match: IfMatch, required: RequiredIfMatch) -> None:
    assert_type(uow, UnitOfWork)
    assert_type(outbox, Outbox)
    assert_type(match, Match)
    assert_type(required, Match)
