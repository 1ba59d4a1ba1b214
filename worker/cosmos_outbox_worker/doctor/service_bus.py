"""
Service Bus: check the settings of topics, subscriptions and queues for values that lose, disorder, repeat or delay messages.
`checks.toml` has the text and the severity of each finding.
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

# Duplicate detection should remember a message for at least this long. A worker may send a message again after an outage, a restart or
# the expiration of a lease, and the topic has to recognise the second copy.
_LEAST_WINDOW = timedelta(minutes=10)
# A consumer relies on a lock for a minute after each renewal, so it may lose a shorter lock without noticing.
_LEAST_LOCK = timedelta(minutes=1)
_LEAST_DELIVERIES = 10  # the default of Service Bus
# A longer time counts as "never deleted when idle". Service Bus says "10675199 days" for never.
_NEVER = timedelta(days=3650)
_REFUSING = (EntityStatus.DISABLED, EntityStatus.SEND_DISABLED)
_SILENT = (EntityStatus.DISABLED, EntityStatus.RECEIVE_DISABLED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic to which events are sent, with the OUTBOX_BATCH_SCOPE of the worker."""

    topic: Entity
    batch_scope: BatchScope = BatchScope.TOPIC

    @property
    def fitting_scope(self) -> BatchScope:
        """Return the OUTBOX_BATCH_SCOPE for this topic if it is partitioned: the value with the largest batches that it accepts."""
        deduplicates = self.topic.settings.requires_duplicate_detection
        return BatchScope.MESSAGE if deduplicates else BatchScope.SESSION


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """
    A subscription or queue from which a consumer receives.

    source: the subscription or queue.
    entered: the entity to which senders send: the topic of the subscription, or the queue itself.
    deliveries: how many deliveries of a message the subscription or queue has to allow. With fewer, Service Bus would dead-letter a
        message before the consumer parks its key.
    record_ttl: how long the consumer's inbox remembers a message.
    """

    source: Entity
    entered: Entity
    deliveries: int = _LEAST_DELIVERIES
    record_ttl: timedelta

    @property
    def lives(self) -> timedelta:
        """Return the time to live of a message: the shorter of the defaults of the topic and of the subscription."""
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
# Checks of each subscription of a topic to which a worker sends, and of the subscription or queue from which a consumer receives.
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
    """
    Return the finding that says why Service Bus refused to open a receiver, and what to do.

    Args:
        label: the name of the subscription or queue.
        refusal: the kind of refusal.
        said: the text of the broker.
        sessions: whether the receiver asked for a session.
    """
    key = REFUSALS.get(refusal, "sessions.missing" if sessions else "sessions.required")
    return finding(key, Entity(label=label), said)


async def check_topics(outbox: Connection, found: Findings) -> None:
    """
    Check the settings of the topics and their subscriptions. If this identity lacks the right to read them (Manage), the only finding
    says so.
    """
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
    """Check that a consumer can receive from its subscription or queue, and check its settings. No message is received."""
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
