"""Own views: what the contract suites need, an empty container and a topic without strangers, on those that the caller named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from azure.servicebus import ServiceBusReceivedMessage, ServiceBusReceiveMode
from azure.servicebus.aio import ServiceBusClient

from cosmos_outbox.message_format import OutboundMessage, received_text
from cosmos_outbox.ports import CommitResult, LeaseStore, Listing, Page, Publisher, Store, Write
from cosmos_outbox.stored_documents import Document
from cosmos_outbox_testing.contracts import PublisherBackend
from cosmos_outbox_testing.verify.site import TTL_SECONDS

_KEY, _TYPE, _ID, _TTL = "partitionKey", "type", "id", "ttl"


class OwnStore:
    """A store in which a test sees its own documents alone: partition keys and types begin with its name."""

    def __init__(self, store: Store, name: str) -> None:
        self._store, self._name = store, name

    async def read(self, document_id: str, partition_key: str, **options: Any) -> Document:
        return self._as_written(await self._store.read(document_id, self._name + partition_key, **options))

    async def commit(self, partition_key: str, writes: Sequence[Write]) -> CommitResult:
        own = [replace(one, document=self._stored(one.document)) for one in writes]
        return await self._store.commit(self._name + partition_key, own)

    async def list(self, types: Sequence[str], *, partition_key: str | None, **options: Any) -> Page:
        key = None if partition_key is None else self._name + partition_key
        page = await self._store.list([self._name + one for one in types], partition_key=key, **options)
        return replace(page, documents=tuple(map(self._as_written, page.documents)))

    def _stored(self, document: Mapping[str, Any] | None) -> Document | None:
        if document is None:
            return None
        return {
            _TTL: TTL_SECONDS,
            **document,
            **{field: self._name + document[field] for field in (_KEY, _TYPE)},
        }

    def _as_written(self, document: Document) -> Document:
        return document | {field: document[field].removeprefix(self._name) for field in (_KEY, _TYPE)}


class OwnLeases:
    """Leases of one test alone: ids begin with its name."""

    def __init__(self, leases: LeaseStore, name: str) -> None:
        self._leases, self._name = leases, name

    async def list(self, prefix: str) -> Listing:
        listing = await self._leases.list(self._name + prefix)
        return replace(listing, documents=tuple(map(self._as_written, listing.documents)))

    async def read(self, document_id: str, partition_key: str) -> Document:
        return self._as_written(await self._leases.read(self._name + document_id, self._name + partition_key))

    async def create(self, document: Mapping[str, Any]) -> Document:
        return self._as_written(await self._leases.create(self._stored(document)))

    async def replace(self, document: Mapping[str, Any], *, etag: str) -> Document:
        return self._as_written(await self._leases.replace(self._stored(document), etag=etag))

    async def delete(self, document_id: str, partition_key: str, *, etag: str | None = None) -> None:
        await self._leases.delete(self._name + document_id, self._name + partition_key, etag=etag)

    def _stored(self, document: Mapping[str, Any]) -> Document:
        return {_TTL: TTL_SECONDS, **document, _ID: self._name + document[_ID]}

    def _as_written(self, document: Document) -> Document:
        return document | {_ID: document[_ID].removeprefix(self._name)}


class OwnTopic(PublisherBackend):
    """A topic, and the reader of sessions of a subscription of it."""

    def __init__(self, client: ServiceBusClient, topic: str, subscription: str, publisher: Publisher) -> None:
        self._client, self._topic, self._subscription = client, topic, subscription
        self.publisher = publisher

    async def received(self, session_id: str, *, last: OutboundMessage) -> list[OutboundMessage]:
        messages: list[ServiceBusReceivedMessage] = []
        async with self._client.get_subscription_receiver(
            self._topic,
            self._subscription,
            session_id=session_id,
            receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE,
        ) as receiver:
            while not messages or messages[-1].message_id != last.message_id:
                if not (more := await receiver.receive_messages(100, max_wait_time=60)):
                    break
                messages += more
            messages += await receiver.receive_messages(1, max_wait_time=0.1)  # one too many must show
        return [_as_sent(message) for message in messages]

    def recover(self) -> None:
        """There is no fault to end."""


def _as_sent(message: ServiceBusReceivedMessage) -> OutboundMessage:
    properties = {
        received_text(name): received_text(value)
        for name, value in (message.application_properties or {}).items()
    }
    return OutboundMessage(
        message_id=str(message.message_id),
        session_id=str(message.session_id),
        subject=str(message.subject),
        body=b"".join(message.body),
        content_type=str(message.content_type),
        properties=properties,
    )
