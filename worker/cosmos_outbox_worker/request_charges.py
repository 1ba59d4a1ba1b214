"""
Request charges: read the request units from each answer of Cosmos DB, and name the operation and the container for metrics.

The names of the attributes follow OpenTelemetry's conventions for Cosmos DB.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from urllib.parse import unquote, urlsplit

from cosmos_outbox.adapters.cosmos.lean_poll_requests import SentRequest

_BY_METHOD = {"GET": "read", "PUT": "replace", "PATCH": "patch", "DELETE": "delete"}
# An HTTP POST to the documents of a container may be a batch, a query or another operation. The header that is true says which one.
_BY_HEADER = {
    "x-ms-cosmos-is-batch-request": "execute_batch",
    "x-ms-documentdb-isquery": "query_items",
    "x-ms-documentdb-query": "query_items",
    "x-ms-documentdb-is-upsert": "upsert_item",
}


def charge_of(
    request: SentRequest, status: int, headers: Mapping[str, str]
) -> tuple[float, dict[str, str]] | None:
    """
    Return the request units that an answer of Cosmos DB reports, and the attributes for metrics. Return None if the answer reports no
    request units.
    """
    charge = headers.get("x-ms-request-charge")
    if charge is None:
        return None
    url = urlsplit(request.url)
    attributes = {"server.address": url.hostname or ""}
    match [unquote(part) for part in url.path.strip("/").split("/")]:
        case ["dbs", database, "colls", container, *rest]:
            attributes |= {"db.namespace": database, "db.collection.name": container}
        case rest:
            pass
    attributes["db.operation.name"] = _operation(request, rest)
    if status >= HTTPStatus.BAD_REQUEST:
        attributes |= {"error.type": str(status), "db.response.status_code": str(status)}
    return float(charge), attributes


def _operation(request: SentRequest, rest: list[str]) -> str:
    sent = request.headers
    match rest:
        case ["docs"] if request.method == "POST":
            return next(
                (word for name, word in _BY_HEADER.items() if str(sent.get(name)).lower() == "true"),
                "create_item",
            )
        case ["docs"]:
            return "query_change_feed" if sent.get("a-im") else "read_all_items"
        case ["docs", _]:
            return f"{_BY_METHOD.get(request.method, request.method.lower())}_item"
        case []:
            return "read_container"
        case [*_, last]:
            return {"pkranges": "read_feed_ranges", "offers": "read_throughput"}.get(last, "read_account")
    return "read_account"
