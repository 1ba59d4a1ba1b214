"""
The simulation of parking notices a mistake in each part of the protocol: every one of these breaks a guarantee.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from cosmos_outbox.adapters.memory.broker import Fault
from cosmos_outbox.documents import Document
from cosmos_outbox.errors import Conflict, NotFound, PublishError, StoreError, StoreUnavailable
from cosmos_outbox.messages import OutboundMessage
from cosmos_outbox.ports import CommitResult, ParkedStore, Publisher, Write, WriteKind
from cosmos_outbox.relay import ParkedEvent, ParkedKey, ParkedKeys, Parking
from cosmos_outbox.relay.delivery import Delivery
from cosmos_outbox.relay.parked import INDEX_ID, KEY_ID, NO_ETAG, Entries, Failure
from cosmos_outbox.relay.parked_index import ParkedIndex
from cosmos_outbox.relay.parking import Held
from cosmos_outbox.retries import Deadline, RetryOptions
from tests.simulation.relay import Act, Link, Operator, Owner, Script, Simulation, StoreFault
from tests.unit.relay.factories import event


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


class OtherIndex(Simulation):
    """
    One whose relays and operators keep the index in another way.
    """

    Index: type[ParkedIndex]

    def parking(self, store: ParkedStore) -> Parking:
        made = super().parking(store)
        made._index = self.Index(store, RetryOptions())
        return made

    def operator(self, store: ParkedStore) -> ParkedKeys:
        made = super().operator(store)
        made._index = self.Index(store, RetryOptions())
        return made


class KeyIsNotAnnounced(OtherIndex):
    class Index(ParkedIndex):
        async def add(self, partition_key: str, *, max_keys: int) -> str:
            return uuid.uuid4().hex

        async def confirm(self, epoch: str, partition_key: str) -> None:
            pass


class KeyIsNotConfirmed(OtherIndex):
    class Index(ParkedIndex):
        async def confirm(self, epoch: str, partition_key: str) -> None:
            pass


class LeftoversAreRemovedUnproven(OtherIndex):
    class Index(ParkedIndex):
        async def remove_abandoned(self, partition_keys: Collection[str], *, now: datetime) -> None:
            def without(entries: Entries) -> Entries:
                return {name: entry for name, entry in entries.items() if entry["key"] not in partition_keys}

            await self._changed(without)


class EntriesAreRemovedByKey(OtherIndex):
    class Index(ParkedIndex):
        async def remove(self, epoch: str) -> None:
            def without(entries: Entries) -> Entries:
                gone = entries[epoch]["key"] if epoch in entries else None
                return {name: entry for name, entry in entries.items() if entry["key"] != gone}

            await self._changed(without)


class EchoCountsAsFailure(Simulation):
    def parking(self, store: ParkedStore) -> Parking:
        class Hasty(Parking):
            async def _failed_for_sure(self, key: ParkedKey, error: StoreError, deadline: Deadline) -> bool:
                return isinstance(error, Conflict) or await super()._failed_for_sure(key, error, deadline)

        made = super().parking(store)
        made.__class__ = Hasty
        return made


class UnknownCountsAsFailure(Simulation):
    def parking(self, store: ParkedStore) -> Parking:
        class Hasty(Parking):
            async def _failed_for_sure(self, key: ParkedKey, error: StoreError, deadline: Deadline) -> bool:
                return isinstance(error, StoreUnavailable) or await super()._failed_for_sure(
                    key, error, deadline
                )

        made = super().parking(store)
        made.__class__ = Hasty
        return made


class OnlyTheFailingEventIsHeld(Simulation):
    def parking(self, store: ParkedStore) -> Parking:
        class Hasty(Parking):
            async def hold(
                self, partition_key: str, deliveries: Sequence[Delivery], failure: Failure | None = None
            ) -> Held:
                held = await super().hold(partition_key, deliveries[:1], failure)
                left = [*held.left, *deliveries[1:]] if failure is not None else list(deliveries)
                return Held(parked=not left, left=left)

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


def tale(*, owners: Sequence[Owner], operators: Sequence[Operator], clock_speed: float = 360.0) -> Script:
    """
    b/1 is rejected for good, and nine events come one after another.
    """
    numbers = [(0.0, [0]), (1.0, [1, 2]), (2.0, [3]), (3.0, [4, 5]), (12.45, [6]), (12.65, [7]), (12.85, [8])]
    return Script(
        pages=tuple((at, tuple(event("b", number) for number in found)) for at, found in numbers),
        rejected=frozenset({"b/1"}),
        rejects_until=1e9,
        latency=0.0,
        owners=tuple(owners),
        operators=tuple(operators),
        clock_speed=clock_speed,
        committed={"b": [f"b/{number}" for number in range(9)]},
    )


def owner(
    number: int, starts_at: float, lives_for: float, link: Link, *, faults: Sequence[Fault | None] = ()
) -> Owner:
    return Owner(starts_at=starts_at, lives_for=lives_for, worker=number, faults=tuple(faults), link=link)


def operator(starts_at: float, act: Act, link: Link) -> Operator:
    return Operator(starts_at=starts_at, lives_for=1000, act=act, take_over=False, link=link)


def story(*, successor: Link = FAST, releases: Link = FAST, faults: tuple[Fault | None, ...] = ()) -> Script:
    """
    One owner parks the key; the next one holds b/3 … b/5; an operator mends b/1 and releases at 4 s.
    """
    return tale(
        owners=(
            owner(0, 0, 1.5, FAST),
            owner(1, 1.6, 1000, successor),
            owner(2, 3.9, 0, FAST, faults=faults),
        ),
        operators=(operator(4, Act.EDIT, releases),),
    )


# In all of these a successor asks the index, which must name the key by then.
#
# Operators with a clock that runs away look between the announcement (4.2 s) and the parking (5.4 s).
LOOKED_AT_TOO_SOON = tale(
    owners=(owner(0, 0, 7.9, SLOW), owner(1, 8, 1000, FAST)),
    operators=tuple(operator(starts_at, Act.LOOK, FAST) for starts_at in (4.3, 4.6, 4.9)),
    clock_speed=1e6,
)
# An operator has seen at 5.1 s that the key is not parked, and gets its removal through after it is.
LOOKED_AT_AND_REMOVED_LATE = tale(
    owners=(owner(0, 0, 8.9, SLOW), owner(1, 9.5, 1000, FAST)),
    operators=(operator(3.9, Act.LOOK, Link(seconds=0.4, faults=(None, *3 * (StoreFault.LOST,)))),),
    clock_speed=1e6,
)
# Two owners park it at once, and the one that comes second is killed as soon as it took its entry back.
PARKED_BY_TWO = tale(
    owners=(
        owner(0, 0, 1000, Link(seconds=0.03)),
        owner(1, 0, 1.46, Link(seconds=0.05)),
        owner(2, 1.5, 1000, FAST),
    ),
    operators=(),
)
# What comes back from a parking is the echo of itself, or nothing; another owner has found the key meanwhile, and goes on.
PARKED_TWICE_BY_ITSELF, PARKED_WITHOUT_AN_ANSWER = (
    tale(
        owners=(
            owner(0, 0, 2.7, Link(seconds=0.2, faults=(None, None, None, fault))),
            owner(1, 2.25, 1000, FAST),
            owner(2, 2.8, 1000, FAST),
        ),
        operators=(),
    )
    for fault in (StoreFault.ECHO, StoreFault.ACK_LOST)
)


# Each mistake, and a story in which it shows.
MISTAKES = [
    pytest.param(NewOwnerAsksNothing, story(), id="a new owner does not ask which keys are parked"),
    pytest.param(NewOwnerTrustsItsRead, story(successor=BEHIND), id="a new owner trusts a read of the index"),
    pytest.param(AbsenceIsNotProven, story(successor=BEHIND), id="that a key is not parked is not proven"),
    pytest.param(KeyIsNotAnnounced, story(), id="a key is parked that the index does not name"),
    pytest.param(KeyIsNotConfirmed, LOOKED_AT_TOO_SOON, id="nobody looks again whether the index names it"),
    pytest.param(
        LeftoversAreRemovedUnproven, LOOKED_AT_AND_REMOVED_LATE, id="leftovers are removed without a proof"
    ),
    pytest.param(EntriesAreRemovedByKey, PARKED_BY_TWO, id="one parking removes the entry of another"),
    pytest.param(EchoCountsAsFailure, PARKED_TWICE_BY_ITSELF, id="an echo counts as a failure"),
    pytest.param(UnknownCountsAsFailure, PARKED_WITHOUT_AN_ANSWER, id="no answer counts as a failure"),
    pytest.param(OnlyTheFailingEventIsHeld, story(), id="only the failing event is held"),
    pytest.param(
        HandBackIsUnconditional, story(releases=SLOW), id="a key is handed back whatever was appended"
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
