"""
Topics and refusals: each message is sent to the topics of its route; whether a refusal is the message's fault or its topic's is judged here alone.

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
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import nullcontext

from cosmos_outbox import errors
from cosmos_outbox.correlation import SERVICE_BUS
from cosmos_outbox.message_format import REMEMBERED_FOR, OutboundMessage
from cosmos_outbox.ports import Publisher
from cosmos_outbox.relay.ceiling import Ceiling
from cosmos_outbox.relay.routing import Routes
from cosmos_outbox.relay.spans import Around
from cosmos_outbox.retries import suspended_seconds

# So many refusals in a row, with no message accepted, are the topic's fault. A topic that refuses everything parks as many keys.
BELIEVED_IN_A_ROW = 5
UNCLEAR_ATTEMPTS = 5  # the limit if each attempt at the same messages had the same answer
# the limit if no message was accepted before, which could be compared; it is high, so that an outage parks no key
_UNCLEAR_ATTEMPTS_ALONE = 15
_NO_ANSWER = "no answer"
_REMEMBERED = 1000  # failed calls that are remembered; far more than there are leases and lanes

Messages = Sequence[OutboundMessage]
Send = Callable[[Messages], Awaitable[None]]  # sends to one topic, on one lane
Shape = Callable[[OutboundMessage], OutboundMessage]


class Topics:
    """
    All topics of a relay as one Publisher. Each message gets its form, and is then sent to all topics of its route at the same time.

    Order holds inside each topic, per session; topics do not wait for one another. A message is accepted when all its topics
    have it. After an error, some topics may have copies of messages that were not accepted, also of those behind a rejected
    one; a topic drops the copy by its id when the message is sent again in time.

    Args:
        publishers: by topic, one for each that the routes name.
        routes: which messages go to which topics. Defaults to all to all of them.
        shape: makes of a message what leaves. Defaults to the message as it is.
        around: surrounds each send to a topic. Defaults to nothing.
        ceiling: of messages a second; one that goes to two topics counts twice. A caller awaits `turn` before it publishes. Defaults to none.

    Raises:
        ConfigurationError: a topic has no publisher.
    """

    def __init__(
        self,
        publishers: Mapping[str, Publisher],
        routes: Routes | None = None,
        *,
        shape: Shape | None = None,
        around: Around = lambda topic, messages: nullcontext(),
        ceiling: Ceiling | None = None,
    ) -> None:
        missing = [topic for topic in routes.topics if topic not in publishers] if routes else []
        if missing or not publishers:
            named = f"topic {', '.join(missing)}" if missing else "any topic"
            raise errors.ConfigurationError(f"No publisher for {named}.")
        self._publishers, self._routes, self._shape, self._around = dict(publishers), routes, shape, around
        self.lanes, self._ceiling = min(publisher.lanes for publisher in publishers.values()), ceiling
        self.at_once = None if ceiling is None else ceiling.at_once  # the most messages of one turn

    @property
    def system(self) -> str:
        """Return the name of the system to which the publishers send."""
        return next((getattr(one, "system", SERVICE_BUS) for one in self._publishers.values()), SERVICE_BUS)

    @property
    def checks(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
        """Return the `check` of each topic, which finds out whether the topic accepts messages; some publishers have none."""
        found = {topic: getattr(one, "check", None) for topic, one in self._publishers.items()}
        return {topic: check for topic, check in found.items() if check is not None}

    @property
    def batch_bytes(self) -> int | None:
        sizes = [getattr(publisher, "batch_bytes", None) for publisher in self._publishers.values()]
        return min((size for size in sizes if size is not None), default=None)

    async def turn(self, messages: Messages) -> None:
        """Wait until the ceiling allows so many messages, counted in all their topics."""
        if self._ceiling is not None:
            await self._ceiling.turn(sum(len(self._topics_of(message)) for message in messages))

    def _topics_of(self, message: OutboundMessage) -> Collection[str]:
        return self._publishers if self._routes is None else self._routes.topics_of(message)

    async def publish(
        self,
        lane: int,
        messages: Messages,
        refusals: Mapping[str, Refusals] | None = None,
        parked: Callable[[], int] = lambda: 0,
    ) -> None:
        """
        Send messages as the port says. The topic's own `refusals` judge each error, with the help of `parked` (see `Refusals.judge`).
        """
        positions: dict[str, list[int]] = {}
        for position, message in enumerate(messages):
            for topic in self._topics_of(message):
                positions.setdefault(topic, []).append(position)
        shaped = messages if self._shape is None else [self._shape(message) for message in messages]

        async def send(topic: str) -> tuple[int, errors.PublishError] | None:
            async def send_now(due: Messages) -> None:
                with self._around(topic, due):
                    await self._publishers[topic].publish(lane, due)

            # The error is returned, not raised: a task group would cancel the sends to the other topics.
            due = [shaped[number] for number in positions[topic]]
            try:
                await (send_now(due) if refusals is None else refusals[topic].judge(send_now, due, parked))
            except errors.PublishError as error:
                return positions[topic][error.accepted], error
            return None

        if len(positions) == 1:
            outcomes = [await send(*positions)]
        else:
            async with asyncio.TaskGroup() as group:
                sending = [group.create_task(send(topic)) for topic in positions]
            outcomes = [task.result() for task in sending]
        if failures := [outcome for outcome in outcomes if outcome is not None]:
            # A retriable error comes first: while one topic is away, it is unknown whether it would reject the message.
            _, worst = max(failures, key=lambda failure: (failure[1].retriable, -failure[0]))
            worst.accepted = min(position for position, _ in failures)
            raise worst


class Refusals:
    """
    Distinguishes a message that a topic will never accept from a topic that accepts nothing.

    Args:
        believed: how many refusals count with nothing accepted between them.
    """

    def __init__(self, *, believed: int) -> None:
        self._believed = believed
        self._last_accepted: OutboundMessage | None = None
        self._accepted_at = 0.0
        # the ids of messages that were refused since the last one was accepted
        self._refused: set[str] = set()
        self._refuses_all = False
        # The answer, and the number of attempts, of each failed call
        self._unclear: dict[tuple[str, int], tuple[str, int]] = {}

    async def judge(self, send: Send, messages: Messages, parked: Callable[[], int]) -> None:
        """
        Send messages to the topic. After an error, raise the one that tells whose fault it is.

        `parked` returns how many keys of the lease are parked, while no topic has accepted anything; else 0.
        """
        try:
            await send(messages)
        except errors.PublishError as error:
            if error.accepted:
                self._note_accepted(messages[error.accepted - 1])
            rest = messages[error.accepted :]
            if isinstance(error, errors.MessageRejected):
                await self._judge_refusal(send, rest, error, parked())
            elif isinstance(error, errors.BrokerUnavailable) and error.retry_after is None:
                await self._judge_unclear(send, rest, error)
            raise
        self._unclear.pop(_call(messages), None)
        self._note_accepted(messages[-1])

    def _note_accepted(self, message: OutboundMessage) -> None:
        self._forget_refusals()
        self._last_accepted, self._accepted_at = message, _now()

    def _forget_refusals(self) -> None:
        self._refused, self._refuses_all = set(), False

    @property
    def _probe(self) -> OutboundMessage | None:
        """Return a message that may be sent again, to see whether the topic accepts any."""
        age = _now() - self._accepted_at
        return self._last_accepted if age <= REMEMBERED_FOR.total_seconds() else None

    async def _judge_refusal(
        self, send: Send, rest: Messages, error: errors.MessageRejected, parked: int
    ) -> None:
        alone = len(rest) == 1
        if alone:
            self._refused.add(rest[0].message_id)
        elif not self._refuses_all:
            return  # the sender finds out which of the messages it is
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
            raise errors.TopicRefusesAll(
                f"{seen}, so the topic is at fault, or a program that writes events; the lease waits. If these events can "
                f"never be sent, park their keys by hand. The last refusal: {error}",
                accepted=error.accepted,
            ) from error

    async def _judge_unclear(self, send: Send, rest: Messages, error: errors.BrokerUnavailable) -> None:
        condition = error.condition or _NO_ANSWER
        before, attempts = self._unclear.pop(_call(rest), (condition, 0))
        attempts = attempts + 1 if before == condition else 1
        self._unclear[_call(rest)] = condition, attempts
        if len(self._unclear) > _REMEMBERED:
            del self._unclear[next(iter(self._unclear))]
        first = self._last_accepted is None  # no message was accepted that this one could be compared with
        if attempts < UNCLEAR_ATTEMPTS:
            return
        if error.condition is None and (first or attempts % UNCLEAR_ATTEMPTS):
            # Usually this is an outage: probe only now and then, and only with a message that the topic accepted before.
            return
        if first and len(rest) == 1:
            if attempts >= _UNCLEAR_ATTEMPTS_ALONE:
                self._refused.add(rest[0].message_id)
            if attempts < _UNCLEAR_ATTEMPTS_ALONE or len(self._refused) > self._believed:
                raise errors.TopicRefusesAll(
                    f"The same message failed {attempts} times, and no other was accepted yet: {error}",
                    accepted=error.accepted,
                ) from error
        if first or await self._accepts_another(send):
            raise errors.MessageRejected(
                f"The broker failed {attempts} times with {condition} on the same messages, and accepted others meanwhile: {error}",
                accepted=error.accepted,
            ) from error

    async def _accepts_another(self, send: Send) -> bool:
        """Say whether the topic accepts, now, a message that it accepted before."""
        if (probe := self._probe) is None:
            return False
        try:
            await send([probe])
        except errors.PublishError:
            return False
        # The time of acceptance stays as it is: the broker has remembered the probe's id since its first copy.
        self._forget_refusals()
        return True


def _call(messages: Messages) -> tuple[str, int]:
    return messages[0].message_id, len(messages)


def _now() -> float:
    # The broker forgets an id also during the time for which this machine sleeps.
    return asyncio.get_running_loop().time() + suspended_seconds()
