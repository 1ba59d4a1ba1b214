"""
Run a consumer in a test until every message of its subscription is settled or waits for a later time. The test does not wait for that
time: it moves its clock. `relaying.py` runs the worker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from enum import StrEnum

from cosmos_outbox.adapters.memory import MemoryContainer, MemorySubscription
from cosmos_outbox.consumer import Consumer, Handling
from cosmos_outbox.consumer.routes import unwrap
from cosmos_outbox.consumer.waiting_messages import Wait, Waits
from cosmos_outbox.errors import LockLost, error_text
from cosmos_outbox.message_format import Message
from cosmos_outbox.parking import Parking
from cosmos_outbox.ports import Retry, Session, Settlement, Store, Subscription
from cosmos_outbox.records import (
    AttemptFailed,
    ConsumerHalted,
    ConsumingDelayed,
    Hook,
    MessageGivenUp,
    MessageHandled,
    MessageSettled,
    ReceivingFailed,
    Record,
    SessionClosed,
)
from cosmos_outbox.sessions import HeldSession, SessionOptions, SessionProcessor
from cosmos_outbox.write.outbox import Outbox
from cosmos_outbox_testing.port_calls import Around, wrap_port
from cosmos_outbox_testing.running import AT_ONCE, MOMENT, Allows, Progress, require_no_failures

# A delay in seconds that is longer than any test, so the message stays until the test moves the clock.
_UNTIL_THE_END = 1e9


class Outcome(StrEnum):
    """What became of one delivery of a message to a consumer."""

    HANDLED = "handled"  # the handler committed the effect of the message
    REPEATED = "repeated"  # an earlier delivery had taken effect, so the handler was not called
    IGNORED = "ignored"  # the consumer has no handler for the message's subject
    PARKED = "parked"  # the handler failed, and the message's key is parked
    DROPPED = "dropped"  # an operator dropped the message, and its key is still parked
    HELD = "held"  # the message's key was parked already, so the message is held behind the failed one
    DEAD_LETTERED = "dead-lettered"
    # The message will be delivered again. Either a store cannot be used, or the handlers fail on every key, or the handler asked to
    # be called later. The message is then due when the test has moved the clock by `settlement.after_seconds`.
    WAITING = "waiting"


_FAILED = {Outcome.PARKED, Outcome.HELD, Outcome.DEAD_LETTERED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """
    One delivery of a message to a consumer.

    message: the message as it was delivered. A test may deliver it again.
    settlement: how the consumer settled the message at the broker.
    errors: the errors that the attempts raised, in order. If there was no attempt, the error because of which the message was parked
        or dead-lettered.
    """

    message: Message
    outcome: Outcome
    settlement: Settlement
    errors: tuple[BaseException, ...]


@dataclass(slots=True)
class Subscribed:
    """
    The subscription of a consumer in memory, and what the consumer has received from it.

    subscription: the subscription.
    messages: how many messages of the topic were copied to the subscription so far.
    delivered: each delivery and its outcome, in order.
    due: for each session whose handler asked for a later time, the time until which its messages wait.
    """

    subscription: MemorySubscription = field(default_factory=MemorySubscription)
    messages: int = 0
    delivered: list[Delivered] = field(default_factory=list)
    due: dict[str, float] = field(default_factory=dict)

    def name(self, message: Message) -> str:
        """Return the key under which `due` has a message: the id of its session or, without sessions, the id of the message."""
        return message.session_id or "" if self.subscription.with_sessions else unwrap(message).message_id

    def keep_waiting(self, message: Message, retry: Retry, told: Sequence[Record], now: float) -> Retry:
        """
        Return how to retry a message: at the time for which its handler asked, or at once if its handler asked for no time.

        A time for which a handler asked is noted in `due`. The broker in memory keeps the message until the test moves the clock.
        """
        if not any(isinstance(one, ConsumingDelayed) and one.outcome != "outage" for one in told):
            return replace(retry, after_seconds=0.0)
        self.due[self.name(message)] = now + retry.after_seconds
        return replace(retry, after_seconds=_UNTIL_THE_END)


def handling_of(
    consumer: Consumer, outbox: Outbox, parking: Parking, notify: Hook, around: Sequence[Around]
) -> Handling:
    """
    Return the object that calls the handlers of a consumer. In tests, it does not wait between attempts.

    A consumer without an outbox gets the given outbox. If a consumer has an outbox of its own on a container in memory, the calls of
    that container also pass through the functions of `around`.

    Raises:
        ConfigurationError: as in `Consumer.handling`.
    """
    quick = copy(consumer)
    quick.policy = replace(consumer.policy, backoff=AT_ONCE)
    quick.bind(outbox)

    # Wrap a consumer's own MemoryContainer here, because the harness wraps only the store of its own outbox.
    def wrap(store: Store) -> Store:
        return wrap_port(store, "store", around) if isinstance(store, MemoryContainer) else store

    source = f"topic/{consumer.name}"
    return quick.handling(source=source, parking=parking, notify=notify, through=lambda own: own.over(wrap))


async def consume_everything(
    consumer: Consumer,
    outbox: Outbox,
    subscribed: Subscribed,
    *,
    around: Sequence[Around],
    adapted: Callable[[Subscription], Subscription],
    parking: Parking,
    notify: Hook,
    allows: Allows,
    waits: dict[str, Wait],
    now: Callable[[], float],
) -> None:
    """
    Run one process of a consumer until no message waits. First, end the locks that an earlier process may have left.

    Raises:
        MessagesFailed: messages ended parked, held or dead-lettered, and `allows` does not allow their errors.
        Stuck: the consumer failed many times in a row, or made no progress for a long time.
        ConfigurationError: as in `Consumer.handling`.
    """
    subscription, told = subscribed.subscription, dict[str, list[Record]]()
    # Few attempts are enough, because each commit is retried for two seconds before it fails.
    progress = Progress(attempts=3)

    def hear(record: Record) -> None:
        _see(progress, record)
        told.setdefault(getattr(record, "message_id", ""), []).append(record)
        notify(record)

    async def is_done() -> bool:
        return all(map(rests, subscription.waiting))

    handling = handling_of(consumer, outbox, parking, hear, around)
    options = SessionOptions(session_idle_timeout=MOMENT, backoff=AT_ONCE, max_waiting_sessions=10_000)
    # Read the clock only once, because a running clock would show another time at each read. This call delivers the
    # messages whose time has come by now. Messages that are due later wait for the next call of `consume_all`.
    called = {name for name, due in subscribed.due.items() if due <= now()}
    for name in called:
        del subscribed.due[name]
    inbox = handling.waits.inbox
    handling.waits = _Waits(inbox, now, waits, due=lambda message: subscribed.name(message) in called)

    def rests(message: Message) -> bool:
        return subscribed.name(message) in subscribed.due

    async def handle(message: Message, session: HeldSession) -> Settlement:
        # The records that the consumer reports name the message by this id.
        known_as = unwrap(message).message_id
        told[known_as] = []
        if rests(message):
            return Retry(after_seconds=_UNTIL_THE_END, counted=False)
        settlement = await handling(message, session)
        records = told.pop(known_as)
        subscribed.delivered.append(_delivery_of(message, settlement, records))
        if isinstance(settlement, Retry):
            return subscribed.keep_waiting(message, settlement, records, now())
        return settlement

    for message in subscription.waiting:
        subscription.lose_lock(message.session_id or "" if subscription.with_sessions else "")
    processor = SessionProcessor(adapted(_Wrapping(subscription, around)), handle, options, hooks=(hear,))
    before = len(subscribed.delivered)
    await progress.run(processor, until=is_done)
    require_no_failures(_failures(subscribed.delivered[before:]), allows)


@dataclass
class _Waits(Waits):
    """
    The waits of messages in a test. A message whose time has come is tried at once, even if the consumer pauses all messages with its
    subject after a failure (open circuit).

    Without this, such a message might wait for ever: another message with the subject would be tried before it each time.
    """

    due: Callable[[Message], bool] = bool

    def for_others(self, message: Message, key: str) -> Retry | None:
        return None if self.due(message) else super().for_others(message, key)


def _failures(delivered: Sequence[Delivered]) -> list[tuple[str, BaseException | None]]:
    """Describe the deliveries that ended parked, held or dead-lettered. Return each description with the error of the delivery."""
    failures = []
    for one in delivered:
        if one.outcome in _FAILED:
            error = one.errors[-1] if one.errors else None
            why = "." if error is None else f": {type(error).__name__}: {error_text(error)}"
            of = one.message
            said_of = f"{of.subject} {of.message_id!r} of session {of.session_id!r} ended {one.outcome}{why}"
            failures.append((said_of, error))
    return failures


def _see(progress: Progress, record: Record) -> None:
    match record:
        case ConsumingDelayed(outcome="later" | "circuit"):
            progress.note_move()
        case (
            ConsumingDelayed(error=error)
            | ConsumerHalted(error=error)
            | ReceivingFailed(error=error)
            | SessionClosed(error=LockLost() as error)
        ):
            progress.note_failure(error)
        case MessageSettled(outcome=outcome) if outcome != "retry":
            progress.note_move()


def _delivery_of(message: Message, settlement: Settlement, records: Sequence[Record]) -> Delivered:
    told = [record.outcome for record in records if isinstance(record, MessageHandled | MessageGivenUp)]
    outcome = Outcome.WAITING if isinstance(settlement, Retry) else Outcome(told[-1])
    errors = tuple(record.error for record in records if isinstance(record, AttemptFailed | ConsumingDelayed))
    errors = errors or tuple(record.error for record in records if isinstance(record, MessageGivenUp))
    return Delivered(message=message, outcome=outcome, settlement=settlement, errors=errors)


class _Wrapping:
    """A subscription that passes each call through the functions of `around`. The calls of its sessions pass through them, too."""

    def __init__(self, subscription: Subscription, around: Sequence[Around]) -> None:
        self._subscription, self._around = wrap_port(subscription, "subscription", around), around

    async def accept(self, wait_seconds: float) -> Session | None:
        session = await self._subscription.accept(wait_seconds)
        return session and wrap_port(session, "subscription", self._around)
