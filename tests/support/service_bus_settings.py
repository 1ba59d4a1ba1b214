"""Make descriptions of topics and subscriptions with correct settings. A test passes the one setting that it wants to be wrong."""

from __future__ import annotations

import inspect
from datetime import timedelta
from typing import Any

from azure.servicebus.management import EntityStatus, SubscriptionProperties, TopicProperties

from cosmos_outbox.adapters.servicebus.administration import Entity

# Service Bus reports this duration for an entity that it never deletes.
FOREVER = timedelta(days=10_675_199)
MONTH = timedelta(days=30)
GOOD: dict[str, Any] = {
    "requires_session": True,
    "lock_duration": timedelta(seconds=60),
    "max_delivery_count": 10,
    "auto_delete_on_idle": FOREVER,
    "status": EntityStatus.ACTIVE,
    "dead_lettering_on_message_expiration": True,
    "default_message_time_to_live": MONTH,
}


def described(kind: Any, name: str, **fields: Any) -> Any:
    """Return a description of an entity as the SDK makes it from an answer of Service Bus. Settings that are not given are None."""
    parameters = inspect.signature(kind.__init__).parameters.values()
    names = [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    return kind(name, **dict.fromkeys(names) | fields)


def subscription(**fields: Any) -> Entity:
    also = {"dead_lettering_on_filter_evaluation_exceptions": True}
    settings = described(SubscriptionProperties, "all", **GOOD | also | fields)
    return Entity(label="Subscription 'all' of topic 'events'", settings=settings)


def topic(*subscriptions: Entity, **fields: Any) -> Entity:
    good = {
        "requires_duplicate_detection": True,
        "duplicate_detection_history_time_window": timedelta(minutes=10),
        "enable_partitioning": False,
        "auto_delete_on_idle": FOREVER,
        "status": EntityStatus.ACTIVE,
    }
    settings = described(TopicProperties, "events", **good | fields)
    return Entity(label="Topic 'events'", settings=settings, subscriptions=subscriptions)
