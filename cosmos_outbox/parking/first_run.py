"""First run: the parked store notes that a processor has had leases, where a loss of the lease container leaves the note."""

from __future__ import annotations

from contextlib import suppress

from cosmos_outbox.errors import Conflict, NotFound
from cosmos_outbox.parking.documents import Scope
from cosmos_outbox.ports import ParkedStore, Write, WriteKind

_ID = "outbox.processor"


class FirstRun:
    """The note in a parked store; one write for each processor of a container, whatever calls come."""

    def __init__(self, store: ParkedStore) -> None:
        self._store = store
        self._noted: Scope | None = None

    async def note(self, scope: Scope) -> None:
        """Note that the processor has leases of the container."""
        if scope != self._noted:
            partition = scope.partition_named("")
            document = {
                "id": _ID,
                "partitionKey": partition,
                "type": "processor",
                "processor": scope.processor,
            }
            with suppress(Conflict):
                await self._store.commit(partition, [Write(kind=WriteKind.CREATE, id=_ID, document=document)])
            self._noted = scope

    async def is_noted(self, scope: Scope) -> bool:
        """Say whether the processor has had leases of the container."""
        try:
            await self._store.read(_ID, scope.partition_named(""))
        except NotFound:
            return False
        return True
