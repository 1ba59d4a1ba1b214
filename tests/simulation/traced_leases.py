"""
The simulation of the change feed, which also writes a trace of one lease: which workers take it, which changes its owners handle, and
when each write of the lease is sent, executed and answered.

With `models/TraceLeases.tla`, the model checker TLC finds out whether the trace is a behaviour that `models/Leases.tla` allows. The scripts
have one range, no split and no frozen process, like the model. An owner has one request at a time in the model. So if an owner stops waiting
for a request that is still on its way, the trace says this only after the service has executed the request.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

from cosmos_outbox.changefeed.leases import from_document, handover_requested_by
from cosmos_outbox.changefeed.read_ahead import lsn_of
from cosmos_outbox.errors import PreconditionFailed
from cosmos_outbox.ports import Document
from tests.simulation.attributed_leases import AttributedLeases
from tests.simulation.changefeed import EPOCH, Simulation, Step
from tests.simulation.worker import Worker

_KINDS = (
    "write", "write", "write", "wait", "wait", "wait", "start", "start", "stop", "kill", "doom", "cut", "cut-leases", "heal",
    "heal", "lose-answers", "refuse", "race", "fail", "hang", "touch",
)  # fmt: skip


class TracedLeases(Simulation):
    """One run of workers that share one lease, with a random script. `lines` is the trace of the lease."""

    def __init__(self, chance: Random) -> None:
        super().__init__(ranges=1, workers=3)
        steps = [Step(chance.choice(_KINDS), chance.randrange(8), chance.randrange(30)) for _ in range(60)]
        self._steps = [Step("start", 0, 0), Step("write", 0, 3), *steps]
        self.lines: list[dict[str, Any]] = [{"actor": "all", "action": "begins", "tenures": []}]
        self._said_at = 0
        self._last: dict[int, str] = {}  # for each LSN, the id of the transaction's last document
        # For each process, the name of its last tenure, which is one ownership of the lease.
        self.tenures: dict[str, str] = {}

    async def run(self) -> None:
        await self.play(self._steps)

    @property
    def _milliseconds(self) -> int:
        return round((self.now() - EPOCH) * 1000)

    def say(self, actor: str, action: str, **values: Any) -> None:
        now = self._milliseconds
        if now > self._said_at:
            self.lines.append({"actor": "time", "action": "passes", "ms": now - self._said_at})
            self._said_at = now
        self.lines.append({"actor": actor, "action": action, **values})

    def say_written(self, actor: str, action: str, **values: Any) -> None:
        # Cosmos DB cuts `_ts` to whole seconds, so a lease that is written now seems to be `age` milliseconds old.
        self.say(actor, action, age=self._milliseconds % 1000, **values)

    def took(self, process: str) -> None:
        tenures = self.lines[0]["tenures"]
        before, self.tenures[process] = self.tenures.get(process, ""), f"t{len(tenures) + 1}"
        tenures.append(self.tenures[process])
        if before:  # a process takes a lease only after it has ended its own earlier work on it
            self.say(before, "ends")
        self.say_written(self.tenures[process], "takes", before=before)

    # The following methods override the simulation to write the trace.

    def _start(self, name: str, *, skew: float, renamed: bool = True) -> None:
        super()._start(name, skew=skew, renamed=True)
        worker = self.workers[name]
        link: Any = worker.leases
        _Writes(self, worker, link)
        worker._arrives = lambda document: self._handled(worker, document)

    def _handled(self, worker: Worker, document: Document) -> None:
        self._arrives(document)
        if document["_lsn"] not in self._last:
            self._last |= {one["_lsn"]: one["id"] for one in self.container.documents()}
        if document["id"] == self._last[document["_lsn"]]:
            self.say(self.tenures[worker.instance], "handles", number=document["_lsn"])

    async def _rewrite(self, document: Document) -> bool:
        if written := await super()._rewrite(document):
            self.say_written("others", "touched", asks=False)
        return written


class _Writes:
    """
    The writes of the lease by one worker. The trace gets a line when each write is sent, executed and answered.
    """

    def __init__(self, run: TracedLeases, worker: Worker, link: Any) -> None:
        self._run, self._worker, self._link = run, worker, link
        self._replace, self._read, self._service = link.replace, link.read, link._service()
        self._sent: Any = None  # the write that this worker sent last as the owner of the lease
        self._is_refused = False
        self._is_on_its_way = False
        # The tenure that no longer waits for the write that is on its way
        self._abandoned_by: str | None = None
        self._sending, link._sending = link._sending, self.sending
        link.replace, link.read, link._service = (
            self.replace,
            self.read,
            lambda: _Service(self._service, self),
        )

    @property
    def _tenure(self) -> str:
        return self._run.tenures.get(self._worker.instance, "none")

    def sending(self, operation: str, args: tuple[Any, ...]) -> None:
        self._sending(operation, args)
        self._is_on_its_way |= operation == "replace" and args[0] is self._sent

    async def replace(self, document: Mapping[str, Any], *, etag: str) -> Document:
        owned = self._worker.processor._owned._owned
        if document["id"] not in owned or document.get("Owner") not in (self._worker.instance, None):
            return await self._replace(document, etag=etag)  # type: ignore[no-any-return]
        position = lsn_of(document.get("ContinuationToken")) or 0
        kind = "save" if document.get("Owner") else "release"
        self._run.say(self._tenure, "sends", kind=kind, position=position)
        self._sent = document
        try:
            written = await self._replace(document, etag=etag)
        except PreconditionFailed:
            self._is_refused = True
            raise
        except BaseException:
            if self._is_on_its_way:
                self._abandoned_by = self._tenure
            else:
                self._run.say(self._tenure, "hears nothing")
            raise
        self._run.say(self._tenure, "hears")
        return written  # type: ignore[no-any-return]

    async def read(self, document_id: str, partition_key: str) -> Document:
        refused, self._is_refused = self._is_refused, False
        try:
            found = await self._read(document_id, partition_key)
        except BaseException:
            if refused:
                self._run.say(self._tenure, "hears nothing")
            raise
        if refused:
            self._run.say(self._tenure, "hears")
        return found  # type: ignore[no-any-return]

    async def executed(self, service: AttributedLeases, document: Mapping[str, Any], etag: str) -> Document:
        before = service._store._documents.get(document["id"])
        is_owners = document is self._sent
        try:
            written = await service.replace(document, etag=etag)
        except PreconditionFailed:
            if is_owners:
                self._served(written=False)
            raise
        if is_owners:
            self._served(written=True)
        elif written.get("Owner") == self._worker.instance:
            assert document["id"] not in self._worker.processor._owned._owned
            self._run.took(self._worker.instance)
        else:
            asks = handover_requested_by(from_document(written)) is not None
            self._run.say_written("others", "touched", asks=asks and before is not None)
        return written

    def _served(self, *, written: bool) -> None:
        tenure = self._abandoned_by or self._tenure
        if written:
            self._run.say_written(tenure, "served", written=True)
        else:
            self._run.say(tenure, "served", written=False, age=0)
        if self._abandoned_by is not None:
            self._run.say(self._abandoned_by, "hears nothing")
        self._is_on_its_way, self._abandoned_by = False, None


class _Service:
    """One worker's access to the lease container. When the container executes a write, the trace gets a line."""

    def __init__(self, service: AttributedLeases, writes: _Writes) -> None:
        self._service, self._writes = service, writes

    def __getattr__(self, operation: str) -> Any:
        return getattr(self._service, operation)

    async def replace(self, document: Mapping[str, Any], *, etag: str) -> Document:
        return await self._writes.executed(self._service, document, etag)
