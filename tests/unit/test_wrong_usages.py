"""
Wrong usages of the library, one row for each class of mistake: the error says what is wrong, and what to do.

Other tests cover which values a key, an id, a setting or a container may have. Exit codes and tables are tested in tests/cli and
tests/service.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, ClassVar
from uuid import uuid4

import attrs
import pytest
from azure.cosmos import CosmosClient as BlockingClient

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
    UsageError,
)
from cosmos_outbox.adapters.cosmos import open_store
from cosmos_outbox.adapters.memory import MemoryContainer
from cosmos_outbox.consumer import Consumer

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


@attrs.define
class Invoice:
    id: str
    partitionKey: str  # noqa: N815 - as stored


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
    """
    Return a decorator that adds a row to the table of mistakes. The decorated function makes the mistake, and its name describes it. It has
    to raise `error`, with a text that contains the `fragments`.
    """

    def added(use: Usage) -> Usage:
        ROWS.append(pytest.param(use, error, fragments, id=f"{len(ROWS)} {use.__name__}"))
        return use

    return added


MAPPER = ("DocumentMapper (`to_document`, `from_document`)", "`uow.documents(Invoice, mapper).save(…)`")


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
    """Commit a payment, so that a consumer handles its event."""
    outbox, order = an_outbox(), Order(id="o1")
    outbox.on(OrderPaid, handler)
    order.pay(id="e1")
    await committed(order, outbox=outbox)


@wrong(UsageError, "'a/b'", "the id of a new order", "without / \\ ? #")
async def an_id_that_cosmos_db_refuses() -> None:
    await committed(Order(id="a/b"))


@wrong(UsageError, "order 'o1'", "neither read nor created. Read it first")
async def an_update_of_what_was_never_read() -> None:
    an_outbox().unit_of_work().repository(Order).update(Order(id="o1"))


@wrong(KeyError, "'lost'", "handler", "breaks", "of OrderPaid 'e1'", "order 'o1' of partition key 't'")
async def a_handler_that_raises() -> None:
    def breaks(event: OrderPaid, uow: UnitOfWork) -> None:
        raise KeyError("lost")

    await paid(breaks)


@wrong(UsageError, "has ended", "Open another one", "read the entities in it")
async def a_unit_of_work_after_its_block() -> None:
    async with an_outbox().unit_of_work() as uow:
        pass
    await uow.commit()


@wrong(NotFound, "order 'o1' in partition key", "'o1', which", "defaults to the id", "pass `partition_key`")
async def a_read_without_the_partition_key() -> None:
    await (await committed(Order(id="o1"))).unit_of_work().repository(Order).read("o1")


class Seat(Entity):
    key_fields = ("hall", "row")

    hall: str
    row: int


@wrong(UsageError, "Seat is not its id", "'s1'", "pass `partition_key=Seat.key_of(hall, row)`")
async def a_read_without_the_key_that_the_class_names() -> None:
    await an_outbox().unit_of_work().repository(Seat).read("s1")


@wrong(UsageError, "Order is not its id", "'o1'", "pass `partition_key=…`")
async def a_search_without_the_partition_key() -> None:
    await an_outbox().unit_of_work().repository(Order).find("o1")


@wrong(UsageError, "Seat is made of hall, row: give one value for each", "by name, not ('main')")
async def a_key_of_too_few_values() -> None:
    Seat.key_of("main")


@wrong(UsageError, "Seat is made of hall, row", "not ('main', 5, seat=7)")
async def a_key_of_a_value_that_has_no_place() -> None:
    Seat.key_of("main", 5, seat=7)


@wrong(UsageError, "Order is made of what its `partition_key` says: give that", "as `key_fields`")
async def a_key_that_no_fields_make() -> None:
    Order.key_of("t")


@wrong(TypeError, "Stall.key_fields", "a tuple of 1 to 3 field names", "is 'hall'")
async def a_key_of_fields_that_is_a_text() -> None:
    type("Stall", (Seat,), {"__module__": __name__, "key_fields": "hall"})


@wrong(TypeError, "Stall.key_fields", "must not define `partition_key` as well")
async def a_key_that_is_said_twice() -> None:
    type("Stall", (Seat,), {"__module__": __name__, "partition_key": Order.partition_key})


@wrong(Conflict, "'x' of partition key 't' already exists as a 'customer'", "under another id")
async def an_id_that_another_type_has() -> None:
    await committed(Order(id="x"), outbox=await committed(Customer(id="x")))


@wrong(UsageError, "order 'o1'", "commit the deletion before you create it again")
async def an_id_that_is_deleted_and_created_in_one_commit() -> None:
    async with (await committed(Order(id="o1"))).unit_of_work() as uow:
        await uow.repository(Order).delete("o1", partition_key="t")
        uow.repository(Order).create(Order(id="o1"))


@wrong(UsageError, "OrderPaid", "'t'", "recorded 2 times", "make a new event")
async def one_event_that_is_recorded_twice() -> None:
    order, event = Order(), OrderPaid()
    order.record(event)
    order.record(event)
    await committed(order)


@wrong(UsageError, "`record` takes a DomainEvent such as OrderPaid(...), not {'amount': 1}")
async def a_dict_in_place_of_an_event() -> None:
    Order(id="o1").record({"amount": 1})  # type: ignore[arg-type]


@wrong(UsageError, "`record` takes a DomainEvent such as OrderPaid(...), not <class '")
async def a_class_in_place_of_its_event() -> None:
    Order(id="o1").record(OrderPaid)  # type: ignore[arg-type]


@wrong(UsageError, "OrderPaid'> is no class of an Entity; use `uow.documents`")
async def a_repository_of_events() -> None:
    an_outbox().unit_of_work().repository(OrderPaid)  # type: ignore[type-var]


@wrong(TypeError, "Taken", "cannot be stored with the type 'inboxRecord'", "another")
async def an_entity_type_of_ours() -> None:
    type("Taken", (Entity,), {"__module__": __name__, "entity_type": "inboxRecord"})


@wrong(UsageError, "'d1'", "the type 'domainEvent'", "`uow.record(event")
async def a_document_of_a_type_that_the_library_reads() -> None:
    an_outbox().unit_of_work().save({"id": "d1", "partitionKey": "t", "type": "domainEvent"})


@wrong(UsageError, "the entity Order 'o1'", "`uow.repository(Order).create(…)`")
async def an_entity_that_is_saved_as_a_document() -> None:
    an_outbox().unit_of_work().save(Order(id="o1"))


@wrong(UsageError, "cannot store instances of Invoice", "no dict, dataclass or pydantic model", *MAPPER)
async def a_class_of_attrs_that_is_saved_without_a_mapper() -> None:
    an_outbox().unit_of_work().save(Invoice(id="i1", partitionKey="t"))


@wrong(UsageError, "cannot store instances of Invoice", *MAPPER)
async def a_class_of_attrs_that_is_read_without_a_mapper() -> None:
    an_outbox().unit_of_work().documents(Invoice)


@wrong(UsageError, "needs an `id` of text, and this dict has None")
async def a_document_without_an_id() -> None:
    an_outbox().unit_of_work().save({"partitionKey": "t"})


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


@wrong(
    UsageError,
    "repository(Order)` takes objects of that class, not of Customer",
    "use their own repository",
)
async def an_entity_that_is_given_to_the_repository_of_another() -> None:
    an_outbox().unit_of_work().repository(Order).create(Customer())  # type: ignore[arg-type]


@wrong(UsageError, "takes objects of that class, not of Customer")
async def an_update_in_the_repository_of_another() -> None:
    an_outbox().unit_of_work().repository(Order).update(Customer())  # type: ignore[arg-type]


@wrong(UsageError, "not of dict", "`uow.save(…)` for dicts")
async def a_dict_that_is_given_to_a_repository() -> None:
    an_outbox().unit_of_work().repository(Order).create({"id": "o1"})  # type: ignore[arg-type]


@wrong(UsageError, "repository(Order)` takes an id", "no object of Order: pass the `id`", "`str(…)`")
async def a_deletion_of_an_entity_in_place_of_its_id() -> None:
    await an_outbox().unit_of_work().repository(Order).delete(Order())  # type: ignore[arg-type]


class _Unshown:
    def __repr__(self) -> str:
        raise AssertionError("`run` formatted its work as text, although nothing was wrong.")

    async def __call__(self, unit_of_work: object) -> int:
        return 5


async def test_outbox_run_makes_a_text_of_its_function_only_for_an_error() -> None:
    assert await an_outbox().run(_Unshown()) == 5


@wrong(UsageError, "`run` awaits its work", "returned 5: make it an `async def`")
async def work_that_is_no_coroutine_function() -> None:
    await an_outbox().run(lambda uow: 5)  # type: ignore[arg-type,return-value]


@wrong(UsageError, "pass the function itself, `run(work)` and not `run(work(…))`; None is no function")
async def work_that_is_called_already() -> None:
    await an_outbox().run(None)  # type: ignore[arg-type]


@wrong(TypeError, "a str is none: pass `await open_store(client, database, container)`")
async def a_connection_string_in_place_of_a_store() -> None:
    Outbox("AccountEndpoint=https://x;AccountKey=secret;")  # type: ignore[arg-type]


@wrong(ConfigurationError, "takes an Outbox(await open_store(client, database, container)), not a str")
async def a_text_in_place_of_the_outbox_of_a_consumer() -> None:
    Consumer("invoicing", "orders")  # type: ignore[arg-type]


@wrong(ConfigurationError, "backoff takes Backoff(initial_seconds=…, maximum_seconds=…), not 2")
async def a_number_in_place_of_a_back_off() -> None:
    Consumer("invoicing", backoff=2)  # type: ignore[arg-type]


@wrong(TypeError, "`on` calls handler(event, unit_of_work)", "<lambda> does not take that: too many")
async def an_event_handler_of_one_argument() -> None:
    an_outbox().on(OrderPaid, lambda event: None)  # type: ignore[misc,arg-type]


@wrong(UsageError, "without end: OrderPaid -> OrderRefunded -> …", "only where it changed something")
async def event_handlers_that_call_each_other() -> None:
    class OrderRefunded(DomainEvent):
        pass

    outbox, order = an_outbox(), Order()
    outbox.on(OrderPaid, lambda event, uow: order.record(OrderRefunded()))
    outbox.on(OrderRefunded, lambda event, uow: order.pay())
    order.pay()
    await committed(order, outbox=outbox)


@wrong(UsageError, "entered by `async with`, not by `with`")
async def a_unit_of_work_that_is_entered_by_with() -> None:
    with an_outbox().unit_of_work():  # type: ignore[attr-defined]
        pass


@wrong(ConfigurationError, "attempts must be a whole number from 1, such as 5, not '5'")
async def a_number_that_is_a_text() -> None:
    Consumer("invoicing", attempts="5")  # type: ignore[arg-type]


@wrong(TypeError, "as in `@consumer.on(OrderPaid)`")
async def a_handler_of_nothing() -> None:
    Consumer("invoicing").on()  # type: ignore[call-overload]


@wrong(TypeError, "OrderPaid has no field 'amuont'. Did you mean amount?")
async def an_event_of_a_field_that_its_class_has_not() -> None:
    OrderPaid(amuont=2.0)  # type: ignore[call-arg]


@wrong(ConfigurationError, "(client, database, container)", "azure.cosmos.aio", "<class 'str'> is none")
async def a_store_that_is_opened_with_arguments_in_another_order() -> None:
    await open_store("billing", None, "data")  # type: ignore[arg-type]


@wrong(ConfigurationError, "azure.cosmos.aio", "<class 'azure.cosmos.cosmos_client.CosmosClient'> is none")
async def a_client_that_blocks() -> None:
    await open_store(object.__new__(BlockingClient), "d", "data")  # type: ignore[arg-type]


@wrong(UsageError, "it is a method: write `@property` above it")
async def a_partition_key_that_is_a_method() -> None:
    await committed(type("Stray", (Entity,), {"__module__": __name__, "partition_key": lambda self: "k"})())


@wrong(UsageError, "of a UUID take `str(…)`")
async def a_partition_key_that_is_a_uuid() -> None:
    await committed(Order.model_construct(tenant=uuid4()))


@pytest.mark.parametrize(("use", "error", "fragments"), ROWS)
async def test_the_error_of_a_wrong_usage_says_what_to_do(
    use: Usage, error: type[BaseException], fragments: tuple[str, ...]
):
    with pytest.raises(error) as told:
        await use()
    text = "\n".join([str(told.value), *getattr(told.value, "__notes__", ())])
    for fragment in fragments:
        assert fragment in text


async def test_correct_usages_that_look_like_mistakes_raise_nothing():
    uow, unknown = an_outbox().unit_of_work(), Order(id="o2")  # the unit of work is used without `async with`
    order = uow.repository(Order).create(OrderOfHome(id="o1"))  # a subclass
    order.pay()
    order.record(PaidAtHome())  # an event whose class has the same name as another event class
    unknown.pay()  # an entity that no unit of work knows may record events
    assert 3 == (await uow.commit()).operations
    assert Commit() == await uow.commit()
    assert unknown.is_new
