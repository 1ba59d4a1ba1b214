"""
Holds the databases and containers of an account, and gives each a resource id. A container that is deleted and created again gets
another resource id, so clients notice the change. `container.py` holds the items.
"""

from __future__ import annotations

import base64
import itertools
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

from cosmos_outbox_emulators.cosmos import definition, offers
from cosmos_outbox_emulators.cosmos.container import Container, Replication
from cosmos_outbox_emulators.cosmos.errors import CosmosError, bad_request, conflict
from cosmos_outbox_emulators.cosmos.jsontext import JsonObject
from cosmos_outbox_emulators.keys import KeyPair

WELL_KNOWN_KEY = "C2y6yDjf5/R+ob0N8A7Cgv30VRDJIWEHLM+4QDU5DE2nQ9nDuVTqobD4b8mGGyPMbIZnqyMsEcaGQy67XIw/Jw=="

_OWNER_MISSING = 1003
_LONGEST_ID = 255
_MOST_PARTITIONS = 1000
_KEY_BYTES = 64


class Database:
    """A database: its containers by their names, and its throughput if it has throughput of its own."""

    def __init__(self, properties: JsonObject, raw_rid: bytes) -> None:
        self.properties = properties
        self.raw_rid = raw_rid
        self.containers: dict[str, Container] = {}
        self.offer: JsonObject | None = None


class Account:
    """
    Everything that one Cosmos DB emulator stores. By default, the account has the well-known key of Microsoft's emulators, and each
    new container has one partition.

    With `several_write_regions`, the account reports several write regions, although it has only one.
    """

    name: str = "localhost"  # the name of the account in its answers, the same as in Microsoft's emulators

    def __init__(
        self,
        *,
        key: str = WELL_KNOWN_KEY,
        partitions: int = 1,
        clock: Callable[[], float] = time.time,
        several_write_regions: bool = False,
        strict_ids: bool = False,
    ) -> None:
        if not 1 <= partitions <= _MOST_PARTITIONS:
            raise ValueError(f"partitions must be from 1 to {_MOST_PARTITIONS}, not {partitions}")
        base64.b64decode(key, validate=True)
        self.keys = KeyPair(key, size=_KEY_BYTES)
        self.partitions = partitions
        self.several_write_regions = several_write_regions
        self.strict_ids = strict_ids
        self.clock = clock
        self.databases: dict[str, Database] = {}
        self.replication = Replication()
        self.write_host: str | None = None  # None until the account fails over to another region
        # Ids and etags begin at a random number at each start. So an etag that a client kept from an earlier start matches
        # nothing.
        boot = random.getrandbits(24)
        self._sequence = itertools.count((boot << 32) + 1)
        self._rids = itertools.count((boot << 6) + 1)

    @property
    def key(self) -> str:
        return self.keys["primary"]

    # Databases

    def create_database(self, body: JsonObject, throughput: JsonObject | None = None) -> JsonObject:
        name = _valid_name(body.get("id"))
        if name in self.databases:
            raise conflict()
        raw_rid = next(self._rids).to_bytes(4, "big")
        rid = _text(raw_rid)
        properties = {
            "id": name,
            "_rid": rid,
            "_self": f"dbs/{rid}/",
            **self._stamp(),
            "_colls": "colls/",
            "_users": "users/",
        }
        self.databases[name] = database = Database(properties, raw_rid)
        if throughput is not None:
            database.offer = self._offer(throughput, properties)
        return properties

    def database(self, name: str, *, as_owner: bool = True) -> Database:
        if name not in self.databases:
            raise _missing(as_owner=as_owner)
        return self.databases[name]

    def delete_database(self, name: str) -> None:
        self.database(name, as_owner=False)
        del self.databases[name]

    # Containers

    def create_container(
        self, database_name: str, body: JsonObject, throughput: JsonObject | None = None
    ) -> Container:
        """
        Create a container with one partition for each 6,000 RU/s (rounded up), or with the account's number of partitions if that
        is higher.

        A container without throughput of its own shares the throughput of its database. If the database has none either, the
        container gets 400 RU/s.
        """
        database = self.database(database_name)
        name = _valid_name(body.get("id"))
        # The definition is checked first: a wrong one gets 400 even if the name exists already.
        body = definition.fill_in_defaults(body)
        if name in database.containers:
            raise conflict()
        raw_rid = database.raw_rid + (next(self._rids) | 0x80000000).to_bytes(4, "big")
        properties = self._describe(body, database, raw_rid)
        if throughput is None and database.offer is None:
            throughput = offers.manual(offers.DEFAULT_THROUGHPUT)
        wanted = offers.partitions_of_new(throughput) if throughput else 1
        container = self.restore_container(
            database_name, properties, raw_rid, partitions=max(self.partitions, wanted)
        )
        if throughput is not None:
            container.offer = self._offer(throughput, properties)
        return container

    def container(self, database_name: str, name: str, *, as_owner: bool = True) -> Container:
        containers = self.database(database_name).containers
        if name not in containers:
            raise _missing(as_owner=as_owner)
        return containers[name]

    def replace_container(self, database_name: str, name: str, body: JsonObject) -> Container:
        container = self.container(database_name, name, as_owner=False)
        if body.get("id", name) != name:
            raise bad_request("The id of a container cannot be changed.")
        new = definition.replace(container.properties, {**body, "id": name})
        container.replace_properties(self._describe(new, self.database(database_name), container.raw_rid))
        return container

    def delete_container(self, database_name: str, name: str) -> None:
        self.container(database_name, name, as_owner=False)
        del self.database(database_name).containers[name]

    # These methods restore data that was saved before a restart.

    def continue_from(self, boot: int, rid: int) -> None:
        """Number new ids and etags after those that the emulator gave out before its restart, so that none occurs twice."""
        self._sequence = itertools.count((boot << 32) + 1)
        self._rids = itertools.count(rid)

    def restore_container(
        self, database: str, properties: JsonObject, raw_rid: bytes, *, partitions: int = 1
    ) -> Container:
        """
        Add a container with these properties to its database, and return it with empty partitions. If the items of the container
        were saved before a restart, the caller puts them back.
        """
        container = Container(
            path=f"dbs/{database}/colls/{properties['id']}",
            rid=properties["_rid"],
            raw_rid=raw_rid,
            properties=properties,
            partitions=partitions,
            next_sequence=lambda: next(self._sequence),
            replication=self.replication,
            token_version=_number_of(raw_rid),
        )
        self.databases[database].containers[properties["id"]] = container
        return container

    def _describe(self, body: JsonObject, database: Database, raw_rid: bytes) -> JsonObject:
        rid = _text(raw_rid)
        return {
            **{name: value for name, value in body.items() if value is not None},
            "_rid": rid,
            "_self": f"{database.properties['_self']}colls/{rid}/",
            **self._stamp(),
            **{f"_{kind}": f"{kind}/" for kind in ("docs", "sprocs", "triggers", "udfs", "conflicts")},
        }

    # Offers

    def offers(self) -> list[JsonObject]:
        return [owner.offer for owner in self.owners() if owner.offer is not None]

    def owners(self) -> Iterator[Database | Container]:
        for database in self.databases.values():
            yield database
            yield from database.containers.values()

    def replace_offer(self, rid: str, body: JsonObject) -> JsonObject:
        """
        Change the throughput of a container or a database, and return the new offer. A container that needs more partitions for
        the new throughput is split at once.
        """
        for owner in self.owners():
            if owner.offer is None or owner.offer["_rid"] != rid:
                continue
            content = offers.replace(owner.offer["content"], body.get("content"))
            owner.offer = {**owner.offer, "content": content, **self._stamp()}
            if isinstance(owner, Container):
                owner.grow(offers.partitions_for(content))
            return owner.offer
        raise _missing(as_owner=False)

    def _offer(self, content: JsonObject, owner: JsonObject) -> JsonObject:
        rid = _text(
            (next(self._rids) & 0xFFFFFF).to_bytes(3, "big")
        )  # three bytes become a resource id of four characters, which is also the id of the offer
        return offers.describe(content, rid=rid, owner=owner, stamp=self._stamp())

    # Resource ids

    def by_name(self, segments: tuple[str, ...]) -> tuple[str, ...]:
        """
        Replace the resource ids in the path of a request (such as `_self`) by names, and return the path. A path that begins with
        the name of a database is returned unchanged, even if the name looks like a resource id.
        """
        if len(segments) < 2 or segments[0] != "dbs" or segments[1] in self.databases:
            return segments
        database = next((d for d in self.databases.values() if d.properties["_rid"] == segments[1]), None)
        if database is None:
            return segments
        named = ["dbs", database.properties["id"], *segments[2:]]
        container = next((c for c in database.containers.values() if named[3:4] == [c.rid]), None)
        if container is not None:
            named[3] = container.properties["id"]
            if len(named) == 6 and named[4] == "docs":
                named[5] = container.id_of(named[5]) or named[5]
        return tuple(named)

    def _stamp(self) -> JsonObject:
        return {"_etag": f'"{next(self._sequence):020x}"', "_ts": int(self.clock())}


def _number_of(raw_rid: bytes) -> int:
    # Session tokens contain this number. It comes from the container's resource id, so it stays the same after a restart, and a
    # container that is created again has another number.
    return int.from_bytes(raw_rid[-4:], "big") & 0x7FFFFFFF


def _text(raw_rid: bytes) -> str:
    return base64.b64encode(raw_rid, b"+-").decode()


def _missing(*, as_owner: bool) -> CosmosError:
    if as_owner:
        return CosmosError(404, "Owner resource does not exist", substatus=_OWNER_MISSING)
    return CosmosError(404, "Resource Not Found.")


def _valid_name(name: Any) -> str:
    if not isinstance(name, str) or not name or len(name) > _LONGEST_ID or name.endswith(" "):
        raise bad_request(
            f"The input name '{str(name)[:50]}' is invalid. Ensure to provide a unique non-empty string less than "
            f"'{_LONGEST_ID}' characters."
        )
    if any(character in name for character in "/\\?#"):
        raise bad_request("The id must not contain '/', '\\', '?' or '#'.")
    return name
