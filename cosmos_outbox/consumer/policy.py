"""Policy: what a consumer does with messages that it cannot handle or does not know."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum

from cosmos_outbox.consumer.inbox import DEFAULT_RECORD_TTL
from cosmos_outbox.errors import ConfigurationError
from cosmos_outbox.messages import Message
from cosmos_outbox.partition_key import PartitionKey
from cosmos_outbox.retries import Backoff

# The broker's default window for duplicates, and the longest lock; `doctor` reads both
_SHORTEST_RECORD_TTL = timedelta(minutes=15)
DEFAULT_MAX_DELIVERIES = 8
# A process whose event loop is blocked loses the message at hand, then also the session that it was waiting for
_LOST_AT_ONCE = 2


class OnFailure(StrEnum):
    """What becomes of a message that cannot be handled."""

    # It is held, and later messages of its key behind it, until an operator releases or drops it
    PARK = "park"
    # It is moved to the dead-letter queue, and later messages of its key overtake it
    DEAD_LETTER = "dead_letter"


class OnUnknown(StrEnum):
    """What becomes of a message whose subject has no handler."""

    IGNORE = "ignore"  # it is completed
    DEAD_LETTER = "dead_letter"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """
    The rules of a consumer; see the arguments of `Consumer`.

    Raises:
        ConfigurationError: a value cannot work.
    """

    record_ttl: timedelta = DEFAULT_RECORD_TTL
    partition_key: Callable[[Message], PartitionKey] | None = None
    on_failure: OnFailure = OnFailure.PARK
    unknown: OnUnknown = OnUnknown.IGNORE
    attempts: int = 5
    max_deliveries: int = DEFAULT_MAX_DELIVERIES
    backoff: Backoff = field(default_factory=lambda: Backoff(initial_seconds=0.2, maximum_seconds=5.0))
    handler_timeout: timedelta = timedelta(seconds=30)

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ConfigurationError(f"A consumer needs at least one attempt, not {self.attempts}.")
        if self.max_deliveries < 1:
            raise ConfigurationError(f"max_deliveries must be at least 1, not {self.max_deliveries}.")
        if self.handler_timeout <= timedelta(0):
            raise ConfigurationError(f"handler_timeout must be more than 0, not {self.handler_timeout}.")
        if self.record_ttl < _SHORTEST_RECORD_TTL:
            raise ConfigurationError(
                f"record_ttl must be at least {_SHORTEST_RECORD_TTL}, not {self.record_ttl}: the broker may deliver a message "
                "again for so long, and without its record it would take effect again."
            )

    @property
    def least_delivery_count(self) -> int:
        """
        Return how many deliveries the broker has to allow, so that it does not dead-letter what this consumer would have parked.
        """
        return self.max_deliveries + _LOST_AT_ONCE

    @property
    def longest_handling(self) -> timedelta:
        """Return how long all attempts of one message take at most."""
        return self.attempts * (self.handler_timeout + timedelta(seconds=self.backoff.maximum_seconds))
