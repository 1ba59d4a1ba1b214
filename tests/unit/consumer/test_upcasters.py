"""
Upcasters: a consumer handles payloads of earlier schema versions, for event types of this library and for models of other libraries.
"""

from __future__ import annotations

import json
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel

from cosmos_outbox import UnitOfWork
from cosmos_outbox.consumer import Consumer, Message
from cosmos_outbox.records import MessageGivenUp
from tests.support.shop import OrderPaid, message, ran


def in_cents(payload: dict[str, Any]) -> dict[str, Any]:
    return {**payload, "total": payload["total"] * 100}


def with_currency(payload: dict[str, Any]) -> dict[str, Any]:
    return {**payload, "currency": "EUR"}


class Priced(OrderPaid):
    action = "OrderPaid"
    schema_version = 3
    upcasters: ClassVar = {1: in_cents, 2: with_currency}
    currency: str


async def _handler(event: BaseModel, message: Message, uow: UnitOfWork) -> None: ...


class ForeignPriced(BaseModel):
    total: int
    currency: str


@pytest.mark.parametrize(
    ("model", "options"),
    [
        (Priced, {}),
        (ForeignPriced, {"subject": "OrderPaid", "version": 3, "upcasters": Priced.upcasters}),
    ],
)
@pytest.mark.parametrize(("version", "total"), [(1, 500), (2, 5)])
async def test_upcasters_convert_an_old_payload_to_the_version_of_the_handler(
    model: type[BaseModel], options: dict[str, Any], version: int, total: int
):
    consumer, seen = Consumer("invoicing"), []

    @consumer.on(model, **options)
    async def invoice(event: Any, message: Message, uow: UnitOfWork) -> None:
        seen.append((event.total, event.currency))

    old = message(OrderPaid(order_id="o1", total=5), properties={"schema-version": version})
    await ran(consumer, old)

    assert [(total, "EUR")] == seen


async def test_an_old_version_goes_to_the_lowest_handler_version_that_its_upcasters_reach():
    consumer, seen = Consumer("invoicing"), []

    def handled_as(name: str) -> Any:
        async def handler(event: Any, message: Message, uow: UnitOfWork) -> None:
            seen.append((name, event.total))

        return handler

    for version, upcasters in ((2, {}), (3, {1: in_cents, 2: in_cents}), (4, {3: in_cents})):
        takes = consumer.on(ForeignPriced, subject="OrderPaid", version=version, upcasters=upcasters)
        takes(handled_as(f"takes {version}"))
    priced = {"total": 5, "currency": "EUR"}
    for version in (1, 2, 4):
        body, said = json.dumps(priced).encode(), {"schema-version": version}
        await ran(consumer, message(OrderPaid(order_id="o1"), body=body, properties=said))

    assert [("takes 3", 50_000), ("takes 2", 5), ("takes 4", 5)] == seen


@pytest.mark.parametrize(
    ("version", "upcasters", "advice"),
    [
        (1, {}, ", or give Priced2 an upcaster from version 1."),
        (1, {1: in_cents}, ", or give Priced2 an upcaster from version 2."),
        (2, {1: in_cents}, ", or give Priced2 an upcaster from version 2."),
        (4, {1: in_cents}, "this consumer takes 3. Deploy a consumer that takes it."),
    ],
)
async def test_the_error_of_an_unknown_version_names_the_missing_upcaster(
    version: int, upcasters: Any, advice: str
):
    """If the version is newer than the handler's, the error advises to deploy a newer consumer."""

    class Priced2(Priced):
        pass

    Priced2.upcasters = upcasters
    consumer = Consumer("invoicing")
    consumer.on(Priced2, subject="OrderPaid")(_handler)
    world = await ran(consumer, message(OrderPaid(order_id="o1"), properties={"schema-version": version}))

    (parked,) = world.of(MessageGivenUp, "parked")
    assert "UnknownVersion" == parked.reason
    assert str(parked.error).endswith(advice)


async def test_the_error_of_an_upcaster_that_returns_none_names_its_version():
    consumer = Consumer("invoicing")
    upcasters = {1: in_cents, 2: lambda payload: None}
    consumer.on(ForeignPriced, subject="OrderPaid", version=3, upcasters=upcasters)(_handler)  # type: ignore[arg-type]
    world = await ran(consumer, message(OrderPaid(order_id="o1"), properties={"schema-version": 1}))

    (parked,) = world.of(MessageGivenUp, "parked")
    said = "The upcaster of OrderPaid from version 2 returned None, and should return the payload, a dict."
    assert said == str(parked.error)


@pytest.mark.parametrize("version", [0, 2, 3])
def test_an_upcaster_for_the_current_or_a_later_version_is_refused_when_declared(version: int):
    said = f"takes schema version 2, so its upcasters start at earlier versions, not at {version}. Name the"
    with pytest.raises(TypeError, match=f"Repriced {said}"):

        class Repriced(OrderPaid):
            schema_version = 2
            upcasters: ClassVar = {version: in_cents}

    with pytest.raises(TypeError, match=f"ForeignPriced {said}"):
        Consumer("c").on(ForeignPriced, subject="p", version=2, upcasters={version: in_cents})
    with pytest.raises(TypeError, match="ForeignPriced takes schema version 1, "):
        Consumer("c").on(ForeignPriced, subject="p", upcasters={1: in_cents})
