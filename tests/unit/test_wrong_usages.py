"""
Wrong usages of the library, one row each: the error says which document, partition key, event or field it is about, and what to do.

Rows that ask a worker's settings or an operator's command are here too, as far as their texts are made by pure functions; exit
codes and tables are tested in tests/cli and tests/service.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import azure.cosmos
import pytest
from azure.cosmos import PartitionKey
from azure.cosmos.aio import CosmosClient
from azure.cosmos.exceptions import CosmosHttpResponseError
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
from cosmos_outbox.adapters.cosmos.errors import translate
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
from cosmos_outbox_worker.settings import Settings, load, unknown_variables
from tests.support.service_bus_settings import subscription

pytestmark = pytest.mark.looptime(False)

GUIDE = Path(__file__).parents[2] / "docs/how-to/write.md"


class OrderPlaced(DomainEvent):
    order_id: str = "o1"


class OrderPaid(DomainEvent):
    amount: float = 1.0
    proof: bytes = b""


class Order(Entity):
    tenant: str = "t"
    weight: float = 0.0
    note: str = ""

    @property
    def partition_key(self) -> str:
        return self.tenant

    def pay(self, **facts: Any) -> None:
        self.record(OrderPaid(**facts))


class Customer(Entity):
    tenant: str = "t"

    @property
    def partition_key(self) -> str:
        return self.tenant


@dataclass(frozen=True, slots=True)
class Row:
    """
    A wrong usage: what it raises, and fragments that the text has to hold. Nothing is raised where there is nothing to raise.
    """

    number: int
    usage: str
    raises: type[BaseException] | None
    fragments: tuple[str, ...]
    use: Callable[[], Awaitable[object]]


ROWS: list[Row] = []


def wrong(
    number: int, usage: str, raises: type[BaseException] | None, *fragments: str
) -> Callable[[Callable[[], Awaitable[object]]], Callable[[], Awaitable[object]]]:
    def added(use: Callable[[], Awaitable[object]]) -> Callable[[], Awaitable[object]]:
        ROWS.append(Row(number, usage, raises, fragments, use))
        return use

    return added


def an_outbox() -> Outbox:
    return Outbox(MemoryContainer())


async def committed(*entities: Entity, outbox: Outbox | None = None) -> Outbox:
    outbox = outbox or an_outbox()
    async with outbox.unit_of_work() as uow:
        for entity in entities:
            uow.repository(type(entity)).create(entity)
        await uow.commit()
    return outbox


@asynccontextmanager
async def an_account() -> AsyncIterator[tuple[CosmosServer, CosmosClient]]:
    async with (
        CosmosServer() as server,
        open_cosmos_client(connection_string=server.connection_string) as client,
    ):
        database = await client.create_database("d")
        await database.create_container("c", PartitionKey("/partitionKey"), default_ttl=-1)
        yield server, client


async def opened(**how: Any) -> None:
    async with open_cosmos_client(**how):
        pass


@wrong(1, "two partition keys in one commit", MixedPartitionKeys, "'a' and 'b'", "in two units of work")
async def _() -> None:
    await committed(Order(tenant="a"), Order(tenant="b"))


@wrong(
    1,
    "a handler that adds another key",
    MixedPartitionKeys,
    "'a' and 'b'",
    "add_another of OrderPaid added the second",
    "a consumer of that event",
)
async def _() -> None:
    def add_another(event: OrderPaid, uow: UnitOfWork) -> None:
        uow.repository(Order).create(Order(tenant="b"))

    outbox, order = an_outbox(), Order(tenant="a")
    outbox.on(OrderPaid, add_another)
    order.pay()
    await committed(order, outbox=outbox)


def _wrong_key(key: Any, why: str) -> None:
    shown = repr(key[:100] if isinstance(key, str) else key)

    @wrong(
        2,
        f"the partition key {shown:.10}",
        UsageError,
        shown,
        "partition key of order 'o1'",
        why,
    )
    async def written() -> None:
        await committed(Order.model_construct(id="o1", tenant=key))

    @wrong(2, f"read by {shown:.10}", UsageError, shown, "partition key of order 'o1'", why)
    async def read() -> None:
        await an_outbox().unit_of_work().repository(Order).read("o1", partition_key=key)


for _key in ("", "x" * 3000):
    _wrong_key(_key, "1 to 2048 bytes")
_wrong_key(math.nan, "a 64-bit float holds")
_wrong_key(("t", "u"), "partitioned on /partitionKey, so its keys are a single value")
_wrong_key(["t"], "a string, a number or a boolean")


@wrong(
    2,
    "the partition key None",
    UsageError,
    "None cannot be the partition key of order 'o1'",
    "null is no key",
)
async def _() -> None:
    await committed(Order.model_construct(id="o1", tenant=None))


def _without_its_key(usage: str, use: Callable[[UnitOfWork], Awaitable[object]]) -> None:
    @wrong(
        2, usage, UsageError, "'o1' cannot be the partition key", "as no `partition_key=` was given: pass one"
    )
    async def _() -> None:
        await use(Outbox(MemoryContainer(key_paths=["/tenantId", "/userId"])).unit_of_work())


_without_its_key("an entity without its hierarchical key", lambda uow: uow.repository(Order).read("o1"))
_without_its_key("a document without its hierarchical key", lambda uow: uow.documents().read("o1"))


@wrong(3, "an id that Cosmos DB refuses", UsageError, "'a/b'", "the id of a new order", "without / \\ ? #")
async def _() -> None:
    await committed(Order(id="a/b"))


@wrong(4, "another partition key", UsageError, "order 'o1' was 't' and is now 'u'", "create another one")
async def _() -> None:
    outbox = await committed(Order(id="o1"))
    async with outbox.unit_of_work() as uow:
        order = await uow.repository(Order).read("o1", partition_key="t")
        order.tenant = "u"
        uow.repository(Order).update(order)
        await uow.commit()


@wrong(4, "another id", ValueError, "Order", "id", "frozen")
async def _() -> None:
    Order(id="o1").id = "o2"


@wrong(
    5, "update of what was never read", UsageError, "order 'o1'", "neither read nor created. Read it first"
)
async def _() -> None:
    an_outbox().unit_of_work().repository(Order).update(Order(id="o1"))


@wrong(6, "one unit of work in two tasks", SharedUnitOfWork, "two tasks at once; give every task its own")
async def _() -> None:
    orders = an_outbox().unit_of_work().repository(Order)
    await asyncio.gather(orders.read("a"), orders.read("b"))


@wrong(
    7,
    "commit() in a handler",
    UsageError,
    "called commit()",
    "is committed anyway",
    "OrderPaid",
    "order 'o1'",
)
async def _() -> None:
    outbox = an_outbox()

    async def commits(event: OrderPaid, uow: UnitOfWork) -> None:
        await uow.commit()

    outbox.on(OrderPaid, commits)
    order = Order(id="o1")
    order.pay()
    await committed(order, outbox=outbox)


@wrong(8, "handlers that raise each other's events", UsageError, "without end: OrderPaid -> OrderPaid")
async def _() -> None:
    outbox, order = an_outbox(), Order(id="o1")
    order.pay()
    outbox.on(OrderPaid, lambda event, uow: order.pay())
    await committed(order, outbox=outbox)


@wrong(
    9,
    "a handler that raises",
    KeyError,
    "'lost'",
    "handler",
    "breaks",
    "of OrderPaid 'e1'",
    "order 'o1' of partition key 't'",
)
async def _() -> None:
    outbox, order = an_outbox(), Order(id="o1")

    def breaks(event: OrderPaid, uow: UnitOfWork) -> None:
        raise KeyError("lost")

    outbox.on(OrderPaid, breaks)
    order.pay(id="e1")
    await committed(order, outbox=outbox)


def _unstorable(usage: str, field: str, **facts: Any) -> None:
    @wrong(
        13,
        usage,
        UnstorableValue,
        "OrderPaid 'e1' of partition key 't'",
        f"because the field '{field}' could not be read back",
        "Correct the value",
    )
    async def _() -> None:
        order = Order(id="o1")
        order.pay(id="e1", **facts)
        await committed(order)


_unstorable("a number that is none", "amount", amount=float("nan"))
_unstorable("bytes that are no text", "proof", proof=b"\xff")


@wrong(
    13,
    "an entity with such a number",
    UnstorableValue,
    "Order 'o1' of partition key 't'",
    "the field 'weight'",
)
async def _() -> None:
    await committed(Order(id="o1", weight=float("inf")))


@wrong(14, "commit() twice", None)
async def _() -> None:
    async with an_outbox().unit_of_work() as uow:
        uow.repository(Order).create(Order(id="o1"))
        await uow.commit()
        assert Commit() == await uow.commit()


def _after_the_end(usage: str, use: Callable[[UnitOfWork], Any]) -> None:
    @wrong(
        15, f"{usage} after the block", UsageError, "has ended", "Open another one", "read the entities in it"
    )
    async def _() -> None:
        async with an_outbox().unit_of_work() as uow:
            pass
        answer = use(uow)
        if answer is not None:
            await answer


_after_the_end("commit()", lambda uow: uow.commit())
_after_the_end("repository()", lambda uow: uow.repository(Order).create(Order()) and None)
_after_the_end("rollback()", lambda uow: uow.rollback())
_after_the_end("async with", lambda uow: uow.__aenter__())


@wrong(15, "a repository after the block", UsageError, "has ended", "Open another one")
async def _() -> None:
    async with an_outbox().unit_of_work() as uow:
        orders = uow.repository(Order)
    await orders.read("o1")


@wrong(15, "a unit that no block enters", None)
async def _() -> None:
    uow = an_outbox().unit_of_work()
    uow.repository(Order).create(Order(id="o1"))
    assert 1 == (await uow.commit()).operations


@wrong(16, "an entity that was never added", None)
async def _() -> None:
    # No unit of work knows it, so it cannot be an error; the guide says so.
    async with an_outbox().unit_of_work() as uow:
        order = Order(id="o1")
        order.pay()
        assert Commit() == await uow.commit()
        assert order.is_new
    assert "that no repository read or created" in GUIDE.read_text()


@wrong(
    17,
    "read without the partition key",
    NotFound,
    "order 'o1' in partition key 'o1'",
    "defaults to the id",
    "pass `partition_key`",
)
async def _() -> None:
    outbox = await committed(Order(id="o1"))
    await outbox.unit_of_work().repository(Order).read("o1")


@wrong(
    17,
    "read with a wrong partition key",
    NotFound,
    "order 'o1' in partition key 'u'",
    "check the id and the partition key",
)
async def _() -> None:
    outbox = await committed(Order(id="o1"))
    await outbox.unit_of_work().repository(Order).read("o1", partition_key="u")


@wrong(
    18,
    "read as another type",
    NotFound,
    "no order 'x' in partition key 't'",
    "is a 'customer'",
    "repository of that type",
)
async def _() -> None:
    outbox = await committed(Customer(id="x"))
    await outbox.unit_of_work().repository(Order).read("x", partition_key="t")


@wrong(
    18,
    "create beside another type",
    Conflict,
    "'x' of partition key 't' already exists as a 'customer'",
    "under another id",
)
async def _() -> None:
    await committed(Order(id="x"), outbox=await committed(Customer(id="x")))


@wrong(
    19,
    "delete and create one id",
    UsageError,
    "order 'o1'",
    "commit the deletion before you create it again",
)
async def _() -> None:
    outbox = await committed(Order(id="o1"))
    async with outbox.unit_of_work() as uow:
        await uow.repository(Order).delete("o1", partition_key="t")
        uow.repository(Order).create(Order(id="o1"))


@wrong(
    19,
    "create an id that was read",
    UsageError,
    "order 'o1'",
    "change the one that `read` or `create` returned first",
)
async def _() -> None:
    outbox = await committed(Order(id="o1"))
    async with outbox.unit_of_work() as uow:
        await uow.repository(Order).read("o1", partition_key="t")
        uow.repository(Order).create(Order(id="o1"))


@wrong(20, "two event types of one name", None)
async def _() -> None:
    class Paid(DomainEvent):
        action: ClassVar[str] = "OrderPaid"

    order = Order(id="o1")
    order.pay()
    order.record(Paid())
    await committed(order)


@wrong(
    21,
    "more than 100 operations",
    BatchTooLarge,
    "101 operations",
    "partition key 't'",
    "at most 100 operations",
    "Split it",
)
async def _() -> None:
    await committed(*(Order() for _ in range(101)))


@wrong(21, "more than 2 MB", BatchTooLarge, "2 operations and 24", f"{2 * 1024 * 1024} bytes", "Split it")
async def _() -> None:
    await committed(*(Order(note="x" * 1_200_000) for _ in range(2)))


@wrong(21, "a document of more than 2 MB", BatchTooLarge, "'o1' alone has 2200", "elsewhere, and a reference")
async def _() -> None:
    await committed(Order(id="o0"), Order(id="o1", note="x" * 2_200_000))


for _text in ("", "nonsense", "Endpoint=sb://x;SharedAccessKeyName=n;SharedAccessKey=a2V5"):

    @wrong(
        22,
        f"the connection string {_text!r}",
        ConfigurationError,
        "'AccountEndpoint=https://…;AccountKey=…;'",
    )
    async def _(text: str = _text) -> None:
        await opened(connection_string=text)


@wrong(23, "a key that is not whole", ConfigurationError, "account key", "copy it again, to its end")
async def _() -> None:
    await opened(endpoint="https://a", credential="abc")


@wrong(
    24,
    "a wrong key",
    AccessDenied,
    "refuses the key or token: copy the account's key again",
    "answered 401",
    "activity id",
)
async def _() -> None:
    async with CosmosServer() as server:
        await opened(endpoint=server.url, credential="d3Jvbmc=")


@wrong(
    25, "a closed port", StoreUnavailable, "did not answer; check the scheme, host and port", "127.0.0.1:9"
)
async def _() -> None:
    await opened(endpoint="http://127.0.0.1:9/", credential="a2V5")


@wrong(25, "https where http is spoken", StoreUnavailable, "did not answer; check the scheme, host and port")
async def _() -> None:
    async with CosmosServer() as server:
        await opened(endpoint=server.url.replace("http:", "https:"), credential=server.key)


@wrong(
    26,
    "a missing container",
    ConfigurationError,
    "'nowhere' of database 'd'",
    "create it with partition key /partitionKey",
    "-1",
)
async def _() -> None:
    async with an_account() as (_, client):
        await open_store(client, "d", "nowhere")


@wrong(
    26,
    "a missing database",
    ConfigurationError,
    "'c' of database 'nowhere', or that database, does not exist",
    "create it with partition key /partitionKey, or the paths that your entities have",
)
async def _() -> None:
    async with an_account() as (_, client):
        await open_store(client, "nowhere", "c")


@wrong(
    26,
    "a missing container behind a bare store",
    ConfigurationError,
    "'nowhere' of database 'd'",
    "create it, or correct the name",
)
async def _() -> None:
    async with an_account() as (_, client):
        store = CosmosStore(client.get_database_client("d").get_container_client("nowhere"))
        await committed(Order(id="z"), outbox=Outbox(store))


@wrong(
    26,
    "missing leases",
    ConfigurationError,
    "container 'nowhere' of database 'd'",
    "create it with partition key /id",
    "-1 for the leases",
)
async def _() -> None:
    async with an_account() as (_, client):
        await CosmosLeases(
            client.get_database_client("d").get_container_client("nowhere")
        ).partitioned_by_id()


@wrong(26, "a missing parked container", ConfigurationError, "'nowhere' of database 'd'", "no time to live")
async def _() -> None:
    async with an_account() as (_, client):
        await open_parked(client, "d", "nowhere")


@wrong(
    26,
    "a worker without its container",
    ConfigurationError,
    "container 'nowhere' of database 'd'",
    "create it with partition key /partitionKey",
    "for the events",
)
async def _() -> None:
    async with an_account() as (_, client):
        container = client.get_database_client("d").get_container_client("nowhere")
        await CosmosChangeFeed(container, account_host="a").describe()


@wrong(
    27,
    "another partition key path",
    ConfigurationError,
    "container 'ids' cannot hold an outbox, for /id is no property that an entity and its events share",
    "Create another one",
)
async def _() -> None:
    async with an_account() as (_, client):
        await client.get_database_client("d").create_container("ids", PartitionKey("/id"), default_ttl=-1)
        await open_store(client, "d", "ids")


@wrong(
    27,
    "no time to live",
    ConfigurationError,
    "off on the container 'e'",
    "set its default time to live to -1",
)
async def _() -> None:
    async with an_account() as (_, client):
        await client.get_database_client("d").create_container("e", PartitionKey("/partitionKey"))
        await open_store(client, "d", "e")


SETTINGS = {
    "OUTBOX_COSMOS_CONNECTION_STRING": "AccountEndpoint=https://a;AccountKey=a2V5;",
    "OUTBOX_COSMOS_CONTAINER": "c",
    "OUTBOX_LEASE_CONTAINER": "c",
    "OUTBOX_COSMOS_DATABASE": "d",
    "OUTBOX_SERVICEBUS_NAMESPACE": "n",
    "OUTBOX_TOPIC": "t",
}


@wrong(
    28,
    "settings that cannot work",
    ConfigurationError,
    "OUTBOX_LEASE_CONTAINER: names the container of",
)
async def _() -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SETTINGS.items():
            patch.setenv(name, value)
        load()


@wrong(28, "a setting of another name", None)
async def _() -> None:
    (sentence,) = unknown_variables({"OUTBOX_TOPICK": "t"}, Settings)
    assert "did you mean OUTBOX_TOPIC?" in sentence


@wrong(
    29,
    "a missing topic",
    TopicUnavailable,
    "Topic 'events'",
    "create it if it is missing, enable it, correct the key, or grant",
    "Service Bus said: 404",
)
async def _() -> None:
    raise publish_error(ServiceBusAuthenticationError(message="404"), topic="events")


@wrong(30, "a subscription without sessions", None)
async def _() -> None:
    (told,) = findings_of(SUBSCRIPTION, subscription(requires_session=False))
    assert "Subscription 'all' of topic 'events' has no sessions" in told.message
    assert "create it anew with requiresSession" in told.fix
    # The topic's settings are only seen with the right to manage it.
    unseen = finding("topic.unread", "Not all topics", "403.")
    assert "check yourself" in unseen.fix
    assert "subscription requires sessions" in unseen.fix


def _refusal(usage: str, said: str, *fragments: str) -> None:
    @wrong(31, usage, AccessDenied, *fragments, "answered 403", said)
    async def _() -> None:
        body = json.dumps({"code": "Forbidden", "message": f"{said}\r\nActivityId: 1"})
        raise translate(CosmosHttpResponseError(status_code=403, message=body))


_refusal(
    "the firewall of the account",
    "Request originated from IP 10.0.0.1 through public internet.",
    "The firewall of the Cosmos DB account blocks this machine: allow its address",
)
_refusal(
    "an identity without a role",
    "principal [1] does not have required RBAC permissions",
    "lacks a data-plane role: assign it Cosmos DB Built-in Data Contributor",
)
_refusal(
    "the key, a role or the firewall",
    "Request is blocked.",
    "key may not",
    "data-plane role",
    "firewall",
    "check all three",
)


@wrong(
    32,
    "429 for ever",
    TooManyRequests,
    "throttles this client; try again later, or provision more request units",
    "'o1'",
    "'t'",
)
async def _() -> None:
    async with an_account() as (server, client):
        store = await open_store(client, "d", "c")
        server.faults.add(FaultRule(operation=RequestKind.BATCH, status=429, retry_after_ms=50))
        outbox = Outbox(store, retries=RetryOptions(deadline_seconds=3, attempt_seconds=3))
        await committed(Order(id="o1"), outbox=outbox)


@wrong(
    33,
    "the blocking client",
    TypeError,
    "CosmosClient of azure.cosmos blocks",
    "azure.cosmos.aio",
    "open_cosmos_client",
)
async def _() -> None:
    await open_store(object.__new__(azure.cosmos.CosmosClient), "d", "c")  # type: ignore[arg-type]


@wrong(33, "a blocking container", TypeError, "ContainerProxy of azure.cosmos blocks", "azure.cosmos.aio")
async def _() -> None:
    CosmosStore(object.__new__(azure.cosmos.ContainerProxy))  # type: ignore[arg-type]


@wrong(35, "with in place of async with", TypeError, "context manager protocol")  # Python's own words
async def _() -> None:
    with an_outbox().unit_of_work():  # type: ignore[attr-defined]
        pass


@wrong(
    38,
    "one event recorded twice",
    UsageError,
    "OrderPaid",
    "'t'",
    "recorded 2 times",
    "make a new event",
)
async def _() -> None:
    order, paid = Order(), OrderPaid()
    order.record(paid)
    order.record(paid)
    await committed(order)


def overtaken(outbox: Outbox) -> Callable[[UnitOfWork], Awaitable[None]]:
    async def work(uow: UnitOfWork) -> None:
        order = await uow.repository(Order).read("o1", partition_key="t")
        async with outbox.unit_of_work() as other:
            (await other.repository(Order).read("o1", partition_key="t")).note += "first"
            await other.commit()
        order.note = "second"

    return work


@wrong(
    37,
    "run() that is always overtaken",
    PreconditionFailed,
    "'o1'",
    "Each of the 2 attempts",
    "more `attempts`",
)
async def _() -> None:
    outbox = await committed(Order(id="o1"))
    await outbox.run(overtaken(outbox), attempts=2)


class SameThing(Entity):
    entity_type: ClassVar[str] = "customer"


@wrong(
    40,
    "two classes of one stored type",
    UsageError,
    "has customer 'c1' as an object of Customer",
    "cannot be one of SameThing too",
    "another `entity_type`",
)
async def _() -> None:
    async with (await committed(Customer(id="c1"))).unit_of_work() as uow:
        await uow.repository(Customer).read("c1", partition_key="t")
        await uow.repository(SameThing).read("c1", partition_key="t")


for _type in ("domainEvent", "eventPayload", "inboxRecord", "parkedKey", "parkedEvent"):

    @wrong(
        41,
        f"an entity_type {_type!r}",
        TypeError,
        f"Taken cannot be stored with the type '{_type}'",
        "another",
    )
    async def _(text: str = _type) -> None:
        class Taken(Entity):
            entity_type = text


@wrong(41, "an entity whose class makes it an event", TypeError, "'domainEvent'", "another `entity_type`")
async def _() -> None:
    type("DomainEvent", (Entity,), {"__module__": __name__})


@wrong(41, "an empty entity_type", TypeError, "Empty.entity_type", "such as 'order', not ''")
async def _() -> None:
    class Empty(Entity):
        entity_type = ""


for _type in ("domainEvent", "eventPayload"):

    @wrong(
        41, f"a document of type {_type!r}", UsageError, "'d1'", f"the type '{_type}'", "`uow.record(event"
    )
    async def _(text: str = _type) -> None:
        an_outbox().unit_of_work().save({"id": "d1", "partitionKey": "t", "type": text})


@wrong(
    42, "save(entity)", UsageError, "the Order 'o1', which is an entity", "`uow.repository(Order).create(…)`"
)
async def _() -> None:
    an_outbox().unit_of_work().save(Order(id="o1"))


class OrderOfHome(Order):
    pass


@wrong(43, "a subclass for a base class", None)
async def _() -> None:
    uow = an_outbox().unit_of_work()
    uow.repository(Order).create(OrderOfHome(id="o1"))
    assert 1 == (await uow.commit()).operations


ANOTHER = "belongs to another unit of work, which is still open"


@wrong(44, "an entity of an open unit in another", UsageError, f"order 'o1' {ANOTHER}", "Read it in this one")
async def _() -> None:
    outbox = await committed(Order(id="o1"))
    async with outbox.unit_of_work() as first, outbox.unit_of_work() as second:
        order = await first.repository(Order).read("o1", partition_key="t")
        order.note = "mine"
        second.repository(Order).update(order)


@wrong(44, "a new entity in two outboxes", UsageError, f"order 'o1' {ANOTHER}", "Make another object here")
async def _() -> None:
    first, second = an_outbox().unit_of_work(), an_outbox().unit_of_work()
    order = first.repository(Order).create(Order(id="o1"))
    second.repository(Order).create(order)


@wrong(44, "one entity created twice", UsageError, "order 'o1' cannot be created", "make another object")
async def _() -> None:
    order = Order(id="o1")
    await committed(order)
    await committed(order)


class Unmarked(SoftDeletable):
    def delete(self) -> None:
        self.record(OrderPaid())


@wrong(45, "delete() without super", UsageError, "Unmarked.delete", "unmarked 'x'", "`super().delete()`")
async def _() -> None:
    async with (await committed(Unmarked(id="x"))).unit_of_work() as uow:
        await uow.repository(Unmarked).delete("x")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.number} {row.usage}"[:60])
async def test_a_wrong_usage_is_told_with_what_it_is_about_and_what_to_do(row: Row):
    if row.raises is None:
        await row.use()
        return
    with pytest.raises(row.raises) as told:
        await row.use()
    text = "\n".join([str(told.value), *getattr(told.value, "__notes__", ())])
    for fragment in row.fragments:
        assert fragment in text
