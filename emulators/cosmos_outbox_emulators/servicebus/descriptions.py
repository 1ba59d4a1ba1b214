"""Reads and writes the descriptions of queues, topics and subscriptions in HTTP management, with each property in its place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from xml.etree import ElementTree as ET

from cosmos_outbox_emulators.servicebus import atom
from cosmos_outbox_emulators.servicebus.config import QueueConfig, TopicConfig

QUEUE, TOPIC, SUBSCRIPTION = "QueueDescription", "TopicDescription", "SubscriptionDescription"

# The SDK for .NET reads and writes the properties in this order.
_ORDER = {
    QUEUE: "LockDuration MaxSizeInMegabytes RequiresDuplicateDetection RequiresSession DefaultMessageTimeToLive "
    "DeadLetteringOnMessageExpiration DuplicateDetectionHistoryTimeWindow MaxDeliveryCount EnableBatchedOperations "
    "SizeInBytes MessageCount IsAnonymousAccessible AuthorizationRules Status ForwardTo UserMetadata CreatedAt UpdatedAt "
    "AccessedAt SupportOrdering CountDetails AutoDeleteOnIdle EnablePartitioning EntityAvailabilityStatus EnableExpress "
    "ForwardDeadLetteredMessagesTo",
    TOPIC: "DefaultMessageTimeToLive MaxSizeInMegabytes RequiresDuplicateDetection DuplicateDetectionHistoryTimeWindow "
    "EnableBatchedOperations SizeInBytes FilteringMessagesBeforePublishing IsAnonymousAccessible AuthorizationRules Status "
    "UserMetadata CreatedAt UpdatedAt AccessedAt SupportOrdering CountDetails SubscriptionCount AutoDeleteOnIdle "
    "EnablePartitioning EntityAvailabilityStatus EnableExpress SqlFilterCount CorrelationFilterCount",
    SUBSCRIPTION: "LockDuration RequiresSession DefaultMessageTimeToLive DeadLetteringOnMessageExpiration "
    "DeadLetteringOnFilterEvaluationExceptions MessageCount MaxDeliveryCount EnableBatchedOperations Status CreatedAt "
    "UpdatedAt AccessedAt UserMetadata CountDetails AutoDeleteOnIdle EntityAvailabilityStatus",
}
# The emulator remembers these properties and shows them to clients, but they have no effect.
_SHOWN = {
    "MaxSizeInMegabytes": "1024", "EnableBatchedOperations": "true", "IsAnonymousAccessible": "false",
    "FilteringMessagesBeforePublishing": "false", "SupportOrdering": "true", "AutoDeleteOnIdle": atom.FOR_EVER,
    "EnablePartitioning": "false", "EnableExpress": "false", "DeadLetteringOnFilterEvaluationExceptions": "true",
    "AuthorizationRules": "", "UserMetadata": "", "DuplicateDetectionHistoryTimeWindow": "PT10M",
}  # fmt: skip
_FIXED = ("RequiresSession", "RequiresDuplicateDetection", "EnablePartitioning")
_REFUSED = ("ForwardTo", "ForwardDeadLetteredMessagesTo", "MaxMessageSizeInKilobytes")
_STATUS = ("Active", "Disabled", "SendDisabled", "ReceiveDisabled")
_MAX_LOCK_S, _MAX_DELIVERIES = 300.0, 2000


@dataclass(slots=True, kw_only=True)
class Shown:
    """
    The properties of an entity that have no effect in this emulator, and the times at which the entity was created and changed.
    """

    created: float
    updated: float
    given: dict[str, ET.Element] = field(default_factory=dict)


def read(description: ET.Element) -> dict[str, ET.Element]:
    """
    Return the properties of a description that a client sent, by name.

    Raises:
        ValueError: a property has an effect on Azure that the emulator does not support.
    """
    given = {atom.local(element): element for element in description}
    for name in _REFUSED:
        if name in given and given[name].text:
            raise ValueError(f"The emulator does not support {name}.")
    if given.get("Status") is not None and given["Status"].text not in _STATUS[:2]:
        raise ValueError(f"The status must be {' or '.join(_STATUS[:2])} in this emulator.")
    return given


def check_unchanged(given: Mapping[str, ET.Element], now: ET.Element) -> None:
    """
    Check that an update does not change a property that is fixed when the entity is created.

    Raises:
        ValueError: the update would change such a property.
    """
    for element in now:
        name = atom.local(element)
        if name in _FIXED and name in given and (given[name].text or "").lower() != element.text:
            raise ValueError(f"The value for the property {name} can't be changed.")


def queue_config(given: Mapping[str, ET.Element], config: QueueConfig) -> QueueConfig:
    """
    Return the configuration of a queue or subscription with the properties that a client sent.

    Raises:
        ValueError: a value is out of range.
    """
    lock_s = _seconds(given, "LockDuration", config.lock_s)
    if lock_s is None or not 0 < lock_s <= _MAX_LOCK_S:
        raise ValueError("The value for LockDuration must be more than 0 seconds and at most 5 minutes.")
    deliveries = int(_text(given, "MaxDeliveryCount") or config.max_delivery_count)
    if not 1 <= deliveries <= _MAX_DELIVERIES:
        raise ValueError(f"The value for MaxDeliveryCount must be from 1 to {_MAX_DELIVERIES}.")
    return QueueConfig(
        requires_session=_flag(given, "RequiresSession", config.requires_session),
        lock_s=lock_s,
        max_delivery_count=deliveries,
        ttl_s=_time_to_live(given, config.ttl_s),
        dead_letter_on_expiration=_flag(
            given, "DeadLetteringOnMessageExpiration", config.dead_letter_on_expiration
        ),
    )


def topic_config(given: Mapping[str, ET.Element], config: TopicConfig) -> TopicConfig:
    """
    Return the configuration of a topic or queue with the properties that a client sent.

    Raises:
        ValueError: a value is out of range.
    """
    window = _seconds(given, "DuplicateDetectionHistoryTimeWindow", config.dedup_window_s or 600.0)
    if window is None or not 20 <= window <= 7 * 86400:
        raise ValueError("DuplicateDetectionHistoryTimeWindow must be from 20 seconds to 7 days.")
    if not _flag(given, "RequiresDuplicateDetection", config.dedup_window_s is not None):
        window = None
    ttl_s = config.ttl_s if config.queue else _time_to_live(given, config.ttl_s)
    return replace(config, dedup_window_s=window, ttl_s=ttl_s)


def _time_to_live(given: Mapping[str, ET.Element], before: float | None) -> float | None:
    ttl_s = _seconds(given, "DefaultMessageTimeToLive", before)
    if ttl_s is not None and ttl_s < 1:
        raise ValueError("The value for DefaultMessageTimeToLive must be at least 1 second.")
    return ttl_s


def of_queue(config: QueueConfig) -> dict[str, str]:
    return {
        "LockDuration": atom.duration(config.lock_s),
        "RequiresSession": _word(config.requires_session),
        "DefaultMessageTimeToLive": atom.duration(config.ttl_s),
        "DeadLetteringOnMessageExpiration": _word(config.dead_letter_on_expiration),
        "MaxDeliveryCount": str(config.max_delivery_count),
    }


def of_topic(config: TopicConfig) -> dict[str, str]:
    window = config.dedup_window_s
    values = {
        "RequiresDuplicateDetection": _word(window is not None),
        "DefaultMessageTimeToLive": atom.duration(config.ttl_s),
    }
    if window is not None:
        values["DuplicateDetectionHistoryTimeWindow"] = atom.duration(window)
    return values


def describe(kind: str, values: Mapping[str, Any], shown: Shown, counts: Mapping[str, int]) -> ET.Element:
    """Return the complete description of an entity."""
    texts = {
        **values,
        "CreatedAt": atom.timestamp(shown.created),
        "UpdatedAt": atom.timestamp(shown.updated),
        "AccessedAt": "0001-01-01T00:00:00Z",
        "EntityAvailabilityStatus": "Available",
    }
    element = ET.Element(f"{{{atom.CONNECT}}}{kind}")
    for name in _ORDER[kind].split():
        if name in texts:
            element.append(atom.child(name, str(texts[name])))
        elif name in shown.given and name in _SHOWN:
            element.append(shown.given[name])
        elif name in _SHOWN and name != "UserMetadata":
            element.append(atom.child(name, _SHOWN[name]))
        elif name == "CountDetails":
            details = ET.SubElement(element, f"{{{atom.CONNECT}}}{name}")
            details.extend(atom.child(key, str(count), atom.COUNTS) for key, count in counts.items())
    return element


def _text(given: Mapping[str, ET.Element], name: str) -> str:
    return ((given[name].text if name in given else None) or "").strip()


def _flag(given: Mapping[str, ET.Element], name: str, default: bool) -> bool:
    text = _text(given, name).lower()
    if text not in ("", "true", "false"):
        raise ValueError(f"The value for {name} must be true or false.")
    return text == "true" if text else default


def _seconds(given: Mapping[str, ET.Element], name: str, default: float | None) -> float | None:
    text = _text(given, name)
    return atom.seconds(text) if text else default


def _word(flag: bool) -> str:
    return str(flag).lower()
