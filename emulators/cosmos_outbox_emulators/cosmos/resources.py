"""The requests about databases, containers and partition key ranges."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from cosmos_outbox_emulators.cosmos import jsontext, offers, regions, sql
from cosmos_outbox_emulators.cosmos.account import Account
from cosmos_outbox_emulators.cosmos.container import Container
from cosmos_outbox_emulators.cosmos.errors import bad_request, not_found
from cosmos_outbox_emulators.cosmos.jsontext import JsonObject
from cosmos_outbox_emulators.cosmos.protocol import (
    CROSS_PARTITION,
    CROSS_PARTITION_DISABLED,
    Reply,
    Request,
    is_on,
    is_query,
)

_CHARGE = {"x-ms-request-charge": "1.00"}
_MOST = 2_147_483_647
# A text that holds JSON. The SDK for .NET gives it to native code, which ends the process where a field is missing.
_QUERY_ENGINE = jsontext.encode(
    {
        "maxSqlQueryInputLength": 262_144,
        "maxJoinsPerSqlQuery": 10,
        "maxLogicalAndPerSqlQuery": _MOST,
        "maxLogicalOrPerSqlQuery": _MOST,
        "maxUdfRefPerSqlQuery": 10,
        "maxInExpressionItemsCount": _MOST,
        "queryMaxInMemorySortDocumentCount": 500,
        "maxQueryRequestTimeoutFraction": 0.9,
        "sqlAllowNonFiniteNumbers": False,
        "sqlAllowAggregateFunctions": True,
        "sqlAllowSubQuery": True,
        "sqlAllowScalarSubQuery": True,
        "allowNewKeywords": True,
        "sqlAllowLike": True,
        "sqlAllowGroupByClause": True,
        "sqlAllowTop": True,
        "maxSpatialQueryCells": 12,
        "spatialMaxGeometryPointCount": 256,
        "sqlDisableOptimizationFlags": 0,
        "enableSpatialIndexing": True,
    }
).decode()


def account_reply(account: Account, request: Request) -> Reply:
    """Describe the account."""
    replicas = {"minReplicaSetSize": 1, "maxReplicasetSize": 4}
    return _json(
        {
            "_self": "",
            "id": account.name,
            "_rid": account.name,
            "media": "//media/",
            "addresses": "//addresses/",
            "_dbs": "//dbs/",
            **regions.locations(account, request.origin),
            "enableMultipleWriteLocations": account.several_write_regions,
            "userReplicationPolicy": {"asyncReplication": False, **replicas},
            "userConsistencyPolicy": {"defaultConsistencyLevel": "Session"},
            "systemReplicationPolicy": replicas,
            "readPolicy": {"primaryReadCoefficient": 1, "secondaryReadCoefficient": 1},
            "queryEngineConfiguration": _QUERY_ENGINE,
        }
    )


def metadata_reply(account: Account, request: Request, segments: tuple[str, ...]) -> Reply:
    """Create, read, list, replace or delete a database or a container."""
    if segments[0] == "offers":
        return _offers(account, request, segments)
    if len(segments) == 1:
        return _databases(account, request)
    if len(segments) == 2:
        return _database(account, request, segments[1])
    if len(segments) == 3:
        return _containers(account, request, segments[1])
    return _container(account, request, segments[1], segments[3])


def _databases(account: Account, request: Request) -> Reply:
    if request.method == "POST" and not is_query(request.headers):
        throughput = offers.asked_for(request.headers)
        return _json(account.create_database(jsontext.decode_object(request.body), throughput), status=201)
    found = _select([database.properties for database in account.databases.values()], request)
    return _json({"_rid": "", "Databases": found, "_count": len(found)})


def _database(account: Account, request: Request, name: str) -> Reply:
    if request.method == "DELETE":
        account.delete_database(name)
        return Reply(status=204, headers=dict(_CHARGE))
    return _json(account.database(name, as_owner=False).properties)


def _containers(account: Account, request: Request, database_name: str) -> Reply:
    database = account.database(database_name)
    if request.method == "POST" and not is_query(request.headers):
        body = jsontext.decode_object(request.body)
        container = account.create_container(database_name, body, offers.asked_for(request.headers))
        return _described(container, request, status=201)
    found = _select([container.properties for container in database.containers.values()], request)
    listing = {"DocumentCollections": found, "_count": len(found)}
    return _json({"_rid": database.properties["_rid"], **listing})


def _container(account: Account, request: Request, database_name: str, name: str) -> Reply:
    match request.method:
        case "DELETE":
            account.delete_container(database_name, name)
            return Reply(status=204, headers=dict(_CHARGE))
        case "PUT":
            body = jsontext.decode_object(request.body)
            return _described(account.replace_container(database_name, name, body), request)
        case _:
            return _described(account.container(database_name, name, as_owner=False), request)


def _offers(account: Account, request: Request, segments: tuple[str, ...]) -> Reply:
    if len(segments) == 2 and request.method == "PUT":
        return _json(account.replace_offer(segments[1], jsontext.decode_object(request.body)))
    found = account.offers()
    if len(segments) == 1:
        return _json({"_rid": "", "Offers": (chosen := _select(found, request)), "_count": len(chosen)})
    for offer in found:
        if offer["_rid"] == segments[1]:
            return _json(offer)
    raise not_found()


def conflicts_reply(container: Container, request: Request, segments: tuple[str, ...]) -> Reply:
    """List no conflicts: there is one region."""
    if len(segments) == 6:
        raise not_found()
    several = "x-ms-documentdb-partitionkey" not in request.headers
    if is_query(request.headers) and several and not is_on(request.headers, CROSS_PARTITION):
        raise bad_request(CROSS_PARTITION_DISABLED)
    return _json({"_rid": container.rid, "Conflicts": [], "_count": 0})


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
    """Filter what is listed by the WHERE of a query; whole resources come back, whatever it selects."""
    if not is_query(request.headers):
        return found
    where = sql.parse_request(request.body).where
    return found if where is None else [properties for properties in found if where(properties) is True]


def _described(container: Container, request: Request, *, status: int = 200) -> Reply:
    properties = container.properties
    if is_on(request.headers, "x-ms-documentdb-populatepartitionstatistics"):
        properties = {**properties, "statistics": _statistics(container)}
    reply = _json(properties, status=status)
    reply.headers["etag"] = container.properties["_etag"]
    # That of the parent: the SDK for Java makes the address of the container from it.
    reply.headers["x-ms-alt-content-path"] = quote(container.path.rpartition("/colls/")[0])
    if is_on(request.headers, "x-ms-documentdb-populatequotainfo"):
        reply.headers["x-ms-resource-quota"] = (
            "documentsSize=20971520;documentsCount=-1;collectionSize=20971520;"
        )
        reply.headers["x-ms-resource-usage"] = (
            f"documentsSize=0;documentsCount={sum(map(len, container.partitions))};collectionSize=0;"
        )
        reply.headers["x-ms-documentdb-collection-index-transformation-progress"] = "100"
    return reply


def _statistics(container: Container) -> list[JsonObject]:
    return [
        {"id": partition.range_id, "sizeInKB": 0, "documentCount": len(partition), "partitionKeys": []}
        for partition in container.partitions
    ]


def _json(value: Any, *, status: int = 200) -> Reply:
    return Reply(status=status, body=jsontext.encode(value), headers=dict(_CHARGE))
