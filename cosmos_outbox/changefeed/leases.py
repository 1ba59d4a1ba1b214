"""
Lease: who processes one range of the container, and from where; stored in the .NET v3 format, field by field.

Format: the lease documents of the .NET SDK v3 (`DocumentServiceLeaseCore`, version 0, and `…CoreEpk`, version 1).
The stored JSON is kept as it was read and only the fields that change are replaced, so whatever else another
processor wrote survives our writes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from cosmos_outbox.errors import ConfigurationError
from cosmos_outbox.partition_key import FeedRange
from cosmos_outbox.ports import MonitoredContainer, StartFrom
from cosmos_outbox.stored_documents import strip_system

INCREMENTAL_FEED = "Incremental Feed"
BEGINNING = "beginning"

# Names of properties in a lease document:
START = "start"  # where a lease without continuation begins: a timestamp, or BEGINNING
NOTES = "notes"  # the note that a handler leaves for the next owner, see `ports.Notes`
SIGNATURE = "handover.owner"  # the owner, where it is a worker of this library
WANTED_BY = "handover.wanted-by"  # the worker that asks for the lease
STANDSTILL = "standstill"  # why the owner makes no progress, for those who only see the leases


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """One lease document: the fields we act on, and the raw JSON that is written back."""

    id: str
    token: str  # LeaseToken: the physical range's id (version 0) or "min-max" (version 1)
    range: FeedRange | None
    owner: str | None = None
    continuation: str | None  # the change feed's raw etag, with its quotes
    properties: Mapping[str, str]
    version: int
    etag: str | None = None
    raw: Mapping[str, Any]

    @property
    def partition_key(self) -> str:
        """Return the partition key of the document: its `partitionKey` where it has one, else its id."""
        return str(self.raw.get("partitionKey", self.id))

    @property
    def owned(self) -> bool:
        return bool(self.owner and self.owner.strip())

    def written_at(self) -> datetime:
        """
        Return when the lease was last written, on the service's clock (`_ts`, whole seconds).

        .NET compares the owner's clock (`timestamp`) with the reader's; the service's clock needs neither to be right, so
        `timestamp` is written, and never read.
        """
        return datetime.fromtimestamp(self.raw.get("_ts", 0), UTC)

    def expired(self, now: datetime, expiration: timedelta) -> bool:
        """Return whether any worker may take the lease; `now` is on the service's clock."""
        return not self.owned or self.written_at() + expiration < now

    def with_changes(self, *, now: datetime, **changes: Any) -> Lease:
        """Return the lease as a write stores it: with fields replaced and its timestamp set to now."""
        changed = replace(self, raw={**self.raw, "timestamp": format_timestamp(now)}, **changes)
        return replace(changed, raw=to_document(changed))


def lease_prefix(processor_name: str, container: MonitoredContainer) -> str:
    """Return what every lease id of one processor on one container starts with, as .NET builds it."""
    host, database, rid = container.account_host.lower(), container.database_rid, container.container_rid
    return f"{processor_name}{host}_{database}_{rid}"


def token_of(lease_id: str) -> str:
    return lease_id.rpartition("..")[2]


def new_lease(
    prefix: str,
    token: str,
    feed_range: FeedRange,
    *,
    version: int = 0,
    continuation: str | None = None,
    properties: Mapping[str, str] | None = None,
) -> Lease:
    """Return a lease without an owner, with every field that .NET writes."""
    lease_id = f"{prefix}..{token}"
    lease = Lease(
        id=lease_id,
        token=token,
        range=feed_range,
        continuation=continuation,
        properties=dict(properties or {}),
        version=version,
        raw={"id": lease_id},
    )
    return replace(lease, raw=to_document(lease))


def to_document(lease: Lease) -> dict[str, Any]:
    """Return the JSON to store; unknown fields of the document that was read are kept."""
    document = dict(lease.raw) | {
        "id": lease.id,
        "version": lease.version,
        "LeaseToken": lease.token,
        "Owner": lease.owner,
        "ContinuationToken": lease.continuation,
        "properties": dict(lease.properties),
        "timestamp": lease.raw.get("timestamp"),
    }
    if lease.range is not None:
        document["FeedRange"] = {"Range": {"min": lease.range.min, "max": lease.range.max}}
    document.setdefault("Mode", INCREMENTAL_FEED)
    return strip_system(document)


def with_properties(lease: Lease, properties: Mapping[str, str]) -> dict[str, Any]:
    """
    Return the JSON to store when a worker that does not own the lease changes its properties, and nothing else.
    """
    return strip_system({**lease.raw, "properties": dict(properties)})


def from_document(document: Mapping[str, Any]) -> Lease:
    """
    Read a lease as .NET (or we) wrote it.

    Raises:
        ConfigurationError: the document is not a lease, or belongs to a Java processor or to another feed mode.
    """
    lease_id, owner = document.get("id"), document.get("Owner")
    token = document.get("LeaseToken") or document.get("PartitionId")
    if not isinstance(lease_id, str) or not isinstance(token, str):
        raise ConfigurationError(
            f"The lease container holds a document that is not a lease: id {lease_id!r}."
        )
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
    properties = document.get("properties") or {}
    if not isinstance(properties, Mapping) or not all(isinstance(text, str) for text in properties.values()):
        raise ConfigurationError(
            f"Lease {lease_id!r} is damaged: its properties are not an object of strings: {properties!r}."
        )
    try:
        start_from(properties.get(START, BEGINNING))
    except ConfigurationError as error:
        raise ConfigurationError(f"Lease {lease_id!r} is damaged: {error}") from None
    return Lease(
        id=lease_id,
        token=token,
        range=range_of(document),
        owner=owner if isinstance(owner, str) else None,
        continuation=continuation,
        properties=dict(properties),
        version=1 if document.get("version") == 1 else 0,
        etag=document.get("_etag"),
        raw=dict(document),
    )


def readable(
    documents: Iterable[Mapping[str, Any]],
) -> tuple[tuple[Lease, ...], dict[str, ConfigurationError]]:
    """
    Return the leases among the documents. For each document that is no readable lease, return by its id what is wrong
    with it.
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
    Return the range that a lease document names, also where the rest of it is damaged; None where it names none.
    """
    feed_range = document.get("FeedRange")
    inner = feed_range.get("Range") if isinstance(feed_range, Mapping) else None
    if not isinstance(inner, Mapping):
        return None
    low, high = inner.get("min"), inner.get("max")
    return FeedRange(min=low, max=high) if isinstance(low, str) and isinstance(high, str) else None


def format_timestamp(moment: datetime) -> str:
    """Return the UTC timestamp form that .NET, Java and KEDA all parse: `…Z`, never an offset."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_timestamp(text: str) -> datetime:
    """
    Read a timestamp, as we or an operator wrote it; one without a zone is in UTC.

    Raises:
        ConfigurationError: the text is not a timestamp.
    """
    try:
        moment = datetime.fromisoformat(text)
        return moment.replace(tzinfo=moment.tzinfo or UTC).astimezone(UTC)
    except (ValueError, OverflowError):  # a thirteenth month; the year 0 in UTC
        raise ConfigurationError(f"{text!r} is not a valid timestamp.") from None


def start_property(start: StartFrom | datetime, *, now: datetime) -> str:
    """
    Return the property that stores a start. `NOW` becomes a time here, so that a lease which is read a minute later
    skips nothing.
    """
    if start is StartFrom.BEGINNING:
        return BEGINNING
    # One second earlier, as .NET does.
    return format_timestamp(start if isinstance(start, datetime) else now - timedelta(seconds=1))


def start_of(lease: Lease) -> StartFrom | datetime:
    """
    Return where a lease without continuation begins, as chosen when a worker created or first took it.
    """
    return start_from(lease.properties.get(START, BEGINNING))


def start_from(chosen: str) -> StartFrom | datetime:
    """Return the start that a lease's property names."""
    return StartFrom.BEGINNING if chosen == BEGINNING else parse_timestamp(chosen)


def with_start(lease: Lease, start: StartFrom | datetime, *, since: datetime) -> Lease:
    """
    Return a lease with the start written into it, where another program created the lease and no position was saved
    yet.

    If each owner chose again, "now" would skip what the owner before read and could not handle. It counts from
    `since`, when this worker first saw the leases; or from the last write of the lease where that is earlier.
    """
    if lease.continuation is not None or START in lease.properties:
        return lease
    chosen = start_property(start, now=min(since, lease.written_at()))
    return replace(lease, properties={**lease.properties, START: chosen})


def with_signature(properties: Mapping[str, str], owner: str) -> dict[str, str]:
    """
    Return the properties that an owner writes when it takes a lease: its signature is added, the request and the last
    owner's standstill are removed.
    """
    kept = {name: value for name, value in properties.items() if name not in (WANTED_BY, STANDSTILL)}
    return {**kept, SIGNATURE: owner}


def with_handover_request(properties: Mapping[str, str], worker: str) -> dict[str, str]:
    return {**properties, WANTED_BY: worker}


def handover_requested_by(lease: Lease) -> str | None:
    """
    Return the worker that asks for the lease, or is promised it. A request counts only if the owner can read it.
    """
    worker = lease.properties.get(WANTED_BY)
    understood = not lease.owned or lease.properties.get(SIGNATURE) == lease.owner
    return worker if understood and worker != lease.owner else None


def is_child_of(other: Lease, parent: Lease) -> bool:
    """Return whether a lease was created to take over the range of another, or a part of it."""
    if other.id == parent.id or other.range is None or parent.range is None:
        return False
    if not parent.range.contains(other.range):
        return False
    return other.range != parent.range or (parent.version, other.version) == (0, 1)


def cut(
    lease: Lease, feed_range: FeedRange, physical: Sequence[FeedRange], others: Iterable[Lease]
) -> tuple[list[FeedRange], list[FeedRange]]:
    """
    Return the physical ranges that overlap the range of a lease, each cut to it, and the parts of its range that its
    children do not cover.
    """
    overlapping = [one for one in physical if one.overlaps(feed_range)]
    covered = [other.range for other in others if other.range and is_child_of(other, lease)]
    return overlapping, [
        part for one in overlapping for part in one.intersection(feed_range).without(covered)
    ]


class ByRange:
    """Leases in the order of their ranges, so that a search need not compare a thousand with a thousand."""

    def __init__(self, leases: Sequence[Lease]) -> None:
        self.leases = leases
        placed = sorted((lease.range.min, at) for at, lease in enumerate(leases) if lease.range)
        self._lows, self._places = [low for low, _ in placed], [at for _, at in placed]

    def has_unfinished_split(self, lease: Lease) -> bool:
        """
        Return whether a worker began to create the children of a lease and did not finish. The children come first,
        even if the lease's range can still be read.
        """
        if lease.range is None:
            return False
        first, end = bisect_left(self._lows, lease.range.min), bisect_left(self._lows, lease.range.max)
        return any(is_child_of(self.leases[at], lease) for at in self._places[first:end])
