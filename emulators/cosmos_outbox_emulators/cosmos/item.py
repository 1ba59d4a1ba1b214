"""
An item as it is stored: immutable, with its JSON kept ready so that reads and feed pages never serialise it again.
"""

from __future__ import annotations

from dataclasses import dataclass

from cosmos_outbox_emulators.cosmos.jsontext import JsonObject

ItemKey = tuple[bytes, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One version of a document; `sequence` is the creation order, which survives replacement."""

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
    Compute when an item expires; `ttl` of the item counts only if the container has a default (-1: on, never by default).
    """
    if default_ttl is None:
        return None
    ttl = body.get("ttl")
    ttl = default_ttl if ttl is None else ttl
    return timestamp + ttl if ttl > 0 else None
