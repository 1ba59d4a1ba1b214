"""
Service Bus: settings of topics, subscriptions and queues that would lose, disorder, repeat or delay events.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from azure.servicebus.management import EntityStatus

from cosmos_outbox.adapters.servicebus.administration import (
    Entity,
    Refusal,
    SettingsUnknown,
    duration,
    reading_settings,
    receiving_refused,
    source_described,
    source_label,
    topic_described,
)
from cosmos_outbox.adapters.servicebus.publisher import BatchScope
from cosmos_outbox.consumer import Consumer
from cosmos_outbox.errors import ConfigurationError, SubscriptionUnavailable
from cosmos_outbox_worker.connection import Connection
from cosmos_outbox_worker.consumer_settings import ConsumerSettings
from cosmos_outbox_worker.doctor.check import Check, Findings

# The longest a resend comes after the first copy: an outage, a restart, a lease that expires.
_LEAST_WINDOW = timedelta(minutes=10)
_LEAST_DELIVERIES = 10  # the default of Service Bus
_NEVER = timedelta(days=3650)  # the service says "10675199 days" where nothing is ever deleted
_REFUSING = (EntityStatus.DISABLED, EntityStatus.SEND_DISABLED)
_SILENT = (EntityStatus.DISABLED, EntityStatus.RECEIVE_DISABLED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic that events are sent to in batches of a scope."""

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
    A subscription or queue that a consumer receives from.

    entered: the topic, or the queue itself.
    lock: for how long it trusts a lock.
    deliveries: that it has to allow, before which the consumer parks.
    record_ttl: how long the inbox remembers a message.
    """

    source: Entity
    entered: Entity
    lock: timedelta = timedelta(minutes=1)
    deliveries: int = _LEAST_DELIVERIES
    record_ttl: timedelta

    @property
    def lives(self) -> timedelta:
        """Return how long a message may live: as the shorter default of the two says."""
        found = [duration(one.settings.default_message_time_to_live) for one in (self.source, self.entered)]
        return min((one for one in found if one is not None), default=timedelta.max)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reception:
    """
    What the broker said to a receiver.

    sessions: whether it is one with sessions.
    """

    label: str
    sessions: bool
    refusal: Refusal
    said: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """Settings that could not be read."""

    what: str
    why: str


def _auto_delete(entity: Entity) -> list[object]:
    after = duration(entity.settings.auto_delete_on_idle)
    return [after] if after is not None and after < _NEVER else []


TOPIC: tuple[Check[Topic], ...] = (
    Check("topic.missing", lambda it: not it.topic.exists),
    Check("topic.kind", lambda it: it.topic.exists and it.topic.settings is None),
)
TOPIC_SETTINGS: tuple[Check[Topic], ...] = (
    Check("topic-status.refusing", lambda it: it.topic.settings.status in _REFUSING),
    Check("duplicate-detection.off", lambda it: not it.topic.settings.requires_duplicate_detection),
    Check(
        "duplicate-window.short",
        lambda it: [
            window
            for window in (duration(it.topic.settings.duplicate_detection_history_time_window),)
            if it.topic.settings.requires_duplicate_detection
            and window is not None
            and window < _LEAST_WINDOW
        ],
    ),
    Check(
        "partitioning.scope",
        lambda it: (
            bool(it.topic.settings.enable_partitioning)
            and it.batch_scope not in (it.fitting_scope, BatchScope.MESSAGE)
        ),
    ),
    Check("auto-delete.topic", lambda it: _auto_delete(it.topic)),
    Check("subscriptions.none", lambda it: not it.topic.subscriptions),
)
SUBSCRIPTION: tuple[Check[Entity], ...] = (
    Check("sessions.none", lambda it: not it.settings.requires_session),
    Check("subscription-status.silent", lambda it: it.settings.status in _SILENT),
)
# Of a subscription or queue, whether a worker sends to it or a consumer receives from it
KEPT: tuple[Check[Entity], ...] = (
    Check("auto-delete.subscription", _auto_delete),
    Check("dead-lettering.expiry", lambda it: not it.settings.dead_lettering_on_message_expiration),
)
SOURCE: tuple[Check[Entity], ...] = (
    Check("subscription.missing", lambda it: not it.exists),
    Check("subscription.kind", lambda it: it.exists and it.settings is None),
)
SOURCE_SETTINGS: tuple[Check[Source], ...] = (
    Check(
        "lock-duration.short", lambda it: (duration(it.source.settings.lock_duration) or it.lock) < it.lock
    ),
    Check(
        "max-delivery-count.few",
        lambda it: (it.source.settings.max_delivery_count or _LEAST_DELIVERIES) < it.deliveries,
    ),
    Check("subscription-status.silent-source", lambda it: it.source.settings.status in _SILENT),
    Check(
        "dead-lettering.filter",
        lambda it: not getattr(it.source.settings, "dead_lettering_on_filter_evaluation_exceptions", True),
    ),
    Check("record-ttl.short", lambda it: it.record_ttl < it.lives < _NEVER),
    Check("record-ttl.for-ever", lambda it: it.lives >= _NEVER),
)
RECEPTION: tuple[Check[Reception], ...] = (
    Check("subscription-status.disabled", lambda it: it.refusal is Refusal.DISABLED),
    Check("sessions.missing", lambda it: it.refusal is Refusal.SESSIONS and it.sessions),
    Check("sessions.required", lambda it: it.refusal is Refusal.SESSIONS and not it.sessions),
    Check("permissions.receive", lambda it: it.refusal is Refusal.DENIED),
)
UNREAD: tuple[Check[Unread], ...] = (Check("topic.unread", lambda _: True),)


UNSET: tuple[Check[ConfigurationError], ...] = (Check("subscription.unset", lambda _: True),)


async def check_topics(outbox: Connection, found: Findings) -> None:
    """
    Judge the settings of the topics and their subscriptions; needs the Manage right, or notes that it is missing.
    """
    try:
        async with reading_settings(**outbox.namespace) as client:
            for name in outbox.settings.topics.topics:
                topic = Topic(
                    topic=await topic_described(client, name), batch_scope=outbox.settings.batch_scope
                )
                found.judge(TOPIC, topic)
                if topic.topic.settings is not None:
                    found.judge(TOPIC_SETTINGS, topic)
                    found.judge((*SUBSCRIPTION, *KEPT), *topic.topic.subscriptions)
    except SettingsUnknown as error:
        found.judge(UNREAD, Unread(what="Not all topics", why=str(error)))


async def check_source(
    outbox: Connection, settings: ConsumerSettings, consumer: Consumer, found: Findings
) -> None:
    """
    Judge the subscription or queue of a consumer: whether it can receive, and the settings; takes no message.
    """
    names = settings.topic, settings.subscription
    label = source_label(*names)
    try:
        async with outbox.service_bus() as bus:
            refused = await receiving_refused(bus, *names, sessions=settings.sessions)
    except ConfigurationError as error:
        found.judge(UNSET, error)
        return
    except SubscriptionUnavailable as error:
        found.note(f"receive from {settings.source!r}", error)
        return
    if refused is not None:
        refusal, said = refused
        found.judge(SOURCE, *[Entity(label=label, exists=False)] * (refusal is Refusal.MISSING))
        found.judge(RECEPTION, Reception(label=label, sessions=settings.sessions, refusal=refusal, said=said))
        return
    try:
        async with reading_settings(**outbox.namespace) as client:
            source, entered = await source_described(client, *names)
    except SettingsUnknown as error:
        found.judge(UNREAD, Unread(what=label, why=str(error)))
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
