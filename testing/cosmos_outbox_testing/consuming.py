"""
Run a consumer's processor until every message of its subscription is settled or waits for a later time. No real time is waited for.
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

_UNTIL_THE_END = 1e9  # seconds; longer than any wait of a test


class Outcome(StrEnum):
    """What became of one delivery of a message to a consumer."""

    HANDLED = "handled"  # the message took effect
    REPEATED = "repeated"  # the message had taken effect before
    IGNORED = "ignored"  # no handler takes the message's subject
    PARKED = "parked"  # the handler failed, and the message's key is parked
    DROPPED = "dropped"  # an operator dropped the message, and its key is still parked
    HELD = "held"  # the message's key was parked before
    DEAD_LETTERED = "dead-lettered"
    # The message will be delivered again: because a store cannot be used, because the handlers fail on every key, or because its
    # handler asked for a later time. In the last case it is delivered again when the clock has moved on by `settlement.after_seconds`.
    WAITING = "waiting"


_FAILED = {Outcome.PARKED, Outcome.HELD, Outcome.DEAD_LETTERED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """
    One delivery of a message to a consumer.

    message: the message as it was delivered. A test may deliver it again.
    settlement: how the consumer settled the message at the broker.
    errors: the errors that the attempts raised, in order. If there was no attempt: the error for which the message was given up.
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
    due: the time until which a session waits, by the name of the session, if its handler asked for a later time.
    """

    subscription: MemorySubscription = field(default_factory=MemorySubscription)
    messages: int = 0
    delivered: list[Delivered] = field(default_factory=list)
    due: dict[str, float] = field(default_factory=dict)

    def name(self, message: Message) -> str:
        """Return by which name `due` knows a message: the id of its session or, without sessions, the id of the message."""
        return message.session_id or "" if self.subscription.with_sessions else unwrap(message).message_id

    def keep_waiting(self, message: Message, retry: Retry, told: Sequence[Record], now: float) -> Retry:
        """
        Return how to retry a message: at the time for which its handler asked, or at once if its handler asked for none.

        In the first case the time is noted in `due`, and the broker in memory keeps the message until the clock is moved.
        """
        if not any(isinstance(one, ConsumingDelayed) and one.outcome != "outage" for one in told):
            return replace(retry, after_seconds=0.0)
        self.due[self.name(message)] = now + retry.after_seconds
        return replace(retry, after_seconds=_UNTIL_THE_END)


def handling_of(
    consumer: Consumer, outbox: Outbox, parking: Parking, notify: Hook, around: Sequence[Around]
) -> Handling:
    """
    Return the handling of a consumer for tests, which does not wait between attempts.

    A consumer that has no outbox of its own gets the given one. If it has one on a container in memory, the calls of that container
    pass through the functions of `around`, too.

    Raises:
        ConfigurationError: as in `Consumer.handling`.
    """
    quick = copy(consumer)
    quick.policy = replace(consumer.policy, backoff=AT_ONCE)
    quick.bind(outbox)

    def wrap(store: Store) -> Store:  # the harness has wrapped the store of its own outbox already
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
    Run one process of a consumer until no message waits. The locks of an earlier process end before.

    Raises:
        MessagesFailed: messages ended parked, held or dead-lettered, and `allows` does not allow their errors.
        Stuck: the consumer failed many times in a row, or made no progress for a long time.
        ConfigurationError: as in `Consumer.handling`.
    """
    subscription, told = subscribed.subscription, dict[str, list[Record]]()
    progress = Progress(attempts=3)  # failures in a row; each commit has been retried for a while already

    def hear(record: Record) -> None:
        _see(progress, record)
        told.setdefault(getattr(record, "message_id", ""), []).append(record)
        notify(record)

    async def is_done() -> bool:
        return all(map(rests, subscription.waiting))

    handling = handling_of(consumer, outbox, parking, hear, around)
    options = SessionOptions(session_idle_timeout=MOMENT, backoff=AT_ONCE, max_waiting_sessions=10_000)
    # Read the clock only once, because it may run. Messages whose time has come by now are delivered in this call. Messages that are
    # due later wait for the next call.
    called = {name for name, due in subscribed.due.items() if due <= now()}
    for name in called:
        del subscribed.due[name]
    inbox = handling.waits.inbox
    handling.waits = _Waits(inbox, now, waits, due=lambda message: subscribed.name(message) in called)

    def rests(message: Message) -> bool:
        return subscribed.name(message) in subscribed.due

    async def handle(message: Message, session: HeldSession) -> Settlement:
        known_as = unwrap(message).message_id  # the id by which records name the message
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
    The waits of messages in a test. A message whose time has come is tried at once, even if the circuit of its subject is open.

    Otherwise it might wait for ever, because other messages of the subject would be tried before it each time and ask for a later time.
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
    """A subscription that passes each call, also of its sessions, through the functions of `around`."""

    def __init__(self, subscription: Subscription, around: Sequence[Around]) -> None:
        self._subscription, self._around = wrap_port(subscription, "subscription", around), around

    async def accept(self, wait_seconds: float) -> Session | None:
        session = await self._subscription.accept(wait_seconds)
        return session and wrap_port(session, "subscription", self._around)
