"""
Containers: check that the containers of events, leases and parked keys exist, and have the right partition key and time to live.
`permissions.py` checks the rights to use them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from azure.cosmos.aio import ContainerProxy

from cosmos_outbox.adapters.cosmos.errors import our_errors
from cosmos_outbox.errors import ConfigurationError, OutboxError
from cosmos_outbox.partition_key import ON_PARTITION_KEY, KeyPaths, key_paths_of
from cosmos_outbox.retries import RetryOptions, retry_reads
from cosmos_outbox_worker.connection import Connection
from cosmos_outbox_worker.doctor.check import UNANSWERED, Checks, Findings


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """
    A container as `doctor` read it.

    properties: the properties that Cosmos DB returned; None if the container does not exist or could not be read.
    error: why the container could not be read; None if it was read or does not exist.
    """

    name: str
    database: str = "…"
    properties: Mapping[str, Any] | None = None
    error: str | None = None

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(((self.properties or {}).get("partitionKey") or {}).get("paths") or ())

    @property
    def ttl(self) -> int | None:
        return (self.properties or {}).get("defaultTtl")

    @property
    def expires(self) -> bool:
        return (self.ttl or 0) > 0

    @property
    def key_paths(self) -> KeyPaths | None:
        """
        Return the partition key paths of the container. Return None if it cannot hold an outbox, or could not be read.
        """
        return None if any(self.unusable()) else key_paths_of(self.paths)

    def unusable(self, allowed: Sequence[str] = ()) -> Iterator[str]:
        """
        Yield the reason why an outbox cannot use the partition key of the container. Yield nothing if an outbox can use it.

        Args:
            allowed: the only partition key paths that are allowed. If the container has others, the reason names them. Defaults to all
                paths that an outbox can use.
        """
        if allowed:
            yield from () if self.paths in [(path,) for path in allowed] else (", ".join(self.paths),)
            return
        try:
            key_paths_of(self.paths)
        except ValueError as error:
            yield str(error)


def _usable(check: str, *allowed: str) -> Checks[Container]:
    return {
        f"{check}.unreadable": lambda it: it.error is not None,
        f"{check}.missing": lambda it: it.error is None and it.properties is None,
        f"{check}.unusable": lambda it: it.unusable(allowed) if it.properties else False,
    }


DATA_TTL: Checks[Container] = {
    "data-ttl.off": lambda it: it.properties is not None and it.ttl is None,
    "data-ttl.default": lambda it: it.expires,
}
DATA: Checks[Container] = {
    **_usable("data-container"),
    "data-container.other-paths": lambda it: it.key_paths not in (None, ON_PARTITION_KEY),
    **DATA_TTL,
}
LEASES: Checks[Container] = {
    **_usable("lease-container", "/id", "/partitionKey"),
    "lease-ttl.off": lambda it: it.properties is not None and it.ttl is None,
    "lease-ttl.default": lambda it: it.expires,
}
PARKED: Checks[Container] = {
    **_usable("parked-container", "/partitionKey"),
    "parked-ttl.default": lambda it: it.expires,
}


async def read_container(
    outbox: Connection, container: ContainerProxy, checks: Checks[Container], found: Findings
) -> Container:
    """Read the properties of a container, and run a table of checks on it. If Cosmos DB does not answer, the only finding says so."""

    async def read() -> Mapping[str, Any]:
        async with our_errors():
            return await container.read()

    about: dict[str, Any] = {}
    try:
        about["properties"] = await retry_reads(read, RetryOptions())
    except ConfigurationError:
        pass
    except UNANSWERED as error:
        found.note(f"read container {container.id!r}", error)
        return Container(name=container.id)
    except OutboxError as error:
        about["error"] = str(error)
    seen = Container(name=container.id, database=outbox.settings.cosmos_database, **about)
    found.judge(checks, seen)
    return seen
