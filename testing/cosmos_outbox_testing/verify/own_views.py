"""
Show each contract test only its own documents and messages. So the tests can use containers and a topic that are not empty.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from azure.servicebus import ServiceBusReceivedMessage, ServiceBusReceiveMode
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import SessionLockLostError

from cosmos_outbox.message_format import OutboundMessage, amqp_text
from cosmos_outbox.partition_key import FeedRange
from cosmos_outbox.ports import (
    ChangeFeed,
    ChangePage,
    CommitResult,
    LeaseStore,
    Listing,
    Page,
    Publisher,
    StartFrom,
    Write,
)
from cosmos_outbox.stored_documents import Document
from cosmos_outbox_testing.contracts import PublisherBackend
from cosmos_outbox_testing.verify.site import TTL_SECONDS

_KEY, _TYPE, _ID, _TTL = "partitionKey", "type", "id", "ttl"


class OwnStore:
    """A store in which a test sees only its own documents. In the real container, their partition keys and types begin with its name."""

    own_fields = (_KEY, _TYPE)

    def __init__(self, store: Any, name: str, keys: Mapping[str, str] | None = None) -> None:
        self._store, self._name, self._keys = store, name, keys or {}

    def _key(self, key: str) -> str:
        return self._name + self._keys.get(key, key)

    async def read(self, document_id: str, partition_key: str, **options: Any) -> Document:
        return self._as_written(await self._store.read(document_id, self._key(partition_key), **options))

    async def commit(self, partition_key: str, writes: Sequence[Write]) -> CommitResult:
        own = [replace(one, document=self._as_stored(one.document)) for one in writes]
        result: CommitResult = await self._store.commit(self._key(partition_key), own)
        return result

    async def list(self, types: Sequence[str], *, partition_key: str | None, **options: Any) -> Page:
        key = None if partition_key is None else self._key(partition_key)
        page: Page = await self._store.list([self._name + one for one in types], partition_key=key, **options)
        return replace(page, documents=tuple(map(self._as_written, page.documents)))

    def _as_stored(self, document: Mapping[str, Any] | None) -> Document | None:
        if document is None:
            return None
        return {
            _TTL: TTL_SECONDS,
            **document,
            **{field: self._name + document[field] for field in self.own_fields if field in document},
            _KEY: self._key(document[_KEY]),
        }

    def _as_written(self, document: Document) -> Document:
        own = [field for field in self.own_fields if field in document]
        return document | {field: document[field].removeprefix(self._name) for field in own}


class OwnParked(OwnStore):
    """A parked store in which a test sees only its own documents. In the real container, their partition keys begin with its name."""

    own_fields = (_KEY, "processor")

    async def page(self, partition_key: str, **options: Any) -> tuple[Document, ...]:
        return tuple(map(self._as_written, await self._store.page(self._key(partition_key), **options)))

    async def queue(self, partition_key: str, **options: Any) -> tuple[Document, ...]:
        return tuple(map(self._as_written, await self._store.queue(self._key(partition_key), **options)))

    async def present(self, partition_key: str, document_ids: Collection[str]) -> frozenset[str]:
        return frozenset(await self._store.present(self._key(partition_key), document_ids))

    async def keys(self, *, processor: str, container: str) -> tuple[Document, ...]:
        found = await self._store.keys(processor=self._name + processor, container=container)
        return tuple(map(self._as_written, found))

    async def partitions(self) -> frozenset[str]:
        found = [key for key in await self._store.partitions() if key.startswith(self._name)]
        return frozenset(key.removeprefix(self._name) for key in found)


class OwnFeed:
    """
    A change feed in which a test sees only its own documents, whose partition keys begin with the test's name. For the test, each range
    begins at the position in `begins`, so that older changes need not be read.
    """

    def __init__(self, feed: ChangeFeed, name: str, begins: Mapping[FeedRange, str]) -> None:
        self._feed, self._name, self._begins = feed, name, begins
        self.describe, self.partition_id = feed.describe, feed.partition_id

    async def physical_ranges(self) -> tuple[FeedRange, ...]:
        return tuple(self._begins)

    async def read_page(self, at: FeedRange, *, continuation: str | None, **options: Any) -> ChangePage:
        if continuation is None and options["start"] is StartFrom.BEGINNING:
            continuation = self._begins[at]
        while True:
            page = await self._feed.read_page(at, continuation=continuation, **options)
            own = tuple(one for one in page.documents if one[_KEY].startswith(self._name))
            if own or not (page.documents or page.skipped):
                return replace(page, documents=own)
            continuation = page.continuation


class OwnLeases:
    """A lease store in which a test sees only its own leases. Their ids begin with the test's name."""

    def __init__(self, leases: LeaseStore, name: str) -> None:
        self._leases, self._name = leases, name

    async def list(self, prefix: str) -> Listing:
        listing = await self._leases.list(self._name + prefix)
        return replace(listing, documents=tuple(map(self._as_written, listing.documents)))

    async def read(self, document_id: str, partition_key: str) -> Document:
        return self._as_written(await self._leases.read(self._name + document_id, self._name + partition_key))

    async def create(self, document: Mapping[str, Any]) -> Document:
        return self._as_written(await self._leases.create(self._as_stored(document)))

    async def replace(self, document: Mapping[str, Any], *, etag: str) -> Document:
        return self._as_written(await self._leases.replace(self._as_stored(document), etag=etag))

    async def delete(self, document_id: str, partition_key: str, *, etag: str | None = None) -> None:
        await self._leases.delete(self._name + document_id, self._name + partition_key, etag=etag)

    def _as_stored(self, document: Mapping[str, Any]) -> Document:
        return {_TTL: TTL_SECONDS, **document, _ID: self._name + document[_ID]}

    def _as_written(self, document: Document) -> Document:
        return document | {_ID: document[_ID].removeprefix(self._name)}


class OwnTopic(PublisherBackend):
    """The topic that the user of `verify` named, as a backend of the publisher tests. The tests read its messages from a subscription."""

    def __init__(self, client: ServiceBusClient, topic: str, subscription: str, publisher: Publisher) -> None:
        self._topic, self.publisher = topic, publisher
        self._receiver = partial(client.get_subscription_receiver, topic, subscription)

    async def received(self, session_id: str, *, last: OutboundMessage) -> list[OutboundMessage]:
        messages: list[ServiceBusReceivedMessage] = []
        options: Any = {"session_id": session_id, "receive_mode": ServiceBusReceiveMode.RECEIVE_AND_DELETE}
        while True:
            # On a busy machine the session's lock may be lost. Receiving removes messages from the broker, so open the session again and
            # go on after the last message that was received.
            with suppress(SessionLockLostError):
                async with self._receiver(**options) as receiver:
                    while not messages or messages[-1].message_id != last.message_id:
                        if not (more := await receiver.receive_messages(100, max_wait_time=60)):
                            break
                        messages += more
                    # Look for one message after the last expected one, because a test has to fail if there is a message too many.
                    messages += await receiver.receive_messages(1, max_wait_time=0.1)
                break
        return [_as_sent(message) for message in messages]

    def recover(self) -> None:
        """Do nothing: no test can make this real topic fail, so there is no fault to end."""


def _as_sent(message: ServiceBusReceivedMessage) -> OutboundMessage:
    properties = {
        amqp_text(name): amqp_text(value) for name, value in (message.application_properties or {}).items()
    }
    return OutboundMessage(
        message_id=str(message.message_id),
        session_id=str(message.session_id),
        subject=str(message.subject),
        body=b"".join(message.body),
        content_type=str(message.content_type),
        properties=properties,
    )
