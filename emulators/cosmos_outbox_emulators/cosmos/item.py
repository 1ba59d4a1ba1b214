"""
An item as the emulator stores it. It is immutable, and its JSON text is kept, so that reads and feed pages need not serialise it
again.
"""

from __future__ import annotations

from dataclasses import dataclass

from cosmos_outbox_emulators.cosmos.jsontext import JsonObject

ItemKey = tuple[bytes, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """
    One version of a document. Its `sequence` says in which order documents were created, and stays the same when the document is
    replaced.
    """

    key: ItemKey
    epk: str
    sequence: int
    lsn: int
    etag: str
    timestamp: int
    body: JsonObject
    encoded: bytes
    expires_at: float | None


def expiry(body: JsonObject, timestamp: int, default_ttl: int | None) -> float | None:
    """
    Return the time at which an item expires, or None. The item's own `ttl` counts only if the container has a default TTL; the
    default -1 means that an item without a `ttl` never expires.
    """
    if default_ttl is None:
        return None
    ttl = body.get("ttl")
    ttl = default_ttl if ttl is None else ttl
    return timestamp + ttl if ttl > 0 else None
