"""OwnSession: a session that one probe has for itself: it sends to the topic, and receives by the SDK alone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage, ServiceBusSubQueue
from azure.servicebus.aio import ServiceBusReceiver, ServiceBusSender
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageProperties
from azure.servicebus.exceptions import ServiceBusError

from cosmos_outbox_testing.verify.claims import NotRun, denial_of
from cosmos_outbox_testing.verify.site import TTL_SECONDS, Site

ARRIVES_SECONDS = 20.0  # seconds to wait for a message that has to come
BRIEFLY = 2.0  # seconds to wait for a message that must not come
_LONGEST_LOCK_SECONDS = 65.0
_MANY = 100


class OwnSession:
    """A session whose id begins with the run's id, as do the ids of its messages."""

    def __init__(self, site: Site) -> None:
        if site.bus is None:
            raise NotRun("No Service Bus namespace and topic are named.")
        self.site, self.bus, self.id = site, site.bus, site.name()
        site.sends = True

    def message(self, name: str, *, body: str = "", **options: Any) -> ServiceBusMessage:
        """Return a message whose body is its name, or more. Its id ends with the name."""
        own = {"message_id": f"{self.id}-{name}", "session_id": self.id}
        lives = {"time_to_live": timedelta(seconds=TTL_SECONDS)}
        return ServiceBusMessage(body or name, **own | lives | options)

    def message_as_it_is(
        self, message_id: str, annotations: dict[str, object] | None = None
    ) -> AmqpAnnotatedMessage:
        """Return a message that the SDK does not check."""
        properties = AmqpMessageProperties(message_id=message_id, group_id=self.id)
        return AmqpAnnotatedMessage(data_body=[b"1"], annotations=annotations, properties=properties)

    def sender(self) -> ServiceBusSender:
        return self.bus.get_topic_sender(self.site.topic)

    async def send(self, *messages: Any) -> None:
        """Send messages one after another; a name stands for its message, a list for one batch."""
        async with self.sender() as sender:
            for one in messages:
                await sender.send_messages(self.message(one) if isinstance(one, str) else one)

    def receiver(self, **options: Any) -> ServiceBusReceiver:
        """Return a receiver of the session, or of another entity of the topic."""
        given = {"subscription_name": self.site.sessions, "session_id": self.id} | options
        return self.bus.get_subscription_receiver(self.site.topic, **given)

    @asynccontextmanager
    async def hold(self, *names: Any) -> AsyncIterator[tuple[ServiceBusReceiver, list[Any]]]:
        """Send messages, and hold the session after receiving the first two, which are not settled."""
        await self.send(*names)
        async with self.receiver() as receiver:
            messages: list[ServiceBusReceivedMessage] = []
            while len(messages) < min(len(names), 2):
                messages += await took(receiver, min(len(names), 2) - len(messages))
            yield receiver, messages

    async def rest(self) -> list[ServiceBusReceivedMessage]:
        """Complete the rest of the session, and return it in order."""
        async with self.receiver() as receiver:
            found: list[ServiceBusReceivedMessage] = []
            while some := await receiver.receive_messages(_MANY, max_wait_time=BRIEFLY):
                for one in some:
                    await receiver.complete_message(one)
                found += some
            return found

    def dead_letters(self, **options: Any) -> ServiceBusReceiver:
        """Return a receiver of the dead letters."""
        return self.receiver(session_id=None, sub_queue=ServiceBusSubQueue.DEAD_LETTER, **options)

    async def dead(self, since: int) -> list[ServiceBusReceivedMessage]:
        """Peek at the dead letters of the run, from a sequence number on."""
        async with self.dead_letters() as receiver:
            found = await receiver.peek_messages(_MANY, sequence_number=since)
        return [one for one in found if self.owns(one)]

    def owns(self, message: ServiceBusReceivedMessage) -> bool:
        return str(message.message_id).startswith(f"{self.id}-")

    async def of_plain(
        self, receiver: ServiceBusReceiver, wait: float = ARRIVES_SECONDS
    ) -> ServiceBusReceivedMessage:
        """Receive the message from an entity without sessions. Other messages of the run are completed, all others are given back."""
        while True:
            found, mine = await took(receiver, _MANY, wait), None
            for one in found:
                if self.owns(one):
                    mine = one
                elif str(one.message_id).startswith(self.site.run):
                    await receiver.complete_message(one)
                else:
                    await receiver.abandon_message(one)
            if mine is not None:
                return mine


def name_of(message: Any) -> str:
    """Return the name of a message."""
    return b"".join(message.body).decode()[:40]


def names(messages: Iterable[Any]) -> str:
    """Return the names of messages, in their order."""
    return " ".join(name_of(one) for one in messages) or "nothing"


def counts(messages: Iterable[Any]) -> str:
    """Return names and delivery counts."""
    return ", ".join(f"{name_of(one)}: {one.delivery_count}" for one in messages) or "nothing"


async def took(
    receiver: ServiceBusReceiver, most: int = 1, wait: float = ARRIVES_SECONDS
) -> list[ServiceBusReceivedMessage]:
    """Receive messages; fail if they do not come."""
    if not (found := await receiver.receive_messages(most, max_wait_time=wait)):
        raise TimeoutError(f"no message came in {wait:g} s")
    return found


async def refusal(call: Awaitable[object]) -> str:
    """Return the condition with which the broker refuses a call, or the name of another error; "accepted" if there is none."""
    try:
        await call
    except ServiceBusError as error:
        if denial_of(error):
            raise
        return str(getattr(error, "_condition", None) or type(error).__name__)
    return "accepted"


def lock_of(until: datetime | None) -> float:
    """Return how many seconds a lock still lasts, and a little more. Refuse a lock that is too long for a probe."""
    left = (until.replace(tzinfo=until.tzinfo or UTC) - datetime.now(UTC)).total_seconds() if until else 0.0
    if left > _LONGEST_LOCK_SECONDS:
        raise NotRun(f"The subscription locks for {left:.0f} s; set its lock duration to 60 s or less.")
    return max(left, 0.0) + 1.0
