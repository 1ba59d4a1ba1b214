"""Who owns which lease, read from the lease container as any .NET tool would."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from azure.cosmos.aio import ContainerProxy

Owners = Mapping[str, str | None]

POLL_SECONDS = 0.25


async def lease_owners(container: ContainerProxy) -> Owners:
    """Return the owner of each lease by its range, None for one without an owner."""
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
    Wait until the owners satisfy a condition, and return them.

    Raises:
        TimeoutError: they do not satisfy it in time.
    """
    async with asyncio.timeout(timeout_seconds):
        while True:
            owners = await lease_owners(container)
            if satisfied(owners):
                return owners
            await asyncio.sleep(POLL_SECONDS)
