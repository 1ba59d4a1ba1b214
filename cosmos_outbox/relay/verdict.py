"""
Whose fault a refusal is, the message's or the topic's: a Publisher around that of one topic, which looks for evidence.

A broker that refuses a message with a word that blames it may refuse every other message as well, and one that fails
without a word about the message may do so because of it. What else the topic takes tells the two apart:

    refused by name, but nothing accepted since the last few refusals   a message that was accepted before is sent again;
                                                                        refused too: the topic's fault (`TopicRefusesAll`)
    failed several times in a row with one unclear answer               the same; where that is accepted: the messages' fault

The message that is sent again was the last that the topic took, under its id: its duplicate detection drops it. Where
none was taken yet, a batch is taken for at fault, so that its sender halves it, and a single message for in doubt, so that
its sender tries others first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from cosmos_outbox.errors import BrokerUnavailable, MessageRejected, PublishError, TopicRefusesAll
from cosmos_outbox.messages import OutboundMessage
from cosmos_outbox.ports import Publisher

# Refusals without anything accepted between them: so many keys a topic that refuses everything may park.
BELIEVED_IN_A_ROW = 5
UNCLEAR_ATTEMPTS = 5  # of the same messages, each with the same answer
# Where nothing else was sent that could tell: a topic that is away is not blamed on a key.
_UNCLEAR_ATTEMPTS_ALONE = 15
_NO_ANSWER = "no answer"
_REMEMBERED = 1000  # calls that failed; far more than there are leases and lanes


class JudgedPublisher:
    """
    Tell a message that the topic will never take from a topic that takes nothing.

    Args:
        publisher: of one topic.
        believed: how many refusals count without anything accepted between them. Defaults to 5.
    """

    judged = True  # a relay does not judge once more

    def __init__(self, publisher: Publisher, *, believed: int = BELIEVED_IN_A_ROW) -> None:
        self._publisher, self._believed = publisher, believed
        self._taken: OutboundMessage | None = None  # the last that the topic accepted
        self._refused: set[str] = set()  # ids of messages, since one was accepted
        self._refuses_all = False
        self._unclear: OrderedDict[tuple[str, int], tuple[str, int]] = OrderedDict()

    @property
    def lanes(self) -> int:
        return self._publisher.lanes

    async def publish(self, lane: int, messages: Sequence[OutboundMessage]) -> None:
        try:
            await self._publisher.publish(lane, messages)
        except PublishError as error:
            if error.accepted:
                self._accepted(messages[error.accepted - 1])
            rest = messages[error.accepted :]
            if isinstance(error, MessageRejected):
                await self._judge_refusal(lane, rest, error)
            elif isinstance(error, BrokerUnavailable) and error.retry_after is None:
                await self._judge_unclear(lane, rest, error)
            raise
        else:
            if messages:
                self._accepted(messages[-1])
                self._unclear.pop(_call(messages), None)

    def _accepted(self, message: OutboundMessage) -> None:
        self._taken, self._refuses_all = message, False
        self._refused.clear()

    async def _judge_refusal(
        self, lane: int, rest: Sequence[OutboundMessage], error: MessageRejected
    ) -> None:
        if len(rest) == 1:
            self._refused.add(rest[0].message_id)
        elif not self._refuses_all:
            return  # which of them it is, the sender finds out
        if len(self._refused) <= self._believed or await self._takes_another(lane):
            return
        self._refuses_all = self._taken is not None
        if len(rest) > 1 and not self._refuses_all:
            return
        raise TopicRefusesAll(
            f"{len(self._refused)} messages in a row were refused and none accepted, so the topic is at fault, or a program "
            f"that writes events; the lease waits. If these events can never be sent, park their keys by hand "
            f"(`cosmos-outbox parked park`). The last refusal: {error}",
            accepted=error.accepted,
        ) from error

    async def _judge_unclear(
        self, lane: int, rest: Sequence[OutboundMessage], error: BrokerUnavailable
    ) -> None:
        condition = error.condition or _NO_ANSWER
        before, times = self._unclear.pop(_call(rest), (condition, 0))
        times = times + 1 if before == condition else 1
        self._unclear[_call(rest)] = condition, times
        if len(self._unclear) > _REMEMBERED:
            self._unclear.popitem(last=False)
        if times < UNCLEAR_ATTEMPTS:
            return
        if error.condition is None and (self._taken is None or times % UNCLEAR_ATTEMPTS):
            return  # an outage more often than not: a look now and then, and none without a message that was taken
        if self._taken is None and len(rest) == 1 and not self._believes(rest[0], times):
            raise TopicRefusesAll(
                f"The same message failed {times} times, and no other was accepted yet: {error}",
                accepted=error.accepted,
            ) from error
        if self._taken is None or await self._takes_another(lane):
            raise MessageRejected(
                f"The broker failed {times} times with {condition} on the same messages, while it takes others: {error}",
                accepted=error.accepted,
            ) from error

    def _believes(self, message: OutboundMessage, times: int) -> bool:
        if times < _UNCLEAR_ATTEMPTS_ALONE:
            return False
        self._refused.add(message.message_id)
        return len(self._refused) <= self._believed

    async def _takes_another(self, lane: int) -> bool:
        """
        Say whether the topic takes, now, what it took before.
        """
        if self._taken is None:
            return False
        try:
            await self._publisher.publish(lane, [self._taken])
        except PublishError:
            return False
        self._accepted(self._taken)
        return True


def _call(messages: Sequence[OutboundMessage]) -> tuple[str, int]:
    return messages[0].message_id, len(messages)
