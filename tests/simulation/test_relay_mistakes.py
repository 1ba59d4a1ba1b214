"""
Tests of the simulation of relays and parking itself. Each test plants a mistake and plays a script that was written for it (a story). The
simulation must notice that a guarantee is violated.
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
    A planted mistake: the worker saves its position in one write of the lease, and the names of the parked keys in a later write. If
    the worker is killed in between, the next owner does not know the parked keys.
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
                    error.condition, error.retry_after = None, 0.1  # like the error of a busy broker
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
            if lane_bytes > 1:  # the first attempt, before the topic refused an event
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
    """
    Return a script with nine events of the key b, b/0 to b/8, at different times. The topic always rejects the event `rejected`.
    """
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
    Return a script in which one worker parks the key b, and the next worker adds the events b/3 to b/5 to the key's queue. After 4
    seconds, an operator corrects the refused event b/1 and releases the key.
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
# just after 8 s. Between these two writes, the relay adds b/3 to the queue, so the release must not delete the key.
LATE = Script(
    pages=tuple((at, (event("b", number),)) for number, at in enumerate((0.0, 1.0, 2.0, 8.0))),
    rejected=frozenset({"b/1"}),
    rejects_until=1e9,
    latency=0.0,
    owners=(owner(0, 0, 1000, FAST),),
    operators=(operator(4.5, Act.EDIT, Link(seconds=0.35)),),
    committed={"b": [f"b/{number}" for number in range(4)]},
)
# Story: two processors run at once, and only the topic of the first processor refuses the event b/1.
TWO_PROCESSORS = tale(
    owners=(owner(0, 0, 1.5, FAST), owner(0, 1.6, 1000, FAST, processor=1), owner(1, 1.7, 1000, FAST)),
    operators=(operator(4, Act.EDIT, FAST),),
)
# Story: the topic refuses all events of thirty keys for some seconds. The topic is at fault, so few of the keys may be parked.
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
# Story: the topic always refuses four of the five keys of a page. When the relay sends the event a/0 of the healthy key alone, the
# first attempt is lost.
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
# Story: at the event b/1, the broker fails with an error that does not show whether the message or the broker is at fault.
CHOKING = tale(owners=(owner(0, 0, 1000, FAST),), operators=(), rejected="none", chokes=frozenset({"b/1"}))


# Each planted mistake with the script that reveals it
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
async def test_the_correct_relay_violates_no_guarantee_in_any_script(script: Script) -> None:
    await Simulation(script).play()


# With some mistakes the work never ends. So TimeoutError, which the virtual clock raises after an hour, counts as a violation.
@pytest.mark.xfail(
    strict=True, raises=(AssertionError, TimeoutError), reason="the simulation must notice this mistake"
)
@pytest.mark.parametrize(("mistaken", "script"), MISTAKES)
async def test_a_relay_with_a_planted_mistake_violates_a_guarantee(
    mistaken: type[Simulation], script: Script
) -> None:
    await mistaken(script).play()
