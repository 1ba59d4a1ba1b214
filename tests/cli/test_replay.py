"""
Tests of `replay`, which sends sent events again: it leaves out events that an operator dropped, and sends edited events with their edited
payloads.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from cosmos_outbox.adapters.memory.broker import MemoryBroker
from cosmos_outbox.adapters.memory.parked import MemoryParked
from cosmos_outbox.parking import ParkedKeys, Parking
from cosmos_outbox.relay import Relay
from cosmos_outbox.relay.released_events import resending
from cosmos_outbox.stored_documents import Document, stored_event
from cosmos_outbox_worker.cli.replay import Events, Replayed, replay, sending_to
from tests.support.event_documents import batch, event

EVENTS = (*(event("ada", number) for number in (1, 2, 3)), event("grace", 1))


async def pages(*all_documents: Sequence[Document]) -> AsyncIterator[Events]:
    for documents in all_documents:
        events = tuple(found for found in map(stored_event, documents) if found is not None)
        yield Events(documents=tuple(documents), events=events)


async def replayed(broker: MemoryBroker, *, parked: ParkedKeys | None = None) -> tuple[Replayed, list[int]]:
    told: list[int] = []
    result = await replay(
        pages(EVENTS),
        sending_to(broker.publisher(lanes=1)),
        parked=parked,
        progress=told.append,
    )
    return result, told


def taken(broker: MemoryBroker) -> list[str]:
    return [str(message.message_id).rpartition(":")[2] for message in broker.accepted]


async def parked_ada() -> ParkedKeys:
    """Park the key "ada" with all of its three events. Return the object with which an operator acts on parked keys."""
    store, refusing = MemoryParked(), MemoryBroker(rejects=lambda message: True)
    await Relay(refusing.publisher(lanes=1), parking=Parking(store))(batch(*EVENTS[:3]))
    return ParkedKeys(store, resending(MemoryBroker().publisher(lanes=1)))


async def test_replay_respects_the_operator_s_drops_and_edits():
    """The replay does not send a dropped event, and sends an edited event as the operator edited it."""
    keys = await parked_ada()
    await keys.drop("ada", "ada/1", reason="a test")
    await keys.release("ada", edited={"action": "Mended"}, event_id="ada/2")
    broker = MemoryBroker()
    result, _ = await replayed(broker, parked=keys)
    assert (3, 1, ()) == (result.sent, result.left_out, result.refused)
    assert ["ada/2", "ada/3", "grace/1"] == sorted(taken(broker))
    (edited,) = [message for message in broker.accepted if str(message.message_id).endswith("ada/2")]
    assert b'{"action":"Mended"}' == edited.body.replace(b" ", b"")


async def test_replay_does_not_send_held_events():
    keys = await parked_ada()
    broker = MemoryBroker()
    result, _ = await replayed(broker, parked=keys)
    assert (1, 3, ["grace/1"]) == (result.sent, result.left_out, taken(broker))


async def test_replay_sends_the_events_that_were_sent_before_their_key_was_parked():
    store = MemoryParked()
    broker = MemoryBroker(rejects=lambda message: str(message.message_id).endswith("ada/2"))
    await Relay(broker.publisher(lanes=1), parking=Parking(store))(batch(*EVENTS))
    assert ["ada/1", "grace/1"] == sorted(taken(broker))
    elsewhere = MemoryBroker()
    result, _ = await replayed(elsewhere, parked=ParkedKeys(store))
    assert (2, 2, ["ada/1", "grace/1"]) == (result.sent, result.left_out, sorted(taken(elsewhere)))


async def test_the_command_replay_reports_refused_events_and_goes_on():
    broker = MemoryBroker(rejects=lambda message: str(message.message_id).endswith(("ada/1", "ada/2")))
    result, told = await replayed(broker)
    assert [("ada", "ada/1"), ("ada", "ada/2")] == [
        (one.partition_key, one.event_id) for one in result.refused
    ]
    assert ["ada/3", "grace/1"] == sorted(taken(broker))
    assert 2 == told[-1]
