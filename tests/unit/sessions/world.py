"""
Helpers for the tests of session processors: a subscription in memory, processors that receive from it, and a handler that lists what it
does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from cosmos_outbox.adapters.memory import MemorySubscription
from cosmos_outbox.adapters.memory.subscription import MemorySession
from cosmos_outbox.message_format import Message
from cosmos_outbox.ports import Settlement, Subscription
from cosmos_outbox.records import Record
from cosmos_outbox.retries import Backoff
from cosmos_outbox.sessions import HeldSession, SessionOptions, SessionProcessor

Work = Callable[[Message], Awaitable[Settlement | None]]


class Slow(MemorySubscription):
    """A subscription that takes `seconds` to deliver each message."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    async def accept(self, wait_seconds: float) -> MemorySession | None:
        session = await super().accept(wait_seconds)
        if session is not None:
            receive = session.receive

            async def received(wait_seconds: float) -> Message | None:
                await asyncio.sleep(self._seconds)
                return await receive(wait_seconds)

            session.receive = received  # type: ignore[method-assign]
        return session


@dataclass
class World:
    """
    A subscription and its processors. `diary` has a line for each begin and end of a handler, such as "a1", "a1 done" or "a1
    cancelled".
    """

    subscription: MemorySubscription = field(default_factory=MemorySubscription)
    options: dict[str, Any] = field(default_factory=dict)
    diary: list[str] = field(default_factory=list)
    held: dict[str | None, HeldSession] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)
    processors: dict[str, SessionProcessor] = field(default_factory=dict)
    running: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    def start(
        self, name: str = "one", work: Work | None = None, *, on: Subscription | None = None, **options: Any
    ) -> SessionProcessor:
        async def handler(message: Message, session: HeldSession) -> Settlement | None:
            self.held[session.id] = session
            self.diary.append(message.message_id)
            try:
                settlement = None if work is None else await work(message)
            except asyncio.CancelledError:
                self.diary.append(f"{message.message_id} cancelled")
                raise
            self.diary.append(f"{message.message_id} done")
            return settlement

        chosen = {"backoff": Backoff(initial_seconds=1, maximum_seconds=1), **self.options, **options}
        processor = SessionProcessor(
            on or self.subscription, handler, SessionOptions(**chosen), hooks=[self.records.append]
        )
        self.processors[name] = processor
        self.running[name] = asyncio.create_task(processor.run())
        return processor

    async def stop(self, name: str = "one") -> None:
        self.processors[name].stop()
        await self.running[name]

    async def kill(self, name: str = "one") -> None:
        self.running[name].cancel()
        await asyncio.gather(self.running[name], return_exceptions=True)

    def deliver(self, *names: str) -> None:
        """Deliver messages by name: "a1" is message a1 of session a."""
        for name in names:
            self.subscription.deliver(Message(message_id=name, session_id=name[0]))

    async def until(self, fact: Callable[[], object], *, seconds: float = 600) -> None:
        async with asyncio.timeout(seconds):
            while not fact():  # noqa: ASYNC110 - any fact
                await asyncio.sleep(0.05)

    async def play(self, *names: str, work: Work | None = None, **options: Any) -> None:
        """Deliver these messages to one processor, and run it until none is left."""
        self.deliver(*names)
        self.start(work=work, **options)
        await self.until_empty()
        await self.stop()

    async def until_empty(self) -> None:
        await self.until(lambda: not self.subscription.waiting)

    @property
    def begun(self) -> list[str]:
        return [line for line in self.diary if " " not in line]

    def of(self, kind: type[Record]) -> list[Any]:
        return [record for record in self.records if isinstance(record, kind)]


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


def takes(duration: float) -> Work:
    async def work(message: Message) -> None:
        await asyncio.sleep(duration)

    return work


def by_id(**works: Work) -> Work:
    """
    Return a handler that calls the given function for each named message, and completes all other messages.
    """

    async def work(message: Message) -> Settlement | None:
        return await works[message.message_id](message) if message.message_id in works else None

    return work


def answers(*settlements: Settlement | Exception | None) -> Work:
    """
    Return a handler that returns or raises one of these answers for each message in turn, and completes all further messages.
    """
    left = [*settlements]

    async def work(message: Message) -> Settlement | None:
        answer = left.pop(0) if left else None
        if isinstance(answer, Exception):
            raise answer
        return answer

    return work
