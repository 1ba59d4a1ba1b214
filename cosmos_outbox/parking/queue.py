"""Queue: finding a parked key, reading its events from the beginning of its queue, and taking them off."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from cosmos_outbox.errors import KeyNotParked, NotFound, ParkingError, PreconditionFailed
from cosmos_outbox.parking.documents import (
    KEY_ID,
    NO_ETAG,
    EventStatus,
    ParkedEvent,
    ParkedKey,
    Unreadable,
    event_of,
    key_of,
    readable_events,
)
from cosmos_outbox.ports import MAX_BATCH_OPERATIONS, ParkedStore, Write, WriteKind

_CHUNK = MAX_BATCH_OPERATIONS - 1  # events that one batch takes off the queue, beside the key's document


async def key_in(store: ParkedStore, partition: str, *, prove: bool = True) -> ParkedKey | None:
    """
    Return the parked key of a partition as it is, or None if it is certain that the key is not parked.

    Without `prove`, None says that none was found: the caller's own write shows whether there is one.

    Raises:
        PreconditionFailed: there is one, but the read was behind; read again.
        ParkingError: its document cannot be read.
    """
    try:
        return key_of(await store.read(KEY_ID, partition))
    except NotFound:
        # A read may be behind, a write is not: a deletion that finds nothing proves that the key is not parked.
        with suppress(NotFound):
            if prove:
                await store.commit(partition, [Write(kind=WriteKind.DELETE, id=KEY_ID, etag=NO_ETAG)])
    return None


async def parked_key(store: ParkedStore, partition: str, partition_key: str) -> ParkedKey:
    """
    Return a parked key as it is.

    Raises:
        KeyNotParked: it is certain that it is not parked.
        PreconditionFailed, ParkingError: as `key_in`.
    """
    if (key := await key_in(store, partition)) is None:
        raise KeyNotParked(f"Partition key {partition_key!r} is not parked.")
    return key


async def queue_of(store: ParkedStore, key: ParkedKey) -> Sequence[ParkedEvent]:
    """
    Return the beginning of a key's queue in order, dropped events too; as many as one batch can take off.

    Raises:
        PreconditionFailed: the read is behind; read again.
        ParkingError: the first event cannot be read.
    """
    if key.first == key.next:
        return ()
    documents = await store.queue(
        key.partition, epoch=key.epoch, first=key.first, limit=min(_CHUNK, key.next - key.first)
    )
    positions = [document.get("position") for document in documents]
    if not positions or positions != list(range(key.first, key.first + len(positions))):
        # The read may be behind the key that was read before it: an event that it lacks would be overtaken.
        if unreadable := await _unreadable_event(store, key):
            raise unreadable
        raise PreconditionFailed("The list of held events is behind; read it again.")
    events = []
    for document in documents:
        try:
            events.append(event_of(document))
        except ParkingError:
            if not events:
                raise
            break  # those before it can be sent
    return events


async def first_held(store: ParkedStore, key: ParkedKey) -> ParkedEvent | None:
    """
    Return the event that a release would send first, or None if the key holds none.

    Raises:
        PreconditionFailed, ParkingError: as `queue_of`.
    """
    first = key.first
    while first < key.next:
        chunk = await queue_of(store, replace(key, first=first))
        for event in chunk:
            if event.status is EventStatus.HELD:
                return event
        first += len(chunk)
    return None


async def _unreadable_event(store: ParkedStore, key: ParkedKey) -> ParkingError | None:
    """
    Return why an event of the queue cannot be read, so that its position is not known; None if all can be.
    """
    after = ""
    while documents := await store.page(key.partition, after=after):
        after = str(documents[-1]["id"])
        for event in readable_events(one for one in documents if one.get("epoch", key.epoch) == key.epoch):
            if isinstance(event, Unreadable):
                return event.error
    return None
