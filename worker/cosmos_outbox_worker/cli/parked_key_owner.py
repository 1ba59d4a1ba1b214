"""Parked key owner: whose parked keys a command works on, those of an outbox's events or of a consumer's messages."""

from __future__ import annotations

import base64
import getpass
import json
import socket
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from azure.core.credentials_async import AsyncTokenCredential

from cosmos_outbox.errors import KeyNotParked, error_text
from cosmos_outbox.parking import Failure, ParkedEvent, ParkedKeys, Parking
from cosmos_outbox.parking.parked_documents import BY_HAND
from cosmos_outbox.parking.seen_leases_note import has_run
from cosmos_outbox.partition_key import key_text
from cosmos_outbox.records import AttemptFailed, Record
from cosmos_outbox.retries import RetryOptions, retry_reads
from cosmos_outbox_worker.cli.leases import require_leases
from cosmos_outbox_worker.cli.running import connect, open_consumer
from cosmos_outbox_worker.connection import Connection
from cosmos_outbox_worker.logs import printable

_COSMOS_SCOPE = "https://cosmos.azure.com/.default"
OfConsumer = Annotated[
    str | None,
    typer.Option(
        "--consumer",
        metavar="MODULE:NAME",
        help="Of this consumer, package.module:consumer, in place of the outbox.",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxOwner:
    """The workers of an outbox: they hold events."""

    outbox: Connection
    keys: ParkedKeys
    noun, about, does, done, who = "event", "action", "send", "sent", "workers"

    async def key_named(self, text: str) -> str:
        """Return the partition key that an operator named."""
        return key_text(await self.outbox.key_of(text))

    @asynccontextmanager
    async def releasing(self) -> AsyncIterator[ParkedKeys]:
        """Open the services that a release needs, and yield the parked keys."""
        async with self.outbox.publisher(lanes=1) as publisher:
            yield await self.outbox.parked_keys(publisher=publisher)

    @staticmethod
    def content(event: ParkedEvent) -> tuple[Any, Any]:
        """Return the action of an event and its payload; None if the payload was too large to be copied."""
        return event.data.get("action"), event.event.get("data")

    @staticmethod
    def error(failure: Failure) -> str:
        """Return why a key is parked."""
        return failure.error


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOwner:
    """The processes of a consumer: they hold messages. A release by `keys` calls the consumer's handlers."""

    outbox: Connection
    keys: ParkedKeys
    noun, about, does, done, who = "message", "subject", "handle", "handled", "consumers"

    async def key_named(self, text: str) -> str:
        return text

    def releasing(self) -> AbstractAsyncContextManager[ParkedKeys]:
        return nullcontext(self.keys)

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
        """Return why a key is parked, with the class of the error: a handler's error often says little without it."""
        return failure.error if failure.reason == BY_HAND else f"{failure.reason}: {failure.error}"


KeyOwner = OutboxOwner | ConsumerOwner


def _print_attempt(record: Record) -> None:
    """Tell the operator, who waits, that a handler is called again."""
    if isinstance(record, AttemptFailed) and record.delay_seconds is not None:
        failed = f"{record.message_id!r} failed: {type(record.error).__name__}: {error_text(record.error)}"
        again = f"attempt {record.attempt + 1} in {record.delay_seconds:.1f} s"
        typer.echo(printable(f"{record.key!r}: {failed}; {again}"), err=True)


async def operator_of(credential: AsyncTokenCredential | None) -> str:
    """
    Return the name, the application or the object id in the credential's token. Without a token, return the user of this machine.
    """
    if credential is None:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    token = (await credential.get_token(_COSMOS_SCOPE)).token
    payload = token.split(".")[1]
    # The service checks the signature; here the token only names its owner.
    claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    named = (claims[name] for name in ("upn", "unique_name", "appid", "oid") if name in claims)
    return str(next(named, "unknown"))


@asynccontextmanager
async def open_owner(consumer: str | None) -> AsyncIterator[KeyOwner]:
    """
    Open the outbox that the environment names, or the consumer that an option names. A release of a consumer's messages calls its
    handlers.

    Raises:
        ConfigurationError: one line for every error in the environment; or there is no such consumer.
        NothingMatches: no such processor is known, and others are.
        KeyNotParked: as in the block; where the container of a consumer has hierarchical keys, it says how they are named.
    """
    if consumer is None:
        async with connect() as outbox:
            keys = await outbox.parked_keys()
            # What is parked for a name outlives its leases, and records outlive the keys
            if not (await has_run(await outbox.parked_store(), await outbox.scope()) or await keys.list()):
                await require_leases(outbox)
            yield OutboxOwner(outbox=outbox, keys=keys)
        return
    async with open_consumer(consumer, handles=True) as (outbox, settings, opened_one):
        store = await retry_reads(outbox.parked_store, RetryOptions())
        parking = Parking(store, references=False)
        handling = opened_one.handling(source=settings.source, parking=parking, notify=_print_attempt)
        keys = ParkedKeys(store, handling.release, scope=handling.scope)
        try:
            yield ConsumerOwner(outbox=outbox, keys=keys)
        # a session may have any name, so the command cannot refuse a wrong one earlier
        except KeyNotParked as error:
            paths = (await outbox.feed.describe()).key_paths
            form = '; a key of its container is named as ["t1","u1"] is' if len(paths.levels) > 1 else ""
            raise KeyNotParked(f"{str(error).rstrip('.')}{form}.") from error
