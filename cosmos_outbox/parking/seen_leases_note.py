"""
Seen leases: a note in the parked store that a processor has had leases. If the lease container is lost, the note shows that leases
existed. `changefeed/bootstrap.py` decides whether leases were lost.
"""

from __future__ import annotations

from contextlib import suppress

from cosmos_outbox.errors import Conflict, NotFound
from cosmos_outbox.parking.parked_documents import Scope
from cosmos_outbox.ports import ParkedStore, Write, WriteKind

_ID = "outbox.processor"


async def note_first_run(store: ParkedStore, scope: Scope) -> None:
    """Store the note that the processor has had leases of the container, if it is not stored yet."""
    partition = scope.partition_named("")
    document = {"id": _ID, "partitionKey": partition, "type": "processor", "processor": scope.processor}
    with suppress(Conflict):
        await store.commit(partition, [Write(kind=WriteKind.CREATE, id=_ID, document=document)])


async def has_run(store: ParkedStore, scope: Scope) -> bool:
    """Say whether the processor has ever had leases of the container: a document in the parked store says so."""
    try:
        await store.read(_ID, scope.partition_named(""))
    except NotFound:
        return False
    return True
