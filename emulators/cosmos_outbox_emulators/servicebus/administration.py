"""
HTTP management of Service Bus: applies each request to the entities of a broker, and answers with XML. `http.py` reads the requests.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from xml.etree import ElementTree as ET

from cosmos_outbox_emulators.servicebus import atom, descriptions, ruledescriptions
from cosmos_outbox_emulators.servicebus.broker import Broker
from cosmos_outbox_emulators.servicebus.conditions import AmqpError
from cosmos_outbox_emulators.servicebus.config import QueueConfig, SubscriptionConfig, TopicConfig, check_name
from cosmos_outbox_emulators.servicebus.descriptions import QUEUE, SUBSCRIPTION, TOPIC, Shown
from cosmos_outbox_emulators.servicebus.queue import Queue
from cosmos_outbox_emulators.servicebus.rules import DEFAULT_RULE, Rule
from cosmos_outbox_emulators.servicebus.topic import Subscription, Topic

_SUBSCRIPTION_PATH = re.compile(
    r"(?P<topic>.+?)/subscriptions(?:/(?P<name>[^/]+)(?:/rules(?:/(?P<rule>[^/]+))?)?)?", re.IGNORECASE
)
_MAX_NAME, _MAX_CHILD_NAME = 260, 50


class Refusal(Exception):
    """Refuses a management request with a status and a text."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


def _missing(path: str) -> Refusal:
    return Refusal(404, f"SubCode=40400. The messaging entity '{path}' could not be found.")


class Administration:
    """
    Answers HTTP management requests. It also remembers properties of entities that have no effect in this emulator, so that
    clients can read them.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._shown: dict[str, Shown] = {}
        self._begun = broker.timers.now()

    def answer(
        self, method: str, path: str, query: Mapping[str, str], body: bytes, *, update: bool, address: str
    ) -> tuple[int, ET.Element | None]:
        """
        Execute a request, and return its status and the XML of the answer.

        Args:
            update: Whether the request updates an entity, which has to exist already.
            address: Address of the namespace, for the links in the XML.
        """
        act = {"GET": self._get, "PUT": self._put, "DELETE": self._delete}.get(method)
        if act is None:
            return 405, atom.failure(405, f"The method {method} is not allowed.")
        try:
            return act(path.strip("/"), query, body, update, address.rstrip("/"))
        except Refusal as refusal:
            return refusal.status, atom.failure(refusal.status, refusal.detail)
        except AmqpError as error:
            return 400, atom.failure(400, f"SubCode=40000. {error.description}")
        except ValueError as error:
            return 400, atom.failure(400, f"SubCode=40000. {error}")

    # Reading

    def _get(
        self, path: str, query: Mapping[str, str], _body: bytes, _update: bool, address: str
    ) -> tuple[int, ET.Element | None]:
        now, here = self._broker.timers.now(), f"{address}/{path}"
        if path.lower() == "$namespaceinfo":
            return 200, atom.entry(path, self._namespace(address), here, now)
        if path.lower() in ("$resources/queues", "$resources/topics"):
            queues = path.lower().endswith("queues")
            topics = [topic for topic in self._broker.topics.values() if bool(topic.config.queue) is queues]
            entries = [self._entity(topic, address) for topic in topics]
            return 200, _page(path.rpartition("/")[2], entries, query, here, now)
        found = _SUBSCRIPTION_PATH.fullmatch(path)
        if found:
            return 200, self._get_below(found, query, address)
        topic = self._broker.topics.get(path.lower())
        if topic is None:  # as on Azure, an unknown name gets an empty list
            return 200, atom.feed("Publicly Listed Services", [], here, now)
        return 200, self._entity(topic, address)

    def _get_below(self, found: re.Match[str], query: Mapping[str, str], address: str) -> ET.Element:
        """
        Describe something that belongs to a topic: all subscriptions, one subscription, all rules of a subscription, or one rule.
        """
        topic, now, here = self._topic(found["topic"]), self._broker.timers.now(), f"{address}/{found[0]}"
        if not found["name"]:
            entries = [self._child(topic, name, address) for name in topic.subscriptions]
            return _page("Subscriptions", entries, query, here, now)
        name, subscription = _find(topic, found["name"])
        home = f"{address}/{topic.name}/Subscriptions/{name}"
        if found["rule"]:
            rule = subscription.rules.get(found["rule"])
            if rule is None:
                raise _missing(found[0])
            return self._rule(rule, home)
        if found[0].lower().endswith("/rules"):
            entries = [self._rule(rule, home) for rule in subscription.rules.values()]
            return _page("Rules", entries, query, here, now)
        return self._child(topic, name, address)

    def _entity(self, topic: Topic, address: str) -> ET.Element:
        shown = self._recall(topic.name)
        status = {"Status": "Disabled" if topic.disabled else "Active"}
        if topic.config.queue:
            queue = topic.subscriptions[""].queue
            values = descriptions.of_topic(topic.config) | descriptions.of_queue(queue.config) | status
            counts = _counts(queue, topic.scheduled)
            size = {"SizeInBytes": queue.size, "MessageCount": sum(counts.values())}
            description = descriptions.describe(QUEUE, values | size, shown, counts)
        else:
            rules = [rule for item in topic.subscriptions.values() for rule in item.rules.values()]
            correlations = sum(rule.is_correlation for rule in rules)
            numbers = {
                "SizeInBytes": 0,
                "SubscriptionCount": len(topic.subscriptions),
                "SqlFilterCount": len(rules) - correlations,
                "CorrelationFilterCount": correlations,
            }
            values = descriptions.of_topic(topic.config) | status
            counts = _counts(None, topic.scheduled)
            description = descriptions.describe(TOPIC, values | numbers, shown, counts)
        return atom.entry(topic.name, description, f"{address}/{topic.name}", shown.updated)

    def _child(self, topic: Topic, name: str, address: str) -> ET.Element:
        queue = topic.subscriptions[name].queue
        shown = self._recall(queue.path)
        status = {"Status": "Disabled" if queue.disabled else "Active", "MessageCount": queue.active}
        values = descriptions.of_queue(queue.config) | status
        description = descriptions.describe(SUBSCRIPTION, values, shown, _counts(queue, 0))
        return atom.entry(name, description, f"{address}/{queue.path}", shown.updated)

    def _rule(self, rule: Rule, home: str) -> ET.Element:
        description = ruledescriptions.describe_rule(rule, self._begun)
        return atom.entry(rule.name, description, f"{home}/Rules/{rule.name}", self._begun)

    def _namespace(self, address: str) -> ET.Element:
        element = ET.Element(f"{{{atom.CONNECT}}}NamespaceInfo")
        made = atom.timestamp(self._begun)
        values = {
            "CreatedTime": made, "MessagingSKU": "Standard", "ModifiedTime": made,
            "Name": address.rpartition("//")[2], "NamespaceType": "Messaging",
        }  # fmt: skip
        element.extend(atom.child(name, text) for name, text in values.items())
        return element

    # These methods create and change entities.

    def _put(
        self, path: str, _query: Mapping[str, str], body: bytes, update: bool, address: str
    ) -> tuple[int, ET.Element | None]:
        found = _SUBSCRIPTION_PATH.fullmatch(path)
        if found and found["rule"]:
            return self._put_rule(found, body, update, address)
        if found and found["name"]:
            return self._put_subscription(found, body, update, address)
        description = atom.read_description(body, (QUEUE, TOPIC))
        given = descriptions.read(description)
        is_queue = atom.local(description) == QUEUE
        topic = self._broker.topics.get(path.lower())
        if update:
            if topic is None or bool(topic.config.queue) is not is_queue:
                raise _missing(path)
            descriptions.check_unchanged(given, self._description_of(self._entity(topic, address)))
            config = descriptions.topic_config(given, topic.config)
            if config.queue:
                own = descriptions.queue_config(given, config.queue)
                topic.subscriptions[""].queue.config = own
                config = replace(config, queue=own)
            topic.config = config
        else:
            if topic is not None:
                raise Refusal(409, f"SubCode=40900. Conflict. The entity '{path}' exists.")
            check_name(path, _MAX_NAME)
            config = TopicConfig(name=path, queue=QueueConfig() if is_queue else None)
            config = descriptions.topic_config(given, config)
            if config.queue:
                config = replace(config, queue=descriptions.queue_config(given, config.queue))
            topic = self._broker.create(config)
        self._remember(topic.name, given, again=not update)
        if "Status" in given:
            self._broker.set_disabled(topic.name, given["Status"].text == "Disabled")
        return 200 if update else 201, self._entity(topic, address)

    def _put_subscription(
        self, found: re.Match[str], body: bytes, update: bool, address: str
    ) -> tuple[int, ET.Element]:
        topic = self._topic(found["topic"])
        given = descriptions.read(atom.read_description(body, (SUBSCRIPTION,)))
        present = {name.lower(): name for name in topic.subscriptions}
        name = present.get(found["name"].lower())
        if update:
            if name is None:
                raise _missing(found[0])
            descriptions.check_unchanged(given, self._description_of(self._child(topic, name, address)))
            queue = topic.subscriptions[name].queue
            queue.config = descriptions.queue_config(given, queue.config)
        else:
            if name is not None:
                raise Refusal(409, f"SubCode=40900. Conflict. The entity '{found[0]}' exists.")
            name = found["name"]
            check_name(name, _MAX_CHILD_NAME)
            config = descriptions.queue_config(given, QueueConfig())
            wanted = given.get("DefaultRuleDescription")
            rule = None if wanted is None else ruledescriptions.read_rule(_rule_name(wanted), wanted)
            queue = self._broker.create_subscription(topic, SubscriptionConfig(name=name, queue=config))
            if rule:
                topic.subscriptions[name].rules = {rule.name: rule}
        self._remember(queue.path, given, again=not update)
        if "Status" in given:
            queue.disabled = given["Status"].text == "Disabled"
        return 200 if update else 201, self._child(topic, name, address)

    def _put_rule(
        self, found: re.Match[str], body: bytes, update: bool, address: str
    ) -> tuple[int, ET.Element]:
        topic = self._topic(found["topic"])
        name, subscription = _find(topic, found["name"])
        if (found["rule"] in subscription.rules) is not update:
            raise _missing(found[0]) if update else Refusal(409, "SubCode=40900. Conflict. The rule exists.")
        check_name(found["rule"], _MAX_CHILD_NAME, dollar=True)
        description = atom.read_description(body, (ruledescriptions.RULE,))
        rule = ruledescriptions.read_rule(found["rule"], description)
        subscription.rules[rule.name] = rule
        return 200 if update else 201, self._rule(rule, f"{address}/{topic.name}/Subscriptions/{name}")

    # Deleting

    def _delete(
        self, path: str, _query: Mapping[str, str], _body: bytes, _update: bool, _address: str
    ) -> tuple[int, ET.Element | None]:
        found = _SUBSCRIPTION_PATH.fullmatch(path)
        if found and found["name"]:
            name, subscription = _find(self._topic(found["topic"]), found["name"])
            if not found["rule"]:
                self._broker.delete_subscription(found["topic"], name)
            elif subscription.rules.pop(found["rule"], None) is None:
                raise _missing(path)
        elif path.lower() in self._broker.topics:
            self._broker.delete(path)
        else:
            raise _missing(path)
        return 200, None

    # Entities

    def _topic(self, path: str) -> Topic:
        topic = self._broker.topics.get(path.lower())
        if topic is None or topic.config.queue:
            raise _missing(path)
        return topic

    def _recall(self, path: str) -> Shown:
        return self._shown.get(path.lower()) or Shown(created=self._begun, updated=self._begun)

    def _remember(self, path: str, given: dict[str, ET.Element], *, again: bool) -> None:
        now = self._broker.timers.now()
        created = now if again else self._recall(path).created
        self._shown[path.lower()] = Shown(created=created, updated=now, given=given)

    @staticmethod
    def _description_of(entry: ET.Element) -> ET.Element:
        content = entry[-1]
        return content[0]


def _find(topic: Topic, name: str) -> tuple[str, Subscription]:
    for present, subscription in topic.subscriptions.items():
        if present.lower() == name.lower():
            return present, subscription
    raise _missing(f"{topic.name}/Subscriptions/{name}")


def _rule_name(description: ET.Element) -> str:
    return next((part.text for part in description if atom.local(part) == "Name" and part.text), DEFAULT_RULE)


def _counts(queue: Queue | None, scheduled: int) -> dict[str, int]:
    return {
        "ActiveMessageCount": queue.active if queue else 0,
        "DeadLetterMessageCount": queue.dead_letters.active if queue and queue.dead_letters else 0,
        "ScheduledMessageCount": scheduled,
        "TransferMessageCount": 0,
        "TransferDeadLetterMessageCount": 0,
    }


def _page(
    title: str, entries: Sequence[ET.Element], query: Mapping[str, str], address: str, now: float
) -> ET.Element:
    """
    Return the page of a list that the query's $skip and $top ask for.

    Raises:
        ValueError: $skip or $top is not a whole number, or is too low.
    """
    skip, top = int(query.get("$skip", 0)), int(query.get("$top", 100))
    if skip < 0 or top < 1:
        raise ValueError("$skip must be at least 0, and $top at least 1.")
    more = f"{address}?$skip={skip + top}&$top={top}" if len(entries) > skip + top else ""
    return atom.feed(title, entries[skip : skip + top], address, now, more)
