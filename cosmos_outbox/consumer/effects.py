"""Effects: a message takes effect once, with the entry in the inbox that proves it in the same batch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum, auto

from opentelemetry import trace

from cosmos_outbox.consumer.handler_call import called
from cosmos_outbox.consumer.inbox import may_be_known, record_id, record_of
from cosmos_outbox.consumer.policy import OnUnknown, Policy
from cosmos_outbox.consumer.routes import Routes
from cosmos_outbox.correlation import processing_message
from cosmos_outbox.domain.sources import utc_now
from cosmos_outbox.errors import Conflict, MessageUnreadable, MixedPartitionKeys
from cosmos_outbox.messages import Message
from cosmos_outbox.partition_key import PartitionKey
from cosmos_outbox.records import Hook, MessageHandled, Record, SubjectIgnored, guarded
from cosmos_outbox.write.batch import CommitRecord
from cosmos_outbox.write.outbox import Outbox
from cosmos_outbox.write.unit_of_work import UnitOfWork, commit_with, is_stored, run_event_handlers


class Effect(Enum):
    """What became of a message."""

    TAKEN = auto()
    REPEATED = auto()  # it took effect before
    IGNORED = auto()  # no handler takes its subject
    UNKNOWN = auto()  # the same, where that is an error


class Effects:
    """
    Calls the handlers of one consumer.

    Args:
        name: of the consumer.
        routes: its handlers.
        policy: its rules.
        outbox_of: the outbox of the effect of a message.
        source: the subscription or queue, as `topic/subscription`.
        notify: hears what happens.
        tracer_provider: receives a span for each attempt. Defaults to OpenTelemetry's global one.
    """

    def __init__(
        self,
        name: str,
        routes: Routes,
        policy: Policy,
        *,
        outbox_of: Callable[[Message], Outbox],
        source: str,
        notify: Hook,
        tracer_provider: trace.TracerProvider | None,
    ) -> None:
        self.name, self.routes, self.policy, self.source = name, routes, policy, source
        self.notify = guarded(notify)
        self._outbox_of = outbox_of
        self._tracer = trace.get_tracer("cosmos_outbox", tracer_provider=tracer_provider)
        self._topic, _, self._subscription = source.partition("/")
        self._ignored: set[str] = set()  # subjects that were reported

    async def take(self, message: Message, key: str, *, attempt: int, released: bool = False) -> Effect:
        """
        Have a message take effect once, whatever was attempted before.

        Args:
            message: from its producer.
            key: that its order is kept by, as reports name it.
            attempt: from 1, for the report.
            released: from a parked key. Its record stays for good: a release that dies leaves the message in the queue, for a next
                one that may come long afterwards.

        Raises:
            Exception: whatever the handler raises; nothing of the message was committed.
        """
        began = asyncio.get_running_loop().time()
        if (found := self.routes.find(message)) is None:
            return self._without_handler(message, key)
        outbox, effect_key = self._outbox_of(message), self.key_of(message)
        record = record_of(
            message,
            consumer=self.name,
            key=effect_key,
            paths=outbox.key_paths,
            ttl=None if released else self.policy.record_ttl,
            now=utc_now(),
        )
        async with outbox.unit_of_work(found.route.kind) as uow:
            asks = released or attempt > 1 or may_be_known(message, created_at=found.created_at)
            if asks and await is_stored(uow, record.id, effect_key):
                return self.repeated(message, key)

            async def handled() -> None:
                await found.route.handler(found.event, message, uow)
                # Those of the events that it recorded too: the consumer bounds and judges whatever a caller wrote.
                await run_event_handlers(uow)

            with processing_message(
                message.message_id,
                message.properties,
                delivery_count=message.delivery_count,
                topic=self._topic,
                subscription=self._subscription or None,
                tracer=self._tracer,
                correlation_id=message.correlation_id,
            ):
                await called(
                    handled, of=self.name, subject=message.subject, within=self.policy.handler_timeout
                )
                if not await _committed(uow, record, of=self.name):
                    return self.repeated(message, key)
        age = None if message.enqueued_at is None else (utc_now() - message.enqueued_at).total_seconds()
        seconds = asyncio.get_running_loop().time() - began
        self.report(
            message,
            key,
            MessageHandled,
            outcome="handled",
            attempts=attempt,
            seconds=seconds,
            age_seconds=age,
        )
        return Effect.TAKEN

    def report(self, message: Message, key: str | None, kind: Callable[..., Record], **said: object) -> None:
        """Report what became of a message."""
        of = {"consumer": self.name, "subject": message.subject, "message_id": message.message_id}
        self.notify(kind(**of, key=key, **said))

    async def was_taken(self, message: Message) -> bool:
        """Say whether the inbox knows a message."""
        async with self._outbox_of(message).unit_of_work() as uow:
            return await is_stored(uow, record_id(self.name, message.message_id), self.key_of(message))

    def repeated(self, message: Message, key: str) -> Effect:
        """Report that a message took effect before."""
        self.report(message, key, MessageHandled, outcome="repeated")
        return Effect.REPEATED

    def key_of(self, message: Message) -> PartitionKey:
        """
        Return the partition key of a message's effect.

        Raises:
            MessageUnreadable: it has no session, or one that names no key of the container, and the policy names no other place.
        """
        if self.policy.partition_key is not None:
            return self.policy.partition_key(message)
        if message.session_id is None:
            raise MessageUnreadable(
                "The message has no session, so it does not say the partition key of its effect; give `partition_key=`."
            )
        paths = self._outbox_of(message).key_paths
        if len(paths.levels) == 1:
            return message.session_id  # a string is its own text, also one that looks like a list
        try:
            return paths.parse(message.session_id)
        except ValueError as error:
            raise MessageUnreadable(
                f"The session of the message: {error} Or give `partition_key=`."
            ) from error

    def _without_handler(self, message: Message, key: str) -> Effect:
        if self.policy.unknown is OnUnknown.DEAD_LETTER:
            return Effect.UNKNOWN
        if message.subject not in self._ignored:
            self._ignored.add(message.subject)
            self.notify(SubjectIgnored(consumer=self.name, subject=message.subject))
        self.report(message, key, MessageHandled, outcome="ignored")
        return Effect.IGNORED


async def _committed(uow: UnitOfWork, record: CommitRecord, *, of: str) -> bool:
    """
    Commit the effect of a message with its record; return False if the message took effect elsewhere meanwhile.
    """
    try:
        await commit_with(uow, record)
    except MixedPartitionKeys as error:
        advice = (
            f"a handler of {of!r} writes under the key of its message, together with the record that it was handled. Let it record an "
            "event, and have a consumer of that event write the other key; or name the key of all effects by `partition_key=`"
        )
        raise MixedPartitionKeys(error.first, error.second, advice=advice) from error
    except Conflict as refusal:
        # What is stored under the record's id is the record: every write of it is part of an effect
        if refusal.document_id != record.id:
            raise
        return False
    return True
