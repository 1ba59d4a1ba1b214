"""
Policy: what a consumer does with messages that it cannot handle or does not know, and when it lets all messages wait.

The module `attempts` decides whether and when a failed message is tried again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from cosmos_outbox.message_format import Message
from cosmos_outbox.partition_key import PartitionKey
from cosmos_outbox.retries import Backoff

# If the handlers fail on messages of this many keys and no message takes effect meanwhile, the messages are probably not at fault. The
# consumer then parks no more keys, and messages wait.
HALT_AFTER_KEYS = 5
# The broker counts how often it delivers a message. If the event loop of a process is blocked until its locks expire, at most two deliveries
# have no effect: that of the message that the process handles, and that of the first message of a session that it was about to receive.
_LOST_AT_ONCE = 2


class OnFailure(StrEnum):
    """How a consumer settles a message that it cannot handle."""

    # The message and the later messages of its key wait in the parked store, until an operator releases or drops them.
    PARK = "park"
    # The message is moved to the dead-letter queue, and later messages of its key overtake it.
    DEAD_LETTER = "dead_letter"


class OnUnknown(StrEnum):
    """How a consumer settles a message whose subject has no handler."""

    IGNORE = "ignore"  # the message is completed without any effect
    DEAD_LETTER = "dead_letter"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The rules of a consumer; see the arguments of `Consumer`, which checks them."""

    record_ttl: timedelta
    partition_key: Callable[[Message], PartitionKey] | None
    on_failure: OnFailure
    unknown: OnUnknown
    attempts: int
    max_deliveries: int
    backoff: Backoff
    handler_timeout: timedelta
    waits_for: tuple[type[Exception], ...] = ()
    longest_wait: timedelta = timedelta(hours=12)

    @property
    def least_delivery_count(self) -> int:
        """
        Return how many deliveries the broker has to allow, so that it dead-letters no message before this consumer parks it.
        """
        return self.max_deliveries + _LOST_AT_ONCE

    @property
    def longest_handling(self) -> timedelta:
        """Return the longest time that all attempts at one message take."""
        return self.attempts * (self.handler_timeout + timedelta(seconds=self.backoff.maximum_seconds))
