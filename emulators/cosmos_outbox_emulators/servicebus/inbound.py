"""Joins the frames into which a peer has split each of its deliveries. `topic.py` decides what becomes of a whole message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(slots=True, kw_only=True)
class Inbound:
    delivery_id: int
    message_format: int
    settled: bool
    payload: bytes = b""
    size: int = 0


class Assembler:
    """Joins the frames of one delivery at a time. If a delivery has more than `limit` bytes, only its size is kept."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._partial: Inbound | None = None
        self._chunks: list[bytes] = []

    def feed(self, fields: list[Any], payload: bytes) -> Inbound | None:
        """Add a transfer frame. Return the delivery if this frame completes it, otherwise None."""
        _, delivery_id, _, message_format, settled, more, _, _, _, aborted, _ = fields
        inbound = self._partial
        if aborted:
            self._partial, self._chunks = None, []
            return None
        if inbound is None:
            inbound = Inbound(
                delivery_id=delivery_id or 0, message_format=message_format or 0, settled=bool(settled)
            )
            if not more:
                inbound.payload, inbound.size = payload, len(payload)
                return inbound
            self._partial = inbound
        inbound.size += len(payload)
        inbound.settled = inbound.settled or bool(settled)
        if inbound.size <= self._limit:
            self._chunks.append(payload)
        else:
            self._chunks = []
        if more:
            return None
        inbound.payload = b"".join(self._chunks)
        self._partial, self._chunks = None, []
        return inbound
