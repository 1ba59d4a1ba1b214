"""
Answers requests about the account, databases, containers, throughput and partition key ranges. `documents.py` answers requests about
items.
"""

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
    page_size,
)
from cosmos_outbox_emulators.cosmos.replies import listing
from cosmos_outbox_emulators.cosmos.walk import Listed

_CHARGE = {"x-ms-request-charge": "1.00"}
# This text contains JSON. The SDK for .NET passes it to native code, which aborts the process if a field is missing.
_QUERY_ENGINE = (
    '{"maxSqlQueryInputLength":262144,"maxJoinsPerSqlQuery":10,"maxLogicalAndPerSqlQuery":2147483647,'
    '"maxLogicalOrPerSqlQuery":2147483647,"maxUdfRefPerSqlQuery":10,"maxInExpressionItemsCount":2147483647,'
    '"queryMaxInMemorySortDocumentCount":500,"maxQueryRequestTimeoutFraction":0.9,"sqlAllowNonFiniteNumbers":false,'
    '"sqlAllowAggregateFunctions":true,"sqlAllowSubQuery":true,"sqlAllowScalarSubQuery":true,"allowNewKeywords":true,'
    '"sqlAllowLike":true,"sqlAllowGroupByClause":true,"sqlAllowTop":true,"maxSpatialQueryCells":12,'
    '"spatialMaxGeometryPointCount":256,"sqlDisableOptimizationFlags":0,"enableSpatialIndexing":true}'
)


def account_reply(account: Account, request: Request) -> Reply:
    """Return the description of the account that SDKs read first: its regions, replicas, consistency and query engine."""
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
    """Create, read, list, replace or delete a database, a container or its throughput."""
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
        throughput = offers.requested_content(request.headers)
        return _json(account.create_database(jsontext.decode_object(request.body), throughput), status=201)
    return _page("Databases", [database.properties for database in account.databases.values()], request)


def _database(account: Account, request: Request, name: str) -> Reply:
    if request.method == "DELETE":
        account.delete_database(name)
        return Reply(status=204, headers=dict(_CHARGE))
    return _json(account.database(name, as_owner=False).properties)


def _containers(account: Account, request: Request, database_name: str) -> Reply:
    database = account.database(database_name)
    if request.method == "POST" and not is_query(request.headers):
        body = jsontext.decode_object(request.body)
        container = account.create_container(database_name, body, offers.requested_content(request.headers))
        return _describe(container, request, status=201)
    found = [container.properties for container in database.containers.values()]
    return _page("DocumentCollections", found, request, rid=database.properties["_rid"])


def _container(account: Account, request: Request, database_name: str, name: str) -> Reply:
    match request.method:
        case "DELETE":
            account.delete_container(database_name, name)
            return Reply(status=204, headers=dict(_CHARGE))
        case "PUT":
            body = jsontext.decode_object(request.body)
            return _describe(account.replace_container(database_name, name, body), request)
        case _:
            return _describe(account.container(database_name, name, as_owner=False), request)


def _offers(account: Account, request: Request, segments: tuple[str, ...]) -> Reply:
    if len(segments) == 2 and request.method == "PUT":
        return _offer(account.replace_offer(segments[1], jsontext.decode_object(request.body)))
    found = account.offers()
    if len(segments) == 1:
        return _page("Offers", found, request)
    for offer in found:
        if offer["_rid"] == segments[1]:
            return _offer(offer)
    raise not_found()


def _offer(offer: JsonObject) -> Reply:
    reply = _json(offer)
    reply.headers["x-ms-cosmos-min-throughput"] = str(offers.least(offer["content"]))
    return reply


def conflicts_reply(container: Container, request: Request, segments: tuple[str, ...]) -> Reply:
    """Answer that there are no conflicts: only one region accepts writes, so none can occur."""
    if len(segments) == 6:
        raise not_found()
    several = "x-ms-documentdb-partitionkey" not in request.headers
    if is_query(request.headers) and several and not is_on(request.headers, CROSS_PARTITION):
        raise bad_request(CROSS_PARTITION_DISABLED)
    return _page("Conflicts", [], request, rid=container.rid)


def ranges_reply(container: Container, request: Request) -> Reply:
    """
    List the partition key ranges. If the list has not changed since the client read it, answer 304, because the SDK repeats its
    request until it gets this status.
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
    body = listing(container.rid, [*map(jsontext.encode, ranges)], "PartitionKeyRanges")
    return Reply(status=200, body=body, headers=headers)


def _page(name: str, found: list[JsonObject], request: Request, *, rid: str = "") -> Reply:
    """
    Answer with one page of the resources in `found`, such as databases. If the request is a query, return only those that it
    selects.
    """
    query = sql.parse_request(request.body) if is_query(request.headers) else sql.EVERYTHING
    more = request.headers.get("x-ms-continuation")
    page = sql.run(query, Listed(found), page_size=page_size(request.headers), continuation=more)
    headers = {**_CHARGE, "x-ms-item-count": str(len(page.rows))}
    if page.continuation is not None:
        headers["x-ms-continuation"] = page.continuation
    return Reply(status=200, body=listing(rid, page.rows, name), headers=headers)


def _describe(container: Container, request: Request, *, status: int = 200) -> Reply:
    properties = container.properties
    if is_on(request.headers, "x-ms-documentdb-populatepartitionstatistics"):
        properties = {**properties, "statistics": _statistics(container)}
    reply = _json(properties, status=status)
    reply.headers["etag"] = container.properties["_etag"]
    # The header has the path of the parent, which is the database. The SDK for Java makes the address of the container from it.
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
