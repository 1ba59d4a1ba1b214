"""
The simulation of relays, which also writes a trace of each processor: which workers take its lease, the pages that they read, the events
that enter the topic or a parked key's queue, and the saved positions.

With `models/TraceRelay.tla`, the model checker TLC finds out whether a trace is a behaviour that `models/Relay.tla` allows. That model has
no operators and no work after a lost lease. So the runs have no operators, and a worker stops when it may not write its lease.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from random import Random
from typing import Any

from cosmos_outbox.adapters.memory.broker import Fault, MemoryBroker
from cosmos_outbox.message_format import OutboundMessage
from cosmos_outbox.parking import Parking
from cosmos_outbox.parking.park import HoldResult
from cosmos_outbox.ports import ChangeBatch, CommitResult, Notes, ParkedStore, Publisher, Write
from cosmos_outbox.relay import Relay
from tests.simulation.relay import Processor, Simulation
from tests.simulation.relay_script import random_relay_script
from tests.support.versioned_parked import Service

_tenure: ContextVar[str] = ContextVar("tenure", default="")


class TracedRelays(Simulation):
    """One run of the simulated relays, with a random script. `lines` has the trace of each processor."""

    def __init__(self, chance: Random) -> None:
        super().__init__(replace(random_relay_script(chance), operators=()))
        self.lines: dict[str, list[dict[str, Any]]] = {it.name: [] for it in self.processors}
        self.service = _Service(self)
        self._ended: set[str] = set()  # processors whose trace has ended, because an operator acted
        commits: dict[int, list[dict[str, Any]]] = {}
        for document in (document for _, documents in self.script.pages for document in documents):
            key, _, number = document["id"].partition("/")
            lsn = document.get("_lsn", 0) if key != "calm" else 10**6 + int(number)
            commits.setdefault(lsn, []).append({"key": key, "number": int(number) + 1})
        self._places = {lsn: place for place, lsn in enumerate(commits, start=1)}
        for processor in self.processors:
            self.say(processor, "all", "begins", log=list(commits.values()), tenures=[])
            processor.broker = _Broker(self, processor)

    def say(self, processor: Processor, actor: str, action: str, **values: object) -> None:
        if processor.name not in self._ended:
            self.lines[processor.name].append({"actor": actor, "action": action, **values})

    def say_of(self, processor: Processor, action: str, message: OutboundMessage) -> None:
        key, _, number = message.message_id.partition("/")
        self.say(processor, _tenure.get(), action, key=key, number=int(number) + 1)

    def place(self, page: int) -> int:
        """Return how many commits of the change feed a worker has read after this page. 0 is the start."""
        if not page:
            return 0
        last = self.script.pages[page - 1][1][-1]
        calm = last["partitionKey"] == "calm"
        return self._places[10**6 + int(last["id"].partition("/")[2]) if calm else last["_lsn"]]

    # The following methods override the simulation to write the trace.

    def took(self, processor: Processor, tenure: int) -> None:
        _tenure.set(f"t{tenure}")
        self.lines[processor.name][0]["tenures"].append(f"t{tenure}")
        self.say(processor, f"t{tenure}", "takes")

    def relay_of(self, processor: Processor, publisher: Publisher, **options: Any) -> Relay:
        return _Relay(self, processor, publisher, **options)

    def parking(self, store: ParkedStore) -> Parking:
        return _Parking(self, store, retry=super().parking(store)._retry)

    def save(self, processor: Processor, tenure: int, *, checkpoint: int, notes: Notes) -> None:
        is_owner = processor.newest == tenure
        names = sorted(json.loads(notes.text or "[]"))
        self.say(
            processor, f"t{tenure}", "saves", position=self.place(checkpoint), names=names, saved=is_owner
        )
        super().save(processor, tenure, checkpoint=checkpoint, notes=notes)
        if not is_owner:
            raise TimeoutError

    async def _park_refused(self, processor: Processor, page: ChangeBatch) -> None:
        self._ended.add(processor.name)  # end the trace here, before the operator acts
        await super()._park_refused(processor, page)

    async def _clear(self, processor: Processor) -> None:
        self._ended.add(processor.name)
        await super()._clear(processor)


class _Relay(Relay):
    def __init__(self, run: TracedRelays, processor: Processor, publisher: Publisher, **options: Any) -> None:
        super().__init__(publisher, **options)
        self._run, self._processor = run, processor
        self._page: tuple[int, str] | None = None

    async def __call__(self, page: ChangeBatch) -> None:
        of = page.tenure, page.documents[-1]["id"]
        if self._page != of:
            self._page = of
            number = next(
                n for n, (_, them) in enumerate(self._run.script.pages, 1) if them[-1]["id"] == of[1]
            )
            self._run.say(self._processor, f"t{page.tenure}", "reads", to=self._run.place(number))
        await super().__call__(page)


class _Broker(MemoryBroker):
    def __init__(self, run: TracedRelays, processor: Processor) -> None:
        was = processor.broker
        super().__init__(clock=was._clock, dedup_window_seconds=None, rejects=was.rejects)
        self.latency_seconds, self.chokes = was.latency_seconds, was.chokes
        self._run, self._processor = run, processor
        self._entered: set[str] = set()

    async def send(self, batch: Sequence[OutboundMessage]) -> None:
        if self.faults and self.faults[0] is Fault.LATE:
            for message in _first_of_each(batch):
                self._run.say_of(self._processor, "sends late", message)
        await super().send(batch)
        for message in batch:
            self._run.say_of(self._processor, "accepted", message)

    def _arrive_late(self, batch: Sequence[OutboundMessage]) -> None:
        _is_late.set(True)
        super()._arrive_late(batch)

    def _store(self, batch: Sequence[OutboundMessage]) -> None:
        super()._store(batch)
        first, ahead = {id(message) for message in _first_of_each(batch)}, dict[str, OutboundMessage]()
        for message in batch:
            # The topic accepts a batch as a whole. So when an event of a batch enters the topic, the previous event of its key was
            # accepted. The trace says this first, because the model has this order.
            before = ahead.get(message.session_id)
            if before is not None and not _is_late.get():
                self._run.say_of(self._processor, "accepted", before)
            ahead[message.session_id] = message
            if message.message_id not in self._entered:
                self._entered.add(message.message_id)
                late = "arrives late" if id(message) in first else "arrives behind"
                self._run.say_of(self._processor, late if _is_late.get() else "enters", message)


class _Parking(Parking):
    def __init__(self, run: TracedRelays, store: ParkedStore, **options: Any) -> None:
        super().__init__(store, **options)
        self._run = run

    async def hold(
        self, partition_key: str, items: Sequence[Any], *args: Any, scope: Any, **options: Any
    ) -> HoldResult[Any]:
        held = await super().hold(partition_key, items, *args, scope=scope, **options)
        processor = next(it for it in self._run.processors if it.name == scope.processor)
        left = [int(item.id.partition("/")[2]) + 1 for item in held.not_held]
        self._run.say(processor, _tenure.get(), "holds", key=partition_key, left=left)
        return held


class _Service(Service):
    def __init__(self, run: TracedRelays) -> None:
        super().__init__()
        self._run = run

    async def commit(self, partition_key: str, writes: Sequence[Write]) -> CommitResult:
        result = await super().commit(partition_key, writes)
        for event in (
            write.document for write in writes if (write.document or {}).get("type") == "parkedEvent"
        ):
            processor = next(it for it in self._run.processors if f'["{it.name}"' in partition_key)
            key, _, number = event["event"]["id"].partition("/")
            if event["status"] == "held":
                self._run.say(processor, "store", "stores", key=key, number=int(number) + 1)
        return result


_is_late: ContextVar[bool] = ContextVar("is_late", default=False)


def _first_of_each(batch: Sequence[OutboundMessage]) -> list[OutboundMessage]:
    by_key = sorted(batch, key=attrgetter("session_id"))  # stable
    return [next(messages) for _, messages in groupby(by_key, key=attrgetter("session_id"))]
