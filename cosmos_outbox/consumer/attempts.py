"""Attempts: whether a message that failed is tried again, and when."""

from __future__ import annotations

from dataclasses import dataclass, field

from cosmos_outbox import errors
from cosmos_outbox.consumer.inbox import HandlerStuck
from cosmos_outbox.consumer.policy import Policy
from cosmos_outbox.retries import Backoff

_BETWEEN_WRITERS = Backoff(initial_seconds=0.05, maximum_seconds=1.0)
# how many attempts at one message are not counted because another program wrote first
_MOST_CONTENTION = 100
_CONTENTION = (errors.Conflict, errors.PreconditionFailed)
_PERMANENT = (errors.UsageError, errors.MessageUnreadable, errors.UnknownVersion, HandlerStuck)


@dataclass(slots=True)
class Attempts:
    """
    Counts the attempts at one message, and decides whether and when the next one is made.

    An attempt does not count if its commit was refused because another program wrote first: then the message is not at fault. It counts
    if no program changed the document since the attempt before, because then the handler itself causes the refusal, again and again.

    policy: the rules of the consumer.
    permanent: errors after which another attempt would fail again, in addition to those that are always permanent.
    number: how many attempts were made so far.
    contended: how many of them failed because another program wrote first.
    seen: the refusals so far: the id of the document, and the etag that another program gave it.
    """

    policy: Policy
    permanent: tuple[type[Exception], ...]
    number: int = 0
    contended: int = 0
    seen: set[tuple[str | None, str | None]] = field(default_factory=set)

    def count_contention(self, error: Exception) -> bool:
        """Say whether an error is a refusal because another program wrote first. If so, count it."""
        if not isinstance(error, _CONTENTION) or self.contended == _MOST_CONTENTION:
            return False
        # Only the first Conflict counts, because an id that is taken stays taken. If the handler causes more of them, other programs are
        # not the reason.
        trace = (None, None) if isinstance(error, errors.Conflict) else (error.document_id, error.actual)
        new = trace not in self.seen
        self.seen.add(trace)
        self.contended += new
        return new

    def asks_for_later(self, error: BaseException) -> bool:
        """
        Say whether an error asks for a later time: a TryLater, an error of `waits_for`, or an exception group of nothing but such errors.
        """
        if isinstance(error, BaseExceptionGroup):
            return all(map(self.asks_for_later, error.exceptions))
        awaited = isinstance(error, self.policy.waits_for) and not self._is_permanent(error)
        return awaited or isinstance(error, errors.TryLater)

    def _is_permanent(self, error: BaseException) -> bool:
        return isinstance(error, (*_PERMANENT, *self.permanent))

    def delay(self, error: Exception, *, met_writer: bool) -> float | None:
        """Return the seconds to wait before the next attempt; None if no attempt is left. `met_writer`: another program wrote first."""
        counted = self.number - self.contended
        if self._is_permanent(error):
            return None
        if met_writer:
            return _BETWEEN_WRITERS.delay(self.contended)
        return None if counted >= self.policy.attempts else self.policy.backoff.delay(counted)
