"""
Simulate processes in a test, one of which dies at a given request. Processes that start later find the data that was stored before
its death.
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
    """
    The simulated process has died, so its calls no longer reach the store, the topic or the subscription.

    This is a subclass of CancelledError, so that the tasks of the process end without reporting an error.
    """


@dataclass(slots=True, eq=False)
class Process:
    """
    A simulated process: a task, and all tasks that this task starts.

    name: the name of the process in reports.
    consumer: the name of the consumer, if it is a process of a consumer.
    crashed: whether the process is dead.
    task: the task in which the process runs.
    """

    name: str
    consumer: str | None = None
    crashed: bool = False
    task: asyncio.Task[object] | None = None

    def crash(self) -> None:
        """Let the process die now. Calls that it still makes while its tasks end have no effect."""
        self.crashed = True
        if self.task is not None:
            self.task.cancel()

    async def run(self, work: Callable[[], Coroutine[Any, Any, ResultT]]) -> ResultT:
        """
        Run the process until its work ends, and return the result of the work.

        Raises:
            Crash: the process died before its work ended.
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
            # Wait until the tasks of the dead process have ended, and ignore their errors.
            await asyncio.gather(running, return_exceptions=True)
            raise Crash
        return running.result()


_process: ContextVar[Process] = ContextVar("_process")
_step: ContextVar[str] = ContextVar("_step", default="")
_message: ContextVar[Message | None] = ContextVar("_message", default=None)
_ANYONE = Process(APPLICATION)  # the process of code that runs outside of `Process.run`


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """
    One commit of a run: its writes, and the process that made it. If that is a process of a consumer, also the message that it handled.
    """

    step: str
    process: Process
    writes: tuple[Write, ...]
    message: Message | None

    @property
    def documents(self) -> list[Document]:
        """Return the documents that the commit created or replaced."""
        return [dict(write.document) for write in self.writes if write.document is not None]

    @property
    def inbox(self) -> list[str]:
        """Return the ids of the messages that took effect in this commit. Its inbox records name them."""
        return [str((write.document or {})["messageId"]) for write in self.writes if is_inbox(write)]

    @property
    def has_effects(self) -> bool:
        return not all(is_inbox(write) for write in self.writes)


@dataclass(slots=True, kw_only=True)
class Run:
    """
    One run of a test with crash points: which process has to die where, and what happened.

    point: the point at which a process has to die, such as `send#2:after`. None for a run without a crash.
    crashed_in: the process that died. None until a process dies.
    steps: the requests of the run, in order.
    batches: the commits of the run, in order.
    points: the crash points that the run reached, in order.
    consumers: the consumers that the run used, by name.
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
        """
        Carry out a call of a port, unless the process that makes it is dead. If the call is the crash point of this run, let the process
        die.
        """
        process = _process.get(_ANYONE)
        if process.crashed:
            raise Crash
        if (operation := operation_of(call, self._tokens)) is None:
            answer = await proceed()
            if call.method == "receive":
                # Remember the message for the commits of this task and of the tasks that it starts.
                _message.set(answer)
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
        """Carry out a call. If it is a commit, add it to `batches`, even if a fault loses its answer afterwards."""
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
    A harness whose application, workers and consumers run in simulated processes, which can die at a request.

    If a worker dies, the same call of `relay_all` starts it again. If a process of a consumer dies, `consume_all` starts it again.
    """

    run: Run

    @classmethod
    def of(cls, run: Run, stored: OutboxHarness) -> CrashHarness:
        """Return a harness for a run that has the stored data of another harness."""
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
        self.records.append(record)  # not logged, because the log would mix the records of all runs

    async def _until_done(
        self, work: Callable[[], Coroutine[Any, Any, object]], name: str, consumer: str | None = None
    ) -> None:
        if _process.get(_ANYONE).crashed:
            raise Crash
        try:
            await Process(name, consumer).run(work)
        except Crash:
            await Process(f"{name}, started again", consumer).run(work)
