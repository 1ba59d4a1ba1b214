"""
The simulation of consumers, which also writes a trace of each session: the list of effects, settlements and held messages, and of what
operators do.

With `models/TraceConsumer.tla`, the model checker TLC finds out whether a trace is a behaviour that `models/Parked.tla` allows a consumer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from random import Random
from typing import Any
from weakref import WeakKeyDictionary

from cosmos_outbox import Outbox
from cosmos_outbox.adapters.memory import MemoryParked
from cosmos_outbox.consumer import Handling, OnFailure
from cosmos_outbox.message_format import Message
from cosmos_outbox.parking import ParkedKeys, Parking, Scope
from cosmos_outbox.parking.park import HoldResult
from cosmos_outbox.parking.parked_documents import KEY_ID
from cosmos_outbox.parking.release import Send
from cosmos_outbox.ports import CommitResult, ParkedStore, Retry, Settlement, Write
from cosmos_outbox.sessions import SessionHandler
from cosmos_outbox.stored_documents import Document
from tests.simulation.consumers import _RETRY, Act, Operator, Simulation
from tests.simulation.consumers_script import random_consumers_script
from tests.simulation.key_traces import KeyTrace, Partition, TracedKeys, acting, is_late, traced_send
from tests.simulation.program import Container, Fault, Port, Program
from tests.support.parked_stores import Passing, ResultT


@dataclass(slots=True)
class _Request:
    """
    A request to the parked store. `over` says that its sender no longer waits, so a write that is executed now is late.
    """

    over: bool = False


_request: ContextVar[_Request] = ContextVar("request", default=_Request())  # noqa: B039 - of those that no trace is of


def _number(message_id: str) -> int:
    found = re.search(r"\d+$", message_id)
    assert found is not None, message_id
    return int(found[0])


def _keyed(message_id: str) -> str:
    """
    Return the key of a message. The id of a message is the key, a separator of one character, and a number.
    """
    return re.sub(r".\d+$", "", message_id)


class TracedConsumers(Simulation):
    """One run of the simulated consumer, with a random script. `traces` has the trace of each key."""

    def __init__(self, chance: Random) -> None:
        script = random_consumers_script(chance)
        operators = (*script.operators, *_at_once(chance))
        super().__init__(replace(script, on_failure=OnFailure.PARK, operators=operators))
        self.traces = {key: KeyTrace(len(ids)) for key, ids in self.script.expected.items()}
        self.parked = _Service(self)
        self._holders: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
        self._newest: dict[str, str] = {}  # for each key, the process that locked its session last
        self._names = 0

    def of(self, key: str) -> KeyTrace:
        # An operator may park a key that has no message in the script, and so has no trace yet.
        return self.traces.setdefault(key, KeyTrace(0))

    def of_partition(self, partition: str) -> KeyTrace:
        return self.of(json.loads(partition)[2])

    def _next(self, kind: str) -> str:
        self._names += 1
        return f"{kind}{self._names}"

    def next_release(self) -> str:
        return self._next("r")

    # The following methods override the simulation to write the trace.

    def handles(self, handling: Handling) -> SessionHandler:
        async def handle(message: Message, session: Any) -> Settlement:
            key = str(message.session_id)
            if session not in self._holders:
                self._newest[key] = self._holders[session] = self._next("h")
                self.of(key).takes(self._holders[session])
            acting.set(self._holders[session])
            self.of(key).say("receives", number=_number(message.message_id))
            return await handling(message, session)

        return handle

    def outbox(self, program: Program) -> Outbox:
        return Outbox(_Effects(self, program, self.container), retries=_RETRY)

    def parking(self, store: ParkedStore) -> Parking:
        return _Parking(self, _Answered(store), retry=_RETRY, references=False)

    def sends(self, handling: Handling) -> Send:
        return traced_send(
            super().sends(handling),
            lambda event: (self.of(event.event["partitionKey"]), _number(event.event_id)),
        )

    def _keys(self, program: Program) -> ParkedKeys:
        keys = super()._keys(program)
        return TracedKeys(self, _Answered(keys._store), keys._send, scope=keys._scope, retry=keys._retry)

    def batch_is_applied(self, documents: Collection[Document]) -> None:
        super().batch_is_applied(documents)
        for message_id in (one["messageId"] for one in documents if one["type"] == "inboxRecord"):
            self.of(_keyed(message_id)).say("enters", number=_number(message_id))

    def _is_settled(self, message: Message, settlement: Settlement) -> bool:
        key = str(message.session_id)
        if not isinstance(settlement, Retry):
            self.of(key).say("settles", self._newest[key], number=_number(message.message_id))
        return super()._is_settled(message, settlement)


def _at_once(chance: Random) -> list[Operator]:
    """
    Return operators whose commands are slow and run at about the same time, so that they meet at the same keys.
    """
    begins = chance.uniform(3, 25)
    return [
        Operator(
            starts_at=begins + chance.uniform(0, 2),
            lives_for=chance.choice((1000.0, chance.uniform(0, 3))),
            act=chance.choice((Act.RELEASE, Act.RELEASE, Act.EDIT, Act.DROP_FIRST, Act.DROP_LAST)),
            seconds=chance.choice((0.05, 0.2, 0.4)),
            faults=dict.fromkeys((Port.COMMIT, Port.PARKED), (None, None, Fault.LATE)),
        )
        for _ in range(chance.randint(0, 4))
    ]


class _Effects(Container):
    def __init__(self, run: TracedConsumers, program: Program, container: Any) -> None:
        super().__init__(program, container)
        self._run = run

    async def commit(self, partition_key: Any, writes: Sequence[Write]) -> CommitResult:
        for document in (write.document or {} for write in writes):
            if document.get("type") == "inboxRecord":
                message_id = document["messageId"]
                self._run.of(_keyed(message_id)).say("sends", number=_number(message_id))
        return await super().commit(partition_key, writes)


class _Parking(Parking):
    def __init__(self, run: TracedConsumers, store: ParkedStore, **options: Any) -> None:
        super().__init__(store, **options)
        self._run = run

    async def hold(
        self,
        partition_key: str,
        items: Sequence[Any],
        *args: Any,
        scope: Scope = Scope(),  # noqa: B008 - a frozen value
        **options: Any,
    ) -> HoldResult[Any]:
        # `args` has the failure that parks the key. If it is empty, the key is parked already.
        parks = bool(args)
        trace, number = self._run.of(partition_key), _number(items[0].id)
        trace.say("refused" if parks else "learns", number=number)
        held = await super().hold(partition_key, items, *args, scope=scope, **options)
        named = held.parked and held.decided is None if parks else not held.not_held
        trace.say("holds", number=number, done=number - len(held.not_held), named=named)
        return held


class _Answered(Passing):
    """
    The parked store of one program. It records whether the sender of a request still waits, to find late writes.
    """

    async def call(
        self, operation: str, partition_key: str, request: Callable[[], Awaitable[ResultT]]
    ) -> ResultT:
        sent = _Request()
        before = _request.set(sent)
        try:
            return await request()
        finally:
            sent.over = True
            _request.reset(before)


class _Service(MemoryParked):
    def __init__(self, run: TracedConsumers) -> None:
        super().__init__(now=run.now)
        self._run = run

    async def read(self, document_id: str, partition_key: Any, **options: Any) -> Document:
        document = await super().read(document_id, partition_key, **options)
        if document_id == KEY_ID:
            self._run.of_partition(partition_key).saw(document)
        return document

    async def commit(self, partition_key: Any, writes: Sequence[Write]) -> CommitResult:
        def after() -> Partition:
            is_late.set(_request.get().over)
            found = [one for one in self.documents() if one["partitionKey"] == partition_key]
            return Partition(found, _number)

        by_holder = acting.get().startswith("h") and not _request.get().over
        trace = self._run.of_partition(partition_key)
        return await trace.follow(super().commit(partition_key, writes), writes, after, by_holder=by_holder)
