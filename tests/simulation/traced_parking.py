"""
The simulation of relays, which also writes a trace of each partition key: which events the workers send or add to the key's queue, and
what operators release, edit, drop and park.

With `models/TraceParked.tla`, the model checker TLC finds out whether a trace is a behaviour that `models/Parked.tla` allows.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

from cosmos_outbox.adapters.memory.broker import Fault, MemoryBroker
from cosmos_outbox.message_format import OutboundMessage
from cosmos_outbox.parking import ParkedKeys, Parking, Scope
from cosmos_outbox.parking.park import HoldResult
from cosmos_outbox.parking.parked_documents import KEY_ID
from cosmos_outbox.parking.release import Send
from cosmos_outbox.ports import CommitResult, Notes, ParkedStore, Write
from cosmos_outbox.stored_documents import Document
from tests.simulation.key_traces import KeyTrace, Partition, TracedKeys, acting, is_late, traced_send
from tests.simulation.relay import Act, Operator, Processor, Simulation
from tests.simulation.relay_script import random_relay_script
from tests.support.versioned_parked import Link, Service, Session


def _number(event_id: str) -> int:
    return int(event_id.partition("/")[2]) + 1


class TracedParking(Simulation):
    """
    One run of the simulated relays, with a random script. `traces` has a trace for each processor and partition key.
    """

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
        # An operator may park a key that has no event in the script, and so has no trace yet.
        return self.traces.setdefault((processor, key), KeyTrace(0))

    def of_partition(self, partition: str) -> KeyTrace:
        processor, _, key = json.loads(partition)
        return self.of(processor, key)

    def of_message(self, processor: Processor, message: OutboundMessage) -> KeyTrace:
        return self.of(processor.name, message.message_id.partition("/")[0])

    def next_release(self) -> str:
        self._releases += 1
        return f"r{self._releases}"

    # The following methods override the simulation to write the trace.

    def session(self, link: Link) -> ParkedStore:
        return _Session(self, link)

    def parking(self, store: ParkedStore) -> Parking:
        return _Parking(self, store, retry=super().parking(store)._retry)

    def operator(self, processor: Processor, store: ParkedStore) -> ParkedKeys:
        keys = super().operator(processor, store)
        return TracedKeys(self, store, keys._send, scope=keys._scope, retry=keys._retry)

    def sends(self, processor: Processor) -> Send:
        return traced_send(
            super().sends(processor),
            lambda event: (self.of(processor.name, event.event["partitionKey"]), _number(event.event_id)),
        )

    def took(self, processor: Processor, tenure: int) -> None:
        acting.set(f"t{tenure}")
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
    """
    Return operators whose commands are slow and run at about the same time, so that they meet at the same keys.
    """
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
        if acting.get().startswith("t"):
            for message in batch:
                self._say("accepted", message)

    def _arrive_late(self, batch: Sequence[OutboundMessage]) -> None:
        is_late.set(True)
        super()._arrive_late(batch)

    def _store(self, batch: Sequence[OutboundMessage]) -> None:
        super()._store(batch)
        ahead = dict[str, OutboundMessage]()
        for message in batch:
            # The topic accepts a batch as a whole. So before an event of a batch enters the topic, the trace has to say that the
            # previous event of its key was accepted, as in the model.
            before = ahead.get(message.session_id)
            if before is not None and not is_late.get() and acting.get().startswith("t"):
                self._say("accepted", before)
            ahead[message.session_id] = message
            if message.message_id not in self._entered:
                self._entered.add(message.message_id)
                self._say("arrives late" if is_late.get() else "enters", message)


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
        is_late.set(True)
        super()._send_late(partition_key, writes)


class _Service(Service):
    def __init__(self, run: TracedParking) -> None:
        super().__init__()
        self._run = run

    async def commit(self, partition_key: str, writes: Sequence[Write]) -> CommitResult:
        def after() -> Partition:
            found = [one for one in self.newest.documents() if one["partitionKey"] == partition_key]
            return Partition(found, _number)

        commit, by_holder = super().commit(partition_key, writes), acting.get().startswith("t")
        trace = self._run.of_partition(partition_key)
        return await trace.follow(commit, writes, after, by_holder=by_holder)
