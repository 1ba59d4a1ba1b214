"""
Session consistency: what a reader sees, given what its session has seen and what the answering replica has received.

If replicas lag by some seconds, every read is answered with the data of that many seconds ago. A read whose session has seen a
later write is refused with 404/1002. Writes never lag.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from cosmos_outbox_emulators.cosmos.container import Container
from cosmos_outbox_emulators.cosmos.errors import CosmosError, bad_request
from cosmos_outbox_emulators.cosmos.partition import Partition

_NOT_AVAILABLE = 1002
_TOKEN = re.compile(r"(\d{1,9}):(?:(-?\d{1,18})#)?(\d{1,18})(?:#\d+=-?\d+)*", re.ASCII)
_ANY_VERSION = ("-1", None)


def lsn_of_replicas(container: Container, partition: Partition, now: float) -> int:
    """Return the last LSN of a partition that its replicas have received."""
    lag = container.replication.lag_s
    return partition.lsn_at(now - lag) if lag else partition.lsn


def readable_lsn(container: Container, partition: Partition, headers: Mapping[str, str], now: float) -> int:
    """
    Return the last LSN of a partition that a reader sees.

    Raises:
        CosmosError: with 404/1002, if the reader's session has seen a later LSN.
    """
    reached = lsn_of_replicas(container, partition, now)
    require_seen(container, partition, headers, reached)
    return reached


def require_seen(
    container: Container, partition: Partition, headers: Mapping[str, str], reached: int
) -> None:
    """Refuse a read with 404/1002 if its session has seen more than the answering replica has received."""
    session = headers.get("x-ms-session-token")
    if session and _lsn_of_session(session, container, partition) > reached:
        raise CosmosError(
            404, "The read session is not available for the input session token.", substatus=_NOT_AVAILABLE
        )


def _lsn_of_session(session: str, container: Container, partition: Partition) -> int:
    """
    Return the LSN that a session token has for a range, or for the ranges from which the range was split. Return 0 if the token
    has none.

    Each container puts a version of its own into its tokens, because the LSNs of two containers cannot be compared. Tokens of
    another version are ignored: an SDK may send the token of a deleted container with the same name, or of another container if
    its writes return no body.
    """
    seen = 0
    for text in session.split(","):
        token = _TOKEN.fullmatch(text.strip())
        if token is None:
            raise bad_request(f"The session token provided '{session[:100]}' is invalid.")
        known = token[2] in (*_ANY_VERSION, str(container.token_version))
        if known and token[1] in (partition.range_id, *partition.parents):
            seen = max(seen, int(token[3]))
    return seen
