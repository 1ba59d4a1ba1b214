"""
Service Bus: settings of topics, subscriptions and queues that would lose, disorder, repeat or delay events.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from azure.servicebus.management import EntityStatus

from cosmos_outbox.adapters.servicebus import administration
from cosmos_outbox.adapters.servicebus.administration import Entity, Refusal, SettingsUnknown, duration
from cosmos_outbox.adapters.servicebus.publisher import BatchScope
from cosmos_outbox.consumer import Consumer
from cosmos_outbox.errors import ConfigurationError, SubscriptionUnavailable
from cosmos_outbox_worker.connection import Connection
from cosmos_outbox_worker.consumer_settings import ConsumerSettings
from cosmos_outbox_worker.doctor.check import Checks, Finding, Findings, finding

# The longest time between a first copy and a resend: an outage, a restart, a lease that expires.
_LEAST_WINDOW = timedelta(minutes=10)
_LEAST_LOCK = timedelta(minutes=1)  # the shortest lock that a consumer can use
_LEAST_DELIVERIES = 10  # the default of Service Bus
_NEVER = timedelta(days=3650)  # the service says "10675199 days" if it never deletes the entity
_REFUSING = (EntityStatus.DISABLED, EntityStatus.SEND_DISABLED)
_SILENT = (EntityStatus.DISABLED, EntityStatus.RECEIVE_DISABLED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic to which events are sent, in batches of this scope."""

    topic: Entity
    batch_scope: BatchScope = BatchScope.TOPIC

    @property
    def fitting_scope(self) -> BatchScope:
        """Return the widest scope of batches that a partitioned topic takes."""
        deduplicates = self.topic.settings.requires_duplicate_detection
        return BatchScope.MESSAGE if deduplicates else BatchScope.SESSION


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """
    A subscription or queue from which a consumer receives.

    entered: the topic, or the queue itself.
    deliveries: that it has to allow, before which the consumer parks.
    record_ttl: how long the inbox remembers a message.
    """

    source: Entity
    entered: Entity
    deliveries: int = _LEAST_DELIVERIES
    record_ttl: timedelta

    @property
    def lives(self) -> timedelta:
        """Return how long a message lives: the shorter of two defaults decides."""
        found = [duration(one.settings.default_message_time_to_live) for one in (self.source, self.entered)]
        return min((one for one in found if one is not None), default=timedelta.max)


def _shorter(length: timedelta | str | None, least: timedelta) -> list[timedelta]:
    found = duration(length)
    return [found] if found is not None and found < least else []


TOPIC: Checks[Topic] = {
    "topic.missing": lambda it: not it.topic.exists,
    "topic.kind": lambda it: it.topic.exists and it.topic.settings is None,
}
TOPIC_SETTINGS: Checks[Topic] = {
    "topic-status.refusing": lambda it: it.topic.settings.status in _REFUSING,
    "duplicate-detection.off": lambda it: not it.topic.settings.requires_duplicate_detection,
    "duplicate-window.short": lambda it: (
        bool(it.topic.settings.requires_duplicate_detection)
        and _shorter(it.topic.settings.duplicate_detection_history_time_window, _LEAST_WINDOW)
    ),
    "partitioning.scope": lambda it: (
        bool(it.topic.settings.enable_partitioning)
        and it.batch_scope not in (it.fitting_scope, BatchScope.MESSAGE)
    ),
    "auto-delete.topic": lambda it: _shorter(it.topic.settings.auto_delete_on_idle, _NEVER),
    "subscriptions.none": lambda it: not it.topic.subscriptions,
}
SUBSCRIPTION: Checks[Entity] = {
    "sessions.none": lambda it: not it.settings.requires_session,
    "subscription-status.silent": lambda it: it.settings.status in _SILENT,
}
# Questions about any subscription or queue, whether a worker sends to it or a consumer receives from it
KEPT: Checks[Entity] = {
    "auto-delete.subscription": lambda it: _shorter(it.settings.auto_delete_on_idle, _NEVER),
    "dead-lettering.expiry": lambda it: not it.settings.dead_lettering_on_message_expiration,
}
SOURCE: Checks[Entity] = {
    "subscription.missing": lambda it: not it.exists,
    "subscription.kind": lambda it: it.exists and it.settings is None,
}
SOURCE_SETTINGS: Checks[Source] = {
    "lock-duration.short": lambda it: bool(_shorter(it.source.settings.lock_duration, _LEAST_LOCK)),
    "max-delivery-count.few": lambda it: (
        (it.source.settings.max_delivery_count or _LEAST_DELIVERIES) < it.deliveries
    ),
    "subscription-status.silent-source": lambda it: it.source.settings.status in _SILENT,
    "dead-lettering.filter": lambda it: (
        not getattr(it.source.settings, "dead_lettering_on_filter_evaluation_exceptions", True)
    ),
    "record-ttl.short": lambda it: it.record_ttl < it.lives < _NEVER,
    "record-ttl.for-ever": lambda it: it.lives >= _NEVER,
}
REFUSALS = {
    Refusal.MISSING: "subscription.missing",
    Refusal.DISABLED: "subscription-status.disabled",
    Refusal.DENIED: "permissions.receive",
}


def refusal_finding(label: str, refusal: Refusal, said: str, *, sessions: bool) -> Finding:
    """Return the finding for the answer of a broker that refused a receiver, with sessions or without."""
    key = REFUSALS.get(refusal, "sessions.missing" if sessions else "sessions.required")
    return finding(key, Entity(label=label), said)


async def check_topics(outbox: Connection, found: Findings) -> None:
    """Judge the settings of the topics and their subscriptions. Without the Manage right, note that it is missing."""
    try:
        async with administration.reading_settings(**outbox.namespace) as client:
            for name in outbox.settings.topics.topics:
                described = await administration.topic_described(client, name)
                topic = Topic(topic=described, batch_scope=outbox.settings.batch_scope)
                found.judge(TOPIC, topic)
                if topic.topic.settings is not None:
                    found.judge(TOPIC_SETTINGS, topic)
                    found.judge({**SUBSCRIPTION, **KEPT}, *topic.topic.subscriptions)
    except SettingsUnknown as error:
        found.add(finding("topic.unread", "Some topics", error))


async def check_source(
    outbox: Connection, settings: ConsumerSettings, consumer: Consumer, found: Findings
) -> None:
    """Judge the subscription or queue of a consumer: whether the consumer can receive, and the settings. No message is taken."""
    names = settings.topic, settings.subscription
    label = administration.source_label(*names)
    try:
        async with outbox.service_bus() as bus:
            refusal = await administration.receiving_refused(bus, *names, sessions=settings.sessions)
    except ConfigurationError as error:
        found.add(finding("subscription.unset", error))
        return
    except SubscriptionUnavailable as error:
        found.note(f"receive from {settings.source!r}", error)
        return
    if refusal is not None:
        found.add(refusal_finding(label, *refusal, sessions=settings.sessions))
        return
    try:
        async with administration.reading_settings(**outbox.namespace) as client:
            source, entered = await administration.source_described(client, *names)
    except SettingsUnknown as error:
        found.add(finding("topic.unread", label, error))
        return
    found.judge(SOURCE, source)
    if source.settings is not None and entered.settings is not None:
        found.judge(KEPT, source)
        policy = consumer.policy
        found.judge(
            SOURCE_SETTINGS,
            Source(
                source=source,
                entered=entered,
                deliveries=policy.least_delivery_count,
                record_ttl=policy.record_ttl,
            ),
        )
