"""The parts that replies about documents have in common: headers, and JSON arrays that are joined from stored JSON texts."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from cosmos_outbox_emulators.cosmos.container import Container
from cosmos_outbox_emulators.cosmos.partition import Partition


def document_headers(
    container: Container,
    partition: Partition,
    charge: float,
    *,
    etag: str | None = None,
    lsn: int | None = None,
) -> dict[str, str]:
    lsn = partition.lsn if lsn is None else lsn
    headers = {
        "x-ms-request-charge": f"{charge:.2f}",
        "x-ms-session-token": f"{partition.range_id}:{container.token_version}#{lsn}",
        "lsn": str(lsn),
        "x-ms-documentdb-partitionkeyrangeid": partition.range_id,
        # Without this header the SDK does not track session tokens.
        "x-ms-alt-content-path": quote(container.path),
        "x-ms-content-path": container.rid,
    }
    if etag is not None:
        headers["etag"] = etag
    return headers


def refusal_headers(container: Container, partition: Partition, lsn: int) -> dict[str, str]:
    """
    Return the headers of the reply to a refused operation. They include the session token, but not the container's resource id,
    which the service leaves out.
    """
    headers = document_headers(container, partition, 1.0, lsn=lsn)
    return {name: value for name, value in headers.items() if name != "x-ms-content-path"}


def array(rows: Sequence[bytes]) -> bytes:
    return b"[" + b",".join(rows) + b"]"


def listing(rid: str, rows: Sequence[bytes], name: str = "Documents") -> bytes:
    return b'{"_rid":"%b","%b":%b,"_count":%d}' % (rid.encode(), name.encode(), array(rows), len(rows))
