"""
A client that sends signed requests to the emulated Cosmos DB gateway without sockets, as the SDK would send them.
"""

from __future__ import annotations

import base64
import json
from typing import Any
from urllib.parse import quote, unquote

from multidict import CIMultiDict

from cosmos_outbox_emulators.cosmos.account import Account
from cosmos_outbox_emulators.cosmos.auth import signature
from cosmos_outbox_emulators.cosmos.gateway import Gateway
from cosmos_outbox_emulators.cosmos.protocol import Reply, Request

DATE = "thu, 01 jan 2026 00:00:00 gmt"
DOCUMENTS = "/dbs/d/colls/c/docs"
RANGES = "/dbs/d/colls/c/pkranges"


class ManualClock:
    """A clock that moves only when a test moves it."""

    def __init__(self, now: float = 1_800_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Driver:
    """
    An emulated account with database "d" and container "c". The partition key of the container is `/pk`, and items may have a
    TTL.
    """

    def __init__(self, *, partitions: int = 1, default_ttl: int | None = -1) -> None:
        self.clock = ManualClock()
        self.account = Account(partitions=partitions, clock=self.clock)
        self.gateway = Gateway(self.account)
        self.ok("POST", "/dbs", {"id": "d"})
        definition = {"id": "c", "partitionKey": {"paths": ["/pk"]}}
        self.ok("POST", "/dbs/d/colls", {**definition, "defaultTtl": default_ttl})
        self.container = self.account.container("d", "c")

    def send(self, method: str, target: str, body: Any = b"", **headers: str) -> Reply:
        """
        Send a signed request and return the reply.

        A body that is not bytes is sent as JSON. A `_` in the name of a header stands for `-`.
        """
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        signed = CIMultiDict({**sign(self.account.key, method, target), **named})
        return self.gateway.answer(Request(method=method, target=target, headers=signed, body=raw))

    def ok(self, method: str, target: str, body: Any = b"", **headers: str) -> Any:
        reply = self.send(method, target, body, **headers)
        assert reply.status < 300, reply
        return json.loads(reply.body) if reply.body else None

    def item(
        self, method: str, key: Any, item_id: str | None = None, body: Any = b"", **headers: str
    ) -> Reply:
        target = DOCUMENTS if item_id is None else f"{DOCUMENTS}/{quote(item_id, safe='')}"
        return self.send(method, target, body, x_ms_documentdb_partitionkey=json.dumps([key]), **headers)

    def upsert(self, key: Any, item_id: str, **fields: Any) -> Reply:
        return self.item(
            "POST", key, None, {"id": item_id, "pk": key, **fields}, x_ms_documentdb_is_upsert="True"
        )

    def batch(self, key: Any, operations: Any, **headers: str) -> Reply:
        return self.item("POST", key, None, operations, x_ms_cosmos_is_batch_request="True", **headers)

    def query(self, text: str, parameters: dict[str, Any] | None = None, **headers: str) -> Reply:
        """Send a query to the key or range that a header names. Without such a header, send it to all ranges of the container."""
        body = {"query": text, "parameters": [{"name": n, "value": v} for n, v in (parameters or {}).items()]}
        if not any(name.startswith("x_ms_documentdb_partitionkey") for name in headers):
            (first, *others) = self.container.partitions
            addressed = {"x_ms_documentdb_partitionkeyrangeid": first.range_id}
            headers |= {"x_ms_documentdb_query_enablecrosspartition": "True"} if others else addressed
        return self.send("POST", DOCUMENTS, body, x_ms_documentdb_isquery="true", **headers)

    def rows(self, text: str, parameters: dict[str, Any] | None = None, **headers: str) -> list[Any]:
        reply = self.query(text, parameters, **headers)
        assert reply.status == 200, reply
        rows: list[Any] = json.loads(reply.body)["Documents"]
        return rows

    def changes(self, range_id: str, continuation: str | None = None, **headers: str) -> Reply:
        if continuation is not None:
            headers["if_none_match"] = continuation
        return self.send(
            "GET", DOCUMENTS, a_im="Incremental Feed", x_ms_documentdb_partitionkeyrangeid=range_id, **headers
        )


def put(kind: str, item_id: str, key: Any = "k", **fields: Any) -> dict[str, Any]:
    """Return a batch operation that writes an item; `kind` is Create, Upsert or Replace."""
    return {"operationType": kind, "resourceBody": {"id": item_id, "pk": key, **fields}}


def increment(item_id: str, by: int = 1) -> dict[str, Any]:
    """Return a batch operation that adds a number to the field `n` of an item."""
    operations = [{"op": "incr", "path": "/n", "value": by}]
    return {"operationType": "Patch", "id": item_id, "resourceBody": {"operations": operations}}


def sign(key: str, method: str, target: str) -> dict[str, str]:
    segments = [unquote(segment) for segment in target.partition("?")[0].strip("/").split("/") if segment]
    made = signature(base64.b64decode(key), method, segments, DATE)
    return {"authorization": quote(f"type=master&ver=1.0&sig={made}"), "x-ms-date": DATE}


def documents(reply: Reply) -> list[Any]:
    return json.loads(reply.body)["Documents"] if reply.body else []


def substatus(reply: Reply) -> tuple[int, int]:
    return reply.status, int(reply.headers.get("x-ms-substatus", "0"))
