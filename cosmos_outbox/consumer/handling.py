"""
Handling: what a consumer does with one message, from delivery to settlement. It calls the handler, tries again, parks or dead-letters.
`attempts.py` decides whether and when a message is tried again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container, Sequence
from dataclasses import dataclass, replace
from typing import Protocol
from weakref import WeakKeyDictionary

from cosmos_outbox import errors, records
from cosmos_outbox.consumer.attempts import Attempts
from cosmos_outbox.consumer.inbox import OUTAGES, Effect, Inbox
from cosmos_outbox.consumer.parked_messages import ParkedMessage, message_of
from cosmos_outbox.consumer.policy import HALT_AFTER_KEYS, OnFailure
from cosmos_outbox.consumer.routes import unwrap
from cosmos_outbox.consumer.waiting_messages import Waits
from cosmos_outbox.message_format import Message
from cosmos_outbox.parking import ParkedEvent, Parking, Scope, SendResult
from cosmos_outbox.parking.parked_documents import EventStatus, failure_of
from cosmos_outbox.partition_key import key_text
from cosmos_outbox.ports import Complete, DeadLetter, Retry, Settlement
from cosmos_outbox.retries import Backoff

# While the consumer is halted, because its handlers fail on all messages, a failed message waits up to 4 s. Meanwhile messages of other keys
# are tried, because only an attempt shows whether the handlers work again.
_WHILE_HALTED = Backoff(initial_seconds=4.0, maximum_seconds=4.0)


class Holding(Protocol):
    """The part of a `HeldSession` that `Handling` uses. While a process holds a session, `Handling` gets the same object for it."""

    @property
    def id(self) -> str | None: ...

    async def pause(self, seconds: float, /) -> None:
        """Wait before another attempt at a message. Meanwhile the process may handle another session."""
        ...


@dataclass(slots=True)
class _SessionState:
    """What a consumer remembers of a session while this process holds it. No other process handles messages of the session meanwhile."""

    parked: bool | None = None  # whether the key is parked; None until the parked store was asked
    # Whether the broker's delivery count of the next message counts only attempts in which a process died. This
    # is True for the first message after this process got the session. Later messages may have been delivered
    # ahead to other processes, and these deliveries count too. Without sessions this is always False, because
    # each message that is given back counts as delivered.
    counts_losses: bool = True


class Handling:
    """
    The handler that a SessionProcessor calls with the messages of one consumer. A release gives it the messages of a parked key.

    Args:
        inbox: calls the consumer's handlers, and commits the effect of each message once.
        parking: holds the messages of parked keys; required if the policy is to park.

    Raises:
        ConfigurationError: there is no parked store, and the policy is to park.
    """

    def __init__(self, inbox: Inbox, parking: Parking | None) -> None:
        if parking is None and inbox.policy.on_failure is OnFailure.PARK:
            raise errors.ConfigurationError(
                f"The consumer {inbox.name!r} has to park messages that it cannot handle, but has no parked store: "
                "name one, or choose on_failure='dead_letter'."
            )
        self._inbox, self._parking = inbox, parking
        self._name, self._routes, self._policy = inbox.name, inbox.routes, inbox.policy
        self._notify = inbox.notify
        self.scope = Scope(processor=inbox.name, container=inbox.source)
        self._states: WeakKeyDictionary[Holding, _SessionState] = WeakKeyDictionary()
        self.waits = Waits(inbox)
        # How many keys were parked, or messages dead-lettered, since a message last took effect.
        self._given_up = 0
        # Keys that an operator may have parked while this process has their session: the parked store is asked again for these.
        self.seen_parked: Container[str] = ()

    @property
    def halted(self) -> bool:
        """Say whether the consumer is halted: its handlers fail on all messages, so it parks no more keys, and messages wait."""
        return self._given_up >= HALT_AFTER_KEYS

    @property
    def delayed(self) -> bool:
        """Say whether the last message had to wait because Cosmos DB was unavailable."""
        return self.waits.outages > 0

    async def __call__(self, message: Message, session: Holding) -> Settlement:
        """
        Handle a message and return how to settle it. A message that took effect, or is in the parked store, is
        completed. For any other message, the consumer's `Policy` decides.
        """
        message = self._with_key(message)
        state = _SessionState(counts_losses=False)
        if session.id is not None:
            state = self._states.setdefault(session, _SessionState())
        try:
            key = self._key_of(message)
        except Exception as error:  # noqa: BLE001 - also what the caller's function raises
            return self._dead_letter(message, None, error)
        try:
            settlement = await self._handle(message, key, state, session)
        except errors.RequestTooLarge as error:
            # The key of the message is parked, and the message is too large for the parked store.
            settlement = self._dead_letter(message, key, error, reason="TooLargeToPark")
        except Exception as error:  # noqa: BLE001 - an outage, or whatever keeps the parked store from holding a message
            return self.waits.for_store(message, key, error)
        self.waits.outages = 0
        if not isinstance(settlement, Retry):
            self.waits.known.pop(message.message_id, None)
        state.counts_losses = False
        return settlement

    async def release(
        self, held: Sequence[ParkedEvent], ensure_claimed: Callable[[], Awaitable[None]]
    ) -> SendResult:
        """
        Handle the messages of a parked key that an operator releases, in order, and stop at the first message that fails.

        Each message is tried as often as the policy says. `ensure_claimed` raises an error once a later release of the key began.
        """
        for number, parked in enumerate(held):
            if number:
                await ensure_claimed()
            message = self._with_key(message_of(parked.event, edited=parked.original is not None))
            attempts = self._attempts_at(message)
            try:
                effect = await self._attempt(
                    message, parked.event["partitionKey"], attempts, asyncio.sleep, ensure_claimed
                )
            except OUTAGES:
                raise
            except Exception as error:  # noqa: BLE001 - whatever a handler raises
                return SendResult(events=number, refusal=error, attempts=attempts.number)
            if effect is Effect.UNKNOWN:
                return SendResult(events=number, refusal=_unknown(message))
        return SendResult(events=len(held))

    def _attempts_at(self, message: Message) -> Attempts:
        return Attempts(self._policy, self._routes.permanent(message))

    async def _attempt(
        self,
        message: Message,
        key: str,
        attempts: Attempts,
        pause: Callable[[float], Awaitable[None]],
        ensure_claimed: Callable[[], Awaitable[None]] | None = None,
    ) -> Effect:
        """
        Have a message take effect, in several attempts if necessary. Return the outcome, or raise the error of the last attempt.

        Args:
            message: the message to handle.
            key: the partition key within which messages are in order.
            attempts: counts the attempts at the message.
            pause: waits before another attempt.
            ensure_claimed: raises an error once a later release of the key began. Only a release passes this function, and the messages of
                a release are handled even while the consumer is halted. Defaults to None: the caller is no release.
        """
        released = ensure_claimed is not None
        while True:
            attempts.number += 1
            try:
                effect = await self._inbox.take(message, key, attempt=attempts.number, released=released)
            except OUTAGES:
                raise
            except Exception as error:
                if not released and attempts.asks_for_later(error):
                    raise
                contended = attempts.count_contention(error)
                halted = self.halted and not released
                delay = None if halted else attempts.delay(error, met_writer=contended)
                told = {"attempt": attempts.number, "delay_seconds": delay, "error": error}
                handler = next(iter(errors.frames_of(error)), None)
                self._inbox.report(message, key, records.AttemptFailed, handler=handler, **told)
                if delay is None:
                    raise
                await (asyncio.sleep if contended else pause)(delay)
                if ensure_claimed is not None:
                    await ensure_claimed()
                continue
            if effect is Effect.TAKEN:
                self._given_up = 0
                if message.subject in self.waits.circuits:
                    self.waits.took_effect(message)
            return effect

    def _with_key(self, message: Message) -> Message:
        message = unwrap(message)
        return replace(message, idempotency_key=f"{self._name}:{message.message_id}")

    async def _hold(self, parking: Parking, message: Message, key: str, state: _SessionState) -> bool:
        """
        If the key of a message is parked, put the message at the end of the key's queue, unless it took effect before.

        Return whether the key is parked.
        """
        if state.parked is None or (not state.parked and key in self.seen_parked):
            state.parked = await parking.is_key_parked(key, self.scope)
        if not state.parked:
            return False
        # Do not park a message again that took effect before: when the key is released, its inbox record may have expired, and the message
        # would take effect a second time.
        if await self._inbox.was_taken(message, key):
            return True
        held = await parking.hold(key, [ParkedMessage(message, key)], scope=self.scope)
        if held.not_held:  # an operator has released the key meanwhile, so handle the message
            state.parked = False
            return False
        outcome = {None: "held", EventStatus.SENT: "repeated"}.get(held.decided, "dropped")
        self._inbox.report(message, key, records.MessageHandled, outcome=outcome)
        return True

    async def _handle(self, message: Message, key: str, state: _SessionState, session: Holding) -> Settlement:
        if self._parking is not None and await self._hold(self._parking, message, key, state):
            return Complete()
        often = message.delivery_count >= self._policy.max_deliveries
        if often and state.counts_losses and message.subject in self._routes.subjects:
            # Park the message before the broker's own limit of deliveries is reached. Otherwise the broker dead-letters the message, and
            # later messages of its key overtake it. Do so even while the consumer is halted, because the broker goes on counting.
            lost = errors.DeliveredTooOften(
                f"{message.subject} {message.message_id!r} was delivered {message.delivery_count} times without an outcome. A handler, "
                "perhaps of another message, blocks the event loop for longer than the lock, or ends the process: correct the handler, "
                "then release the key."
            )
            return await self._give_up(message, key, state, lost, message.delivery_count)
        if message.subject in self.waits.circuits and (waits := self.waits.for_others(message, key)):
            return waits
        try:
            return await self._take(message, key, state, session)
        finally:
            if message.subject in self.waits.circuits:
                self.waits.end_try(message)

    async def _take(self, message: Message, key: str, state: _SessionState, session: Holding) -> Settlement:
        """Handle a message, and return how to settle it. After a failure, have the message tried later, or give it up."""
        attempts = self._attempts_at(message)
        try:
            effect = await self._attempt(message, key, attempts, session.pause)
        except OUTAGES:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a handler raises
            failed: Exception = error
            if attempts.asks_for_later(error):
                if (later := self.waits.for_later(message, key, error)) is not None:
                    return later
                failed = self.waits.too_long(message, error)
                attempts.number = self.waits.known[message.message_id].times
            if self.halted:
                self._notify(records.ConsumerHalted(consumer=self._name, keys=self._given_up, error=failed))
                return Retry(after_seconds=_WHILE_HALTED.delay(1), counted=False)
            return await self._give_up(message, key, state, failed, attempts.number)
        if effect is Effect.UNKNOWN:
            return self._dead_letter(message, key, _unknown(message), reason="UnknownSubject")
        return Complete()

    async def _give_up(
        self, message: Message, key: str, state: _SessionState, error: Exception, attempts: int
    ) -> Settlement:
        """Give up a message that cannot be handled: park its key, or move only the message to the dead-letter queue."""
        counts = False
        # Count the key before the first `await`: while this task waits, handlers of other sessions may fail
        # and have to see the count.
        self._given_up += 1
        try:
            # If another process has handled the message meanwhile, this handler failed because of that process's writes: do not park.
            if await self._inbox.was_taken(message, key):
                return Complete()
            if self._parking is None or self._policy.on_failure is OnFailure.DEAD_LETTER:
                # A dead-lettered message counts like a parked key: if the handlers fail on all messages, the consumer halts.
                counts = True
                return self._dead_letter(message, key, error)
            failure = failure_of(message.message_id, error, attempts=attempts)
            try:
                held = await self._parking.hold(key, [ParkedMessage(message, key)], failure, scope=self.scope)
            except errors.RequestTooLarge:
                return self._dead_letter(message, key, error, reason="TooLargeToPark")
            if held.decided is not None or not held.parked:
                # An operator dropped this message before, or had it sent with another payload. The parked
                # store has a record of that under the message's id, so the message cannot be parked again.
                return self._dead_letter(message, key, error, reason="DroppedBefore")
            counts = True
            state.parked = True
        finally:
            self._given_up -= not counts
        told = {"reason": failure.reason, "attempts": attempts, "error": error}
        self._inbox.report(message, key, records.MessageGivenUp, outcome="parked", **told)
        return Complete()

    def _dead_letter(
        self, message: Message, key: str | None, error: Exception, *, reason: str | None = None
    ) -> DeadLetter:
        reason = reason or type(error).__name__
        told = {"reason": reason, "error": error}
        self._inbox.report(message, key, records.MessageGivenUp, outcome="dead-lettered", **told)
        return DeadLetter(reason=reason, description=errors.error_text(error))

    def _key_of(self, message: Message) -> str:
        if not message.message_id:
            raise errors.MessageUnreadable(
                "The message has no id, so it cannot be distinguished from a repetition: have its sender set one."
            )
        return message.session_id or key_text(self._inbox.key_of(message))


def _unknown(message: Message) -> errors.MessageError:
    return errors.MessageError(f"No handler takes the subject {message.subject!r}: register one.")
