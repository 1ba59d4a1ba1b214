"""
Deviations of the Cosmos DB emulator. Each deviation makes an answer differ from Azure's in one way, to prove that a verifier
notices the difference.

Most deviations are functions between the server and the gateway: they get a request, and a function that returns the true answer to
it. The engine contains no code for deviations.
"""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from multidict import CIMultiDict

from cosmos_outbox_emulators.active_deviation import Switch
from cosmos_outbox_emulators.cosmos import batch_body, jsontext
from cosmos_outbox_emulators.cosmos.documents import LARGEST_REQUEST_BYTES
from cosmos_outbox_emulators.cosmos.errors import CosmosError, bad_request
from cosmos_outbox_emulators.cosmos.protocol import WRITES, Reply, Request, RequestKind, Route
from cosmos_outbox_emulators.cosmos.server import Answer, Around, CosmosServer

_LAG_S, _LATENCY_S, _AHEAD_S = 3.0, 0.2, 3600.0
# Only a very long partition key, such as one of 2,047 bytes, makes the header longer than this.
_LONGEST_KEY_HEADER = 2000
_WRITES = WRITES - {"delete"}  # the writes that have a body


# Writes


def _keep_half_of_a_batch(answer: Answer, request: Request, route: Route) -> Reply:
    """Keep the writes of a batch that came before its failed operation. Azure keeps none of them."""
    reply = answer(request, route)
    if route.kind is RequestKind.BATCH and reply.status == 207:
        statuses = [result["statusCode"] for result in json.loads(reply.body)]
        failed = next(index for index, status in enumerate(statuses) if status != 424)
        if failed and 424 in statuses:
            answer(_with_body(request, jsontext.decode(request.body)[:failed]), route)
    return reply


def _accept_large_batches(answer: Answer, request: Request, route: Route) -> Reply:
    operations = jsontext.decode(request.body) if route.kind is RequestKind.BATCH else []
    if len(request.body) <= LARGEST_REQUEST_BYTES or len(operations) < 2:
        return answer(request, route)
    middle = len(operations) // 2
    halves = [
        _accept_large_batches(answer, _with_body(request, half), route)
        for half in (operations[:middle], operations[middle:])
    ]
    results = [result for half in halves for result in json.loads(half.body)]
    return replace(halves[1], body=jsontext.encode(results))


def _overwrite(answer: Answer, request: Request, route: Route) -> Reply:
    """Let the creation of an item replace an existing item with the same id. Azure answers with 409."""
    if route.kind is RequestKind.BATCH:
        request = replace(request, body=request.body.replace(b'"Create"', b'"Upsert"'))
    elif route.kind is RequestKind.CREATE:
        route = replace(route, kind=RequestKind.UPSERT)
    return answer(request, route)


def _ignore_etags(answer: Answer, request: Request, route: Route) -> Reply:
    if route.kind is RequestKind.BATCH:
        operations: list[dict[str, Any]] = jsontext.decode(request.body)
        return answer(_with_body(request, [{**one, "ifMatch": None} for one in operations]), route)
    return answer(_without(request, "if-match"), route)


def _round_numbers(answer: Answer, request: Request, route: Route) -> Reply:
    """Round a whole number beyond 2^53 to the nearest number that a double can hold."""
    if route.kind in _WRITES:
        body = json.loads(request.body, parse_int=lambda text: int(float(text)))
        request = _with_body(request, body)
    return answer(request, route)


def _trim_ids(answer: Answer, request: Request, route: Route) -> Reply:
    if route.kind in _WRITES:
        request = _with_body(request, json.loads(request.body, object_hook=_trim_id))
    return answer(request, replace(route, segments=tuple(segment.rstrip(" ") for segment in route.segments)))


def _trim_id(body: dict[str, Any]) -> dict[str, Any]:
    return {**body, "id": body["id"].rstrip(" ")} if isinstance(body.get("id"), str) else body


def _miss_in_batches(answer: Answer, request: Request, route: Route) -> Reply:
    """Let a batch that reads an item find no item, as a replica does that has not received the item yet."""
    if route.kind is RequestKind.BATCH and b'"Read"' in request.body:
        request = _with_body(request, [{**one, "id": "later"} for one in jsontext.decode(request.body)])
    return answer(request, route)


def _refuse_long_keys(answer: Answer, request: Request, route: Route) -> Reply:
    if len(request.headers.get("x-ms-documentdb-partitionkey", "")) > _LONGEST_KEY_HEADER:
        raise bad_request("The partition key is too long.")
    return answer(request, route)


# Refusals


def _say_owner_missing(answer: Answer, request: Request, route: Route) -> Reply:
    """Answer 404/1003 for a missing item. Azure gives this answer for a missing container only."""
    reply = answer(request, route)
    if reply.status == 404 and reply.headers.get("x-ms-substatus") == "0":
        reply.headers["x-ms-substatus"] = "1003"
    return reply


def _say_conflict(answer: Answer, request: Request, route: Route) -> Reply:
    """Answer 409 if an etag does not match. Azure answers 412."""
    reply = answer(request, route)
    if reply.status == 207:
        return replace(reply, body=reply.body.replace(b'"statusCode":412', b'"statusCode":409'))
    return replace(reply, status=409) if reply.status == 412 else reply


def _refuse_metadata(answer: Answer, request: Request, route: Route, *, reads: bool) -> Reply:
    """
    Refuse to change databases, containers and throughput, as Azure does for a role that covers only data. With `reads`, refuse to
    read them as well.
    """
    if route.kind is RequestKind.METADATA and (
        reads or request.method != "GET" or route.segments[0] == "offers"
    ):
        raise CosmosError(403, "The request cannot be authorized by AAD token in data plane.", substatus=5300)
    return answer(request, route)


def _throttle_every_tenth() -> Around:
    numbers = itertools.count(1)

    def throttle(answer: Answer, request: Request, route: Route) -> Reply:
        if next(numbers) % 10 == 0:
            raise CosmosError(429, "The request rate is too large.", substatus=3200, retry_after_ms=5)
        return answer(request, route)

    return throttle


# These deviations change the answers of the change feed.


def _feed(change: Callable[[Reply], Reply], answer: Answer, request: Request, route: Route) -> Reply:
    reply = answer(request, route)
    return change(reply) if route.kind is RequestKind.CHANGEFEED and reply.status in (200, 304) else reply


def _documents(change: Callable[[list[dict[str, Any]]], object], reply: Reply) -> Reply:
    page = json.loads(reply.body or b"null")
    if page is None or len(page["Documents"]) < 2:
        return reply
    change(page["Documents"])
    headers = {**reply.headers, "x-ms-item-count": str(len(page["Documents"]))}
    return replace(reply, body=jsontext.encode(page), headers=headers)


def _spread_lsns(documents: list[dict[str, Any]]) -> None:
    for index, document in enumerate(documents):
        document["_lsn"] += index


def _lose_etag(reply: Reply) -> Reply:
    if reply.status == 304:
        del reply.headers["etag"]
    return reply


def _empty_etag(reply: Reply) -> Reply:
    return replace(reply, headers={**reply.headers, "etag": ""})


# The wire


def _compress(answer: Answer, request: Request, route: Route) -> Reply:
    reply = answer(request, route)
    if reply.body:
        reply.headers["content-encoding"] = "gzip"
    return replace(reply, body=gzip.compress(reply.body) if reply.body else b"")


def _hide_charge(answer: Answer, request: Request, route: Route) -> Reply:
    reply = answer(request, route)
    reply.headers.pop("x-ms-request-charge", None)
    if route.kind is not RequestKind.BATCH or reply.status >= 300:
        return reply
    results = json.loads(reply.body)
    for result in results:
        result.pop("requestCharge", None)
    return replace(reply, body=jsontext.encode(results))


def _with_body(request: Request, body: Any) -> Request:
    return replace(request, body=jsontext.encode(body))


def _without(request: Request, header: str) -> Request:
    headers = ((name, value) for name, value in request.headers.items() if name.lower() != header)
    return replace(request, headers=CIMultiDict(headers))


# Switching


@contextmanager
def _set(holder: Any, **values: object) -> Iterator[None]:
    before = {name: getattr(holder, name) for name in values}
    for name, value in values.items():
        setattr(holder, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(holder, name, value)


def _never_expire(server: CosmosServer) -> Around:
    """
    Return a deviation that writes each item as if its container had no default TTL, so that the TTL of the item has no effect.
    """

    def keep(answer: Answer, request: Request, route: Route) -> Reply:
        if route.kind not in _WRITES:
            return answer(request, route)
        container = server.account.container(route.segments[1], route.segments[3])
        lasting = {name: value for name, value in container.properties.items() if name != "defaultTtl"}
        with _set(container, properties=lasting):
            return answer(request, route)

    return keep


def _stands(around: Around) -> Switch[CosmosServer]:
    """
    Return a switch that puts the function `around` between the server and the gateway. The function reads and writes every batch
    as JSON: a batch in the binary rows of the SDK for .NET is converted for it.
    """

    def translate(answer: Answer, request: Request, route: Route) -> Reply:
        if route.kind is not RequestKind.BATCH or not batch_body.is_binary(request.body):
            return around(answer, request, route)
        reply = around(answer, _with_body(request, batch_body.rows(request.body)), route)
        return replace(reply, body=batch_body.as_rows(reply.body)) if reply.status < 300 else reply

    return lambda server: _set(server, around=translate)


@contextmanager
def _stale(server: CosmosServer) -> Iterator[None]:
    """
    Answer reads of single items with a state that is a few seconds old, even if the session has seen a later state. Feeds and
    queries stay up to date.
    """
    replication = server.account.replication

    def forget_session(answer: Answer, request: Request, route: Route) -> Reply:
        if route.kind is RequestKind.READ:
            return answer(_without(request, "x-ms-session-token"), route)
        with _set(replication, lag_s=_LAG_S if route.kind in _WRITES else 0.0):
            return answer(request, route)

    with _set(replication, lag_s=_LAG_S), _set(server, around=forget_session):
        yield


DEVIATIONS: Mapping[str, Switch[CosmosServer]] = {
    "half-batches": _stands(_keep_half_of_a_batch),
    "large-batches": _stands(_accept_large_batches),
    "creations-overwrite": _stands(_overwrite),
    "etags-ignored": _stands(_ignore_etags),
    "numbers-rounded": _stands(_round_numbers),
    "ids-trimmed": _stands(_trim_ids),
    "ids-refused": lambda server: _set(server.account, strict_ids=True),
    "long-keys-refused": _stands(_refuse_long_keys),
    "items-never-expire": lambda server: _set(server, around=_never_expire(server)),
    "missing-is-1003": _stands(_say_owner_missing),
    "412-is-409": _stands(_say_conflict),
    "control-plane-refused": _stands(partial(_refuse_metadata, reads=False)),
    "metadata-refused": _stands(partial(_refuse_metadata, reads=True)),
    "throttled": lambda server: _set(server, around=_throttle_every_tenth()),
    "lsn-within-batch": _stands(partial(_feed, partial(_documents, _spread_lsns))),
    "feed-skips": _stands(partial(_feed, partial(_documents, list.pop))),
    "feed-reversed": _stands(partial(_feed, partial(_documents, list.reverse))),
    "304-without-etag": _stands(partial(_feed, _lose_etag)),
    "empty-etag": _stands(partial(_feed, _empty_etag)),
    "stale-reads": _stale,
    "stale-batches": _stands(_miss_in_batches),
    "charges-hidden": _stands(_hide_charge),
    "compressed": lambda server: _set(server, around=_compress),
    "slow": lambda server: _set(server, latency_s=_LATENCY_S),
    "clock-ahead": lambda it: _set(it.account, clock=lambda now=it.account.clock: now() + _AHEAD_S),
}
