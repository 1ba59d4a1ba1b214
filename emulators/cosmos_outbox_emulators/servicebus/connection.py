"""
One AMQP connection: its protocol headers, SASL and frames, and what each performative (the kind of a frame, such as attach) does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import StrEnum
from typing import Any

from cosmos_outbox_emulators.servicebus.attach import open_link
from cosmos_outbox_emulators.servicebus.broker import Broker
from cosmos_outbox_emulators.servicebus.channel import WINDOW, Channel
from cosmos_outbox_emulators.servicebus.conditions import AmqpError, Condition
from cosmos_outbox_emulators.servicebus.decoding import DecodeError
from cosmos_outbox_emulators.servicebus.delivery_link import DeliveryLink
from cosmos_outbox_emulators.servicebus.framing import MAX_FRAME_SIZE, Frames
from cosmos_outbox_emulators.servicebus.performatives import (
    HEARTBEAT,
    SASL_FRAME,
    Code,
    error,
    frame,
    performative,
    read_performative,
)
from cosmos_outbox_emulators.servicebus.primitives import Array, Symbol, UByte, UInt, UShort
from cosmos_outbox_emulators.servicebus.requests import ReplyLink
from cosmos_outbox_emulators.servicebus.sas import covers
from cosmos_outbox_emulators.servicebus.timers import Timer

MIN_FRAME_SIZE = 512
MAX_PEER_FRAME_SIZE = 1 << 20
CHANNEL_MAX = 4999
HANDLE_MAX = 255
IDLE_TIMEOUT_S = 240.0
HANDSHAKE_TIMEOUT_S = 60.0
AMQP_HEADER = b"AMQP\x00\x01\x00\x00"
SASL_HEADER = b"AMQP\x03\x01\x00\x00"
MECHANISMS = ("MSSBCBS", "PLAIN", "ANONYMOUS", "EXTERNAL")
_SASL_OK, _SASL_AUTH = 0, 1


class Stage(StrEnum):
    HEADER = "header"
    SASL = "sasl"
    AUTHENTICATED = "authenticated"
    OPEN = "open"


class Connection:
    """
    One connection of a peer. Whatever the peer sends, the broker answers or closes the connection. The broker never waits for the
    peer, and no error leaves this object.
    """

    def __init__(self, broker: Broker, on_closed: Callable[[Connection], None]) -> None:
        self.broker = broker
        self.frames = Frames(self)
        self.peer_frame_size = MIN_FRAME_SIZE
        self._on_closed = on_closed
        self._stage = Stage.HEADER
        self._opened = False
        self._channels: dict[int, Channel] = {}
        self._ended: set[int] = set()
        self._grants: dict[tuple[str, frozenset[str]], float] = {}
        self._expiries: dict[tuple[str, frozenset[str]], Timer] = {}
        self._heard_at = broker.timers.now()
        self._heartbeat: Timer | None = None
        self._watch: Timer | None = None
        self._performatives: dict[int, Callable[[int, list[Any], bytes], None]] = {
            Code.OPEN: self._on_open,
            Code.BEGIN: self._on_begin,
            Code.ATTACH: self._on_attach,
            Code.FLOW: self._on_flow,
            Code.TRANSFER: self._on_transfer,
            Code.DISPOSITION: self._on_disposition,
            Code.DETACH: self._on_detach,
            Code.END: self._on_end,
            Code.CLOSE: self._on_close,
        }

    # Transport

    @property
    def expects_header(self) -> bool:
        return self._stage in (Stage.HEADER, Stage.AUTHENTICATED)

    @property
    def congested(self) -> bool:
        return self.frames.congested

    def on_connected(self) -> None:
        timers = self.broker.timers
        self._watch = timers.at(timers.now() + HANDSHAKE_TIMEOUT_S, self._check_silence)

    def on_heard(self) -> None:
        self._heard_at = self.broker.timers.now()

    def on_lost(self) -> None:
        for timer in (self._heartbeat, self._watch, *self._expiries.values()):
            if timer:
                timer.cancel()
        channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            channel.close()
        self._on_closed(self)

    def on_writable(self) -> None:
        for channel in list(self._channels.values()):
            for link in list(channel.links.values()):
                if isinstance(link, DeliveryLink):
                    link.pump()

    def send(self, channel: int, body: bytes) -> None:
        self.frames.write(frame(channel, body))

    def write(self, data: bytes) -> None:
        self.frames.write(data)

    def before_output(self) -> None:
        if self.broker.before_output:
            self.broker.before_output()

    def abort(self) -> None:
        self.frames.abort()

    def close(self, failure: AmqpError | None = None) -> None:
        """Close the connection in AMQP, with the reason if there is one. Then close the socket once everything is written."""
        if self.frames.closed:
            return
        if self._stage is Stage.OPEN:
            if not self._opened:
                self._send_open(None)
            self.send(0, performative(Code.CLOSE, error(failure) if failure else None))
        self.frames.close()

    def on_failure(self, failure: AmqpError) -> None:
        if self.expects_header:
            # AMQP demands that a peer which sends a wrong protocol header gets the header that this side expects.
            self.write(SASL_HEADER if self._stage is Stage.HEADER else AMQP_HEADER)
        self.close(failure)

    # Handshake

    def on_header(self, header: bytes) -> None:
        if self._stage is Stage.HEADER:
            self.broker.connections += 1
        if header == SASL_HEADER and self._stage is Stage.HEADER:
            self._stage = Stage.SASL
            mechanisms = Array(Symbol(name) for name in MECHANISMS)
            self.write(header)
            self.write(frame(0, performative(Code.SASL_MECHANISMS, mechanisms), kind=SASL_FRAME))
        elif header == AMQP_HEADER:
            self._stage = Stage.OPEN
            self.write(header)
        else:
            raise AmqpError(Condition.FRAMING_ERROR, "An AMQP 1.0 protocol header was expected.")

    def _on_sasl(self, body: bytes) -> None:
        code, fields, _ = read_performative(body)
        if code != Code.SASL_INIT:
            raise DecodeError("expected a SASL init frame")
        proven = fields[0] in MECHANISMS
        if fields[0] == "PLAIN":
            proven = self._check_plain(fields[1] or b"")
        outcome = performative(Code.SASL_OUTCOME, UByte(_SASL_OK if proven else _SASL_AUTH))
        self.write(frame(0, outcome, kind=SASL_FRAME))
        if proven:
            self._stage = Stage.AUTHENTICATED
        else:
            self.close()

    def _check_plain(self, response: bytes) -> bool:
        """
        Check the name and the value of a key, which AMQP clients without $cbs send by SASL PLAIN. A valid key grants its rights on
        the whole namespace.
        """
        parts = [part.decode("latin1") for part in response.split(b"\x00")]
        if len(parts) != 3 or parts[2] not in self.broker.keys.get(parts[1], ()):
            return False
        self.authorise("", math.inf, self.broker.config.rights_of(parts[1]))
        return True

    def on_frame(self, kind: int, channel: int, body: bytes) -> None:
        if self._stage is Stage.SASL:
            if kind != SASL_FRAME:
                raise AmqpError(Condition.FRAMING_ERROR, "A SASL frame was expected.")
            self._on_sasl(body)
            return
        if kind != 0:
            raise AmqpError(Condition.FRAMING_ERROR, f"An AMQP frame was expected, got type {kind}.")
        code, fields, position = read_performative(body)
        handle = self._performatives.get(code)
        if handle is None:
            raise DecodeError(f"performative 0x{code:02x} is not allowed after the SASL handshake")
        if not self._opened and code not in (Code.OPEN, Code.CLOSE):
            raise AmqpError(Condition.NOT_ALLOWED, "The first frame of a connection must be an open.")
        handle(channel, fields, body[position:] if code == Code.TRANSFER else b"")

    def _on_open(self, channel: int, fields: list[Any], payload: bytes) -> None:
        if self._opened:
            raise AmqpError(Condition.NOT_ALLOWED, "The connection is already open.")
        wanted = fields[2] if fields[2] is not None else MAX_PEER_FRAME_SIZE
        if wanted < MIN_FRAME_SIZE:
            raise AmqpError(Condition.INVALID_FIELD, f"max-frame-size must be at least {MIN_FRAME_SIZE}.")
        self.peer_frame_size = min(wanted, MAX_PEER_FRAME_SIZE)
        self._send_open(fields[1])
        if fields[4]:
            self._beat(fields[4] / 2000)

    def _send_open(self, hostname: str | None) -> None:
        self._opened = True
        idle = UInt(int(IDLE_TIMEOUT_S * 1000))
        sizes = UInt(MAX_FRAME_SIZE), UShort(CHANNEL_MAX)
        self.send(0, performative(Code.OPEN, "servicebus-emulator", hostname, *sizes, idle))

    def _beat(self, interval_s: float) -> None:
        timers = self.broker.timers
        interval_s = max(interval_s, 0.05)

        def beat() -> None:
            self.write(HEARTBEAT)
            self._heartbeat = timers.at(timers.now() + interval_s, beat)

        self._heartbeat = timers.at(timers.now() + interval_s, beat)

    def _check_silence(self) -> None:
        timers = self.broker.timers
        limit = IDLE_TIMEOUT_S if self._opened else HANDSHAKE_TIMEOUT_S
        if timers.now() - self._heard_at >= limit:
            self.close(
                AmqpError(
                    Condition.CONNECTION_FORCED, f"The connection was inactive for {limit:.0f} seconds."
                )
            )
            return
        self._watch = timers.at(self._heard_at + limit, self._check_silence)

    def _on_close(self, channel: int, fields: list[Any], payload: bytes) -> None:
        self.close()

    # Rights

    def authorise(self, path: str, expires: float, rights: frozenset[str]) -> None:
        grant = path, rights
        self._grants[grant] = expires
        if grant in self._expiries:
            self._expiries.pop(grant).cancel()
        if expires < math.inf:
            self._expiries[grant] = self.broker.timers.at(expires, self._detach_unauthorised)

    def _is_authorised(self, path: str, claims: tuple[str, ...]) -> bool:
        now = self.broker.timers.now()
        return any(
            covers(granted, path) and not rights.isdisjoint(claims) and now < expires
            for (granted, rights), expires in self._grants.items()
        )

    def _detach_unauthorised(self) -> None:
        """Detach the links whose token has expired and was not renewed."""
        for channel in list(self._channels.values()):
            for link in list(channel.links.values()):
                end = link.end
                if end.entity is None or end.detached or self._is_authorised(end.entity, end.claims):
                    continue
                link.close()
                reason = f"Code: RenewToken. Details: {_error_text(end.entity, end.claims)}"
                text = f"The link '{end.name}' is force detached. {reason}."
                end.detach(AmqpError(Condition.LINK_DETACH_FORCED, text))

    def check_authorised(self, path: str, *claims: str) -> None:
        if not self._is_authorised(path, claims):
            raise AmqpError(Condition.UNAUTHORIZED_ACCESS, _error_text(path, claims))

    # Sessions and links

    def _on_begin(self, channel: int, fields: list[Any], payload: bytes) -> None:
        if channel in self._channels or channel > CHANNEL_MAX:
            raise AmqpError(Condition.FRAMING_ERROR, f"Channel {channel} is in use or beyond {CHANNEL_MAX}.")
        self._ended.discard(channel)
        self._channels[channel] = Channel(self, channel, fields[1] or 0)
        windows = UInt(WINDOW), UInt(WINDOW)
        self.send(channel, performative(Code.BEGIN, UShort(channel), UInt(0), *windows, UInt(HANDLE_MAX)))

    def _channel(self, number: int) -> Channel | None:
        """
        Return the AMQP session with this channel number. Return None for a session that has ended: the SDKs still detach links in
        it, and the emulator has to ignore that.
        """
        channel = self._channels.get(number)
        if channel is None and number not in self._ended:
            raise AmqpError(Condition.NOT_ALLOWED, f"No session was begun on channel {number}.")
        return channel

    def _on_end(self, channel: int, fields: list[Any], payload: bytes) -> None:
        if self._channel(channel):
            self._end(channel, None)

    def _end(self, number: int, failure: AmqpError | None) -> None:
        self._channels.pop(number).close()
        self._ended.add(number)
        self.send(number, performative(Code.END, error(failure) if failure else None))

    def _on_attach(self, channel: int, fields: list[Any], payload: bytes) -> None:
        session, handle = self._channel(channel), fields[1]
        if session is None:
            return
        if handle > HANDLE_MAX:
            raise AmqpError(Condition.FRAMING_ERROR, f"Handle {handle} is above the limit of {HANDLE_MAX}.")
        if handle in session.links:
            self._end(channel, AmqpError(Condition.HANDLE_IN_USE, f"Handle {handle} is in use by a link."))
            return
        session.links[handle] = open_link(session, fields, self)

    def reply_link(self, reply_to: Any, path: str) -> ReplyLink | None:
        links = [
            link
            for channel in self._channels.values()
            for link in channel.links.values()
            if isinstance(link, ReplyLink) and not link.end.detached
        ]
        named = [link for link in links if reply_to is not None and link.address == reply_to]
        return next(iter(named or [link for link in links if link.path == path]), None)

    def _on_detach(self, channel: int, fields: list[Any], payload: bytes) -> None:
        session = self._channel(channel)
        link = session.links.pop(fields[0], None) if session else None
        if session is None or link is None:
            return
        link.close()
        session.forget_deliveries(link.end)
        if not link.end.detached:
            link.end.detached = True
            session.send(performative(Code.DETACH, UInt(fields[0]), bool(fields[1])))

    def _on_flow(self, channel: int, fields: list[Any], payload: bytes) -> None:
        session = self._channel(channel)
        if session is None:
            return
        if fields[4] is None:
            if fields[9]:
                session.send_flow()
            return
        link = session.links.get(fields[4])
        if link:
            link.on_flow(fields)

    def _on_transfer(self, channel: int, fields: list[Any], payload: bytes) -> None:
        session = self._channel(channel)
        if session is None:
            return
        session.next_incoming_id += 1
        link = session.links.get(fields[0])
        if link is None:
            self._end(
                channel, AmqpError(Condition.UNATTACHED_HANDLE, f"No link is attached to handle {fields[0]}.")
            )
            return
        link.on_transfer(fields, payload)

    def _on_disposition(self, channel: int, fields: list[Any], payload: bytes) -> None:
        session = self._channel(channel)
        if session:
            session.on_disposition(fields)


def _error_text(path: str, claims: tuple[str, ...]) -> str:
    return (
        f"Unauthorized access. '{','.join(claims)}' claim(s) are required to perform this operation. "
        f"Resource: 'sb://localhost/{path}'."
    )
