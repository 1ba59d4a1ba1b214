"""The link over which a client sends messages: grants credit and answers each transfer. `topic.py` stores the messages."""

from __future__ import annotations

from typing import Any

from cosmos_outbox_emulators.servicebus.channel import LinkEnd, vendor
from cosmos_outbox_emulators.servicebus.conditions import AmqpError, Condition
from cosmos_outbox_emulators.servicebus.decoding import DecodeError
from cosmos_outbox_emulators.servicebus.faults import Action, On
from cosmos_outbox_emulators.servicebus.inbound import Assembler, Inbound
from cosmos_outbox_emulators.servicebus.injection import suffer
from cosmos_outbox_emulators.servicebus.message import parse_transfer
from cosmos_outbox_emulators.servicebus.performatives import ACCEPTED, encode_rejected
from cosmos_outbox_emulators.servicebus.primitives import ULong
from cosmos_outbox_emulators.servicebus.topic import Topic

CREDIT = 1000


class PublishLink:
    def __init__(self, end: LinkEnd, topic: Topic) -> None:
        self.end = end
        self._topic = topic
        self._broker = end.channel.wire.broker
        self._assembler = Assembler(topic.largest_message)
        self._delivery_count = 0
        self._granted = CREDIT
        self._too_large: AmqpError | None = None
        self._used_at = self._broker.timers.now()
        topic.links.add(self)
        size = topic.config.max_message_size
        end.accept(max_message_size=size, properties={vendor("max-message-batch-size"): ULong(size)})
        end.grant(0, CREDIT)
        self._idle_timer = self._watch_idle()

    def on_transfer(self, fields: list[Any], payload: bytes) -> None:
        if self.end.detached:
            return
        inbound = self._assembler.feed(fields, payload)
        if inbound is None:
            return
        self._topic.transfers += 1
        self._used_at = self._broker.timers.now()
        self._delivery_count += 1
        # A sender may exceed its credit here, because the Python SDK sends before it has received the first flow.
        self._granted -= 1
        if self._granted <= CREDIT // 10:
            self._granted = CREDIT
            self.end.grant(self._delivery_count, CREDIT)
        fault = suffer(
            self.end,
            On.SEND,
            self._topic.name,
            inbound.delivery_id,
            settled=inbound.settled,
            act=lambda: self._store(inbound),
        )
        if fault and fault.action is Action.ZERO_CREDIT:
            self._starve(fault.seconds)
        if self._too_large:
            # As Azure does, reject a message that is too large, and detach the link after that.
            self.revoke(self._too_large)

    def _store(self, inbound: Inbound) -> bytes:
        limit = self._topic.largest_message
        try:
            if inbound.size > limit:
                self._too_large = AmqpError(
                    Condition.MESSAGE_SIZE_EXCEEDED,
                    f"The received message (delivery-id:{inbound.delivery_id}, size:{inbound.size} bytes) exceeds the "
                    f"limit ({limit} bytes) currently allowed on the link.",
                )
                return encode_rejected(self._too_large)
            self._topic.publish(parse_transfer(inbound.payload, inbound.message_format))
        except DecodeError as error:
            return encode_rejected(AmqpError(Condition.DECODE_ERROR, str(error)))
        except AmqpError as error:
            return encode_rejected(error)
        return ACCEPTED

    def _starve(self, seconds: float) -> None:
        self.end.grant(self._delivery_count, 0)
        if seconds:
            timers = self._broker.timers
            timers.at(timers.now() + seconds, self._feed)

    def _feed(self) -> None:
        if not self.end.detached:
            self._granted = CREDIT
            self.end.grant(self._delivery_count, CREDIT)

    def _watch_idle(self) -> Any:
        return self._broker.timers.at(self._used_at + self._broker.config.link_idle_s, self._detach_if_idle)

    def _detach_if_idle(self) -> None:
        idle_s = self._broker.config.link_idle_s
        if self._broker.timers.now() - self._used_at < idle_s:
            self._idle_timer = self._watch_idle()
            return
        self.revoke(
            AmqpError(
                Condition.LINK_DETACH_FORCED,
                f"The link '{self.end.name}' is force detached. Code: publisher. Details: AmqpMessagePublisher.IdleTimerExpired: "
                f"Idle timeout: {idle_s:.0f} s.",
            )
        )

    def on_flow(self, fields: list[Any]) -> None:
        if fields[9]:
            self.end.grant(self._delivery_count, self._granted)

    def revoke(self, failure: AmqpError) -> None:
        self.end.detach(failure)
        self.close()

    def close(self) -> None:
        self._idle_timer.cancel()
        self._topic.links.discard(self)
