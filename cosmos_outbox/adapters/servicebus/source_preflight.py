"""
Source preflight: what keeps a consumer from its subscription or queue, or costs messages or their order, each with the fix.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from azure.core.credentials_async import AsyncTokenCredential
from azure.core.exceptions import AzureError, ResourceNotFoundError
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import (
    MessagingEntityDisabledError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusError,
)
from azure.servicebus.management import (
    QueueProperties,
    QueueRuntimeProperties,
    SubscriptionProperties,
    SubscriptionRuntimeProperties,
    TopicProperties,
)

from cosmos_outbox.adapters.servicebus.errors import is_refused_use, names_nothing
from cosmos_outbox.adapters.servicebus.preflight import (
    NO_MANAGEMENT,
    SILENT,
    TIMEOUT_SECONDS,
    Inspection,
    Miss,
    administration,
    auto_delete_misses,
    duration,
    is_emulator,
    of_its_kind,
)
from cosmos_outbox.errors import SubscriptionUnavailable

LEAST_DELIVERIES = 10  # the default of Service Bus


def source_misses(
    name: str,
    source: SubscriptionProperties | QueueProperties,
    *,
    sessions: bool,
    lock: timedelta,
    deliveries: int = LEAST_DELIVERIES,
) -> Iterator[Miss]:
    """
    Yield what is wrong with a subscription or queue for the consumer that receives from it.

    Args:
        name: of the source, for the message.
        source: its settings.
        sessions: whether the consumer receives with sessions.
        lock: for how long the consumer trusts a lock.
        deliveries: that it has to allow, before which the consumer parks. Defaults to 10.
    """
    if bool(source.requires_session) != sessions:
        yield sessions_miss(name, sessions=sessions)
    locked = duration(source.lock_duration)
    if locked is not None and locked < lock:
        yield Miss(
            check="lock-duration",
            message=f"{name} locks for {locked}, and a consumer trusts a lock for up to {lock}: one whose clock is behind works "
            "on after it lost a lock.",
            fix=f"Set lockDuration to {lock}.",
            grave=False,
        )
    if (source.max_delivery_count or LEAST_DELIVERIES) < deliveries:
        yield Miss(
            check="max-delivery-count",
            message=f"{name} dead-letters a message after {source.max_delivery_count} deliveries, and later ones of its key "
            "overtake it then. Attempts of a handler and waits for a store are not counted, but lost locks are. The consumer parks such "
            f"a message in time only where {deliveries} are allowed.",
            fix=f"Set maxDeliveryCount to {deliveries} or more, or give the consumer fewer max_deliveries.",
            grave=False,
        )
    yield from auto_delete_misses(name, source.auto_delete_on_idle, "a receiver")
    if source.status in SILENT:
        yield Miss(
            check="subscription-status",
            message=f"{name} delivers no messages (receiving is disabled).",
            fix="Set its status to Active.",
        )
    lost = []
    if not source.dead_lettering_on_message_expiration:
        lost.append(("messages that expire", "deadLetteringOnMessageExpiration"))
    if not getattr(source, "dead_lettering_on_filter_evaluation_exceptions", True):
        lost.append(("messages on which a filter fails", "deadLetteringOnFilterEvaluationExceptions"))
    for what, setting in lost:
        yield Miss(
            check="dead-lettering", message=f"{name} drops {what}.", fix=f"Set {setting}.", grave=False
        )


def memory_misses(
    entity: TopicProperties | QueueProperties, *, lock: timedelta, record_ttl: timedelta
) -> Iterator[Miss]:
    """
    Yield that records of the inbox live shorter than copies are expected, if they do.

    Args:
        entity: its settings.
        lock: for how long a message may be locked.
        record_ttl: how long a record lives.
    """
    window = duration(entity.duplicate_detection_history_time_window)
    if entity.requires_duplicate_detection and window is not None and record_ttl < (least := window + lock):
        yield Miss(
            check="record-ttl",
            message=f"The inbox forgets a message after {record_ttl}, and {entity.name!r} expects copies for {window} (its duplicate "
            f"detection), which a lock may delay by {lock}: a copy that comes late could take effect again.",
            fix=f"Give the consumer a record_ttl of {least} or more.",
            grave=False,
        )


def sessions_miss(name: str, *, sessions: bool) -> Miss:
    """
    Return that a consumer and its source do not agree on sessions.
    """
    if sessions:
        return Miss(
            check="sessions",
            message=f"{name} has no sessions, and the consumer receives with sessions.",
            fix="Create it anew with requiresSession, which can only be chosen then; or, where order does not matter, set "
            "OUTBOX_SESSIONS=false.",
        )
    return Miss(
        check="sessions",
        message=f"{name} requires sessions, and OUTBOX_SESSIONS is false.",
        fix="Take OUTBOX_SESSIONS away.",
    )


async def source_preflight(
    entity: str,
    subscription: str | None,
    *,
    sessions: bool,
    lock: timedelta = timedelta(minutes=1),
    deliveries: int = LEAST_DELIVERIES,
    record_ttl: timedelta | None = None,
    connection_string: str | None = None,
    namespace: str | None = None,
    credential: AsyncTokenCredential | None = None,
) -> Inspection:
    """
    Return every miss of a subscription, or of the queue `entity`; see `source_misses` and, for `record_ttl`, `memory_misses`. Needs the
    Manage right, as `preflight`.
    """
    name = source_name(entity, subscription)
    by_hand = "Check yourself that it requires sessions, dead-letters what expires, and its lock and delivery count."
    try:
        async with administration(connection_string, namespace, credential) as client:
            source: SubscriptionProperties | QueueProperties | None
            entered: TopicProperties | QueueProperties | None
            if subscription is None:
                source = entered = await of_its_kind(client.get_queue(entity))
            else:
                source = await client.get_subscription(entity, subscription)
                entered = None if record_ttl is None else await client.get_topic(entity)
    except ResourceNotFoundError:
        return Inspection(misses=(missing_source(name),))
    except (AzureError, ValueError, TimeoutError) as error:
        if is_emulator(connection_string):
            return Inspection(unknown=f"{name} was not checked: {NO_MANAGEMENT} {by_hand}")
        return Inspection(
            unknown=f"{name} could not be checked ({type(error).__name__}); that needs the Manage right on the namespace (role "
            f"Azure Service Bus Data Owner), receiving does not. {by_hand}"
        )
    if source is None:
        miss = Miss(
            check="subscription",
            message=f"{entity!r} is no queue, but a topic or a subscription.",
            fix="Set OUTBOX_TOPIC and OUTBOX_SUBSCRIPTION to receive from a subscription, or the name of a queue.",
        )
        return Inspection(misses=(miss,))
    misses = list(source_misses(name, source, sessions=sessions, lock=lock, deliveries=deliveries))
    if record_ttl is not None and entered is not None:
        misses += memory_misses(entered, lock=duration(source.lock_duration) or lock, record_ttl=record_ttl)
    return Inspection(misses=tuple(misses))


async def messages_counted(
    entity: str,
    subscription: str | None,
    *,
    connection_string: str | None = None,
    namespace: str | None = None,
    credential: AsyncTokenCredential | None = None,
) -> tuple[int | None, int | None]:
    """
    Return how many messages a subscription or queue has, and how many are dead-lettered; None where they may not be counted.
    """
    try:
        async with administration(connection_string, namespace, credential) as client:
            counts: SubscriptionRuntimeProperties | QueueRuntimeProperties
            if subscription is None:
                counts = await client.get_queue_runtime_properties(entity)
            else:
                counts = await client.get_subscription_runtime_properties(entity, subscription)
            return counts.active_message_count, counts.dead_letter_message_count
    # AttributeError: of an entity of another kind, the SDK has the counts look in nothing
    except (AzureError, ValueError, TimeoutError, AttributeError):
        return None, None


def source_name(entity: str, subscription: str | None) -> str:
    """
    Return how a message names a subscription or queue.
    """
    return (
        f"Queue {entity!r}" if subscription is None else f"Subscription {subscription!r} of topic {entity!r}"
    )


def missing_source(name: str) -> Miss:
    """
    Return that a subscription or queue does not exist.
    """
    return Miss(
        check="subscription",
        message=f"{name} does not exist.",
        fix="Create it with requiresSession, or correct OUTBOX_TOPIC and OUTBOX_SUBSCRIPTION.",
    )


async def receiving_miss(
    client: ServiceBusClient, entity: str, subscription: str | None, *, sessions: bool
) -> Miss | None:
    """
    Open a receiver, which takes no message, and close it again; return what keeps a consumer from receiving, if anything does.

    Raises:
        SubscriptionUnavailable: the broker does not answer.
    """
    name = source_name(entity, subscription)
    # Of a session that no producer uses: its lock is in no consumer's way.
    options: dict[str, Any] = {"session_id": f"cosmos-outbox-doctor-{uuid.uuid4()}"} if sessions else {}
    if subscription is None:
        receiver = client.get_queue_receiver(entity, **options)
    else:
        receiver = client.get_subscription_receiver(entity, subscription, **options)
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS), receiver:
            return None
    except MessagingEntityDisabledError:
        return Miss(
            check="subscription-status", message=f"{name} is disabled.", fix="Set its status to Active."
        )
    except ServiceBusError as error:
        if names_nothing(error):
            return missing_source(name)
        if is_refused_use(error):
            return sessions_miss(name, sessions=sessions)
        said = " ".join(str(error.inner_exception or error).split())
        if isinstance(error, ServiceBusAuthorizationError | ServiceBusAuthenticationError):
            return Miss(
                check="permissions",
                message=f"Not allowed to receive from {name[0].lower()}{name[1:]}: {said}",
                fix="Grant the identity Azure Service Bus Data Receiver on it; or correct the connection string, whose key needs "
                "the right Listen.",
            )
        raise SubscriptionUnavailable(said) from error
    except TimeoutError as error:
        raise SubscriptionUnavailable(f"no answer in {TIMEOUT_SECONDS} s") from error
