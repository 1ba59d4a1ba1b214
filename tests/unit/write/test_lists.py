"""
Lists of the entities of one partition key, page by page, and reads of subclasses through the repository of a base class.
"""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum

import pytest

from cosmos_outbox import Entity, NotFound, Outbox, SoftDeletable, UnitOfWork, UsageError
from cosmos_outbox.adapters.memory import MemoryContainer
from tests.support.notes import written


class Status(StrEnum):
    OPEN = "open"
    PAID = "paid"


class Order(Entity):
    tenant: str
    status: Status = Status.OPEN
    total: Decimal = Decimal(0)
    placed_at: datetime = datetime(2026, 1, 1, tzinfo=UTC)

    @property
    def partition_key(self) -> str:
        return self.tenant


class Payment(Entity):
    order: str

    @property
    def partition_key(self) -> str:
        return self.order


class CardPayment(Payment):
    card: str


class CashPayment(Payment, SoftDeletable):
    coins: int


def at(day: int) -> datetime:
    return datetime(2026, 1, day, tzinfo=UTC)


@pytest.fixture
async def uow() -> UnitOfWork:
    container = MemoryContainer(ranges=2)
    orders = [
        Order(id="o1", tenant="t", total=Decimal("9.50"), placed_at=at(3)),
        Order(id="o2", tenant="t", status=Status.PAID, placed_at=at(1)),
        Order(id="o3", tenant="t", placed_at=at(2)),
        Order(id="o1", tenant="u"),
    ]
    payments = CardPayment(id="p1", order="t", card="visa"), CashPayment(id="p2", order="t", coins=3)
    await written(container, *orders, *payments)
    return Outbox(container).unit_of_work()


async def test_the_pages_of_a_list_are_in_the_order_of_ids(uow: UnitOfWork):
    orders = uow.repository(Order)
    first = await orders.page_of_key("t", page_size=2)
    second = await orders.page_of_key("t", page_size=2, continuation=first.continuation)
    assert ["o1", "o2", "o3"] == [order.id for order in (*first.entities, *second.entities)]
    assert second.continuation is None


async def test_a_list_needs_a_partition_key_and_a_page_size(uow: UnitOfWork):
    orders = uow.repository(Order)
    with pytest.raises(UsageError, match="page_size"):
        await orders.page_of_key("t", page_size=0)
    with pytest.raises(UsageError, match="partition key"):
        await orders.page_of_key("")


async def test_a_query_on_the_memory_container_is_refused(uow: UnitOfWork):
    """The error advises to use the emulator."""
    with pytest.raises(UsageError, match="emulator"):
        await uow.repository(Order).query("SELECT * FROM c WHERE c.data.total > @least", {"least": 5})


async def test_the_repository_of_a_base_class_reads_entities_of_subclasses(uow: UnitOfWork):
    payments = uow.repository(Payment)
    page = await payments.page_of_key("t")
    assert [CardPayment, CashPayment] == [type(payment) for payment in page.entities]
    assert page.entities == (await payments.page_of_all_keys()).entities
    card = await payments.read("p1", partition_key="t")
    assert (CardPayment, "visa") == (type(card), getattr(card, "card", None))
    assert card is await uow.repository(CardPayment).read("p1", partition_key="t")
    with pytest.raises(NotFound):
        await uow.repository(CashPayment).read("p1", partition_key="t")


async def test_two_subclasses_with_the_same_entity_type_are_refused():
    class Shape(Entity):
        pass

    class Circle(Shape):
        entity_type = "round"

    class Ball(Shape):
        entity_type = "round"

    uow = Outbox(MemoryContainer()).unit_of_work()
    with pytest.raises(UsageError, match=r"Ball.*Circle.*'round'.*entity_type"):
        await uow.repository(Shape).read("s")
    await uow.repository(Circle).page_of_key("s")
