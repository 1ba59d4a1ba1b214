"""
A worker of this library that makes a mistake in the leases it writes: `python -m tests.dotnet_fleet.planted_worker MISTAKE`.

Workers with the same mistake can read each other's leases, so only a test with a .NET worker can notice the mistake.
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Mapping
from typing import Any

from cosmos_outbox.adapters.cosmos import client, leases
from cosmos_outbox.changefeed import owned_lease
from cosmos_outbox_worker.cli import main

Document = dict[str, Any]


def misspelled(document: Document) -> Document:
    return {("Ownr" if name == "Owner" else name): value for name, value in document.items()}


def spelled(document: Document) -> Document:
    return {name: value for name, value in document.items() if name != "Ownr"} | {
        "Owner": document.get("Ownr")
    }


def encoded(document: Document) -> Document:
    token = document["ContinuationToken"]
    return document | {"ContinuationToken": token and base64.b64encode(token.encode()).decode()}


def decoded(document: Document) -> Document:
    token = document["ContinuationToken"]
    readable = token is None or token.startswith('"')
    return document if readable else document | {"ContinuationToken": base64.b64decode(token).decode()}


# For each mistake, two functions: the first makes the mistake in a lease that is written, the second corrects
# it when it is read.
MISTAKES = {"owner": (misspelled, spelled), "continuation": (encoded, decoded)}


async def keep(self: owned_lease.OwnedLease) -> None:
    """Replace `OwnedLease.release`: save the position, but remain the owner of the lease."""
    await self._write(continuation=self.continuation)


def plant(mistake: str) -> None:
    """Patch the library in this process so that it writes leases with the mistake of this name."""
    if mistake == "elsewhere":
        client.global_host = lambda *_, **__: "elsewhere"
        return
    if mistake == "kept":
        owned_lease.OwnedLease.release = keep  # type: ignore[method-assign] # the point
        return
    wrong, right = MISTAKES[mistake]
    create, replace, stored = leases.CosmosLeases.create, leases.CosmosLeases.replace, leases._check_stored

    def is_lease(document: Mapping[str, Any]) -> bool:
        return "LeaseToken" in document

    async def created(self: leases.CosmosLeases, document: Mapping[str, Any]) -> Any:
        return await create(self, wrong(dict(document)) if is_lease(document) else document)

    async def replaced(self: leases.CosmosLeases, document: Mapping[str, Any], *, etag: str) -> Any:
        return await replace(self, wrong(dict(document)) if is_lease(document) else document, etag=etag)

    leases.CosmosLeases.create, leases.CosmosLeases.replace = created, replaced  # type: ignore[method-assign] # the point
    leases._check_stored = lambda document: (
        right(stored(document)) if is_lease(document) else stored(document)
    )


if __name__ == "__main__":
    plant(sys.argv.pop(1))
    main()
