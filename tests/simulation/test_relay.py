"""
G2 and G3 with a quarantine lane, for any script; and that the simulation would notice if a part of the protocol failed.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cosmos_outbox.adapters.memory.broker import Fault
from cosmos_outbox.documents import Document
from cosmos_outbox.errors import NotFound, PublishError
from cosmos_outbox.messages import OutboundMessage
from cosmos_outbox.ports import CommitResult, ParkedStore, Publisher, Write, WriteKind
from cosmos_outbox.relay import ParkedEvent, ParkedKeys, Parking
from cosmos_outbox.relay.delivery import Delivery
from cosmos_outbox.relay.parked import INDEX_ID, KEY_ID, NO_ETAG, Failure
from cosmos_outbox.relay.parked_index import ParkedIndex
from cosmos_outbox.retries import RetryOptions
from tests.simulation.relay import Act, Link, Operator, Owner, Script, Simulation, StoreFault
from tests.unit.relay.factories import event

times = st.floats(0, 12).map(lambda seconds: round(seconds, 1))
links = st.builds(
    Link,
    seconds=st.sampled_from([0.0, 0.05, 0.4]),
    behind=st.sampled_from([0.0, 0.3, 3.0]),
    faults=st.lists(st.none() | st.sampled_from(StoreFault), max_size=5).map(tuple),
)
owners = st.builds(
    Owner,
    starts_at=times,
    lives_for=times,
    worker=st.integers(0, 1),
    faults=st.lists(st.none() | st.sampled_from(Fault), max_size=3).map(tuple),
    link=links,
)
operators = st.builds(
    Operator,
    starts_at=times,
    lives_for=times | st.just(1000.0),
    act=st.sampled_from(Act),
    take_over=st.booleans(),
    link=links,
)


@st.composite
def scripts(draw: st.DrawFn) -> Script:
    committed: dict[str, list[str]] = defaultdict(list)
    pages: list[tuple[float, tuple[Document, ...]]] = []
    lsn, available_at = 0, 0.0
    commits = st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 2)), min_size=1, max_size=3)
    for page in draw(st.lists(st.tuples(commits, st.sampled_from([0.0, 0.2, 2.0])), min_size=1, max_size=8)):
        documents: list[Document] = []
        for key, size in page[0]:
            lsn += 1
            for sequence in range(size):
                documents.append(event(key, len(committed[key]), lsn=lsn, sequence=sequence))
                committed[key].append(documents[-1]["id"])
        available_at += page[1]
        pages.append((available_at, tuple(documents)))
    ids = [event_id for key in committed.values() for event_id in key]
    return Script(
        pages=tuple(pages),
        rejected=draw(st.frozensets(st.sampled_from(ids), min_size=1, max_size=3)),
        rejects_until=draw(st.sampled_from([2.0, 6.0, 1e9])),
        latency=draw(st.sampled_from([0.0, 0.1, 0.5])),
        owners=tuple(draw(st.lists(owners, max_size=4))),
        operators=tuple(draw(st.lists(operators, max_size=3))),
        committed=dict(committed),
    )


@settings(max_examples=300, suppress_health_check=list(HealthCheck), deadline=None)
@given(script=scripts())
async def test_no_script_loses_an_event_or_breaks_the_order_of_a_key(script: Script) -> None:
    await Simulation(script).play()


class Passing:
    """
    A store that passes everything on; mutations change single requests.
    """

    def __init__(self, store: ParkedStore) -> None:
        self.store = store

    async def read(self, document_id: str, partition_key: str) -> Document:
        return await self.store.read(document_id, partition_key)

    async def list(self, partition_key: str) -> tuple[Document, ...]:
        return await self.store.list(partition_key)

    async def commit(self, partition_key: str, writes: Sequence[Write]) -> CommitResult:
        return await self.store.commit(partition_key, writes)


class NewOwnerAsksNothing(Simulation):
    def parking(self, store: ParkedStore) -> Parking:
        class Unasking(Parking):
            async def keys(self) -> frozenset[str]:
                return frozenset()

        return Unasking(store)


class NewOwnerTrustsItsRead(Simulation):
    def session(self, link: Link) -> ParkedStore:
        class Unproven(Passing):
            async def commit(self, partition_key: str, writes: Sequence[Write]) -> CommitResult:
                if partition_key == INDEX_ID and writes[0].document is not None:
                    known: Document = {"keys": {}}
                    with suppress(NotFound):
                        known = await self.read(INDEX_ID, INDEX_ID)
                    if known["keys"] == writes[0].document["keys"]:
                        return CommitResult(etags=(None,), request_charge=0)
                return await super().commit(partition_key, writes)

        return Unproven(super().session(link))


class AbsenceIsNotProven(Simulation):
    def session(self, link: Link) -> ParkedStore:
        class Unproven(Passing):
            async def commit(self, partition_key: str, writes: Sequence[Write]) -> CommitResult:
                if writes[0].etag == NO_ETAG:
                    raise NotFound
                return await super().commit(partition_key, writes)

        return Unproven(super().session(link))


class HandBackIsUnconditional(Simulation):
    def session(self, link: Link) -> ParkedStore:
        class Careless(Passing):
            async def commit(self, partition_key: str, writes: Sequence[Write]) -> CommitResult:
                first = writes[0]
                if first.id == KEY_ID and first.kind is WriteKind.DELETE and first.etag != NO_ETAG:
                    return await super().commit(partition_key, [replace(first, etag=None)])
                return await super().commit(partition_key, writes)

        return Careless(super().session(link))


class KeyIsNotAnnounced(Simulation):
    def parking(self, store: ParkedStore) -> Parking:
        class Silent(ParkedIndex):
            async def add(self, partition_key: str, *, at: datetime, max_keys: int) -> str:
                return uuid.uuid4().hex

        made = super().parking(store)
        made._index = Silent(store, RetryOptions())
        return made


class OnlyTheFailingEventIsHeld(Simulation):
    def parking(self, store: ParkedStore) -> Parking:
        class Hasty(Parking):
            async def hold(
                self, partition_key: str, deliveries: Sequence[Delivery], failure: Failure | None = None
            ) -> list[Delivery]:
                left = await super().hold(partition_key, deliveries[:1], failure)
                return [*left, *deliveries[1:]] if failure is not None else list(deliveries)

        return Hasty(store)


class ReleaseBelievesEverySend(Simulation):
    def releases_to(self) -> Publisher:
        publisher = super().releases_to()

        class Forgiving:
            lanes = 1

            async def publish(self, lane: int, messages: Sequence[OutboundMessage]) -> None:
                with suppress(PublishError):
                    await publisher.publish(lane, messages)

        return Forgiving()


class ReleaseRunsBackwards(Simulation):
    def operator(self, store: ParkedStore) -> ParkedKeys:
        class Backwards(ParkedKeys):
            async def _send(self, publisher: Publisher, due: Sequence[ParkedEvent]) -> tuple[int, Any]:
                return await super()._send(publisher, due[::-1])

        return Backwards(store, self.releases_to())


FAST, SLOW, BEHIND = Link(seconds=0.01), Link(seconds=0.6), Link(seconds=0.01, behind=5.0)


def story(*, successor: Link = FAST, operator: Link = FAST, faults: tuple[Fault | None, ...] = ()) -> Script:
    """
    b/1 is rejected and parked by one owner; the next one holds b/3 … b/5; an operator mends b/1 and releases at 4 s.
    """
    numbers = [(0.0, [0]), (1.0, [1, 2]), (2.0, [3]), (3.0, [4, 5]), (13.65, [6]), (13.85, [7]), (14.05, [8])]
    return Script(
        pages=tuple((at, tuple(event("b", number) for number in found)) for at, found in numbers),
        rejected=frozenset({"b/1"}),
        rejects_until=1e9,
        latency=0.0,
        owners=(
            Owner(starts_at=0, lives_for=1.5, worker=0, faults=(), link=FAST),
            Owner(starts_at=1.6, lives_for=1000, worker=1, faults=(), link=successor),
            Owner(starts_at=3.9, lives_for=0, worker=2, faults=faults, link=FAST),
        ),
        operators=(Operator(starts_at=4, lives_for=1000, act=Act.EDIT, take_over=False, link=operator),),
        committed={"b": [f"b/{number}" for number in range(9)]},
    )


# Each mistake, and a story in which it shows.
MISTAKES = [
    pytest.param(NewOwnerAsksNothing, story(), id="a new owner does not ask which keys are parked"),
    pytest.param(NewOwnerTrustsItsRead, story(successor=BEHIND), id="a new owner trusts a read of the index"),
    pytest.param(AbsenceIsNotProven, story(successor=BEHIND), id="that a key is not parked is not proven"),
    pytest.param(KeyIsNotAnnounced, story(), id="a key is parked that the index does not name"),
    pytest.param(OnlyTheFailingEventIsHeld, story(), id="only the failing event is held"),
    pytest.param(
        HandBackIsUnconditional, story(operator=SLOW), id="a key is handed back whatever was appended"
    ),
    pytest.param(ReleaseBelievesEverySend, story(faults=(Fault.LOST,)), id="a release believes every send"),
    pytest.param(ReleaseRunsBackwards, story(), id="a release begins at the end"),
]


@pytest.mark.parametrize("script", [mistake.values[1] for mistake in MISTAKES])
async def test_the_stories_end_well_without_a_mistake(script: Script) -> None:
    await Simulation(script).play()


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="the simulation must notice this mistake")
@pytest.mark.parametrize(("mistaken", "script"), MISTAKES)
async def test_a_protocol_with_this_mistake_breaks_a_guarantee(
    mistaken: type[Simulation], script: Script
) -> None:
    await mistaken(script).play()
