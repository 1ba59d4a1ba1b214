"""
Heartbeats: each worker stores its state in the lease container every few seconds, so that other workers and commands can see it.
`fleet_differences.py` compares the states of workers.

Each worker keeps one small document there, even if it owns no lease. The id of the document begins with "heartbeat.", so programs that
list leases (this library, the .NET SDK and KEDA) do not find it. Workers of different versions can read each other's heartbeats: a worker
ignores fields that it does not know, and takes missing fields as empty.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from pydantic import TypeAdapter, ValidationError

from cosmos_outbox.errors import Conflict, NotFound, OutboxError, PreconditionFailed
from cosmos_outbox.ports import Document, LeaseStore, Listing
from cosmos_outbox_worker.causes import Cause

_ANY = "heartbeat."
_MOST = 300
_MOST_TEXTS = 3
_KEPT = timedelta(minutes=10)
# A slow Cosmos DB may delay a heartbeat by this time. The worker does not count as silent until then.
_SLOW_POLL = timedelta(seconds=10)
# The age of a heartbeat may be wrong by this much, because Cosmos DB stores the time of a write (`_ts`) in whole seconds.
_A_MOMENT = timedelta(seconds=1)
_LEAVING_SECONDS = 2.0


class Phase(StrEnum):
    """The phase in which a worker or a consumer is, from its start to its end."""

    # STARTING lasts until a worker has found a lease for every range, or until a consumer has reached its subscription.
    STARTING = "starting"
    RUNNING = "running"
    DRAINING = "draining"  # the process was asked to stop, and finishes its work
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """
    The last heartbeat of a worker: the state of the worker when it wrote the heartbeat.

    worker: the name of the worker.
    every: the time between two heartbeats.
    unready: the reasons why the worker was not ready.
    errors: the worker's newest errors.
    causes: the causes that kept the worker from making progress.
    silent_for: the time since the heartbeat, by the clock of Cosmos DB.
    processor, container: the processor of the worker, and the container that it reads.
    topics: the topics to which the worker sends, each with its host.
    settings: the settings that must be the same for all workers of a processor.
    alarms: the alarms that the worker raised after comparing itself with other workers.
    """

    worker: str
    every: timedelta
    phase: str
    unready: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    causes: tuple[Cause, ...] = ()
    silent_for: timedelta = timedelta(0)
    version: str = ""
    processor: str = ""
    container: str = ""
    topics: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    alarms: tuple[str, ...] = ()

    @property
    def silent(self) -> bool:
        """
        Return whether the next heartbeat is overdue for so long that the worker counts as silent. A silent worker was killed, hangs, or
        cannot reach Cosmos DB.
        """
        return self.silent_for > self.every + _SLOW_POLL

    @property
    def overdue(self) -> bool:
        """Return whether the next heartbeat is late, but not late enough for the worker to count as silent."""
        return not self.silent and self.silent_for > self.every + _A_MOMENT

    @property
    def silent_in(self) -> float:
        """Return in how many seconds the worker will count as silent if it writes no heartbeat until then."""
        return (self.every + _SLOW_POLL + _A_MOMENT - self.silent_for).total_seconds()

    @property
    def forgotten(self) -> bool:
        """Return whether the heartbeat is so old that the worker no longer counts as a worker of its processor."""
        return self.silent_for > self.kept

    @property
    def kept(self) -> timedelta:
        return 4 * self.every + _KEPT

    @property
    def works(self) -> bool:
        """Return whether the worker is running, and its last heartbeat is recent enough to be trusted."""
        return self.phase == Phase.RUNNING and not self.silent

    def state(self, *, owns: bool) -> str:
        """
        Return the state of the worker in a word or two, for the status page and for `cosmos-outbox status`.

        Args:
            owns: whether the worker owns a lease.
        """
        if self.silent:
            return "silent"
        if self.works and self.unready:
            return "not ready"
        # The worker wrote this heartbeat before it acquired its first lease.
        if owns and self.phase == Phase.STARTING:
            return str(Phase.RUNNING)
        return self.phase if self.phase != Phase.RUNNING or owns else "stand-by"


_STORED = TypeAdapter(Heartbeat)


class Fleet:
    """
    Reads and writes the heartbeats of the workers of one processor.

    Args:
        leases: the lease container, which also stores the heartbeats.
        processor: the name of the processor.
        container: the container that the processor reads, as `database/container`.
    """

    def __init__(self, leases: LeaseStore, *, processor: str, container: str) -> None:
        self._leases = leases
        # Use hashes: the name of a processor or worker may have characters that the id of a document must not have.
        self._head = f"{_ANY}{_hash(processor, container)}."

    async def heartbeats(self) -> tuple[Heartbeat, ...]:
        """
        Read the heartbeats of the processor, sorted by the names of the workers. Very old heartbeats are left out.

        Raises:
            OutboxError: the lease container cannot be read.
        """
        listed = _parse_listing(await self._leases.list(self._head))
        return tuple(sorted((one for one, _ in listed if not one.forgotten), key=lambda one: one.worker))

    async def beat(self, own: Heartbeat) -> tuple[Heartbeat, ...]:
        """
        Write a worker's heartbeat, and return the heartbeats of the other workers of the processor.

        Raises:
            OutboxError: the lease container cannot be read or written.
        """
        by_id, name = await self._leases.partitioned_by_id(), self._id_of(own.worker)
        listed = _parse_listing(await self._leases.list(self._head))
        causes, alarms = tuple(map(_brief, own.causes[:_MOST_TEXTS])), _short(own.alarms)
        unready, errors = _short(own.unready), _short(own.errors)
        own = replace(own, unready=unready, errors=errors, alarms=alarms, causes=causes)
        sign = {
            "id": name,
            **({} if by_id else {"partitionKey": name}),
            "ttl": int(own.kept.total_seconds()),
            **_STORED.dump_python(own, mode="json", exclude={"silent_for"}),
        }
        # Ignore a conflict: another process with this worker's name wrote the heartbeat meanwhile.
        with suppress(Conflict, NotFound, PreconditionFailed):
            if etag := next((stored["_etag"] for _, stored in listed if stored["id"] == name), None):
                await self._leases.replace(sign, etag=etag)
            else:
                await self._leases.create(sign)
        for one, stored in listed:
            # Delete the heartbeat of a worker that is gone, because a container without a TTL would keep it for ever.
            if one.forgotten and one.worker != own.worker:
                with suppress(NotFound, PreconditionFailed):
                    await self._leases.delete(stored["id"], stored["id"], etag=stored["_etag"])
        return tuple(one for one, _ in listed if not one.forgotten and one.worker != own.worker)

    async def strangers(self, own: Heartbeat, others: Sequence[Heartbeat]) -> list[Heartbeat]:
        """
        Return the heartbeats of live workers of other processors that read the same container and share the lease container.

        To save requests, only one live worker of a processor reads these: the one whose name comes first in the alphabet. For the other
        workers the list is empty. They find the alarms about other processors in the heartbeat of that worker.

        Args:
            own: this worker's heartbeat.
            others: the heartbeats of the other workers of this processor.

        Raises:
            OutboxError: the lease container cannot be read.
        """
        if any(one.worker < own.worker for one in others if not one.silent):
            return []
        found = [one for one, _ in _parse_listing(await self._leases.list(_ANY)) if not one.silent]
        return [one for one in found if one.container == own.container and one.processor != own.processor]

    @asynccontextmanager
    async def membership(self, worker: str) -> AsyncIterator[None]:
        """
        Delete a worker's heartbeat at the end of the `async with` block. If the block raises an error, keep the heartbeat, because it
        shows operators what was wrong.
        """
        yield
        name = self._id_of(worker)
        with suppress(OutboxError, TimeoutError):
            async with asyncio.timeout(_LEAVING_SECONDS):
                await self._leases.delete(name, name)

    def _id_of(self, worker: str) -> str:
        return f"{self._head}{_hash(worker)}"


def _parse_listing(listing: Listing) -> list[tuple[Heartbeat, Document]]:
    """Return each heartbeat of a listing with its document. Documents that cannot be read as a heartbeat are left out."""
    found = []
    for stored in listing.documents:
        with suppress(ValidationError, KeyError, OverflowError):
            age = listing.read_at - datetime.fromtimestamp(stored["_ts"], UTC)
            one = replace(_STORED.validate_python(stored), silent_for=max(age, timedelta(0)))
            # `kept` overflows if the stored interval is, for instance, a million years. The document is then left out.
            if one.kept:
                found.append((one, stored))
    return found


def _short(texts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(text if len(text) <= _MOST else f"{text[:_MOST]}…" for text in texts[:_MOST_TEXTS])


def _brief(cause: Cause) -> Cause:
    return replace(cause, said=cause.said[:_MOST], stops=cause.stops[:_MOST])


def _hash(*names: str) -> str:
    return hashlib.blake2b("\0".join(names).encode(), digest_size=8).hexdigest()
