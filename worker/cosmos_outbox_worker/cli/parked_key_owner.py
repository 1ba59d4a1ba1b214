"""Parked key owner: lets the `parked` commands work on the parked keys of an outbox (events) and of a consumer (messages) alike."""

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
        help="Act on this consumer, package.module:consumer, not on the outbox.",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxOwner:
    """Give the `parked` commands access to the parked keys of an outbox, with words such as "event" and "send" for their texts."""

    outbox: Connection
    keys: ParkedKeys
    noun, about, does, done, who = "event", "action", "send", "sent", "workers"

    async def key_named(self, text: str) -> str:
        """Parse a partition key that an operator typed, and return it in the form in which the parked store has it."""
        return key_text(await self.outbox.key_of(text))

    @asynccontextmanager
    async def releasing(self) -> AsyncIterator[ParkedKeys]:
        """Open the topics to which a release sends events, and yield the parked keys."""
        async with self.outbox.publisher(lanes=1) as publisher:
            yield await self.outbox.parked_keys(publisher=publisher)

    @staticmethod
    def content(event: ParkedEvent) -> tuple[Any, Any]:
        """Return the action and the payload of a held event. The payload is None if it was too large to be copied to the parked store."""
        return event.data.get("action"), event.event.get("data")

    @staticmethod
    def error(failure: Failure) -> str:
        """Return the text of the error because of which a key was parked."""
        return failure.error


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOwner:
    """
    Give the `parked` commands access to the parked keys of a consumer, with words such as "message" for their texts. A release calls
    the consumer's handlers in this process.
    """

    outbox: Connection
    keys: ParkedKeys
    noun, about, does, done, who = "message", "subject", "handle", "handled", "consumers"

    async def key_named(self, text: str) -> str:
        return text

    def releasing(self) -> AbstractAsyncContextManager[ParkedKeys]:
        return nullcontext(self.keys)

    @staticmethod
    def content(event: ParkedEvent) -> tuple[Any, Any]:
        """Return the subject and the body of a held message. The body is a JSON object, or text if it is no object."""
        subject = (event.event.get("message") or {}).get("subject")
        body = event.event.get("body")
        if body is None or event.data or event.original is not None:
            return subject, event.data
        return subject, base64.b64decode(body).decode("utf-8", "replace")

    @staticmethod
    def error(failure: Failure) -> str:
        """Return the class and the text of the error because of which a key was parked: the text alone often says little."""
        return failure.error if failure.reason == BY_HAND else f"{failure.reason}: {failure.error}"


KeyOwner = OutboxOwner | ConsumerOwner


def _print_attempt(record: Record) -> None:
    """Print that a handler failed during a release, and when it is called again. So the operator sees why the release takes long."""
    if isinstance(record, AttemptFailed) and record.delay_seconds is not None:
        failed = f"{record.message_id!r} failed: {type(record.error).__name__}: {error_text(record.error)}"
        again = f"attempt {record.attempt + 1} in {record.delay_seconds:.1f} s"
        typer.echo(printable(f"{record.key!r}: {failed}; {again}"), err=True)


async def operator_of(credential: AsyncTokenCredential | None) -> str:
    """
    Return a name for the operator who runs this command, for the record of a decision.

    It is the user name, the application id or the object id in the credential's token. Without a credential it is `user@host` of this
    machine.
    """
    if credential is None:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    token = (await credential.get_token(_COSMOS_SCOPE)).token
    payload = token.split(".")[1]
    # Read the name from the token without checking its signature. Cosmos DB checks the signature; here the name is only recorded.
    claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    named = (claims[name] for name in ("upn", "unique_name", "appid", "oid") if name in claims)
    return str(next(named, "unknown"))


@asynccontextmanager
async def open_owner(consumer: str | None) -> AsyncIterator[KeyOwner]:
    """
    Open the parked keys of the outbox that the environment names, or of a consumer.

    Args:
        consumer: the `module:name` that the option --consumer gives; None for the outbox.

    Raises:
        ConfigurationError: settings are missing or wrong, with one line for each, or there is no such consumer.
        NothingMatches: the processor has neither leases nor parked keys, but other processors have leases.
        KeyNotParked: the code in the `async with` block raised this error. If the container of a consumer has hierarchical partition
            keys, the error also says how to write such a key.
    """
    if consumer is None:
        async with connect() as outbox:
            keys = await outbox.parked_keys()
            # If the processor has neither run nor parked a key, its name may be misspelled, so require that it has leases. A processor that
            # has run or parked a key needs no leases here: they may have been deleted while its parked keys are still stored.
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
        # An operator may type a key in the wrong form. The command cannot know this, because a consumer may receive sessions of any name. So
        # if no such key is parked, the error says which form the keys of the container have.
        except KeyNotParked as error:
            paths = (await outbox.feed.describe()).key_paths
            form = '; a key of its container is named as ["t1","u1"] is' if len(paths.levels) > 1 else ""
            raise KeyNotParked(f"{str(error).rstrip('.')}{form}.") from error
