"""
Renaming: move the leases of a processor to the account's own name, whichever of its names they were created under.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from cosmos_outbox.changefeed.leases import BEGINNING, START, Lease, lease_prefix
from cosmos_outbox.changefeed.naming import hosts_of_leases
from cosmos_outbox.changefeed.position import lsn_of
from cosmos_outbox.cli.leases.actions import Change, leases_in, refuse_if_owned
from cosmos_outbox.errors import ConfigurationError
from cosmos_outbox.ports import Document, LeaseStore, Listing, MonitoredContainer

_MARKS = (".info", ".lock")


async def rename_host(
    container: MonitoredContainer,
    *,
    processor_name: str,
    store: LeaseStore,
    expiration: timedelta,
    dry_run: bool = False,
) -> tuple[Change, ...]:
    """
    Move leases to the account's own name, each with its position: first create all, then delete the old ones.

    An interrupted call can be repeated; until then workers refuse to start. If two sets of workers wrote leases of one
    range, the earlier position counts: events sent since are sent again, and none is lost.

    Args:
        container: under the account's own name.

    Raises:
        UsageError: a worker owns a lease.
        ConfigurationError: a lease is damaged; or which of two positions is earlier cannot be decided.
        PreconditionFailed, Conflict: another program wrote a lease meanwhile.
    """

    def prefix_under(host: str) -> str:
        return lease_prefix(processor_name, replace(container, account_host=host))

    hosts = await hosts_of_leases(container, processor_name=processor_name, leases=store)
    old_prefixes = [prefix_under(host) for host in hosts if host != container.account_host]
    if not old_prefixes:
        return ()
    prefix = prefix_under(container.account_host)
    target = await store.list(f"{prefix}.")
    sources = [await store.list(f"{old}.") for old in old_prefixes]
    there = {lease.token: lease for lease in _leases(target)}
    wanted = dict(there)
    for source in sources:
        leases = _leases(source)
        refuse_if_owned((*leases, *there.values()), source.read_at, expiration)
        wanted = _merged(wanted, {lease.token: lease for lease in leases})
    changes = tuple(
        Change(lease=token, done=_done(there.get(token), lease)) for token, lease in wanted.items()
    )
    if dry_run:
        return changes
    marks = [one for source in sources for one in source.documents if one["id"].endswith(".info")]
    if marks:  # first: a worker that finds no mark creates leases
        await _create_mark(f"{prefix}.info", marks, target, store)
    for token, lease in wanted.items():
        await _put(_renamed(lease, f"{prefix}..{token}"), there.get(token), store)
    for source in sources:
        # The marks first: a repeated call finds the old name by its leases.
        for document in sorted(source.documents, key=lambda one: not one["id"].endswith(_MARKS)):
            routing = str(document.get("partitionKey", document["id"]))
            await store.delete(document["id"], routing, etag=document["_etag"])
    return changes


def _leases(listing: Listing) -> tuple[Lease, ...]:
    documents = tuple(document for document in listing.documents if not document["id"].endswith(_MARKS))
    return leases_in(Listing(documents=documents, read_at=listing.read_at))


def _merged(one: Mapping[str, Lease], other: Mapping[str, Lease]) -> dict[str, Lease]:
    """
    Return the leases of both, by token.

    Raises:
        ConfigurationError: leases of other ranges share keys, or which of two positions is earlier cannot be decided.
    """
    for mine in _only_in(one, other):
        for theirs in _only_in(other, one):
            if mine.range is None or theirs.range is None or mine.range.overlaps(theirs.range):
                raise _undecided(mine, theirs, "divide the keys differently")
    return {
        **one,
        **{token: _earlier(one[token], lease) if token in one else lease for token, lease in other.items()},
    }


def _only_in(one: Mapping[str, Lease], other: Mapping[str, Lease]) -> Iterable[Lease]:
    return [lease for token, lease in one.items() if token not in other]


def _earlier(one: Lease, other: Lease) -> Lease:
    first, second = _position(one), _position(other)
    if first == second:
        return one
    if not isinstance(first, int) or not isinstance(second, int):
        raise _undecided(one, other, "cannot be compared")
    return one if first < second else other


def _position(lease: Lease) -> int | str | None:
    """
    Return where a lease goes on: a number in the feed, or the text that the lease has instead.
    """
    if lease.continuation is None:
        start = lease.properties.get(START, BEGINNING)
        return -1 if start == BEGINNING else start
    number = lsn_of(lease.continuation)
    return lease.continuation if number is None else number


def _undecided(one: Lease, other: Lease, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"Leases {one.id!r} and {other.id!r} {why}, so it cannot be decided where to go on. While no worker runs, export "
        "both, delete one set, and run this again."
    )


def _done(there: Lease | None, wanted: Lease) -> str:
    if there is None:
        return "moved"
    return "kept" if there is wanted else "set back to the earlier position"


def _renamed(lease: Lease, lease_id: str) -> Lease:
    raw: Document = {**lease.raw, "id": lease_id}
    if "partitionKey" in raw:
        raw["partitionKey"] = lease_id
    return replace(lease, id=lease_id, raw=raw).with_changes(now=datetime.now(UTC), owner=None)


async def _put(lease: Lease, there: Lease | None, store: LeaseStore) -> None:
    if there is None:
        await store.create(lease.raw)
    elif _position(there) != _position(lease):
        await store.replace(lease.raw, etag=there.etag or "")


async def _create_mark(mark_id: str, marks: Iterable[Document], target: Listing, store: LeaseStore) -> None:
    if mark_id not in {document["id"] for document in target.documents}:
        by_id = await store.partitioned_by_id()
        chosen = [str(mark[START]) for mark in marks if START in mark]
        start = {START: chosen[0]} if chosen else {}  # where later leases begin
        routing = {} if by_id else {"partitionKey": mark_id}
        await store.create({"id": mark_id, **routing, **start})
