"""
Releases with obstacles: partly accepted batches, records of earlier parkings, stale reads, and killed operators.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal

import pytest

from cosmos_outbox.adapters.memory.broker import Fault
from cosmos_outbox.adapters.memory.parked import MemoryParked
from cosmos_outbox.errors import (
    BrokerUnavailable,
    ParkingError,
    ReleaseTakenOver,
    StoreUnavailable,
    UsageError,
)
from cosmos_outbox.parking import ParkedKeys
from cosmos_outbox.parking.park import key_in
from cosmos_outbox.parking.parked_documents import NO_ETAG, KeyState, parked_id
from cosmos_outbox.ports import CommitResult, Write, WriteKind
from cosmos_outbox.relay.released_events import resending
from cosmos_outbox.retries import Backoff
from cosmos_outbox.stored_documents import Document
from tests.support.event_documents import event
from tests.unit.parking.test_parked_documents import tampered
from tests.unit.parking.test_parking import Counted, parked, place

# A release


@pytest.mark.parametrize("batch_size", [1, 2, 3, 100])
@pytest.mark.parametrize("rejected", ["b/2", "b/4", "b/5", "b/7"])
async def test_a_release_names_the_rejected_event_of_a_partly_accepted_batch(
    rejected: str, batch_size: int
) -> None:
    world = await parked(later=5)
    world.reject(rejected)
    operator = ParkedKeys(world.store, resending(world.broker.publisher(lanes=1, batch_size=batch_size)))
    released = await operator.release("b")
    sent = [f"b/{number}" for number in range(2, int(rejected[2:]))]
    assert (len(sent), rejected) == (released.sent, released.failure and released.failure.event_id)
    assert ["b/1", *sent] == world.ids
    assert [rejected] == (await world.held("b"))[:1]
    assert 0 == world.broker.duplicates


async def test_a_release_that_makes_progress_goes_on_despite_failures() -> None:
    """The topic fails four times between any two batches. Only five failures in a row end a release."""
    world = await parked(later=4)
    world.reject()
    world.broker.faults.extend([*4 * (Fault.LOST,), None] * 5)
    operator = ParkedKeys(world.store, resending(world.broker.publisher(lanes=1, batch_size=1)))
    assert 5 == (await operator.release("b")).sent
    world = await parked(later=4)
    world.reject("b/6")  # a refused event makes the release send events one by one
    world.broker.faults.extend([None, *[*4 * (Fault.LOST,), None] * 4])
    assert 4 == (await world.operator.release("b")).sent
    world = await parked()
    world.broker.faults.extend(5 * (Fault.LOST,))
    with pytest.raises(BrokerUnavailable):
        await world.operator.release("b")


async def test_records_of_an_earlier_parking_do_not_disturb_a_later_release() -> None:
    world = await parked()
    await world.operator.drop("b", "b/2", reason="of no use")
    await world.operator.release("b", edited={"state": "mended"}, event_id="b/3")
    world.reject("b/5")
    await world.relay(world.page(event("b", 5), event("b", 6)))
    world.reject()
    assert 2 == (await world.operator.release("b")).sent
    assert ["b/1", "b/3", "b/4", "b/5", "b/6"] == world.ids


class Behind(Counted):
    """A parked store whose first `times` queries do not return the document `lacking`."""

    lacking, times = "", 0

    async def queue(self, partition_key: str, *, epoch: str, first: int, limit: int) -> tuple[Document, ...]:
        documents = await super().queue(partition_key, epoch=epoch, first=first, limit=limit)
        self.times -= 1
        return tuple(one for one in documents if self.times < 0 or one["id"] != self.lacking)


async def test_a_release_rereads_a_stale_list_of_events_although_an_old_record_is_unreadable() -> None:
    world = await parked(later=0)
    await world.operator.drop("b", "b/2", reason="of no use")
    await world.operator.release("b")
    world.reject("b/3")
    await world.relay(world.page(event("b", 3), event("b", 4)))
    world.reject()
    await tampered(world.store, parked_id("b/2"), place("b"), lambda document: document.pop("status"))
    store = Behind(world.store)
    store.lacking, store.times = parked_id("b/4"), 3
    released = await ParkedKeys(store, resending(world.broker.publisher(lanes=1))).release("b")
    assert (2, ["b/1", "b/3", "b/4"]) == (released.sent, world.ids)
    assert 0 > store.times


@pytest.mark.parametrize("lacks", ["b/2", "b/3"])
async def test_a_release_waits_for_an_event_that_its_query_does_not_return_yet(lacks: str) -> None:
    world = await parked()
    world.reject()
    store = Behind(world.store)
    store.lacking, store.times = parked_id(lacks), 1
    await ParkedKeys(store, resending(world.broker.publisher())).release("b")
    assert ["b/1", "b/2", "b/3"] == world.ids[:3]


async def test_a_release_ends_at_a_held_event_that_cannot_be_read() -> None:
    """The error names the event, and no later event is sent."""
    world = await parked(later=2)
    await tampered(world.store, parked_id("b/3"), place("b"), lambda document: document.pop("status"))
    world.reject()
    with pytest.raises(ParkingError, match=parked_id("b/3")):
        await world.operator.release("b")
    assert ["b/1", "b/2"] == world.ids
    (key,) = await world.operator.list()
    assert (KeyState.PARKED, None) == (key.state, key.claim)


async def test_an_event_that_is_edited_twice_keeps_its_original_payload() -> None:
    world = await parked(later=0)
    world.broker.rejects = lambda message: b"right" not in message.body
    first = await world.operator.release("b", edited={"state": "wrong"}, event_id="b/2")
    assert not first.handed_back
    await world.operator.release("b", edited={"state": "right"}, event_id="b/2")
    record = (await world.store.read(parked_id("b/2"), place("b")))["original"]
    assert event("b", 2)["data"] == record


async def test_a_release_that_a_later_release_replaced_does_not_end_the_parking() -> None:
    world = await parked(later=0)
    world.reject()

    class TakenOver(Counted):
        """
        A store in which a second release begins, and dies, just before the first release ends the parking.
        """

        async def commit(self, partition_key: str, writes: Sequence[Write]) -> CommitResult:
            if writes[0].kind is WriteKind.DELETE and writes[0].etag != NO_ETAG:
                key = await key_in(world.store, place("b"))
                assert key is not None
                await world.store.commit(place("b"), [replace(key, claim="another").write()])
            return await super().commit(partition_key, writes)

    with pytest.raises(ReleaseTakenOver):
        await ParkedKeys(TakenOver(world.store), resending(world.broker.publisher(lanes=1))).release("b")
    assert ["another"] == [key.claim for key in await world.operator.list()]
    assert (await world.operator.release("b")).handed_back


async def test_a_release_finds_out_after_a_lost_answer_that_it_ended_the_parking() -> None:
    world = await parked(later=0)
    world.reject()
    lost: list[str] = []

    class AnswerLost(MemoryParked):
        async def commit(self, partition_key: str, writes: Sequence[Write]) -> CommitResult:
            result = await super().commit(partition_key, writes)
            if partition_key == place("b") and writes[0].kind is WriteKind.DELETE and not lost:
                lost.append(partition_key)
                world.reject("b/3")
                await world.relay(world.page(event("b", 3)))
                raise StoreUnavailable
            return result

    store = AnswerLost()
    vars(store).update(vars(world.store))
    released = await ParkedKeys(store, resending(world.broker.publisher(lanes=1))).release("b")
    assert released.handed_back
    assert ["b/3"] == await world.held("b")


# Tests of payloads that an operator edits in a release. SLOW makes a release wait for 8 s after a failed send.


SLOW = Backoff(initial_seconds=8, maximum_seconds=8)


async def test_an_edited_payload_is_only_accepted_for_the_first_held_event() -> None:
    world = await parked(later=198)
    world.reject()
    world.broker.latency_seconds = 1.0
    other = ParkedKeys(world.counted, resending(world.broker.publisher(lanes=1), backoff=SLOW))
    under_way = asyncio.create_task(other.release("b"))
    first = await world.operator.first_held("b")
    assert first is not None
    await asyncio.sleep(2.5)
    with pytest.raises(UsageError, match="pass its event_id"):
        await world.operator.release("b", edited={"mended": True})
    with pytest.raises(UsageError, match="is 'b/101' now, not 'b/2'"):
        await world.operator.release("b", edited={**first.data, "mended": True}, event_id=first.event_id)
    assert 199 == (await under_way).sent
    assert [] == [message.message_id for message in world.broker.accepted if b"mended" in message.body]


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        {"deep": float("inf")},
        {1},
        (1,),
        Decimal(1),
        "\ud800",
        {1: 2},
    ],
    ids=repr,
)
async def test_an_edited_payload_that_json_would_change_is_refused(value: object) -> None:
    world = await parked()
    with pytest.raises(UsageError, match="no JSON: write it as text"):
        await world.operator.release("b", edited={"state": value}, event_id="b/2")
    assert [] == [event for event in (await world.operator.show("b")).held if event.original is not None]


async def test_an_edited_payload_is_sent_with_exactly_its_json_values() -> None:
    world = await parked(later=0)
    world.broker.rejects = lambda message: False
    edited = {"all": [None, True, -1, 2**53 + 1, -(10**18) - 1, 1.5, 1.0, 1e300, "é", {"deep": []}]}
    assert (await world.operator.release("b", edited=edited, event_id="b/2")).handed_back
    assert edited == json.loads(world.broker.accepted[-1].body)


async def test_an_empty_partition_key_cannot_be_parked() -> None:
    world = await parked()
    with pytest.raises(UsageError, match="An empty text is no partition key"):
        await world.operator.park("", reason="its variable was not set")
    assert ["b"] == [key.partition_key for key in await world.operator.list()]


async def test_a_running_release_does_not_send_an_event_that_is_dropped() -> None:
    world = await parked(later=90)
    world.reject("b/90")
    world.broker.latency_seconds = 1.0
    under_way = asyncio.create_task(world.operator.release("b"))
    await asyncio.sleep(7)
    await world.operator.drop("b", "b/50", reason="must never be sent")
    sent = len(world.ids)
    with pytest.raises(ReleaseTakenOver):
        await under_way
    assert len(world.ids) <= sent + 1
    assert "b/50" not in world.ids
