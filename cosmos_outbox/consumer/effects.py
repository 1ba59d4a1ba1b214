"""
Effects: a message takes effect once, with the entry in the inbox that proves it in the same batch.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Hashable
from enum import Enum, auto
from functools import partial
from typing import Any

from opentelemetry import trace

from cosmos_outbox.consumer.handler_call import called
from cosmos_outbox.consumer.inbox import Entry, Inbox, Known, Verdict, entry_for, position_of, previous_of
from cosmos_outbox.consumer.policy import OnGap, OnUnknown, Policy
from cosmos_outbox.consumer.routes import Routes
from cosmos_outbox.correlation import processing_message
from cosmos_outbox.errors import (
    ConfigurationError,
    Conflict,
    MessageMissed,
    MessageUnreadable,
    MixedPartitionKeys,
    PreconditionFailed,
    StoreUnavailable,
)
from cosmos_outbox.messages import Message
from cosmos_outbox.parking.documents import utcnow
from cosmos_outbox.partition_key import PartitionKey, identity
from cosmos_outbox.records import (
    Hook,
    MessageGap,
    MessageHandled,
    MessageIgnored,
    MessageRepeated,
    SubjectIgnored,
    guarded,
)
from cosmos_outbox.write.outbox import Outbox
from cosmos_outbox.write.unit_of_work import UnitOfWork, run_event_handlers

# What is known of each outbox and partition key: the effects of a session's messages may lie in several.
Watermarks = defaultdict[tuple[Outbox, Hashable], Known]


class Effect(Enum):
    """
    What became of a message.
    """

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
        sessions: whether its messages come in order.
        notify: hears what happens.
        tracer_provider: receives a span for each attempt. Defaults to OpenTelemetry's global one.

    Raises:
        ConfigurationError: the policy needs ordered messages, and there are no sessions.
    """

    def __init__(
        self,
        name: str,
        routes: Routes,
        policy: Policy,
        *,
        outbox_of: Callable[[Message], Outbox],
        source: str,
        sessions: bool,
        notify: Hook,
        tracer_provider: trace.TracerProvider | None,
    ) -> None:
        if not sessions and (policy.inbox is Inbox.WATERMARK or policy.gaps is not OnGap.IGNORE):
            raise ConfigurationError(
                f'The consumer {name!r} keeps watermarks (inbox="watermark", or gaps="{policy.gaps}"), which takes messages in order, '
                f"and {source} has no sessions."
            )
        self.name, self.routes, self.policy, self.source = name, routes, policy, source
        self.notify = guarded(notify)
        self._outbox_of = outbox_of
        self._tracer = trace.get_tracer("cosmos_outbox", tracer_provider=tracer_provider)
        # Without order, a watermark would take a message that was overtaken for a repetition.
        self._inbox = policy.inbox if sessions else Inbox.RECORDS
        self._topic, _, self._subscription = source.partition("/")
        self._ignored: set[str] = set()  # subjects that were reported

    async def take(
        self, message: Message, key: str, watermarks: Watermarks, *, attempt: int, released: bool = False
    ) -> Effect:
        """
        Have a message take effect once, whatever was attempted before.

        Args:
            message: from its producer.
            key: that its order is kept by, as reports name it.
            watermarks: known to this session; new ones are added.
            attempt: from 1, for the report.
            released: an operator decided that a gap before it does not matter.

        Raises:
            Exception: whatever the handler raises; nothing of the message was committed.
        """
        began = asyncio.get_running_loop().time()
        found = self.routes.find(message)
        if found is None and self.policy.unknown is OnUnknown.DEAD_LETTER:
            return Effect.UNKNOWN
        if found is None and (self.policy.gaps is OnGap.IGNORE or position_of(message) is None):
            return self._ignore(message)
        outbox, effect_key = self._outbox_of(message), self.key_of(message)
        known = watermarks[outbox, identity(effect_key)]
        async with outbox.unit_of_work(UnitOfWork if found is None else found[0].kind) as uow:
            entry = await self._entry(message, uow, outbox, effect_key, known)
            if entry.verdict is Verdict.HANDLED:
                self.repeated(message, key)
                return Effect.REPEATED
            if entry.verdict is Verdict.GAP:
                self._missed(message, key, entry, released=released)
            with processing_message(
                message.message_id,
                message.properties,
                delivery_count=message.delivery_count,
                topic=self._topic,
                subscription=self._subscription or None,
                tracer=self._tracer,
                correlation_id=message.correlation_id,
            ):
                if found is not None:
                    route, event = found
                    await called(
                        partial(_handled, route.handler, event, message, uow),
                        of=self.name,
                        subject=message.subject,
                        within=self.policy.handler_timeout,
                    )
                await _committed(uow, entry, of=self.name)
        if entry.document.get("_etag"):
            known[entry.document["id"]] = entry.document
        if found is None:
            return self._ignore(message)
        age = None if message.enqueued_at is None else (utcnow() - message.enqueued_at).total_seconds()
        self.notify(
            MessageHandled(
                consumer=self.name,
                subject=message.subject,
                key=key,
                message_id=message.message_id,
                attempts=attempt,
                seconds=asyncio.get_running_loop().time() - began,
                age_seconds=age,
            )
        )
        return Effect.TAKEN

    async def was_taken(self, message: Message) -> bool:
        """
        Say whether the inbox knows a message.
        """
        outbox = self._outbox_of(message)
        async with outbox.unit_of_work() as uow:
            entry = await self._entry(message, uow, outbox, self.key_of(message), {})
        return entry.verdict is Verdict.HANDLED

    def repeated(self, message: Message, key: str) -> None:
        """
        Report that a message took effect before.
        """
        self.notify(
            MessageRepeated(
                consumer=self.name, subject=message.subject, key=key, message_id=message.message_id
            )
        )

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

    async def _entry(
        self, message: Message, uow: UnitOfWork, outbox: Outbox, key: PartitionKey, known: Known
    ) -> Entry:
        return await entry_for(
            message,
            uow,
            consumer=self.name,
            inbox=self._inbox,
            key=key,
            paths=outbox.key_paths,
            ttl=self.policy.record_ttl,
            known=known,
            now=utcnow(),
        )

    def _ignore(self, message: Message) -> Effect:
        if message.subject not in self._ignored:
            self._ignored.add(message.subject)
            self.notify(SubjectIgnored(consumer=self.name, subject=message.subject))
        self.notify(
            MessageIgnored(consumer=self.name, subject=message.subject, message_id=message.message_id)
        )
        return Effect.IGNORED

    def _missed(self, message: Message, key: str, entry: Entry, *, released: bool) -> None:
        expected, found = str(entry.expected), str(previous_of(message))
        if self.policy.gaps is OnGap.WAIT and not released:
            raise MessageMissed(
                f"{message.subject} {message.message_id!r} follows {found} of its entity, and this consumer knows the entity up to "
                f"{expected}. Have what is missing sent again (`cosmos-outbox replay`), then release the key; or release it to go on "
                "without."
            )
        if self.policy.gaps is not OnGap.IGNORE:
            self.notify(
                MessageGap(
                    consumer=self.name,
                    key=key,
                    message_id=message.message_id,
                    expected=expected,
                    found=found,
                )
            )


async def _handled(
    handler: Callable[[Any, Message, Any], Awaitable[None]], event: Any, message: Message, uow: UnitOfWork
) -> None:
    await handler(event, message, uow)
    # Those of the events that it recorded too: the consumer bounds and judges whatever a caller wrote.
    await run_event_handlers(uow)


async def _committed(uow: UnitOfWork, entry: Entry, *, of: str) -> None:
    entry.add_to(uow)  # last: a handler may have rolled back, which would have forgotten it
    try:
        await uow.commit()
    except MixedPartitionKeys as error:
        advice = (
            f"a handler of {of!r} writes under the key of its message, together with the record that it was handled. Let it record an "
            "event, and have a consumer of that event write the other key; or name the key of all effects by `partition_key=`"
        )
        raise MixedPartitionKeys(error.first, error.second, advice=advice) from error
    except (Conflict, PreconditionFailed) as refusal:
        if refusal.document_id != entry.document["id"]:
            raise
        # No failure of the handler: another process was first, or the read of the inbox was stale
        raise StoreUnavailable("The inbox has changed since it was read.", applied=False) from refusal
