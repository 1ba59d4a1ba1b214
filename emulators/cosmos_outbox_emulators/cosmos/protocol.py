"""
Requests and replies of the Cosmos DB protocol, independent of sockets, and the kinds of operations that a request can ask for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from urllib.parse import unquote

from cosmos_outbox_emulators.cosmos.errors import CosmosError, bad_request, not_found

CROSS_PARTITION = "x-ms-documentdb-query-enablecrosspartition"
CROSS_PARTITION_DISABLED = (
    "Cross partition query is required but disabled. Please set x-ms-documentdb-query-enablecrosspartition to true, specify "
    "x-ms-documentdb-partitionkey, or revise your query to avoid this exception."
)
QUERY_PLAN = "x-ms-cosmos-is-query-plan-request"
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_OLDEST_VERSION = "2015-04-08"
_KNOWN_VALUES = {
    "x-ms-consistency-level": ("strong", "boundedstaleness", "session", "eventual", "consistentprefix"),
    "x-ms-indexing-directive": ("default", "include", "exclude"),
    "x-ms-documentdb-content-serialization-format": ("jsontext", "cosmosbinary"),
    **dict.fromkeys((CROSS_PARTITION, "x-ms-documentdb-query-enable-scan"), ("true", "false")),
}
_TRIGGERS = tuple(f"x-ms-documentdb-{when}-trigger-include" for when in ("pre", "post"))
_DEFAULT_PAGE = 100
_LARGEST_PAGE = 1000
_WHOLE_NUMBER = re.compile(r"-?\d{1,18}")


class RequestKind(StrEnum):
    """The kind of a request. Fault rules select requests by these names, and requests are counted by them."""

    ACCOUNT = "account"
    METADATA = "metadata"
    PKRANGES = "pkranges"
    CREATE = "create"
    UPSERT = "upsert"
    READ = "read"
    REPLACE = "replace"
    DELETE = "delete"
    PATCH = "patch"
    BATCH = "batch"
    QUERY = "query"
    CHANGEFEED = "changefeed"
    READFEED = "readfeed"


WRITES = frozenset(("create", "upsert", "replace", "delete", "patch", "batch"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """
    One HTTP request. Its `headers` must ignore the case of header names. Its `origin` is the scheme and host that the client
    used.
    """

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes = b""
    origin: str = "http://127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One HTTP reply: its status, body and headers."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The kind of a request, and the segments of its path."""

    kind: RequestKind
    segments: tuple[str, ...]

    @property
    def container(self) -> str | None:
        return self.segments[3] if len(self.segments) > 3 else None


def route_of(request: Request) -> Route:
    """Return the route of a request. Refuse an unknown path with 404, and a method that the path does not support with 405."""
    segments = _segments(request.target)
    names = segments[0::2]
    depth = len(segments)
    if names == ("offers",):
        return _route_of(request, segments, dict.fromkeys(_OFFER_METHODS[depth - 1], RequestKind.METADATA))
    if depth > 4 and names[:2] == ("dbs", "colls") and (kinds := _inside_container(request, segments)):
        return _route_of(request, segments, kinds)
    if depth > 4 or names != ("dbs", "colls")[: len(names)]:
        raise CosmosError(404, "The requested resource does not exist in this emulator.")
    if depth == 0:
        return _route_of(request, segments, {"GET": RequestKind.ACCOUNT})
    methods = ("GET", "POST") if depth % 2 else ("GET", "DELETE", "PUT")[: 1 + depth // 2]
    return _route_of(request, segments, dict.fromkeys(methods, RequestKind.METADATA))


def _inside_container(request: Request, segments: tuple[str, ...]) -> Mapping[str, RequestKind] | None:
    if segments[4:] == ("docs",):
        get = RequestKind.CHANGEFEED if "a-im" in request.headers else RequestKind.READFEED
        return {"GET": get, "POST": _kind_of_post(request.headers)}
    if segments[4:] == ("operations", "partitionkeydelete"):
        return {"POST": RequestKind.DELETE}
    return _BELOW_CONTAINERS.get((segments[4], len(segments)))


_OFFER_METHODS = (("GET", "POST"), ("GET", "PUT"))
_ITEM_KINDS = {
    "GET": RequestKind.READ,
    "PUT": RequestKind.REPLACE,
    "DELETE": RequestKind.DELETE,
    "PATCH": RequestKind.PATCH,
}
_BELOW_CONTAINERS: Mapping[tuple[str, int], Mapping[str, RequestKind]] = {
    ("docs", 6): _ITEM_KINDS,
    ("pkranges", 5): {"GET": RequestKind.PKRANGES},
    ("conflicts", 5): dict.fromkeys(("GET", "POST"), RequestKind.METADATA),
    ("conflicts", 6): dict.fromkeys(("GET", "DELETE"), RequestKind.METADATA),
}


def _kind_of_post(headers: Mapping[str, str]) -> RequestKind:
    if is_on(headers, "x-ms-cosmos-is-batch-request"):
        return RequestKind.BATCH
    if is_query(headers):
        return RequestKind.QUERY
    return RequestKind.UPSERT if is_on(headers, "x-ms-documentdb-is-upsert") else RequestKind.CREATE


def _route_of(request: Request, segments: tuple[str, ...], kinds: Mapping[str, RequestKind]) -> Route:
    kind = kinds.get(request.method)
    if kind is None:
        raise CosmosError(405, f"The resource does not support the method {request.method[:20]}.")
    return Route(kind=kind, segments=segments)


@lru_cache(maxsize=1024)
def _segments(target: str) -> tuple[str, ...]:
    path = target.partition("?")[0].strip("/")
    if not path:
        return ()
    if _BAD_ESCAPE.search(path):
        raise bad_request("The path contains an invalid percent escape.")
    try:
        segments = tuple(unquote(segment, errors="strict") for segment in path.split("/"))
        path.encode()  # fails if the path has bytes that are not UTF-8, which aiohttp passes on as surrogates
    except UnicodeError as error:
        raise bad_request("The path is not UTF-8.") from error
    if len(segments) > 6 or not all(segments):
        raise CosmosError(404, "The requested resource does not exist in this emulator.")
    return segments


def is_on(headers: Mapping[str, str], name: str) -> bool:
    return headers.get(name, "").lower() == "true"


def is_query(headers: Mapping[str, str]) -> bool:
    kind = headers.get("content-type", "").lower()
    return (
        is_on(headers, "x-ms-documentdb-isquery")
        or is_on(headers, QUERY_PLAN)
        or kind.startswith("application/query+json")
    )


def range_of(headers: Mapping[str, str]) -> str | None:
    """
    Return the id of the partition key range that a request names, or None. Older clients send the container's resource id before
    the id of the range, which is cut off.
    """
    named = headers.get("x-ms-documentdb-partitionkeyrangeid")
    return None if named is None else named.rpartition(",")[2]


def check_headers(headers: Mapping[str, str]) -> None:
    """Refuse a request if one of its headers has a value that the service does not know, or names a trigger."""
    for name, known in _KNOWN_VALUES.items():
        value = headers.get(name)
        # The SDK for .NET sends a header without a value if it has none to send, so empty values are accepted.
        if value and value.lower() not in known:
            raise bad_request(f"The value '{value[:50]}' specified for the header '{name}' is invalid.")
    for name in _TRIGGERS:
        if headers.get(name):
            raise not_found(
                f"The trigger '{headers[name][:50]}' does not exist: this emulator has no triggers."
            )
    if headers.get("x-ms-version", _OLDEST_VERSION) < _OLDEST_VERSION:
        raise bad_request("Invalid API version. Ensure a valid x-ms-version header value is passed.")


def page_size(headers: Mapping[str, str]) -> int:
    """Return the largest number of rows that a page may have, at most 1000. A request with -1 leaves the number to the service."""
    asked = whole_number(headers, "x-ms-max-item-count", default=_DEFAULT_PAGE, least=-1)
    return min(asked, _LARGEST_PAGE) if asked > 0 else _LARGEST_PAGE


def whole_number(headers: Mapping[str, str], name: str, *, default: int, least: int) -> int:
    """Return the value of a header that must be a whole number of at least `least`, or `default` without this header."""
    text = headers.get(name)
    if text is None:
        return default
    if not text.isascii() or _WHOLE_NUMBER.fullmatch(text) is None or int(text) < least:
        raise bad_request(f"The value '{text[:50]}' of header {name} is invalid.")
    return int(text)
