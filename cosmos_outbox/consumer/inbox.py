"""
The inbox: the documents that say which messages took effect, written in the batch of the effect.

    inbox.<consumer>.<message id>                    one for each message, for messages of any producer; deleted by its time to live
    inbox.<consumer>.<entity type>.<id>.<life>       the watermark: how far an entity's events took effect; one for each entity

A watermark needs no history because events of an entity arrive in order: one at or before it was here before. It also shows
events that never arrived, for each names the one before it. An entity that was deleted and created again under its id has another
life, whose versions begin anew, and so a watermark of its own.
"""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from cosmos_outbox.domain.identifiers import check_id
from cosmos_outbox.errors import MessageUnreadable, NotFound, UsageError
from cosmos_outbox.messages import Message
from cosmos_outbox.partition_key import KeyPaths, PartitionKey
from cosmos_outbox.write.unit_of_work import UnitOfWork

DEFAULT_RECORD_TTL = timedelta(days=7)
_LONGEST_NAME = 200


class Inbox(StrEnum):
    """
    How a consumer remembers what took effect.
    """

    # A watermark where a message says its entity, the entity's life and its place, else a record
    AUTO = "auto"
    RECORDS = "records"  # a document for each message
    WATERMARK = "watermark"  # a document for each entity; a message that does not say its place is an error


class Verdict(StrEnum):
    """
    What the inbox knows of a message.
    """

    NEW = "new"
    HANDLED = "handled"
    GAP = "gap"  # it is new, and events before it are missing


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """
    The place of an event in the history of its entity: the version that its commit made, and its number in the commit.
    """

    version: int
    sequence: int

    def __str__(self) -> str:
        return f"version {self.version}, event {self.sequence}"


@dataclass(slots=True, kw_only=True)
class Entry:
    """
    The inbox's document of one message: read, then written with the effect.

    changes: what the effect changes of it.
    verdict: what it says before.
    expected: up to where events took effect, if there is a gap.
    """

    document: dict[str, Any]
    changes: dict[str, Any]
    verdict: Verdict
    expected: Position | None = None

    def add_to(self, uow: UnitOfWork) -> None:
        """
        Have the unit of work write that the message took effect.
        """
        self.document.update(self.changes)
        uow.save(self.document)


Known = dict[str, dict[str, Any]]  # watermarks by id, as this process wrote them last


async def entry_for(
    message: Message,
    uow: UnitOfWork,
    *,
    consumer: str,
    inbox: Inbox,
    key: PartitionKey,
    paths: KeyPaths,
    ttl: timedelta,
    known: Known,
    now: datetime,
) -> Entry:
    """
    Return what the inbox says of a message.

    Args:
        message: that was received.
        uow: reads and, later, writes the document.
        consumer: its name; consumers know nothing of each other.
        inbox: how it remembers.
        key: the partition key of the effect.
        paths: of the container.
        ttl: of a record.
        known: watermarks that need not be read, since this process holds the session and wrote them.
        now: for the document.
    """
    changes: dict[str, Any] = {"messageId": message.message_id, "handledAt": now.isoformat()}
    entity, life, position = message.text("entity-id"), message.text("entity-life"), position_of(message)
    if inbox is Inbox.RECORDS or (inbox is Inbox.AUTO and None in (entity, life, position)):
        record_id = _inbox_id(consumer, message.message_id)
        found = await _read(uow, record_id, key)
        fixed = {"id": record_id, **paths.fields(key), "type": "inboxRecord", "consumer": consumer}
        return Entry(
            document={**fixed, "ttl": int(ttl.total_seconds())},
            changes=changes,
            verdict=Verdict.NEW if found is None else Verdict.HANDLED,
        )
    if entity is None or position is None:
        raise MessageUnreadable(
            f"Message {message.message_id!r} does not say its entity and version, so no watermark can be kept of it: use "
            'inbox="records", or "auto".'
        )
    entity_type = message.text("entity-type") or ""
    watermark_id = _inbox_id(consumer, entity_type, entity, *filter(None, [life]))
    found = dict(known[watermark_id]) if watermark_id in known else await _read(uow, watermark_id, key)
    previous, reached = previous_of(message), None
    changes |= {"version": position.version, "sequence": position.sequence}
    if found is None:
        fixed = {"id": watermark_id, **paths.fields(key), "type": "inboxWatermark", "consumer": consumer}
        found = {**fixed, "entityType": entity_type, "entityId": entity, "ttl": -1}
    else:
        reached = Position(found["version"], found["sequence"])
    found.setdefault("_etag", None)  # where the commit leaves the new one
    if reached is not None and position <= reached:
        return Entry(document=found, changes=changes, verdict=Verdict.HANDLED)
    if reached is not None and previous is not None and previous > reached:
        return Entry(document=found, changes=changes, verdict=Verdict.GAP, expected=reached)
    return Entry(document=found, changes=changes, verdict=Verdict.NEW)


def position_of(message: Message) -> Position | None:
    """
    Return the place of the event that a message carries; None if it does not say.
    """
    return _position(message, "entity-version", "sequence")


def previous_of(message: Message) -> Position | None:
    """
    Return the place of the entity's event before; `Position(0, 0)` if there was none, None if the message does not say.
    """
    return _position(message, "previous-version", "previous-sequence")


def _position(message: Message, version_name: str, sequence_name: str) -> Position | None:
    version, sequence = message.number(version_name), message.number(sequence_name)
    return None if version is None or sequence is None else Position(version, sequence)


@functools.lru_cache(maxsize=1024)
def _inbox_id(*names: str) -> str:
    return ".".join(["inbox", *map(_short, names)])


def _short(name: str) -> str:
    # Two names with dots could form the same id
    try:
        check_id(name)
    except UsageError:
        usable = False
    else:
        usable = len(name.encode()) <= _LONGEST_NAME and "." not in name
    return name if usable else f"sha256-{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()}"


async def _read(uow: UnitOfWork, document_id: str, key: PartitionKey) -> dict[str, Any] | None:
    documents = uow.documents()
    try:
        found = await documents.read(document_id, partition_key=key)
    except NotFound:
        return None
    found["_etag"] = documents.etag_of(found)  # a handler may have the unit of work forget what was read
    return found
