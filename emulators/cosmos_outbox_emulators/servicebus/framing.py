"""
AMQP frames over a TCP transport. Received bytes are split into frames, and frames to send are collected into few writes.
`connection.py` decides what a frame does.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Protocol, cast

from cosmos_outbox_emulators.servicebus.conditions import AmqpError, Condition
from cosmos_outbox_emulators.servicebus.decoding import DecodeError

logger = logging.getLogger(__name__)

MAX_FRAME_SIZE = 65536
FLUSH_AT = 1 << 18


class Peer(Protocol):
    """The object that gets the frames of a connection."""

    @property
    def expects_header(self) -> bool:
        """Return whether the next 8 bytes are a protocol header and not the start of a frame."""

    def on_connected(self) -> None: ...

    def on_heard(self) -> None:
        """Record that the peer is alive, because bytes have arrived. A heartbeat is enough."""

    def on_header(self, header: bytes) -> None: ...

    def on_frame(self, kind: int, channel: int, body: bytes) -> None: ...

    def on_failure(self, failure: AmqpError) -> None:
        """Answer input that is wrong with this error, and close the connection."""

    def on_writable(self) -> None:
        """Continue to write, because the peer has caught up with reading."""

    def on_lost(self) -> None: ...

    def before_output(self) -> None:
        """Save all changes before bytes are sent, if the emulator keeps its data in a folder."""


class Frames(asyncio.Protocol):
    """
    Reads and writes the frames of a connection. It keeps reading whatever the peer does, because the SDK closes a connection whose
    peer reads nothing for a second.
    """

    def __init__(self, peer: Peer) -> None:
        self.congested = False
        self.closed = False
        self._peer = peer
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._out: list[bytes] = []
        self._out_size = 0
        self._flush_expected = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)  # isinstance fails for uvloop's transports
        if self.closed:  # the connection was cut before its transport existed
            transport.abort()
            return
        self._transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._peer.on_connected()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._peer.on_lost()

    def pause_writing(self) -> None:
        self.congested = True

    def resume_writing(self) -> None:
        self.congested = False
        self._peer.on_writable()

    def data_received(self, data: bytes) -> None:
        if self.closed:
            return
        self._peer.on_heard()
        # A frame is small, so joining its pieces costs less than slicing them out of a bytearray.
        self._buffer = self._buffer + data if self._buffer else data
        self._flush_expected = True
        try:
            self._read()
        except DecodeError as failure:
            self._peer.on_failure(AmqpError(Condition.DECODE_ERROR, str(failure)))
        except AmqpError as failure:
            self._peer.on_failure(failure)
        except Exception:  # a defect may end this connection, but never the broker or another connection
            logger.exception("connection.failed")
            self._peer.on_failure(
                AmqpError(Condition.INTERNAL_ERROR, "The broker failed to process a frame; see its log.")
            )
        self.flush()

    def _read(self) -> None:
        buffer, position, size = self._buffer, 0, len(self._buffer)
        peer = self._peer
        while size - position >= 8 and not self.closed:
            if peer.expects_header:
                peer.on_header(buffer[position : position + 8])
                position += 8
                continue
            length = int.from_bytes(buffer[position : position + 4], "big")
            offset = buffer[position + 4] * 4
            if not 8 <= length <= MAX_FRAME_SIZE or not 8 <= offset <= length:
                raise AmqpError(
                    Condition.FRAMING_ERROR,
                    f"A frame of {length} bytes with a data offset of {offset} is not valid; the limit is {MAX_FRAME_SIZE}.",
                )
            if size - position < length:
                break
            if length > offset:
                channel = int.from_bytes(buffer[position + 6 : position + 8], "big")
                peer.on_frame(buffer[position + 5], channel, buffer[position + offset : position + length])
            position += length
        self._buffer = buffer[position:]

    def write(self, data: bytes) -> None:
        if self.closed:
            return
        self._out.append(data)
        self._out_size += len(data)
        if self._out_size >= FLUSH_AT:
            self.flush()
        elif not self._flush_expected:
            self._flush_expected = True
            asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        self._flush_expected = False
        if self._out and self._transport and not self._transport.is_closing():
            data = b"".join(self._out)
            self._out.clear()
            self._out_size = 0
            self._peer.before_output()
            self._transport.write(data)

    def close(self) -> None:
        """Close the connection once everything is written."""
        self.flush()
        self.closed = True
        if self._transport:
            self._transport.close()

    def abort(self) -> None:
        """Cut the connection without closing it in AMQP, as a lost network does."""
        self.closed = True
        self._out.clear()
        if self._transport:
            self._transport.abort()
