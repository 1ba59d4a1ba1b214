"""
Refusals: is one the message's fault or the topic's? The only judge of that in a relay, with the evidence of each topic.

A broker that refuses a message and names it as the cause may refuse every other message as well; one that fails without
naming a message may fail because of it. What else the topic accepts decides:

    refused by name, and nothing accepted since the last few refusals   send a message again that was accepted before;
                                                                        if it is refused too: the topic's fault (`TopicRefusesAll`)
    the same, nothing accepted yet, and a few keys are parked already   the topic's fault, or each start would park more
    failed several times in a row with the same unclear answer          the same; if that is accepted: the messages' fault

The message that is sent again is the last one that the topic accepted, under its id, so duplicate detection drops it; a topic without
it delivers a copy. One that was accepted longer ago than duplicate detection may remember is none. If there is none, a batch counts as
at fault, so that its sender halves it, and a single message as doubtful, so that its sender tries others first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from cosmos_outbox.errors import BrokerUnavailable, MessageRejected, PublishError, TopicRefusesAll
from cosmos_outbox.messages import REMEMBERED_FOR, OutboundMessage
from cosmos_outbox.retries import suspended_seconds

# Refusals with nothing accepted between them; a topic that refuses everything parks as many keys
BELIEVED_IN_A_ROW = 5
UNCLEAR_ATTEMPTS = 5  # at the same messages, each with the same answer
_UNCLEAR_ATTEMPTS_ALONE = 15  # if no other message was sent for comparison, so that an outage parks no key
_NO_ANSWER = "no answer"
_REMEMBERED = 1000  # calls that failed; far more than there are leases and lanes

Send = Callable[[Sequence[OutboundMessage]], Awaitable[None]]  # to one topic, on one lane


class Refusals:
    """
    Distinguish a message that a topic will never accept from a topic that accepts nothing.

    Args:
        believed: how many refusals count with nothing accepted between them.
    """

    def __init__(self, *, believed: int) -> None:
        self._believed = believed
        self._last_accepted: OutboundMessage | None = None
        self._accepted_at = 0.0
        self._refused: set[str] = set()  # ids of messages refused since the last one was accepted
        self._refuses_all = False
        # Answer and attempts, by call
        self._unclear: dict[tuple[str, int], tuple[str, int]] = {}

    async def judge(self, send: Send, messages: Sequence[OutboundMessage], parked: Callable[[], int]) -> None:
        """
        Send messages to the topic, and raise for an error what it shows.

        `parked` returns how many keys of the lease are parked, while no topic has accepted anything; else 0.
        """
        try:
            await send(messages)
        except PublishError as error:
            if error.accepted:
                self._accepted(messages[error.accepted - 1])
            rest = messages[error.accepted :]
            if isinstance(error, MessageRejected):
                await self._judge_refusal(send, rest, error, parked())
            elif isinstance(error, BrokerUnavailable) and error.retry_after is None:
                await self._judge_unclear(send, rest, error)
            raise
        self._accepted(messages[-1])
        self._unclear.pop(_call(messages), None)

    def _accepted(self, message: OutboundMessage) -> None:
        self._last_accepted = message
        self._accepted_at = asyncio.get_running_loop().time() + suspended_seconds()
        self._forget_refusals()

    def _forget_refusals(self) -> None:
        self._refused, self._refuses_all = set(), False

    @property
    def _probe(self) -> OutboundMessage | None:
        """Return a message that may be sent again to see whether the topic accepts anything."""
        age = asyncio.get_running_loop().time() + suspended_seconds() - self._accepted_at
        return self._last_accepted if age <= REMEMBERED_FOR.total_seconds() else None

    async def _judge_refusal(
        self, send: Send, rest: Sequence[OutboundMessage], error: MessageRejected, parked: int
    ) -> None:
        alone = len(rest) == 1
        if alone:
            self._refused.add(rest[0].message_id)
        elif not self._refuses_all:
            return  # the sender finds out which of them it is
        if len(self._refused) > self._believed:
            if await self._accepts_another(send):
                return
            self._refuses_all = self._probe is not None
            seen = f"{len(self._refused)} messages in a row were refused and none accepted"
        elif alone and parked >= self._believed:
            seen = f"{parked} keys of the lease are parked already, and nothing was accepted since this worker began"
        else:
            return
        if alone or self._refuses_all:
            raise TopicRefusesAll(
                f"{seen}, so the topic is at fault, or a program that writes events; the lease waits. If these events can "
                f"never be sent, park their keys by hand. The last refusal: {error}",
                accepted=error.accepted,
            ) from error

    async def _judge_unclear(
        self, send: Send, rest: Sequence[OutboundMessage], error: BrokerUnavailable
    ) -> None:
        condition = error.condition or _NO_ANSWER
        before, attempts = self._unclear.pop(_call(rest), (condition, 0))
        attempts = attempts + 1 if before == condition else 1
        self._unclear[_call(rest)] = condition, attempts
        if len(self._unclear) > _REMEMBERED:
            del self._unclear[next(iter(self._unclear))]
        first = self._last_accepted is None  # nothing was accepted for comparison yet
        if attempts < UNCLEAR_ATTEMPTS:
            return
        if error.condition is None and (first or attempts % UNCLEAR_ATTEMPTS):
            return  # usually an outage: compare now and then, and only with a message that was accepted before
        if first and len(rest) == 1 and not self._is_believed(rest[0], attempts):
            raise TopicRefusesAll(
                f"The same message failed {attempts} times, and no other was accepted yet: {error}",
                accepted=error.accepted,
            ) from error
        if first or await self._accepts_another(send):
            raise MessageRejected(
                f"The broker failed {attempts} times with {condition} on the same messages, while it takes others: {error}",
                accepted=error.accepted,
            ) from error

    def _is_believed(self, message: OutboundMessage, attempts: int) -> bool:
        if attempts < _UNCLEAR_ATTEMPTS_ALONE:
            return False
        self._refused.add(message.message_id)
        return len(self._refused) <= self._believed

    async def _accepts_another(self, send: Send) -> bool:
        """Say whether the topic accepts, now, what it accepted before."""
        if (probe := self._probe) is None:
            return False
        try:
            await send([probe])
        except PublishError:
            return False
        self._forget_refusals()  # and no more: the broker remembers the probe by its first copy
        return True


def _call(messages: Sequence[OutboundMessage]) -> tuple[str, int]:
    return messages[0].message_id, len(messages)
