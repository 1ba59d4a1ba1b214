"""
Keeps a broker in a database file: restores its entities, messages, session states and remembered ids at the start, and saves what
changes.

Messages are stored in AMQP's own encoding, which keeps the type of every value.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from typing import Any

from cosmos_outbox_emulators.servicebus.broker import Broker
from cosmos_outbox_emulators.servicebus.decoding import decode
from cosmos_outbox_emulators.servicebus.encoding import encode
from cosmos_outbox_emulators.servicebus.entry import Entry, Session
from cosmos_outbox_emulators.servicebus.message import Message
from cosmos_outbox_emulators.servicebus.noted_containers import NotedDict
from cosmos_outbox_emulators.servicebus.queue import Queue
from cosmos_outbox_emulators.servicebus.rules import body_of, parse_rule
from cosmos_outbox_emulators.servicebus.topic import Topic

_TABLES = """
CREATE TABLE IF NOT EXISTS entities (name TEXT PRIMARY KEY, config TEXT, rules BLOB, disabled INTEGER);
CREATE TABLE IF NOT EXISTS counters (path TEXT PRIMARY KEY, sequence INTEGER);
CREATE TABLE IF NOT EXISTS entries (path TEXT, sequence INTEGER, entry BLOB, PRIMARY KEY (path, sequence)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS states (path TEXT, session TEXT, state BLOB, at REAL, PRIMARY KEY (path, session));
CREATE TABLE IF NOT EXISTS seen (topic TEXT, at REAL, id TEXT, PRIMARY KEY (topic, id)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS scheduled (topic TEXT, number INTEGER, message BLOB, PRIMARY KEY (topic, number));
CREATE INDEX IF NOT EXISTS seen_at ON seen (topic, at);
"""
_ENTRY = (
    "sequence", "enqueued_sequence", "enqueued_at", "application_properties", "delivery_count", "ttl_s", "expires_at", "state",
)  # fmt: skip
_SWEEP_EVERY = 1000

Place = tuple[str, int]


class BrokerFile:
    """
    Restores a broker when an object of this class is created. From then on, `save` writes all changes into the open transaction,
    which the caller commits.
    """

    def __init__(self, connection: sqlite3.Connection, broker: Broker) -> None:
        self._connection = connection
        self._broker = broker
        self._topics: dict[str, tuple[Any, ...]] = {}
        self._entries: set[Place] = set()
        self._states: dict[tuple[str, str], Session] = {}
        self._seen: list[tuple[str, float, str]] = []
        self._scheduled: set[Place] = set()
        self._until_sweep = 0
        connection.executescript(_TABLES)
        self._load()
        self.save()

    # Restoring

    def _load(self) -> None:
        broker = self._broker
        kept = self._connection.execute("SELECT name, config, rules, disabled FROM entities").fetchall()
        for name, config, rules, disabled in kept:
            value = json.loads(config)
            if name.lower() not in broker.topics:
                add = broker.add_topic if "subscriptions" in value else broker.add_queue
                add(value)
            topic = broker.topic(name)
            for subscription, found in decode(rules)[0]:
                if subscription in topic.subscriptions:
                    topic.subscriptions[subscription].rules = {
                        name: parse_rule(name, body) for name, body in found
                    }
            if disabled:
                broker.set_disabled(name, disabled=True)
        self._sweep()
        counters = dict(self._connection.execute("SELECT path, sequence FROM counters").fetchall())
        for topic in list(broker.topics.values()):
            self._restore(topic, counters.get(_key(topic), 0))
        for path, queue in broker.queues.items():
            rows = self._connection.execute(
                "SELECT entry FROM entries WHERE path = ? ORDER BY sequence", (path,)
            )
            queue.restore([_entry(text) for (text,) in rows.fetchall()], counters.get(path, 0))
            states = self._connection.execute("SELECT session, state, at FROM states WHERE path = ?", (path,))
            for session, state, at in states if queue.sessions else ():
                queue.sessions.restore_state(session, state, at)  # type: ignore[union-attr]  # checked one line above

    def _restore(self, topic: Topic, sequence: int) -> None:
        key = _key(topic)
        seen = self._connection.execute(
            "SELECT at, id FROM seen WHERE topic = ? ORDER BY at", (key,)
        ).fetchall()
        rows = self._connection.execute(
            "SELECT message FROM scheduled WHERE topic = ? ORDER BY number", (key,)
        )
        messages = [_message(decode(text)[0]) for (text,) in rows.fetchall()]
        # Delete the old rows, because the topic saves the messages again under new numbers.
        self._connection.execute("DELETE FROM scheduled WHERE topic = ?", (key,))
        topic.restore(seen, messages, sequence)

    # Saving

    def save(self) -> None:
        """Write all changes since the last call into the open transaction of the database."""
        self._save_entities()
        if not (self._entries or self._states or self._seen or self._scheduled):
            return
        self._save_entries()
        for (path, session_id), session in self._states.items():
            row = (path, session_id, session.state, session.state_changed_at)
            self._connection.execute("INSERT OR REPLACE INTO states VALUES (?, ?, ?, ?)", row)
        if self._states:
            self._connection.execute("DELETE FROM states WHERE state IS NULL")
        self._connection.executemany("INSERT OR REPLACE INTO seen VALUES (?, ?, ?)", self._seen)
        self._save_scheduled()
        self._entries, self._states, self._seen, self._scheduled = set(), {}, [], set()
        self._until_sweep -= 1
        if self._until_sweep <= 0:
            self._sweep()

    def _save_entries(self) -> None:
        gone, rows = [], []
        for path, sequence in self._entries:
            entry = self._broker.queues[path].entries.get(sequence)
            if entry is None:
                gone.append((path, sequence))
            else:
                rows.append((path, sequence, _encode_entry(entry)))
        self._connection.executemany("DELETE FROM entries WHERE path = ? AND sequence = ?", gone)
        self._connection.executemany("INSERT OR REPLACE INTO entries VALUES (?, ?, ?)", rows)
        queues = self._broker.queues
        counters = [(path, queues[path].last_sequence) for path in {path for path, _ in self._entries}]
        self._save_counters(counters)
        owners = {self._broker.owner(path) for path, _ in counters}
        self._save_counters(
            [(_key(topic), topic.last_sequence) for topic in owners if not topic.config.queue]
        )

    def _save_counters(self, counters: list[Place]) -> None:
        self._connection.executemany("INSERT OR REPLACE INTO counters VALUES (?, ?)", counters)

    def _save_scheduled(self) -> None:
        for key, number in self._scheduled:
            topic = self._broker.topics[key]
            message = topic.find_scheduled(number)
            if message is None:
                self._connection.execute(
                    "DELETE FROM scheduled WHERE topic = ? AND number = ?", (key, number)
                )
            else:
                row = (key, number, encode(_values(message)))
                self._connection.execute("INSERT OR REPLACE INTO scheduled VALUES (?, ?, ?)", row)
        self._save_counters([(key, self._broker.topics[key].last_sequence) for key, _ in self._scheduled])

    def _sweep(self) -> None:
        """Delete message ids that are older than the duplicate-detection window of their topic."""
        self._until_sweep = _SWEEP_EVERY
        now = self._broker.timers.now()
        for key, topic in self._broker.topics.items():
            limit = now - (topic.config.dedup_window_s or 0.0)
            self._connection.execute("DELETE FROM seen WHERE topic = ? AND at <= ?", (key, limit))

    # Entities

    def _save_entities(self) -> None:
        topics = self._broker.topics
        for key in self._topics.keys() - topics.keys():
            self._forget(key)
        for key, topic in topics.items():
            shape = _shape(topic)
            before = self._topics.get(key)
            # If the entity was deleted and created again since the last call, the data of the deleted entity has to go.
            if before is not None and before[0] is not topic:
                self._forget(key)
                before = None
            if before != shape:
                self._save_entity(topic)
                self._watch(key, topic, is_new=before is None)
                self._topics[key] = shape

    def _forget(self, key: str) -> None:
        self._topics.pop(key)
        below = f"{key}/"
        self._connection.execute("DELETE FROM entities WHERE name = ?", (key,))
        for table, column in (
            ("counters", "path"),
            ("entries", "path"),
            ("states", "path"),
            ("seen", "topic"),
            ("scheduled", "topic"),
        ):
            self._connection.execute(
                f"DELETE FROM {table} WHERE {column} = ? OR substr({column}, 1, ?) = ?",  # noqa: S608  # our own names
                (key, len(below), below),
            )
        self._entries = {place for place in self._entries if place[0] in self._broker.queues}
        self._states = {place: one for place, one in self._states.items() if place[0] in self._broker.queues}
        self._scheduled = {place for place in self._scheduled if place[0] in self._broker.topics}

    def _save_entity(self, topic: Topic) -> None:
        value = asdict(topic.config)
        own, _ = value.pop("queue"), value.pop("subscriptions")
        if own is None:
            value["subscriptions"] = [
                {"name": name, **asdict(one.queue.config)} for name, one in topic.subscriptions.items()
            ]
        else:  # the queue's time to live already includes that of the topic
            value |= asdict(topic.subscriptions[""].queue.config)
        rules = [
            [name, [[rule.name, body_of(rule)] for rule in one.rules.values()]]
            for name, one in topic.subscriptions.items()
        ]
        row = (_key(topic), json.dumps(value), encode(rules), topic.disabled)
        self._connection.execute("INSERT OR REPLACE INTO entities VALUES (?, ?, ?, ?)", row)

    def _watch(self, key: str, topic: Topic, *, is_new: bool) -> None:
        if is_new:
            topic.observe(
                lambda seen: self._seen.append((key, *seen)),
                lambda number, _: self._scheduled.add((key, number)),
            )
        for subscription in topic.subscriptions.values():
            queue = subscription.queue
            for each in (queue, queue.dead_letters):
                if each is not None and not isinstance(each.entries, NotedDict):
                    self._watch_queue(each)

    def _watch_queue(self, queue: Queue) -> None:
        path = queue.path.lower()
        self._entries.update((path, sequence) for sequence in queue.entries)
        queue.entries = NotedDict(queue.entries, lambda sequence, _: self._entries.add((path, sequence)))
        # An entry that stays in the queue changes only while it is locked, so it is saved again when its lock begins and ends.
        queue.locked = NotedDict(queue.locked, lambda _, entry: self._entries.add((path, entry.sequence)))
        if queue.sessions:
            queue.sessions.on_state = lambda session: self._states.update({(path, session.id): session})


def _key(topic: Topic) -> str:
    return topic.name.lower()


def _shape(topic: Topic) -> tuple[Any, ...]:
    below = tuple((name, one.queue.config, *one.rules.values()) for name, one in topic.subscriptions.items())
    return topic, topic.config, topic.disabled, below


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else value


def _values(value: Message) -> list[Any]:
    return [_plain(getattr(value, field.name)) for field in fields(value)]


def _message(values: Iterable[Any]) -> Message:
    named = {field.name: value for field, value in zip(fields(Message), values, strict=True)}
    return Message(**named)


def _encode_entry(entry: Entry) -> bytes:
    return encode([_values(entry.message), [getattr(entry, name) for name in _ENTRY]])


def _entry(text: bytes) -> Entry:
    message, values = decode(text)[0]
    kept = dict(zip(_ENTRY, values, strict=True))
    entry = Entry(
        _message(message),
        int(kept.pop("sequence")),
        kept.pop("enqueued_sequence"),
        kept.pop("enqueued_at"),
    )
    for name, value in kept.items():
        setattr(entry, name, value)
    return entry
