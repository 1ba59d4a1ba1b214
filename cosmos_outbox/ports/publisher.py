"""The topic that takes the messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from cosmos_outbox.message_format import OutboundMessage


class Publisher(Protocol):
    """
    A topic, reached over a fixed number of lanes; each lane is one ordered stream.

    Calls on one lane are carried out one after another, calls on different lanes side by side. A publisher may have more:

        batch_bytes    what a batch holds (None: not known yet); a relay then gives a lane about as much
        system         the broker in OpenTelemetry's words, `messaging.system` of spans and metrics; `servicebus` without it
        check()        awaited before a worker counts as ready, and by operators: raise what `publish` would, and send nothing
    """

    @property
    def lanes(self) -> int:
        """Return the number of lanes, known before the publisher is opened; lane numbers run from 0."""
        ...

    async def publish(self, lane: int, messages: Sequence[OutboundMessage]) -> None:
        """
        Send messages in order and return when the broker has accepted every one of them.

        A message is only sent after all earlier ones of the call were accepted or travel in the same atomic batch.
        After an error the first `error.accepted` messages are in the topic and the fate of the others is open: send
        those again, equal and in the same order, before any later message of their sessions. A message may be sent
        more than once by one call. A cancelled call sends nothing after it returned.

        A message with a `deliver_at` that is still to come is accepted now, and received by none before then. A publisher whose broker
        keeps no message for later rejects it.

        Raises:
            MessageRejected: the broker will never accept one of the messages behind the accepted ones; alone in a
                call, it is the one.
            BrokerUnavailable, TopicUnavailable: try again, for as long as it takes.
        """
        ...
