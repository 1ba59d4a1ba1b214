"""
Leases: look at them, save and restore them, set them back; never while a worker owns one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from cosmos_outbox.changefeed.leases import START, Lease, format_timestamp, from_document, range_of
from cosmos_outbox.changefeed.position import AHEAD, BEHIND
from cosmos_outbox.cli.output import clock_time, readable_time
from cosmos_outbox.errors import ConfigurationError, UsageError
from cosmos_outbox.ports import Document, LeaseStore, Listing, StartFrom

_FIRST_YEAR = 1971  # with room for any zone; the service counts from 1970
_SYSTEM_FIELDS = ("_etag", "_ts", "_rid", "_self", "_attachments")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """
    What a command did, or would do, with one lease.
    """

    lease: str
    done: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenLease:
    """
    A lease to look at; where it is damaged, why, and only what can be told of it: never to be written back.
    """

    lease: Lease
    mistake: str | None = None


def leases_in(listing: Listing) -> tuple[Lease, ...]:
    """
    Return the leases of a listing, in the order of their tokens.

    Raises:
        ConfigurationError: one is damaged.
    """
    return tuple(sorted((from_document(document) for document in listing.documents), key=_order))


def seen_in(listing: Listing) -> tuple[SeenLease, ...]:
    """
    Return the leases of a listing in the order of their tokens, damaged ones among them.
    """
    return tuple(sorted(map(_seen, listing.documents), key=lambda seen: _order(seen.lease)))


def _seen(document: Document) -> SeenLease:
    try:
        return SeenLease(lease=from_document(document))
    except ConfigurationError as error:
        return SeenLease(lease=_told_of(document), mistake=str(error))


def _told_of(document: Document) -> Lease:
    lease_id, owner = str(document["id"]), document.get("Owner")
    return Lease(
        id=lease_id,
        token=lease_id.rpartition("..")[2],
        range=range_of(document),
        owner=owner if isinstance(owner, str) else None,
        continuation=None,
        timestamp=None,
        properties={},
        version=0,
        etag=document.get("_etag"),
        raw=document,
    )


def _order(lease: Lease) -> tuple[int, str]:
    return len(lease.token), lease.token


def row_of(seen: SeenLease, now: datetime, expiration: timedelta) -> dict[str, Any]:
    """
    Return what is told about a lease.
    """
    lease = seen.lease
    held = "expired" if lease.expired(now, expiration) else "owned"
    return {
        "range": lease.token,
        "owner": lease.owner,
        "state": "damaged" if seen.mistake else held if lease.owned else "free",
        "continuation": lease.continuation,
        "start": lease.properties.get(START),
        "written_ago": max(timedelta(0), now - lease.written_at()),
        "id": lease.id,
        "error": seen.mistake,
    }


def refuse_if_owned(leases: Iterable[Lease], now: datetime, expiration: timedelta) -> None:
    """
    Make sure that nobody works on any of the leases.

    Raises:
        UsageError: somebody does; the message names them.
    """
    owners = sorted({str(lease.owner) for lease in leases if not lease.expired(now, expiration)})
    if owners:
        raise UsageError(
            f"Workers own leases: {', '.join(owners)}. Stop them first; the leases of one that crashed are free "
            f"{expiration.total_seconds():.0f} s after its last renewal."
        )


def exported(leases: Iterable[Lease]) -> list[Document]:
    """
    Return leases as they are stored, without what the service adds.
    """
    return [
        {name: value for name, value in lease.raw.items() if name not in _SYSTEM_FIELDS} for lease in leases
    ]


async def import_leases(
    documents: Sequence[Mapping[str, Any]],
    *,
    prefix: str,
    store: LeaseStore,
    expiration: timedelta,
    dry_run: bool = False,
) -> tuple[Change, ...]:
    """
    Put exported leases in place, owned by nobody; those of other ranges are left as they are.

    Where a range split since, the leases of its parts are deleted: left beside it, they would win over it.

    Raises:
        UsageError: a worker owns a lease.
        ConfigurationError: a document is no lease, or one of another container or processor; or keys that have a lease
            would have none.
        PreconditionFailed: somebody wrote a lease meanwhile; those before it are imported.
    """
    wanted = [from_document(document) for document in documents]
    strange = sorted(lease.id for lease in wanted if not lease.id.startswith(f"{prefix}.."))
    if strange:
        raise ConfigurationError(
            f"The file has leases of another container or processor, such as {strange[0]!r}; "
            f"those of this one begin with {prefix!r}."
        )
    listing = await store.list(f"{prefix}..")
    # Damaged ones among them: to put a backup in their place is how they are mended.
    present = {seen.lease.id: seen.lease for seen in seen_in(listing)}
    refuse_if_owned(present.values(), listing.read_at, expiration)
    replaced = _replaced(present.values(), by=wanted)
    changes = [Change(lease=lease.token, done="deleted") for lease in replaced]
    # The parts before the whole: a worker that found both would keep the parts, and what they have passed.
    for lease in replaced if not dry_run else ():
        await store.delete(lease.id, lease.partition_key, etag=lease.etag)
    for lease in wanted:
        free = lease.with_changes(now=datetime.now(UTC), owner=None, properties=_unmarked(lease))
        found = present.get(lease.id)
        if not dry_run:
            if found is None:
                await store.create(free.raw)
            else:
                await store.replace(free.raw, etag=found.etag or "")
        changes.append(Change(lease=lease.token, done="replaced" if found else "created"))
    untouched = present.keys() - {lease.id for lease in (*wanted, *replaced)}
    changes += [Change(lease=present[name].token, done="left as it is") for name in sorted(untouched)]
    return tuple(changes)


def _replaced(present: Iterable[Lease], *, by: Sequence[Lease]) -> list[Lease]:
    """
    Return the leases that are not among the others but share keys with one of them, as after a split or a merge.

    Raises:
        ConfigurationError: they have keys that the others lack, or nobody can tell.
    """
    found = {lease.id: lease for lease in present}
    strange = [lease for name, lease in found.items() if name not in {lease.id for lease in by}]
    new = [lease for lease in by if lease.id not in found]
    vague = sorted(lease.token for lease in (*strange, *new) if lease.range is None)
    if strange and new and vague:
        raise ConfigurationError(
            f"Leases {', '.join(vague)} do not say which keys they cover, so that nobody can tell whether the file "
            f"replaces those it does not have: {', '.join(sorted(lease.token for lease in strange))}. Delete by hand "
            "those that it replaces, and import again."
        )
    ranges = [lease.range for lease in by if lease.range is not None]
    replaced = [
        lease for lease in strange if lease.range is not None and any(map(lease.range.overlaps, ranges))
    ]
    cut = [lease.token for lease in replaced if lease.range is not None and lease.range.without(ranges)]
    if cut:
        raise ConfigurationError(
            f"The file covers only a part of the keys of leases {', '.join(cut)}: it lacks leases. Import all that "
            "`leases export` wrote."
        )
    return replaced


async def reset_leases(
    start: StartFrom | datetime,
    *,
    prefix: str,
    store: LeaseStore,
    expiration: timedelta,
    dry_run: bool = False,
) -> tuple[Change, ...]:
    """
    Have all ranges read again from a start.

    Raises:
        UsageError: a worker owns a lease, or there is none; or the start is still to come.
        PreconditionFailed: a worker took a lease meanwhile; those before it are reset.
    """
    listing = await store.list(f"{prefix}..")
    require_come(start, listing.read_at)
    leases = leases_in(listing)
    if not leases:
        raise UsageError("There are no leases yet; the first worker, or `bootstrap`, creates them.")
    now = listing.read_at
    refuse_if_owned(leases, now, expiration)
    if start is StartFrom.BEGINNING:
        chosen = StartFrom.BEGINNING.value
    else:
        # One second earlier, as where leases are created.
        chosen = format_timestamp(start if isinstance(start, datetime) else now - timedelta(seconds=1))
    for lease in leases if not dry_run else ():
        properties = {**_unmarked(lease), START: chosen}
        changed = lease.with_changes(now=now, owner=None, continuation=None, properties=properties)
        await store.replace(changed.raw, etag=lease.etag or "")
    return tuple(Change(lease=lease.token, done=f"starts at {readable_time(chosen)}") for lease in leases)


def _unmarked(lease: Lease) -> dict[str, str]:
    """
    Return the properties of a lease without the marks that it was found ahead of its range, or may be.
    """
    return {name: text for name, text in lease.properties.items() if name not in (AHEAD, BEHIND)}


def start_named(text: str) -> StartFrom | datetime:
    """
    Return the start that `beginning`, `now` or an ISO 8601 time names; without a zone it is UTC.

    Raises:
        UsageError: it is none of these.
    """
    with suppress(ValueError):
        return StartFrom(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"{text!r} is neither 'beginning' nor 'now' nor a time such as 2026-11-21T08:00:00Z."
        ) from None
    if moment.year < _FIRST_YEAR:
        raise UsageError(f"{text!r} is before all events there can be; say 'beginning'.")
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def require_come(start: StartFrom | datetime, now: datetime) -> None:
    """
    Refuse a start in the future: which of the events before it are left out would depend on when somebody first looks.

    Raises:
        UsageError: it is later than `now`, which is on the service's clock.
    """
    if isinstance(start, datetime) and start > now:
        raise UsageError(
            f"{start.isoformat()} is still to come: for the service it is {clock_time(now)}. Name an earlier time, or 'now'."
        )
