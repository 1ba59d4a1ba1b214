"""
The simulation of consumers notices planted mistakes. With each mistake, the library violates a guarantee in one of the first random
scripts, or in a script that was written for this mistake (a story).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import looptime
import pytest

from cosmos_outbox import Outbox
from cosmos_outbox.consumer import Handling, handling
from cosmos_outbox.consumer.inbox import Inbox
from cosmos_outbox.consumer.parked_messages import ParkedMessage
from cosmos_outbox.consumer.waiting_messages import Waits
from cosmos_outbox.errors import SubscriptionError
from cosmos_outbox.message_format import Message
from cosmos_outbox.parking import Failure, ParkedEvent, Parking, Scope, SendResult
from cosmos_outbox.parking.park import HoldResult as HeldEvents
from cosmos_outbox.parking.release import Send
from cosmos_outbox.ports import CommitResult, Complete, ParkedStore, Settlement, Write
from cosmos_outbox.sessions import HeldSession, SessionHandler
from tests.simulation.consumers import (
    SUBJECT,
    Act,
    Habit,
    Invoice,
    Operator,
    Process,
    Script,
    Simulation,
    body,
)
from tests.simulation.consumers_script import random_consumers_script
from tests.simulation.program import Container, Fault, Held, Port, Program, Receiver
from tests.simulation.test_mistakes import Mistake

pytestmark = pytest.mark.timeout(900)  # in real seconds, for slow machines: the simulated clock is virtual
BUDGET = 60  # how many random scripts are run at most, to find one that shows the mistake


class CompletedBeforeTheCommit(Simulation):
    def handles(self, handling: Handling) -> SessionHandler:
        async def hasty(message: Message, session: HeldSession) -> Settlement:
            await session._session.settle(message, Complete())
            return await handling(message, session)

        return hasty


class InboxOutsideOfTheBatch(Simulation):
    def outbox(self, program: Program) -> Outbox:
        class Split(Container):
            async def commit(self, partition_key: Any, writes: Sequence[Write]) -> CommitResult:
                inbox = [write for write in writes if write.id.startswith("inbox.")]
                parts = [part for part in ([w for w in writes if w not in inbox], inbox) if part]
                results = [await super(Split, self).commit(partition_key, part) for part in parts]
                found = zip(parts, results, strict=True)
                etags = {w.id: e for p, r in found for w, e in zip(p, r.etags, strict=True)}
                return CommitResult(etags=tuple(etags[w.id] for w in writes), request_charge=0.0)

        return Outbox(Split(program, self.container), retries=super().outbox(program).retries)


class NextMessageBeforeTheSettlement(Simulation):
    def receives(self, program: Program) -> Receiver:
        class Ahead(Held):
            settling: asyncio.Task[None] | None = None
            ahead: Message | None = None

            async def receive(self, wait_seconds: float) -> Message | None:
                if self.settling is None or self.settling.done():
                    return await super().receive(wait_seconds)
                ready = self.session._queue.ready
                if not ready:
                    await asyncio.wait({self.settling})
                    return None
                self.ahead = ready.popleft()
                return self.ahead

            async def settle(self, message: Message, settlement: Settlement) -> None:
                self.settling = asyncio.create_task(self._settle(self.settling, message, settlement))
                self.settling.add_done_callback(lambda done: done.cancelled() or done.exception())

            async def _settle(
                self, before: asyncio.Task[None] | None, message: Message, settlement: Settlement
            ) -> None:
                if before is not None:
                    await asyncio.wait({before})
                if self.ahead is message:
                    self.session.message = message
                await asyncio.sleep(0.5)
                await super().settle(message, settlement)

        return _receiver(program, self, Ahead)


class NewIdForEachDelivery(Simulation):
    def receives(self, program: Program) -> Receiver:
        class Renaming(Held):
            async def receive(self, wait_seconds: float) -> Message | None:
                message = await super().receive(wait_seconds)
                if message is None or not message.delivery_count:
                    return message
                return replace(message, message_id=f"{message.message_id}+{message.delivery_count}")

        return _receiver(program, self, Renaming)


class HeldWithoutChecking(Simulation):
    def parking(self, store: ParkedStore) -> Parking:
        class Blind(Parking):
            async def hold(
                self,
                partition_key: str,
                items: Sequence[ParkedMessage],
                failure: Failure | None = None,
                *,
                scope: Scope = Scope(),  # noqa: B008
            ) -> HeldEvents[ParkedMessage]:
                failure = failure or Failure(event_id=items[0].id, reason="", error="", attempts=0)
                return await super().hold(partition_key, items, failure, scope=scope)

        return Blind(store, references=False)


class ParkedKeyIsNotLookedUp(Simulation):
    def parking(self, store: ParkedStore) -> Parking:
        class Careless(Parking):
            async def is_key_parked(self, partition_key: str, scope: Scope) -> bool:
                return False

        return Careless(store, references=False)


class ReleaseSkipsTheInbox(Simulation):
    def sends(self, handling: Handling) -> Send:
        async def skipping(
            held: Sequence[ParkedEvent], ensure_claimed: Callable[[], Awaitable[None]]
        ) -> SendResult:
            for parked in held:
                async with self.outbox(Program()).unit_of_work() as uow:
                    key = parked.event["partitionKey"]
                    uow.repository(Invoice).create(Invoice(of=parked.event_id, key=key))
                    await uow.commit()
            return SendResult(events=len(held))

        return skipping


class SettlementsAreBelieved(Simulation):
    def receives(self, program: Program) -> Receiver:
        class Believing(Held):
            async def receive(self, wait_seconds: float) -> Message | None:
                if self.session.message is None:
                    return await super().receive(wait_seconds)
                ready = self.session._queue.ready  # the next messages, which the broker already delivered
                return ready[0] if ready else await asyncio.sleep(wait_seconds)

            async def settle(self, message: Message, settlement: Settlement) -> None:
                with suppress(SubscriptionError):
                    await super().settle(message, settlement)

        return _receiver(program, self, Believing)


class OutagesAreFailures(Simulation):
    async def play(self) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(handling, "OUTAGES", ())
            await super().play()


def planted(*lines: tuple[Any, str, str, str]) -> type[Simulation]:
    """
    Return a simulation that runs the library with a planted mistake: in each of these functions, a right line is replaced by a
    wrong one.
    """

    class Planted(Simulation):
        async def play(self) -> None:
            with pytest.MonkeyPatch.context() as patch:
                for owner, name, right, wrong in lines:
                    Mistake(owner=owner, name=name, right=right, wrong=wrong, story="", said="").plant(patch)
                await super().play()

    return Planted


def _receiver(program: Program, simulation: Simulation, kind: type[Held]) -> Receiver:
    class Mistaken(Receiver):
        async def accept(self, wait_seconds: float) -> Held | None:
            held = await super().accept(wait_seconds)
            return None if held is None else kind(program, held.session)

    return Mistaken(program, simulation.subscription)


MISTAKES = {
    "a message is completed before the commit": CompletedBeforeTheCommit,
    "the inbox is written outside of the batch": InboxOutsideOfTheBatch,
    "the next message comes before the settlement": NextMessageBeforeTheSettlement,
    "a message has a new id at each delivery": NewIdForEachDelivery,
    "a message is held without a look whether its key is still parked": HeldWithoutChecking,
    "a parked key is not looked up when a session is accepted": ParkedKeyIsNotLookedUp,
    "a release skips the inbox": ReleaseSkipsTheInbox,
    "an outage is taken for a failure of the message": OutagesAreFailures,
    "a message counts as handled before its effect is committed": planted(
        (
            Inbox,
            "take",
            "if asks and await uow.documents().find(record.id, partition_key=effect_key):",
            "if record.id in self._ignored or self._ignored.add(record.id):",
        ),
    ),
    "a message is dead-lettered where it should be parked": planted(
        (Handling, "_give_up", "self._policy.on_failure is OnFailure.DEAD_LETTER", "True")
    ),
    "a process forgets that it parked the key": planted(
        (Handling, "_give_up", "state.parked = True", "pass")
    ),
    "an error that is no outage leaves the handling": planted(
        (
            Handling,
            "__call__",
            "except Exception as error:  # noqa: BLE001 - an outage",
            "except OutboxError as error:  # an outage",
        )
    ),
    "a message is tried however often its process lost it": planted(
        (Handling, "_handle", "if often and", "if False and")
    ),
    "a settlement that is not confirmed is believed": SettlementsAreBelieved,
    "a request for a later time is a failure": planted(
        (Handling, "_take", "if attempts.asks_for_later(error):", "if False:")
    ),
    "a later message of a key overtakes one that is tried later": planted(
        (Handling, "_take", "return later", "return Complete()")
    ),
    "a message is tried later however long it asks": planted(
        (Waits, "for_later", "now if wait.asked_at is None else wait.asked_at", "now")
    ),
}


def told(number: int) -> Message:
    """Return the message with this number in the session b."""
    return Message(message_id=f"b/{number}", session_id="b", subject=SUBJECT, body=body())


def process(starts_at: float = 0.0, lives_for: float = 60.0, **faults: Any) -> Process:
    return Process(
        starts_at=starts_at,
        lives_for=lives_for,
        killed=False,
        seconds=0.01,
        faults={Port[name]: found for name, found in faults.items()},
    )


FAILS = {"b/1": (Habit.FAILS, -1)}
# Story: the process that parked the key stops, and another process receives the key's next message.
SUCCESSOR = Script(
    deliveries=((0.0, told(1)), (8.0, told(2))), habits=FAILS, processes=(process(0, 5), process(6))
)
# Story: an operator releases the key while a process holds its session, and then the next message comes.
RELEASED = Script(
    deliveries=((0.0, told(1)), (0.3, told(2)), (0.72, told(3))),
    habits=FAILS,
    processes=(process(),),
    operators=(Operator(starts_at=0.4, lives_for=60.0, act=Act.EDIT, seconds=0.01, faults={}),),
)
# Story: the container does not answer for 20 seconds. This is no failure of a message, so no key may be parked.
OUTAGE = Script(
    deliveries=((0.0, told(1)), (0.0, told(2))),
    attempts=1,
    away=((Port.COMMIT, 0.0, 20.0),),
    processes=(process(),),
)
ONCE = Script(
    deliveries=((0.0, told(1)),),
    habits={"b/1": (Habit.FAILS, 1)},
    processes=(process(),),
)
UNCONFIRMED = Script(deliveries=((0.0, told(1)), (0.0, told(2))), processes=(process(SETTLE=(Fault.LOST,)),))
# Random scripts reveal these mistakes too rarely. So each has its own script, in which a consumer with the mistake violates a guarantee.
STORIES = {
    HeldWithoutChecking: RELEASED,
    ParkedKeyIsNotLookedUp: SUCCESSOR,
    SettlementsAreBelieved: UNCONFIRMED,
    OutagesAreFailures: OUTAGE,
    MISTAKES["a message counts as handled before its effect is committed"]: ONCE,
}


def violated(kind: type[Simulation], seed: int) -> bool:
    """
    Return whether a run with the planted mistake violates a guarantee. It plays the script written for the mistake, or else the
    random script of the seed.
    """
    random.seed(seed)  # also for the library's retries, which draw their jitter from the module `random`
    script = STORIES.get(kind) or random_consumers_script(random.Random(seed))

    async def play() -> None:
        await kind(script).play()

    try:
        with asyncio.Runner(loop_factory=looptime.new_event_loop) as runner:
            runner.run(play())
    # TimeoutError: the simulated work did not end within its time limit
    except (AssertionError, TimeoutError):
        return True
    return False


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_consumer_with_a_planted_mistake_violates_a_guarantee(mistake: str) -> None:
    kind = MISTAKES[mistake]
    assert any(violated(kind, seed) for seed in range(1 if kind in STORIES else BUDGET))


@pytest.mark.parametrize("script", {id(script): script for script in STORIES.values()}.values())
async def test_the_correct_consumer_violates_no_guarantee_in_any_script(script: Script) -> None:
    await Simulation(script).play()
