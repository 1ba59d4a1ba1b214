"""
Connection: one AMQP connection over TCP or TLS, and its channels.

Every call that waits for the peer fails when the connection is lost. One timer closes each channel on which an answer is overdue.
The timer closes the whole connection when the peer is silent or does not answer the end of a channel. So no call waits for ever,
and no call needs a timer of its own.
"""

from __future__ import annotations

import asyncio
import struct
from contextlib import suppress
from typing import Any, Protocol, cast

from cosmos_outbox_amqp.encoding import Symbol, ushort
from cosmos_outbox_amqp.errors import AmqpError, Condition, ProtocolError, Unanswered
from cosmos_outbox_amqp.frames import Code, frame, performative, read_error, read_performative
from cosmos_outbox_amqp.namespace import Namespace

AMQP_HEADER = b"AMQP\x00\x01\x00\x00"
SASL_HEADER = b"AMQP\x03\x01\x00\x00"
HEARTBEAT = b"\x00\x00\x00\x08\x02\x00\x00\x00"
MAX_FRAME_SIZE = 1 << 18  # the largest frame that this side reads
_SMALLEST_FRAME_SIZE = 512  # AMQP demands that every peer reads frames up to this size
ANSWER_SECONDS = 30.0  # how long the peer may take for each answer
_SILENT_SECONDS = 60.0  # a peer that sends nothing for this long loses the connection
# The timer of the connection runs four times in the idle time-out of the peer. These are the longest and the shortest interval.
_TICK_SECONDS, _LEAST_TICK_SECONDS = 5.0, 0.05
_CLOSE_SECONDS = 5.0
_CHANNEL_MAX = 4999  # this client uses channels 0 to 4,999
_ANY_SIZE = 2**32 - 1  # the frame size of a peer that names no limit, as AMQP says
_SASL_DENIED = 1  # the credentials are wrong; 0 is success, and any other outcome a fault of the peer
_KEPT_CHANNELS = 2  # channels that are kept free for the renewal of tokens and locks
WINDOW = 2**31 - 1  # how many frames a side may send: in practice, only the credit of a link limits messages
_MECHANISM = "ANONYMOUS"  # SASL carries no identity: the client sends its token to $cbs later
_HEADER_SIZE = 8
_HEAD = struct.Struct(">IBxH").unpack_from  # reads the head of a frame


class Endpoint(Protocol):
    """
    The user of one channel of a connection: the link of a session, or the links for requests.

    A channel is what AMQP calls a session. It is not a session of Service Bus.
    """

    needed_by_all: bool
    """Whether the loss of this channel makes all others of the connection useless."""

    @property
    def waiting_since(self) -> float | None:
        """Return the event loop's time at which the oldest wait for an answer of the peer began; None if there is no such wait."""
        ...

    def on_frame(self, code: int, fields: list[Any], payload: bytes) -> None:
        """Handle a frame that the peer sent on this channel."""
        ...

    def on_lost(self, error: AmqpError) -> None:
        """Handle the end of the channel: let the calls that wait on it fail with this error."""
        ...


class Connection(asyncio.Protocol):
    """
    An AMQP connection. `connect` creates it.

    Frames that are written during one iteration of the event loop are sent together.
    """

    def __init__(self, host: str) -> None:
        self._host = host
        self._loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[None] = self._loop.create_future()
        self.lost: AmqpError | None = None
        self._closing = False  # this side is closing the connection, and still reads the peer's answer
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._transport: asyncio.Transport | None = None
        self._header = SASL_HEADER  # the header that the peer has to send next; empty after the last header
        self._unread: list[bytes] = []
        # The number of bytes that are received but not parsed, and the number that is needed before a frame can be parsed
        self._size, self._needed = 0, _HEADER_SIZE
        self._out: list[bytes] = []
        # A channel has two numbers: this side chooses one, and the peer another. The keys of `_endpoints` are this side's numbers.
        self._endpoints: dict[int, Endpoint] = {}
        # for each number of the peer: this side's number of the same channel
        self._by_peer: dict[int, int] = {}
        # For each channel that this side has ended and the peer has not: the time at which this side ended it
        self._ending: dict[int, float] = {}
        self._free: list[int] = []
        self._heard_at = self._wrote_at = self._loop.time()
        self._beat_seconds, self._tick_seconds = _SILENT_SECONDS, _TICK_SECONDS
        self._tick: asyncio.TimerHandle | None = None
        self.peer_frame_size = _ANY_SIZE
        self._channel_max = _CHANNEL_MAX
        self._own = {  # handlers of the frames that concern the whole connection
            Code.SASL_MECHANISMS: self._on_mechanisms,
            Code.SASL_OUTCOME: self._on_outcome,
            Code.OPEN: self._on_open,
            Code.CLOSE: self._on_close,
        }

    # Channels

    def begin(self, endpoint: Endpoint) -> int:
        """
        Begin a channel for an endpoint and return its number.

        Raises:
            AmqpError: the connection is gone, or has no channel left.
        """
        if self.lost is not None:
            raise self.lost
        used = len(self._endpoints) + len(self._ending)
        if used > self._channel_max - (0 if endpoint.needed_by_all else _KEPT_CHANNELS):
            said = f"The broker takes {self._channel_max + 1} channels on a connection: receive fewer sessions at a time."
            raise AmqpError(Condition.RESOURCE_LIMIT_EXCEEDED, said)
        number = self._free.pop() if self._free else used
        self._endpoints[number] = endpoint
        self.write(number, performative(Code.BEGIN, None, 0, WINDOW, WINDOW, 255))
        return number

    def end(self, number: int) -> None:
        """End a channel, so that its endpoint receives no more frames."""
        if self._endpoints.pop(number, None) is not None:
            self._ending[number] = self._loop.time()
            self.write(number, performative(Code.END))

    def write(self, channel: int, body: bytes) -> None:
        """Send one frame with this body on a channel."""
        self._write(frame(channel, body))

    def _write(self, data: bytes) -> None:
        if self.lost is None:
            if not self._out:
                self._loop.call_soon(self._flush)
            self._out.append(data)

    def _flush(self) -> None:
        out, self._out = self._out, []
        if self._transport is not None and not self._transport.is_closing():
            self._wrote_at = self._loop.time()
            self._transport.write(b"".join(out))

    @property
    def is_made(self) -> bool:
        return self._transport is not None

    # asyncio calls these methods when bytes arrive or the connection changes.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # This is a cast and not a check with isinstance, because the transports of uvloop are not derived from asyncio.Transport.
        self._transport = cast("asyncio.Transport", transport)
        self._tick = self._loop.call_later(self._tick_seconds, self._on_tick)
        self._write(SASL_HEADER)

    def data_received(self, data: bytes) -> None:
        self._heard_at = self._loop.time()
        self._unread.append(data)
        self._size += len(data)
        if self._size < self._needed:  # parse a frame only when it is complete, as it may come byte by byte
            return
        try:
            self._read(data if len(self._unread) == 1 else b"".join(self._unread))
        except AmqpError as error:
            self.abort(error)

    def _read(self, data: bytes) -> None:
        position, size, self._needed = 0, len(data), _HEADER_SIZE
        while size - position >= _HEADER_SIZE and (self.lost is None or self._closing):
            if self._header:
                self._on_header(data[position : position + _HEADER_SIZE])
                position += _HEADER_SIZE
                continue
            length, words, channel = _HEAD(data, position)
            offset = 4 * words
            if not _HEADER_SIZE <= offset <= length <= MAX_FRAME_SIZE:
                raise ProtocolError(f"A frame has a wrong head: {length} bytes, body at byte {offset}.")
            if size - position < length:
                self._needed = length
                break
            if length > offset:
                self._on_frame(channel, data, position + offset, position + length)
            position += length
        self._unread, self._size = [data[position:]], size - position

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose(AmqpError("", f"The connection is lost{f': {exc}' if exc else ''}."))
        self._end()

    def _end(self) -> None:
        self._closing = False
        if not self._ended.done():
            self._ended.set_result(None)

    def abort(self, error: AmqpError) -> None:
        """Close the connection at once, without sending a close frame. Calls that wait fail with this error."""
        self._lose(error)
        self._end()
        if self._transport is not None:
            self._transport.abort()

    async def close(self) -> None:
        """Send a close frame, and wait a few seconds for the peer's answer, which shows that the peer has read all earlier frames."""
        if self.lost is None:
            self._write(frame(0, performative(Code.CLOSE)))
            self._flush()
            self._closing = True
            self._lose(AmqpError("", "The connection is closed."))
            with suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await self._ended
        if self._transport is not None:
            self._transport.abort()

    def _lose(self, error: AmqpError) -> None:
        if self.lost is not None:
            return
        self.lost = error
        if self._tick is not None:
            self._tick.cancel()
        if not self.opened.done():
            self.opened.set_exception(error)
            self.opened.exception()  # reading the error keeps asyncio from logging it if no call waits
        endpoints, self._endpoints = [*self._endpoints.values()], {}
        for endpoint in endpoints:
            endpoint.on_lost(error)

    def _on_tick(self) -> None:
        now = self._loop.time()
        # A broker counts as lost if it sent nothing for a minute, or has not answered the end of a channel for 30 seconds.
        unanswered = now - min(self._ending.values(), default=now)
        if now - self._heard_at > _SILENT_SECONDS or unanswered > ANSWER_SECONDS:
            self.abort(AmqpError("", "The broker does not answer."))
            return
        for number, endpoint in [*self._endpoints.items()]:
            if endpoint.waiting_since is not None and now - endpoint.waiting_since > ANSWER_SECONDS:
                self.end(number)
                endpoint.on_lost(Unanswered())
        if now - self._wrote_at > self._beat_seconds:
            self._write(HEARTBEAT)
        self._tick = self._loop.call_later(self._tick_seconds, self._on_tick)

    # These methods handle frames from the peer.

    def _on_header(self, header: bytes) -> None:
        if header != self._header:
            raise ProtocolError("The peer did not answer with the protocol header of AMQP 1.0 with SASL.")
        self._header = b""
        if header == AMQP_HEADER:
            limits = MAX_FRAME_SIZE, ushort(_CHANNEL_MAX), int(_SILENT_SECONDS * 1000)
            self.write(0, performative(Code.OPEN, f"cosmos-outbox-{id(self):x}", self._host, *limits))

    def _on_frame(self, number: int, data: bytes, start: int, end: int) -> None:
        code, fields, position = read_performative(data, start)
        if position > end:
            raise ProtocolError("A frame of the peer ends before its performative does.")
        own = self._own.get(code)
        if own is not None:
            own(fields)
        elif not self.opened.done():
            raise ProtocolError("The peer's first frame is not an open frame.")
        elif code == Code.END:
            self._on_end(number, read_error(fields[0]))
        else:
            if code == Code.BEGIN:
                self._by_peer[number] = self._number(fields[0])
            endpoint = self._endpoints.get(self._by_peer.get(number, -1))
            if endpoint is not None:
                try:
                    endpoint.on_frame(code, fields, data[position:end])
                except (TypeError, ValueError, AttributeError, OverflowError) as error:
                    raise ProtocolError(f"A frame is malformed: {error!r:.200}") from error

    def _number(self, value: Any) -> int:
        if not isinstance(value, int) or (value not in self._endpoints and value not in self._ending):
            raise ProtocolError("The peer began an AMQP session that this side did not request.")
        return value

    def _on_end(self, number: int, error: AmqpError | None) -> None:
        mine = self._by_peer.pop(number, None)
        if mine is None:
            return
        endpoint = self._endpoints.pop(mine, None)
        if endpoint is not None or mine in self._ending:
            self._free.append(mine)
        self._ending.pop(mine, None)
        if endpoint is not None:
            self.write(mine, performative(Code.END))
            endpoint.on_lost(error or AmqpError("", "The broker ended the AMQP session."))

    def _on_mechanisms(self, fields: list[Any]) -> None:
        offered = fields[0] if isinstance(fields[0], list) else [fields[0]]
        if _MECHANISM not in offered:
            raise ProtocolError("The broker does not offer SASL ANONYMOUS, which this client needs.")
        init = performative(Code.SASL_INIT, Symbol(_MECHANISM), b"", self._host)
        self._write(frame(0, init, sasl=True))

    def _on_outcome(self, fields: list[Any]) -> None:
        if fields[0] != 0:
            condition = Condition.UNAUTHORIZED_ACCESS if fields[0] == _SASL_DENIED else ""
            raise AmqpError(condition, f"The broker refused the sign-in: SASL {fields[0]!r:.20}.")
        self._header = AMQP_HEADER
        self._write(AMQP_HEADER)

    def _on_open(self, fields: list[Any]) -> None:
        _, _, frame_size, channel_max, idle = fields[:5]
        if isinstance(frame_size, int):
            self.peer_frame_size = max(frame_size, _SMALLEST_FRAME_SIZE)
        if isinstance(channel_max, int):
            self._channel_max = min(channel_max, _CHANNEL_MAX)
        if isinstance(idle, int) and idle:
            self._tick_seconds = max(min(idle / 1000 / 4, _TICK_SECONDS), _LEAST_TICK_SECONDS)
            self._beat_seconds = min(idle / 1000 / 2 - self._tick_seconds, _SILENT_SECONDS)
            if self._tick is not None:
                self._tick.cancel()
            self._on_tick()
        if not self.opened.done():
            self.opened.set_result(None)

    def _on_close(self, fields: list[Any]) -> None:
        if self._closing:
            self._end()
            return
        self._write(frame(0, performative(Code.CLOSE)))
        self._flush()
        self._lose(read_error(fields[0]) or AmqpError("", "The broker closed the connection."))
        if self._transport is not None:
            self._transport.close()


async def connect(namespace: Namespace) -> Connection:
    """
    Connect to a Service Bus namespace, and return the open connection.

    With a TLS context, the certificate has to name the host. Without a TLS context, the connection is plain TCP, as to an emulator.

    Raises:
        AmqpError: the peer cannot be reached, or refuses the connection.
    """
    host, port, tls = namespace.host, namespace.port, namespace.tls
    connection = Connection(host)
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            await asyncio.get_running_loop().create_connection(
                lambda: connection, host, port, ssl=tls, server_hostname=host if tls else None
            )
            await connection.opened
    except (OSError, TimeoutError) as error:  # errors of TLS are OSErrors too
        failure = AmqpError("", f"No connection to {host}:{port}: {str(error) or 'no answer'}.")
        if isinstance(error, TimeoutError) and connection.is_made:
            failure = Unanswered()
        connection.abort(failure)
        raise failure from error
    except BaseException:
        connection.abort(AmqpError("", "The wait for the connection ended."))
        raise
    return connection
