"""The promises of every Publisher."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import ClassVar, Protocol

import pytest

from cosmos_outbox.errors import BrokerUnavailable, MessageRejected, PublishError, TopicUnavailable
from cosmos_outbox.message_format import OutboundMessage
from cosmos_outbox.ports import Publisher

_ATTEMPTS = 20  # failures after which the publisher counts as not recovering
_ON_DEMAND = "this topic does not fail on demand"


class Trouble(StrEnum):
    """A fault that strikes the next send."""

    LOST = "the connection breaks before the batch is stored"
    ACK_LOST = "the connection breaks after the batch was stored"
    BUSY = "the broker is busy"
    NO_TOPIC = "the topic is disabled"


class PublisherBackend(Protocol):
    """
    A topic under test: its publisher, the reader of its messages, and its faults. Tests of faults are skipped if there are none.
    """

    publisher: Publisher

    async def received(self, session_id: str, *, last: OutboundMessage) -> list[OutboundMessage]:
        """Return the messages of a session that arrived since the last call, up to this one, and one too many if there is one."""
        ...

    def trouble(self, kind: Trouble) -> None:
        """Have the next send fail in this way; a disabled topic stays disabled until `recover`."""
        pytest.skip(_ON_DEMAND)

    def slow(self, seconds: float) -> None:
        """Have each batch take this long."""
        pytest.skip(_ON_DEMAND)

    def recover(self) -> None:
        """End all faults."""


def a_message(
    session: str, number: int = 0, *, size: int = 0, properties: Mapping[str, str | int] | None = None
) -> OutboundMessage:
    """Return a message of a session; its id contains its number."""
    return OutboundMessage(
        message_id=f"{session}/{number}",
        session_id=session,
        subject="ContactNameUpdatedEvent",
        body=b'{"number":%d,"padding":"%s"}' % (number, b"x" * size),
        properties=properties or {},
    )


def messages_of(session: str, count: int, *, first: int = 0, size: int = 0) -> list[OutboundMessage]:
    """Return successive messages of a session."""
    return [a_message(session, number, size=size) for number in range(first, first + count)]


class PublisherContract:
    """
    The promises of a Publisher: override `backend`.

    Attributes:
        drops_repetitions: whether the topic stores a message id once. Where it does not, repetitions are allowed, and only
            the order of the first copies is checked: readers have to drop the others by their ids.
        most_bytes: more than a message of the topic can have.
        delivers_later: whether the topic keeps a message until its `deliver_at`. Where it does not, it has to reject one.
    """

    drops_repetitions: ClassVar[bool] = True
    most_bytes: ClassVar[int] = 1_100_000
    delivers_later: ClassVar[bool] = True

    @pytest.fixture
    def backend(self) -> PublisherBackend:
        raise NotImplementedError("Override the fixture `backend`: it returns the topic under test.")

    @pytest.fixture
    def session(self) -> str:
        return f"session-{uuid.uuid4()}"

    async def test_a_message_arrives_as_it_was_sent(self, backend: PublisherBackend, session: str) -> None:
        """
        Ids, body, subject, content type and properties with their types: a consumer relies on each of them.
        """
        properties: dict[str, str | int] = {
            "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "entity-version": 7,
            "sequence": 0,
            "correlation-id": "grün ☃",
            "commit-id": str(2**63),
            "big": 2**31 - 1,
            "negative": -1,
        }
        sent = [a_message(session, number, properties=properties) for number in range(2)]
        await backend.publisher.publish(0, sent)
        assert sent == await backend.received(session, last=sent[-1])

    async def test_ids_may_have_128_characters_of_any_script(self, backend: PublisherBackend) -> None:
        """A partition key and an event's id may be so long, and their messages keep them."""
        session = ("é☃" * 64)[: 128 - 32] + uuid.uuid4().hex
        sent = replace(a_message(session), message_id=uuid.uuid4().hex + "ж" * 96)
        await backend.publisher.publish(0, [sent])
        assert [sent] == await backend.received(session, last=sent)

    async def test_nothing_to_publish_is_published_at_once(self, backend: PublisherBackend) -> None:
        """A call without messages returns."""
        await backend.publisher.publish(0, [])

    async def test_messages_of_a_session_arrive_in_the_order_of_call_after_call(
        self, backend: PublisherBackend, session: str
    ) -> None:
        """
        A call that returned has all its messages in the topic, so those of the next one come behind them.
        """
        sent = messages_of(session, 60)
        for start in range(0, 60, 7):
            await backend.publisher.publish(0, sent[start : start + 7])
        assert sent == await backend.received(session, last=sent[-1])

    async def test_one_call_may_carry_many_sessions_each_in_order(
        self, backend: PublisherBackend, session: str
    ) -> None:
        """The relay sends the events of many partition keys in one call."""
        sessions = [f"{session}-{letter}" for letter in "abc"]
        sent = {name: messages_of(name, 10) for name in sessions}
        interleaved = [message for group in zip(*sent.values(), strict=True) for message in group]
        await backend.publisher.publish(0, interleaved)
        assert list(sent.values()) == await _everything_received(backend, sent.values())

    async def test_what_does_not_fit_one_batch_goes_in_several_in_order(
        self, backend: PublisherBackend, session: str
    ) -> None:
        """A call may carry more messages than the broker takes at once."""
        sent = messages_of(session, 50, size=10_000)
        await backend.publisher.publish(0, sent)
        assert sent == await backend.received(session, last=sent[-1])

    async def test_calls_on_one_lane_go_one_after_another(
        self, backend: PublisherBackend, session: str
    ) -> None:
        """Calls on one lane wait for each other, so that a lane is one ordered stream."""
        lane = backend.publisher.lanes - 1
        sessions = [f"{session}-{number}" for number in range(4)]
        calls = [[*messages_of(name, 5), *messages_of(name, 5, first=5)] for name in sessions]
        await asyncio.gather(*(backend.publisher.publish(lane, call) for call in calls))
        assert calls == await _everything_received(backend, calls)

    async def test_lanes_work_side_by_side(self, backend: PublisherBackend, session: str) -> None:
        """Each lane can be used while the others are."""
        lanes = backend.publisher.lanes
        assert lanes >= 1
        sent = [messages_of(f"{session}-{lane}", 30) for lane in range(lanes)]
        await asyncio.gather(*(backend.publisher.publish(lane, each) for lane, each in enumerate(sent)))
        assert sent == await _everything_received(backend, sent)

    async def test_what_is_sent_again_is_dropped(self, backend: PublisherBackend, session: str) -> None:
        """
        A relay that died sends a page again. The topic drops the messages that it has, or lets readers recognise them by their ids.
        """
        sent, new = messages_of(session, 5), a_message(session, 5)
        await backend.publisher.publish(0, sent)
        await backend.publisher.publish(backend.publisher.lanes - 1, [*sent, new])
        assert [*sent, new] == self.dedupe(await backend.received(session, last=new))

    async def test_a_message_that_is_too_large_is_rejected_and_nothing_behind_it_is_sent(
        self, backend: PublisherBackend, session: str
    ) -> None:
        """`MessageRejected` says that a message will never be accepted. If the call has one message only, it is that one."""
        before, after = messages_of(session, 3), a_message(session, 4)
        giant = a_message(session, 3, size=self.most_bytes)
        with pytest.raises(MessageRejected) as together:
            await backend.publisher.publish(0, [*before, giant, after])
        await backend.publisher.publish(0, before[together.value.accepted :])
        with pytest.raises(MessageRejected) as alone:
            await backend.publisher.publish(0, [giant])
        assert 0 == alone.value.accepted
        await backend.publisher.publish(0, [after])
        assert [*before, after] == self.dedupe(await backend.received(session, last=after))

    async def test_a_message_for_later_arrives_at_its_time_once_or_is_rejected(
        self, backend: PublisherBackend, session: str
    ) -> None:
        """A message with a deadline must not come early, nor be lost; a resend gives the same message."""
        due = datetime.now(UTC) + timedelta(seconds=2)
        later, past = (replace(a_message(session, n), deliver_at=due - timedelta(days=n)) for n in range(2))
        if not self.delivers_later:
            with pytest.raises(MessageRejected):
                await backend.publisher.publish(0, [later])
            return
        for _ in range(2):
            await backend.publisher.publish(0, [later, past])
        received = await backend.received(session, last=past)
        if datetime.now(UTC) < due:  # otherwise the machine was too busy to see that a message waits
            assert [past.message_id] == [one.message_id for one in self.dedupe(received)]
        while later.message_id not in {one.message_id for one in received}:
            await asyncio.sleep(0.05)
            received += await backend.received(session, last=later)
        assert [later.message_id, past.message_id] == sorted(one.message_id for one in self.dedupe(received))

    @pytest.mark.parametrize("kind", [Trouble.LOST, Trouble.ACK_LOST, Trouble.BUSY])
    async def test_after_a_failure_the_same_messages_again_keep_the_order(
        self, backend: PublisherBackend, session: str, kind: Trouble
    ) -> None:
        """
        After an error, the first `accepted` messages are in the topic; a resend of the others loses and swaps none.
        `BrokerUnavailable` says to try again: messages for a busy broker must not be parked.
        """
        sent = messages_of(session, 40)
        await backend.publisher.publish(0, sent[:10])
        backend.trouble(kind)
        failures = await _publish_until_accepted(backend.publisher, 0, sent[10:30])
        assert all(isinstance(failure, BrokerUnavailable) for failure in failures)
        assert failures or kind is not Trouble.BUSY
        await backend.publisher.publish(0, sent[30:])
        assert sent == self.dedupe(await backend.received(session, last=sent[-1]))

    async def test_a_topic_that_is_disabled_is_used_again_once_it_is_enabled(
        self, backend: PublisherBackend, session: str
    ) -> None:
        """
        `TopicUnavailable` says that an operator has to act, and that no message is at fault; an open link may break before that.
        """
        backend.trouble(Trouble.NO_TOPIC)
        with pytest.raises((BrokerUnavailable, TopicUnavailable)) as refused:
            await backend.publisher.publish(0, [a_message(session)])
        if refused.type is BrokerUnavailable:
            with pytest.raises(TopicUnavailable):
                await backend.publisher.publish(0, [a_message(session)])
        backend.recover()
        sent = a_message(session)
        await backend.publisher.publish(0, [sent])
        assert [sent] == await backend.received(session, last=sent)

    async def test_a_cancelled_call_sends_nothing_after_it_returned(
        self, backend: PublisherBackend, session: str
    ) -> None:
        """A relay that loses its lease cancels its sends: messages that arrived later would overtake those of its successor."""
        sent, other_lane = messages_of(session, 60, size=10_000), backend.publisher.lanes - 1
        # This opens the lane, whose connection an earlier test may have cut.
        await _publish_until_accepted(backend.publisher, other_lane, [a_message(f"{session}-b")])
        backend.slow(0.2)
        call = asyncio.create_task(backend.publisher.publish(0, sent))
        await asyncio.sleep(0.3)  # by the client's clock, this is inside one of several batches
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        backend.recover()
        marker = a_message(session, 999)
        await backend.publisher.publish(other_lane, [marker])  # the lease's next owner sends like this
        *before, last = await backend.received(session, last=marker)
        assert marker == last
        assert before == sent[: len(before)]
        assert len(before) < len(sent)
        # The next owner of the lease sends everything again: the rest arrives, in order.
        await backend.publisher.publish(0, sent)
        again = await backend.received(session, last=sent[-1])
        assert sent == self.dedupe([*before, *again])

    def dedupe(self, received: Iterable[OutboundMessage]) -> list[OutboundMessage]:
        """Return the messages that a reader takes: all of them, or the first copies if the topic stores repetitions."""
        messages = [*received]
        return messages if self.drops_repetitions else [*{one.message_id: one for one in messages}.values()]


async def _publish_until_accepted(
    publisher: Publisher, lane: int, messages: Sequence[OutboundMessage]
) -> list[PublishError]:
    """Publish as a caller does that keeps the order; return the failures on the way."""
    failures: list[PublishError] = []
    for _ in range(_ATTEMPTS):
        try:
            await publisher.publish(lane, messages)
        except PublishError as error:
            failures.append(error)
            messages = messages[error.accepted :]
        else:
            return failures
    raise failures[-1]


async def _everything_received(
    backend: PublisherBackend, sent: Iterable[Sequence[OutboundMessage]]
) -> list[list[OutboundMessage]]:
    """Return the messages of several sessions that arrived; each session is given by the messages that were sent to it."""
    return await asyncio.gather(*(backend.received(each[-1].session_id, last=each[-1]) for each in sent))
