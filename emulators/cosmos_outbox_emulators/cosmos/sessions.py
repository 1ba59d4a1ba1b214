"""
What a reader may see: what its session has seen at least, and at most what the replica that answers has got.

With a replica lag every read is answered as of that long ago; one whose session is further is refused with 404/1002. Writes never lag.
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
    """Return the last LSN of a partition that the replicas have."""
    lag = container.replication.lag_s
    return partition.lsn_at(now - lag) if lag else partition.lsn


def readable_lsn(container: Container, partition: Partition, headers: Mapping[str, str], now: float) -> int:
    """
    Return the last LSN of a partition that a reader is shown.

    Raises:
        CosmosError: 404/1002, the session of the reader has seen a later one.
    """
    reached = lsn_of_replicas(container, partition, now)
    require_seen(container, partition, headers, reached)
    return reached


def require_seen(
    container: Container, partition: Partition, headers: Mapping[str, str], reached: int
) -> None:
    """Refuse a reader whose session has seen more than the answering replica has reached."""
    session = headers.get("x-ms-session-token")
    if session and _lsn_of_session(session, container, partition) > reached:
        raise CosmosError(
            404, "The read session is not available for the input session token.", substatus=_NOT_AVAILABLE
        )


def _lsn_of_session(session: str, container: Container, partition: Partition) -> int:
    """
    Return the LSN that a session token has of a range, or of the ranges from which it was split; 0 without a token.

    Each container has a version of its own in its tokens, since LSNs of two cannot be compared: SDKs send those of a container
    that had the same name, and mix up those of containers whose writes they get no bodies of.
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
