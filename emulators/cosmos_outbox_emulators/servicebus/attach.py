"""Opens the link that an AMQP attach asks for, if the client has the right to it."""

from __future__ import annotations

from typing import Any

from cosmos_outbox_emulators.servicebus.channel import Channel, Link, LinkEnd, Wire
from cosmos_outbox_emulators.servicebus.conditions import AmqpError, Condition
from cosmos_outbox_emulators.servicebus.delivery_link import DeliveryLink
from cosmos_outbox_emulators.servicebus.management import MANAGEMENT, Management, base_path, put_token
from cosmos_outbox_emulators.servicebus.performatives import Code
from cosmos_outbox_emulators.servicebus.publish_link import PublishLink
from cosmos_outbox_emulators.servicebus.requests import ReplyLink, ReplyRouter, RequestLink
from cosmos_outbox_emulators.servicebus.sas import entity_path

CBS = "$cbs"


class Refused:
    """
    A link that was refused. It ignores everything that the client still sends, because the client does not know of the refusal
    yet.
    """

    def __init__(self, end: LinkEnd) -> None:
        self.end = end

    def on_transfer(self, fields: list[Any], payload: bytes) -> None:
        pass

    def on_flow(self, fields: list[Any]) -> None:
        pass

    def close(self) -> None:
        pass


def open_link(channel: Channel, attach: list[Any], router: ReplyRouter) -> Link:
    """Answer an attach and return the link that it opens. If the attach is refused, return a link that ignores everything."""
    end = LinkEnd(channel, attach)
    try:
        return _open(end, attach, router)
    except AmqpError as failure:
        end.refuse(failure)
        return Refused(end)


def _open(end: LinkEnd, attach: list[Any], router: ReplyRouter) -> Link:
    wire = end.channel.wire
    if attach[6] is not None and attach[6].descriptor == Code.COORDINATOR:
        raise AmqpError(Condition.NOT_IMPLEMENTED, "The emulator does not support transactions.")
    address = (end.source if end.peer_receives else end.target)[0]
    if not isinstance(address, str):
        raise AmqpError(Condition.INVALID_FIELD, "The attach of a link must have the address of an entity.")
    path = entity_path(address)
    if path.lower() == CBS:
        if end.peer_receives:
            return ReplyLink(end, CBS)
        return RequestLink(end, CBS, router, lambda request: put_token(wire, request))
    base = base_path(path)
    is_management = path.lower().endswith(MANAGEMENT)
    end.claims = ("Listen", "Send") if is_management else ("Listen",) if end.peer_receives else ("Send",)
    wire.check_authorised(base, *end.claims)
    end.entity = base
    if is_management:
        management = Management(wire, base)
        if end.peer_receives:
            return ReplyLink(end, path.lower())
        return RequestLink(end, path.lower(), router, management.answer)
    return _open_entity(wire, end, path)


def _open_entity(wire: Wire, end: LinkEnd, path: str) -> Link:
    broker = wire.broker
    if not end.peer_receives:
        topic = broker.topic(path)
        if topic.disabled:
            raise broker.disabled_error(path)
        return PublishLink(end, topic)
    if path.lower() in broker.topics and path.lower() not in broker.queues:
        raise AmqpError(
            Condition.NOT_ALLOWED, f"'{path}' is a topic: messages are received from its subscriptions."
        )
    queue = broker.queue(path)
    if queue.disabled:
        raise broker.disabled_error(path)
    return DeliveryLink(end, queue)
