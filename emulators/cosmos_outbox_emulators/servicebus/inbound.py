"""Deliveries from the peer, put together from the frames they were split into."""

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
    """Keeps at most `limit` bytes of a delivery: of one that grows beyond it, only the size."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._partial: Inbound | None = None
        self._chunks: list[bytes] = []

    def feed(self, fields: list[Any], payload: bytes) -> Inbound | None:
        """Return the delivery when this transfer frame completes it."""
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
