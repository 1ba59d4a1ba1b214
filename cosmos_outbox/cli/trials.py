"""
Trials: do with a document made for it what an identity has to be allowed to do with those of a container.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum

from azure.cosmos.aio import ContainerProxy

from cosmos_outbox.adapters.cosmos.errors import translated
from cosmos_outbox.errors import Conflict, NotFound, OutboxError, StoreUnavailable, TooManyRequests
from cosmos_outbox.retries import RetryOptions, retry_reads


class Operation(StrEnum):
    """
    What somebody does with documents, in the order in which it is tried.
    """

    CREATE = "create"
    READ = "read"
    REPLACE = "replace"
    UPSERT = "upsert"
    QUERY = "query"
    BATCH = "write batches of"
    DELETE = "delete"


# Leases are listed as well; whoever looks at them finds out.
OF_LEASES = (Operation.CREATE, Operation.READ, Operation.REPLACE, Operation.DELETE)
OF_PARKED_KEYS = tuple(operation for operation in Operation if operation is not Operation.UPSERT)
OF_APPLICATIONS = tuple(Operation)

# What the service says when it is busy, or nothing: no word about what an identity may do.
UNANSWERED = (TooManyRequests, StoreUnavailable)


async def refusals(
    container: ContainerProxy, operations: Sequence[Operation]
) -> tuple[tuple[Operation, OutboxError], ...]:
    """
    Try operations, in their order, and return those that were refused, or failed.

    Where the service stays busy or silent, it is not asked for more than to delete the document.
    """
    name = f"cosmos-outbox-doctor-{uuid.uuid4()}"
    attempts = _attempts(container, name)
    found = []
    unanswered = False
    for operation in operations:
        if unanswered and operation is not Operation.DELETE:
            continue

        async def attempt(call: Callable[[], Awaitable[object]] = attempts[operation]) -> None:
            # That there is no such document, or that there is one by now, is said only to who may have it.
            with suppress(NotFound, Conflict):
                async with translated(document_ids=[name]):
                    await call()

        try:
            await retry_reads(attempt, RetryOptions())
        except OutboxError as error:
            unanswered |= isinstance(error, UNANSWERED)
            found.append((operation, error))
    return tuple(found)


def _attempts(container: ContainerProxy, name: str) -> Mapping[Operation, Callable[[], Awaitable[object]]]:
    # Right for both partition key paths; and gone by itself, where time to live is on, if it may not be deleted.
    document = {"id": name, "partitionKey": name, "ttl": 60}

    async def query() -> None:
        async for _ in container.query_items("SELECT * FROM c", partition_key=name):
            pass

    return {
        Operation.CREATE: lambda: container.create_item(document),
        Operation.READ: lambda: container.read_item(name, name),
        Operation.REPLACE: lambda: container.replace_item(name, document),
        Operation.UPSERT: lambda: container.upsert_item(document),
        Operation.QUERY: query,
        Operation.BATCH: lambda: container.execute_item_batch([("replace", (name, document))], name),
        Operation.DELETE: lambda: container.delete_item(name, name),
    }
