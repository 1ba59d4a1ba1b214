"""Translate exceptions of the Event Hubs SDK into errors of this library."""

from __future__ import annotations

from azure.eventhub.exceptions import AuthenticationError, EventHubError

from cosmos_outbox.errors import BrokerUnavailable, MessageRejected, PublishError, TopicUnavailable

BUSY_SECONDS = 4.0  # how long Event Hubs asks throttled clients to wait

# The Event Hubs SDK removes the prefix ("amqp:", "com.microsoft:") of an AMQP error condition, so these names have no prefix.
_REJECTED = {"link:message-size-exceeded", "decode-error", "invalid-field", "not-allowed", "not-implemented"}
_REJECTED |= {"argument-error", "argument-out-of-range"}
_NO_HUB = {"not-found", "entity-disabled", "unauthorized-access"}


def publish_error(error: EventHubError) -> PublishError:
    """Return the error that a publisher of this library raises for an error of the Event Hubs SDK."""
    said = " ".join(str(error).split())
    if error.error in _REJECTED:
        return MessageRejected(f"The event hub refused this message and will never accept it: {said}")
    if error.error in _NO_HUB or isinstance(error, AuthenticationError):
        return TopicUnavailable(
            "The event hub cannot be sent to: create it if it is missing, enable it, or grant Azure Event Hubs Data Sender on it. "
            f"Event Hubs said: {said}"
        )
    return BrokerUnavailable(
        f"The event hub cannot be reached for now: {said}",
        retry_after=BUSY_SECONDS if error.error == "server-busy" else None,
    )
