"""
One faulty part must not stop the rest of the relay: a damaged key, wrong names of parked keys in a lease, a failing poll, an
unavailable topic, a parked store that hangs.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from cosmos_outbox.adapters.memory.broker import MemoryBroker
from cosmos_outbox.adapters.memory.container import MemoryContainer
from cosmos_outbox.adapters.memory.parked import MemoryParked
from cosmos_outbox.errors import (
    AccessDenied,
    BrokerUnavailable,
    MessageRejected,
    OutboxError,
    ParkingError,
    ParkingFull,
    StoreUnavailable,
)
from cosmos_outbox.parking import ParkedKeys, Parking
from cosmos_outbox.parking.parked_documents import KEY_ID
from cosmos_outbox.ports import Notes, Write, WriteKind
from cosmos_outbox.records import LeaseCheckpointed, WatchFailed
from cosmos_outbox.relay import Relay
from cosmos_outbox.relay.deletion import Deletion
from cosmos_outbox.relay.released_events import resending
from cosmos_outbox.relay.routing import parse_routes
from cosmos_outbox.relay.topics_and_refusals import BELIEVED_IN_A_ROW, Topics
from cosmos_outbox_worker.cli.replay import sending_to
from tests.support.event_documents import batch, event
from tests.unit.parking.test_parked_documents import tampered
from tests.unit.parking.test_parking import Counted, World, parked, place

# Tests of damaged documents of parked keys, and of leases whose list of parked keys (their notes) is damaged


async def test_released_keys_do_not_count_towards_the_limit_although_another_key_is_damaged() -> None:
    world = World(max_keys=3)
    for key in "abc":
        world.reject(f"{key}/1")
        await world.relay(world.page(event(key, 1)))
    world.reject()
    for key in "bc":
        await world.operator.release(key)
    await tampered(world.store, KEY_ID, place("a"), lambda document: document.pop("state"))
    world.reject("d/1")
    await world.relay(world.page(event("d", 1), event("e", 1)))
    assert ["d/1"] == await world.held("d")
    assert ["b/1", "c/1", "e/1"] == world.ids


async def test_a_lease_with_malformed_names_of_parked_keys_stops_the_relay_before_it_sends() -> None:
    for text in ("null", "{}", "[1]", "b"):
        world = World()
        with pytest.raises(ParkingError, match="notes of the lease"):
            await world.relay(batch(event("a", 1), notes=Notes(text)))
        assert [] == world.ids


async def test_a_lease_that_names_parked_keys_is_not_relayed_without_the_parked_store() -> None:
    world = await parked(later=0)
    world.reject()
    relay = Relay(world.broker.publisher(), notify=world.told.append)
    with pytest.raises(ParkingError, match="Name the parked store again"):
        await relay(world.page(event("b", 3), tenure=3))
    assert ["b/1"] == world.ids


async def test_a_relay_without_a_parked_store_writes_no_parked_keys_into_the_lease() -> None:
    """An empty list in the lease would tell the next owner that no key is parked."""
    world, notes = World(), Notes()
    await Relay(world.broker.publisher(), notify=world.told.append)(batch(event("a", 1), notes=notes))
    assert notes.text is None


# The topic


async def test_several_owners_together_park_few_keys_while_the_topic_refuses_everything() -> None:
    world = World()
    world.broker.rejects = lambda message: True
    documents = [event(f"k{number}", 1, lsn=number) for number in range(60)]
    for tenure in range(6):
        with suppress(OutboxError):
            await world.worker()(world.page(*documents, tenure=tenure))
    assert BELIEVED_IN_A_ROW >= len(await world.operator.list())


async def test_a_parked_key_that_the_lease_does_not_name_does_not_halt_the_next_owner() -> None:
    """
    The first owner parked as many keys as a worker may park in a row. The second owner parked another key, and died before it could
    name this key in the lease.
    """
    world, notes = World(), Notes()
    names = [f"x{number}" for number in range(BELIEVED_IN_A_ROW)]
    world.broker.rejects = lambda message: message.session_id != "calm"
    await world.relay(batch(event("calm", 1), *(event(key, 1) for key in names), notes=notes))
    await world.relay(batch(event("calm", 2), event("lost", 1), tenure=1, notes=Notes(notes.text)))
    await world.worker()(batch(event("lost", 1), event("lost", 2), tenure=2, notes=notes))
    assert ["lost/1", "lost/2"] == await world.held("lost")
    assert notes.text is not None
    assert "lost" in notes.text


class CutBy(MemoryBroker):
    """A broker that closes the connection whenever a batch contains the message `message_id`."""

    message_id = "b/1"

    async def send(self, batch: Any) -> None:
        if any(message.message_id == self.message_id for message in batch):
            raise BrokerUnavailable("The connection was cut.")
        await super().send(batch)


async def test_an_operator_can_park_a_key_whose_message_cuts_the_connection() -> None:
    store, broker = MemoryParked(), CutBy(clock=asyncio.get_running_loop().time)
    relay = Relay(broker.publisher(), parking=Parking(store), notify=lambda record: None)
    relaying = asyncio.create_task(relay(batch(event("b", 1), event("a", 1))))
    await asyncio.sleep(60)
    assert not relaying.done(), "nothing tells this from an outage"
    await ParkedKeys(store).park("b", reason="it cuts the connection")
    async with asyncio.timeout(120):
        await relaying
    assert ["a/1"] == [message.message_id for message in broker.accepted]
    assert ["b/1"] == [held.event_id for held in (await ParkedKeys(store).show("b")).held]


async def test_messages_that_one_topic_refuses_are_parked_while_another_topic_is_away() -> None:
    clock = asyncio.get_running_loop().time
    brokers = {topic: MemoryBroker(clock=clock) for topic in "abc"}
    publisher = Topics(
        {topic: broker.publisher(lanes=1) for topic, broker in brokers.items()},
        parse_routes("action:B=b; action:C=c", default="a"),
    )
    store = MemoryParked()
    relay = Relay(publisher, parking=Parking(store), notify=lambda record: None)

    def routed(key: str, action: str, *, lsn: int = 1) -> Any:
        document = event(key, 1, lsn=lsn)
        document["data"]["action"] = action
        return document

    await relay(batch(routed("w", "B")))
    await relay(batch(routed("x", "C")))
    brokers["c"].down = True
    brokers["b"].rejects = lambda message: message.session_id.startswith("p")
    await relay(batch(*(routed(f"p{number}", "B", lsn=number) for number in range(10))))
    assert 10 == len(await ParkedKeys(store).list())


async def test_a_replay_goes_on_after_any_number_of_refused_events() -> None:
    broker = MemoryBroker(rejects=lambda message: message.message_id.startswith("x"))
    send = sending_to(broker.publisher(lanes=1))
    assert () == await send([event("calm", 1)])
    assert 8 == len(await send([event(f"x{number}", 1, lsn=number) for number in range(8)]))
    assert () == await send([event("calm", 2)])


# Tests of a topic that refuses most keys of a page (a parking storm)


class SlowAfterRefusals(MemoryBroker):
    """
    A broker that closes a link after each refusal, as the SDK does. The next batch has to wait for a new link.
    """

    async def send(self, batch: Any) -> None:
        try:
            await super().send(batch)
        except MessageRejected:
            await asyncio.sleep(0.1)
            raise


async def test_healthy_keys_of_a_page_are_sent_soon_although_most_keys_are_refused() -> None:
    """
    The topic refuses an event of 80 of the 100 keys. Each refusal takes 105 ms, and eight lanes send in parallel.
    """
    loop = asyncio.get_running_loop()
    broker = SlowAfterRefusals(clock=loop.time, rejects=lambda message: message.session_id.startswith("x"))
    store = Counted(MemoryParked())
    broker.latency_seconds = store.latency_seconds = 0.005
    relay = Relay(broker.publisher(lanes=8), parking=Parking(store), notify=lambda record: None)
    await relay(batch(event("calm", 1)))
    started = loop.time()
    await relay(
        batch(
            *(event(f"{'fine' if number % 5 == 0 else 'x'}{number}", 1, lsn=number) for number in range(100))
        )
    )
    last = max(arrival.at for arrival in broker.arrivals if arrival.message.session_id.startswith("fine"))
    assert last - started <= 2
    assert loop.time() - started <= 2.5, "so long the page behind it waits"
    assert 80 == len(await ParkedKeys(store).list())


async def test_events_already_sent_are_not_repeated_when_their_page_returns_in_two_parts() -> None:
    broker = MemoryBroker(clock=asyncio.get_running_loop().time)
    relay = Relay(broker.publisher(lanes=1), notify=lambda record: None)
    events = [event(key, 1, lsn=lsn) for lsn, key in enumerate("abxc")]
    broker.rejects = lambda message: message.session_id == "x"
    for _ in range(2):
        with pytest.raises(MessageRejected):
            await relay(batch(*events))
    broker.rejects = lambda message: False
    await relay(batch(*events[:2]))
    await relay(batch(*events[2:]))
    await relay(batch(events[3]))
    sent = [arrival.message.session_id for arrival in broker.arrivals]
    assert ["a", "b", "c", "c", "x"] == sorted(sent), "once each, and again where the whole page comes again"


async def test_a_page_at_the_limit_of_parked_keys_checks_each_parked_key_once() -> None:
    world = World(max_keys=10)
    await world.relay(world.page(event("calm", 1)))
    world.broker.rejects = lambda message: message.session_id.startswith("x")
    page = world.page(*(event(f"x{number}", 1, lsn=number) for number in range(60)))
    with pytest.raises(ParkingFull):
        await world.relay(page)
    world.counted.requests = 0
    with pytest.raises(ParkingFull):
        await world.relay(page)
    assert world.counted.requests <= 2 * 10


# Tests of polls of the parked store that fail or hang


async def test_a_failed_poll_of_the_parked_keys_is_reported() -> None:
    world = World()
    await world.relay(world.page(event("a", 1)))
    world.counted.before = lambda operation, key: AccessDenied() if operation == "keys" else None
    await asyncio.sleep(20)
    await world.relay(world.page(event("a", 2)))
    assert ["a/1", "a/2"] == world.ids
    assert 1 == len(world.told_of(WatchFailed))


async def test_a_poll_of_the_parked_keys_without_an_answer_is_reported() -> None:
    world = World()
    await world.relay(world.page(event("a", 1)))
    world.counted.latency_seconds = 1000
    await asyncio.sleep(20)
    await world.relay(world.page(event("a", 2)))
    (told,) = world.told_of(WatchFailed)
    assert isinstance(told, WatchFailed)
    assert ("what is parked", StoreUnavailable) == (told.subject, type(told.error))
    assert "Cosmos DB did not return the parked keys" in str(told.error)


async def test_a_parked_store_that_hangs_delays_only_a_few_pages() -> None:
    world = World()
    await world.relay(world.page(event("a", 1)))
    world.counted.latency_seconds = 1000
    loop = asyncio.get_running_loop()
    started = loop.time()
    for number in range(2, 102):
        await world.relay(world.page(event("a", number)))
        await asyncio.sleep(0.5)
    assert 50 + 10 > loop.time() - started


async def test_an_event_that_is_parked_as_a_reference_is_not_deleted() -> None:
    clock = asyncio.get_running_loop().time
    container, store = MemoryContainer(now=clock), MemoryParked()
    large = event("b", 1, size=1_950_000)
    stored = {name: value for name, value in large.items() if not name.startswith("_")}
    await container.commit("b", [Write(kind=WriteKind.CREATE, id=large["id"], document=stored)])
    broker = MemoryBroker(clock=clock, max_message_bytes=10_000_000)
    broker.rejects = lambda message: message.session_id == "b"
    relay = Relay(broker.publisher(), parking=Parking(store), notify=lambda record: None)

    async def alone() -> tuple[str, ...]:
        return ()

    async with Deletion(relay.handle, container, delete={"*"}, others=alone) as deletion:
        await deletion(batch(large, event("a", 1)))
        deletion.hear(LeaseCheckpointed(lease="0", pages=1))
        await asyncio.sleep(600)
    broker.rejects = lambda message: False
    keys = ParkedKeys(store, resending(broker.publisher(), events=container))
    assert [True] == [held.referenced for held in (await keys.show("b")).held]
    assert (await keys.release("b")).handed_back
