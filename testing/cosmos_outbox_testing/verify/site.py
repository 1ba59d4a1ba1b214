"""Site: the containers, topic and subscriptions on which a run of `verify` works. It also deletes what the run wrote there."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import ContextVar
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from azure.core.exceptions import AzureError, HttpResponseError

from cosmos_outbox.adapters.cosmos.errors import our_errors, translate
from cosmos_outbox.adapters.cosmos.lean_poll_requests import SentRequest
from cosmos_outbox.adapters.cosmos.store import sdk_key
from cosmos_outbox.errors import AccessDenied, OutboxError
from cosmos_outbox.partition_key import ON_PARTITION_KEY, KeyPaths, PartitionKey
from cosmos_outbox.retries import RetryOptions, retry_reads
from cosmos_outbox_testing.verify.cleaning import all_of, delete_documents, delete_messages
from cosmos_outbox_testing.verify.redaction import without_names, without_secrets

if TYPE_CHECKING:
    from azure.cosmos.aio import ContainerProxy, CosmosClient
    from azure.servicebus.aio import ServiceBusClient

    from cosmos_outbox_worker.connection import Connection

RUN = "verify-"  # the id of every run begins with this, so the documents of a run can be recognised
TTL_SECONDS = 600
_THROTTLED, _THROTTLED_TRIES = 429, 30
_CLEAN_SECONDS = 120.0


class Site:
    """
    The containers, the topic and the two subscriptions that the caller of `verify` named, with open clients.

    Attributes:
        run: the id of the run. All partition keys, document ids, session ids, message ids and processor names of the run begin with it.
        connection: the connection of a worker, with its settings, credential and change feed.
        client, data, leases, parked: the SDK's client and the containers. `parked` is None if no parked container is named.
        key_paths, lease_paths: the partition key paths of `data` and `leases`.
        bus: the SDK's client for Service Bus. None if no namespace is named.
        topic, sessions, plain: the names of the topic, of its subscription with sessions, and of the one without sessions.
        seconds: how long the main job runs.
        only: what to run, as `area` or `area/name`. Empty for everything. The areas are preflight, cosmos, servicebus, suites, job and
            figures.
        request_units, throttled: how many request units were charged so far, and how many requests were answered with 429.
        sends: whether the run may have sent messages, so that they have to be deleted.
        deferred: the sessions in which the run may have deferred messages.
    """

    def __init__(
        self,
        connection: Connection,
        key_paths: KeyPaths,
        lease_paths: KeyPaths,
        bus: ServiceBusClient | None,
        *,
        sessions: str,
        plain: str,
        seconds: float = 60.0,
        only: tuple[str, ...] = (),
        meter: Meter,
    ) -> None:
        self.run = f"{RUN}{secrets.token_hex(4)}"
        self.connection = connection
        self.client: CosmosClient = connection.client
        self.data: ContainerProxy = connection.data
        self.leases: ContainerProxy = connection.lease_container
        self.parked: ContainerProxy | None = connection.parked
        self.key_paths, self.lease_paths, self.bus = key_paths, lease_paths, bus
        self.topic, self.sessions, self.plain = connection.settings.topic, sessions, plain
        self.seconds, self.only = seconds, only
        self._meter = meter
        self._numbers = 0
        self.sends, self.deferred = False, set[str]()

    @property
    def request_units(self) -> float:
        return self._meter.request_units

    @property
    def throttled(self) -> int:
        return self._meter.throttled

    @property
    def environ(self) -> dict[str, str]:
        """Return the environment variables for a worker process or consumer process of this run. Do not log them: they contain secrets."""
        own = {"OUTBOX_PROCESSOR_NAME": self.run, "OUTBOX_HEALTH_PORT": "0"}
        return {**os.environ, **own}

    @property
    def lean(self) -> bool:
        """Return whether the lean receiver, which receives without the SDK, is installed and allowed by the settings."""
        settings = self.connection.settings
        by_sdk = settings.sdk_only or settings.servicebus_transport != "tcp"
        return find_spec("cosmos_outbox_amqp") is not None and not by_sdk

    def wants(self, area: str, name: str = "") -> bool:
        """Return whether a claim or test is to be run according to `--only`. Without a name, return whether anything of the area is to be run."""
        full = f"{area}/{name}" if name else area
        return not self.only or any(
            asked in (full, area) or (not name and asked.startswith(f"{area}/")) for asked in self.only
        )

    def name(self, of: str = "") -> str:
        """Return a unique name that begins with the run's id."""
        self._numbers += 1
        return f"{self.run}-{self._numbers}{of and '-'}{of}"

    def key(self, name: str) -> PartitionKey:
        """Return a partition key of the data container that has the name on each of its levels."""
        return key_of(name, len(self.key_paths.levels))

    def sdk_key(self, name: str) -> Any:
        """Return the partition key for a name, in the form in which the SDK takes it."""
        return sdk_key(self.key(name))

    def document(self, key: str, document_id: str = "", **fields: object) -> dict[str, Any]:
        """Return a document for the data container. `key` is a name that `name` returned, from which its partition key is made."""
        given = {"id": document_id or self.name(), "ttl": TTL_SECONDS, "type": "verify"}
        return {**given, **fields, **self.key_paths.fields(self.key(key))}

    async def answer(self, call: Callable[[], Awaitable[Any]]) -> str:
        """
        Send a request and return its status as a text: "ok", or status and substatus such as "404/0".

        A request that is refused with 429 is sent again.
        """
        return (await self.answer_of(call))[0]

    async def answer_of(self, call: Callable[[], Awaitable[Any]]) -> tuple[str, Any]:
        """
        Send a request. Return its status as a text, and its result or the SDK's error.

        Raises:
            AccessDenied: the caller lacks a right, so the answer does not show how Azure behaves.
        """
        for _ in range(_THROTTLED_TRIES):
            try:
                return "ok", await call()
            except HttpResponseError as error:
                if isinstance(denied := translate(error), AccessDenied):
                    raise denied from error
                if error.status_code != _THROTTLED:
                    return f"{error.status_code}/{getattr(error, 'sub_status', None) or 0}", error
                headers: Mapping[str, str] = getattr(error, "headers", None) or {}
                await asyncio.sleep(float(headers.get("x-ms-retry-after-ms") or 100) / 1000)
        return "429", None

    async def must(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """Send a request that prepares a test, and return its result. After 429, send it again. If it fails, raise RuntimeError."""
        said, returned = await self.answer_of(call)
        if said != "ok":
            raise RuntimeError(f"Cosmos DB refused a request that prepares a test: {said}.") from returned
        return returned

    async def all_of(self, listed: Callable[[], AsyncIterable[dict[str, Any]]]) -> list[dict[str, Any]]:
        """Return all documents of a query or of the change feed. If the request for a page is refused with 429, read all pages again."""

        async def read() -> list[dict[str, Any]]:
            return [one async for one in listed()]

        found: list[dict[str, Any]] = await self.must(read)
        return found

    def without_secrets(self, text: str) -> str:
        """Remove credentials and the names of the account and of the namespace from a text."""
        settings = self.connection.settings
        return without_names(without_secrets(text, settings), settings, self.run)

    async def clean(self) -> int:
        """
        Delete the documents and messages that the run wrote. Return how many were deleted. If some cannot be deleted, their time to live
        removes them.
        """
        containers = [(self.data, self.key_paths), (self.leases, self.lease_paths)]
        if self.parked is not None:
            containers.append((self.parked, ON_PARTITION_KEY))
        async with asyncio.timeout(_CLEAN_SECONDS):
            gone = sum([await delete_documents(self, *one) for one in containers])
            if self.bus is not None and self.sends:
                each = partial(delete_messages, self.bus, self.topic, run=self.run)
                with_sessions = each(self.sessions, sessions=True, deferred=self.deferred)
                gone += await all_of(with_sessions, each(self.plain, sessions=False, deferred=set()))
        return gone


def key_of(name: str, levels: int) -> PartitionKey:
    """Return a partition key that has the name on each of its levels. A key with one level is the name itself, otherwise a tuple."""
    return name if levels == 1 else (name,) * levels


class Meter:
    """
    Counts requests, refusals with 429, and request units. A part of a run may set `OWN_METER` to another meter, which then counts only the
    requests of this part.
    """

    def __init__(self) -> None:
        self.requests, self.throttled, self.request_units = 0, 0, 0.0

    def hear(self, request: SentRequest, status: int, headers: Mapping[str, str]) -> None:
        """Count an answer and its request charge. The connection calls this for each answer of Cosmos DB."""
        self.requests += 1
        self.throttled += status == _THROTTLED
        self.request_units += float(headers.get("x-ms-request-charge") or 0)
        if (own := OWN_METER.get()) not in (None, self):
            own.hear(request, status, headers)


# The meter of a part that runs at the same time as other parts, such as a suite of contract tests. It counts only this part's requests.
OWN_METER: ContextVar[Any] = ContextVar("OWN_METER", default=None)


@asynccontextmanager
async def open_site(
    *, sessions: str, plain: str, seconds: float = 60.0, only: tuple[str, ...] = ()
) -> AsyncIterator[Site]:
    """
    Open the containers and the topic that the OUTBOX_ variables name. At the end, delete what the run wrote, even if it was interrupted.

    Args:
        sessions, plain: the names of two subscriptions of OUTBOX_TOPIC. `sessions` requires sessions, and `plain` has none.
        seconds, only: as in `Site`.

    Raises:
        ConfigurationError: a container or the topic cannot be used.
        AccessDenied: Cosmos DB or Service Bus refuses the caller.
        StoreUnavailable: Cosmos DB does not answer.
    """
    from cosmos_outbox_worker.connection import open_connection  # noqa: PLC0415 - the kit does without the worker
    from cosmos_outbox_worker.settings import load  # noqa: PLC0415 - as above

    meter, settings = Meter(), load(for_command=True)
    async with AsyncExitStack() as stack:
        connection = await stack.enter_async_context(open_connection(settings, answered=meter.hear))
        described = await retry_reads(connection.feed.describe, RetryOptions())

        async def read() -> Mapping[str, Any]:
            async with our_errors():
                return await connection.lease_container.read()

        leases = await retry_reads(read, RetryOptions())
        paths = KeyPaths(tuple((path.strip("/"),) for path in leases["partitionKey"]["paths"]))
        bus = None
        if settings.topic and settings.namespace:
            bus = await stack.enter_async_context(connection.service_bus())
        parts: Any = {"sessions": sessions, "plain": plain, "seconds": seconds, "only": only}
        site = Site(connection, described.key_paths, paths, bus, **parts, meter=meter)
        try:
            yield site
        finally:
            try:
                await site.clean()
            except (OutboxError, AzureError, TimeoutError, RuntimeError) as error:
                kept = f"Documents and messages of {site.run} could not be deleted: {type(error).__name__}. Documents expire in 15 minutes."
                sys.stderr.write(f"{kept}\n")
