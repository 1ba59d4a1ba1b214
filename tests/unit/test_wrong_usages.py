"""
Wrong usages of the library, one row for each class of mistake: the error says what it is about, and what to do.

Which values a key, an id, a setting or a container may have is tested where that is decided; exit codes and tables in tests/cli
and tests/service.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import pytest
from azure.cosmos import PartitionKey
from azure.cosmos.aio import CosmosClient
from azure.servicebus.exceptions import ServiceBusAuthenticationError

from cosmos_outbox import (
    Commit,
    ConfigurationError,
    Conflict,
    DomainEvent,
    Entity,
    NotFound,
    Outbox,
    PreconditionFailed,
    RetryOptions,
    SoftDeletable,
    StoreUnavailable,
    TooManyRequests,
    UnitOfWork,
    UnstorableValue,
    UsageError,
)
from cosmos_outbox.adapters.cosmos import (
    CosmosChangeFeed,
    CosmosLeases,
    CosmosStore,
    open_cosmos_client,
    open_parked,
    open_store,
)
from cosmos_outbox.adapters.memory import MemoryContainer
from cosmos_outbox.adapters.servicebus.errors import publish_error
from cosmos_outbox.errors import (
    AccessDenied,
    BatchTooLarge,
    MixedPartitionKeys,
    SharedUnitOfWork,
    TopicUnavailable,
)
from cosmos_outbox_emulators.cosmos.faults import FaultRule
from cosmos_outbox_emulators.cosmos.protocol import RequestKind
from cosmos_outbox_emulators.cosmos.server import CosmosServer
from cosmos_outbox_worker.doctor.check import finding, findings_of
from cosmos_outbox_worker.doctor.service_bus import SUBSCRIPTION
from tests.support.service_bus_settings import subscription

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


class SameThing(Entity):
    entity_type: ClassVar[str] = "customer"


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


@wrong(MixedPartitionKeys, "'t' and 'b'", "adds of OrderPaid added the second", "a consumer of that event")
async def a_handler_that_adds_another_partition_key() -> None:
    def adds(event: OrderPaid, uow: UnitOfWork) -> None:
        uow.repository(Order).create(Order(tenant="b"))

    await paid(adds)


def _no_key(key: Any, why: str) -> None:
    @wrong(UsageError, repr(key)[:100], "partition key of order 'o1'", why)
    async def no_partition_key() -> None:
        await an_outbox().unit_of_work().repository(Order).read("o1", partition_key=key)


for _key, _why in (
    ("", "1 to 2048 bytes"),
    ("x" * 3000, "1 to 2048 bytes"),
    (float("nan"), "a 64-bit float holds"),
    (("t", "u"), "partitioned on /partitionKey, so its keys are a single value"),
):
    _no_key(_key, _why)


@wrong(UsageError, "'o1' cannot be the partition key", "as no `partition_key=` was given: pass one")
async def an_entity_without_its_hierarchical_key() -> None:
    await an_outbox(key_paths=["/tenantId", "/userId"]).unit_of_work().repository(Order).read("o1")


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


@wrong(ValueError, "Order", "id", "frozen")
async def another_id() -> None:
    Order(id="o1").id = "o2"


@wrong(UsageError, "order 'o1'", "neither read nor created. Read it first")
async def an_update_of_what_was_never_read() -> None:
    an_outbox().unit_of_work().repository(Order).update(Order(id="o1"))


@wrong(SharedUnitOfWork, "two tasks at once; give every task its own")
async def one_unit_of_work_in_two_tasks() -> None:
    orders = an_outbox().unit_of_work().repository(Order)
    await asyncio.gather(orders.read("a"), orders.read("b"))


@wrong(UsageError, "called commit()", "is committed anyway", "OrderPaid", "order 'o1'")
async def a_commit_in_a_handler() -> None:
    async def commits(event: OrderPaid, uow: UnitOfWork) -> None:
        await uow.commit()

    await paid(commits)


@wrong(UsageError, "without end: OrderPaid -> OrderPaid")
async def handlers_that_raise_each_others_events() -> None:
    def again(event: OrderPaid, uow: UnitOfWork) -> None:
        uow.repository(Order).create(Order()).pay()

    await paid(again)


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


def _after_the_end(use: Callable[[UnitOfWork], Awaitable[object] | None]) -> None:
    @wrong(UsageError, "has ended", "Open another one", "read the entities in it")
    async def a_unit_of_work_after_its_block() -> None:
        async with an_outbox().unit_of_work() as uow:
            pass
        await (use(uow) or asyncio.sleep(0))


for _use in (
    lambda uow: uow.commit(),
    lambda uow: uow.rollback(),
    lambda uow: uow.__aenter__(),
    lambda uow: uow.repository(Order).read("o1"),
):
    _after_the_end(_use)


def _unread(entity: Entity, how: dict[str, Any], *fragments: str) -> None:
    @wrong(NotFound, "order 'o1' in partition key", *fragments)
    async def a_read_of_what_is_not_there() -> None:
        await (await committed(entity)).unit_of_work().repository(Order).read("o1", **how)


_unread(Order(id="o1"), {}, "'o1', which", "defaults to the id", "pass `partition_key`")
_unread(Order(id="o1"), {"partition_key": "u"}, "'u'", "check the id and the partition key")
_unread(Customer(id="o1"), {"partition_key": "t"}, "'t'", "is a 'customer'", "repository of that type")


@wrong(Conflict, "'x' of partition key 't' already exists as a 'customer'", "under another id")
async def an_id_that_another_type_has() -> None:
    await committed(Order(id="x"), outbox=await committed(Customer(id="x")))


@wrong(UsageError, "order 'o1'", "commit the deletion before you create it again")
async def an_id_that_is_deleted_and_created_in_one_commit() -> None:
    async with (await committed(Order(id="o1"))).unit_of_work() as uow:
        await uow.repository(Order).delete("o1", partition_key="t")
        uow.repository(Order).create(Order(id="o1"))


@wrong(UsageError, "order 'o1'", "change the one that `read` or `create` returned first")
async def two_objects_of_one_id() -> None:
    async with (await committed(Order(id="o1"))).unit_of_work() as uow:
        await uow.repository(Order).read("o1", partition_key="t")
        uow.repository(Order).create(Order(id="o1"))


@wrong(BatchTooLarge, "101 operations", "partition key 't'", "at most 100 operations", "Split it")
async def too_many_operations() -> None:
    await committed(*(Order() for _ in range(101)))


@wrong(BatchTooLarge, "'o1' alone has 2200", "elsewhere, and a reference")
async def a_document_that_is_too_large() -> None:
    await committed(Order(id="o0"), Order(id="o1", note="x" * 2_200_000))


@wrong(UsageError, "OrderPaid", "'t'", "recorded 2 times", "make a new event")
async def one_event_that_is_recorded_twice() -> None:
    order, event = Order(), OrderPaid()
    order.record(event)
    order.record(event)
    await committed(order)


@wrong(PreconditionFailed, "'o1'", "Each of the 2 attempts", "more `attempts`")
async def a_run_that_is_always_overtaken() -> None:
    outbox = await committed(Order(id="o1"))

    async def overtaken(uow: UnitOfWork) -> None:
        order = await uow.repository(Order).read("o1", partition_key="t")
        async with outbox.unit_of_work() as other:
            (await other.repository(Order).read("o1", partition_key="t")).note += "first"
            await other.commit()
        order.note = "second"

    await outbox.run(overtaken, attempts=2)


@wrong(
    UsageError,
    "SameThing and Customer are both stored with the type 'customer'",
    "another `entity_type`",
)
async def two_classes_of_one_stored_type() -> None:
    async with (await committed(Customer(id="c1"))).unit_of_work() as uow:
        await uow.repository(Customer).read("c1", partition_key="t")
        uow.repository(SameThing)


def _taken(name: str, fields: dict[str, str], *fragments: str) -> None:
    @wrong(TypeError, name, *fragments)
    async def an_entity_type_that_cannot_be() -> None:
        type(name, (Entity,), {"__module__": __name__, **fields})


for _kind in ("domainEvent", "eventPayload", "inboxRecord", "parkedKey", "parkedEvent"):
    _taken("Taken", {"entity_type": _kind}, f"cannot be stored with the type '{_kind}'", "another")
_taken("DomainEvent", {}, "'domainEvent'", "another `entity_type`")
_taken("Empty", {"entity_type": ""}, "such as 'order', not ''")


def _document_of_ours(kind: str) -> None:
    @wrong(UsageError, "'d1'", f"the type '{kind}'", "`uow.record(event")
    async def a_document_of_a_type_that_the_library_reads() -> None:
        an_outbox().unit_of_work().save({"id": "d1", "partitionKey": "t", "type": kind})


for _kind in ("domainEvent", "eventPayload"):
    _document_of_ours(_kind)


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


async def opened(**how: Any) -> None:
    async with open_cosmos_client(**how):
        pass


@wrong(ConfigurationError, "'AccountEndpoint=https://…;AccountKey=…;'")
async def a_connection_string_of_something_else() -> None:
    await opened(connection_string="Endpoint=sb://x;SharedAccessKeyName=n;SharedAccessKey=a2V5")


@wrong(ConfigurationError, "account key", "copy it again, to its end")
async def a_key_that_is_not_whole() -> None:
    await opened(endpoint="https://a", credential="abc")


@wrong(AccessDenied, "refuses the key or token: copy the account's key again", "answered 401", "activity id")
async def a_wrong_key() -> None:
    async with CosmosServer() as server:
        await opened(endpoint=server.url, credential="d3Jvbmc=")


@wrong(StoreUnavailable, "did not answer; check the scheme, host and port", "127.0.0.1:9")
async def an_endpoint_that_does_not_answer() -> None:
    await opened(endpoint="http://127.0.0.1:9/", credential="a2V5")


@wrong(StoreUnavailable, "did not answer; check the scheme, host and port")
async def https_where_http_is_spoken() -> None:
    async with CosmosServer() as server:
        await opened(endpoint=server.url.replace("http:", "https:"), credential=server.key)


@asynccontextmanager
async def an_account() -> AsyncIterator[tuple[CosmosServer, CosmosClient]]:
    async with (
        CosmosServer() as server,
        open_cosmos_client(connection_string=server.connection_string) as client,
    ):
        database = await client.create_database("d")
        for name, ttl in (("c", -1), ("e", None)):
            await database.create_container(name, PartitionKey("/partitionKey"), default_ttl=ttl)
        yield server, client


def _unusable(use: Callable[..., Awaitable[object]], database: str, container: str, *fragments: str) -> None:
    @wrong(ConfigurationError, f"'{container}'", *fragments)
    async def a_container_that_cannot_be_used() -> None:
        async with an_account() as (_, client):
            await use(client, database, container)


async def _written(client: CosmosClient, database: str, container: str) -> None:
    bare = CosmosStore(client.get_database_client(database).get_container_client(container))
    await committed(Order(id="z"), outbox=Outbox(bare))


async def _leased(client: CosmosClient, database: str, container: str) -> None:
    leases = client.get_database_client(database).get_container_client(container)
    await CosmosLeases(leases).partitioned_by_id()


async def _relayed(client: CosmosClient, database: str, container: str) -> None:
    events = client.get_database_client(database).get_container_client(container)
    await CosmosChangeFeed(events, account_host="a").describe()


_unusable(open_store, "d", "no", "of database 'd'", "create it with partition key /partitionKey", "-1")
_unusable(open_store, "no", "c", "of database 'no', or that database, does not exist", "your entities have")
_unusable(open_parked, "d", "no", "of database 'd'", "no time to live")
_unusable(_leased, "d", "no", "of database 'd'", "create it with partition key /id", "-1 for the leases")
_unusable(_relayed, "d", "no", "create it with partition key /partitionKey", "for the events")
_unusable(_written, "d", "no", "of database 'd'", "create it, or correct the name")
_unusable(open_store, "d", "e", "off on the container", "set its default time to live to -1")


@wrong(
    TopicUnavailable,
    "Topic 'events'",
    "create it if it is missing, enable it, correct the key, or grant",
    "Service Bus said: 404",
)
async def a_missing_topic() -> None:
    raise publish_error(ServiceBusAuthenticationError(message="404"), topic="events")


@wrong(TooManyRequests, "throttles this client", "or provision more request units", "'o1'", "'t'")
async def too_few_request_units() -> None:
    async with an_account() as (server, client):
        store = await open_store(client, "d", "c")
        server.faults.add(FaultRule(operation=RequestKind.BATCH, status=429, retry_after_ms=50))
        outbox = Outbox(store, retries=RetryOptions(deadline_seconds=3, attempt_seconds=3))
        await committed(Order(id="o1"), outbox=outbox)


@pytest.mark.parametrize(("use", "error", "fragments"), ROWS)
async def test_a_wrong_usage_is_told_with_what_it_is_about_and_what_to_do(
    use: Usage, error: type[BaseException], fragments: tuple[str, ...]
):
    with pytest.raises(error) as told:
        await use()
    text = "\n".join([str(told.value), *getattr(told.value, "__notes__", ())])
    for fragment in fragments:
        assert fragment in text


def test_a_subscription_without_sessions_is_told_with_what_to_do_also_where_it_cannot_be_read():
    (told,) = findings_of(SUBSCRIPTION, subscription(requires_session=False))
    assert "Subscription 'all' of topic 'events' has no sessions" in told.message
    assert "create it anew with requiresSession" in told.fix
    # The topic's settings are only seen with the right to manage it.
    unseen = finding("topic.unread", "Not all topics", "403.")
    assert "check yourself" in unseen.fix
    assert "subscription requires sessions" in unseen.fix


async def test_what_looks_like_a_mistake_and_is_none_raises_nothing():
    uow, unknown = an_outbox().unit_of_work(), Order(id="o2")  # no block enters it
    order = uow.repository(Order).create(OrderOfHome(id="o1"))  # a subclass
    order.pay()
    order.record(PaidAtHome())  # another type of the same name
    unknown.pay()  # no unit of work knows it, as the guide says
    assert 3 == (await uow.commit()).operations
    assert Commit() == await uow.commit()
    assert unknown.is_new
