"""
Preflight: what about a topic and its subscriptions would cost order or bring duplicates, each with the fix.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from azure.core.credentials_async import AsyncTokenCredential
from azure.core.exceptions import AzureError
from azure.servicebus.aio.management import ServiceBusAdministrationClient
from azure.servicebus.management import EntityStatus, SubscriptionProperties, TopicProperties

from cosmos_outbox.adapters.service_bus import BatchScope

# The longest a resend comes after the first copy: an outage, a restart, a lease that expires.
LEAST_DEDUP_WINDOW = timedelta(minutes=5)
_NEVER = timedelta(days=3650)  # the service says "10675199 days" where nothing is ever deleted
_TIMEOUT_SECONDS = 10
_REFUSING = (EntityStatus.DISABLED, EntityStatus.SEND_DISABLED)


def topic_misses(topic: TopicProperties, *, batch_scope: BatchScope) -> list[str]:
    """
    Return what is wrong with a topic.
    """
    name = topic.name
    misses = []
    if topic.status in _REFUSING:
        misses.append(f"Topic {name!r} refuses what is sent to it. Set its status to Active.")
    if not topic.requires_duplicate_detection:
        misses.append(
            f"Topic {name!r} does not detect duplicates: what is sent again after a failure arrives twice. It can only "
            "be chosen when a topic is created: create it anew with requiresDuplicateDetection."
        )
    elif (
        window := _timedelta(topic.duplicate_detection_history_time_window)
    ) and window < LEAST_DEDUP_WINDOW:
        misses.append(
            f"Topic {name!r} remembers message ids for {window} only; after a longer outage copies arrive twice. Set "
            f"duplicateDetectionHistoryTimeWindow to {LEAST_DEDUP_WINDOW} or more."
        )
    if topic.enable_partitioning:
        misses += _partitioning_misses(topic, batch_scope)
    if _deletes_itself(topic.auto_delete_on_idle):
        misses.append(
            f"Topic {name!r} deletes itself after {topic.auto_delete_on_idle} without use, with all its messages. "
            "Take autoDeleteOnIdle away."
        )
    return misses


def _partitioning_misses(topic: TopicProperties, batch_scope: BatchScope) -> list[str]:
    wanted, takes = BatchScope.SESSION, "messages of one session"
    if topic.requires_duplicate_detection:
        wanted, takes = BatchScope.MESSAGE, "single messages"
    if batch_scope in (wanted, BatchScope.MESSAGE):
        return []
    miss = (
        f"Topic {topic.name!r} is partitioned and takes only batches of {takes}. Set the batch scope to {wanted}, or "
        "create the topic anew without partitions, which is faster."
    )
    return [miss]


def subscription_misses(topic: str, subscriptions: Sequence[SubscriptionProperties]) -> list[str]:
    """
    Return what is wrong with the subscriptions of a topic.
    """
    if not subscriptions:
        return [f"Topic {topic!r} has no subscription: what is sent to it is lost. Create one."]
    misses = []
    for subscription in subscriptions:
        name = f"Subscription {subscription.name!r} of topic {topic!r}"
        if not subscription.requires_session:
            misses.append(
                f"{name} has no sessions: several receivers get the events of one partition key out of order. It can "
                "only be chosen when a subscription is created: create it anew with requiresSession."
            )
        if _deletes_itself(subscription.auto_delete_on_idle):
            misses.append(
                f"{name} deletes itself after {subscription.auto_delete_on_idle} without a receiver, with all its "
                "messages. Take autoDeleteOnIdle away."
            )
    return misses


async def preflight(
    topics: Sequence[str],
    *,
    batch_scope: BatchScope | str = BatchScope.TOPIC,
    connection_string: str | None = None,
    namespace: str | None = None,
    credential: AsyncTokenCredential | None = None,
) -> list[str]:
    """
    Return every miss of the topics and their subscriptions; one sentence where they cannot be looked at.

    Looking needs the Manage right, which sending does not: a worker without it works just as well.
    """
    if connection_string is not None and "usedevelopmentemulator=true" in connection_string.lower():
        return ["The topics were not checked: the Service Bus emulator has no management API."]
    misses: list[str] = []
    try:
        async with _administration(connection_string, namespace, credential) as client:
            for topic in topics:
                found = await client.get_topic(topic)
                subscriptions = [subscription async for subscription in client.list_subscriptions(topic)]
                misses += topic_misses(found, batch_scope=BatchScope(batch_scope))
                misses += subscription_misses(topic, subscriptions)
    except (AzureError, ValueError, TimeoutError) as error:
        misses.append(
            f"Not all topics could be checked ({type(error).__name__}); that needs the Manage right on the namespace "
            "(role Azure Service Bus Data Owner), sending does not."
        )
    return misses


def _administration(
    connection_string: str | None, namespace: str | None, credential: AsyncTokenCredential | None
) -> ServiceBusAdministrationClient:
    # A start must not wait long for what is only good advice.
    if connection_string is not None:
        return ServiceBusAdministrationClient.from_connection_string(
            connection_string,
            retry_total=0,
            connection_timeout=_TIMEOUT_SECONDS,
            read_timeout=_TIMEOUT_SECONDS,
        )
    if namespace is None or credential is None:
        raise ValueError("a connection string, or a namespace and a credential")
    return ServiceBusAdministrationClient(
        namespace,
        credential,
        retry_total=0,
        connection_timeout=_TIMEOUT_SECONDS,
        read_timeout=_TIMEOUT_SECONDS,
    )


def _deletes_itself(idle: timedelta | str | None) -> bool:
    after = _timedelta(idle)
    return after is not None and after < _NEVER


def _timedelta(value: timedelta | str | None) -> timedelta | None:
    # Read from the service it is a timedelta; the SDK also lets a caller put the text of one there.
    return value if isinstance(value, timedelta) else None
