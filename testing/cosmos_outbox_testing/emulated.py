"""
OutboxEmulators: run a test against the emulators through the Azure SDKs, with the same methods as the harness in memory.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from importlib import import_module
from typing import Any

from cosmos_outbox.adapters.cosmos import (
    CosmosChangeFeed,
    CosmosLeases,
    account_of,
    open_cosmos_client,
    open_parked,
    open_store,
)
from cosmos_outbox.adapters.servicebus import ServiceBusPublisher, message_from, open_service_bus_client
from cosmos_outbox.errors import ConfigurationError
from cosmos_outbox.message_format import OutboundMessage
from cosmos_outbox.parking import Parking
from cosmos_outbox.partition_key import ON_PARTITION_KEY, KeyPaths
from cosmos_outbox.records import log_hook
from cosmos_outbox.write.outbox import Outbox
from cosmos_outbox_testing.faults import check_fault, is_meant_refusal, require_none_idle, text_of
from cosmos_outbox_testing.relaying import relay_everything

# The default of OUTBOX_PROCESSOR_NAME. A worker that the test starts and `relay_all` share leases by this name, so `relay_all` sends no
# event again that this worker has sent.
PROCESSOR = "outbox"
_RELAYED = "relayed"  # from this subscription, `relay_all` receives the messages that it returns
_ANSWERS: Mapping[str, Mapping[str, Any]] = {
    "throttled": {"status": 429, "substatus": 3200, "retry_after_ms": 1},
    "unavailable": {"status": 503},
}
_LOST = {"lost_answer": {"drop": True, "when": "after"}}
_COSMOS: Mapping[str, tuple[Mapping[str, str], Mapping[str, Mapping[str, Any]]]] = {
    "commit": ({"operation": "batch"}, {**_ANSWERS, **_LOST, "too_large": {"status": 413}}),
    "read": ({"operation": "read"}, _ANSWERS),
    "query": ({"operation": "query"}, _ANSWERS),
    "feed": ({"operation": "changefeed"}, _ANSWERS),
    "lease": (
        {"operation": "replace", "container": "leases"},
        {**_ANSWERS, **_LOST, "conflict": {"status": 412}},
    ),
    "park": ({"operation": "batch", "container": "parked"}, {**_ANSWERS, **_LOST}),
}
_SEND: Mapping[str, Mapping[str, Any]] = {
    "throttled": {"action": "server-busy"},
    # Detach the link and do not cut the connection, because the SDK would leave a cut connection to the garbage collector to close.
    "unavailable": {"action": "detach-before-store"},
    "lost_answer": {"action": "detach-after-store"},
    "too_large": {"action": "reject", "condition": "amqp:link:message-size-exceeded"},
}
_NAMES = {name: tuple(faults) for name, (_, faults) in _COSMOS.items()} | {"send": tuple(_SEND)}


class OutboxEmulators:
    """
    The database and the topic of one test on running emulators.

    Attributes:
        cosmos, servicebus: the emulators. Their README says how to add faults, split partitions and read counters.
        database: the name of the database, which has the containers `data`, `leases` and `parked`.
        topic: the name of the topic, which drops duplicates. Its subscription `all` requires sessions.
    """

    container, lease_container, parked_container, subscription = "data", "leases", "parked", "all"

    def __init__(
        self, cosmos: Any, servicebus: Any, name: str, key_paths: KeyPaths = ON_PARTITION_KEY
    ) -> None:
        self.cosmos, self.servicebus = cosmos, servicebus
        self._faults: list[tuple[str, Callable[[], bool]]] = []
        self.database = self.topic = name
        paths: Any = [str(KeyPaths((level,))) for level in key_paths.levels]
        data = paths if len(paths) > 1 else paths[0]
        for container, key in (("data", data), ("leases", "/id"), ("parked", "/partitionKey")):
            cosmos.create_container(name, container, partition_key=key, default_ttl=-1)
        subscriptions = [{"name": "all", "requires_session": True}, {"name": _RELAYED}]
        servicebus.add_topic({"name": name, "dedup_window_s": 600, "subscriptions": subscriptions})

    @property
    def environ(self) -> dict[str, str]:
        """Return the environment variables with which a worker uses the database and the topic."""
        return {
            "OUTBOX_COSMOS_CONNECTION_STRING": self.cosmos.connection_string,
            "OUTBOX_COSMOS_DATABASE": self.database,
            "OUTBOX_COSMOS_CONTAINER": self.container,
            "OUTBOX_LEASE_CONTAINER": self.lease_container,
            "OUTBOX_PARKED_CONTAINER": self.parked_container,
            "OUTBOX_SERVICEBUS_CONNECTION_STRING": self.servicebus.connection_string,
            "OUTBOX_TOPIC": self.topic,
        }

    @asynccontextmanager
    async def outbox(self, container: str = "") -> AsyncIterator[Outbox]:
        """
        Open an outbox on a container, through the Azure SDK: `async with outbox_emulators.outbox() as outbox:`.

        Args:
            container: the name of a container that the test created. Defaults to the container `data`.
        """
        async with open_cosmos_client(connection_string=self.cosmos.connection_string) as client:
            yield Outbox(await open_store(client, self.database, container or self.container))

    async def relay_all(self, *, allow_failures: bool = False) -> list[OutboundMessage]:
        """
        Run a worker until no event waits. Return the messages that arrived at the topic since the last call, in order.

        The subscription `all` also gets these messages, so a consumer of the test can receive them.

        Args:
            allow_failures: whether events may end parked or held. This is always allowed for an event that `fail` made the topic refuse.

        Raises:
            MessagesFailed: an event ended parked or held, and the test did not ask for it.
            Stuck: the topic or a store failed again and again. When it works again, another call goes on.
        """
        async with (
            open_cosmos_client(connection_string=self.cosmos.connection_string) as client,
            open_service_bus_client(connection_string=self.servicebus.connection_string) as bus,
        ):
            database = client.get_database_client(self.database)
            data = database.get_container_client(self.container)
            account = account_of(client)
            feed = CosmosChangeFeed(data, account_host=account.host, polls=account.polls())
            leases = CosmosLeases(database.get_container_client(self.lease_container))
            parked = await open_parked(client, self.database, self.parked_container)
            async with ServiceBusPublisher(bus, self.topic) as publisher:
                await relay_everything(
                    name=PROCESSOR,
                    feed=feed,
                    leases=leases,
                    publisher=publisher,
                    parking=Parking(parked),
                    notify=log_hook,
                    stored=feed,
                    allows=lambda error: (
                        allow_failures or is_meant_refusal(error, (said for said, _ in self._faults))
                    ),
                )
            return await self._receive_all(bus) if self._waiting() else []

    def fail(
        self, operation: str, fault: str, *, times: int | None = 1, skip: int = 0, container: str = ""
    ) -> None:
        """
        Make the next requests of an operation fail, as `OutboxHarness.fail` does. Requests of other tests do not fail.

        Args:
            operation, fault, times, skip: as in `OutboxHarness.fail`. The how-to "Test your own code" lists the operations and faults
                that the emulators know.
            container: the container whose commits, reads, queries or feed reads fail. Defaults to the container `data`.

        Raises:
            ValueError: the emulators do not know the operation or the fault, and the error lists those that they know. Or a container
                was given for an operation that always uses the same container.
        """
        check_fault(operation, fault, _NAMES)
        if container and operation in ("send", "lease", "park"):
            raise ValueError(f"The operation {operation!r} takes no container: leave out `container`.")
        if operation == "send":
            rule = {**_SEND[fault], "entity": self.topic, "count": times, "skip": skip}
            is_idle = self.servicebus.add_fault(rule)
        else:
            where, faults = _COSMOS[operation]
            count = {} if times is None else {"count": times}
            where = {"container": container or self.container, **where}
            is_idle = self.cosmos.add_fault({**where, **faults[fault], "skip": skip, **count})
        self._faults.append((text_of(operation, fault, times=times, skip=skip, container=container), is_idle))

    def require_struck(self) -> None:
        """
        Require that each fault that the test asked for made a request fail.

        The fixture `outbox_emulators` calls this after each test that passed.

        Raises:
            FaultNotStruck: some faults made no request fail. The error names them.
        """
        require_none_idle([said for said, is_idle in self._faults if is_idle()])

    def advance(self, seconds: float) -> None:
        """Move the clocks of both emulators forward, so that documents expire and messages for later arrive."""
        self.cosmos.advance(seconds)
        self.servicebus.advance(seconds)

    async def _receive_all(self, bus: Any) -> list[OutboundMessage]:
        messages: list[OutboundMessage] = []
        async with bus.get_subscription_receiver(
            self.topic, _RELAYED, receive_mode="receiveanddelete"
        ) as receiver:
            while waiting := self._waiting():
                messages += map(_outbound, await receiver.receive_messages(waiting, max_wait_time=1))
        return messages

    def _waiting(self) -> int:
        waiting = self.servicebus.stats()["topics"][self.topic]["subscriptions"][_RELAYED]["active"]
        return int(waiting)


@contextmanager
def running_emulators() -> Iterator[Callable[..., AbstractContextManager[OutboxEmulators]]]:
    """
    Run both emulators in threads of this process. Yield a function that creates a database and a topic for a test.

    Raises:
        ConfigurationError: the emulators are not installed.
    """
    try:
        # Import the emulators only here, because they are a separate package that may not be installed.
        emulators = import_module("cosmos_outbox_emulators.in_thread")
    except ModuleNotFoundError:
        raise ConfigurationError(
            "The emulators are not installed: pip install 'cosmos-outbox[testing]'."
        ) from None
    numbers = itertools.count(1)
    with emulators.cosmos_in_thread() as cosmos, emulators.servicebus_in_thread() as servicebus:

        @contextmanager
        def fresh(key_paths: KeyPaths = ON_PARTITION_KEY) -> Iterator[OutboxEmulators]:
            try:
                yield OutboxEmulators(cosmos, servicebus, f"test-{next(numbers)}", key_paths)
            finally:
                cosmos.clear_faults()
                servicebus.clear_faults()

        yield fresh


def _outbound(received: Any) -> OutboundMessage:
    message = message_from(received)
    return OutboundMessage(
        message_id=message.message_id,
        session_id=message.session_id or "",
        subject=message.subject,
        body=message.body,
        content_type=message.content_type or "",
        properties=message.properties,
    )
