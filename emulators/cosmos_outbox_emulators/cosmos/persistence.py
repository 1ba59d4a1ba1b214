"""Keeps an account in a database file: restores it at the start, and saves what each request changes."""

from __future__ import annotations

import base64
import json
import random
import sqlite3
from collections.abc import Iterable, Iterator, Mapping

from cosmos_outbox_emulators.cosmos import jsontext
from cosmos_outbox_emulators.cosmos.account import Account, Database
from cosmos_outbox_emulators.cosmos.container import Container
from cosmos_outbox_emulators.cosmos.item import Item, ItemKey
from cosmos_outbox_emulators.cosmos.partition import Partition

_TABLES = """
CREATE TABLE IF NOT EXISTS account (boot INTEGER, rid INTEGER);
CREATE TABLE IF NOT EXISTS databases (name TEXT PRIMARY KEY, properties TEXT);
CREATE TABLE IF NOT EXISTS containers (
    rid TEXT PRIMARY KEY, database TEXT, properties TEXT, generation INTEGER, next_range INTEGER);
CREATE TABLE IF NOT EXISTS offers (owner TEXT PRIMARY KEY, offer TEXT);
CREATE TABLE IF NOT EXISTS ranges (
    rid TEXT, id TEXT, low TEXT, high TEXT, parents TEXT, lsn INTEGER, PRIMARY KEY (rid, id));
CREATE TABLE IF NOT EXISTS items (
    rid TEXT, key BLOB, id TEXT, epk TEXT, sequence INTEGER, lsn INTEGER, etag TEXT, ts INTEGER, body BLOB, expires_at REAL,
    PRIMARY KEY (rid, key, id)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS expiries ON items (expires_at) WHERE expires_at IS NOT NULL;
"""
_SWEEP_EVERY = 1000

Mark = tuple[int, str]


class AccountFile:
    """
    Restores an account when an object of this class is created. From then on, `save` writes all changes into the open transaction,
    which the caller commits.
    """

    def __init__(self, connection: sqlite3.Connection, account: Account) -> None:
        self._connection = connection
        self._account = account
        self._databases: dict[str, str] = {}
        self._containers: dict[str, Mark] = {}
        self._offers: dict[str, str] = {}
        self._changed: dict[tuple[str, ItemKey], Item | None] = {}
        self._lsns: dict[tuple[str, str], int] = {}
        self._until_sweep = 0
        connection.executescript(_TABLES)
        self._load()
        self.save()

    # Restoring

    def _load(self) -> None:
        account, connection = self._account, self._connection
        boot, rid = connection.execute("SELECT boot, rid FROM account").fetchone() or (
            random.getrandbits(24),
            random.getrandbits(24) << 6,
        )
        self._rid = rid
        account.continue_from(boot + 1, rid + 1)
        connection.execute("DELETE FROM account")
        connection.execute("INSERT INTO account VALUES (?, ?)", (boot + 1, rid))
        self._sweep()
        for name, text in connection.execute("SELECT name, properties FROM databases"):
            properties = json.loads(text)
            account.databases[name] = Database(properties, _raw(properties["_rid"]))
            self._databases[name] = properties["_etag"]
        rows = connection.execute("SELECT rid, database, properties, generation, next_range FROM containers")
        for container_rid, database, text, generation, next_range in rows.fetchall():
            properties = json.loads(text)
            container = account.restore_container(database, properties, _raw(container_rid))
            container.restore(self._partitions(container_rid), generation, next_range)
            self._watch(container)
        kept = dict(connection.execute("SELECT owner, offer FROM offers"))
        for owner in account.owners():
            text = kept.get(owner.properties["_rid"])
            owner.offer = None if text is None else json.loads(text)

    def _partitions(self, rid: str) -> list[Partition]:
        rows = self._connection.execute(
            "SELECT key, id, epk, sequence, lsn, etag, ts, body, expires_at FROM items WHERE rid = ?"
            " ORDER BY lsn, etag",  # the etags of one batch have the order of its operations
            (rid,),
        )
        items = [
            Item(
                key=(key, item_id),
                epk=epk,
                sequence=sequence,
                lsn=lsn,
                etag=etag,
                timestamp=timestamp,
                body=jsontext.decode_object(body),
                encoded=body,
                expires_at=expires_at,
            )
            for key, item_id, epk, sequence, lsn, etag, timestamp, body, expires_at in rows
        ]
        ranges = self._connection.execute(
            "SELECT id, low, high, parents, lsn FROM ranges WHERE rid = ? ORDER BY low", (rid,)
        )
        return [
            Partition(
                range_id=range_id,
                low=low,
                high=high,
                parents=tuple(json.loads(parents)),
                lsn=lsn,
                items=[item for item in items if low <= item.epk < high],
            )
            for range_id, low, high, parents, lsn in ranges
        ]

    # Saving

    def save(self) -> None:
        """Write all changes since the last call into the open transaction of the database."""
        self._save_definitions()
        if self._changed:
            self._save_items(self._changed)
            self._changed = {}
        if self._lsns:
            rows = [(lsn, rid, range_id) for (rid, range_id), lsn in self._lsns.items()]
            self._connection.executemany("UPDATE ranges SET lsn = ? WHERE rid = ? AND id = ?", rows)
            self._lsns = {}
            self._until_sweep -= 1
            if self._until_sweep <= 0:
                self._sweep()

    def _sweep(self) -> None:
        """Delete expired items from the database. This is needed because nothing notifies this class when an item expires."""
        self._until_sweep = _SWEEP_EVERY
        self._connection.execute("DELETE FROM items WHERE expires_at <= ?", (self._account.clock(),))

    def _save_definitions(self) -> None:
        databases = self._account.databases
        found = {name: database.properties["_etag"] for name, database in databases.items()}
        if found != self._databases:
            self._databases = found
            self._connection.execute("DELETE FROM databases")
            rows = [(name, json.dumps(database.properties)) for name, database in databases.items()]
            self._connection.executemany("INSERT INTO databases VALUES (?, ?)", rows)
            self._count_rids(database.raw_rid for database in databases.values())
        containers = {container.rid: (name, container) for name, container in self._all_containers()}
        for rid in self._containers.keys() - containers.keys():
            del self._containers[rid]
            self._changed = {key: item for key, item in self._changed.items() if key[0] != rid}
            for table in ("containers", "ranges", "items"):
                self._connection.execute(f"DELETE FROM {table} WHERE rid = ?", (rid,))  # noqa: S608  # our own names
        if containers.keys() != self._containers.keys():
            self._count_rids(container.raw_rid for _, container in containers.values())
        for name, container in containers.values():
            before = self._containers.get(container.rid)
            if before != _mark(container):
                self._save_container(name, container)
                if before is None or before[1] != container.properties["_etag"]:
                    # The container is new, or its properties changed, and with them perhaps the times at which its items expire.
                    # So all of its items are saved.
                    written = (item for part in container.partitions for item in part.changes_after(0))
                    self._save_items({(container.rid, item.key): item for item in written})
                self._watch(container)

        self._save_offers()

    def _save_offers(self) -> None:
        owners = self._account.owners()
        offers = {owner.properties["_rid"]: owner.offer for owner in owners if owner.offer is not None}
        found = {rid: offer["_etag"] for rid, offer in offers.items()}
        if found != self._offers:
            self._offers = found
            self._connection.execute("DELETE FROM offers")
            rows = [(rid, json.dumps(offer)) for rid, offer in offers.items()]
            self._connection.executemany("INSERT INTO offers VALUES (?, ?)", rows)

    def _count_rids(self, raw_rids: Iterable[bytes]) -> None:
        self._rid = max([self._rid, *(int.from_bytes(raw[-4:], "big") & 0x7FFFFFFF for raw in raw_rids)])
        self._connection.execute("UPDATE account SET rid = ?", (self._rid,))

    def _all_containers(self) -> Iterator[tuple[str, Container]]:
        for name, database in self._account.databases.items():
            for container in database.containers.values():
                yield name, container

    def _save_container(self, database: str, container: Container) -> None:
        text = json.dumps(container.properties)
        row = (container.rid, database, text, container.generation, container.next_range)
        self._connection.execute("INSERT OR REPLACE INTO containers VALUES (?, ?, ?, ?, ?)", row)
        self._connection.execute("DELETE FROM ranges WHERE rid = ?", (container.rid,))
        ranges = [
            (container.rid, part.range_id, part.low, part.high, json.dumps(part.parents), part.lsn)
            for part in container.partitions
        ]
        self._connection.executemany("INSERT INTO ranges VALUES (?, ?, ?, ?, ?, ?)", ranges)

    def _save_items(self, items: Mapping[tuple[str, ItemKey], Item | None]) -> None:
        gone = [(rid, *key) for (rid, key), item in items.items() if item is None]
        if gone:
            self._connection.executemany("DELETE FROM items WHERE rid = ? AND key = ? AND id = ?", gone)
        rows = [_row(rid, item) for (rid, _), item in items.items() if item is not None]
        self._connection.executemany(
            "INSERT OR REPLACE INTO items VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows
        )

    def _watch(self, container: Container) -> None:
        rid = container.rid

        def note_commit(partition: Partition, writes: Mapping[ItemKey, Item | None]) -> None:
            self._changed.update(((rid, key), item) for key, item in writes.items())
            self._lsns[rid, partition.range_id] = partition.lsn

        self._containers[rid] = _mark(container)
        container.on_commit = note_commit


def _mark(container: Container) -> Mark:
    return container.generation, container.properties["_etag"]


def _row(rid: str, item: Item) -> tuple[object, ...]:
    place = (rid, *item.key, item.epk, item.sequence, item.lsn)
    return (*place, item.etag, item.timestamp, item.encoded, item.expires_at)


def _raw(rid: str) -> bytes:
    return base64.b64decode(rid, b"+-")
