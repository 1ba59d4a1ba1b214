"""
Property tests of three promises of the relay: no event is lost (G2), first copies arrive in order (G3), and a resend is the same message
(G4). Owners of the lease crash, overlap and begin again at a checkpoint, and requests fail.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from cosmos_outbox.adapters.memory.broker import Fault, MemoryBroker
from cosmos_outbox.errors import MessageRejected
from cosmos_outbox.message_format import OutboundMessage
from cosmos_outbox.ports import ChangeBatch, Publisher
from cosmos_outbox.relay import Relay
from cosmos_outbox.relay.topics_and_refusals import UNCLEAR_ATTEMPTS
from cosmos_outbox.retries import Backoff
from cosmos_outbox.stored_documents import Document
from tests.support.effort import examples
from tests.support.event_documents import entity, event

WITHOUT_ANSWER = (Fault.LOST, Fault.LATE, Fault.ACK_LOST)


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """
    A worker that owns the lease for a while. It begins at the checkpoint, perhaps while the last owner still works, and may be
    killed.
    """

    starts_at: float
    lives_for: float
    faults: tuple[Fault | None, ...]
    lanes: int  # parallel senders, whose number may change when the worker is updated
    batch_bytes: int
    batch_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The committed events as pages of the change feed, and the owners of the lease."""

    pages: tuple[tuple[Document, ...], ...]
    owners: tuple[Owner, ...]
    latency: float
    late: float
    committed: dict[str, list[str]] = field(default_factory=dict)


@st.composite
def histories(draw: st.DrawFn) -> History:
    committed: dict[str, list[str]] = defaultdict(list)
    pages: list[tuple[Document, ...]] = []
    lsn = 0
    for commits in draw(
        st.lists(
            st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 3)), min_size=1, max_size=6),
            max_size=5,
        )
    ):
        page: list[Document] = []
        for key, size in commits:
            lsn += 1
            page.append(entity(key, lsn=lsn))
            events = [
                event(key, len(committed[key]) + sequence, lsn=lsn, sequence=sequence)
                for sequence in range(size)
            ]
            committed[key] += [document["id"] for document in events]
            page += draw(st.permutations(events))
        pages.append(tuple(page))
    owner = st.builds(
        Owner,
        starts_at=st.floats(0, 20),
        lives_for=st.floats(0, 20),
        faults=st.lists(st.none() | st.sampled_from(Fault), max_size=6).map(tuple),
        lanes=st.integers(1, 4),
        batch_bytes=st.sampled_from([2, 2700, 130_000]),
        batch_size=st.integers(1, 5),
    )
    return History(
        pages=tuple(pages),
        owners=tuple(draw(st.lists(owner, max_size=4))),
        latency=draw(st.sampled_from([0.0, 0.1, 1.0])),
        late=draw(st.sampled_from([0.5, 5.0, 30.0])),
        committed=dict(committed),
    )


class Fleet:
    """
    The owners of one lease and the checkpoint that they share. Subclasses replace single steps to plant a mistake.
    """

    def __init__(self, broker: MemoryBroker, history: History) -> None:
        self.broker, self.history = broker, history
        self.checkpoint = 0
        # If several answers in a row are lost, and then another message is accepted, the lease halts: the processor repeats the page.
        lost = sum(fault in WITHOUT_ANSWER for owner in history.owners for fault in owner.faults)
        self.halts = (MessageRejected,) if lost >= UNCLEAR_ATTEMPTS else ()

    def publisher(self, owner: Owner) -> Publisher:
        publisher = self.broker.publisher(lanes=owner.lanes, batch_size=owner.batch_size)
        vars(publisher)["batch_bytes"] = owner.batch_bytes
        return publisher

    def page(self, number: int) -> ChangeBatch:
        return ChangeBatch(lease="0", documents=self.history.pages[number])

    async def work(self, owner: Owner) -> None:
        relay = Relay(
            self.publisher(owner),
            backoff=Backoff(initial_seconds=0.1, maximum_seconds=2),
            notify=lambda record: None,
        )
        number = self.checkpoint
        while number < len(self.history.pages):
            with suppress(*self.halts):
                await self.handle(relay, number)
                number += 1

    async def handle(self, relay: Relay, number: int) -> None:
        await relay(self.page(number))
        self.checkpoint = max(self.checkpoint, number + 1)

    async def live(self, owner: Owner) -> None:
        await asyncio.sleep(owner.starts_at)
        self.broker.faults.extend(owner.faults)
        with suppress(TimeoutError):  # the timeout stands for a crash or a lost lease
            async with asyncio.timeout(owner.lives_for):
                await self.work(owner)


def lost_in_a_row() -> History:
    """Return a history in which the broker accepts an event, and then the answers to all attempts on the next one are lost."""
    events = [event("a", number, lsn=1, sequence=number) for number in range(2)]
    owner = Owner(
        starts_at=0,
        lives_for=1e6,
        faults=(None, *[Fault.LOST] * UNCLEAR_ATTEMPTS),
        lanes=1,
        batch_bytes=2,
        batch_size=1,
    )
    return History(
        pages=((entity("a", lsn=1), *events),),
        owners=(owner,),
        latency=0.0,
        late=0.5,
        committed={"a": [document["id"] for document in events]},
    )


async def check(history: History, *, dedup_window: float | None, fleet_type: type[Fleet] = Fleet) -> None:
    """
    Play a history, let a last owner finish the remaining pages, and compare the topic with the committed events.
    """
    broker = MemoryBroker(clock=lambda: asyncio.get_running_loop().time(), dedup_window_seconds=dedup_window)
    broker.latency_seconds, broker.late_seconds = history.latency, history.late
    fleet = fleet_type(broker, history)
    await asyncio.gather(*(fleet.live(owner) for owner in history.owners))
    await fleet.work(Owner(starts_at=0, lives_for=1e6, faults=(), lanes=3, batch_bytes=2, batch_size=3))
    await asyncio.sleep(history.late)

    first_copies: dict[str, list[str]] = defaultdict(list)
    copies: dict[str, OutboundMessage] = {}
    for arrival in broker.arrivals:
        message = arrival.message
        if message.message_id not in copies:
            first_copies[message.session_id].append(message.message_id)
        assert message == copies.setdefault(message.message_id, message)  # G4: copies of a message are equal
    assert history.committed == first_copies  # G2: no event is lost. G3: the events of a key are in order
    if dedup_window is not None:
        assert list(copies.values()) == broker.accepted


@settings(max_examples=examples(60, many=200), suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(history=histories(), dedup_window=st.none() | st.just(600.0))
@example(history=lost_in_a_row(), dedup_window=600.0)
async def test_first_copies_of_all_events_arrive_in_the_order_of_their_key(
    history: History, dedup_window: float | None
) -> None:
    await check(history, dedup_window=dedup_window)
