"""Reads the `Config.json` of Microsoft's Service Bus emulator, so that this emulator can serve the same entities."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from cosmos_outbox_emulators.servicebus.broker import Broker
from cosmos_outbox_emulators.servicebus.conditions import AmqpError
from cosmos_outbox_emulators.servicebus.rules import Rule, parse_rule

_DURATION = re.compile(r"P(?=.)(?:(\d+)D)?(?:T(?=.)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?", re.ASCII)
# The longest time span of .NET, with which Azure says that messages never expire
_UNLIMITED_DAYS = 10_675_199
_SYSTEM = {
    "ContentType": "content-type",
    "CorrelationId": "correlation-id",
    "Label": "label",
    "MessageId": "message-id",
    "ReplyTo": "reply-to",
    "ReplyToSessionId": "reply-to-session-id",
    "SessionId": "session-id",
    "To": "to",
}

Fields = dict[str, Any]


def is_microsoft(value: Any) -> bool:
    """Say whether a configuration has the format of Microsoft's emulator, and not the format of this emulator."""
    return isinstance(value, dict) and "UserConfig" in value


def broker_of(value: Any) -> Broker:
    """
    Return a broker with the queues, topics, subscriptions and rules of the configuration's only namespace.

    Raises:
        ValueError: the configuration has a mistake, or asks for something that the emulator does not do. The message names the
            path of the field.
    """
    user = _fields(_fields(value, "", {"UserConfig"})["UserConfig"], "UserConfig", {"Namespaces", "Logging"})
    namespaces = [*_objects_of(user, "UserConfig", "Namespaces")]
    if len(namespaces) != 1:
        raise ValueError(f"UserConfig.Namespaces: expected one namespace, got {len(namespaces)}")
    [(path, namespace)] = namespaces
    _fields(namespace, path, {"Name", "Queues", "Topics"})
    queues = [_queue(queue, where) for where, queue in _objects_of(namespace, path, "Queues")]
    topics, rules = [], []
    for where, topic in _objects_of(namespace, path, "Topics"):
        _fields(topic, where, {"Name", "Properties", "Subscriptions"})
        subscriptions = []
        for at, subscription in _objects_of(topic, where, "Subscriptions"):
            _fields(subscription, at, {"Name", "Properties", "Rules"})
            subscriptions.append(
                {"name": subscription.get("Name"), **_properties(subscription, at, _RECEIVING)}
            )
            found = {rule.name: rule for rule in _rules(subscription, at)}
            if found:
                rules.append((str(topic.get("Name")), str(subscription.get("Name")), found))
        properties = _properties(topic, where, _SENDING)
        topics.append({"name": topic.get("Name"), **properties, "subscriptions": subscriptions})
    broker = Broker.from_config({"queues": queues, "topics": topics})
    for name, subscription_name, found in rules:
        broker.topic(name).subscriptions[subscription_name].rules = found
    return broker


def _queue(queue: Any, path: str) -> Fields:
    _fields(queue, path, {"Name", "Properties"})
    return {"name": queue.get("Name"), **_properties(queue, path, _SENDING | _RECEIVING)}


def _rules(subscription: Fields, path: str) -> Iterator[Rule]:
    for where, rule in _objects_of(subscription, path, "Rules"):
        properties = _fields(rule, where, {"Name", "Properties"}).get("Properties", {})
        at = f"{where}.Properties"
        _fields(properties, at, {"FilterType", "CorrelationFilter", "SqlFilter", "Action"})
        kind = properties.get("FilterType", "Sql" if "SqlFilter" in properties else "Correlation")
        if kind == "Correlation":
            given = _fields(
                properties.get("CorrelationFilter", {}), f"{at}.CorrelationFilter", {*_SYSTEM, "Properties"}
            )
            wanted = {_SYSTEM[name]: text for name, text in given.items() if name != "Properties"}
            description: Fields = {
                "correlation-filter": {**wanted, "properties": given.get("Properties", {})}
            }
        elif kind == "Sql":
            given = _fields(properties.get("SqlFilter", {}), f"{at}.SqlFilter", {"SqlExpression"})
            description = {"sql-filter": {"expression": given.get("SqlExpression")}}
        else:
            raise ValueError(f"{at}.FilterType: expected Sql or Correlation, got {kind!r:.80}")
        action = _fields(properties.get("Action", {}), f"{at}.Action", {"SqlExpression"}).get("SqlExpression")
        if action:
            description["sql-rule-action"] = {"expression": action}
        try:
            yield parse_rule(rule.get("Name"), description)
        except AmqpError as error:
            raise ValueError(f"{where}: {error.description}") from error


def _fields(value: Any, path: str, known: set[str]) -> Fields:
    if not isinstance(value, dict):
        raise ValueError(f"{path or 'config'}: expected an object, got {value!r:.80}")  # noqa: TRY004  # one error type for all bad input
    for name in value:
        if name not in known:
            where = f"{path}.{name}" if path else name
            raise ValueError(f"{where}: unknown field, not one of {', '.join(sorted(known))}")
    return value


def _objects_of(owner: Any, path: str, name: str) -> Iterator[tuple[str, Fields]]:
    """Yield the objects in a list field, each with its path."""
    values = owner.get(name, []) if isinstance(owner, Mapping) else None
    if not isinstance(values, list):
        raise ValueError(f"{path}.{name}: expected a list")  # noqa: TRY004  # as above
    for index, value in enumerate(values):
        yield f"{path}.{name}[{index}]", value


def _properties(owner: Fields, path: str, known: Mapping[str, _Property]) -> Fields:
    """
    Return the properties of an entity under the names of this emulator's own configuration, whose reader checks the values later.
    """
    path = f"{path}.Properties"
    given = _fields(owner.get("Properties", {}), path, set(known))
    out: Fields = {}
    for name, value in given.items():
        target, read = known[name]
        out[target] = read(value, f"{path}.{name}")
    out.pop("forwards", None)
    if not out.pop("duplicates", False):
        out.pop("dedup_window_s", None)
    elif "dedup_window_s" not in out:
        out["dedup_window_s"] = 600
    return out


_Property = tuple[str, Callable[[Any, str], Any]]


def _as_it_is(value: Any, _: str) -> Any:
    return value


def _seconds(value: Any, path: str) -> float | None:
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{path}: expected a duration such as PT1H, got {value!r:.80}")
    days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return None if days >= _UNLIMITED_DAYS else days * 86400 + hours * 3600 + minutes * 60 + seconds


def _nowhere(value: Any, path: str) -> None:
    if value:
        raise ValueError(f"{path}: the emulator cannot forward messages")


_SENDING: dict[str, _Property] = {
    "DefaultMessageTimeToLive": ("ttl_s", _seconds),
    "DuplicateDetectionHistoryTimeWindow": ("dedup_window_s", _seconds),
    "RequiresDuplicateDetection": ("duplicates", _as_it_is),
}
_RECEIVING: dict[str, _Property] = {
    "DeadLetteringOnMessageExpiration": ("dead_letter_on_expiration", _as_it_is),
    "DefaultMessageTimeToLive": ("ttl_s", _seconds),
    "ForwardDeadLetteredMessagesTo": ("forwards", _nowhere),
    "ForwardTo": ("forwards", _nowhere),
    "LockDuration": ("lock_s", _seconds),
    "MaxDeliveryCount": ("max_delivery_count", _as_it_is),
    "RequiresSession": ("requires_session", _as_it_is),
}
