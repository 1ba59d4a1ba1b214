"""
Preflight: settings of topics and subscriptions that would lose, disorder, repeat or delay events, each with the fix.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from azure.core.credentials_async import AsyncTokenCredential
from azure.core.exceptions import AzureError, ResourceNotFoundError
from azure.core.pipeline.transport import AioHttpTransport
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.aio.management import ServiceBusAdministrationClient
from azure.servicebus.exceptions import ServiceBusError
from azure.servicebus.management import EntityStatus, SubscriptionProperties, TopicProperties

from cosmos_outbox.adapters.servicebus.errors import publish_error
from cosmos_outbox.adapters.servicebus.publisher import BatchScope
from cosmos_outbox.errors import BrokerUnavailable

SettingsT = TypeVar("SettingsT")
# The longest a resend comes after the first copy: an outage, a restart, a lease that expires.
LEAST_DEDUP_WINDOW = timedelta(minutes=10)
_NEVER = timedelta(days=3650)  # the service says "10675199 days" where nothing is ever deleted
TIMEOUT_SECONDS = 10
_LINK_SECONDS = 15.0
_CHECK_BY_HAND = (
    "Check yourself that each topic detects duplicates and each of its subscriptions requires sessions."
)
NO_MANAGEMENT = "this Service Bus emulator answers no management requests on its port."
_REFUSING = (EntityStatus.DISABLED, EntityStatus.SEND_DISABLED)
SILENT = (EntityStatus.DISABLED, EntityStatus.RECEIVE_DISABLED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Miss:
    """
    A setting that should be different; `grave` if events are lost, disordered, repeated or not sent.
    """

    check: str
    message: str
    fix: str
    grave: bool = True

    def __str__(self) -> str:
        return f"{self.message} {self.fix}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """
    What is wrong with topics; `unknown` says why some could not be checked.
    """

    misses: tuple[Miss, ...] = ()
    unknown: str | None = None


async def open_link(bus: ServiceBusClient, topic: str) -> None:
    """
    Open a link to a topic as a sender does, and close it again.

    Raises:
        PublishError: the topic cannot be sent to, or does not answer.
    """
    # An empty call opens no link; creating a batch does, and the batch is then thrown away.
    sender = bus.get_topic_sender(topic)
    try:
        async with asyncio.timeout(_LINK_SECONDS):
            await sender.create_message_batch()
    except TimeoutError:
        raise BrokerUnavailable(f"no answer in {_LINK_SECONDS:g} s") from None
    except ServiceBusError as error:
        raise publish_error(error, topic=topic) from None
    finally:
        await sender.close()


def topic_misses(topic: TopicProperties, *, batch_scope: BatchScope) -> Iterator[Miss]:
    """
    Yield what is wrong with a topic.
    """
    name = f"Topic {topic.name!r}"
    if topic.status in _REFUSING:
        yield Miss(
            check="topic-status",
            message=f"{name} refuses what is sent to it.",
            fix="Set its status to Active.",
        )
    window = duration(topic.duplicate_detection_history_time_window)
    if not topic.requires_duplicate_detection:
        yield Miss(
            check="duplicate-detection",
            message=f"{name} does not detect duplicates: what is sent again after a failure arrives twice.",
            fix="It can only be chosen when a topic is created: create it anew with requiresDuplicateDetection.",
        )
    elif window is not None and window < LEAST_DEDUP_WINDOW:
        yield Miss(
            check="duplicate-window",
            message=f"{name} remembers message ids for {window} only; after a longer outage copies arrive twice.",
            fix=f"Set duplicateDetectionHistoryTimeWindow to {LEAST_DEDUP_WINDOW} or more; a day is a good value.",
            grave=False,
        )
    deduplicated = topic.requires_duplicate_detection
    wanted, takes = (
        (BatchScope.MESSAGE, "single messages")
        if deduplicated
        else (BatchScope.SESSION, "messages of one session")
    )
    if topic.enable_partitioning and batch_scope not in (wanted, BatchScope.MESSAGE):
        yield Miss(
            check="partitioning",
            message=f"{name} is partitioned and takes only batches of {takes}.",
            fix=f"Set the batch scope to {wanted}, or create the topic anew without partitions, which is faster.",
        )
    yield from auto_delete_misses(name, topic.auto_delete_on_idle, "use")


def subscription_misses(topic: str, subscriptions: Sequence[SubscriptionProperties]) -> Iterator[Miss]:
    """
    Yield what is wrong with the subscriptions of a topic.
    """
    if not subscriptions:
        yield Miss(
            check="subscriptions",
            message=f"Topic {topic!r} has no subscription: what is sent to it is lost.",
            fix="Create one with requiresSession before a worker starts.",
        )
    for subscription in subscriptions:
        name = f"Subscription {subscription.name!r} of topic {topic!r}"
        if not subscription.requires_session:
            yield Miss(
                check="sessions",
                message=f"{name} has no sessions: several receivers get the events of one partition key out of order.",
                fix="It can only be chosen when a subscription is created: create it anew with requiresSession.",
            )
        yield from auto_delete_misses(name, subscription.auto_delete_on_idle, "a receiver")
        if subscription.status in SILENT:
            yield Miss(
                check="subscription-status",
                message=f"{name} delivers no messages (receiving is disabled).",
                fix="Set its status to Active.",
                grave=False,
            )
        if not subscription.dead_lettering_on_message_expiration:
            yield Miss(
                check="dead-lettering",
                message=f"{name} drops messages that expire.",
                fix="Set deadLetteringOnMessageExpiration.",
                grave=False,
            )


def auto_delete_misses(name: str, idle: timedelta | str | None, without: str) -> Iterator[Miss]:
    """
    Yield that an entity deletes itself, if it does.
    """
    after = duration(idle)
    if after is not None and after < _NEVER:
        yield Miss(
            check="auto-delete",
            message=f"{name} deletes itself after {idle} without {without}, with all its messages.",
            fix="Take autoDeleteOnIdle away.",
        )


async def preflight(
    topics: Sequence[str],
    *,
    batch_scope: BatchScope | str = BatchScope.TOPIC,
    connection_string: str | None = None,
    namespace: str | None = None,
    credential: AsyncTokenCredential | None = None,
) -> Inspection:
    """
    Return every miss of the topics and their subscriptions.

    Reading the settings needs the Manage right, which sending does not: a worker works without it.
    """
    misses: list[Miss] = []
    scope = BatchScope(batch_scope)
    try:
        async with administration(connection_string, namespace, credential) as client:
            for topic in topics:
                misses += await _misses_of(client, topic, scope)
    except (AzureError, ValueError, TimeoutError) as error:
        if is_emulator(connection_string):
            unknown = f"The topics were not checked: {NO_MANAGEMENT} {_CHECK_BY_HAND}"
            return Inspection(misses=tuple(misses), unknown=unknown)
        unknown = (
            f"Not all topics could be checked ({type(error).__name__}); that needs the Manage right on the namespace "
            f"(role Azure Service Bus Data Owner), sending does not. {_CHECK_BY_HAND}"
        )
        return Inspection(misses=tuple(misses), unknown=unknown)
    return Inspection(misses=tuple(misses))


async def _misses_of(
    client: ServiceBusAdministrationClient, topic: str, batch_scope: BatchScope
) -> list[Miss]:
    try:
        found = await of_its_kind(client.get_topic(topic))
    except ResourceNotFoundError:
        missing = f"Topic {topic!r} does not exist."
        return [Miss(check="topic", message=missing, fix="Create it, with a subscription.")]
    if found is None:
        miss = Miss(
            check="topic",
            message=f"{topic!r} is no topic, but a queue or a subscription.",
            fix="Correct OUTBOX_TOPIC or OUTBOX_ROUTES, so that it names a topic.",
        )
        return [miss]
    subscriptions = [one async for one in client.list_subscriptions(topic)]
    return [*topic_misses(found, batch_scope=batch_scope), *subscription_misses(topic, subscriptions)]


async def of_its_kind(reading: Awaitable[SettingsT]) -> SettingsT | None:
    """
    Return the settings that the SDK reads of an entity; None if the name is that of an entity of another kind.
    """
    try:
        return await reading
    except AttributeError:  # asked for a topic, the SDK looks for a topic's settings in the entry of a queue
        return None


def _plain_http(options: dict[str, Any]) -> Any:
    """
    Return a transport that makes http of the https that the client insists on: an emulator has no certificate.
    """
    transport = AioHttpTransport(**options)
    send = transport.send

    async def send_plainly(request: Any, **options: Any) -> Any:
        request.url = request.url.replace("https://", "http://", 1)
        return await send(request, **options)

    transport.send = send_plainly
    return transport


def is_emulator(connection_string: str | None) -> bool:
    return "usedevelopmentemulator=true" in (connection_string or "").lower()


def administration(
    connection_string: str | None, namespace: str | None, credential: AsyncTokenCredential | None
) -> ServiceBusAdministrationClient:
    """
    Return a client that reads settings.

    Raises:
        ValueError: nothing says how to sign in.
    """
    # The checks are only advice, so a start must not wait long for them.
    options: dict[str, Any] = {
        "retry_total": 0,
        "connection_timeout": TIMEOUT_SECONDS,
        "read_timeout": TIMEOUT_SECONDS,
    }
    if is_emulator(connection_string):
        options["transport"] = _plain_http(options)
    if connection_string is not None:
        return ServiceBusAdministrationClient.from_connection_string(connection_string, **options)
    if namespace is None or credential is None:
        raise ValueError("a connection string, or a namespace and a credential")
    return ServiceBusAdministrationClient(namespace, credential, **options)


def duration(value: timedelta | str | None) -> timedelta | None:
    """
    Return a duration of the SDK.
    """
    # Read from the service it is a timedelta; the SDK also lets a caller put the text of one there.
    return value if isinstance(value, timedelta) else None
