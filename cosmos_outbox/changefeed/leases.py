"""
Lease: the document which says which worker processes one range of a container, and from which position. `balancing.py`
decides which worker takes a lease, and `owned_lease.py` until when its owner may use it.

The format is that of the .NET SDK v3, field by field (`DocumentServiceLeaseCore`, version 0, and `…CoreEpk`, version
1). The stored JSON is kept as it was read, and a write replaces only the fields that change. So fields that another
processor added survive the writes of this library.
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
SIGNATURE = "handover.owner"  # the owner's name, written only by workers of this library
WANTED_BY = "handover.wanted-by"  # the worker that asks for the lease
STANDSTILL = "standstill"  # why the owner makes no progress, for programs that see only the lease documents


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A lease document: the fields that this library uses, and the raw JSON, so that a write keeps all other fields."""

    id: str
    token: str  # LeaseToken: the physical range's id (version 0) or "min-max" (version 1)
    range: FeedRange | None
    owner: str | None = None
    continuation: str | None  # the position: an etag of the change feed, with its quotes
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

        .NET compares the owner's clock (`timestamp`) with the reader's clock, so both have to be right. This library
        relies on the service's clock alone: it writes `timestamp` for .NET, and never reads it.
        """
        return datetime.fromtimestamp(self.raw.get("_ts", 0), UTC)

    def expired(self, now: datetime, expiration: timedelta) -> bool:
        """Return whether any worker may take the lease. `now` is the time on the clock of Cosmos DB."""
        return not self.owned or self.written_at() + expiration < now

    def with_changes(self, *, now: datetime, **changes: Any) -> Lease:
        """
        Return a copy of the lease with the given fields replaced and its timestamp set to `now`, ready to be stored.
        """
        changed = replace(self, raw={**self.raw, "timestamp": format_timestamp(now)}, **changes)
        return replace(changed, raw=to_document(changed))


def lease_prefix(processor_name: str, container: MonitoredContainer) -> str:
    """Return the text with which the ids of all leases of one processor on one container begin, as in .NET."""
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
    """Return the JSON of a lease to store. Fields of the stored document that this library does not know are kept."""
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
    Return the JSON of a lease with other properties and nothing else changed. A worker that does not own the lease
    stores it, for example to ask the owner for the lease.
    """
    return strip_system({**lease.raw, "properties": dict(properties)})


def from_document(document: Mapping[str, Any]) -> Lease:
    """
    Return the lease that a document holds, whether .NET or this library wrote it.

    Raises:
        ConfigurationError: the document is not a lease, or belongs to a Java processor or to another feed mode.
    """
    lease_id, owner = document.get("id"), document.get("Owner")
    token = document.get("LeaseToken") or document.get("PartitionId")
    if not isinstance(lease_id, str) or not isinstance(token, str):
        raise ConfigurationError(
            f"The document {lease_id!r} in the lease container is not a lease: delete it, or correct it."
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
    Return the leases among the documents. Also return what is wrong with each other document, by its id, so that one
    damaged lease does not hide the others.
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
    Return the range that a lease document names, even if the rest of the document is damaged. Return None if it names
    no range.
    """
    feed_range = document.get("FeedRange")
    inner = feed_range.get("Range") if isinstance(feed_range, Mapping) else None
    if not isinstance(inner, Mapping):
        return None
    low, high = inner.get("min"), inner.get("max")
    return FeedRange(min=low, max=high) if isinstance(low, str) and isinstance(high, str) else None


def format_timestamp(moment: datetime) -> str:
    """
    Return a time as a text in UTC that .NET, Java and KEDA can all parse: it ends with `Z` and never has an offset.
    """
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_timestamp(text: str) -> datetime:
    """
    Return the time that a text states, as this library or an operator wrote it. A time without a zone is in UTC.

    Raises:
        ConfigurationError: the text is not a timestamp.
    """
    try:
        moment = datetime.fromisoformat(text)
        return moment.replace(tzinfo=moment.tzinfo or UTC).astimezone(UTC)
    except (ValueError, OverflowError):  # such as a thirteenth month, or a year 0 in UTC
        raise ConfigurationError(f"{text!r} is no timestamp, such as 2026-01-31T12:00:00Z.") from None


def start_property(start: StartFrom | datetime, *, now: datetime) -> str:
    """
    Return the text for the lease's property `start`, which says where the lease begins. `NOW` is stored as the current
    time, so that a worker which first reads the lease a minute later skips nothing.
    """
    if start is StartFrom.BEGINNING:
        return BEGINNING
    # Like .NET, store `StartFrom.NOW` as one second before now.
    return format_timestamp(start if isinstance(start, datetime) else now - timedelta(seconds=1))


def start_of(lease: Lease) -> StartFrom | datetime:
    """
    Return where a lease without a continuation begins. The worker that created the lease, or first took it, chose this.
    """
    return start_from(lease.properties.get(START, BEGINNING))


def start_from(chosen: str) -> StartFrom | datetime:
    """Return the start that a lease's property `start` states: the beginning of the feed, or a time."""
    return StartFrom.BEGINNING if chosen == BEGINNING else parse_timestamp(chosen)


def with_start(lease: Lease, start: StartFrom | datetime, *, since: datetime) -> Lease:
    """
    Write the start into a lease that another program created, if no position was saved yet. Return any other lease as
    it is.

    If each new owner chose the start again, `StartFrom.NOW` would skip changes that the previous owner read and could
    not handle. So `NOW` means `since`, when this worker first saw the leases, or the last write of the lease if that
    was earlier.
    """
    if lease.continuation is not None or START in lease.properties:
        return lease
    chosen = start_property(start, now=min(since, lease.written_at()))
    return replace(lease, properties={**lease.properties, START: chosen})


def with_signature(properties: Mapping[str, str], owner: str) -> dict[str, str]:
    """
    Return the properties that a worker writes when it takes a lease. They contain its signature, by which other workers
    know that it understands handover requests. What was written for the last owner is removed: a request to hand the lease over, and why its
    work stood still.
    """
    kept = {name: value for name, value in properties.items() if name not in (WANTED_BY, STANDSTILL)}
    return {**kept, SIGNATURE: owner}


def with_handover_request(properties: Mapping[str, str], worker: str) -> dict[str, str]:
    return {**properties, WANTED_BY: worker}


def handover_requested_by(lease: Lease) -> str | None:
    """
    Return the worker that asked for the lease, or for which a released lease is reserved; None if there is none. A
    request counts only if the owner is a worker of this library, because .NET processors ignore requests.
    """
    worker = lease.properties.get(WANTED_BY)
    understood = not lease.owned or lease.properties.get(SIGNATURE) == lease.owner
    return worker if understood and worker != lease.owner else None


def is_child_of(other: Lease, parent: Lease) -> bool:
    """Return whether `other` was created to take over the range of the lease `parent`, or a part of that range."""
    if other.id == parent.id or other.range is None or parent.range is None:
        return False
    if not parent.range.contains(other.range):
        return False
    return other.range != parent.range or (parent.version, other.version) == (0, 1)


def cut(
    lease: Lease, feed_range: FeedRange, physical: Sequence[FeedRange], others: Iterable[Lease]
) -> tuple[list[FeedRange], list[FeedRange]]:
    """
    Cut the range of a lease at the bounds of the physical ranges, as after a split. Return two lists: the physical
    ranges that overlap the lease's range, and the parts of the lease's range that no child lease covers yet.
    """
    overlapping = [one for one in physical if one.overlaps(feed_range)]
    covered = [other.range for other in others if other.range and is_child_of(other, lease)]
    return overlapping, [
        part for one in overlapping for part in one.intersection(feed_range).without(covered)
    ]


class ByRange:
    """
    Leases sorted by their ranges, so that the children of one lease are found without a look at all leases: a container
    may have a thousand.
    """

    def __init__(self, leases: Sequence[Lease]) -> None:
        self.leases = leases
        placed = sorted((lease.range.min, at) for at, lease in enumerate(leases) if lease.range)
        self._lows, self._places = [low for low, _ in placed], [at for _, at in placed]

    def has_unfinished_split(self, lease: Lease) -> bool:
        """
        Return whether a worker began to create the children of a lease and did not finish. The remaining children have
        to be created before the lease is worked on, even if its range can still be read.
        """
        if lease.range is None:
            return False
        first, end = bisect_left(self._lows, lease.range.min), bisect_left(self._lows, lease.range.max)
        return any(is_child_of(self.leases[at], lease) for at in self._places[first:end])
