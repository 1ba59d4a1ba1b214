"""
The configuration of a broker: its topics, subscriptions and queues. Every field is checked, and each error names the path of the
wrong field. `microsoft_config.py` reads the file of Microsoft's emulator.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

DEFAULT_KEYS = {"RootManageSharedAccessKey": "SAS_KEY_VALUE"}
RIGHTS = frozenset({"Manage", "Send", "Listen"})


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueConfig:
    """The settings by which a queue or a subscription stores and delivers messages."""

    requires_session: bool = False
    lock_s: float = 60.0
    max_delivery_count: int = 10
    ttl_s: float | None = None
    dead_letter_on_expiration: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionConfig:
    name: str
    queue: QueueConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """The configuration of a topic. A queue is described as a topic that has `queue` and no subscriptions."""

    name: str
    dedup_window_s: float | None = None
    ttl_s: float | None = None
    max_message_size: int = 256 * 1024
    subscriptions: tuple[SubscriptionConfig, ...] = ()
    queue: QueueConfig | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """
    The configuration of a broker.

    Attributes:
        link_idle_s: Seconds without a message after which a sending link is detached. Defaults to 600, as in Azure.
        sas_keys: Names and values of the shared access keys with which clients may sign tokens.
        key_rights: Rights of each key, by its name. A key that is not listed has every right.
    """

    topics: tuple[TopicConfig, ...] = ()
    link_idle_s: float = 600.0
    sas_keys: Mapping[str, str]
    key_rights: Mapping[str, frozenset[str]]

    def rights_of(self, key: str) -> frozenset[str]:
        return self.key_rights.get(key, RIGHTS)


_Check = Callable[[Any, str], Any]


def _fail(path: str, expected: str, value: Any) -> ValueError:
    return ValueError(f"{path or 'config'}: expected {expected}, got {value!r:.80}")


def _object(value: Any, path: str, fields: Mapping[str, tuple[_Check, Any]]) -> dict[str, Any]:
    """
    Check all fields of an object, and fill in defaults. Unknown fields are refused. A field with the default `...` is mandatory.
    """
    if not isinstance(value, dict):
        raise _fail(path, "an object", value)
    prefix = f"{path}." if path else ""
    for key in value:
        if key not in fields:
            raise ValueError(f"{prefix}{key}: unknown field, not one of {', '.join(sorted(fields))}")
    out = {}
    for key, (check, default) in fields.items():
        if key not in value and default is ...:
            raise ValueError(f"{prefix}{key}: is missing")
        out[key] = check(value[key], prefix + key) if key in value else default
    return out


def _seconds(value: Any, path: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise _fail(path, "a positive number of seconds", value)
    return float(value)


def _optional_seconds(value: Any, path: str) -> float | None:
    return None if value is None else _seconds(value, path)


def _count(value: Any, path: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise _fail(path, "a whole number of at least 1", value)
    return value


def _flag(value: Any, path: str) -> bool:
    if not isinstance(value, bool):
        raise _fail(path, "true or false", value)
    return value


def _name(value: Any, path: str) -> str:
    if not isinstance(value, str) or not value.strip("/") or len(value) > 260 or "$" in value:
        raise _fail(path, "an entity name of 1 to 260 characters without '$'", value)
    return value.strip("/")


def check_name(name: str, length: int, *, dollar: bool = False) -> None:
    """
    Check the name of an entity or a rule.

    Raises:
        ValueError: HTTP management does not accept the name.
    """
    allowed = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*" if not dollar else r"[$A-Za-z0-9][A-Za-z0-9._-]*")
    if len(name) > length or not allowed.fullmatch(name):
        raise ValueError(
            f"The name {name!r:.80} must have 1 to {length} characters: letters, digits, '.', '-' and '_'."
        )


def _keys(value: Any, path: str) -> dict[str, tuple[str, frozenset[str]]]:
    if not isinstance(value, dict) or not value:
        raise _fail(path, "an object of key names and key values", value)
    return {str(name): _key(key, f"{path}.{name}") for name, key in value.items()}


def _key(value: Any, path: str) -> tuple[str, frozenset[str]]:
    if isinstance(value, str):
        return value, RIGHTS
    rights = value.get("rights") if isinstance(value, dict) and value.keys() == {"value", "rights"} else None
    if isinstance(rights, list) and rights and RIGHTS.issuperset(map(str, rights)):
        return str(value["value"]), frozenset(map(str, rights))
    raise _fail(path, f"a value, or a value and rights of {', '.join(sorted(RIGHTS))}", value)


def _list(value: Any, path: str, item: Callable[[Any, str], Any]) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise _fail(path, "a list", value)
    items = tuple(item(element, f"{path}[{index}]") for index, element in enumerate(value))
    names = [element.name.lower() for element in items]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise ValueError(f"{path}[{index}].name: {name!r} is already used")
    return items


_QUEUE_FIELDS: dict[str, tuple[_Check, Any]] = {
    "requires_session": (_flag, False),
    "lock_s": (_seconds, 60.0),
    "max_delivery_count": (_count, 10),
    "ttl_s": (_optional_seconds, None),
    "dead_letter_on_expiration": (_flag, False),
}
_ENTITY_FIELDS: dict[str, tuple[_Check, Any]] = {
    "name": (_name, ...),
    "dedup_window_s": (_optional_seconds, None),
    "max_message_size": (_count, 256 * 1024),
}


def _subscription(value: Any, path: str) -> SubscriptionConfig:
    fields = _object(value, path, {"name": (_name, ...), **_QUEUE_FIELDS})
    return SubscriptionConfig(name=fields.pop("name"), queue=QueueConfig(**fields))


def parse_topic(value: Any, path: str = "") -> TopicConfig:
    fields = _object(
        value,
        path,
        {
            **_ENTITY_FIELDS,
            "ttl_s": (_optional_seconds, None),
            "subscriptions": (lambda v, p: _list(v, p, _subscription), ()),
        },
    )
    return TopicConfig(**fields)


def parse_queue(value: Any, path: str = "") -> TopicConfig:
    fields = _object(value, path, {**_ENTITY_FIELDS, **_QUEUE_FIELDS})
    queue = QueueConfig(**{key: fields.pop(key) for key in _QUEUE_FIELDS})
    return TopicConfig(**fields, queue=queue)


def parse(value: Any) -> BrokerConfig:
    """
    Return the configuration of a broker that a JSON value describes.

    Raises:
        ValueError: a field is wrong; the message names its path.
    """
    fields = _object(
        value,
        "",
        {
            "topics": (lambda v, p: _list(v, p, parse_topic), ()),
            "queues": (lambda v, p: _list(v, p, parse_queue), ()),
            "link_idle_s": (_seconds, 600.0),
            "sas_keys": (_keys, _keys(DEFAULT_KEYS, "")),
        },
    )
    names = {topic.name.lower() for topic in fields["topics"]}
    for index, queue in enumerate(fields["queues"]):
        if queue.name.lower() in names:
            raise ValueError(f"queues[{index}].name: {queue.name!r} is already the name of a topic")
    topics = fields["topics"] + fields["queues"]
    return BrokerConfig(
        topics=topics,
        link_idle_s=fields["link_idle_s"],
        sas_keys={name: key for name, (key, _) in fields["sas_keys"].items()},
        key_rights={name: rights for name, (_, rights) in fields["sas_keys"].items()},
    )
