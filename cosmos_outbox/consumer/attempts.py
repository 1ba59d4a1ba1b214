"""Attempts: whether a message that failed is tried again, and when."""

from __future__ import annotations

from dataclasses import dataclass, field

from cosmos_outbox import errors
from cosmos_outbox.consumer.inbox import HandlerStuck
from cosmos_outbox.consumer.policy import Policy
from cosmos_outbox.retries import Backoff

_BETWEEN_WRITERS = Backoff(initial_seconds=0.05, maximum_seconds=1.0)
_MOST_CONTENTION = 100  # attempts at a message whose commits other writers spoil
_CONTENTION = (errors.Conflict, errors.PreconditionFailed)
_PERMANENT = (errors.UsageError, errors.MessageUnreadable, errors.UnknownVersion, HandlerStuck)


@dataclass(slots=True)
class Attempts:
    """
    The attempts at one message.

    An attempt that failed because another writer was first is no fault of the message. Where no other writer changed the document
    since the last attempt, the handler would fail again and again.

    policy: of the consumer.
    permanent: errors that another attempt would raise again, besides those that always are.
    number: of attempts so far.
    contended: how many of them another writer spoilt.
    """

    policy: Policy
    permanent: tuple[type[Exception], ...]
    number: int = 0
    contended: int = 0
    seen: set[tuple[str | None, str | None]] = field(default_factory=set)

    def count_contention(self, error: Exception) -> bool:
        """Count an error if another writer caused it, and say whether it did."""
        if not isinstance(error, _CONTENTION) or self.contended == _MOST_CONTENTION:
            return False
        # An id stays taken. If a handler meets taken ids again and again, it creates those documents itself.
        trace = (None, None) if isinstance(error, errors.Conflict) else (error.document_id, error.actual)
        new = trace not in self.seen
        self.seen.add(trace)
        self.contended += new
        return new

    def asks_for_later(self, error: BaseException) -> bool:
        """
        Say whether an error asks for a later time: a TryLater, an error that the consumer waits out, or a group of such errors alone.
        """
        if isinstance(error, BaseExceptionGroup):
            return all(map(self.asks_for_later, error.exceptions))
        awaited = isinstance(error, self.policy.waits_for) and not self._is_permanent(error)
        return awaited or isinstance(error, errors.TryLater)

    def _is_permanent(self, error: BaseException) -> bool:
        return isinstance(error, (*_PERMANENT, *self.permanent))

    def delay(self, error: Exception, *, met_writer: bool) -> float | None:
        """Return how long to wait before the next attempt; None if the message has failed."""
        counted = self.number - self.contended
        if self._is_permanent(error):
            return None
        if met_writer:
            return _BETWEEN_WRITERS.delay(self.contended)
        return None if counted >= self.policy.attempts else self.policy.backoff.delay(counted)
