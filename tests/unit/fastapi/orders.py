"""A small FastAPI application for the tests of this directory, which is called without a server."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Response

from cosmos_outbox import DomainEvent, Entity, Outbox, Repository, Store, UnitOfWork
from cosmos_outbox.fastapi import (
    NOT_MODIFIED,
    PROBLEMS,
    DocumentId,
    IfMatch,
    IfNoneMatch,
    OutboxDep,
    RequiredIfMatch,
    UnitOfWorkDep,
    install,
    set_etag,
    unit_of_work,
)


class OrderPaid(DomainEvent):
    order_id: str


class Order(Entity):
    paid: bool = False

    def pay(self) -> None:
        self.paid = True
        self.record(OrderPaid(order_id=self.id))


class Orders(UnitOfWork):
    @property
    def orders(self) -> Repository[Order]:
        return self.repository(Order)


OrdersDep = Annotated[Orders, Depends(unit_of_work(Orders))]


def make_app(store: Store, **options: Any) -> FastAPI:
    app = FastAPI(responses=PROBLEMS)
    install(app, Outbox(store), **options)

    @app.post("/orders/{order_id}", status_code=HTTPStatus.CREATED)
    async def create_order(order_id: DocumentId, uow: UnitOfWorkDep, response: Response) -> Order:
        order = uow.repository(Order).create(Order(id=order_id))
        await uow.commit()
        set_etag(response, order)
        return order

    @app.get("/orders/{order_id}", responses=NOT_MODIFIED)
    async def read_order(
        order_id: DocumentId, uow: OrdersDep, if_none_match: IfNoneMatch, response: Response
    ) -> Order:
        order = await uow.orders.read(order_id)
        if_none_match.check(order)
        set_etag(response, order)
        return order

    @app.post("/orders/{order_id}/payment")
    async def pay_order(
        order_id: DocumentId, uow: OrdersDep, if_match: RequiredIfMatch, response: Response
    ) -> Order:
        order = await uow.orders.read(order_id)
        if_match.check(order)
        order.pay()
        await uow.commit()
        set_etag(response, order)
        return order

    @app.delete("/orders/{order_id}", status_code=HTTPStatus.NO_CONTENT)
    async def delete_order(
        order_id: DocumentId, uow: OrdersDep, if_match: IfMatch, if_none_match: IfNoneMatch
    ) -> None:
        order = await uow.orders.read(order_id)
        if_match.check(order)
        if_none_match.check(order)
        await uow.orders.delete(order_id)
        await uow.commit()

    @app.get("/outbox")
    async def outbox_type(outbox: OutboxDep) -> str:
        return type(outbox).__name__

    return app


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    status: int
    headers: dict[str, str]
    text: str

    @property
    def body(self) -> Any:
        return json.loads(self.text)


async def ask(
    app: FastAPI, method: str, path: str, headers: Iterable[tuple[str, str]] = (), body: bytes = b""
) -> Answer:
    """
    Send a request to the application and return the answer, even if the application raises an error after it has answered.
    """
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body}

    async def send(message: Any) -> None:
        sent.append(message)

    path, _, query = path.partition("?")
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "root_path": "",
        "scheme": "http",
        "query_string": query.encode(),
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in headers],
        "server": ("localhost", 80),
    }
    with suppress(RuntimeError):
        await app(scope, receive, send)
    start, *parts = sent
    return Answer(
        status=start["status"],
        headers={name.decode(): value.decode() for name, value in start["headers"]},
        text=b"".join(part["body"] for part in parts).decode(),
    )
