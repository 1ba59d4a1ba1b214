"""
Simulated units of work that change one entity at the same time, over a network that loses, repeats and delays requests. Each run writes
a trace: the list of its steps.

With `models/TraceCommit.tla`, the model checker TLC finds out whether the trace is a behaviour that `models/Commit.tla` allows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from enum import Enum, auto
from random import Random
from typing import Any

from cosmos_outbox import (
    CommitOutcomeUnknown,
    DomainEvent,
    Entity,
    NotFound,
    Outbox,
    StoreUnavailable,
    TooManyRequests,
)
from cosmos_outbox.adapters.memory import MemoryContainer
from cosmos_outbox.errors import BUSY, REFUSALS
from cosmos_outbox.ports import CommitResult, Write, WriteKind
from cosmos_outbox.retries import Backoff, RetryOptions
from cosmos_outbox.stored_documents import Document

_ENTITY = "e"
# In seconds. If an event is missing up to a minute after the first attempt of its commit, the commit was not applied. Later, the event
# may have been deleted.
_MINUTE = 60.01
_RETRIES = RetryOptions(
    deadline_seconds=5, attempt_seconds=2, backoff=Backoff(initial_seconds=0.1, maximum_seconds=1)
)


class _Fault(Enum):
    LOST = auto()
    ANSWER_LOST = auto()
    HANGS = auto()
    LATE = auto()
    RESENT = auto()  # the SDK or a proxy repeats the request
    BUSY = auto()
    UNNAMED = auto()  # the error of the store does not say which document was refused


class Changed(DomainEvent):
    pass


class Account(Entity):
    changes: int = 0

    def created_event(self) -> Changed:
        return Changed()

    def change(self) -> None:
        self.changes += 1
        self.record(Changed())


class Commits:
    """
    One run of units of work, with random faults. `lines` is its trace.

    storm: whether so many requests fail that commits run out of time.
    """

    def __init__(self, chance: Random, *, storm: bool = False) -> None:
        self.storm = storm
        self._chance, self._container = chance, MemoryContainer()
        self._creates = chance.random() < 1 / 3
        self._writers = [f"w{number}" for number in range(1, chance.randint(2, 4))]
        self.lines: list[dict[str, Any]] = []
        self.say("all", "begins", writers=self._writers, creates=self._creates)

    def say(self, actor: str, action: str, **values: object) -> None:
        self.lines.append({"actor": actor, "action": action, **values})

    async def play(self) -> None:
        if not self._creates:
            document = {
                "id": _ENTITY,
                "partitionKey": _ENTITY,
                "type": "account",
                "data": {"id": _ENTITY},
                "ttl": -1,
            }
            await self._container.commit(
                _ENTITY, [Write(kind=WriteKind.CREATE, id=_ENTITY, document=document)]
            )
        async with asyncio.timeout(3600), asyncio.TaskGroup() as group:
            for name in self._writers:
                group.create_task(self._write(name))
            if not self._creates and self._chance.random() < 1 / 3:
                group.create_task(self._change_elsewhere())

    async def _write(self, name: str) -> None:
        store: Any = _Store(self, name, self._container, self._chance, creates=self._creates)
        await asyncio.sleep(self._chance.choice((0.0, 0.0, 0.3, 2.0)))
        async with Outbox(store, retries=_RETRIES).unit_of_work() as uow:
            accounts = uow.repository(Account)
            if self._creates:
                self.say(name, "reads")
                accounts.create(Account(id=_ENTITY))
            else:
                (await accounts.read(_ENTITY)).change()
            for _ in range(3):
                try:
                    await uow.commit()
                    verdict = "written"
                except CommitOutcomeUnknown:
                    verdict = "unknown"
                except REFUSALS:
                    verdict = "refused"
                except BUSY:
                    verdict = "failed"
                self.say(name, "ends", verdict=verdict)
                if verdict != "unknown":
                    return
                await asyncio.sleep(self._chance.choice((0.0, 1.0, 70.0)))
                self.say(name, "again")

    async def _change_elsewhere(self) -> None:
        await asyncio.sleep(self._chance.choice((0.2, 1.0, 4.0)))
        while True:
            document = await self._container.read(_ENTITY, _ENTITY)
            document["data"]["theirs"] = True
            write = Write(kind=WriteKind.REPLACE, id=_ENTITY, document=document, etag=document["_etag"])
            try:
                await self._container.commit(_ENTITY, [write])
            except REFUSALS:
                continue
            return self.say("another program", "elsewhere")


class _Store:
    """The store of one simulated writer. It applies the faults and writes the trace."""

    def __init__(
        self, run: Commits, name: str, container: MemoryContainer, chance: Random, *, creates: bool
    ) -> None:
        self._run, self._name, self._container, self._chance = run, name, container, chance
        self.key_paths = container.key_paths
        self._faults = [chance.choice([None, None, *_Fault]) for _ in range(chance.randint(0, 5))]
        if run.storm:
            self._faults = chance.choices((_Fault.LOST, _Fault.BUSY, _Fault.ANSWER_LOST), (4, 8, 1), k=20)
        self._has_read, self._answered, self._sent = creates, False, False
        self._late: set[asyncio.Task[None]] = set()

    def _say(self, action: str, **values: object) -> None:
        self._run.say(self._name, action, **values)

    async def read(self, document_id: str, partition_key: Any, **_: object) -> Document:
        if document_id == _ENTITY:
            document = await self._container.read(document_id, partition_key)
            if not self._has_read:
                self._has_read = True
                self._say("reads")
            return document
        try:
            document = await self._looked_up(document_id, partition_key)
        except NotFound:
            self._say("looks", found=False)
            raise
        except BaseException:  # cancelled too
            self._say("look fails")
            raise
        self._say("looks", found=True)
        return document

    async def _looked_up(self, document_id: str, partition_key: Any) -> Document:
        await asyncio.sleep(self._chance.choice((0.0, 0.1)))
        unlucky = self._chance.random()
        if unlucky < (0.7 if self._run.storm else 0.1):
            raise StoreUnavailable
        # A read can miss a new document only before the first answer, because the session token of an answer keeps later reads
        # up to date.
        if unlucky < 0.3 and not self._answered:
            raise NotFound(document_id=document_id)
        return await self._container.read(document_id, partition_key)

    async def commit(self, partition_key: Any, writes: Sequence[Write]) -> CommitResult:
        self._say_sends(writes)
        if not self._sent:
            self._sent = True
            asyncio.get_running_loop().call_later(_MINUTE, self._say, "minute")
        fault = self._faults.pop(0) if self._faults else None
        try:
            await asyncio.sleep(self._chance.choice((0.0, 0.1, 0.5)))
        except asyncio.CancelledError:
            self._say("lost", how="never")
            raise
        self._fail_before(fault, partition_key, writes)
        try:
            result = await self._container.commit(partition_key, writes)
        except REFUSALS as refusal:
            if fault in (_Fault.ANSWER_LOST, _Fault.HANGS):
                self._say("lost", how="never")
                raise StoreUnavailable from refusal
            if fault is _Fault.UNNAMED:
                refusal.document_id = None
            self._say_refused(refusal.document_id)
            raise
        if fault in (_Fault.ANSWER_LOST, _Fault.HANGS, _Fault.RESENT):
            return await self._unanswered(fault, partition_key, writes)
        self._answered = True
        self._say("written")
        return result

    def _fail_before(self, fault: _Fault | None, partition_key: Any, writes: Sequence[Write]) -> None:
        """Raise the error of this fault if the store does not execute the request, or executes it later."""
        if fault is _Fault.BUSY:
            self._say("throttled")
            raise self._chance.choice((TooManyRequests(retry_after=0.2), StoreUnavailable(applied=False)))
        if fault in (_Fault.LOST, _Fault.LATE):
            self._say("lost", how="late" if fault is _Fault.LATE else "never")
            if fault is _Fault.LATE:
                self._late.add(asyncio.create_task(self._arrive_late(partition_key, writes)))
            raise StoreUnavailable

    async def _unanswered(
        self, fault: _Fault | None, partition_key: Any, writes: Sequence[Write]
    ) -> CommitResult:
        """
        Lose the answer to an executed commit. With the fault RESENT, the SDK or a proxy repeats the request, and the writer gets
        the answer to the repetition.
        """
        self._say("lost", how="applied")
        if fault is _Fault.HANGS:
            await asyncio.Event().wait()
        if fault is _Fault.ANSWER_LOST:
            raise StoreUnavailable
        # The model repeats a commit only after it has looked for the commit's event. The SDK or a proxy repeats a request without
        # looking, so the trace says that the model has looked in vain.
        self._say("look fails")
        self._say_sends(writes)
        try:
            return await self._container.commit(partition_key, writes)
        except REFUSALS as refusal:
            self._say_refused(refusal.document_id)
            raise

    def _say_sends(self, writes: Sequence[Write]) -> None:
        self._say("sends", writes=["entity" if write.id == _ENTITY else "event" for write in writes])

    def _say_refused(self, document_id: str | None) -> None:
        self._answered = True
        self._say("refused", named={None: "unnamed", _ENTITY: "entity"}.get(document_id, "event"))

    async def _arrive_late(self, partition_key: Any, writes: Sequence[Write]) -> None:
        await asyncio.sleep(self._chance.choice((0.05, 0.3, 3.0)))
        try:
            await self._container.commit(partition_key, writes)
        except REFUSALS:
            self._say("arrives", applied=False)
        else:
            self._say("arrives", applied=True)
