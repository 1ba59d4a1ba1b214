"""
The regions of an account. An account that failed over has two regions, which are two host names of this machine, and only one of
them accepts writes.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from cosmos_outbox_emulators.cosmos.account import Account
from cosmos_outbox_emulators.cosmos.errors import CosmosError
from cosmos_outbox_emulators.cosmos.protocol import WRITES, Request, RequestKind

_HOSTS = {"127.0.0.1": "Local", "localhost": "Local 2"}
_WRITE_FORBIDDEN = 3


def fail_over(account: Account) -> str:
    """Let the region that accepted no writes accept them from now on, in place of the other region. Return its host name."""
    account.write_host = "127.0.0.1" if account.write_host == "localhost" else "localhost"
    return account.write_host


def locations(account: Account, origin: str) -> dict[str, Any]:
    """
    Describe the regions of an account under the address that the client used. The SDK sends its later requests to the described
    address, so another address would bypass a port that Docker maps.
    """
    if account.write_host is None:
        writable = readable = [{"name": "Local", "databaseAccountEndpoint": f"{origin}/"}]
    else:
        asked = urlsplit(origin)
        hosts = sorted(_HOSTS, key=lambda host: host != account.write_host)  # the write region comes first
        readable = [
            {"name": _HOSTS[host], "databaseAccountEndpoint": f"{asked.scheme}://{host}:{asked.port}/"}
            for host in hosts
        ]
        writable = readable[:1]
    return {"writableLocations": writable, "readableLocations": readable}


def refuse_writes_elsewhere(account: Account, request: Request, kind: RequestKind) -> None:
    """Refuse a write that was sent to the region that accepts no writes."""
    if account.write_host in (None, urlsplit(request.origin).hostname) or kind not in WRITES:
        return
    text = "The requested operation cannot be performed at this region."
    raise CosmosError(403, text, substatus=_WRITE_FORBIDDEN)
