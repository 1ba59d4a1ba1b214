"""Tests that every implementation of the port Publisher has to pass. Through this port, a worker sends messages."""

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

_ATTEMPTS = 20  # a test gives up after this many failures in a row
_ON_DEMAND = "this topic does not fail on demand"


class Trouble(StrEnum):
    """A fault that a test asks for. The next send fails in this way."""

    LOST = "the connection breaks before the batch is stored"
    ACK_LOST = "the connection breaks after the batch was stored"
    BUSY = "the broker is busy"
    NO_TOPIC = "the topic is disabled"


class PublisherBackend(Protocol):
    """
    The topic that a test uses: `publisher` is under test, and the methods read the topic or make sends fail.

    `trouble` and `slow` skip the test. Override them if your topic can fail on demand, and the tests of failures are run.
    """

    publisher: Publisher

    async def received(self, session_id: str, *, last: OutboundMessage) -> list[OutboundMessage]:
        """
        Return the messages of a session that arrived since the last call, up to the message `last`.

        If more messages follow `last`, return one of them, too. The test then fails because of the additional message.
        """
        ...

    def trouble(self, kind: Trouble) -> None:
        """Make the next send fail in the given way. A topic that is disabled stays disabled until `recover` is called."""
        pytest.skip(_ON_DEMAND)

    def slow(self, seconds: float) -> None:
        """Make the topic take this many seconds to accept each batch."""
        pytest.skip(_ON_DEMAND)

    def recover(self) -> None:
        """End all faults that the test asked for."""


def a_message(
    session: str, number: int = 0, *, size: int = 0, properties: Mapping[str, str | int] | None = None
) -> OutboundMessage:
    """Return a message to send. Its id consists of the session and the number."""
    return OutboundMessage(
        message_id=f"{session}/{number}",
        session_id=session,
        subject="ContactNameUpdatedEvent",
        body=b'{"number":%d,"padding":"%s"}' % (number, b"x" * size),
        properties=properties or {},
    )


def messages_of(session: str, count: int, *, first: int = 0, size: int = 0) -> list[OutboundMessage]:
    """Return messages of a session with successive numbers."""
    return [a_message(session, number, size=size) for number in range(first, first + count)]


class PublisherContract:
    """
    Tests of a Publisher. Override the fixture `backend`. Override an attribute if your topic differs from Service Bus.

    Attributes:
        drops_repetitions: whether the topic drops a message whose id it has seen before. If it does not, readers have to drop such
            messages by their ids, and the tests check only the order of the first copies.
        most_bytes: more bytes than the topic accepts in one message.
        delivers_later: whether the topic keeps a message until its `deliver_at`. If it does not, the publisher has to reject a message
            whose `deliver_at` is in the future.
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
        Consumers rely on the ids, body, subject and content type of a message, and on its properties and their types.
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
        """Partition keys and ids of events may have 128 characters of any script. They must arrive unchanged as session and message ids."""
        session = ("é☃" * 64)[: 128 - 32] + uuid.uuid4().hex
        sent = replace(a_message(session), message_id=uuid.uuid4().hex + "ж" * 96)
        await backend.publisher.publish(0, [sent])
        assert [sent] == await backend.received(session, last=sent)

    async def test_publishing_no_messages_succeeds(self, backend: PublisherBackend) -> None:
        """`publish` with an empty list of messages returns without an error, so callers need not check for it."""
        await backend.publisher.publish(0, [])

    async def test_the_messages_of_successive_calls_arrive_in_order(
        self, backend: PublisherBackend, session: str
    ) -> None:
        """
        When `publish` has returned, all its messages are in the topic. So the messages of the next call arrive later.
        """
        sent = messages_of(session, 60)
        for start in range(0, 60, 7):
            await backend.publisher.publish(0, sent[start : start + 7])
        assert sent == await backend.received(session, last=sent[-1])

    async def test_one_call_sends_the_messages_of_several_sessions_in_order(
        self, backend: PublisherBackend, session: str
    ) -> None:
        """A worker sends the events of many partition keys in one call, and the events of each key have to arrive in order."""
        sessions = [f"{session}-{letter}" for letter in "abc"]
        sent = {name: messages_of(name, 10) for name in sessions}
        interleaved = [message for group in zip(*sent.values(), strict=True) for message in group]
        await backend.publisher.publish(0, interleaved)
        assert list(sent.values()) == await _everything_received(backend, sent.values())

    async def test_messages_that_need_several_batches_arrive_in_order(
        self, backend: PublisherBackend, session: str
    ) -> None:
        """One call of `publish` may have more messages than fit into one batch of the broker."""
        sent = messages_of(session, 50, size=10_000)
        await backend.publisher.publish(0, sent)
        assert sent == await backend.received(session, last=sent[-1])

    async def test_calls_on_one_lane_of_a_publisher_run_one_after_another(
        self, backend: PublisherBackend, session: str
    ) -> None:
        """A lane is one of a publisher's parallel senders. Calls on the same lane wait for each other, so its messages keep their order."""
        lane = backend.publisher.lanes - 1
        sessions = [f"{session}-{number}" for number in range(4)]
        calls = [[*messages_of(name, 5), *messages_of(name, 5, first=5)] for name in sessions]
        await asyncio.gather(*(backend.publisher.publish(lane, call) for call in calls))
        assert calls == await _everything_received(backend, calls)

    async def test_several_lanes_of_a_publisher_can_send_at_once(
        self, backend: PublisherBackend, session: str
    ) -> None:
        """A publisher has several parallel senders (lanes). Calls on different lanes can run at the same time."""
        lanes = backend.publisher.lanes
        assert lanes >= 1
        sent = [messages_of(f"{session}-{lane}", 30) for lane in range(lanes)]
        await asyncio.gather(*(backend.publisher.publish(lane, each) for lane, each in enumerate(sent)))
        assert sent == await _everything_received(backend, sent)

    async def test_a_repeated_message_is_dropped(self, backend: PublisherBackend, session: str) -> None:
        """
        After a worker died, another worker sends its page again. The topic drops the messages that it already has, or readers drop them
        by their ids.
        """
        sent, new = messages_of(session, 5), a_message(session, 5)
        await backend.publisher.publish(0, sent)
        await backend.publisher.publish(backend.publisher.lanes - 1, [*sent, new])
        assert [*sent, new] == self.dedupe(await backend.received(session, last=new))

    async def test_a_message_that_is_too_large_is_rejected(
        self, backend: PublisherBackend, session: str
    ) -> None:
        """
        `MessageRejected` says that the broker will never accept one of the messages. The worker then sends them in separate calls, to
        find out which one.
        """
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

    async def test_a_message_for_later_arrives_once_at_its_time(
        self, backend: PublisherBackend, session: str
    ) -> None:
        """A message whose `deliver_at` is in the future must not arrive early or be lost. If it is sent twice, it arrives once."""
        due = datetime.now(UTC) + timedelta(seconds=2)
        later, past = (replace(a_message(session, n), deliver_at=due - timedelta(days=n)) for n in range(2))
        if not self.delivers_later:
            with pytest.raises(MessageRejected):
                await backend.publisher.publish(0, [later])
            return
        for _ in range(2):
            await backend.publisher.publish(0, [later, past])
        received = await backend.received(session, last=past)
        # On a busy machine the message may be due by now, and the test cannot say whether it waited.
        if datetime.now(UTC) < due:
            assert [past.message_id] == [one.message_id for one in self.dedupe(received)]
        while later.message_id not in {one.message_id for one in received}:
            await asyncio.sleep(0.05)
            received += await backend.received(session, last=later)
        assert [later.message_id, past.message_id] == sorted(one.message_id for one in self.dedupe(received))

    @pytest.mark.parametrize("kind", [Trouble.LOST, Trouble.ACK_LOST, Trouble.BUSY])
    async def test_messages_that_are_sent_again_after_a_failure_keep_their_order(
        self, backend: PublisherBackend, session: str, kind: Trouble
    ) -> None:
        """
        The error says how many messages were `accepted`. To send the remaining messages again loses none and keeps the order. The error is a
        `BrokerUnavailable`, so the worker tries again: no event may be parked because the broker was busy.
        """
        sent = messages_of(session, 40)
        await backend.publisher.publish(0, sent[:10])
        backend.trouble(kind)
        failures = await _publish_until_accepted(backend.publisher, 0, sent[10:30])
        assert all(isinstance(failure, BrokerUnavailable) for failure in failures)
        assert failures or kind is not Trouble.BUSY
        await backend.publisher.publish(0, sent[30:])
        assert sent == self.dedupe(await backend.received(session, last=sent[-1]))

    async def test_a_publisher_uses_a_disabled_topic_again_when_it_is_enabled(
        self, backend: PublisherBackend, session: str
    ) -> None:
        """
        While the topic is disabled, `TopicUnavailable` says that an operator has to act, and that no message is wrong. The first call may
        raise `BrokerUnavailable` instead, because its open link breaks.
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
        """
        A worker that loses its lease cancels its sends. If messages of a cancelled send arrived later, they could arrive after newer
        messages of the lease's next owner.
        """
        sent, other_lane = messages_of(session, 60, size=10_000), backend.publisher.lanes - 1
        # Send on the other lane first: an earlier test may have cut its connection, and the marker below must not wait for a new one.
        await _publish_until_accepted(backend.publisher, other_lane, [a_message(f"{session}-b")])
        backend.slow(0.2)
        call = asyncio.create_task(backend.publisher.publish(0, sent))
        # Wait until the call has sent a part of its batches, and cancel it then.
        await asyncio.sleep(0.3)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        backend.recover()
        marker = a_message(session, 999)
        # Send the marker on the other lane, because the next owner of the lease sends over another link, too.
        await backend.publisher.publish(other_lane, [marker])
        *before, last = await backend.received(session, last=marker)
        assert marker == last
        assert before == sent[: len(before)]
        assert len(before) < len(sent)
        # The next owner of the lease sends all messages again. The messages that the cancelled call did not send arrive now, in order.
        await backend.publisher.publish(0, sent)
        again = await backend.received(session, last=sent[-1])
        assert sent == self.dedupe([*before, *again])

    def dedupe(self, received: Iterable[OutboundMessage]) -> list[OutboundMessage]:
        """Return the received messages without repetitions, unless the topic drops repetitions itself."""
        messages = [*received]
        return messages if self.drops_repetitions else [*{one.message_id: one for one in messages}.values()]


async def _publish_until_accepted(
    publisher: Publisher, lane: int, messages: Sequence[OutboundMessage]
) -> list[PublishError]:
    """Publish messages as a worker does: after each failure, send those again that were not accepted. Return the failures."""
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
    """Return the messages that arrived in each of several sessions. `sent` has a list of the sent messages for each session."""
    return await asyncio.gather(*(backend.received(each[-1].session_id, last=each[-1]) for each in sent))
