"""
Errors: the error conditions of a peer, and the errors of the port that stand for them.
"""

from __future__ import annotations

from enum import StrEnum

from cosmos_outbox.errors import LockLost, SubscriptionError, SubscriptionUnavailable

BUSY_SECONDS = 2.0  # "Please wait 2 seconds and try again", says the service when it throttles
QUOTA_SECONDS = 10.0  # what is full has to be read first


class Condition(StrEnum):
    """
    The conditions of AMQP and of Service Bus that say more than "try again".
    """

    ENTITY_DISABLED = "com.microsoft:entity-disabled"
    MESSAGE_LOCK_LOST = "com.microsoft:message-lock-lost"
    NOT_ALLOWED = "amqp:not-allowed"
    NOT_FOUND = "amqp:not-found"
    NOT_IMPLEMENTED = "amqp:not-implemented"
    RESOURCE_LIMIT_EXCEEDED = "amqp:resource-limit-exceeded"
    SERVER_BUSY = "com.microsoft:server-busy"
    SESSION_LOCK_LOST = "com.microsoft:session-lock-lost"
    TIMEOUT = "com.microsoft:timeout"
    UNAUTHORIZED_ACCESS = "amqp:unauthorized-access"


class AmqpError(Exception):
    """
    The peer refused, or ended a link or the connection; or the connection is gone.

    condition: of AMQP or of the service; empty where there was none.
    """

    def __init__(self, condition: str, description: str = "") -> None:
        super().__init__(condition, description)
        self.condition, self.description = condition, description

    def __str__(self) -> str:
        return " ".join(f"{self.condition} {self.description}".split())


class ProtocolError(AmqpError):
    """
    The peer sent what AMQP does not allow.
    """

    def __init__(self, description: str) -> None:
        super().__init__("amqp:decode-error", description)


_LOST = frozenset({Condition.SESSION_LOCK_LOST, Condition.MESSAGE_LOCK_LOST})
_DENIED = frozenset(
    {
        Condition.ENTITY_DISABLED,
        Condition.NOT_ALLOWED,
        Condition.NOT_FOUND,
        Condition.NOT_IMPLEMENTED,
        Condition.UNAUTHORIZED_ACCESS,
    }
)
_RETRY_AFTER: dict[str, float] = {
    Condition.RESOURCE_LIMIT_EXCEEDED: QUOTA_SECONDS,
    Condition.SERVER_BUSY: BUSY_SECONDS,
}


def receive_error(error: AmqpError, *, entity: str) -> SubscriptionError:
    """
    Return this library's error for what the peer said.
    """
    if error.condition in _LOST:
        return LockLost(f"{entity}: {error}")
    if error.condition == Condition.UNAUTHORIZED_ACCESS:
        advice = "correct the key, see that this machine's clock is right, or grant Azure Service Bus Data Receiver on it"
    elif error.condition in _DENIED:
        advice = "create it if it is missing, enable it, or see that sessions are on or off as configured"
    else:
        advice = "it is tried again"
    return SubscriptionUnavailable(
        f"{entity!r} cannot be received from: {advice}. Service Bus said: {error}",
        retry_after=_RETRY_AFTER.get(error.condition),
    )


def denied_by(status: object) -> str:
    """
    Return the condition of a reply that has only a status: to $cbs, which answers as HTTP does.
    """
    denied = {
        401: Condition.UNAUTHORIZED_ACCESS,
        403: Condition.UNAUTHORIZED_ACCESS,
        404: Condition.NOT_FOUND,
    }
    return denied.get(status, "") if isinstance(status, int) else ""
