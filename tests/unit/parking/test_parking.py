"""
Parking: which events the relay holds, what an operator releases, and how the relay and an operator work on one key at the same time.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from cosmos_outbox.adapters.memory.broker import MemoryBroker
from cosmos_outbox.adapters.memory.parked import MemoryParked
from cosmos_outbox.errors import (
    AccessDenied,
    KeyNotParked,
    NotFound,
    ParkingFull,
    ReleaseTakenOver,
    StoreUnavailable,
    UsageError,
)
from cosmos_outbox.parking import ParkedKeys, Parking, Scope
from cosmos_outbox.parking.parked_documents import KEY_ID, EventStatus, KeyState, parked_id
from cosmos_outbox.ports import ChangeBatch, Notes, Write, WriteKind
from cosmos_outbox.records import (
    EventRejected,
    EventsHeld,
    KeyParked,
    MessagesPublished,
    ParkingFailed,
    Record,
)
from cosmos_outbox.relay import Relay
from cosmos_outbox.relay.released_events import resending
from cosmos_outbox.retries import Backoff
from cosmos_outbox.stored_documents import Document
from tests.support.event_documents import batch, event
from tests.support.parked_stores import Passing

ResultT = TypeVar("ResultT")


class Counted(Passing):
    """
    A parked store that counts its requests and can make them fail. It calls `before` and `after` around each request, with the
    operation and the partition key of the events, and raises the error that they return.
    """

    def __init__(self, store: MemoryParked) -> None:
        super().__init__(store)
        self.requests = 0
        self.commits = 0
        self.before: Callable[[str, str], Exception | None] = lambda operation, key: None
        self.after: Callable[[str, str], Exception | None] = lambda operation, key: None
        self.latency_seconds = 0.0

    async def call(
        self, operation: str, partition_key: str, request: Callable[[], Awaitable[ResultT]]
    ) -> ResultT:
        key = json.loads(partition_key)[2] if partition_key.startswith("[") else partition_key
        self.requests += 1
        self.commits += operation == "commit"
        await asyncio.sleep(self.latency_seconds)
        if (error := self.before(operation, key)) is not None:
            raise error
        answer = await request()
        if (error := self.after(operation, key)) is not None:
            raise error
        return answer


def place(partition_key: str) -> str:
    """
    Return the partition of the parked store that has the documents of a key, for relays that name no processor.
    """
    return Scope().partition_of(partition_key)


class World:
    """A topic, a parked store, a relay and an operator."""

    def __init__(self, *, max_keys: int = 100, max_events: int = 1000, batch_size: int = 3) -> None:
        self.broker = MemoryBroker(clock=lambda: asyncio.get_running_loop().time())
        self.store = MemoryParked()
        self.told: list[Record] = []
        self.notes = Notes()  # the names of parked keys in the lease, for each owner
        self.limits, self.batch_size = (max_keys, max_events), batch_size
        self.counted = Counted(self.store)
        self.relay = self.worker()
        self.operator = ParkedKeys(self.counted, resending(self.broker.publisher(lanes=1)))

    def page(self, *documents: Document, tenure: int = 0) -> ChangeBatch:
        """Return a page as the owner of a lease gets it, with the lease's notes, which name the parked keys."""
        return batch(*documents, tenure=tenure, notes=self.notes)

    def worker(self) -> Relay:
        return Relay(
            self.broker.publisher(lanes=2, batch_size=self.batch_size),
            parking=Parking(self.counted, max_keys=self.limits[0], max_events=self.limits[1]),
            backoff=Backoff(initial_seconds=0.1, maximum_seconds=1),
            notify=self.told.append,
        )

    def reject(self, *event_ids: str) -> None:
        self.broker.rejects = lambda message: (
            message.message_id in event_ids and b"mended" not in message.body
        )

    @property
    def ids(self) -> list[str]:
        return [message.message_id for message in self.broker.accepted]

    async def held(self, key: str) -> list[str]:
        return [parked.event_id for parked in (await self.operator.show(key)).held]

    def told_of(self, kind: type[Record]) -> list[Record]:
        return [record for record in self.told if isinstance(record, kind)]


async def parked(*, later: int = 2, **limits: int) -> World:
    """
    Return a world that holds event 2 of key "b", which the topic rejected, and the next `later` events of the key.
    """
    world = World(**limits)
    world.reject("b/2")
    await world.relay(world.page(*(event("b", number) for number in range(1, 3 + later))))
    return world


async def test_a_rejected_event_parks_only_its_own_key() -> None:
    world = World()
    world.reject("b/2")
    await world.relay(world.page(*(event(key, number) for number in (1, 2, 3) for key in ("a", "b", "c"))))
    assert ["a/1", "a/2", "a/3", "b/1", "c/1", "c/2", "c/3"] == sorted(world.ids)
    assert ["b/2", "b/3"] == await world.held("b")


async def test_documents_of_the_parked_store_have_no_time_to_live() -> None:
    world = await parked()
    assert all("ttl" not in document for document in world.store.documents())


async def test_events_of_keys_that_are_not_parked_cost_no_request_to_the_parked_store() -> None:
    world = World()
    await world.relay(world.page(event("a", 1)))
    first = world.counted.requests
    for number in range(2, 30):
        await world.relay(world.page(event("a", number), event(f"k{number}", 1)))
    assert first == world.counted.requests


async def test_nothing_is_sent_while_the_parked_keys_cannot_be_read() -> None:
    world = World()
    world.counted.before = lambda operation, key: AccessDenied()
    with pytest.raises(AccessDenied):
        await world.relay(world.page(event("a", 1)))
    assert [] == world.ids


async def test_a_page_that_is_handled_again_holds_no_event_twice() -> None:
    world = await parked()
    for worker in (world.relay, world.worker()):
        await worker(world.page(*(event("b", number) for number in range(1, 5)), tenure=7))
    assert ["b/2", "b/3", "b/4"] == await world.held("b")


@pytest.mark.parametrize(("count", "size"), [(351, 0), (20, 200_000)])
async def test_events_that_do_not_fit_one_batch_are_held_in_several_batches(count: int, size: int) -> None:
    world = World()
    world.reject("b/0")
    await world.relay(world.page(*(event("b", number, size=size) for number in range(count))))
    assert [f"b/{number}" for number in range(count)] == await world.held("b")
    assert count == (await world.operator.list())[0].held


async def test_a_release_sends_held_events_in_order() -> None:
    """After the release, the key is no longer parked, and the parked store is empty."""
    world = await parked(later=120)
    world.reject()
    released = await world.operator.release("b")
    assert (121, True, ()) == (released.sent, released.handed_back, world.store.documents())
    await world.relay(world.page(event("b", 123)))
    await world.relay(world.page(event("b", 124)))
    assert [f"b/{number}" for number in range(1, 125)] == world.ids
    assert () == await world.operator.list()


async def test_the_relay_reports_that_it_sends_events_of_a_released_key_again() -> None:
    world = await parked()
    world.reject()
    await world.operator.release("b")
    await world.relay(world.page(event("b", 5)))
    assert (
        EventsHeld(lease="0", partition_key="b", outcome="resumed", events=1) == world.told_of(EventsHeld)[-1]
    )


async def test_the_relay_reports_parked_keys_and_held_events() -> None:
    world = await parked(later=2)
    told = [record for record in world.told if not isinstance(record, MessagesPublished | EventRejected)]
    assert [("b", "b/2", "MessageRejected")] == [
        (record.partition_key, record.event_id, record.reason)
        for record in told
        if isinstance(record, KeyParked)
    ]
    assert [EventsHeld(lease="0", partition_key="b", outcome="held", events=2)] == world.told_of(EventsHeld)


async def test_an_edited_payload_is_sent_under_the_id_of_the_event() -> None:
    """The parked store keeps the original payload."""
    world = await parked()
    released = await world.operator.release(
        "b", edited={"action": "Renamed", "state": "mended"}, event_id="b/2"
    )
    assert released.handed_back
    assert ["b/1", "b/2", "b/3", "b/4"] == world.ids
    assert b'{"action":"Renamed","state":"mended"}' == world.broker.accepted[1].body
    record = next(document for document in world.store.documents() if document["id"] == parked_id("b/2"))
    assert ("sent", 2, "mended") == (
        record["status"],
        record["original"]["number"],
        record["event"]["data"]["state"],
    )


async def test_a_release_stops_at_the_next_event_that_is_rejected() -> None:
    world = await parked(later=5)
    world.reject("b/4", "b/6")
    released = await world.operator.release("b")
    assert 2 == released.sent
    assert released.failure is not None
    assert ("b/4", 1, False) == (
        released.failure.event_id,
        released.failure.attempts,
        released.handed_back,
    )
    again = await world.operator.release("b")
    assert (0, 2) == (again.sent, again.failure and again.failure.attempts)
    assert ["b/4", "b/5", "b/6", "b/7"] == await world.held("b")
    assert ["b/1", "b/2", "b/3"] == world.ids


async def test_a_release_does_not_send_a_dropped_event() -> None:
    """The test also checks that the parked store keeps a record of the dropped event."""
    world = await parked()
    dropped = await world.operator.drop("b", "b/2", reason="malformed since 2.3")
    assert EventStatus.DROPPED is dropped.status
    assert ["b/3", "b/4"] == await world.held("b")
    released = await world.operator.release("b")
    assert 2 == released.sent
    assert ["b/1", "b/3", "b/4"] == world.ids
    record = next(document for document in world.store.documents() if document["id"] == parked_id("b/2"))
    assert ("dropped", "malformed since 2.3") == (record["status"], record["note"])


async def test_a_second_drop_of_an_event_only_adds_its_reason_and_operator() -> None:
    world = await parked()
    first = await world.operator.drop("b", "b/2", reason="one", by="Ada")
    again = await world.operator.drop("b", "b/2", reason="two", by="Grace")
    assert (first.note, first.closed_at) == (again.note, again.closed_at)
    assert 2 == (await world.operator.list())[0].held
    assert [("Ada", "one"), ("Grace", "two")] == [(one.by, one.reason) for one in again.decisions]
    shown = await world.operator.show("b")
    assert again.decisions == next(one for one in shown.records if one.event_id == "b/2").decisions


@pytest.mark.parametrize("resolution", ["dropped", "purged", "edited"])
async def test_a_dropped_or_edited_event_is_not_parked_again_when_its_page_is_repeated(
    resolution: str,
) -> None:
    world = await parked()
    if resolution == "edited":
        await world.operator.release("b", edited={"state": "mended"}, event_id="b/2")
    else:
        await world.operator.drop("b", "b/2", reason="her name")
        if resolution == "purged":
            await world.operator.purge("b", "b/2", reason="erasure", by="Ada")
        await world.operator.release("b")
    assert ("her name" in str(world.store.documents())) == (resolution == "dropped")
    before = world.ids
    await world.worker()(world.page(*(event("b", number) for number in range(1, 6))))
    assert [*before, "b/5"] == world.ids
    assert () == await world.operator.list()


async def test_a_dropped_event_stays_dropped_when_its_key_is_parked_again() -> None:
    world, page = World(), [event("b", number) for number in (1, 2, 3)]
    world.reject("b/1")
    await world.relay(world.page(*page))
    await world.operator.drop("b", "b/2", reason="of no use")
    world.reject()
    await world.operator.release("b")
    world.reject("b/1")
    await world.worker()(world.page(*page))
    assert ["b/1", "b/3"] == world.ids


async def test_a_release_under_steady_load_keeps_the_order_of_the_key() -> None:
    """
    Here the relay holds events faster than a release can send them, so the release makes the relay wait.
    """
    world = await parked()
    world.reject()
    world.counted.latency_seconds = 0.02
    world.broker.latency_seconds = 0.05

    async def load() -> None:
        for number in range(5, 400):
            await world.relay(world.page(event("b", number)))

    loading = asyncio.create_task(load())
    async with asyncio.timeout(30):
        await world.operator.release("b")
    assert not loading.done()
    await loading
    assert [f"b/{number}" for number in range(1, 400)] == world.ids
    assert 0 == world.broker.duplicates


@pytest.mark.parametrize("dropped", ["b/2", "b/190"])
async def test_a_drop_ends_a_running_release(dropped: str) -> None:
    world = await parked(later=200)
    world.broker.latency_seconds = 5
    world.reject()
    first = asyncio.create_task(world.operator.release("b"))
    await asyncio.sleep(0.5)
    await world.operator.drop("b", dropped, reason="of no use")
    with pytest.raises(ReleaseTakenOver):
        await first
    (key,) = await world.operator.list()
    assert (KeyState.PARKED, None) == (key.state, key.claim)
    assert 200 == len(await world.held("b")) == key.held
    assert [dropped] == [record.event_id for record in await world.operator.records("b")]
    assert (await world.operator.release("b")).handed_back
    assert [
        f"b/{number}" for number in range(1, 203) if f"b/{number}" != "b/190" or dropped != "b/190"
    ] == world.ids


async def test_after_a_cancelled_release_another_release_can_begin_at_once() -> None:
    world = await parked()
    world.reject()
    world.broker.latency_seconds = 5
    interrupted = asyncio.create_task(world.operator.release("b"))
    await asyncio.sleep(0.2)
    interrupted.cancel()
    with pytest.raises(asyncio.CancelledError):
        await interrupted
    world.broker.latency_seconds = 0
    started = asyncio.get_running_loop().time()
    assert 3 == (await world.operator.release("b")).sent
    assert 1 > asyncio.get_running_loop().time() - started


async def test_operations_on_a_key_that_is_not_parked_raise_key_not_parked() -> None:
    world = await parked()
    with pytest.raises(KeyNotParked):
        await world.operator.show("a")
    with pytest.raises(KeyNotParked):
        await world.operator.release("a")
    with pytest.raises(KeyNotParked):
        await world.operator.drop("a", "a/1", reason="none")
    with pytest.raises(KeyNotParked):
        await world.operator.drop("b", "b/1", reason="was sent")


async def test_a_lease_halts_at_the_limit_of_parked_keys() -> None:
    """Events of keys without a rejected event are still sent."""
    world = World(max_keys=1)
    world.reject("a/1", "b/1")
    await world.relay(world.page(event("a", 1)))
    for _ in range(3):
        with pytest.raises(ParkingFull, match="'b'"):
            await world.relay(world.page(event("b", 1), event("c", 1), event("a", 2)))
    assert ["c/1"] == world.ids
    assert 0 == world.broker.duplicates
    assert ["a/1", "a/2"] == await world.held("a")
    assert 3 == len(world.told_of(ParkingFailed))
    world.reject("b/1")
    await world.operator.release("a")
    await world.relay(world.page(event("b", 1), event("c", 1), event("a", 2)))
    assert ["b/1"] == await world.held("b")


async def test_a_lease_halts_at_the_limit_of_held_events_until_a_release() -> None:
    world = await parked(later=1, max_events=3)
    page = world.page(event("b", 4), event("b", 5), event("c", 1))
    with pytest.raises(ParkingFull, match="3 events"):
        await world.relay(page)
    assert ["b/2", "b/3", "b/4"] == await world.held("b")
    world.reject()
    await world.operator.release("b")
    await world.relay(page)
    assert ["b/1", "c/1", "b/2", "b/3", "b/4", "b/5"] == world.ids


async def test_a_key_can_be_parked_while_the_queue_of_another_key_is_full() -> None:
    world = World(max_keys=2, max_events=2)
    world.reject("a/1", "b/1", "c/1")
    await world.relay(world.page(event("a", 1), event("a", 2), event("b", 1)))
    world.reject("a/1", "c/1")
    # Key "a" has two held events, which is the limit, so event a/3 fails. The lease still names "b" as parked, but the relay
    # finds out that "b" was released. So only "a" is parked, and "c" may be parked too.
    await world.operator.release("b")
    with pytest.raises(ParkingFull, match="2 events"):
        await world.relay(world.page(event("a", 3), event("c", 1)))
    assert ["c/1"] == await world.held("c")
    assert 1 == len(world.told_of(ParkingFailed))


@pytest.mark.parametrize("lost", range(14))
async def test_parking_and_releasing_survive_a_lost_answer(lost: int) -> None:
    """Each value of `lost` makes the store lose the answer to another write of the test."""
    world = World()
    world.reject("b/2")
    answers = 0

    def lose(operation: str, key: str) -> Exception | None:
        nonlocal answers
        if operation != "commit":
            return None
        answers += 1
        return StoreUnavailable() if answers == lost + 1 else None

    world.counted.after = lose
    await world.relay(world.page(*(event("b", number) for number in range(1, 4))))
    await world.relay(world.page(event("b", 4)))
    assert ["b/2", "b/3", "b/4"] == await world.held("b")
    await world.operator.release("b", edited={"state": "mended"}, event_id="b/2")
    await world.relay(world.page(event("b", 5)))
    assert [f"b/{number}" for number in range(1, 6)] == world.ids
    assert () == await world.operator.list()


async def test_a_release_sends_the_same_messages_as_the_relay() -> None:
    world = await parked()
    world.reject()
    await world.operator.release("b")
    direct = MemoryBroker()
    await Relay(direct.publisher())(batch(*(event("b", number) for number in range(1, 5))))
    assert direct.accepted == world.broker.accepted


async def test_a_release_of_a_key_without_held_events_ends_its_parking() -> None:
    world = await parked(later=1)
    for event_id in ("b/2", "b/3"):
        await world.operator.drop("b", event_id, reason="of no use")
    with pytest.raises(KeyNotParked, match="no event to edit"):
        await world.operator.release("b", edited={}, event_id="b/2")
    released = await world.operator.release("b")
    assert (0, True) == (released.sent, released.handed_back)
    await world.relay(world.page(event("b", 4)))
    assert ["b/1", "b/4"] == world.ids


@pytest.mark.parametrize("lost", range(4))
async def test_a_release_that_stops_at_a_rejected_event_survives_a_lost_answer(lost: int) -> None:
    world = await parked(later=3)
    world.reject("b/4")
    answers = iter(range(100))
    world.counted.after = lambda operation, key: (
        StoreUnavailable() if operation == "commit" and next(answers) == lost else None
    )
    released = await world.operator.release("b")
    assert (2, "b/4") == (released.sent, released.failure and released.failure.event_id)
    assert ["b/4", "b/5"] == await world.held("b")
    assert KeyState.PARKED is (await world.operator.list())[0].state


async def test_a_damaged_held_event_can_only_be_dropped() -> None:
    world = await parked(later=0)
    document = next(document for document in world.store.documents() if document["id"] == parked_id("b/2"))
    damaged = {**document, "event": {**document["event"], "type": "note"}}
    await world.store.commit(
        place("b"), [Write(kind=WriteKind.REPLACE, id=parked_id("b/2"), document=damaged)]
    )
    with pytest.raises(UsageError, match="drop it"):
        await world.operator.release("b")
    await world.operator.drop("b", "b/2", reason="damaged")
    assert (await world.operator.release("b")).handed_back


def test_a_long_event_id_is_hashed_in_the_id_of_its_parked_document() -> None:
    assert "event.abc" == parked_id("abc")
    assert len(parked_id("ж" * 600)) < 100
    assert parked_id("ж" * 600) != parked_id("ж" * 601)


async def test_an_edit_finds_the_first_held_event_after_a_hundred_dropped_ones() -> None:
    world = await parked(later=120)
    for number in range(2, 112):
        await world.operator.drop("b", f"b/{number}", reason="of no use")
    world.reject()
    await world.operator.release("b", edited={"state": "mended"}, event_id="b/112")
    assert ["b/1", "b/112"] == world.ids[:2]


async def test_a_relay_whose_read_misses_a_parked_key_still_holds_its_events() -> None:
    world = await parked()
    lacking = iter([NotFound(document_id=KEY_ID)])
    world.counted.before = lambda operation, key: next(lacking, None) if operation == "read" else None
    await world.worker()(world.page(event("b", 5)))
    assert ["b/1"] == world.ids
    assert "b/5" in await world.held("b")
