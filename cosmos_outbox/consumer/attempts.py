"""
Attempts: whether a message that failed is tried again, and when. `handling.py` parks or dead-letters a message that has no attempt left.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cosmos_outbox import errors
from cosmos_outbox.consumer.inbox import HandlerStuck
from cosmos_outbox.consumer.policy import Policy
from cosmos_outbox.retries import Backoff

_BETWEEN_WRITERS = Backoff(initial_seconds=0.05, maximum_seconds=1.0)
# An attempt does not count if another program wrote first. For one message, at most this many attempts do not count.
_MOST_CONTENTION = 100
_CONTENTION = (errors.Conflict, errors.PreconditionFailed)
_PERMANENT = (errors.UsageError, errors.MessageUnreadable, errors.UnknownVersion, HandlerStuck)


@dataclass(slots=True)
class Attempts:
    """
    Counts the attempts at one message, and decides whether and when the next one is made.

    An attempt does not count if its commit was refused because another program wrote first: then the message is not at fault. But the
    attempt counts if no program changed the document since the previous attempt: then the handler itself causes the refusals.

    policy: the rules of the consumer.
    permanent: errors after which another attempt would fail again, in addition to those that are always permanent.
    number: how many attempts were made so far.
    contended: how many attempts failed because another program wrote first.
    seen: the refusals so far, each as the id of the document and the etag that another program gave it.
    """

    policy: Policy
    permanent: tuple[type[Exception], ...]
    number: int = 0
    contended: int = 0
    seen: set[tuple[str | None, str | None]] = field(default_factory=set)

    def count_contention(self, error: Exception) -> bool:
        """Say whether Cosmos DB refused a commit because another program wrote first. If so, count the attempt as contended."""
        if not isinstance(error, _CONTENTION) or self.contended == _MOST_CONTENTION:
            return False
        # Only the first Conflict can be the fault of another program, which created the document first. The id stays taken, so if the
        # handler creates it again and again, the handler is at fault.
        trace = (None, None) if isinstance(error, errors.Conflict) else (error.document_id, error.actual)
        new = trace not in self.seen
        self.seen.add(trace)
        self.contended += new
        return new

    def asks_for_later(self, error: BaseException) -> bool:
        """
        Say whether the handler's error means that it wants the message again later. Such errors are TryLater, the errors of `waits_for`,
        and groups that contain only such errors.
        """
        if isinstance(error, BaseExceptionGroup):
            return all(map(self.asks_for_later, error.exceptions))
        awaited = isinstance(error, self.policy.waits_for) and not self._is_permanent(error)
        return awaited or isinstance(error, errors.TryLater)

    def _is_permanent(self, error: BaseException) -> bool:
        return isinstance(error, (*_PERMANENT, *self.permanent))

    def delay(self, error: Exception, *, met_writer: bool) -> float | None:
        """
        Return the seconds to wait before the next attempt; None if no attempt is left.

        `met_writer` says whether the last attempt failed because another program wrote first.
        """
        counted = self.number - self.contended
        if self._is_permanent(error):
            return None
        if met_writer:
            return _BETWEEN_WRITERS.delay(self.contended)
        return None if counted >= self.policy.attempts else self.policy.backoff.delay(counted)
