"""
Errors: the AMQP errors that a peer sends, and their translation to the errors that the library's `Subscription` interface
promises.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from cosmos_outbox.adapters.servicebus.errors import BUSY_SECONDS, QUOTA_SECONDS
from cosmos_outbox.errors import LockLost, SubscriptionError, SubscriptionUnavailable


class Condition(StrEnum):
    """
    The error conditions of AMQP and Service Bus that this client handles in a special way. It only reports other conditions.
    """

    DECODE_ERROR = "amqp:decode-error"
    MESSAGE_LOCK_LOST = "com.microsoft:message-lock-lost"
    NOT_FOUND = "amqp:not-found"
    RESOURCE_LIMIT_EXCEEDED = "amqp:resource-limit-exceeded"
    SERVER_BUSY = "com.microsoft:server-busy"
    SESSION_LOCK_LOST = "com.microsoft:session-lock-lost"
    TIMEOUT = "com.microsoft:timeout"
    UNAUTHORIZED_ACCESS = "amqp:unauthorized-access"


_LOST = (Condition.SESSION_LOCK_LOST, Condition.MESSAGE_LOCK_LOST)
_REFUSED = (Condition.NOT_FOUND, "com.microsoft:entity-disabled", "amqp:not-allowed", "amqp:not-implemented")
_OF_STATUS = {
    401: Condition.UNAUTHORIZED_ACCESS,
    403: Condition.UNAUTHORIZED_ACCESS,
    404: Condition.NOT_FOUND,
}
_RETRY_AFTER: dict[str, float] = {
    Condition.RESOURCE_LIMIT_EXCEEDED: QUOTA_SECONDS,
    Condition.SERVER_BUSY: BUSY_SECONDS,
}


class AmqpError(Exception):
    """
    The peer refused a request, or ended a link or the connection.

    condition: the error condition, as AMQP or Service Bus defines it; empty if the peer sent none.
    description: the text about the error.
    """

    def __init__(self, condition: str, description: str = "") -> None:
        super().__init__(condition, description)
        self.condition, self.description = condition, description

    def __str__(self) -> str:
        return " ".join(f"{self.condition} {self.description}".split())


class ProtocolError(AmqpError):
    """The peer sent bytes or frames that AMQP does not allow."""

    def __init__(self, description: str) -> None:
        super().__init__(Condition.DECODE_ERROR, description)


class Unanswered(AmqpError):
    """The peer still sends bytes, but did not answer a request in time."""

    def __init__(self) -> None:
        super().__init__("", "The broker does not answer.")


def receive_error(error: AmqpError, *, entity: str) -> SubscriptionError:
    """
    Translate an AMQP error to the error that the library's `Subscription` interface promises, with advice for an operator.

    Args:
        error: the error of the peer.
        entity: the name of the subscription or queue, for the text.
    """
    if error.condition in _LOST:
        return LockLost(f"{entity}: {error}")
    if error.condition == Condition.UNAUTHORIZED_ACCESS:
        advice = "correct the key, see that this machine's clock is right, or grant Azure Service Bus Data Receiver on it"
    elif error.condition in _REFUSED:
        advice = f"{'' if '/' in entity else 'name its subscription if it is a topic, '}create it if it is missing, enable it, or see that sessions are on or off as configured"
    else:
        advice = "it is tried again"
    return SubscriptionUnavailable(
        f"{entity!r} cannot be received from: {advice}. Service Bus said: {error}",
        retry_after=_RETRY_AFTER.get(error.condition),
    )


def denial_condition(status: Any) -> str:
    """
    Return the error condition for the status of a reply from $cbs, which checks tokens. Such a reply has only a status as in
    HTTP, and no condition.
    """
    return _OF_STATUS.get(status, "")
