"""
Both emulators in a thread of this process, for tests of any kind: blocking or async, on whichever event loop.

The thread has an event loop of its own. Every method here runs its engine call on that loop and waits for the result, so a
test may call it from its own thread while clients are connected.
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
    """What both emulators have in common."""

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
        """Answer otherwise than Azure in one way; an earlier deviation ends. None ends it without another."""
        _call(self._loop, lambda: self._deviating.switch(name))


class CosmosEmulator(_Emulator[CosmosServer]):
    """A running Cosmos DB emulator: its addresses, and the actions that a test may take on it."""

    def __init__(self, server: CosmosServer, clock: AdjustableClock, loop: asyncio.AbstractEventLoop) -> None:
        self._server = server
        self._clock = clock
        self._loop = loop
        self._deviating = Deviating(server, cosmos_deviations.DEVIATIONS)

    def regenerate_key(self, which: str) -> None:
        """Replace the "primary" or the "secondary" key. Requests that are signed with the old key get 401."""
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
        Create a container of so many physical partitions. Create its database if that is missing.

        Args:
            partition_key: the path, or up to three of a hierarchical key.
            default_ttl: seconds; -1 keeps every item that names no TTL of its own. Defaults to no TTL at all.
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
            ValueError: names the path of the first mistake.
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
        """Remember all items and LSNs of a container. An earlier snapshot is replaced."""
        account = self._server.account
        _call(self._loop, lambda: account.container(database, container).take_snapshot())

    def restore_snapshot(self, database: str, container: str) -> None:
        """
        Put back the items and LSNs of the snapshot, as after a restore in place, or a failover that lost the latest writes.
        """
        account = self._server.account
        _call(self._loop, lambda: account.container(database, container).restore_snapshot())

    def fail_over(self) -> str:
        """Let the other of two regions accept the writes, and return its host. The regions are the names 127.0.0.1 and localhost."""
        return _call(self._loop, lambda: fail_over(self._server.account))

    def lag(self, seconds: float) -> None:
        """Let a replica answer reads that lags this far behind; 0 ends this."""
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
        Give a container so many request units a second, spread over its partitions; requests of low priority are refused first.

        Args:
            request_units: 0 for no limit, as at first.
            buckets: by the id of a throughput bucket ("1" to "5") the percentage that its requests may use.
        """
        account, gateway = self._server.account, self._server.gateway
        _call(
            self._loop,
            lambda: gateway.throttle(account.container(database, container), request_units, buckets),
        )

    def advance(self, seconds: float) -> None:
        """Move the emulator's clock forward, so that a TTL passes without a wait."""
        _call(self._loop, lambda: self._clock.advance(seconds))

    def add_fault(self, rule: Mapping[str, Any]) -> Callable[[], bool]:
        """
        Add a fault rule; return a function that says whether it waits for its first request.

        Raises:
            ValueError: names the first field that is wrong.
        """
        added = _call(self._loop, lambda: self._server.faults.add(rule))
        return lambda: _call(self._loop, lambda: self._server.faults.is_idle(added))

    def clear_faults(self) -> None:
        """Remove every fault rule."""
        _call(self._loop, self._server.faults.clear)

    def requests(self) -> dict[str, int]:
        """Return how many requests came in so far, by operation."""
        return _call(self._loop, lambda: dict(self._server.gateway.counts))


class ServiceBusEmulator(_Emulator[ServiceBusServer]):
    """
    A running Service Bus emulator: its addresses, and the actions that a test may take on it.

    It begins with the topic `events`, which drops duplicates, and the topic's session subscription `all`.
    """

    def __init__(self, server: ServiceBusServer, loop: asyncio.AbstractEventLoop) -> None:
        self._server = server
        self._loop = loop
        self._deviating = Deviating(server.broker, servicebus_deviations.DEVIATIONS)

    def regenerate_key(self, which: str) -> None:
        """
        Replace the "primary" or the "secondary" key. Tokens of the old key are refused; open links stay until their token expires.
        """
        _call(self._loop, lambda: self._server.broker.first_keys.regenerate(which))

    def add_topic(self, config: dict[str, Any]) -> None:
        """
        Create a topic with its subscriptions; the fields are those of the configuration.

        Raises:
            ValueError: names the path of the first mistake.
        """
        _call(self._loop, lambda: self._server.broker.add_topic(config))

    def add_queue(self, config: dict[str, Any]) -> None:
        """
        Create a queue; the fields are those of the configuration.

        Raises:
            ValueError: names the path of the first mistake.
        """
        _call(self._loop, lambda: self._server.broker.add_queue(config))

    def delete(self, name: str) -> None:
        """Delete a topic or queue with all its messages. Its links are detached."""
        _call(self._loop, lambda: self._server.broker.delete(name))

    def advance(self, seconds: float) -> None:
        """
        Move the emulator's clock forward: scheduled messages appear, locks and messages expire, ids are forgotten.
        """
        _call(self._loop, lambda: self._server.advance(seconds))

    def drop_connections(self) -> None:
        """Cut every connection, as a lost network does."""
        _call(self._loop, self._server.drop_connections)

    def add_fault(self, rule: dict[str, Any]) -> Callable[[], bool]:
        """
        Add a fault. Return a function that says whether it has struck nothing yet.

        Raises:
            ValueError: names the first field that is wrong.
        """
        added = _call(self._loop, lambda: self._server.broker.faults.add(rule))
        return lambda: not added.struck

    def clear_faults(self) -> None:
        """End every fault, including an outage."""
        _call(self._loop, self._server.broker.faults.clear)

    def stats(self) -> dict[str, Any]:
        """
        Return all counters: connections, faults, and of each topic what was published and what its subscriptions hold.
        """
        return _call(self._loop, self._server.broker.stats)


@contextmanager
def cosmos_in_thread(*, partitions: int = 1, tls: Path | None = None) -> Iterator[CosmosEmulator]:
    """
    Run a Cosmos DB emulator on a free port of 127.0.0.1 while the block lasts.

    Args:
        partitions: physical partitions of each new container, at least.
        tls: serve https, with the certificate of this folder; it is made where it is missing, and clients trust its `ca.pem`.
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
        tls: serve amqps, with the certificate of this folder; it is made where it is missing, and clients trust its `ca.pem`.
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
    # The server stops accepting some turns of the loop before it closes its listener. asyncio makes a transport for each connection
    # that the server accepted, and leaves the connection open if the listener was closed before that.
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
        ):  # the end of the loop cancels what is left, such as a connection that is being accepted
            loop = runner.get_loop()
            started.set_result(loop)
            loop.run_forever()

    # A daemon thread: an interrupted test run must not wait for it.
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
