"""
The simulation of relays and parking notices planted mistakes: for each part of the protocol, a story violates a guarantee.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from cosmos_outbox.adapters.memory.broker import Fault
from cosmos_outbox.errors import BrokerUnavailable, NotFound, PublishError
from cosmos_outbox.message_format import OutboundMessage
from cosmos_outbox.parking import ParkedEvent, Parking, Scope
from cosmos_outbox.parking.park import HoldResult
from cosmos_outbox.parking.parked_documents import KEY_ID, NO_ETAG, Failure
from cosmos_outbox.parking.release import Send, SendResult
from cosmos_outbox.ports import CommitResult, Notes, ParkedStore, Publisher, Write, WriteKind
from cosmos_outbox.relay import Relay, sending_lanes
from cosmos_outbox.relay.sending_lanes import Delivery, assign_lanes
from tests.simulation.relay import (
    Act,
    Operator,
    Owner,
    Processor,
    Script,
    Simulation,
)
from tests.support.event_documents import event
from tests.support.parked_stores import Passing
from tests.support.versioned_parked import Link


class NewOwnerKnowsNothing(Simulation):
    def save(self, processor: Processor, tenure: int, *, checkpoint: int, notes: Notes) -> None:
        super().save(processor, tenure, checkpoint=checkpoint, notes=Notes("[]"))


class NamesAreSavedBehindTheCheckpoint(Simulation):
    """
    A planted mistake: the names of parked keys are written to the lease by a request of their own, after the checkpoint. The death of
    the program cuts this request off.
    """

    late: Notes | None = None

    def save(self, processor: Processor, tenure: int, *, checkpoint: int, notes: Notes) -> None:
        super().save(processor, tenure, checkpoint=checkpoint, notes=self.late or Notes(processor.notes))
        self.late = Notes(notes.text)


class ProcessorsShareTheirParkedKeys(Simulation):
    def scope(self, processor: Processor) -> Scope:
        return Scope()


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


class EveryRefusalIsBelieved(Simulation):
    async def play(self) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                Relay.__init__, "__kwdefaults__", {**Relay.__init__.__kwdefaults__, "believed": 1000}
            )
            await super().play()


class UnclearAnswersAreWaitedOut(Simulation):
    def publisher(self, processor: Processor, *, lanes: int, batch_size: int) -> Publisher:
        publisher = super().publisher(processor, lanes=lanes, batch_size=batch_size)

        class Vague:
            async def publish(self, lane: int, messages: Sequence[OutboundMessage]) -> None:
                try:
                    await publisher.publish(lane, messages)
                except BrokerUnavailable as error:
                    error.condition, error.retry_after = None, 0.1  # as a broker that is busy
                    raise

        vague: Any = Vague()
        vague.lanes = publisher.lanes
        return vague


class OnlyTheFailingEventIsHeld(Simulation):
    def parking(self, store: ParkedStore) -> Parking:
        class Hasty(Parking):
            async def hold(
                self,
                partition_key: str,
                deliveries: Sequence[Delivery],
                failure: Failure | None = None,
                *,
                scope: Scope = Scope(),  # noqa: B008
            ) -> HoldResult:
                held = await super().hold(partition_key, deliveries[:1], failure, scope=scope)
                left = [*held.not_held, *deliveries[1:]] if failure is not None else list(deliveries)
                return HoldResult(parked=not left, not_held=left)

        return Hasty(store)


class RefusedEventsOfOneKeyAreDividedOverLanes(Simulation):
    async def play(self) -> None:
        def divided(
            streams: Collection[list[Delivery]], *, lanes: int, lane_bytes: int
        ) -> list[list[Delivery]]:
            if lane_bytes > 1:  # nothing is refused yet
                return assign_lanes(streams, lanes=lanes, lane_bytes=lane_bytes)
            return [[delivery] for stream in streams for delivery in stream]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sending_lanes, "assign_lanes", divided)
            await super().play()


class ReleaseBelievesEverySend(Simulation):
    def releases_to(self, processor: Processor) -> Publisher:
        publisher = super().releases_to(processor)

        class Forgiving:
            lanes = 1

            async def publish(self, lane: int, messages: Sequence[OutboundMessage]) -> None:
                with suppress(PublishError):
                    await publisher.publish(lane, messages)

        return Forgiving()


class ReleaseRunsBackwards(Simulation):
    def sends(self, processor: Processor) -> Send:
        send = super().sends(processor)

        async def backwards(
            events: Sequence[ParkedEvent], ensure_claimed: Callable[[], Awaitable[None]]
        ) -> SendResult:
            return await send(events[::-1], ensure_claimed)

        return backwards


class ReleaseForgetsTheTime(Simulation):
    def releases_to(self, processor: Processor) -> Publisher:
        publisher = super().releases_to(processor)

        class Forgetful:
            lanes = 1

            async def publish(self, lane: int, messages: Sequence[OutboundMessage]) -> None:
                await publisher.publish(lane, [replace(message, deliver_at=None) for message in messages])

        forgetful: Any = Forgetful()
        return forgetful


FAST, BEHIND = Link(seconds=0.01), Link(seconds=0.01, behind=5.0)


def tale(
    *,
    owners: Sequence[Owner],
    operators: Sequence[Operator],
    rejected: str = "b/1",
    **more: Any,
) -> Script:
    """Return a script in which b/1 is rejected for good, and nine events come one after another."""
    numbers = [(0.0, [0]), (1.0, [1, 2]), (2.0, [3]), (3.0, [4, 5]), (12.45, [6]), (12.65, [7]), (12.85, [8])]
    return Script(
        pages=tuple((at, tuple(event("b", number) for number in found)) for at, found in numbers),
        rejected=frozenset({rejected}),
        rejects_until=1e9,
        latency=0.0,
        owners=tuple(owners),
        operators=tuple(operators),
        committed={"b": [f"b/{number}" for number in range(9)]},
        **more,
    )


def owner(
    number: int,
    starts_at: float,
    lives_for: float,
    link: Link,
    *,
    faults: Sequence[Fault | None] = (),
    processor: int = 0,
) -> Owner:
    return Owner(
        starts_at=starts_at,
        lives_for=lives_for,
        worker=number,
        faults=tuple(faults),
        link=link,
        processor=processor,
    )


def operator(starts_at: float, act: Act, link: Link) -> Operator:
    return Operator(starts_at=starts_at, lives_for=1000, act=act, link=link)


def story(*, successor: Link = FAST, releases: Link = FAST, faults: tuple[Fault | None, ...] = ()) -> Script:
    """
    Return a script in which one owner parks the key and the next one holds b/3 to b/5. At 4 s an operator corrects b/1 and releases
    the key.
    """
    return tale(
        owners=(
            owner(0, 0, 1.5, FAST),
            owner(1, 1.6, 1000, successor),
            owner(2, 3.9, 0, FAST, faults=faults),
        ),
        operators=(operator(4, Act.EDIT, releases),),
    )


# Story: the operator's network is slow. The release takes the last event off the key's queue just before 8 s, and deletes the key
# just after 8 s. Between these two writes, the relay holds b/3.
LATE = Script(
    pages=tuple((at, (event("b", number),)) for number, at in enumerate((0.0, 1.0, 2.0, 8.0))),
    rejected=frozenset({"b/1"}),
    rejects_until=1e9,
    latency=0.0,
    owners=(owner(0, 0, 1000, FAST),),
    operators=(operator(4.5, Act.EDIT, Link(seconds=0.35)),),
    committed={"b": [f"b/{number}" for number in range(4)]},
)
# Story: both processors run all the time, and only the topic of the first one refuses b/1.
TWO_PROCESSORS = tale(
    owners=(owner(0, 0, 1.5, FAST), owner(0, 1.6, 1000, FAST, processor=1), owner(1, 1.7, 1000, FAST)),
    operators=(operator(4, Act.EDIT, FAST),),
)
# Story: the topic refuses thirty keys for a while, and the fault is the topic's.
REFUSING = Script(
    pages=(
        (0.0, (event("calm", 0),)),
        (1.0, tuple(event(f"k{number}", 0) for number in range(30))),
    ),
    rejected=frozenset(),
    rejects_until=0.0,
    latency=0.0,
    owners=(owner(0, 0, 1000, FAST),),
    operators=(),
    committed={key: [f"{key}/0"] for key in ("calm", *(f"k{number}" for number in range(30)))},
    refuses_all=(0.5, 8.0),
)
# Story: the topic always refuses four keys of a page. The first attempt to send the first event of the healthy key alone is lost.
STORM = Script(
    pages=(
        (0.0, tuple(event(*name) for name in (("w", 0), ("a", 0), ("a", 1), ("x", 0), ("y", 0), ("z", 0)))),
    ),
    rejected=frozenset({"w/0", "x/0", "y/0", "z/0"}),
    rejects_until=1e9,
    latency=0.0,
    owners=(owner(0, 0, 1000, FAST, faults=(None, None, Fault.LOST)),),
    operators=(),
    committed={"a": ["a/0", "a/1"], **{key: [f"{key}/0"] for key in "wxyz"}},
)
# Story: the broker fails at b/1 with an error that does not show whether the message is at fault.
CHOKING = tale(owners=(owner(0, 0, 1000, FAST),), operators=(), rejected="none", chokes=frozenset({"b/1"}))


# Each planted mistake, with a story in which it violates a guarantee
MISTAKES = [
    pytest.param(NewOwnerKnowsNothing, story(), id="a lease names no parked key"),
    pytest.param(NamesAreSavedBehindTheCheckpoint, story(), id="the names are saved behind the checkpoint"),
    pytest.param(ProcessorsShareTheirParkedKeys, TWO_PROCESSORS, id="processors share their parked keys"),
    pytest.param(AbsenceIsNotProven, story(successor=BEHIND), id="that a key is not parked is not proven"),
    pytest.param(OnlyTheFailingEventIsHeld, story(), id="only the failing event is held"),
    pytest.param(
        RefusedEventsOfOneKeyAreDividedOverLanes, STORM, id="what is refused is divided inside a key"
    ),
    pytest.param(HandBackIsUnconditional, LATE, id="a key is handed back whatever was appended"),
    pytest.param(ReleaseBelievesEverySend, story(faults=(Fault.LOST,)), id="a release believes every send"),
    pytest.param(ReleaseRunsBackwards, story(), id="a release begins at the end"),
    pytest.param(ReleaseForgetsTheTime, story(), id="a release sends at once what is for later"),
    pytest.param(EveryRefusalIsBelieved, REFUSING, id="every refusal is believed"),
    pytest.param(UnclearAnswersAreWaitedOut, CHOKING, id="an unclear answer is waited out for ever"),
]


@pytest.mark.parametrize("script", [mistake.values[1] for mistake in MISTAKES])
async def test_the_stories_end_without_a_violation_if_no_mistake_is_planted(script: Script) -> None:
    await Simulation(script).play()


# TimeoutError counts as a violation too: with some mistakes, the work never ends and reaches the timeout in virtual time.
@pytest.mark.xfail(
    strict=True, raises=(AssertionError, TimeoutError), reason="the simulation must notice this mistake"
)
@pytest.mark.parametrize(("mistaken", "script"), MISTAKES)
async def test_a_relay_with_a_planted_mistake_violates_a_guarantee(
    mistaken: type[Simulation], script: Script
) -> None:
    await mistaken(script).play()
