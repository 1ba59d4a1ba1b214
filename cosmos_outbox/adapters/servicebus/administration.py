"""
Administration: read the settings of topics, subscriptions and queues, and find out whether messages can be received
from them. The worker's `doctor/service_bus.py` judges the settings.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from typing import Any

from azure.core.credentials_async import AsyncTokenCredential
from azure.core.exceptions import AzureError, ResourceNotFoundError
from azure.core.pipeline.transport import AioHttpTransport
from azure.servicebus import exceptions as sdk
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.aio.management import ServiceBusAdministrationClient
from azure.servicebus.management import QueueProperties, SubscriptionProperties, TopicProperties

from cosmos_outbox.adapters.servicebus.errors import is_refused_use, names_nothing
from cosmos_outbox.adapters.servicebus.publisher import CLOSE_SECONDS
from cosmos_outbox.adapters.servicebus.subscription import receiver_of
from cosmos_outbox.errors import SubscriptionUnavailable
from cosmos_outbox.event_loop import within

_ANSWER_SECONDS = 10  # a program reads settings only to warn about them, so its start must not wait long


class SettingsUnknown(Exception):
    """The settings of a topic, subscription or queue could not be read; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entity:
    """
    A topic, subscription or queue as Service Bus describes it.

    label: the name of the entity in messages to people, for example `Queue 'orders'`.
    settings: the settings of the entity; None if it does not exist, or if an entity of another kind has the name.
    exists: whether any entity has the name.
    subscriptions: the subscriptions of a topic.
    """

    label: str
    settings: Any = None
    exists: bool = True
    subscriptions: tuple[Entity, ...] = ()


class Refusal(StrEnum):
    """Why the broker refuses to open a receiver of a subscription or queue."""

    MISSING = "missing"
    DISABLED = "disabled"
    SESSIONS = "sessions"  # the entity has sessions and the receiver asks for none, or the reverse
    DENIED = "denied"


def source_label(entity: str, subscription: str | None) -> str:
    """Return the name of a subscription or queue in messages to people, for example `Queue 'orders'`."""
    return (
        f"Queue {entity!r}" if subscription is None else f"Subscription {subscription!r} of topic {entity!r}"
    )


@asynccontextmanager
async def reading_settings(
    *, connection_string: str | None, namespace: str | None, credential: AsyncTokenCredential | None
) -> AsyncIterator[ServiceBusAdministrationClient]:
    """
    Open a client that reads settings of topics, subscriptions and queues. It needs the Manage right, which senders and
    receivers do not need.

    Raises:
        SettingsUnknown: the client could not be opened, or a read inside the block failed.
    """
    emulator = "usedevelopmentemulator=true" in (connection_string or "").lower()
    options: dict[str, Any] = {
        "retry_total": 0,
        "connection_timeout": _ANSWER_SECONDS,
        "read_timeout": _ANSWER_SECONDS,
    }
    if emulator:
        options["transport"] = _plain_http(options)
    try:
        if namespace is not None and credential is not None:
            client = ServiceBusAdministrationClient(namespace, credential, **options)
        else:
            client = ServiceBusAdministrationClient.from_connection_string(connection_string or "", **options)
        async with client:
            yield client
    except (AzureError, ValueError, TimeoutError) as error:
        needs = "reading settings needs the Manage right on the namespace (role Azure Service Bus Data Owner); sending and receiving do not."
        why = "this emulator answers no management requests on its port." if emulator else needs
        raise SettingsUnknown(f"{type(error).__name__}; {why}") from error


def _plain_http(options: dict[str, Any]) -> Any:
    """
    Return a transport that sends requests over http although their URLs say https. The client insists on https, and an
    emulator has no certificate.
    """
    transport = AioHttpTransport(**options)
    send = transport.send

    async def send_plainly(request: Any, **options: Any) -> Any:
        request.url = request.url.replace("https://", "http://", 1)
        return await send(request, **options)

    transport.send = send_plainly
    return transport


async def topic_described(client: ServiceBusAdministrationClient, name: str) -> Entity:
    """Return a topic and its subscriptions, with their settings."""
    topic = await _describe(f"Topic {name!r}", client.get_topic(name))
    if topic.settings is None:
        return topic
    found = [one async for one in client.list_subscriptions(name)]
    described = (Entity(label=source_label(name, one.name), settings=one) for one in found)
    return replace(topic, subscriptions=tuple(described))


async def source_described(
    client: ServiceBusAdministrationClient, entity: str, subscription: str | None
) -> tuple[Entity, Entity]:
    """Return a subscription or queue, and the entity that its messages enter first: the topic, or the queue itself."""
    label = source_label(entity, subscription)
    if subscription is None:
        queue = await _describe(label, client.get_queue(entity))
        return queue, queue
    source = await _describe(label, client.get_subscription(entity, subscription))
    if source.settings is None:
        return source, source
    return source, await _describe(f"Topic {entity!r}", client.get_topic(entity))


async def _describe(
    label: str, reading: Awaitable[TopicProperties | SubscriptionProperties | QueueProperties]
) -> Entity:
    try:
        return Entity(label=label, settings=await reading)
    except ResourceNotFoundError:
        return Entity(label=label, exists=False)
    # An entity of another kind has this name. The SDK looks for a topic's settings in a queue's entry, or the
    # reverse, and finds none.
    except AttributeError:
        return Entity(label=label)


async def messages_counted(
    entity: str, subscription: str | None, **namespace: Any
) -> tuple[int | None, int | None]:
    """
    Return the number of active messages and of dead-lettered messages in a subscription or queue. Both are None if they
    cannot be read, for example because the caller lacks the Manage right.
    """
    try:
        async with reading_settings(**namespace) as client:
            counts = await (
                client.get_queue_runtime_properties(entity)
                if subscription is None
                else client.get_subscription_runtime_properties(entity, subscription)
            )
            return counts.active_message_count, counts.dead_letter_message_count
    except (
        SettingsUnknown,
        # The SDK raises this error if the name belongs to another kind of entity, such as a topic instead of a queue.
        AttributeError,
    ):
        return None, None


def duration(value: timedelta | str | None) -> timedelta | None:
    """
    Return a setting that is a timedelta, and None for any other value. The SDK's type hint also allows an ISO 8601
    string, which Service Bus never sends.
    """
    return value if isinstance(value, timedelta) else None


async def receiving_refused(
    bus: ServiceBusClient, entity: str, subscription: str | None, *, sessions: bool
) -> tuple[Refusal, str] | None:
    """
    Open a receiver that takes no message, and close it again. Return the reason and the broker's words if the broker
    refused the receiver. Return None if the receiver opened.

    Raises:
        SubscriptionUnavailable: the broker does not answer.
    """
    # With sessions, ask for a session that no producer uses. The receiver locks it, and must not lock a
    # session that a consumer wants.
    options: dict[str, Any] = {"session_id": f"cosmos-outbox-doctor-{uuid.uuid4()}"} if sessions else {}
    receiver = receiver_of(bus, entity, subscription, **options)
    try:
        await within(_ANSWER_SECONDS, receiver.__aenter__())
    except sdk.ServiceBusError as error:
        said = " ".join(str(error.inner_exception or error).split())
        if isinstance(error, sdk.MessagingEntityDisabledError):
            return Refusal.DISABLED, said
        if names_nothing(error):
            return Refusal.MISSING, said
        if is_refused_use(error):
            return Refusal.SESSIONS, said
        if isinstance(error, sdk.ServiceBusAuthorizationError | sdk.ServiceBusAuthenticationError):
            return Refusal.DENIED, said
        raise SubscriptionUnavailable(said) from error
    except TimeoutError as error:
        raise SubscriptionUnavailable(f"the broker did not answer in {_ANSWER_SECONDS} s") from error
    finally:
        with suppress(Exception):
            await within(CLOSE_SECONDS, receiver.close())
    return None
