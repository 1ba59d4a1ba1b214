"""
Lease: who processes one range of the container, and from where; stored in the .NET v3 format, field by field.

Format: the lease documents of the .NET SDK v3 (`DocumentServiceLeaseCore`, version 0, and `…CoreEpk`, version 1).
The stored JSON is kept as it was read and only the fields that change are replaced, so whatever else another
processor wrote survives our writes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from cosmos_outbox.errors import ConfigurationError
from cosmos_outbox.feed_range import FeedRange
from cosmos_outbox.ports import StartFrom

INCREMENTAL_FEED = "Incremental Feed"
START = "start"  # the property that says where a lease without continuation begins: a timestamp, or
BEGINNING = "beginning"
NOTES = "notes"  # the property with what a handler leaves for the next owner, see `ports.Notes`
_SYSTEM_FIELDS = frozenset({"_etag", "_ts", "_rid", "_self", "_attachments"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """
    One lease document: the fields we act on, and the raw JSON that is written back.
    """

    id: str
    token: str  # LeaseToken: the physical range's id (version 0) or "min-max" (version 1)
    range: FeedRange | None
    owner: str | None
    continuation: str | None  # the change feed's raw etag, with its quotes
    timestamp: datetime | None
    properties: Mapping[str, str]
    version: int
    etag: str | None
    raw: Mapping[str, Any]

    @property
    def partition_key(self) -> str:
        """
        Return the value that routes to the document: its `partitionKey` where stored, else its id.
        """
        return str(self.raw.get("partitionKey", self.id))

    def written_at(self) -> datetime:
        """
        Return when the lease was last written, on the service's clock (`_ts`, whole seconds).

        .NET compares the owner's clock (`timestamp`) with the reader's; the service's clock needs neither to be right.
        """
        ts = self.raw.get("_ts")
        if isinstance(ts, int | float):
            return datetime.fromtimestamp(ts, UTC)
        return self.timestamp or datetime.fromtimestamp(0, UTC)

    def expired(self, now: datetime, expiration: timedelta) -> bool:
        """
        Say whether nobody can count on this lease any more, `now` being on the service's clock.
        """
        return not self.owned or self.written_at() + expiration < now

    @property
    def owned(self) -> bool:
        """
        Say whether the document names an owner.
        """
        return bool(self.owner and self.owner.strip())

    def with_changes(self, *, now: datetime, **changes: Any) -> Lease:
        """
        Return the lease with fields replaced and its timestamp set to now: what a write stores.
        """
        changed = replace(self, timestamp=now, **changes)
        return replace(changed, raw=to_document(changed))


def new_lease(
    prefix: str,
    token: str,
    feed_range: FeedRange,
    *,
    version: int = 0,
    continuation: str | None = None,
    properties: Mapping[str, str] | None = None,
    partitioned_by_id: bool = True,
) -> Lease:
    """
    Return a lease that nobody owns yet, with every field that .NET writes.
    """
    lease_id = f"{prefix}..{token}"
    raw: dict[str, Any] = (
        {"id": lease_id} if partitioned_by_id else {"id": lease_id, "partitionKey": lease_id}
    )
    lease = Lease(
        id=lease_id,
        token=token,
        range=feed_range,
        owner=None,
        continuation=continuation,
        timestamp=None,
        properties=dict(properties or {}),
        version=version,
        etag=None,
        raw=raw,
    )
    return replace(lease, raw=to_document(lease))


def to_document(lease: Lease) -> dict[str, Any]:
    """
    Return the JSON to store; unknown fields of the document that was read are kept.
    """
    document = dict(lease.raw)
    document.update(
        {
            "id": lease.id,
            "version": lease.version,
            "LeaseToken": lease.token,
            "Owner": lease.owner,
            "ContinuationToken": lease.continuation,
            "properties": dict(lease.properties),
            "timestamp": format_timestamp(lease.timestamp) if lease.timestamp else None,
        }
    )
    if lease.range is not None:
        document["FeedRange"] = {"Range": {"min": lease.range.min, "max": lease.range.max}}
    document.setdefault("Mode", INCREMENTAL_FEED)
    return without_system_fields(document)


def with_properties(lease: Lease, properties: Mapping[str, str]) -> dict[str, Any]:
    """
    Return the JSON to store when somebody who does not own the lease changes its properties, and nothing else.
    """
    return without_system_fields({**lease.raw, "properties": dict(properties)})


def without_system_fields(document: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name not in _SYSTEM_FIELDS}


def from_document(document: Mapping[str, Any]) -> Lease:
    """
    Read a lease as .NET (or we) wrote it.

    Raises:
        ConfigurationError: the document is no lease, or one of a Java processor or of another feed mode.
    """
    lease_id = document.get("id")
    token = document.get("LeaseToken") or document.get("PartitionId")
    if not isinstance(lease_id, str) or not isinstance(token, str):
        raise ConfigurationError(f"The lease container holds a document that is no lease: id {lease_id!r}.")
    mode = document.get("Mode") or INCREMENTAL_FEED
    if str(mode).casefold() != INCREMENTAL_FEED.casefold():
        raise ConfigurationError(
            f"Lease {lease_id!r} belongs to a processor in mode {mode!r}; use another processor name."
        )
    continuation = document.get("ContinuationToken")
    if continuation is not None and not (isinstance(continuation, str) and continuation.startswith('"')):
        raise ConfigurationError(
            f"Lease {lease_id!r} holds a continuation token that only a Java processor can read; "
            "never share a processor name between Java and this library."
        )
    try:
        timestamp, properties = _timestamp_of(document), _properties_of(document)
    except ConfigurationError as error:
        raise ConfigurationError(f"Lease {lease_id!r} is damaged: {error}") from None
    owner = document.get("Owner")
    return Lease(
        id=lease_id,
        token=token,
        range=range_of(document),
        owner=owner if isinstance(owner, str) else None,
        continuation=continuation,
        timestamp=timestamp,
        properties=properties,
        version=1 if document.get("version") == 1 else 0,
        etag=document.get("_etag"),
        raw=dict(document),
    )


def readable(
    documents: Iterable[Mapping[str, Any]],
) -> tuple[tuple[Lease, ...], dict[str, ConfigurationError]]:
    """
    Return the leases among the documents, and by id what is wrong with each of the rest.
    """
    leases, damaged = [], {}
    for document in documents:
        try:
            leases.append(from_document(document))
        except ConfigurationError as error:
            damaged[str(document.get("id"))] = error
    return tuple(leases), damaged


def range_of(document: Mapping[str, Any]) -> FeedRange | None:
    """
    Return the range of a lease, whether the rest of the document can be read or not; None where it names none.
    """
    feed_range = document.get("FeedRange")
    inner = feed_range.get("Range") if isinstance(feed_range, Mapping) else None
    if (
        not isinstance(inner, Mapping)
        or not isinstance(inner.get("min"), str)
        or not isinstance(inner.get("max"), str)
    ):
        return None
    return FeedRange(min=inner["min"], max=inner["max"])


def _timestamp_of(document: Mapping[str, Any]) -> datetime | None:
    timestamp = document.get("timestamp")
    return parse_timestamp(timestamp) if isinstance(timestamp, str) else None


def _properties_of(document: Mapping[str, Any]) -> dict[str, str]:
    properties = document.get("properties") or {}
    if not isinstance(properties, Mapping) or not all(isinstance(text, str) for text in properties.values()):
        raise ConfigurationError(f"its properties are no object of strings: {properties!r}.")
    if properties.get(START, BEGINNING) != BEGINNING:
        parse_timestamp(properties[START])  # here, where the lease is read and known by its id
    return dict(properties)


def format_timestamp(moment: datetime) -> str:
    """
    Return the UTC timestamp form that .NET, Java and KEDA all parse: `…Z`, never an offset.
    """
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


_TIMESTAMP = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z(?:\[UTC\])?|[+-]\d\d:\d\d)?")


def parse_timestamp(text: str) -> datetime:
    """
    Read a timestamp with 0 to 9 fractional digits, as .NET (7), Java (3 to 9) and we (6) write it.

    Raises:
        ConfigurationError: the text is no such timestamp.
    """
    match = _TIMESTAMP.fullmatch(text)
    if match is None:
        raise ConfigurationError(f"{text!r} is no timestamp.")
    seconds, fraction, zone = match.groups()
    offset = "+00:00" if zone is None or zone.startswith("Z") else zone
    try:
        moment = datetime.fromisoformat(seconds + offset).astimezone(UTC)
    except (ValueError, OverflowError):  # a thirteenth month; the year 0 in UTC
        raise ConfigurationError(f"{text!r} is no timestamp.") from None
    return moment.replace(microsecond=int((fraction or "0").ljust(6, "0")[:6]))


def lease_prefix(processor_name: str, account_host: str, database_rid: str, container_rid: str) -> str:
    """
    Return what every lease id of one processor on one container starts with, as .NET builds it.
    """
    return f"{processor_name}{account_host.lower()}_{database_rid}_{container_rid}"


def token_of(lease_id: str) -> str:
    """
    Return the token at the end of a lease's id.
    """
    return lease_id.rpartition("..")[2]


def start_property(start: StartFrom | datetime, *, now: datetime) -> str:
    """
    Return a start as a lease's property; `NOW` is fixed here, so that a lease read a minute later skips nothing.
    """
    if start is StartFrom.BEGINNING:
        return BEGINNING
    # One second earlier, as .NET.
    return format_timestamp(start if isinstance(start, datetime) else now - timedelta(seconds=1))
