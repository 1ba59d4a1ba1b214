"""Holders: whose parked keys a command works on, those of an outbox's events or of a consumer's messages."""

from __future__ import annotations

import base64
import getpass
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from azure.core.credentials_async import AsyncTokenCredential

from cosmos_outbox.consumer import Handling
from cosmos_outbox.parking import Failure, ParkedEvent, ParkedKeys, Parking
from cosmos_outbox.parking.documents import BY_HAND
from cosmos_outbox.ports import ParkedStore
from cosmos_outbox.records import ignore
from cosmos_outbox.retries import RetryOptions, retry_reads
from cosmos_outbox.write.outbox import Outbox
from cosmos_outbox_worker.cli.running import opened
from cosmos_outbox_worker.connection import Connection, connected
from cosmos_outbox_worker.consumer_settings import load_consumer
from cosmos_outbox_worker.named_consumer import consumer_named, made

_COSMOS_SCOPE = "https://cosmos.azure.com/.default"
OfConsumer = Annotated[
    str | None,
    typer.Option(
        "--consumer",
        metavar="MODULE:NAME",
        help="Of this consumer, package.module:consumer, in place of the outbox.",
    ),
]


@dataclass(frozen=True, slots=True)
class OutboxHolder:
    """The workers of an outbox, which hold events."""

    outbox: Connection
    noun, does, done, who = "event", "send", "sent", "workers"

    async def key_named(self, text: str) -> str:
        """Return the partition key that an operator named."""
        return await self.outbox.key_named(text)

    async def keys(self) -> ParkedKeys:
        """Return the parked keys."""
        return await self.outbox.parked_keys()

    @asynccontextmanager
    async def releasing(self) -> AsyncIterator[ParkedKeys]:
        """Open what a release needs, and yield the parked keys."""
        async with self.outbox.service_bus() as bus, self.outbox.publisher(bus, lanes=1) as publisher:
            yield await self.outbox.parked_keys(publisher=publisher)

    @property
    def credential(self) -> AsyncTokenCredential | None:
        return self.outbox.credential

    @staticmethod
    def content(event: ParkedEvent) -> tuple[Any, Any]:
        """Return what an event is about, and its payload; None if it was too large to be copied."""
        return event.data.get("action"), event.event.get("data")

    @staticmethod
    def error(failure: Failure) -> str:
        """Return why a key is parked."""
        return failure.error


@dataclass(frozen=True, slots=True)
class ConsumerHolder:
    """The processes of a consumer, which hold messages."""

    store: ParkedStore
    handling: Handling
    credential: AsyncTokenCredential | None
    noun, does, done, who = "message", "handle", "handled", "consumers"

    async def key_named(self, text: str) -> str:
        return text

    async def keys(self) -> ParkedKeys:
        return ParkedKeys(self.store, self.handling.release, scope=self.handling.scope)

    @asynccontextmanager
    async def releasing(self) -> AsyncIterator[ParkedKeys]:
        yield await self.keys()

    @staticmethod
    def content(event: ParkedEvent) -> tuple[Any, Any]:
        """Return the subject of a message, and its body: an object, or text."""
        subject = (event.event.get("message") or {}).get("subject")
        body = event.event.get("body")
        if body is None or event.data or event.original is not None:
            return subject, event.data
        return subject, base64.b64decode(body).decode("utf-8", "replace")

    @staticmethod
    def error(failure: Failure) -> str:
        """Return why a key is parked; what a handler raises often says little without its class."""
        return failure.error if failure.reason == BY_HAND else f"{failure.reason}: {failure.error}"


Holder = OutboxHolder | ConsumerHolder


async def operator_of(credential: AsyncTokenCredential | None) -> str:
    """
    Return the name, the application or the object id in the credential's token; without one, the user of this machine.
    """
    if credential is None:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    token = (await credential.get_token(_COSMOS_SCOPE)).token
    payload = token.split(".")[1]
    # The service has checked the signature; here the token only names who this is.
    claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    named = (claims[name] for name in ("upn", "unique_name", "appid", "oid") if name in claims)
    return str(next(named, "unknown"))


@asynccontextmanager
async def opened_holder(consumer: str | None) -> AsyncIterator[Holder]:
    """
    Open the outbox that the environment names, or the consumer that an option names; a release of its messages calls its handlers.

    Raises:
        ConfigurationError: one line for every error in the environment; or there is no such consumer.
    """
    if consumer is None:
        async with opened() as outbox:
            yield OutboxHolder(outbox)
        return
    source, settings = consumer_named(consumer), load_consumer(for_command=True)
    async with connected(settings) as connection:
        store = await retry_reads(connection.parked_store, RetryOptions())
        parking = Parking(store, references=False)
        data = await retry_reads(connection.store, RetryOptions())
        handling = made(source, Outbox(data)).handling(source=settings.source, parking=parking, notify=ignore)
        yield ConsumerHolder(store, handling, connection.credential)
