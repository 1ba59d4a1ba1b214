"""The quarantine lane: what the relay holds, what an operator releases, and how the two meet."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import pytest

from cosmos_outbox.adapters.memory.broker import Fault, MemoryBroker
from cosmos_outbox.adapters.memory.parked import MemoryParked
from cosmos_outbox.documents import Document
from cosmos_outbox.errors import (
    AccessDenied,
    BrokerUnavailable,
    KeyNotParked,
    NotFound,
    ParkingFull,
    ReleaseTakenOver,
    StoreUnavailable,
    UsageError,
)
from cosmos_outbox.parking import ParkedEvent, ParkedKeys, Parking, Scope
from cosmos_outbox.parking.documents import KEY_ID, NO_ETAG, EventStatus, KeyState, held_id
from cosmos_outbox.ports import ChangeBatch, CommitResult, Notes, Write, WriteKind
from cosmos_outbox.records import (
    EventRejected,
    EventsHeld,
    KeyParked,
    MessagesPublished,
    ParkingFailed,
    Record,
)
from cosmos_outbox.relay import Relay
from cosmos_outbox.relay.resend import resending
from cosmos_outbox.retries import Backoff
from tests.support.event_documents import batch, entity, event
from tests.support.parked_stores import Passing
from tests.support.versioned_parked import Link, Service, Session

ResultT = TypeVar("ResultT")


class Counted(Passing):
    """
    A parked store that counts requests, and can fail them; `before` and `after` get the partition key of the events.
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
    """Where the documents of a key lie whose batches name no processor."""
    return Scope().partition_of(partition_key)


class World:
    """A topic, a parked store, a worker and an operator."""

    def __init__(self, *, max_keys: int = 100, max_events: int = 1000) -> None:
        self.broker = MemoryBroker(clock=lambda: asyncio.get_running_loop().time())
        self.store = MemoryParked()
        self.told: list[Record] = []
        self.notes = Notes()  # of the lease, whichever worker owns it
        self.limits = (max_keys, max_events)
        self.counted = Counted(self.store)
        self.relay = self.worker()
        self.operator = ParkedKeys(self.counted, resending(self.broker.publisher(lanes=1)))

    def page(self, *documents: Document, tenure: int = 0) -> ChangeBatch:
        """A page of the lease, which knows its notes."""
        return batch(*documents, tenure=tenure, notes=self.notes)

    def worker(self) -> Relay:
        return Relay(
            self.broker.publisher(lanes=2, batch_size=3),
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
    """A world in which b/2 and so many later events of "b" are held."""
    world = World(**limits)
    world.reject("b/2")
    await world.relay(world.page(*(event("b", number) for number in range(1, 3 + later))))
    return world


async def test_a_rejected_event_parks_its_key_and_the_others_flow() -> None:
    world = World()
    world.reject("b/2")
    await world.relay(world.page(*(event(key, number) for number in (1, 2, 3) for key in ("a", "b", "c"))))
    assert ["a/1", "a/2", "a/3", "b/1", "c/1", "c/2", "c/3"] == sorted(world.ids)
    assert ["b/2", "b/3"] == await world.held("b")


async def test_later_events_of_a_parked_key_queue_behind_it() -> None:
    world = await parked(later=1)
    await world.relay(world.page(event("a", 1), event("b", 4), event("b", 5), entity("b")))
    await world.relay(world.page(event("b", 6)))
    assert ["b/1", "a/1"] == world.ids
    assert ["b/2", "b/3", "b/4", "b/5", "b/6"] == await world.held("b")


async def test_a_parked_key_tells_what_failed_and_how_often_it_was_tried() -> None:
    world = World()
    world.reject("b/2")
    await world.relay(world.page(*(event(key, number) for number in (1, 2, 3) for key in ("a", "b", "c"))))
    failure = (await world.operator.list())[0].failure
    assert failure is not None
    assert ("b/2", "MessageRejected") == (failure.event_id, failure.reason)
    assert failure.attempts > 1
    assert "never accept" in failure.error
    assert failure == (await world.operator.show("b")).held[0].failure


async def test_what_is_held_is_the_event_as_it_was_committed() -> None:
    world = World()
    world.reject("b/2")
    document = event("b", 2, correlationId="c-1")
    await world.relay(world.page(document))
    held = (await world.operator.show("b")).held[0].event
    assert {**document, "_etag": None} == {**held, "_etag": None}


async def test_no_document_of_the_store_ever_expires() -> None:
    world = await parked()
    assert all("ttl" not in document for document in world.store.documents())


async def test_keys_that_are_not_parked_cost_no_request() -> None:
    world = World()
    await world.relay(world.page(event("a", 1)))
    first = world.counted.requests
    for number in range(2, 30):
        await world.relay(world.page(event("a", number), event(f"k{number}", 1)))
    assert first == world.counted.requests


async def test_a_new_owner_asks_once_before_it_sends_anything() -> None:
    world = await parked()
    world.reject()
    successor = world.worker()
    await successor(world.page(event("b", 5), event("c", 1)))
    assert ["b/2", "b/3", "b/4", "b/5"] == await world.held("b")
    assert ["b/1", "c/1"] == world.ids


async def test_a_worker_that_gets_a_lease_back_asks_again() -> None:
    """Another worker had the lease in between, and parked a key."""
    world = World()
    away = world.worker()
    await away(world.page(event("b", 1), tenure=1))
    world.reject("b/2")
    await world.relay(world.page(event("b", 2)))
    world.reject()
    await away(world.page(event("b", 3), tenure=2))
    assert ["b/1"] == world.ids
    assert ["b/2", "b/3"] == await world.held("b")


async def test_nothing_is_sent_while_the_parked_keys_cannot_be_read() -> None:
    world = World()
    world.counted.before = lambda operation, key: AccessDenied()
    with pytest.raises(AccessDenied):
        await world.relay(world.page(event("a", 1)))
    assert [] == world.ids


async def test_a_page_that_comes_again_holds_nothing_twice() -> None:
    world = await parked()
    for worker in (world.relay, world.worker()):
        await worker(world.page(*(event("b", number) for number in range(1, 5)), tenure=7))
    assert ["b/2", "b/3", "b/4"] == await world.held("b")


@pytest.mark.parametrize(("count", "size"), [(351, 0), (20, 200_000)])
async def test_events_that_are_too_many_or_too_large_for_one_batch_are_held_in_several(
    count: int, size: int
) -> None:
    world = World()
    world.reject("b/0")
    await world.relay(world.page(*(event("b", number, size=size) for number in range(count))))
    assert [f"b/{number}" for number in range(count)] == await world.held("b")
    assert count == (await world.operator.list())[0].held


async def test_a_release_sends_what_is_held_in_order_hands_the_key_back_and_leaves_the_store_empty() -> None:
    world = await parked(later=120)
    world.reject()
    released = await world.operator.release("b")
    assert (121, True, ()) == (released.sent, released.handed_back, world.store.documents())
    await world.relay(world.page(event("b", 123)))
    await world.relay(world.page(event("b", 124)))
    assert [f"b/{number}" for number in range(1, 125)] == world.ids
    assert () == await world.operator.list()


async def test_the_relay_tells_when_a_key_flows_again() -> None:
    world = await parked()
    world.reject()
    await world.operator.release("b")
    await world.relay(world.page(event("b", 5)))
    assert (
        EventsHeld(lease="0", partition_key="b", outcome="resumed", events=1) == world.told_of(EventsHeld)[-1]
    )


async def test_what_is_parked_and_held_is_told() -> None:
    world = await parked(later=2)
    told = [record for record in world.told if not isinstance(record, MessagesPublished | EventRejected)]
    assert [("b", "b/2", "MessageRejected")] == [
        (record.partition_key, record.event_id, record.reason)
        for record in told
        if isinstance(record, KeyParked)
    ]
    assert [EventsHeld(lease="0", partition_key="b", outcome="held", events=2)] == world.told_of(EventsHeld)


async def test_an_edited_payload_is_sent_under_the_same_id_and_the_committed_one_is_kept() -> None:
    world = await parked()
    released = await world.operator.release(
        "b", edited={"action": "Renamed", "state": "mended"}, event_id="b/2"
    )
    assert released.handed_back
    assert ["b/1", "b/2", "b/3", "b/4"] == world.ids
    assert b'{"action":"Renamed","state":"mended"}' == world.broker.accepted[1].body
    record = next(document for document in world.store.documents() if document["id"] == held_id("b/2"))
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


async def test_a_dropped_event_leaves_a_record_and_the_rest_is_released_without_it() -> None:
    world = await parked()
    dropped = await world.operator.drop("b", "b/2", reason="malformed since 2.3")
    assert EventStatus.DROPPED is dropped.status
    assert ["b/3", "b/4"] == await world.held("b")
    released = await world.operator.release("b")
    assert 2 == released.sent
    assert ["b/1", "b/3", "b/4"] == world.ids
    record = next(document for document in world.store.documents() if document["id"] == held_id("b/2"))
    assert ("dropped", "malformed since 2.3") == (record["status"], record["note"])


async def test_dropping_twice_is_dropping_once_with_both_reasons_and_operators() -> None:
    world = await parked()
    first = await world.operator.drop("b", "b/2", reason="one", by="Ada")
    again = await world.operator.drop("b", "b/2", reason="two", by="Grace")
    assert (first.note, first.closed_at) == (again.note, again.closed_at)
    assert 2 == (await world.operator.list())[0].held
    assert [("Ada", "one"), ("Grace", "two")] == [(one.by, one.reason) for one in again.decisions]
    shown = await world.operator.show("b")
    assert again.decisions == next(one for one in shown.records if one.event_id == "b/2").decisions


async def test_an_edit_says_who_edited() -> None:
    world = await parked()
    await world.operator.release("b", edited={"state": "mended"}, event_id="b/2", by="Ada")
    (record,) = await world.operator.records("b")
    assert isinstance(record, ParkedEvent)
    assert [("Ada", "edited")] == [(one.by, one.did) for one in record.decisions]


@pytest.mark.parametrize("resolution", ["dropped", "purged", "edited"])
async def test_an_event_that_an_operator_dealt_with_is_not_parked_again_when_its_page_comes_again(
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


async def test_a_dropped_event_stays_dropped_when_the_one_before_it_is_refused_once_more() -> None:
    world, page = World(), [event("b", number) for number in (1, 2, 3)]
    world.reject("b/1")
    await world.relay(world.page(*page))
    await world.operator.drop("b", "b/2", reason="of no use")
    world.reject()
    await world.operator.release("b")
    world.reject("b/1")
    await world.worker()(world.page(*page))
    assert ["b/1", "b/3"] == world.ids


async def test_a_key_can_be_parked_again_after_it_was_released() -> None:
    world = await parked()
    world.reject("b/5")
    await world.operator.release("b")
    await world.relay(world.page(event("b", 5), event("b", 6)))
    assert ["b/5", "b/6"] == await world.held("b")
    world.reject()
    await world.operator.release("b")
    assert [f"b/{number}" for number in range(1, 7)] == world.ids


async def test_a_key_under_steady_load_is_handed_back_without_a_gap_or_a_reorder() -> None:
    """The relay appends faster than a release can empty the queue and look again, so it is asked to wait."""
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


@pytest.mark.parametrize(
    ("seconds", "latency", "latency_then"),
    [
        pytest.param(1.5, 1, 1, id="it sends its second batch"),
        pytest.param(5, 40, 0, id="its send hangs"),
    ],
)
async def test_a_second_release_takes_a_key_over_from_the_first_and_the_order_holds(
    seconds: float, latency: float, latency_then: float
) -> None:
    world = await parked(later=200)
    world.broker.latency_seconds = latency
    world.reject()
    first = asyncio.create_task(world.operator.release("b"))
    await asyncio.sleep(seconds)
    world.broker.latency_seconds = latency_then
    assert (await world.operator.release("b")).handed_back
    with pytest.raises((ReleaseTakenOver, KeyNotParked)):
        await first
    assert [f"b/{number}" for number in range(1, 203)] == world.ids


@pytest.mark.parametrize("dropped", ["b/2", "b/190"])
async def test_a_drop_ends_a_release_that_is_under_way(dropped: str) -> None:
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


async def test_a_release_that_was_killed_is_taken_over_where_it_stopped_with_the_same_payload() -> None:
    world = await parked(later=200)
    world.reject()
    dies = asyncio.Event()

    class Dying(Counted):
        """
        What an operator has whose process is killed once the first events were taken off: it can give nothing up.
        """

        async def call(self, operation: str, partition_key: str, request: Any) -> Any:
            if dies.is_set():
                await asyncio.Event().wait()
            answer = await super().call(operation, partition_key, request)
            if operation == "commit" and self.commits == 2:
                dies.set()
            return answer

    killed = ParkedKeys(Dying(world.store), resending(world.broker.publisher(lanes=1)))
    first = asyncio.create_task(killed.release("b", edited={"state": "mended"}, event_id="b/2"))
    await dies.wait()
    first.cancel()
    await asyncio.sleep(20)
    assert KeyState.RELEASING is (await world.operator.list())[0].state
    await world.operator.release("b")
    assert [f"b/{number}" for number in range(1, 203)] == world.ids
    assert b'{"state":"mended"}' == world.broker.accepted[1].body


async def test_a_release_that_is_interrupted_gives_its_claim_up() -> None:
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


async def test_a_release_without_a_topic_leaves_the_key_as_it_was() -> None:
    world = await parked()
    world.broker.down = True
    with pytest.raises(BrokerUnavailable):
        await world.operator.release("b")
    world.broker.down = False
    world.reject()
    assert 3 == (await world.operator.release("b")).sent


@pytest.mark.parametrize("fault", list(Fault))
async def test_whatever_happens_to_a_batch_a_release_keeps_the_order(fault: Fault) -> None:
    world = await parked(later=60)
    world.reject()
    world.broker.faults.extend([fault, None, fault])
    await world.operator.release("b")
    await asyncio.sleep(world.broker.late_seconds)
    assert [f"b/{number}" for number in range(1, 63)] == world.ids


async def test_what_is_not_parked_cannot_be_shown_released_or_dropped() -> None:
    world = await parked()
    with pytest.raises(KeyNotParked):
        await world.operator.show("a")
    with pytest.raises(KeyNotParked):
        await world.operator.release("a")
    with pytest.raises(KeyNotParked):
        await world.operator.drop("a", "a/1", reason="none")
    with pytest.raises(KeyNotParked):
        await world.operator.drop("b", "b/1", reason="was sent")


async def test_looking_needs_no_topic_and_releasing_does() -> None:
    world = await parked()
    viewer = ParkedKeys(world.store)
    assert ["b"] == [key.partition_key for key in await viewer.list()]
    with pytest.raises(UsageError, match="send"):
        await viewer.release("b")


async def test_keys_that_were_handed_back_do_not_count_towards_the_limit_although_no_event_of_theirs_came() -> (
    None
):
    world = World(max_keys=2)
    for number in range(5):
        world.reject(f"k{number}/1")
        await world.relay(world.page(event(f"k{number}"), event(f"k{number}", 2)))
        assert [f"k{number}/1", f"k{number}/2"] == await world.held(f"k{number}")
        world.reject()
        await world.operator.release(f"k{number}")
    assert [] == world.told_of(ParkingFailed)


async def test_beyond_the_limit_of_keys_the_lease_halts_and_the_other_keys_of_the_page_flow() -> None:
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


async def test_beyond_the_limit_of_events_the_lease_halts_until_they_are_released() -> None:
    world = await parked(later=1, max_events=3)
    page = world.page(event("b", 4), event("b", 5), event("c", 1))
    with pytest.raises(ParkingFull, match="3 events"):
        await world.relay(page)
    assert ["b/2", "b/3", "b/4"] == await world.held("b")
    world.reject()
    await world.operator.release("b")
    await world.relay(page)
    assert ["b/1", "c/1", "b/2", "b/3", "b/4", "b/5"] == world.ids


async def test_a_store_that_is_down_halts_the_lease_and_the_other_keys_flow() -> None:
    world = World()
    world.reject("b/1")
    await world.relay(world.page(event("a", 1)))
    world.counted.before = lambda operation, key: StoreUnavailable()
    page = world.page(event("a", 2), event("b", 1), event("b", 2))
    with pytest.raises(StoreUnavailable):
        await world.relay(page)
    assert ["a/1", "a/2"] == world.ids
    world.counted.before = lambda operation, key: None
    await world.relay(page)
    assert ["b/1", "b/2"] == await world.held("b")
    assert ["a/1", "a/2"] == world.ids


@pytest.mark.parametrize("lost", range(14))
async def test_an_answer_that_is_lost_changes_nothing(lost: int) -> None:
    """Of all the answers of parking, appending and releasing, each one is lost once."""
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


async def test_messages_of_a_release_are_those_that_the_relay_would_have_sent() -> None:
    world = await parked()
    world.reject()
    await world.operator.release("b")
    direct = MemoryBroker()
    await Relay(direct.publisher())(batch(*(event("b", number) for number in range(1, 5))))
    assert direct.accepted == world.broker.accepted


async def test_a_key_whose_events_are_all_dropped_is_handed_back_by_a_release() -> None:
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
async def test_an_answer_that_is_lost_while_a_release_stops_changes_nothing(lost: int) -> None:
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


async def test_an_event_appended_at_the_last_moment_is_sent_before_the_key_is_handed_back() -> None:
    """The operator has seen an empty queue, and the relay appends before the key is deleted."""
    world = await parked()
    world.reject()
    late = iter([event("b", 5)])
    appending = False

    class AtTheLastMoment(MemoryParked):
        async def commit(self, partition_key: str, writes: Sequence[Write]) -> CommitResult:
            nonlocal appending
            hands_back = writes[0].kind is WriteKind.DELETE and writes[0].etag != NO_ETAG
            if hands_back and not appending and (document := next(late, None)) is not None:
                appending = True
                await world.relay(world.page(document))
            return await world.store.commit(partition_key, writes)

    store = AtTheLastMoment()
    vars(store).update(vars(world.store))
    released = await ParkedKeys(store, resending(world.broker.publisher(lanes=1))).release("b")
    assert appending
    assert 4 == released.sent
    await world.relay(world.page(event("b", 6)))
    assert [f"b/{number}" for number in range(1, 7)] == world.ids


async def test_an_event_behind_a_hand_back_is_sent_by_the_relay() -> None:
    """The relay has seen a parked key, and the operator hands it back before the relay appends."""
    world = await parked()
    world.reject()
    releasing = False

    class AtTheLastMoment(MemoryParked):
        async def commit(self, partition_key: str, writes: Sequence[Write]) -> CommitResult:
            nonlocal releasing
            if any(write.kind is WriteKind.CREATE for write in writes) and not releasing:
                releasing = True
                await world.operator.release("b")
            return await world.store.commit(partition_key, writes)

    store = AtTheLastMoment()
    vars(store).update(vars(world.store))
    relay = Relay(world.broker.publisher(), parking=Parking(store), notify=world.told.append)
    await relay(world.page(event("b", 5), event("b", 6)))
    assert releasing
    assert [f"b/{number}" for number in range(1, 7)] == world.ids
    assert () == await world.operator.list()


async def test_what_is_no_event_any_more_can_be_dropped_but_not_sent() -> None:
    world = await parked(later=0)
    document = next(document for document in world.store.documents() if document["id"] == held_id("b/2"))
    damaged = {**document, "event": {**document["event"], "type": "note"}}
    await world.store.commit(place("b"), [Write(kind=WriteKind.REPLACE, id=held_id("b/2"), document=damaged)])
    with pytest.raises(UsageError, match="drop it"):
        await world.operator.release("b")
    await world.operator.drop("b", "b/2", reason="damaged")
    assert (await world.operator.release("b")).handed_back


def test_an_event_id_too_long_for_another_one_beside_it_is_hashed() -> None:
    assert "event.abc" == held_id("abc")
    assert len(held_id("ж" * 600)) < 100
    assert held_id("ж" * 600) != held_id("ж" * 601)


async def test_a_release_whose_list_is_behind_waits_for_what_it_lacks() -> None:
    broker, service = MemoryBroker(), Service()
    broker.rejects = lambda message: message.message_id == "b/2"
    relay = Relay(broker.publisher(), parking=Parking(Session(service, Link())), notify=lambda record: None)
    await relay(batch(event("b", 2), event("b", 3)))
    await asyncio.sleep(10)
    await relay(batch(event("b", 4)))
    broker.rejects = lambda message: False
    operator = ParkedKeys(Session(service, Link(behind=0.5)), resending(broker.publisher()))
    released = await operator.release("b", edited={"state": "mended"}, event_id="b/2")
    assert 3 == released.sent
    assert asyncio.get_running_loop().time() >= 10.5
    assert ["b/2", "b/3", "b/4"] == [message.message_id for message in broker.accepted]


class Behind(Passing):
    """A parked store whose first reads come from a replica that lacks what was written last."""

    def __init__(self, store: MemoryParked, *, lacks: str) -> None:
        super().__init__(store)
        self._lacks = lacks

    async def read(self, document_id: str, partition_key: str) -> Document:
        if document_id == self._lacks:
            self._lacks = ""
            raise NotFound(document_id=document_id)
        return await super().read(document_id, partition_key)

    async def queue(self, partition_key: str, *, epoch: str, first: int, limit: int) -> tuple[Document, ...]:
        documents = await super().queue(partition_key, epoch=epoch, first=first, limit=limit)
        lacks, self._lacks = self._lacks, ""
        return tuple(document for document in documents if document["id"] != lacks)


async def test_an_edit_finds_the_first_held_event_behind_more_dropped_ones_than_one_batch_takes_off() -> None:
    world = await parked(later=120)
    for number in range(2, 112):
        await world.operator.drop("b", f"b/{number}", reason="of no use")
    world.reject()
    await world.operator.release("b", edited={"state": "mended"}, event_id="b/112")
    assert ["b/1", "b/112"] == world.ids[:2]


@pytest.mark.parametrize("lacks", ["b/2", "b/3"])
async def test_a_release_sends_nothing_past_an_event_that_its_list_lacks(lacks: str) -> None:
    world = await parked()
    world.reject()
    behind = Behind(world.store, lacks=held_id(lacks))
    await ParkedKeys(behind, resending(world.broker.publisher())).release("b")
    assert ["b/1", "b/2", "b/3"] == world.ids[:3]


async def test_a_relay_whose_read_lacks_a_parked_key_sends_nothing_past_what_is_held() -> None:
    world = await parked()
    relay = Relay(
        world.broker.publisher(), parking=Parking(Behind(world.store, lacks=KEY_ID)), notify=world.told.append
    )
    await relay(world.page(event("b", 5)))
    assert ["b/1"] == world.ids
    assert "b/5" in await world.held("b")
