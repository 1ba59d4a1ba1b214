"""
Runs both emulators in a thread of this process, for tests of any kind: blocking tests, or async tests on any event loop.

The thread has an event loop of its own. Every method here makes its call on that loop and waits for the result, so a test may call
it from its own thread while clients are connected.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any, Generic, TypeVar

from cosmos_outbox_emulators.active_deviation import Deviating
from cosmos_outbox_emulators.certificate import server_context
from cosmos_outbox_emulators.cosmos import deviations as cosmos_deviations
from cosmos_outbox_emulators.cosmos import offers
from cosmos_outbox_emulators.cosmos.account import Account
from cosmos_outbox_emulators.cosmos.clock import AdjustableClock
from cosmos_outbox_emulators.cosmos.regions import fail_over
from cosmos_outbox_emulators.cosmos.seed import plant
from cosmos_outbox_emulators.cosmos.server import CosmosServer
from cosmos_outbox_emulators.servicebus import deviations as servicebus_deviations
from cosmos_outbox_emulators.servicebus.broker import Broker
from cosmos_outbox_emulators.servicebus.server import ServiceBusServer

T = TypeVar("T")
Server = TypeVar("Server", CosmosServer, ServiceBusServer)


class _Emulator(Generic[Server]):
    """The methods that the handles of both emulators share."""

    _server: Server
    _loop: asyncio.AbstractEventLoop
    _deviating: Deviating[Any]

    @property
    def connection_string(self) -> str:
        return self._server.connection_string

    @property
    def secondary_connection_string(self) -> str:
        return self._server.connection_string_of("secondary")

    def deviate(self, name: str | None) -> None:
        """
        Switch on the deviation (a named difference from Azure) with this name, and end one that was in force before. None only
        ends it.
        """
        _call(self._loop, lambda: self._deviating.switch(name))


class CosmosEmulator(_Emulator[CosmosServer]):
    """A running Cosmos DB emulator, with its addresses and the actions that a test may take on it."""

    def __init__(self, server: CosmosServer, clock: AdjustableClock, loop: asyncio.AbstractEventLoop) -> None:
        self._server = server
        self._clock = clock
        self._loop = loop
        self._deviating = Deviating(server, cosmos_deviations.DEVIATIONS)

    def regenerate_key(self, which: str) -> None:
        """Replace the "primary" or the "secondary" key by a new one. From then on, requests signed with the old key get 401."""
        _call(self._loop, lambda: self._server.account.keys.regenerate(which))

    def create_container(
        self,
        database: str,
        container: str,
        *,
        partition_key: str | Sequence[str] = "/partitionKey",
        default_ttl: int | None = None,
        ranges: int = 1,
    ) -> None:
        """
        Create a container with `ranges` physical partitions, and its database if there is none of this name.

        Args:
            partition_key: Path of the partition key, or up to three paths of a hierarchical key.
            default_ttl: Default TTL in seconds. With -1, only items with a TTL of their own expire. By default, no item expires.
        """
        account = self._server.account
        single = isinstance(partition_key, str)
        definition = {
            "paths": [partition_key] if single else list(partition_key),
            "kind": "Hash" if single else "MultiHash",
            "version": 2,
        }
        body: dict[str, Any] = {"id": container, "partitionKey": definition}
        if default_ttl is not None:
            body["defaultTtl"] = default_ttl

        def create() -> None:
            if database not in account.databases:
                account.create_database({"id": database})
            account.create_container(database, body, offers.manual(ranges * offers.PER_NEW_PARTITION))

        _call(self._loop, create)

    def seed(self, seed: Mapping[str, Any]) -> None:
        """
        Create the databases, containers and items of a seed that do not exist yet.

        Raises:
            ValueError: the seed has a mistake. The message names the path of the wrong field.
        """
        _call(self._loop, lambda: plant(self._server.account, seed))

    def split(self, database: str, container: str, range_id: str) -> tuple[str, str]:
        """Split a range in the middle and return the ids of its children."""
        account = self._server.account
        return _call(self._loop, lambda: account.container(database, container).split(range_id))

    def merge(self, database: str, container: str, first: str, second: str) -> str:
        """Merge two neighbouring ranges and return the id of their child."""
        account = self._server.account
        return _call(self._loop, lambda: account.container(database, container).merge(first, second))

    def take_snapshot(self, database: str, container: str) -> None:
        """Remember all items and LSNs of a container for `restore_snapshot`, in place of an earlier snapshot."""
        account = self._server.account
        _call(self._loop, lambda: account.container(database, container).take_snapshot())

    def restore_snapshot(self, database: str, container: str) -> None:
        """
        Put back the items and LSNs of the snapshot. This is what clients see after a restore in place, or after a failover that
        lost the latest writes.
        """
        account = self._server.account
        _call(self._loop, lambda: account.container(database, container).restore_snapshot())

    def fail_over(self) -> str:
        """
        Let the region that accepted no writes accept them from now on, in place of the other region. Return its host name. The
        regions are the host names 127.0.0.1 and localhost.
        """
        return _call(self._loop, lambda: fail_over(self._server.account))

    def lag(self, seconds: float) -> None:
        """Answer reads with the data of this many seconds ago, as a lagging replica does. 0 ends the lag."""
        _call(self._loop, lambda: setattr(self._server.account.replication, "lag_s", seconds))

    def throttle(
        self,
        database: str,
        container: str,
        *,
        request_units: float,
        buckets: Mapping[str, float] | None = None,
    ) -> None:
        """
        Limit a container to this number of request units a second, spread over its partitions. Requests of low priority are
        refused first.

        Args:
            request_units: Request units a second; 0 removes the limit. A new container has no limit.
            buckets: Percentage of these units that the requests of each throughput bucket may use, by its id ("1" to "5").
        """
        account, gateway = self._server.account, self._server.gateway
        _call(
            self._loop,
            lambda: gateway.throttle(account.container(database, container), request_units, buckets),
        )

    def advance(self, seconds: float) -> None:
        """Move the emulator's clock forward, so that a test need not wait for a TTL."""
        _call(self._loop, lambda: self._clock.advance(seconds))

    def add_fault(self, rule: Mapping[str, Any]) -> Callable[[], bool]:
        """
        Add a fault rule. Return a function that says whether the rule has not struck any request yet.

        Raises:
            ValueError: a field of the rule is wrong; the message names it.
        """
        added = _call(self._loop, lambda: self._server.faults.add(rule))
        return lambda: _call(self._loop, lambda: self._server.faults.is_idle(added))

    def clear_faults(self) -> None:
        """Remove every fault rule."""
        _call(self._loop, self._server.faults.clear)

    def requests(self) -> dict[str, int]:
        """Return how many requests the emulator has received so far, by their kind."""
        return _call(self._loop, lambda: dict(self._server.gateway.counts))


class ServiceBusEmulator(_Emulator[ServiceBusServer]):
    """
    A running Service Bus emulator, with its addresses and the actions that a test may take on it.

    At first it has the topic `events`, which drops duplicates, and the topic's subscription `all`, which has sessions.
    """

    def __init__(self, server: ServiceBusServer, loop: asyncio.AbstractEventLoop) -> None:
        self._server = server
        self._loop = loop
        self._deviating = Deviating(server.broker, servicebus_deviations.DEVIATIONS)

    def regenerate_key(self, which: str) -> None:
        """
        Replace the "primary" or the "secondary" key by a new one. Tokens signed with the old key are refused. Links that are open
        stay open until their token expires.
        """
        _call(self._loop, lambda: self._server.broker.first_keys.regenerate(which))

    def add_topic(self, config: dict[str, Any]) -> None:
        """
        Create a topic with its subscriptions. `config` has the fields of a topic in the configuration file.

        Raises:
            ValueError: a field is wrong; the message names its path.
        """
        _call(self._loop, lambda: self._server.broker.add_topic(config))

    def add_queue(self, config: dict[str, Any]) -> None:
        """
        Create a queue. `config` has the fields of a queue in the configuration file.

        Raises:
            ValueError: a field is wrong; the message names its path.
        """
        _call(self._loop, lambda: self._server.broker.add_queue(config))

    def delete(self, name: str) -> None:
        """Delete a topic or queue with all its messages. Its links are detached."""
        _call(self._loop, lambda: self._server.broker.delete(name))

    def advance(self, seconds: float) -> None:
        """
        Move the emulator's clock forward: scheduled messages are enqueued, locks and messages expire, and duplicate detection
        forgets ids.
        """
        _call(self._loop, lambda: self._server.advance(seconds))

    def drop_connections(self) -> None:
        """Cut every connection, as a lost network does."""
        _call(self._loop, self._server.drop_connections)

    def add_fault(self, rule: dict[str, Any]) -> Callable[[], bool]:
        """
        Add a fault. Return a function that says whether the fault has not struck yet.

        Raises:
            ValueError: a field of the fault is wrong; the message names it.
        """
        added = _call(self._loop, lambda: self._server.broker.faults.add(rule))
        return lambda: not added.struck

    def clear_faults(self) -> None:
        """Remove every fault. This also ends an outage."""
        _call(self._loop, self._server.broker.faults.clear)

    def stats(self) -> dict[str, Any]:
        """
        Return the number of connections and of faults, and for each topic what was published to it and what its subscriptions
        hold.
        """
        return _call(self._loop, self._server.broker.stats)


@contextmanager
def cosmos_in_thread(*, partitions: int = 1, tls: Path | None = None) -> Iterator[CosmosEmulator]:
    """
    Run a Cosmos DB emulator on a free port of 127.0.0.1 while the block lasts.

    Args:
        partitions: Least number of physical partitions of each new container.
        tls: Folder of the certificate for serving https. A missing certificate is made; clients have to trust the folder's
            `ca.pem`.
    """
    clock = AdjustableClock()
    with _event_loop() as loop:
        server = _wait(
            loop, _enter(CosmosServer(Account(partitions=partitions, clock=clock), tls=_context(tls)))
        )
        try:
            yield CosmosEmulator(server, clock, loop)
        finally:
            _wait(loop, _end(server))


@contextmanager
def servicebus_in_thread(*, tls: Path | None = None) -> Iterator[ServiceBusEmulator]:
    """
    Run a Service Bus emulator on a free port of 127.0.0.1 while the block lasts.

    Args:
        tls: Folder of the certificate for serving amqps. A missing certificate is made; clients have to trust the folder's
            `ca.pem`.
    """
    with _event_loop() as loop:
        server = _wait(loop, _enter(ServiceBusServer(Broker.default(), tls=_context(tls))))
        try:
            yield ServiceBusEmulator(server, loop)
        finally:
            _wait(loop, _end(server))


def _context(folder: Path | None) -> ssl.SSLContext | None:
    return None if folder is None else server_context(folder)


async def _enter(server: Server) -> Server:
    return await server.__aenter__()


async def _end(server: Server) -> None:
    # asyncio creates the transport of an accepted connection a few passes of the event loop later. If the listener is closed by then,
    # asyncio leaves the connection open. So the listener stops accepting here, a few passes before it is closed.
    for listening in server.listener.sockets if server.listener else ():
        asyncio.get_running_loop().remove_reader(listening)
    for _ in range(3):
        await asyncio.sleep(0)
    await server.__aexit__(None, None, None)


@contextmanager
def _event_loop() -> Iterator[asyncio.AbstractEventLoop]:
    started: Future[asyncio.AbstractEventLoop] = Future()

    def serve() -> None:
        with (
            asyncio.Runner() as runner
        ):  # the runner cancels the tasks that are left, such as one that accepts a connection
            loop = runner.get_loop()
            started.set_result(loop)
            loop.run_forever()

    # The thread is a daemon thread, so that an interrupted test run does not wait for it.
    thread = Thread(target=serve, name="cosmos-outbox-emulators", daemon=True)
    thread.start()
    loop = started.result()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


def _wait(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T]) -> T:
    return asyncio.run_coroutine_threadsafe(coroutine, loop).result()


def _call(loop: asyncio.AbstractEventLoop, act: Callable[[], T]) -> T:
    async def call_act() -> T:
        return act()

    return _wait(loop, call_act())
