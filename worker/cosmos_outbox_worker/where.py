"""
Where: find out what became of the events or messages of one partition key, for `cosmos-outbox where` and the status page.

The answer names the last commit of the key, the events that are sent or wait, and the events that are parked and why. For a consumer, the
answer names the messages that it handled.

This module reads the documents of the key first, then the lease, then the changes after the lease's position, then the parked store. In
this order, an event that is committed meanwhile may be missing from the answer, but no waiting event is reported as sent. There is one
exception: an event that was committed just before may not be in the replica from which the change feed is read.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

from cosmos_outbox.adapters.cosmos.store import CosmosStore
from cosmos_outbox.changefeed.leases import Lease, readable, start_of
from cosmos_outbox.changefeed.read_ahead import lsn_of
from cosmos_outbox.domain.entities import EVENT_TYPE, INBOX_TYPE
from cosmos_outbox.errors import KeyNotParked, OutboxError
from cosmos_outbox.parking import ParkedEvent, ParkedKey, ParkedKeys, Scope
from cosmos_outbox.partition_key import PartitionKey, key_text
from cosmos_outbox.ports import Document
from cosmos_outbox.stored_documents import stored_event
from cosmos_outbox_worker.connection import Connection
from cosmos_outbox_worker.readable_times import readable_time

_MOST_DOCUMENTS, _MOST_PAGES = 100, 20
_LONGEST_SECONDS = 8.0
# Do not read the whole `data` of an event, which may be large.
_FIELDS = "c.id, c.type, c._ts, c.version, c.meta, c.data.action, c.messageId"


@dataclass(frozen=True, slots=True)
class KeyReport:
    """
    What `cosmos-outbox where` found out about a partition key.

    facts: the answer as a dictionary for JSON.
    said: the answer as sentences for people.
    rows: a row for each event or message, newest first.
    known: whether anything is stored for the key. If nothing is stored, `said` has one sentence, which says so.
    """

    facts: Mapping[str, Any]
    said: Sequence[str]
    rows: Sequence[Mapping[str, Any]] = ()
    known: bool = True


# A function that finds out what became of a key. Its arguments are the key, and the container if there are several.
Search = Callable[[str, str | None], Awaitable[KeyReport]]
# What waits for a key, as three values: the lease of the key's range (or None), the ids of the events after the lease's position, and
# whether more events may wait.
Behind = tuple[Lease | None, frozenset[str], bool]


def one_at_a_time(search: Search | None) -> Callable[[str, str | None], Awaitable[KeyReport | None]]:
    """
    Wrap the search for a key's events so that only one search runs at a time. This limits the request units that clients of
    the status page can use up.

    If the search fails or takes too long, the answer is a report with one sentence that says so.
    """
    room = asyncio.Semaphore()

    async def find(key: str, container: str | None) -> KeyReport | None:
        if search is None or not key:
            return None
        try:
            async with asyncio.timeout(_LONGEST_SECONDS), room:
                return await search(key, container)
        except (OutboxError, TimeoutError) as error:
            why = str(error) or f"it took longer than {_LONGEST_SECONDS:g} s."
            return KeyReport({}, (f"What became of {key!r} is not known: {why}",), known=False)

    return find


async def find_events(outbox: Connection, text: str) -> KeyReport:
    """
    Find out what became of the events of a partition key that an operator typed.

    Raises:
        UsageError: the text does not fit the partition key paths of the container.
        OutboxError: a container is missing, refuses or does not answer.
    """
    key = await outbox.key_of(text)
    name = key_text(key)
    stored = await _newest(outbox, key, "c.type != @type", {"@type": INBOX_TYPE})
    behind = await _behind(outbox, key)
    parked, records = None, dict[str, ParkedEvent]()
    if outbox.parked is not None:
        keys = await outbox.parked_keys()
        parked = await _find_parked(keys, name)
        records = await keys.find_events(name, [one["id"] for one in stored if one["type"] == EVENT_TYPE])
    return of_events(name, stored, behind, parked, records)


async def find_messages(
    outbox: Connection, consumer: str, source: str, text: str, waits: Sequence[str] = ()
) -> KeyReport:
    """
    Find the messages of a partition key that a consumer remembers in its inbox, and those that it parked.

    Errors are those of `find_events`.

    Args:
        outbox: the connection to the container in which the consumer commits.
        consumer: the name of the consumer.
        source: where its messages come from: `topic/subscription`, or the queue.
        text: the key as the operator typed it.
        waits: sentences about messages that wait, as the consumer process knows. Defaults to none.
    """
    values, key = {"@type": INBOX_TYPE, "@consumer": consumer}, await outbox.key_of(text)
    text = key_text(key)
    stored = await _newest(outbox, key, "c.type = @type AND c.consumer = @consumer", values)
    parked = None
    if outbox.parked is not None:
        scope = Scope(processor=consumer, container=source)
        parked = await _find_parked(ParkedKeys(await outbox.parked_store(), scope=scope), text)
    rows = [{"message": one["messageId"], "handled": _at(one)} for one in stored]
    said = f"{consumer} remembers no message of it: it handled none, or their time to live is over."
    if rows:
        said = f"{consumer} handled {rows[0]['message']!r} last, at {rows[0]['handled']}."
    facts = {"key": text, "consumer": consumer, "parked": _facts_of(parked), "waits": waits, "messages": rows}
    known = bool(stored or parked or waits)
    return _report(facts, (said, _state_of_key(parked, text, " --consumer MODULE:NAME"), *waits), rows, known)


def of_events(
    key: str,
    stored: Sequence[Document],
    behind: Behind,
    parked: ParkedKey | None,
    records: Mapping[str, ParkedEvent],
) -> KeyReport:
    """
    Return the report about a key from the documents, the lease and the parked events that were read.

    Args:
        key: the key.
        stored: the key's entities and events in the data container.
        behind: the lease of the key's range, and the key's events after the lease's position, which still wait.
        parked: the parked key; None if the key is not parked.
        records: the documents of the events in the parked store, by event id.
    """
    lease, left, more = behind
    waits, unseen = left - records.keys(), "unknown" if lease is None or more else "sent"

    def row(one: Document) -> dict[str, Any]:
        record = records.get(one["id"])
        state = record.status.value if record else "waits" if one["id"] in waits else unseen
        shown = {"event": one["id"], "action": one.get("action"), "of": _of(one)}
        return shown | {"committed": _at(one), "state": state}

    events = sorted((one for one in stored if one["type"] == EVENT_TYPE), key=_order, reverse=True)
    rows = [row(one) for one in events]
    last = [one for one in events if _commit(one) == _commit(events[0])]
    ids, of = [one["id"] for one in reversed(last)], sorted({_of(one) for one in last})
    commit = {"at": _at(last[0]), "events": ids, "of": of} if last else None
    sent = next((one for one in rows if one["state"] == "sent"), None)
    entities = [f"{one['type']} {one['id']}, version {one['version']}" for one in stored if "version" in one]
    facts: dict[str, Any] = {"key": key, "last_commit": commit, "entities": entities, "sent_up_to": sent}
    facts |= {"waiting": lease and len(waits), "more_may_wait": more, "parked": _facts_of(parked)}
    facts |= {"range": lease and lease.token, "owner": lease and lease.owner, "events": rows}
    facts["position"] = lease and lsn_of(lease.continuation)
    said = [
        "No event of it is stored any more, if one was: it outlived its time to live, or was deleted once sent."
    ]
    if last:
        said = [f"Last commit at {_at(last[0])}: {', '.join(ids)}; of {'; '.join(of)}."]
    if lease is None:
        said.append("Its range has no lease, so what is sent is not known.")
    else:
        at = f"position {lsn_of(lease.continuation) or 'start'} of range {lease.token} ({lease.owner or 'no owner'})"
        number = f"{len(waits)}{' or more' * more} waiting" if waits or more else "nothing waits"
        up_to = f"Sent up to event {sent['event']!r}" if sent else "No stored event is known to be sent"
        said.append(f"{up_to}; behind {at}: {number}.")
    said += [_state_of_key(parked, key), *([f"Stored: {'; '.join(entities)}."] if entities else [])]
    return _report(facts, said, rows, bool(stored or parked or waits))


def _report(facts: Mapping[str, Any], said: Sequence[str], rows: Any, known: bool) -> KeyReport:
    nothing = f"Nothing is stored of {facts['key']!r}: it was never committed here, or all of it was deleted."
    return KeyReport(facts, said if known else (nothing,), rows, known)


async def _newest(
    outbox: Connection, key: PartitionKey, where: str, values: Mapping[str, Any]
) -> Sequence[Document]:
    """Return the newest documents of a key. The query sorts by `_ts`, the time of the last write, which every container indexes."""
    sql = f"SELECT TOP {_MOST_DOCUMENTS} {_FIELDS} FROM c WHERE {where} ORDER BY c._ts DESC"  # noqa: S608 - texts of ours
    page = CosmosStore(outbox.data).query(
        sql, values, partition_key=key, page_size=_MOST_DOCUMENTS, continuation=None
    )
    return (await page).documents


async def _behind(outbox: Connection, key: PartitionKey) -> Behind:
    container, place = await outbox.feed.describe(), await outbox.feed.range_of(key)
    leases, _ = readable((await outbox.leases.list(f"{await outbox.prefix()}..")).documents)
    covering = [one for one in leases if one.range is not None and one.range.overlaps(place)]
    if not covering:
        return None, frozenset(), False
    # When Cosmos DB splits a range, two leases may cover the key for a while. Take the lease with the lower position, so that no waiting
    # event counts as sent.
    lease = min(covering, key=lambda one: lsn_of(one.continuation) or 0)
    read = partial(outbox.feed.read_page, place, container_rid=container.container_rid, start=start_of(lease))
    ids, position = set[str](), lease.continuation
    for _ in range(_MOST_PAGES):
        page = await read(continuation=position, max_items=_MOST_DOCUMENTS)
        events = [stored_event(one, container.key_paths) for one in page.documents]
        ids |= {one.id for one in events if one is not None and one.partition_key == key_text(key)}
        if not page.documents and not page.skipped:
            return lease, frozenset(ids), False
        position = page.continuation
    return lease, frozenset(ids), True


async def _find_parked(keys: ParkedKeys, name: str) -> ParkedKey | None:
    with suppress(KeyNotParked):
        return await keys.find(name)
    return None


def _facts_of(parked: ParkedKey | None) -> Mapping[str, Any] | None:
    if parked is None:
        return None
    of, failed = {"since": parked.parked_at, "held": parked.held, "state": parked.state.value}, parked.failure
    return of | ({"event": failed.event_id, "reason": failed.reason, "error": failed.error} if failed else {})


def _state_of_key(parked: ParkedKey | None, key: str, option: str = "") -> str:
    if parked is None:
        return "It is not parked."
    failed = parked.failure
    why = f"{failed.reason}: {failed.error}" if failed else "it waits for a release"
    first = f", {parked.held - 1} of them behind {failed.event_id!r}" if failed and failed.event_id else ""
    show = f"`cosmos-outbox parked show {shlex.quote(key)}{option}` has them"
    return f"Parked since {readable_time(parked.parked_at)}: {why.rstrip('.')}. Held: {parked.held}{first}; {show}."


def _meta(event: Document) -> Mapping[str, Any]:
    # Events of another program, such as Microsoft's .NET sample, may have no `meta`.
    return event.get("meta") or {}


def _order(event: Document) -> tuple[int, ...]:
    return event["_ts"], _meta(event).get("entityVersion") or 0, _meta(event).get("sequence") or 0


def _commit(event: Document) -> str:
    return str(_meta(event).get("commitId") or event["id"])


def _of(event: Document) -> str:
    kind, name, version = map(_meta(event).get, ("entityType", "entityId", "entityVersion"))
    return f"{kind or 'entity'} {name or 'unknown'}, version {version or 'unknown'}"


def _at(document: Document) -> str:
    return f"{datetime.fromtimestamp(document['_ts'], UTC):%Y-%m-%dT%H:%M:%SZ}"
