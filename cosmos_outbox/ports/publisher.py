"""The interface (port) to a topic to which messages are sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from cosmos_outbox.message_format import OutboundMessage


class Publisher(Protocol):
    """
    A topic, reached over a fixed number of lanes; each lane is one ordered stream.

    Calls on one lane are carried out one after another, calls on different lanes side by side. A publisher may also have these members:

        batch_bytes    how many bytes a batch may have; the relay passes about this many to each call. None if it is not known yet
        system         the name of the broker in spans and metrics (OpenTelemetry's `messaging.system`); without it, `servicebus`
        check()        a coroutine that raises the error that `publish` would raise, and sends nothing; a worker is ready only after it
    """

    @property
    def lanes(self) -> int:
        """Return the number of lanes (ordered streams), which is known before the publisher is opened. The first lane is 0."""
        ...

    async def publish(self, lane: int, messages: Sequence[OutboundMessage]) -> None:
        """
        Send messages in order and return when the broker has accepted every one of them.

        A message is sent only after all earlier messages of the call were accepted, or together with them in one atomic batch.
        After an error, the first `error.accepted` messages are in the topic, and it is unknown whether the others are. Send
        those again, unchanged and in the same order, before any later message of their sessions. One call may send a message
        more than once. A cancelled call sends nothing after it returned.

        A message whose `deliver_at` is in the future is accepted now, and no receiver gets it before then. A publisher whose broker
        cannot keep a message for later rejects such a message.

        Raises:
            MessageRejected: the broker will never accept one of the messages after the accepted ones. Only in a call with one message
                is it known which one.
            BrokerUnavailable, TopicUnavailable: the messages may be accepted later: try again, for as long as it takes.
        """
        ...
