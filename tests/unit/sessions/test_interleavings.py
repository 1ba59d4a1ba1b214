"""
Random interleavings of session processors: they start, stop and are killed, the broker has outages longer than a lock, and handlers
return any settlement.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import looptime
from hypothesis import given
from hypothesis import strategies as st

from cosmos_outbox.adapters.memory import MemorySubscription
from cosmos_outbox.message_format import Message
from cosmos_outbox.ports import Complete, DeadLetter, Defer, Retry, Settlement
from tests.unit.sessions.world import World, seconds

SESSIONS = "abc"
SECONDS = st.sampled_from([0.0, 0.3, 1.0, 4.0, 9.0, 15.0])  # shorter and longer than a lock, which lasts 10 s
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["deliver", "deliver", "start", "stop", "kill", "outage", "wait"]),
        st.integers(0, 2),
        SECONDS,
    ),
    max_size=40,
)


class Play:
    """
    A run of up to three session processors, each of which stands for a process. The handlers check that only one handler at a time works
    on a session, in the order of its messages.
    """

    def __init__(self, chance: random.Random) -> None:
        self.broker = MemorySubscription(lock_seconds=10, max_deliveries=10_000)
        self.world, self.chance = World(subscription=self.broker), chance
        self.delivered = Counter[str]()
        self.working: dict[str, str] = {}
        self.wrong: list[str] = []
        self.calm = False

    async def handle(self, message: Message) -> Settlement | None:
        name, session = message.message_id, message.session_id or ""
        if session in self.working:
            self.wrong.append(f"{name} beside {self.working[session]}")
        before = [
            one.message_id
            for one in self.broker.waiting
            if one.session_id == session and one.sequence_number < message.sequence_number
        ]
        if before:
            self.wrong.append(f"{name} before {before} are settled")
        self.working[session] = name
        try:
            await asyncio.sleep(0 if self.calm else self.chance.choice([0, 0, 0.5, 3, 25]))
        finally:
            del self.working[session]
        answer = self.chance.choice(
            [None, Complete(), Retry(), Retry(counted=False), DeadLetter(reason="r"), Defer(), ValueError()]
        )
        if isinstance(answer, ValueError):
            raise answer
        return answer

    def start(self, which: int) -> None:
        name = str(which)
        if name not in self.world.running or self.world.running[name].done():
            options = {"max_concurrent_sessions": 1 + which, "session_idle_timeout": seconds(2)}
            self.world.start(name, self.handle, grace_period=seconds(4), **options)

    async def event(self, what: str, which: int, pause: float) -> None:
        match what:
            case "deliver":
                session = SESSIONS[which]
                self.world.deliver(f"{session}{self.delivered[session]}")
                self.delivered[session] += 1
                return
            case "start":
                self.start(which)
            case "stop" if str(which) in self.world.processors:
                self.world.processors[str(which)].stop()
            case "kill" if str(which) in self.world.running:
                self.world.running[str(which)].cancel()
            case "outage":
                self.broker.down = True
                self.broker.changed.set()
        await asyncio.sleep(pause)
        self.broker.down = False

    async def run(self, events: list[tuple[str, int, float]]) -> None:
        for event in events:
            await self.event(*event)
        self.calm = True
        for which in range(3):
            self.start(which)
        # All processors may have been stopping. If they end before all messages were received, start processor 0 again.
        await self.world.until(lambda: not self.broker.waiting or all(t.done() for t in self.tasks))
        self.start(0)
        await self.world.until_empty()
        for processor in self.world.processors.values():
            processor.stop()
        ended = await asyncio.gather(*self.tasks, return_exceptions=True)
        assert {None} >= {one for one in ended if not isinstance(one, asyncio.CancelledError)}

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        return [*self.world.running.values()]


@given(EVENTS, st.integers(0, 2**32))
def test_the_messages_of_a_session_are_handled_one_at_a_time_and_in_order(
    events: list[tuple[str, int, float]], seed: int
) -> None:
    """Each message is settled exactly once."""
    random.seed(seed)  # so that the random part of back-offs is repeatable
    play = Play(random.Random(seed))
    with asyncio.Runner(loop_factory=lambda: looptime.new_event_loop(noop_cycles=0)) as runner:
        runner.run(play.run(events))
    assert [] == play.wrong
    settled = Counter(
        message.message_id for message, how in play.broker.settled if not isinstance(how, Retry)
    )
    assert (
        dict.fromkeys((f"{s}{n}" for s, count in play.delivered.items() for n in range(count)), 1) == settled
    )
    assert not any(queue.holders for queue in play.broker._queues.values())
