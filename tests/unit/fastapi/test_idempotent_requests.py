"""
The header Idempotency-Key: which values are valid, to which caller and route a key belongs, and how a repeated request is answered.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Annotated, Any

import pytest
from fastapi import APIRouter, Depends, FastAPI, Header, HTTPException, Response
from pydantic_core import PydanticSerializationError

from cosmos_outbox import Answer, Outbox
from cosmos_outbox.adapters.memory import MemoryContainer
from cosmos_outbox.errors import UsageError
from cosmos_outbox.fastapi import PROBLEMS, DocumentId, IdempotentRequest, idempotency_key, install
from cosmos_outbox.fastapi.problems import MEDIA_TYPE
from tests.support.faulty_store import CommitFault, FaultyStore
from tests.support.notes import actions, stored
from tests.unit.fastapi.orders import Answer as Answered
from tests.unit.fastapi.orders import Order, Orders, ask

WITH = ("Content-Type", "application/json")


async def caller(authorization: Annotated[str, Header()] = "ada") -> str:
    return authorization


Once = Annotated[IdempotentRequest, Depends(idempotency_key(caller=caller))]
MayRepeat = Annotated[IdempotentRequest, Depends(idempotency_key(caller=None, required=False))]


def make_app(store: Any) -> FastAPI:
    app, router = FastAPI(responses=PROBLEMS), APIRouter(prefix="/shop")
    install(app, Outbox(store))

    @router.post("/orders", response_model=Order)
    async def place(body: dict[str, Any], once: Once) -> Response:
        async def work(uow: Orders) -> Answer:
            await asyncio.sleep(0.01)  # so that equal requests begin before this request ends
            order = uow.orders.create(Order(id=once.id))
            order.pay()
            if "refuse" in body:
                raise HTTPException(402)
            location = {"Location": f"/shop/orders/{order.id}"}
            return Answer(status=201, body=order, headers=location, etag_of=order)

        return await once.answer(work, kind=Orders)

    @router.put("/orders/{order_id}", status_code=204)
    async def put(order_id: DocumentId, once: MayRepeat) -> Response:
        async def work(uow: Orders) -> Answer:
            uow.orders.create(Order(id=order_id))
            return Answer(status=204)

        return await once.answer(work, partition_key=order_id, kind=Orders)

    app.include_router(router)
    return app


async def place(app: FastAPI, *keys: str, body: bytes = b'{"a": 1, "b": 2}', who: str = "ada") -> Answered:
    headers = [WITH, ("Authorization", who), *(("Idempotency-Key", key) for key in keys)]
    return await ask(app, "POST", "/shop/orders", headers, body)


async def test_a_repeated_request_gets_the_answer_of_the_first_request():
    """The header Idempotent-Replayed marks the repeated answer."""
    app = make_app(container := MemoryContainer())
    first, again = await place(app, '"k-1"'), await place(app, "k-1", body=b'{"b":2,"a":1}')

    for one in (first, again):
        del one.headers["x-correlation-id"]
    assert (201, {"id": again.body["id"], "paid": True}) == (first.status, first.body)
    assert {"content-type", "content-length", "location", "etag"} == set(first.headers)
    assert (201, first.text) == (again.status, again.text)
    assert {**first.headers, "idempotent-replayed": "true"} == again.headers
    assert ["OrderPaid"] == actions(container)


async def test_the_body_of_an_idempotent_request_may_be_nested_deeply():
    app, body = make_app(MemoryContainer()), b'{"a": ' + 400 * b"[" + 400 * b"]" + b"}"
    assert [201, 201, 422] == [(await place(app, "k", body=one)).status for one in (body, body + b" ", b"{}")]


def test_an_invalid_retention_time_of_answers_is_refused_when_the_route_is_defined():
    with pytest.raises(UsageError, match="An answer is kept"):
        idempotency_key(caller=None, remembered_for=timedelta(0))


async def test_only_one_of_eight_equal_requests_at_the_same_time_is_carried_out():
    """The other seven requests are answered with 409 and Retry-After."""
    app = make_app(container := MemoryContainer())
    answers = await asyncio.gather(*(place(app, "k") for _ in range(8)))
    assert [201] + [409] * 7 == sorted(answer.status for answer in answers)
    told = next(answer for answer in answers if answer.status == 409)
    assert (MEDIA_TYPE, "1") == (told.headers["content-type"], told.headers["retry-after"])
    assert 201 == (await place(app, "k")).status
    assert ["OrderPaid"] == actions(container)


async def test_an_idempotency_key_is_scoped_to_its_caller_and_route():
    """Another caller, or another route, may use the same key. The same caller may not use it for another body."""
    app = make_app(container := MemoryContainer())
    await place(app, "k")
    assert [201, 422] == [
        (await place(app, "k", who="bob")).status,
        (refused := await place(app, "k", body=b"{}")).status,
    ]
    assert (MEDIA_TYPE, "Its Idempotency-Key was used for another request; send it under a new one.") == (
        refused.headers["content-type"],
        refused.body["detail"],
    )
    assert [204, 422] == [
        (await ask(app, "PUT", f"/shop/orders/c{query}", [("Idempotency-Key", "k")])).status
        for query in ("", "?force=1")
    ]
    puts = [await ask(app, "PUT", f"/shop/orders/{one}", [("Idempotency-Key", "k")]) for one in "aab"]
    assert [(204, ""), (204, ""), (204, "")] == [(answer.status, answer.text) for answer in puts]
    assert 5 == len(stored(container, "order"))


@pytest.mark.parametrize("keys", [(), ("",), ("two words",), ("a" * 256,), ('"a', "b"), ("ö",), ('"a";q=1',)])
async def test_a_request_without_a_valid_idempotency_key_is_refused(keys: tuple[str, ...]):
    answer = await place(make_app(container := MemoryContainer()), *keys)
    assert (400, MEDIA_TYPE) == (answer.status, answer.headers["content-type"])
    assert "such as a UUID" in answer.body["detail"]
    assert "in double quotes if it has spaces" in answer.body["detail"]
    assert () == container.documents()


async def test_the_openapi_document_says_whether_the_idempotency_key_is_required():
    routes = make_app(MemoryContainer()).openapi()["paths"]
    operations = routes["/shop/orders"]["post"], routes["/shop/orders/{order_id}"]["put"]
    found = [one for of in operations for one in of["parameters"] if one["name"] == "Idempotency-Key"]
    assert [True, False] == [one["required"] for one in found]


async def test_a_request_without_an_optional_idempotency_key_is_carried_out_each_time():
    app = make_app(container := MemoryContainer())
    answers = [await ask(app, "PUT", "/shop/orders/a") for _ in range(2)]
    assert [204, 409] == [answer.status for answer in answers]
    assert [] == stored(container, "requestAnswer")


async def test_the_answer_of_a_failed_request_is_not_kept():
    app = make_app(container := MemoryContainer())
    assert 402 == (await place(app, "k", body=b'{"refuse": true}')).status
    assert () == container.documents()
    assert 201 == (await place(app, "k")).status


async def test_a_request_with_an_unknown_outcome_is_answered_with_503_and_retry_after():
    store = FaultyStore(MemoryContainer(), [CommitFault.LOST_BEFORE] * 99)
    answer = await place(make_app(store), "k")
    assert (503, "1") == (answer.status, answer.headers["retry-after"])
    assert "repeat the request under the same Idempotency-Key" in answer.body["detail"]


async def test_a_caller_that_cannot_be_serialized_is_refused():
    app = FastAPI()
    install(app, Outbox(MemoryContainer()))

    @app.post("/")
    async def route(once: Annotated[IdempotentRequest, Depends(idempotency_key(caller=object))]) -> None:
        raise AssertionError

    with pytest.raises(PydanticSerializationError, match="object"):
        await ask(app, "POST", "/", [("Idempotency-Key", "k")])
