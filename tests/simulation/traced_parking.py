"""
The simulation of relays as a trace of one partition key: what its owners send and hold, and what operators release, edit, drop and park.

`models/TraceParked.tla` accepts a trace that is a behaviour of `models/Parked.tla`. What was done to the parked store is told by what a
write changed there, whoever made it.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from dataclasses import replace
from random import Random
from typing import Any

from cosmos_outbox.adapters.memory.broker import Fault, MemoryBroker
from cosmos_outbox.errors import NotFound
from cosmos_outbox.message_format import OutboundMessage
from cosmos_outbox.parking import ParkedEvent, ParkedKeys, Parking, Released, Scope, SendResult
from cosmos_outbox.parking.park import HoldResult
from cosmos_outbox.parking.parked_documents import KEY_ID
from cosmos_outbox.parking.release import Send
from cosmos_outbox.ports import CommitResult, Notes, ParkedStore, Write, WriteKind
from cosmos_outbox.stored_documents import Document
from tests.simulation.relay import Act, Operator, Processor, Simulation
from tests.simulation.relay_script import random_relay_script
from tests.support.versioned_parked import Link, Service, Session

_actor: ContextVar[str] = ContextVar("actor", default="an operator")
_is_late: ContextVar[bool] = ContextVar("is_late", default=False)


class KeyTrace:
    """The trace of one key; `version` is that of its partition in the model."""

    def __init__(self, count: int) -> None:
        self.lines: list[dict[str, Any]] = []
        self.say("begins", "all", count=count, holders=[], releases=[])
        self.version, self._etags = 1, dict[str, int]()
        self._seen: dict[str, int] = {}  # by actor, the version that it read or wrote last
        self._partition = Partition((), int)

    def say(self, action: str, actor: str | None = None, **values: object) -> None:
        self.lines.append({"actor": actor or _actor.get(), "action": action, **values})

    def takes(self, holder: str) -> None:
        self.lines[0]["holders"].append(holder)
        self.say("takes", holder)

    def saw(self, key: Document) -> None:
        self._seen[_actor.get()] = self._etags.get(key["_etag"], 0)

    @property
    def variety(self) -> tuple[int, int]:
        return len({line["action"] for line in self.lines}), self.version

    @property
    def seen(self) -> int:
        return self._seen.get(_actor.get(), 0)

    def changed(self, writes: Sequence[Write], result: CommitResult, after: Partition) -> None:
        """Hear of a batch that was applied."""
        before, self._partition = self._partition, after
        place = next((place for place, write in enumerate(writes) if write.id == KEY_ID), None)
        appended = [number for number, at in after.held.items() if before.held.get(number) != at]
        removed = [number for number in before.held if number not in after.held]
        if place is None and not appended and not removed:
            return  # one more reason in a record
        seen = 0 if place is None else self._seen_by(writes[place])
        if appended:
            for number in appended:
                if _is_late.get():
                    self.say("parks late", number=number, seen=seen)
                else:
                    self.say("looks", number=number, seen=seen)
                    self.say("appends", number=number)
                self.version += 1
                seen = self.version
        else:
            self._say_other(removed, seen, before, after)
            self.version += 1
        if place is not None and after.key is not None:
            self._etags[str(result.etags[place])] = self.version
        self._seen[_actor.get()] = self.version

    def _seen_by(self, write: Write) -> int:
        if write.etag is not None:
            return self._etags.get(write.etag, 0)
        return self.version if write.kind is WriteKind.CREATE else 0

    def _say_other(self, removed: list[int], seen: int, before: Partition, after: Partition) -> None:
        claim = after.key and after.key["claim"]
        if after.key is None:
            self.say("reads", due=[], seen=seen)
            self.say("hands back")
        elif before.key is None:
            self.say("parks", seen=seen)
        elif removed and after.dropped.issuperset(removed):
            self.say("drops", number=removed[0], seen=seen)
        elif removed:
            self.say("takes off", numbers=removed, seen=seen)
        elif claim == before.key["claim"]:
            self.say("touches", seen=seen)
        elif claim is None:
            self.say("stops", seen=seen)
        else:
            self.lines[0]["releases"].append(_actor.get())
            self.say("claims", seen=seen, edits=sorted(after.edited - before.edited))


class Partition:
    """What the parked store has of one key; events by their numbers, in the order of the queue."""

    def __init__(self, documents: Sequence[Document], number: Callable[[str], int]) -> None:
        self.key = next((one for one in documents if one["id"] == KEY_ID), None)
        events = [one for one in documents if one["id"] != KEY_ID]
        held = sorted((one for one in events if one["status"] == "held"), key=lambda one: one["position"])
        self.held = {number(one["event"]["id"]): (one["epoch"], one["position"]) for one in held}
        self.dropped = {number(one["event"]["id"]) for one in events if one["status"] == "dropped"}
        self.edited = {number(one["event"]["id"]) for one in held if one.get("original") is not None}


def _number(event_id: str) -> int:
    return int(event_id.partition("/")[2]) + 1


class TracedParking(Simulation):
    """One run, all of it drawn from one seed; `traces` has that of each key of each processor."""

    def __init__(self, chance: Random) -> None:
        script = random_relay_script(chance)
        super().__init__(replace(script, operators=(*script.operators, *_at_once(chance))))
        self.traces = {
            (processor.name, key): KeyTrace(len(ids))
            for processor in self.processors
            for key, ids in self.script.committed.items()
        }
        self.service = _Service(self)
        self._releases = 0
        self._saved: dict[tuple[str, str], tuple[int, bool]] = {}
        for processor in self.processors:
            processor.broker = _Broker(self, processor)

    def of(self, processor: str, key: str) -> KeyTrace:
        # An operator may park a key that has no event
        return self.traces.setdefault((processor, key), KeyTrace(0))

    def of_partition(self, partition: str) -> KeyTrace:
        processor, _, key = json.loads(partition)
        return self.of(processor, key)

    def of_message(self, processor: Processor, message: OutboundMessage) -> KeyTrace:
        return self.of(processor.name, message.message_id.partition("/")[0])

    def next_release(self) -> str:
        self._releases += 1
        return f"r{self._releases}"

    # the parts of the simulation

    def session(self, link: Link) -> ParkedStore:
        return _Session(self, link)

    def parking(self, store: ParkedStore) -> Parking:
        return _Parking(self, store, retry=super().parking(store)._retry)

    def operator(self, processor: Processor, store: ParkedStore) -> ParkedKeys:
        keys = super().operator(processor, store)
        return _Keys(self, store, keys._send, scope=keys._scope, retry=keys._retry)

    def sends(self, processor: Processor) -> Send:
        return traced_send(
            super().sends(processor),
            lambda event: (self.of(processor.name, event.event["partitionKey"]), _number(event.event_id)),
        )

    def took(self, processor: Processor, tenure: int) -> None:
        _actor.set(f"t{tenure}")
        for (name, _), trace in self.traces.items():
            if name == processor.name:
                trace.takes(f"t{tenure}")

    def save(self, processor: Processor, tenure: int, *, checkpoint: int, notes: Notes) -> None:
        super().save(processor, tenure, checkpoint=checkpoint, notes=notes)
        if processor.newest != tenure:
            return
        names = json.loads(notes.text or "[]")
        done = [document["partitionKey"] for _, page in self.script.pages[:checkpoint] for document in page]
        for place, trace in self.traces.items():
            said = done.count(place[1]), place[1] in names
            if place[0] == processor.name and self._saved.get(place, (0, False)) != said:
                self._saved[place] = said
                trace.say("saves", f"t{tenure}", position=said[0], named=said[1])


def _at_once(chance: Random) -> list[Operator]:
    """Return operators who look after the same keys at the same time, from slow programs."""
    begins = chance.uniform(1, 12)
    acts = (Act.RELEASE, Act.RELEASE, Act.RELEASE, Act.EDIT, Act.DROP_FIRST)
    return [
        Operator(
            starts_at=begins + chance.uniform(0, 1),
            lives_for=chance.choice((1000.0, chance.uniform(0, 3))),
            act=chance.choice(acts),
            link=Link(seconds=chance.choice((0.05, 0.2, 0.4)), behind=chance.choice((0.0, 0.3))),
        )
        for _ in range(chance.randint(0, 4))
    ]


def traced_send(send: Send, place: Callable[[ParkedEvent], tuple[KeyTrace, int]]) -> Send:
    """Return what sends the events of a release, and says so in the trace of their key."""

    async def traced(
        held: Sequence[ParkedEvent], ensure_claimed: Callable[[], Awaitable[None]]
    ) -> SendResult:
        if not held:
            return await send(held, ensure_claimed)
        trace, numbers = place(held[0])[0], [place(event)[1] for event in held]
        trace.say("reads", due=numbers, seen=trace.seen)
        result = await send(held, ensure_claimed)
        for number in numbers[: result.events]:
            trace.say("sent", number=number)
        if result.refusal is not None:
            trace.say("refused", number=numbers[result.events])
        return result

    return traced


class _Keys(ParkedKeys):
    def __init__(self, run: Any, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._run = run

    async def release(self, *args: Any, **options: Any) -> Released:
        before = _actor.set(self._run.next_release())
        try:
            return await super().release(*args, **options)
        finally:
            _actor.reset(before)

    async def drop(self, *args: Any, **options: Any) -> ParkedEvent:
        before = _actor.set("an operator")
        try:
            return await super().drop(*args, **options)
        finally:
            _actor.reset(before)

    async def park(self, *args: Any, **options: Any) -> Any:
        before = _actor.set("an operator")
        try:
            return await super().park(*args, **options)
        finally:
            _actor.reset(before)


class _Parking(Parking):
    def __init__(self, run: TracedParking, store: ParkedStore, **options: Any) -> None:
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
        failure = args[0] if args else None
        trace, numbers = self._run.of(scope.processor, partition_key), [_number(item.id) for item in items]
        parks = failure is not None and failure.event_id == items[0].id
        trace.say("refused" if parks else "learns", number=numbers[0])
        held = await super().hold(partition_key, items, *args, scope=scope, **options)
        left = [_number(item.id) for item in held.not_held]
        done = [number for number in numbers if number not in left]
        last = max(done, default=numbers[0] - 1)
        trace.say("holds", number=numbers[0], done=last, left=min(left, default=0))
        return held


class _Broker(MemoryBroker):
    def __init__(self, run: TracedParking, processor: Processor) -> None:
        was = processor.broker
        super().__init__(clock=was._clock, dedup_window_seconds=None, rejects=was.rejects)
        self.latency_seconds, self.chokes = was.latency_seconds, was.chokes
        self._run, self._processor = run, processor
        self._entered: set[str] = set()

    def _say(self, action: str, message: OutboundMessage) -> None:
        trace = self._run.of_message(self._processor, message)
        trace.say(action, number=_number(message.message_id))

    async def send(self, batch: Sequence[OutboundMessage]) -> None:
        if self.faults and self.faults[0] is Fault.LATE:
            for message in batch:
                self._say("sends late", message)
        await super().send(batch)
        if _actor.get().startswith("t"):
            for message in batch:
                self._say("accepted", message)

    def _arrive_late(self, batch: Sequence[OutboundMessage]) -> None:
        _is_late.set(True)
        super()._arrive_late(batch)

    def _store(self, batch: Sequence[OutboundMessage]) -> None:
        super()._store(batch)
        ahead = dict[str, OutboundMessage]()
        for message in batch:
            # What the broker has behind it in one batch, it has
            before = ahead.get(message.session_id)
            if before is not None and not _is_late.get() and _actor.get().startswith("t"):
                self._say("accepted", before)
            ahead[message.session_id] = message
            if message.message_id not in self._entered:
                self._entered.add(message.message_id)
                self._say("arrives late" if _is_late.get() else "enters", message)


class _Session(Session):
    def __init__(self, run: TracedParking, link: Link) -> None:
        super().__init__(run.service, link)
        self._run = run

    async def read(self, document_id: str, partition_key: Any, **_: object) -> Document:
        document = await super().read(document_id, partition_key)
        if document_id == KEY_ID:
            self._run.of_partition(partition_key).saw(document)
        return document

    def _send_late(self, partition_key: str, writes: Sequence[Write]) -> None:
        _is_late.set(True)
        super()._send_late(partition_key, writes)


class _Service(Service):
    def __init__(self, run: TracedParking) -> None:
        super().__init__()
        self._run = run

    async def commit(self, partition_key: str, writes: Sequence[Write]) -> CommitResult:
        trace = self._run.of_partition(partition_key)
        try:
            result = await super().commit(partition_key, writes)
        except NotFound:
            if [WriteKind.DELETE] == [write.kind for write in writes] and _actor.get().startswith("t"):
                trace.say("proves")
            raise
        found = [one for one in self.newest.documents() if one["partitionKey"] == partition_key]
        trace.changed(writes, result, Partition(found, _number))
        return result
