"""
Permissions: check the rights of the current identity in Cosmos DB by trying operations on a document, which is created for this check and
deleted. `service_bus.py` checks the rights in Service Bus.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress

from azure.cosmos.aio import ContainerProxy

from cosmos_outbox.adapters.cosmos.errors import our_errors
from cosmos_outbox.errors import Conflict, NotFound, OutboxError
from cosmos_outbox.partition_key import ON_PARTITION_KEY, KeyPaths
from cosmos_outbox.retries import RetryOptions, retry_reads
from cosmos_outbox_worker.doctor.check import UNANSWERED, Findings

# The operations on leases, in the order in which they are tried. Listing leases is not tried: an identity that may read may also list.
OF_LEASES = ("create", "read", "replace", "delete")
# The operations on the data container of an application that commits, and on the parked container of a worker that parks keys.
OF_WRITERS = ("create", "read", "replace", "query", "write batches of", "delete")


async def try_documents(
    what: str,
    container: ContainerProxy,
    operations: Sequence[str],
    findings: Findings,
    paths: KeyPaths = ON_PARTITION_KEY,
) -> bool:
    """
    Try operations on a new document in a container, and return whether all of them were allowed.

    If the service is busy or does not answer, the other operations are skipped, except the deletion of the document.

    Args:
        what: what the documents of the container are, such as "leases", for the findings.
        container: the container.
        operations: the operations, in the order in which they are tried.
        findings: collects a finding for each operation that was refused or failed.
        paths: the partition key paths of the container. Defaults to /partitionKey.
    """
    name = f"cosmos-outbox-doctor-{uuid.uuid4()}"
    # The partition key of this document equals its id, so the document also fits a container that is partitioned by /id. If this
    # identity may not delete the document, Cosmos DB deletes it after its time to live of a minute.
    levels = [name for _ in paths.levels]
    document = {"id": name, **paths.fields(tuple(levels)), "ttl": 60}
    key = levels if len(levels) > 1 else name

    async def query() -> None:
        async for _ in container.query_items("SELECT * FROM c", partition_key=key):
            pass

    attempts: Mapping[str, Callable[[], Awaitable[object]]] = {
        "create": lambda: container.create_item(document),
        "read": lambda: container.read_item(name, key),
        "replace": lambda: container.replace_item(name, document),
        "query": query,
        "write batches of": lambda: container.execute_item_batch([("replace", (name, document))], key),
        "delete": lambda: container.delete_item(name, key),
    }
    unanswered, all_allowed = False, True
    for operation in operations:
        if unanswered and operation != "delete":
            continue

        async def attempt(operation: str = operation) -> None:
            # Cosmos DB answers 404 or 409 only if the caller has the right to the operation, so both count as allowed here.
            with suppress(NotFound, Conflict):
                async with our_errors(document_ids=[name]):
                    await attempts[operation]()

        try:
            await retry_reads(attempt, RetryOptions())
        except OutboxError as error:
            unanswered |= isinstance(error, UNANSWERED)
            findings.note(f"{operation} {what}", error)
            all_allowed = False
    return all_allowed
