"""OwnSession: a Service Bus session that only one probe uses. The probe sends to it and receives from it with Microsoft's SDK."""

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

ARRIVES_SECONDS = 20.0  # how many seconds a test waits for a message that has to come
BRIEFLY = 2.0  # how many seconds a test waits for a message that must not come
_LONGEST_LOCK_SECONDS = 65.0
_MANY = 100


class OwnSession:
    """
    The Service Bus session in which one claim about Azure is tested. The id of the session and the ids of its messages begin with the run's
    id, so that they can be deleted.
    """

    def __init__(self, site: Site) -> None:
        if site.bus is None:
            raise NotRun("No Service Bus topic is named: set OUTBOX_TOPIC and OUTBOX_SERVICEBUS_NAMESPACE.")
        self.site, self.bus, self.id = site, site.bus, site.name()
        site.sends = True

    def message(self, name: str, *, body: str = "", **options: Any) -> ServiceBusMessage:
        """Return a message of the session. The id of the message ends with `name`. Its body is `body`, or `name` if no body is given."""
        own = {"message_id": f"{self.id}-{name}", "session_id": self.id}
        lives = {"time_to_live": timedelta(seconds=TTL_SECONDS)}
        return ServiceBusMessage(body or name, **own | lives | options)

    def message_as_it_is(
        self, message_id: str, annotations: dict[str, object] | None = None
    ) -> AmqpAnnotatedMessage:
        """
        Return a message of the session with any id and annotations. The SDK does not check messages of this type, so Service Bus itself
        has to accept or refuse them.
        """
        properties = AmqpMessageProperties(message_id=message_id, group_id=self.id)
        return AmqpAnnotatedMessage(data_body=[b"1"], annotations=annotations, properties=properties)

    def sender(self) -> ServiceBusSender:
        return self.bus.get_topic_sender(self.site.topic)

    async def send(self, *messages: Any) -> None:
        """Send messages one after another. Each argument is a message, the name of a new message, or a list to send as one batch."""
        async with self.sender() as sender:
            for one in messages:
                await sender.send_messages(self.message(one) if isinstance(one, str) else one)

    def receiver(self, **options: Any) -> ServiceBusReceiver:
        """Return a receiver of the session. Options may name another session or subscription, or the sub-queue of dead letters."""
        given = {"subscription_name": self.site.sessions, "session_id": self.id} | options
        return self.bus.get_subscription_receiver(self.site.topic, **given)

    @asynccontextmanager
    async def hold(self, *names: Any) -> AsyncIterator[tuple[ServiceBusReceiver, list[Any]]]:
        """
        Send messages, and receive the first two without settling them. Yield the receiver, which holds the session, and these messages.
        """
        await self.send(*names)
        async with self.receiver() as receiver:
            messages: list[ServiceBusReceivedMessage] = []
            while len(messages) < min(len(names), 2):
                messages += await took(receiver, min(len(names), 2) - len(messages))
            yield receiver, messages

    async def rest(self) -> list[ServiceBusReceivedMessage]:
        """Complete the messages that are left in the session, and return them in order."""
        async with self.receiver() as receiver:
            found: list[ServiceBusReceivedMessage] = []
            while some := await receiver.receive_messages(_MANY, max_wait_time=BRIEFLY):
                for one in some:
                    await receiver.complete_message(one)
                found += some
            return found

    def dead_letters(self, **options: Any) -> ServiceBusReceiver:
        """Return a receiver of the subscription's dead letters."""
        return self.receiver(session_id=None, sub_queue=ServiceBusSubQueue.DEAD_LETTER, **options)

    async def dead(self, since: int) -> list[ServiceBusReceivedMessage]:
        """Peek at the dead letters of the subscription, beginning at a sequence number. Return those of this session."""
        async with self.dead_letters() as receiver:
            found = await receiver.peek_messages(_MANY, sequence_number=since)
        return [one for one in found if self.owns(one)]

    def owns(self, message: ServiceBusReceivedMessage) -> bool:
        return str(message.message_id).startswith(f"{self.id}-")

    async def of_plain(
        self, receiver: ServiceBusReceiver, wait: float = ARRIVES_SECONDS
    ) -> ServiceBusReceivedMessage:
        """
        Receive the message that this test of Service Bus sent, from a subscription without sessions.

        A receiver without sessions also gets other messages. It completes those of this run, and gives those of other programs back.
        """
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
    """Return the name of a message, which is the beginning of its body."""
    return b"".join(message.body).decode()[:40]


def names(messages: Iterable[Any]) -> str:
    """Return the names of messages in order, as a text that is compared with the expected answer of a claim."""
    return " ".join(name_of(one) for one in messages) or "nothing"


def counts(messages: Iterable[Any]) -> str:
    """Return the names and delivery counts of messages, as a text that is compared with the answer that `verify` expects."""
    return ", ".join(f"{name_of(one)}: {one.delivery_count}" for one in messages) or "nothing"


async def took(
    receiver: ServiceBusReceiver, most: int = 1, wait: float = ARRIVES_SECONDS
) -> list[ServiceBusReceivedMessage]:
    """Receive messages, at most `most`. Raise TimeoutError if no message arrives in time."""
    if not (found := await receiver.receive_messages(most, max_wait_time=wait)):
        raise TimeoutError(f"no message arrived within {wait:g} s")
    return found


async def refusal(call: Awaitable[object]) -> str:
    """
    Make a call that Service Bus may refuse. Return "accepted" if it succeeds. If it is refused, return the AMQP condition of the refusal,
    or the name of the error if the refusal has no condition.
    """
    try:
        await call
    except ServiceBusError as error:
        if denial_of(error):
            raise
        return str(getattr(error, "_condition", None) or type(error).__name__)
    return "accepted"


def lock_of(until: datetime | None) -> float:
    """
    Return how many seconds to wait until a lock has ended.

    Raises:
        NotRun: the lock lasts longer than a probe can wait.
    """
    left = (until.replace(tzinfo=until.tzinfo or UTC) - datetime.now(UTC)).total_seconds() if until else 0.0
    if left > _LONGEST_LOCK_SECONDS:
        raise NotRun(
            f"The subscription locks sessions for {left:.0f} s. Set its lock duration to 60 s or less."
        )
    return max(left, 0.0) + 1.0
