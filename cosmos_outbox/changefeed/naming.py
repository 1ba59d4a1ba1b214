"""
Naming: the host of the account in a processor's lease ids, and the other processors with leases in the container.

Lease ids begin with the processor's name and a host, with nothing in between, as .NET builds them. The host is that of the
account's global endpoint; older workers, and .NET's, took whatever host their setting named. Two hosts are two
sets of leases, and each event is handled for each of them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from dataclasses import replace

from cosmos_outbox.errors import ConfigurationError
from cosmos_outbox.ports import LeaseStore, MonitoredContainer

RENAME = "cosmos-outbox leases rename-host"
_LOCAL = re.compile(r"localhost|127(\.\d{1,3}){3}|::1")
_REGION = "-[a-z0-9]+"
_OTHER_SUFFIX = re.compile(r"\.(?:[a-z0-9-]+\.)+azure\.(?:com|cn|us)")

_logger = logging.getLogger(__name__)


async def in_use(
    container: MonitoredContainer, *, processor_name: str, leases: LeaseStore
) -> MonitoredContainer:
    """
    Return what names the container in the ids of its leases; its own name where there are none yet.

    Raises:
        ConfigurationError: there are leases under several hosts of the account, so that each event would be handled for
            each of them; or the lease container cannot be used.
    """
    hosts = await hosts_of_leases(container, processor_name=processor_name, leases=leases)
    if len(hosts) > 1:
        raise ConfigurationError(
            f"Processor {processor_name!r} has leases under several names of one account: {', '.join(hosts)}. Workers of "
            f"each would send every event. Stop all workers, then run `{RENAME}`."
        )
    if not hosts or hosts == (container.account_host,):
        return container
    _logger.warning(
        "lease.old-name the leases of processor %s lie under %s, another name of the account %s; they are used as they are. "
        "To rename them, stop all workers and run `%s`",
        processor_name,
        hosts[0],
        container.account_host,
        RENAME,
    )
    return replace(container, account_host=hosts[0])


async def hosts_of_leases(
    container: MonitoredContainer, *, processor_name: str, leases: LeaseStore
) -> tuple[str, ...]:
    """
    Return the hosts of the account under which the processor has leases of the container.
    """
    heads = await _heads(container, processor_name, leases)
    account = container.account_host
    hosts = (host_in(head, processor_name=processor_name, account_host=account) for head in heads)
    return tuple(sorted(host for host in hosts if host is not None))


async def others_on(
    container: MonitoredContainer, *, processor_name: str, leases: LeaseStore
) -> tuple[str, ...]:
    """
    Return the names of the other processors that have leases of the container in this lease container.
    """
    account = container.account_host
    heads = await _heads(container, "", leases)
    others = {
        processor_in(head, account_host=account)
        for head in heads
        if host_in(head, processor_name=processor_name, account_host=account) is None
    }
    return tuple(sorted(others))


async def _heads(container: MonitoredContainer, prefix: str, leases: LeaseStore) -> frozenset[str]:
    await leases.partitioned_by_id()  # raises where the lease container is missing; a listing would be empty
    return heads_of((str(document["id"]) for document in (await leases.list(prefix)).documents), container)


def heads_of(document_ids: Iterable[str], container: MonitoredContainer) -> frozenset[str]:
    """
    Return what stands in the ids of leases of a container before its resource ids: a processor's name and a host.
    """
    rids = f"_{container.database_rid}_{container.container_rid}.."
    parts = (document_id.partition(rids) for document_id in document_ids)
    return frozenset(head for head, found, _ in parts if found)


def host_in(head: str, *, processor_name: str, account_host: str) -> str | None:
    """
    Return the host in a head, where it is the processor's under a name of the account; None where it is another's.

    A host is a name of the account where it is its global endpoint, its id alone, a regional endpoint, an endpoint with
    another of Azure's suffixes, or this machine's.
    """
    if not head.startswith(processor_name):
        return None
    host = head[len(processor_name) :]
    if host == account_host:
        return host
    # Under the account's own name, but of a processor whose name begins with this one's.
    anothers = head.endswith(account_host)
    return host if not anothers and _is_old_name(host, account_host) else None


def _is_old_name(host: str, account_host: str) -> bool:
    account, _, suffix = account_host.partition(".")
    if host == account or _LOCAL.fullmatch(host):
        return True
    if suffix and re.fullmatch(f"{re.escape(account)}{_REGION}{re.escape('.' + suffix)}", host):
        return True
    rest = host.removeprefix(account)
    # Not where the id comes once more: then the first one belongs to the name of another processor.
    return rest != host and account not in rest and _OTHER_SUFFIX.fullmatch(rest) is not None


def processor_in(head: str, *, account_host: str) -> str:
    """
    Return the processor's name in a head, without the host behind it if that is recognised; else all of the head.
    """
    account, _, suffix = account_host.partition(".")
    end = re.escape(f".{suffix}" if suffix else "")
    found = re.fullmatch(rf"(.+?)(?:{re.escape(account)}(?:{_REGION})?{end}|{_LOCAL.pattern})", head)
    return found[1] if found else head
