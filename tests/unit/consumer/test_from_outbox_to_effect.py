"""From the outbox through the relay to a consumer: every committed event takes effect once."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from cosmos_outbox import NotFound, Outbox, UnitOfWork
from cosmos_outbox.adapters.memory import MemoryBroker, MemoryContainer
from cosmos_outbox.consumer import Consumer, Message
from cosmos_outbox.message_format import OutboundMessage
from cosmos_outbox.records import MessageGivenUp, MessageHandled
from cosmos_outbox.relay import Relay
from tests.support.event_documents import batch
from tests.support.notes import NoteChanged, NoteDeleted, NoteTagged, Remark
from tests.support.shop import World

HANDLED = (NoteChanged, NoteTagged, NoteDeleted)
CHANGES = st.lists(
    st.sampled_from(["change", "tag", "file", "glance", "edit", "recall"]), min_size=1, max_size=3
)
HISTORIES = st.lists(st.tuples(st.integers(0, 2), CHANGES), min_size=1, max_size=12)


async def write(uow: UnitOfWork, name: str, changes: Sequence[str]) -> None:
    notes = uow.repository(Remark)
    try:
        note = await notes.read(name, partition_key="b", include_deleted=True)
    except NotFound:
        note = notes.create(Remark(id=name, book="b"))
    for change in changes:
        match change:
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


async def relayed(container: MemoryContainer) -> list[OutboundMessage]:
    broker = MemoryBroker()
    await Relay(broker.publisher())(batch(*container.documents()))
    return broker.accepted


async def consumed(messages: Sequence[OutboundMessage]) -> World:
    """
    Deliver each message twice to a consumer that handles only the types in HANDLED. Return the consumer and its stores (a `World`)
    once all messages are settled.
    """
    consumer = Consumer("readers")

    async def read(event: object, message: Message, uow: UnitOfWork) -> None:
        uow.save({"id": f"read-{message.message_id}", "partitionKey": "b", "type": "read"})

    for event_type in HANDLED:
        consumer.on(event_type)(read)
    world = World(consumer)
    for message in messages:
        world.subscription.deliver(message)
        world.subscription.deliver(message)
    await world.run()
    return world


@given(history=HISTORIES)
async def test_committed_events_take_effect_once_and_in_order(history: list[tuple[int, list[str]]]):
    container, written = MemoryContainer(), []
    for number, changes in history:
        async with Outbox(container).unit_of_work() as uow:
            await write(uow, f"n{number}", changes)
            written += (await uow.commit()).events
    world = await consumed(await relayed(container))

    of_handlers = [event.id for event in written if isinstance(event, HANDLED)]
    assert [f"read-{event_id}" for event_id in of_handlers] == [one["id"] for one in world.documents("read")]
    outcomes = [record.outcome for record in world.of(MessageHandled)]
    assert 2 * (len(written) - len(of_handlers)) == outcomes.count("ignored")
    assert [] == world.of(MessageGivenUp)
