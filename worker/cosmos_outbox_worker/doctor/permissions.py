"""Permissions: try the operations that an identity needs, on a document made for it."""

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

# The operations in the order in which they are tried. Leases are also listed: if they can be read, that is allowed.
OF_LEASES = ("create", "read", "replace", "delete")
# The roles: applications commit, workers park.
OF_WRITERS = ("create", "read", "replace", "query", "write batches of", "delete")


async def try_documents(
    what: str,
    container: ContainerProxy,
    operations: Sequence[str],
    findings: Findings,
    paths: KeyPaths = ON_PARTITION_KEY,
) -> bool:
    """
    Try operations in their order. Note those that were refused, or failed; return whether all were allowed.

    Once the service is busy or does not answer, only the deletion is tried.
    """
    name = f"cosmos-outbox-doctor-{uuid.uuid4()}"
    # This document also fits a container on /id. If it may not be deleted, its time to live removes it.
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
            # Cosmos DB returns 404 and 409 only to an authorised caller, so both count as success here.
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
