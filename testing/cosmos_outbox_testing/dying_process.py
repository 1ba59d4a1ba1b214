"""
Dying process: a process that dies at one call of a port, and what is stored by then; every process after it begins with that.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from cosmos_outbox.consumer import Consumer
from cosmos_outbox.message_format import Message, OutboundMessage
from cosmos_outbox.ports import Write
from cosmos_outbox.records import Record
from cosmos_outbox.stored_documents import Document
from cosmos_outbox_testing.consuming import Delivered
from cosmos_outbox_testing.crash_steps import Step, about_of, arguments_of, is_inbox, operation_of
from cosmos_outbox_testing.harness import OutboxHarness
from cosmos_outbox_testing.port_calls import Call

ResultT = TypeVar("ResultT")
APPLICATION, RELAY = "application", "relay"


class Crash(asyncio.CancelledError):
    """The process is dead: none of its calls reaches a port any more. This is a cancellation, so it ends tasks silently."""


@dataclass(slots=True, eq=False)
class Process:
    """
    One process. Tasks that it starts belong to it, too.

    consumer: its name, if it is a process of one.
    """

    name: str
    consumer: str | None = None
    crashed: bool = False
    task: asyncio.Task[object] | None = None

    def crash(self) -> None:
        """End the process at this call. What it does while it ends reaches no port."""
        self.crashed = True
        if self.task is not None:
            self.task.cancel()

    async def run(self, work: Callable[[], Coroutine[Any, Any, ResultT]]) -> ResultT:
        """
        Run the process until its work ends.

        Raises:
            Crash: the process crashed before.
        """
        token = _process.set(self)
        running = asyncio.create_task(work())
        self.task = running
        _process.reset(token)
        try:
            await asyncio.wait({running})
        finally:
            running.cancel()
        if self.crashed:
            await asyncio.gather(running, return_exceptions=True)  # the dead process may raise any error
            raise Crash
        return running.result()


_process: ContextVar[Process] = ContextVar("_process")
_step: ContextVar[str] = ContextVar("_step", default="")
_message: ContextVar[Message | None] = ContextVar("_message", default=None)
_ANYONE = Process(APPLICATION)  # the process outside of a run


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The writes of one commit, and the message that was handled, if the process of a consumer committed."""

    step: str
    process: Process
    writes: tuple[Write, ...]
    message: Message | None

    @property
    def documents(self) -> list[Document]:
        """Return the documents that were written, without the deleted ones."""
        return [dict(write.document) for write in self.writes if write.document is not None]

    @property
    def inbox(self) -> list[str]:
        """Return the ids of the messages whose effects the documents record."""
        return [str((write.document or {})["messageId"]) for write in self.writes if is_inbox(write)]

    @property
    def has_effects(self) -> bool:
        return not all(is_inbox(write) for write in self.writes)


@dataclass(slots=True, kw_only=True)
class Run:
    """
    One run of a scenario: its steps in order, and the point at which one of its processes crashes.

    point: as `send#2:after`; None for a run without a crash.
    crashed_in: the process that crashed, once one did.
    """

    point: str | None = None
    crashed_in: Process | None = None
    steps: list[Step] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    points: list[str] = field(default_factory=list)
    consumers: dict[str, Consumer] = field(default_factory=dict)
    _numbers: Counter[str] = field(default_factory=Counter)
    _tokens: dict[str, object] = field(default_factory=dict)

    async def __call__(self, call: Call, proceed: Callable[[], Awaitable[Any]]) -> Any:
        """Carry out a call of a port, unless its process is dead. Crash the process if this run says so."""
        process = _process.get(_ANYONE)
        if process.crashed:
            raise Crash
        if (operation := operation_of(call, self._tokens)) is None:
            answer = await proceed()
            if call.method == "receive":
                _message.set(answer)  # for the task that serves the session, and for tasks that it starts
            return answer
        self._numbers[operation] += 1
        name = f"{operation}#{self._numbers[operation]}"
        _step.set(name)
        self.steps.append(Step(name=name, process=process.name, about=about_of(call)))
        self._reach(f"{name}:before", process)
        try:
            return await proceed()
        finally:
            self._reach(f"{name}:after", process)

    async def record(self, call: Call, proceed: Callable[[], Awaitable[Any]]) -> Any:
        """Carry out a call, and note what it committed, also if the answer gets lost on the way."""
        answer = await proceed()
        if (call.port, call.method) == ("store", "commit"):
            process, message = _process.get(_ANYONE), _message.get()
            writes = tuple(arguments_of(call)[1])
            self.batches.append(Batch(step=_step.get(), process=process, writes=writes, message=message))
        return answer

    def _reach(self, point: str, process: Process) -> None:
        self.points.append(point)
        if process.crashed:
            raise Crash
        if point == self.point and self.crashed_in is None:
            self.crashed_in = process
            process.crash()
            raise Crash


class CrashHarness(OutboxHarness):
    """
    A harness whose application, workers and consumers are processes. Each may die at a call.

    A worker that dies is started again by the same `relay_all`, a consumer's process by the same `consume_all`.
    """

    run: Run

    @classmethod
    def of(cls, run: Run, stored: OutboxHarness) -> CrashHarness:
        """Return a harness for a run, with the stored data of another one."""
        harness = cls(**stored.stored)
        harness.run = run
        harness.around[:] = [run, *harness.around, run.record]
        return harness

    async def relay_all(self, *, allow_failures: bool = False) -> list[OutboundMessage]:
        before = len(self.broker.entered)
        await self._until_done(partial(super().relay_all, allow_failures=allow_failures), RELAY)
        return self.broker.accepted[before:]

    async def consume_all(self, consumer: Consumer, *, allow_failures: bool = False) -> list[Delivered]:
        self.run.consumers[consumer.name] = consumer
        consume = partial(super().consume_all, consumer, allow_failures=allow_failures)
        before = len(self._subscription_of(consumer).delivered)
        await self._until_done(consume, f"consumer {consumer.name}", consumer.name)
        return self._subscription_of(consumer).delivered[before:]

    def _notify(self, record: Record) -> None:
        self.records.append(record)  # not to the log, which would mix the records of all runs

    async def _until_done(
        self, work: Callable[[], Coroutine[Any, Any, object]], name: str, consumer: str | None = None
    ) -> None:
        if _process.get(_ANYONE).crashed:
            raise Crash
        try:
            await Process(name, consumer).run(work)
        except Crash:
            await Process(f"{name}, started again", consumer).run(work)
