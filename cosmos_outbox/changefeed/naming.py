"""
Naming: which processors have leases of a container, and the refusal of leases under another name of the account.

Lease ids begin with the processor's name and the host of the account's global endpoint, with nothing in between, as .NET builds
them. A .NET worker that was given a regional endpoint names that one. Two hosts are two sets of leases, and each event is
handled for each of them.
"""

from __future__ import annotations

import re

from cosmos_outbox.changefeed.leases import lease_prefix
from cosmos_outbox.errors import ConfigurationError
from cosmos_outbox.ports import LeaseStore, MonitoredContainer


async def own_prefix(container: MonitoredContainer, *, processor_name: str, leases: LeaseStore) -> str:
    """
    Return what the ids of a processor's leases begin with.

    Raises:
        ConfigurationError: the processor has leases under another name of the account; or the lease container cannot be used.
    """
    heads = await _heads(container, leases, processor_name)
    hosts = (head.removeprefix(processor_name) for head in heads)
    others = sorted(host for host in hosts if _is_other_name(host, container.account_host.lower()))
    if others:
        raise ConfigurationError(
            f"Processor {processor_name!r} has leases under {', '.join(others)}, another name of the account "
            f"{container.account_host}: workers of each name would send every event. Stop the workers, delete the documents of "
            f"the lease container whose ids begin with {processor_name + others[0]!r}, and start the workers at a time before "
            "the last write of those leases: what was sent since is sent again."
        )
    return lease_prefix(processor_name, container)


async def others_on(
    container: MonitoredContainer, *, processor_name: str, leases: LeaseStore
) -> tuple[str, ...]:
    """Return the names of the other processors that have leases of the container in this lease container."""
    host = container.account_host.lower()
    heads = await _heads(container, leases) - {f"{processor_name}{host}"}
    return tuple(sorted(head.removesuffix(host) for head in heads))


async def _heads(container: MonitoredContainer, leases: LeaseStore, beginning: str = "") -> frozenset[str]:
    """
    Return what stands in the ids of leases of a container before its resource ids: a processor's name and a host.
    """
    await leases.partitioned_by_id()  # raises where the lease container is missing; a listing would be empty
    rids = f"_{container.database_rid}_{container.container_rid}.."
    parts = (str(one["id"]).partition(rids) for one in (await leases.list(beginning)).documents)
    return frozenset(head for head, found, _ in parts if found)


def _is_other_name(host: str, account_host: str) -> bool:
    # What ends with the account's own name belongs to a processor whose name begins with this one's.
    account = re.escape(account_host.partition(".")[0])
    return not host.endswith(account_host) and re.fullmatch(rf"{account}([-.].*)?", host) is not None
