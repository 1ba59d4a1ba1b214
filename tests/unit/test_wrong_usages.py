"""
Wrong usages of the library, one row for each class of mistake: the error says what it is about, and what to do.

Which values a key, an id, a setting or a container may have is tested where that is decided; exit codes and tables in tests/cli
and tests/service.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

import pytest

from cosmos_outbox import (
    Commit,
    ConfigurationError,
    Conflict,
    DomainEvent,
    Entity,
    NotFound,
    Outbox,
    SoftDeletable,
    UnitOfWork,
    UnstorableValue,
    UsageError,
)
from cosmos_outbox.adapters.cosmos import (
    open_cosmos_client,
    open_parked,
)
from cosmos_outbox.adapters.memory import MemoryContainer
from cosmos_outbox.errors import (
    BatchTooLarge,
    MixedPartitionKeys,
    SharedUnitOfWork,
)
from cosmos_outbox_emulators.cosmos.server import CosmosServer

pytestmark = pytest.mark.looptime(False)


class OrderPaid(DomainEvent):
    amount: float = 1.0


class Order(Entity):
    tenant: str = "t"
    note: str = ""

    @property
    def partition_key(self) -> str:
        return self.tenant

    def pay(self, **facts: Any) -> None:
        self.record(OrderPaid(**facts))


class OrderOfHome(Order):
    pass


class PaidAtHome(DomainEvent):
    action: ClassVar[str] = "OrderPaid"


class Customer(Entity):
    tenant: str = "t"

    @property
    def partition_key(self) -> str:
        return self.tenant


class Unmarked(SoftDeletable):
    def delete(self) -> None:
        self.record(OrderPaid())


Usage = Callable[[], Awaitable[object]]
ROWS: list[Any] = []


def wrong(error: type[BaseException], *fragments: str) -> Callable[[Usage], Usage]:
    """Add a row: the error of a usage, which the function's name says, and what its text has to hold."""

    def added(use: Usage) -> Usage:
        ROWS.append(pytest.param(use, error, fragments, id=f"{len(ROWS)} {use.__name__}"))
        return use

    return added


def an_outbox(**how: Any) -> Outbox:
    return Outbox(MemoryContainer(**how))


async def committed(*entities: Entity, outbox: Outbox | None = None) -> Outbox:
    outbox = outbox or an_outbox()
    async with outbox.unit_of_work() as uow:
        for entity in entities:
            uow.repository(type(entity)).create(entity)
        await uow.commit()
    return outbox


async def paid(handler: Callable[..., Any]) -> None:
    """Commit a payment of which a handler is told."""
    outbox, order = an_outbox(), Order(id="o1")
    outbox.on(OrderPaid, handler)
    order.pay(id="e1")
    await committed(order, outbox=outbox)


@wrong(MixedPartitionKeys, "'a' and 'b'", "in two units of work")
async def two_partition_keys_in_one_commit() -> None:
    await committed(Order(tenant="a"), Order(tenant="b"))


@wrong(UsageError, "('t', 'u')", "partition key of order 'o1'", "partitioned on /partitionKey")
async def a_key_of_another_shape() -> None:
    await an_outbox().unit_of_work().repository(Order).read("o1", partition_key=("t", "u"))


@wrong(UsageError, "'a/b'", "the id of a new order", "without / \\ ? #")
async def an_id_that_cosmos_db_refuses() -> None:
    await committed(Order(id="a/b"))


@wrong(
    UsageError,
    "order 'o1' is stored under the partition key 't', and Order makes 'u' of it now",
    "create another one",
)
async def another_partition_key() -> None:
    async with (await committed(Order(id="o1"))).unit_of_work() as uow:
        order = await uow.repository(Order).read("o1", partition_key="t")
        order.tenant = "u"
        uow.repository(Order).update(order)
        await uow.commit()


@wrong(UsageError, "order 'o1'", "neither read nor created. Read it first")
async def an_update_of_what_was_never_read() -> None:
    an_outbox().unit_of_work().repository(Order).update(Order(id="o1"))


@wrong(SharedUnitOfWork, "two tasks at once; give every task its own")
async def one_unit_of_work_in_two_tasks() -> None:
    orders = an_outbox().unit_of_work().repository(Order)
    await asyncio.gather(orders.read("a"), orders.read("b"))


@wrong(KeyError, "'lost'", "handler", "breaks", "of OrderPaid 'e1'", "order 'o1' of partition key 't'")
async def a_handler_that_raises() -> None:
    def breaks(event: OrderPaid, uow: UnitOfWork) -> None:
        raise KeyError("lost")

    await paid(breaks)


@wrong(
    UnstorableValue,
    "OrderPaid 'e1' of partition key 't'",
    "because the field 'amount' could not be read back",
    "Correct the value",
)
async def a_value_that_cannot_be_read_back() -> None:
    order = Order(id="o1")
    order.pay(id="e1", amount=float("nan"))
    await committed(order)


@wrong(UsageError, "has ended", "Open another one", "read the entities in it")
async def a_unit_of_work_after_its_block() -> None:
    async with an_outbox().unit_of_work() as uow:
        pass
    await uow.commit()


@wrong(NotFound, "order 'o1' in partition key", "'o1', which", "defaults to the id", "pass `partition_key`")
async def a_read_without_the_partition_key() -> None:
    await (await committed(Order(id="o1"))).unit_of_work().repository(Order).read("o1")


@wrong(Conflict, "'x' of partition key 't' already exists as a 'customer'", "under another id")
async def an_id_that_another_type_has() -> None:
    await committed(Order(id="x"), outbox=await committed(Customer(id="x")))


@wrong(UsageError, "order 'o1'", "commit the deletion before you create it again")
async def an_id_that_is_deleted_and_created_in_one_commit() -> None:
    async with (await committed(Order(id="o1"))).unit_of_work() as uow:
        await uow.repository(Order).delete("o1", partition_key="t")
        uow.repository(Order).create(Order(id="o1"))


@wrong(BatchTooLarge, "101 operations", "partition key 't'", "at most 100 operations", "Split it")
async def too_many_operations() -> None:
    await committed(*(Order() for _ in range(101)))


@wrong(UsageError, "OrderPaid", "'t'", "recorded 2 times", "make a new event")
async def one_event_that_is_recorded_twice() -> None:
    order, event = Order(), OrderPaid()
    order.record(event)
    order.record(event)
    await committed(order)


@wrong(TypeError, "Taken", "cannot be stored with the type 'inboxRecord'", "another")
async def an_entity_type_of_ours() -> None:
    type("Taken", (Entity,), {"__module__": __name__, "entity_type": "inboxRecord"})


@wrong(TypeError, "Empty", "such as 'order', not ''")
async def an_entity_type_that_is_empty() -> None:
    type("Empty", (Entity,), {"__module__": __name__, "entity_type": ""})


@wrong(UsageError, "'d1'", "the type 'domainEvent'", "`uow.record(event")
async def a_document_of_a_type_that_the_library_reads() -> None:
    an_outbox().unit_of_work().save({"id": "d1", "partitionKey": "t", "type": "domainEvent"})


@wrong(UsageError, "the Order 'o1', which is an entity", "`uow.repository(Order).create(…)`")
async def an_entity_that_is_saved_as_a_document() -> None:
    an_outbox().unit_of_work().save(Order(id="o1"))


@wrong(UsageError, "order 'o1' belongs to another unit of work, which is still open", "Read it in this one")
async def an_entity_of_an_open_unit_of_work_in_another() -> None:
    outbox = await committed(Order(id="o1"))
    async with outbox.unit_of_work() as first, outbox.unit_of_work() as second:
        order = await first.repository(Order).read("o1", partition_key="t")
        order.note = "mine"
        second.repository(Order).update(order)


@wrong(UsageError, "order 'o1' belongs to another unit of work", "Make another object here")
async def a_new_entity_in_two_units_of_work() -> None:
    first, second = an_outbox().unit_of_work(), an_outbox().unit_of_work()
    second.repository(Order).create(first.repository(Order).create(Order(id="o1")))


@wrong(UsageError, "order 'o1' cannot be created", "make another object")
async def one_entity_that_is_created_twice() -> None:
    order = Order(id="o1")
    await committed(order)
    await committed(order)


@wrong(UsageError, "Unmarked.delete", "unmarked 'x'", "`super().delete()`")
async def a_deletion_without_super() -> None:
    async with (await committed(Unmarked(id="x"))).unit_of_work() as uow:
        await uow.repository(Unmarked).delete("x")


@wrong(ConfigurationError, "'parked'", "of database 'd', or that database, does not exist", "no time to live")
async def a_container_that_is_missing() -> None:
    async with (
        CosmosServer() as server,
        open_cosmos_client(connection_string=server.connection_string) as client,
    ):
        await open_parked(client, "d", "parked")


@pytest.mark.parametrize(("use", "error", "fragments"), ROWS)
async def test_a_wrong_usage_is_told_with_what_it_is_about_and_what_to_do(
    use: Usage, error: type[BaseException], fragments: tuple[str, ...]
):
    with pytest.raises(error) as told:
        await use()
    text = "\n".join([str(told.value), *getattr(told.value, "__notes__", ())])
    for fragment in fragments:
        assert fragment in text


async def test_what_looks_like_a_mistake_and_is_none_raises_nothing():
    uow, unknown = an_outbox().unit_of_work(), Order(id="o2")  # no block enters it
    order = uow.repository(Order).create(OrderOfHome(id="o1"))  # a subclass
    order.pay()
    order.record(PaidAtHome())  # another type of the same name
    unknown.pay()  # no unit of work knows it, as the guide says
    assert 3 == (await uow.commit()).operations
    assert Commit() == await uow.commit()
    assert unknown.is_new
