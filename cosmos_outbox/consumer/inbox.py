"""
Inbox: have each message take effect once, by committing the handler's changes and a record of the message in one batch.

The record of a message that took effect has the id `inbox.<consumer>.<message id>`. Of any number of attempts at a message, only one can
create it. Its time to live deletes the record once no copy of the message can come any more. The handler runs for a limited time.
`attempts.py` decides what follows if a handler fails.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from datetime import datetime, timedelta
from enum import Enum, auto
from typing import Any

from opentelemetry import metrics, trace

from cosmos_outbox import errors
from cosmos_outbox.consumer.handler_threads import calls_of_handler
from cosmos_outbox.consumer.policy import OnUnknown, Policy
from cosmos_outbox.consumer.routes import Routes
from cosmos_outbox.correlation import process_durations, processing_message, tracer_of
from cosmos_outbox.domain.entities import INBOX_TYPE
from cosmos_outbox.domain.events import utc_now
from cosmos_outbox.message_format import REMEMBERED_FOR, Message
from cosmos_outbox.partition_key import KeyPaths, PartitionKey, check_id
from cosmos_outbox.records import Hook, MessageHandled, Record, SubjectIgnored, guard
from cosmos_outbox.sessions.held_session import cancel
from cosmos_outbox.stored_documents import KEPT_FOREVER
from cosmos_outbox.write.commit_batch import CommitRecord
from cosmos_outbox.write.outbox import Outbox
from cosmos_outbox.write.unit_of_work import commit_with, committer, run_event_handlers

_LONGEST_NAME = 200
# Errors which mean that Cosmos DB cannot be used now, so the message is not at fault and waits. ConfigurationError is among them, because it
# is raised for a missing container or database.
OUTAGES = (
    *errors.BUSY,
    errors.CommitOutcomeUnknown,
    errors.AccessDenied,
    errors.ConfigurationError,
    errors.ParkingError,
)


class HandlerStuck(errors.HandlerTimeout):
    """
    The error for a handler that goes on after it was cancelled, or whose thread goes on. The consumer no longer waits for it, and commits
    none of its work.
    """


class Effect(Enum):
    """The outcome of one attempt at a message: whether it took effect, and if not, why."""

    TAKEN = auto()
    REPEATED = auto()  # the message took effect before
    IGNORED = auto()  # no handler takes the message's subject, so the message is completed
    UNKNOWN = auto()  # no handler takes the message's subject, and the policy is to dead-letter such messages


class Inbox:
    """
    Calls the handlers of one consumer, and commits the changes of each handler together with the record of its message.

    Args:
        name: the name of the consumer.
        routes: the handlers of the consumer.
        policy: the rules of the consumer.
        outbox_of: a function that returns the outbox for a message's effect.
        source: the subscription or queue, as `topic/subscription`.
        notify: called with a record of everything that happens.
        server_address: the host of the Service Bus namespace, for spans and metrics. None if unknown.
        tracer_provider, meter_provider: receive a span of each attempt, and how long it took. Default to OpenTelemetry's global ones.
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
        server_address: str | None,
        tracer_provider: trace.TracerProvider | None,
        meter_provider: metrics.MeterProvider | None,
    ) -> None:
        self.name, self.routes, self.policy, self.source = name, routes, policy, source
        self._prefix = f"inbox.{_short(name)}"
        self.notify = guard(notify)
        self._outbox_of = outbox_of
        self._tracer, self._durations = tracer_of(tracer_provider), process_durations(meter_provider)
        self._server_address = server_address
        self._topic, _, self._subscription = source.partition("/")
        self._ignored: set[str] = set()  # subjects that were reported as ignored

    async def take(self, message: Message, key: str, *, attempt: int, released: bool = False) -> Effect:
        """
        Call the handler of a message and commit its effect, unless the message took effect before. Return what happened.

        Args:
            message: the message to handle.
            key: the text of the key within which messages are in order. Records state it.
            attempt: the number of this attempt, from 1. Records state it.
            released: whether a release of a parked key handles the message. Its inbox record then never expires: if the release dies, the
                message stays in the queue, and the next release may come long afterwards.

        Raises:
            Exception: whatever the handler raises; nothing of the message was committed.
        """
        began = asyncio.get_running_loop().time()
        if (found := self.routes.find(message)) is None:
            if self.policy.unknown is OnUnknown.DEAD_LETTER:
                return Effect.UNKNOWN
            if message.subject not in self._ignored:
                self._ignored.add(message.subject)
                self.notify(SubjectIgnored(consumer=self.name, subject=message.subject))
            self.report(message, key, MessageHandled, outcome="ignored")
            return Effect.IGNORED
        outbox = self._outbox_of(message)
        paths = outbox.key_paths
        asks = released or attempt > 1 or _may_be_known(message, created_at=found.created_at)
        effect_key = self.key_of(message, paths)
        document = {
            "id": self._record_id(message),
            **paths.fields(effect_key),
            "type": INBOX_TYPE,
            "consumer": self.name,
            "ttl": KEPT_FOREVER if released else int(self.policy.record_ttl.total_seconds()),
            "messageId": message.message_id,
            "handledAt": utc_now().isoformat(),
        }
        elsewhere = (
            f"a handler of {self.name!r} writes under the key of its message, together with the record that it was handled. Let it record an "
            "event, and have a consumer of that event write the other key; or name the key of all effects by `partition_key=`"
        )
        record = CommitRecord(partition_key=effect_key, document=document, elsewhere=elsewhere)
        async with outbox.unit_of_work(found.route.kind) as uow:
            if asks and await uow.documents().find(record.id, partition_key=effect_key):
                return self._report_copy(message, key)

            async def handle() -> None:
                await found.route.handler(found.event, message, uow)
                # Run the application's own event handlers (`Outbox.on`) here and not at the commit, so that the time limit and the retries
                # of the consumer apply to them as well.
                await run_event_handlers(uow)

            with processing_message(
                message.message_id,
                message.properties,
                delivery_count=message.delivery_count,
                topic=self._topic,
                subscription=self._subscription or None,
                tracer=self._tracer,
                durations=self._durations,
                correlation_id=message.correlation_id,
                enqueued_at=message.enqueued_at,
                server_address=self._server_address,
            ):
                await invoke(
                    handle, of=self.name, subject=message.subject, within=self.policy.handler_timeout
                )
                try:
                    await commit_with(uow, record)
                except errors.Conflict as refusal:
                    # If the inbox record exists already, another process has committed the effect of this message: the record is only
                    # ever written together with the effect.
                    if refusal.document_id != record.id:
                        raise
                    return self._report_copy(message, key)
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
        """Make a record of this kind about a message, and pass it to the hook."""
        of = {"consumer": self.name, "subject": message.subject, "message_id": message.message_id}
        self.notify(kind(**of, key=key, **said))

    async def was_taken(self, message: Message, key: str) -> bool:
        """Say whether the message took effect before: the inbox has a record of it then. If so, report the message as repeated."""
        try:
            async with self._outbox_of(message).unit_of_work() as uow:
                record_id, effect_key = self._record_id(message), self.key_of(message)
                taken = await uow.documents().find(record_id, partition_key=effect_key) is not None
        except OUTAGES:
            raise
        except Exception:  # noqa: BLE001 - the release reports what is wrong with the message
            return False
        if taken:
            self._report_copy(message, key)
        return taken

    def _report_copy(self, message: Message, key: str) -> Effect:
        """Report that a message took effect before, and return the outcome REPEATED."""
        self.report(message, key, MessageHandled, outcome="repeated")
        return Effect.REPEATED

    def key_of(self, message: Message, paths: KeyPaths | None = None) -> PartitionKey:
        """
        Return the partition key of the documents that a message changes.

        Args:
            message: the message that is handled.
            paths: the partition key paths of the container of the effect. Defaults to those of the message's outbox.

        Raises:
            MessageUnreadable: the policy has no `partition_key`, and the message has no session, or one that names no key of the container.
        """
        if self.policy.partition_key is not None:
            return self.policy.partition_key(message)
        if message.session_id is None:
            raise errors.MessageUnreadable(
                "The message has no session, so it does not say the partition key of its effect; give `partition_key=`."
            )
        paths = paths or self._outbox_of(message).key_paths
        if len(paths.levels) == 1:
            return message.session_id  # the session id is the key, even if it looks like a list of parts
        try:
            return paths.parse(message.session_id)
        except ValueError as error:
            raise errors.MessageUnreadable(
                f"The session id of the message names no partition key: {error} Or give `partition_key=`."
            ) from error

    def _record_id(self, message: Message) -> str:
        return f"{self._prefix}.{_short(message.message_id)}"


async def invoke(handler: Callable[[], Awaitable[None]], *, of: str, subject: str, within: timedelta) -> None:
    """
    Call a handler with a time limit. An error of the handler passes through.

    Args:
        handler: the handler with its arguments.
        of: the name of the consumer, for the error of a handler that commits its unit of work itself.
        subject: the subject of the message, for errors.
        within: how long the handler may take.

    Raises:
        HandlerTimeout: the handler took longer; HandlerStuck if the handler, or a thread that it started, still runs.
        MessageError: other code cancelled the handler, or the handler raised an exception that would end the process.
    """
    threads: set[Future[Any]] = set()

    async def call() -> None:
        calls_of_handler.set(threads)
        committer.set(f"The consumer {of!r}")
        try:
            await handler()
        except (Exception, asyncio.CancelledError, KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            # The error is, for example, SystemExit from `sys.exit()` in a library, or a panic in Rust code. If it passed, it would end the
            # process at each delivery of the message, and so stop the messages of all keys.
            raise errors.MessageError(
                f"The handler of {subject} raised {type(error).__name__}, which would have ended the process: {errors.error_text(error)}"
            ).with_traceback(error.__traceback__) from error

    task = asyncio.ensure_future(call())
    try:
        done, _ = await asyncio.wait({task}, timeout=within.total_seconds())
    except BaseException:  # this attempt is cancelled, because the lock is lost or the process ends
        await cancel(task)
        raise
    if done:
        try:
            return task.result()
        # Something that the handler awaited was cancelled, but not this attempt. Raise an ordinary error, so that the message counts as
        # failed: a cancellation would end the consumer's task.
        except asyncio.CancelledError as error:
            ended_by = f"The handler of {subject} ended because what it awaited was cancelled."
            raise errors.MessageError(ended_by).with_traceback(error.__traceback__) from error
    late = f"The handler of {subject} did not end within {within}"
    if not await cancel(task):
        raise HandlerStuck(f"{late}, and went on after it was cancelled. It must let CancelledError pass.")
    if threads:
        raise HandlerStuck(
            f"{late}, and a thread that it started goes on. Give the blocking call there a time-out of its own."
        )
    raise errors.HandlerTimeout(f"{late}.")


def _may_be_known(message: Message, *, created_at: datetime | None) -> bool:
    """
    Say whether the inbox may already have a record of a message, so that the consumer should read the inbox before it calls the handler.

    Without that read, the handler of a repeated message is called in vain: Cosmos DB refuses its batch, because the record exists. The inbox
    may have a record if the message was delivered before, or was sent long after its event was created, as by a replay.

    Args:
        message: the message that is to be handled.
        created_at: when the event of the message was created; None if the message does not say.
    """
    if message.delivery_count or created_at is None or message.enqueued_at is None:
        return True
    # Copies that are sent soon after the event are dropped by the broker's duplicate detection, so they cannot be in the inbox. Ignore the
    # sign of the difference, because the producer's clock may be wrong.
    return abs(message.enqueued_at - created_at) > REMEMBERED_FOR


@functools.lru_cache(maxsize=1024)
def _short(name: str) -> str:
    # The id of a record joins the consumer's name and the message's id with a dot. Hash a name that contains a dot, because otherwise two
    # pairs of names could form the same id.
    try:
        check_id(name)
        usable = len(name.encode()) <= _LONGEST_NAME and "." not in name
    except errors.UsageError:
        usable = False
    return name if usable else f"sha256-{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()}"
