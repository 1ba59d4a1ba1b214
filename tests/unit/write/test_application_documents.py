"""
Documents in the application's own shape (dicts, dataclasses, models): they are written with their events in one commit. After a lost
answer, the library finds out whether the commit was written, as it does for entities.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

from cosmos_outbox import (
    Conflict,
    DomainEvent,
    NotFound,
    NotModified,
    Outbox,
    PreconditionFailed,
    UnitOfWork,
    UnreadableDocument,
    UnstorableValue,
    UsageError,
)
from cosmos_outbox.adapters.memory import MemoryContainer
from cosmos_outbox.message_format import message_of
from cosmos_outbox.stored_documents import stored_event
from tests.support.notes import events


class OrderPaid(DomainEvent):
    order_id: str


@dataclass
class Order:
    id: str
    partitionKey: str  # noqa: N815 - as it is stored
    total: int = 0
    lines: list[str] = field(default_factory=list)


class Basket(BaseModel):
    model_config = ConfigDict(extra="forbid")

    id: str
    partitionKey: str  # noqa: N815 - as it is stored
    products: list[str] = []


class Cents:
    """A class that CentsMapper converts to another shape for the store."""

    def __init__(self, key: str, amount: int) -> None:
        self.key, self.amount = key, amount


class CentsMapper:
    def to_document(self, model: Cents) -> dict[str, Any]:
        return {"id": model.key, "partitionKey": model.key, "euros": model.amount / 100}

    def from_document(self, document: dict[str, Any]) -> Cents:
        return Cents(document["id"], round(document["euros"] * 100))


def content(container: MemoryContainer, document_id: str) -> dict[str, Any]:
    [found] = [document for document in container.documents() if document["id"] == document_id]
    return {name: value for name, value in found.items() if not name.startswith("_")}


@pytest.fixture
def container() -> MemoryContainer:
    return MemoryContainer()


@pytest.fixture
def uow(container: MemoryContainer) -> UnitOfWork:
    return Outbox(container).unit_of_work()


@pytest.mark.parametrize(
    "model",
    [
        {"id": "o", "partitionKey": "o", "total": 5, "lines": []},
        Order(id="o", partitionKey="o", total=5),
    ],
)
async def test_an_application_document_and_its_event_are_written_in_one_commit(
    container: MemoryContainer, uow: UnitOfWork, model: Any
):
    uow.save(model)
    uow.record(OrderPaid(order_id="o"), about=model)
    commit = await uow.commit()
    assert 2 == commit.operations
    assert {"id": "o", "partitionKey": "o", "total": 5, "lines": []} == content(container, "o")
    [event] = events(container)
    kind = "dict" if isinstance(model, dict) else "order"
    assert (kind, "o", commit.id) == tuple(
        event["meta"][name] for name in ("entityType", "entityId", "commitId")
    )
    assert "entityVersion" not in event["meta"]
    stored = stored_event(event)
    assert stored is not None
    assert ("o", "OrderPaid") == (message_of(stored).session_id, message_of(stored).subject)


@pytest.mark.parametrize(("version", "told"), [(7, 7), (True, None), ("7", None)])
async def test_an_event_has_the_type_and_version_of_its_application_document(
    container: MemoryContainer, uow: UnitOfWork, version: object, told: int | None
):
    order = {"id": "o", "partitionKey": "o", "type": "legacyOrder", "version": version}
    uow.save(order)
    uow.record(OrderPaid(order_id="o"), about=order)
    await uow.commit()
    meta = events(container)[0]["meta"]
    assert ("legacyOrder", told) == (meta["entityType"], meta.get("entityVersion"))


async def test_an_event_has_no_entity_version_if_the_model_has_no_version_field(
    container: MemoryContainer, uow: UnitOfWork
):
    uow.save({"id": "o", "partitionKey": "o", "version": 7})
    await uow.commit()
    uow.rollback()
    order = await uow.documents(Order).read("o")
    uow.record(OrderPaid(order_id="o"), about=order)
    await uow.commit()
    assert "entityVersion" not in events(container)[0]["meta"]
    assert 7 == content(container, "o")["version"]


@pytest.mark.parametrize("model_type", [dict, Order, Basket])
async def test_a_changed_application_document_keeps_its_unknown_fields(
    container: MemoryContainer, uow: UnitOfWork, model_type: type[Any]
):
    stored = {"id": "o", "partitionKey": "o", "ttl": 500, "colour": {"deep": 1}}
    if model_type is Basket:
        stored = {"id": "o", "partitionKey": "o"}
    uow.save(dict(stored))
    await uow.commit()
    uow.rollback()
    model = await uow.documents(model_type).read("o")
    assert None is (await uow.commit()).id
    if isinstance(model, dict):
        model["total"] = 8
    elif isinstance(model, Order):
        model.total = 8
    else:
        model.products.append("tea")
    assert 1 == (await uow.commit()).operations
    assert stored.items() <= content(container, "o").items()
    assert 8 == content(container, "o").get("total", 8)
    assert (model_type is Basket) == ("products" in content(container, "o"))


async def test_a_mapper_converts_a_model_to_its_stored_document(container: MemoryContainer, uow: UnitOfWork):
    cents = uow.documents(Cents, CentsMapper())
    cents.save(Cents("c", 250))
    await uow.commit()
    assert 2.5 == content(container, "c")["euros"]
    uow.rollback()
    model = await cents.read("c")
    assert model is await cents.read("c")
    model.amount += 1
    await uow.commit()
    assert 2.51 == content(container, "c")["euros"]


async def test_a_dict_from_the_sdk_is_replaced_under_its_etag(container: MemoryContainer):
    outbox = Outbox(container)
    async with outbox.unit_of_work() as uow:
        uow.save({"id": "o", "partitionKey": "o"})
        await uow.commit()
    order = await container.read("o", "o")
    for n in (1, 2):  # each commit puts its etag into the dict
        async with outbox.unit_of_work() as uow:
            order["n"] = n
            uow.save(order)
            await uow.commit()
    assert {"id": "o", "partitionKey": "o", "n": 2} == content(container, "o")
    stale = dict(order, _etag='"stale"')
    async with outbox.unit_of_work() as uow:
        uow.save(stale)
        with pytest.raises(PreconditionFailed):
            await uow.commit()


async def test_a_typed_model_is_replaced_under_the_given_etag(container: MemoryContainer):
    outbox = Outbox(container)
    async with outbox.unit_of_work() as uow:
        uow.save(Order(id="o", partitionKey="o"))
        await uow.commit()
    etag = (await container.read("o", "o"))["_etag"]
    async with outbox.unit_of_work() as uow:
        uow.save(Order(id="o", partitionKey="o", total=3), etag=etag)
        await uow.commit()
        order = await uow.documents(Order).read("o")
        with pytest.raises(PreconditionFailed):
            uow.save(order, etag='"other"')
    assert 3 == content(container, "o")["total"]
    async with outbox.unit_of_work() as uow:
        uow.save(Order(id="o", partitionKey="o"))
        with pytest.raises(Conflict):
            await uow.commit()


async def test_a_deleted_application_document_is_not_found(container: MemoryContainer, uow: UnitOfWork):
    order = uow.save({"id": "o", "partitionKey": "o"})
    await uow.commit()
    documents = uow.documents()
    with pytest.raises(NotModified):
        await documents.read("o", if_none_match=(await container.read("o", "o"))["_etag"])
    documents.delete(order)
    uow.record(OrderPaid(order_id="o"), about=order)
    assert await uow.documents().find("o") is None
    with pytest.raises(NotFound):
        await documents.read("o")
    await uow.commit()
    assert ["domainEvent"] == [document["type"] for document in container.documents()]


async def test_an_error_names_an_invalid_application_document(container: MemoryContainer, uow: UnitOfWork):
    with pytest.raises(UsageError, match=r"`id` of text.*Order.* has 5"):
        uow.save(Order(id=5, partitionKey="o"))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="dataclass"):
        uow.save("text")
    with pytest.raises(UsageError, match="`save` it first"):
        uow.record(OrderPaid(order_id="o"), about={"id": "o"})
    with pytest.raises(UsageError, match="`save` it first"):
        uow.documents().delete({"id": "o"})
    for bad in ({"at": object()}, {"at": float("nan")}, {"at": b"\xff"}):
        order: dict[str, Any] = uow.save({"id": "o", "partitionKey": "o"})
        order |= bad
        with pytest.raises(UnstorableValue, match=r"dict.*'o'.*at"):
            await uow.commit()
        uow.rollback()
    uow.save({"id": "o"})
    with pytest.raises(UsageError, match="None cannot be the partition key of dict 'o'"):
        await uow.commit()
    uow.rollback()
    uow.save({"id": "o", "partitionKey": "o", "total": "many"})
    await uow.commit()
    uow.rollback()
    with pytest.raises(UnreadableDocument, match=r"Order 'o'.*total"):
        await uow.documents(Order).read("o")


async def test_a_field_that_would_be_read_back_as_another_value_is_refused(uow: UnitOfWork):
    uow.save(Order(id="o", partitionKey="o", lines=["a", 5]))  # type: ignore[list-item]
    with pytest.raises(UnstorableValue, match=r"Order 'o'.*lines"):
        await uow.commit()


async def test_two_objects_for_one_document_are_refused(uow: UnitOfWork):
    uow.save({"id": "o", "partitionKey": "o"})
    with pytest.raises(UsageError, match="Two different objects"):
        uow.save({"id": "o", "partitionKey": "o"})
