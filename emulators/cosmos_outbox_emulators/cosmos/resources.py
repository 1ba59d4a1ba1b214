"""
The requests about databases, containers and partition key ranges.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cosmos_outbox_emulators.cosmos import jsontext
from cosmos_outbox_emulators.cosmos.account import Account
from cosmos_outbox_emulators.cosmos.container import Container
from cosmos_outbox_emulators.cosmos.jsontext import JsonObject
from cosmos_outbox_emulators.cosmos.protocol import Reply, Request, is_query, whole_number

_CHARGE = {"x-ms-request-charge": "1.00"}
_NEVER_MORE_THROUGHPUT = 1_000_000_000


def account_reply(account: Account, request: Request) -> Reply:
    """
    Describe the account with the address the client used: any other would send the SDK past a mapped port.
    """
    location = [{"name": "Local", "databaseAccountEndpoint": f"{request.origin}/"}]
    replicas = {"minReplicaSetSize": 1, "maxReplicasetSize": 4}
    return _json(
        {
            "_self": "",
            "id": account.name,
            "_rid": account.name,
            "media": "//media/",
            "addresses": "//addresses/",
            "_dbs": "//dbs/",
            "writableLocations": location,
            "readableLocations": location,
            "enableMultipleWriteLocations": account.several_write_regions,
            "userReplicationPolicy": {"asyncReplication": False, **replicas},
            "userConsistencyPolicy": {"defaultConsistencyLevel": "Session"},
            "systemReplicationPolicy": replicas,
            "readPolicy": {"primaryReadCoefficient": 1, "secondaryReadCoefficient": 1},
            "queryEngineConfiguration": "{}",
        }
    )


def metadata_reply(account: Account, request: Request, segments: tuple[str, ...]) -> Reply:
    """
    Create, read, list, replace or delete a database or a container.
    """
    if len(segments) == 1:
        return _databases(account, request)
    if len(segments) == 2:
        return _database(account, request, segments[1])
    if len(segments) == 3:
        return _containers(account, request, segments[1])
    return _container(account, request, segments[1], segments[3])


def _databases(account: Account, request: Request) -> Reply:
    if request.method == "POST" and not is_query(request.headers):
        return _json(account.create_database(jsontext.decode_object(request.body)), status=201)
    found = [database.properties for database in account.databases.values()]
    return _json({"_rid": "", "Databases": _select(found, request), "_count": len(found)})


def _database(account: Account, request: Request, name: str) -> Reply:
    if request.method == "DELETE":
        account.delete_database(name)
        return Reply(status=204, headers=dict(_CHARGE))
    return _json(account.database(name, as_owner=False).properties)


def _containers(account: Account, request: Request, database_name: str) -> Reply:
    database = account.database(database_name)
    if request.method == "POST" and not is_query(request.headers):
        body = jsontext.decode_object(request.body)
        container = account.create_container(database_name, body, _throughput(request.headers))
        return _described(container, status=201)
    found = [container.properties for container in database.containers.values()]
    listing = {"DocumentCollections": _select(found, request), "_count": len(found)}
    return _json({"_rid": database.properties["_rid"], **listing})


def _container(account: Account, request: Request, database_name: str, name: str) -> Reply:
    match request.method:
        case "DELETE":
            account.delete_container(database_name, name)
            return Reply(status=204, headers=dict(_CHARGE))
        case "PUT":
            return _described(
                account.replace_container(database_name, name, jsontext.decode_object(request.body))
            )
        case _:
            return _described(account.container(database_name, name, as_owner=False))


def ranges_reply(container: Container, request: Request) -> Reply:
    """
    List the partition key ranges; an unchanged list must end in a literal 304, for which the SDK polls until it gets one.
    """
    etag = f'"{container.generation}"'
    headers = {"etag": etag, **_CHARGE}
    if request.headers.get("if-none-match") == etag:
        return Reply(status=304, headers=headers)
    ranges = [
        {
            "_rid": container.rid,
            "id": partition.range_id,
            "_etag": etag,
            "minInclusive": partition.low,
            "maxExclusive": partition.high,
            "ridPrefix": int(partition.range_id),
            "_self": f"{container.properties['_self']}pkranges/{partition.range_id}/",
            "throughputFraction": 1 / len(container.partitions),
            "status": "online",
            "parents": list(partition.parents),
            "_ts": container.properties["_ts"],
        }
        for partition in container.partitions
    ]
    listing = {"_rid": container.rid, "PartitionKeyRanges": ranges, "_count": len(ranges)}
    return Reply(status=200, body=jsontext.encode(listing), headers=headers)


def _select(found: list[JsonObject], request: Request) -> list[JsonObject]:
    """
    Answer the only query that tools send for metadata: by id, with one parameter. Any other lists everything.
    """
    if not is_query(request.headers):
        return found
    query = jsontext.decode_object(request.body)
    parameters = query.get("parameters")
    wanted = (
        [p.get("value") for p in parameters if isinstance(p, dict)] if isinstance(parameters, list) else []
    )
    return [properties for properties in found if not wanted or properties["id"] in wanted]


def _throughput(headers: Mapping[str, str]) -> int:
    return min(whole_number(headers, "x-ms-offer-throughput", default=0, least=0), _NEVER_MORE_THROUGHPUT)


def _described(container: Container, *, status: int = 200) -> Reply:
    reply = _json(container.properties, status=status)
    reply.headers["etag"] = container.properties["_etag"]
    return reply


def _json(value: Any, *, status: int = 200) -> Reply:
    return Reply(status=status, body=jsontext.encode(value), headers=dict(_CHARGE))
