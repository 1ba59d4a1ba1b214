"""Read from the lease container which worker owns which lease. Leases have the .NET format, so a .NET tool can read them too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from azure.cosmos.aio import ContainerProxy

Owners = Mapping[str, str | None]

POLL_SECONDS = 0.25


async def lease_owners(container: ContainerProxy) -> Owners:
    """Return the owner of each lease, by the lease's token. The owner is None if no worker owns the lease."""
    documents = [document async for document in container.read_all_items()]
    return {
        str(document["LeaseToken"]): document.get("Owner") or None
        for document in sorted(documents, key=lambda document: str(document["id"]))
        if document.get("LeaseToken")
    }


async def wait_for_owners(
    container: ContainerProxy, satisfied: Callable[[Owners], bool], *, timeout_seconds: float
) -> Owners:
    """
    Read the owners of the leases until they satisfy a condition, and return them.

    Raises:
        TimeoutError: the owners do not satisfy the condition in time.
    """
    async with asyncio.timeout(timeout_seconds):
        while True:
            owners = await lease_owners(container)
            if satisfied(owners):
                return owners
            await asyncio.sleep(POLL_SECONDS)
