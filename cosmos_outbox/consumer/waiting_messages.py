"""
Waiting messages: messages that a process cannot handle now, because Cosmos DB is unavailable or their handler asks to get them later.

This module remembers since when each message waits, and decides for how long it waits next. `circuit.py` decides when all messages of a
subject wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from cosmos_outbox import errors, records
from cosmos_outbox.consumer.circuit import Circuit
from cosmos_outbox.consumer.inbox import Inbox
from cosmos_outbox.message_format import Message
from cosmos_outbox.ports import Retry
from cosmos_outbox.retries import Backoff

_BETWEEN = Backoff(initial_seconds=0.5, maximum_seconds=30.0)
# If one message meets an outage while other messages take effect, its pauses stop growing at this attempt: each is at most 8 s.
_MOST_ALONE = 5
_MOST_MESSAGES = 10_000  # the most waiting messages that a process remembers


@dataclass(slots=True)
class Wait:
    """
    How long and how often a message has had to wait.

    since: when the message had to wait for the first time.
    asked_at: when its handler first asked to get it later; None if it never did.
    times: how often the message had to wait.
    """

    since: float
    asked_at: float | None = None
    times: int = 0


def _loop_time() -> float:
    return asyncio.get_running_loop().time()


@dataclass(slots=True)
class Waits:
    """
    The messages that wait in one process, and for how long.

    inbox: the inbox of the consumer, which reports each wait.
    now: a function that returns the time in seconds. Defaults to the clock of the running loop.
    known: the messages that wait, by their ids.
    circuits: the circuit breakers, by subject. A subject has one from the first message whose handler asks to get it again later, until a
        message of the subject takes effect.
    outages: how often in a row a message had to wait because Cosmos DB was unavailable.
    """

    inbox: Inbox
    now: Callable[[], float] = _loop_time
    known: dict[str, Wait] = field(default_factory=dict)
    circuits: dict[str, Circuit] = field(default_factory=dict)
    outages: int = 0

    def for_store(self, message: Message, key: str, error: Exception) -> Retry:
        """
        Return for how long a message waits because Cosmos DB is unavailable: longer each time, and at least as long as Cosmos DB asked for.
        """
        wait = self._more(message)
        self.outages += 1
        rank = max(self.outages, min(wait.times, _MOST_ALONE))
        delay = _BETWEEN.delay(rank, at_least=_retry_after(error))
        return self._wait(message, key, wait, error, outcome="outage", delay_seconds=delay)

    def for_later(self, message: Message, key: str, error: Exception) -> Retry | None:
        """
        Return for how long a message waits whose handler asked to be called later; None if the message has waited for `longest_wait`.
        """
        now, wait = self.now(), self._more(message)
        circuit = self.circuits.setdefault(message.subject, Circuit(error))
        if circuit.count_ask(key, error, now):
            self._report_move(message.subject, circuit, "opened")
        wait.asked_at = now if wait.asked_at is None else wait.asked_at
        left = wait.asked_at + self.inbox.policy.longest_wait.total_seconds() - now
        delay = min(left, _BETWEEN.delay(wait.times, at_least=_retry_after(error)))
        if left <= 0:
            return None
        return self._wait(message, key, wait, error, outcome="later", delay_seconds=delay)

    def for_others(self, message: Message, key: str) -> Retry | None:
        """
        Return for how long a message waits because the handler asked to be called later for other messages with this subject. Return None
        if the handler may be called now.
        """
        circuit = self.circuits[message.subject]
        new = getattr(self.known.get(message.message_id), "asked_at", None) is None
        if not (delay := circuit.delay(message.message_id, self.now(), new=new)):
            return None
        wait = self._more(message)
        return self._wait(message, key, wait, circuit.error, outcome="circuit", delay_seconds=delay)

    def end_try(self, message: Message) -> None:
        """End the attempt at a message after its handler has returned or failed, so that another message of its subject may be tried."""
        circuit = self.circuits[message.subject]
        if circuit.probe == message.message_id:
            circuit.probe = None

    def took_effect(self, message: Message) -> None:
        """Close the circuit breaker of a message's subject, because the message took effect."""
        circuit = self.circuits.pop(message.subject)
        if circuit.opened_at is not None:
            self._report_move(message.subject, circuit, "closed")

    def too_long(self, message: Message, error: Exception) -> errors.TryLater:
        """Return the error for a message whose handler has asked to get it again later for longer than `longest_wait`."""
        longest = self.inbox.policy.longest_wait
        failed = errors.TryLater(
            f"The handler of {message.subject} {message.message_id!r} asked for a later time for {longest} (longest_wait), at last "
            f"with {type(error).__name__}: {errors.error_text(error)}. Release the key once it can be handled."
        )
        failed.__cause__ = error
        return failed.with_traceback(error.__traceback__)

    def _more(self, message: Message) -> Wait:
        """
        Note that a message has to wait once more, and return since when and how often it has waited. If more messages are remembered than
        the limit allows, forget the message that was noted the longest time ago.
        """
        wait = self.known.pop(message.message_id, None) or Wait(since=self.now())
        self.known[message.message_id] = wait
        wait.times += 1
        if len(self.known) > _MOST_MESSAGES:
            del self.known[next(iter(self.known))]
        return wait

    def _wait(self, message: Message, key: str, wait: Wait, error: Exception, **told: Any) -> Retry:
        waited = self.now() - wait.since
        self.inbox.report(message, key, records.ConsumingDelayed, waited_seconds=waited, error=error, **told)
        return Retry(after_seconds=told["delay_seconds"], counted=False)

    def _report_move(self, subject: str, circuit: Circuit, outcome: Literal["opened", "closed"]) -> None:
        told: dict[str, Any] = {"consumer": self.inbox.name, "subject": subject, "error": circuit.error}
        told |= {"keys": len(circuit.keys), "open_seconds": self.now() - (circuit.opened_at or 0.0)}
        self.inbox.notify(records.CircuitMoved(outcome=outcome, **told))


def _retry_after(error: Exception) -> float | None:
    return error.retry_after if isinstance(error, errors.OutboxError) else None
