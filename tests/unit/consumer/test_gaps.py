"""
From the outbox over the relay to a consumer: what arrives has no gap, and what was taken away is one.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cosmos_outbox import NotFound, Outbox, UnitOfWork
from cosmos_outbox.adapters.memory import MemoryBroker, MemoryContainer
from cosmos_outbox.consumer import Consumer, Message
from cosmos_outbox.messages import OutboundMessage
from cosmos_outbox.ports import Write, WriteKind
from cosmos_outbox.records import MessageGap, MessageHandled, MessageIgnored, MessageParked
from cosmos_outbox.relay import Relay
from tests.support.event_documents import batch
from tests.support.notes import NoteChanged, NoteDeleted, NoteFiled, NoteGlanced, NoteTagged, Remark
from tests.support.shop import World

Step = tuple[int, Sequence[str]]

CHANGES = ["change", "tag", "file", "glance", "edit", "recall"]


def histories(*more: str) -> st.SearchStrategy[list[Step]]:
    """
    Draw commits: the number of a note, and what is done to it.
    """
    done = st.lists(st.sampled_from([*CHANGES, *more]), min_size=1, max_size=3)
    return st.lists(st.tuples(st.integers(0, 2), done), min_size=1, max_size=12)


async def told(history: Sequence[Step]) -> tuple[OutboundMessage, ...]:
    """
    Return the messages of a history, as a relay sent them.
    """
    container, broker = MemoryContainer(), MemoryBroker()
    outbox = Outbox(container)
    outbox.publishes(NoteGlanced, lambda glanced: None)
    outbox.publishes(NoteFiled, lambda filed: [filed, NoteTagged(note_id=filed.note_id, tag=filed.folder)])
    for number, done in history:
        async with outbox.unit_of_work() as uow:
            await _do(uow, f"n{number}", done)
            await uow.commit()
    await Relay(broker.publisher())(batch(*container.documents()))
    return tuple(broker.accepted)


async def _do(uow: UnitOfWork, name: str, done: Sequence[str]) -> None:
    notes = uow.repository(Remark)
    try:
        note = await notes.read(name, partition_key="b", include_deleted=True)
    except NotFound:
        note = notes.create(Remark(id=name, book="b"))
    for one in done:
        match one:
            case "change":
                note.change(f"{note.text}x")
            case "tag":
                note.tag_as("t")
            case "file":
                note.file_as("f")
            case "glance":
                note.glance()
            case "edit":
                note.text += "y"
            case "recall":
                note.delete()
    if "purge" in done and not note.is_new:
        await notes.delete(name, partition_key="b", hard=True)


async def reading(gaps: str, messages: Sequence[OutboundMessage]) -> World:
    """
    Return the world of a consumer that received these messages, each of them twice; it has no handler for some.
    """
    consumer = Consumer("readers", gaps=gaps)

    async def read(event: object, message: Message, uow: UnitOfWork) -> None:
        uow.save({"id": f"read-{message.message_id}", "partitionKey": "b", "type": "read"})

    for event_type in (NoteChanged, NoteTagged, NoteDeleted):
        consumer.on(event_type)(read)
    world = World(consumer)
    for message in messages:
        world.subscription.deliver(message)
        world.subscription.deliver(message)
    await world.run()
    return world


@pytest.mark.parametrize("gaps", ["warn", "wait"])
@given(history=histories("purge"))
async def test_whatever_was_written_arrives_without_a_gap(gaps: str, history: list[Step]):
    messages = await told(history)
    world = await reading(gaps, messages)
    assert ([], []) == (world.of(MessageGap), world.of(MessageParked))
    assert len(messages) == len(world.of(MessageHandled)) + len(world.of(MessageIgnored))
    assert len(world.of(MessageHandled)) == len(world.documents("read"))


@pytest.mark.parametrize("gaps", ["warn", "wait"])
@given(history=histories(), data=st.data())
async def test_a_message_that_was_taken_away_is_a_gap_before_the_next_one(
    gaps: str, history: list[Step], data: st.DataObject
):
    messages = await told(history)
    places = [message.properties["entity-id"] for message in messages]
    inner = [
        at for at, place in enumerate(places) if place in places[:at] and place in places[at + 1 :]
    ]  # before the first of an entity and behind its last nothing shows that one is missing
    assume(inner)
    missing = data.draw(st.sampled_from(inner))
    following = next(at for at in range(missing + 1, len(places)) if places[at] == places[missing])
    world = await reading(gaps, [*messages[:missing], *messages[missing + 1 :]])
    if gaps == "warn":
        (gap,) = world.of(MessageGap)
        assert messages[following].message_id == gap.message_id
    else:
        (parked,) = world.of(MessageParked)
        assert (messages[following].message_id, "MessageMissed") == (parked.message_id, parked.reason)


async def test_events_of_the_dotnet_sample_are_relayed_and_handled_and_show_no_gap():
    container, broker = MemoryContainer(), MemoryBroker()
    for number in range(3):
        data = {
            "id": f"e{number}",
            "action": "NoteChanged",
            "noteId": "n",
            "text": "x",
            "createdAt": "2021-01-01",
        }
        document = {"id": f"e{number}", "partitionKey": "b", "type": "domainEvent", "data": data, "ttl": 120}
        await container.commit("b", [Write(kind=WriteKind.CREATE, id=document["id"], document=document)])
    await Relay(broker.publisher())(batch(*container.documents()))
    assert [{}] * 3 == [message.properties for message in broker.accepted]
    world = await reading("wait", broker.accepted)
    assert (3, []) == (len(world.documents("read")), world.of(MessageParked))
