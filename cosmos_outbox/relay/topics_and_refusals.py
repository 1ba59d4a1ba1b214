"""
Topics and refusals: send each message to the topics of its route, and decide whether a refusal is the fault of the message or of its topic.

If the message is at fault, `relay.py` parks its key: `parking/park.py` keeps this event and all later ones of the key. If the topic is at
fault, the relay waits.

A broker that refuses a message may refuse every other message as well. A broker that fails without naming a message may
fail because of a message. So the topic is tested with a message that it accepted before:

    a few messages were refused in a row, and none was accepted    test the topic: if it refuses the test
    between them                                                   message too, the topic is at fault
                                                                   (`TopicRefusesAll`)
    a message was refused, the topic has accepted none since the   the topic is at fault: otherwise each
    worker began, and a few keys are parked already                start of a worker would park more keys
    the broker failed several times in a row on the same           test the topic: if it accepts the test
    messages, each time with the same unclear answer               message, the messages are at fault

The test message is the last message that the topic accepted. It has its old id, so duplicate detection drops it. A
topic without duplicate detection delivers a copy. It is used only as long as duplicate detection certainly remembers
its id. If there is no such message, a batch counts as at fault, so that its sender halves the batch. A single message
counts as doubtful, so that its sender tries other messages first.
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

# After this many refusals in a row, with no message accepted between them, the topic may be at fault. So a topic that refuses everything
# causes only this many keys to be parked.
BELIEVED_IN_A_ROW = 5
# If the broker fails on the same messages without naming a cause, the relay decides after this many attempts whether the messages or the
# topic are at fault.
UNCLEAR_ATTEMPTS = 5
# If the topic has accepted no message at all, and one message that is sent alone keeps failing, the relay decides only after this many
# attempts. The number is high, so that an outage of the topic parks no key.
_UNCLEAR_ATTEMPTS_ALONE = 15
_NO_ANSWER = "no answer"
_REMEMBERED = 1000  # how many failed calls a relay remembers: far more than there are leases and lanes

Messages = Sequence[OutboundMessage]
Send = Callable[[Messages], Awaitable[None]]  # a function that sends messages to one topic, on one lane
Shape = Callable[[OutboundMessage], OutboundMessage]


class Topics:
    """
    All topics of a relay as one Publisher. Each message is sent to all topics of its route at the same time, for example as a CloudEvent.

    Within each session of each topic, messages are in order. Topics do not wait for one another. A message is accepted
    when all its topics have it. After an error, some topics may have messages that do not count as accepted, even
    messages behind a rejected message. When such a message is sent again in time, the topic's duplicate detection drops
    the copy.

    Args:
        publishers: a publisher for each topic that the routes name.
        routes: which messages go to which topics. Defaults to every message to every topic.
        shape: a function that changes the form of a message before it is sent. Defaults to no change.
        around: a context manager for each send to a topic, such as a span. Defaults to none.
        ceiling: the limit of messages a second. A message to two topics counts twice. A caller awaits `Topics.turn` before it publishes. Defaults
            to none.

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
            raise errors.ConfigurationError(f"There is no publisher for {named}: pass one for each topic.")
        self._publishers, self._routes, self._shape, self._around = dict(publishers), routes, shape, around
        self.lanes, self._ceiling = min(publisher.lanes for publisher in publishers.values()), ceiling
        # How many messages one call of `publish` may have; None if nothing limits their rate
        self.at_once = None if ceiling is None else ceiling.at_once

    @property
    def system(self) -> str:
        """Return the name of the messaging system to which the publishers send, such as `servicebus`, for spans."""
        return next((getattr(one, "system", SERVICE_BUS) for one in self._publishers.values()), SERVICE_BUS)

    @property
    def checks(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
        """
        Return, by topic, the function `check` of its publisher, which finds out whether the topic accepts messages. A publisher without such
        a function is left out.
        """
        found = {topic: getattr(one, "check", None) for topic, one in self._publishers.items()}
        return {topic: check for topic, check in found.items() if check is not None}

    @property
    def batch_bytes(self) -> int | None:
        sizes = [getattr(publisher, "batch_bytes", None) for publisher in self._publishers.values()]
        return min((size for size in sizes if size is not None), default=None)

    async def turn(self, messages: Messages) -> None:
        """Wait until the limit of messages a second allows these messages. A message counts once for each of its topics."""
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
        Send messages to their topics, as `Publisher.publish` does. If `refusals` are given, the topic's `Refusals` decide after an error
        whether a message or the topic is at fault (see `Refusals.judge`).
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

            # Return the error and do not raise it: the task group would cancel the sends to the other topics.
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
            # Raise a retriable error rather than a rejection: the messages are sent again, and no key is parked while a topic is unavailable.
            _, worst = max(failures, key=lambda failure: (failure[1].retriable, -failure[0]))
            worst.accepted = min(position for position, _ in failures)
            raise worst


class Refusals:
    """
    Decides, for one topic, whether it refuses a message because of that message, or accepts no messages at all.

    Args:
        believed: after how many refusals in a row, with no message accepted between them, the topic may be at fault.
    """

    def __init__(self, *, believed: int) -> None:
        self._believed = believed
        self._last_accepted: OutboundMessage | None = None
        self._accepted_at = 0.0
        # The ids of the messages that were refused since the topic last accepted a message.
        self._refused: set[str] = set()
        self._refuses_all = False
        # For messages on which the broker failed without naming a cause: its last answer, and how many attempts in a row got that answer.
        self._unclear: dict[tuple[str, int], tuple[str, int]] = {}

    async def judge(self, send: Send, messages: Messages, parked: Callable[[], int]) -> None:
        """
        Send messages to the topic. After an error, raise an error whose class says whether the message or the topic is at fault.

        `parked` returns how many keys of the lease are parked, or 0 once a topic has accepted any message.
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
        """Return an accepted message that may be sent again to test whether the topic accepts messages; None if there is none."""
        age = _now() - self._accepted_at
        return self._last_accepted if age <= REMEMBERED_FOR.total_seconds() else None

    async def _judge_refusal(
        self, send: Send, rest: Messages, error: errors.MessageRejected, parked: int
    ) -> None:
        alone = len(rest) == 1
        if alone:
            self._refused.add(rest[0].message_id)
        elif not self._refuses_all:
            return  # the sender halves the batch, to find the message that is refused
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
        # True if the topic has accepted no message, so none can be sent again as a test
        first = self._last_accepted is None
        if attempts < UNCLEAR_ATTEMPTS:
            return
        if error.condition is None and (first or attempts % UNCLEAR_ATTEMPTS):
            # A missing answer usually means an outage. So only every few attempts decide what is at fault, and only if the topic has
            # accepted a message before, which can be sent again as a test.
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
        """Send a message again that the topic accepted before. Say whether the topic accepts it now."""
        if (probe := self._probe) is None:
            return False
        try:
            await send([probe])
        except errors.PublishError:
            return False
        # Keep `_accepted_at` as it is: the broker remembers a message id from the first copy on, and this was a later copy.
        self._forget_refusals()
        return True


def _call(messages: Messages) -> tuple[str, int]:
    return messages[0].message_id, len(messages)


def _now() -> float:
    # Add the time for which this machine slept, which the loop's clock lacks: meanwhile the broker may have forgotten the ids of messages.
    return asyncio.get_running_loop().time() + suspended_seconds()
