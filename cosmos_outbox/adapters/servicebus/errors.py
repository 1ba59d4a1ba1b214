"""The one place that translates exceptions of the Service Bus SDK into errors of this library."""

from __future__ import annotations

from azure.core.exceptions import ClientAuthenticationError
from azure.servicebus import exceptions as sdk

from cosmos_outbox import errors

BUSY_SECONDS = 2.0  # "Please wait 2 seconds and try again", says the service when it throttles
QUOTA_SECONDS = 10.0  # a topic that is full takes messages again only after receivers have read some

_UNAUTHORIZED, _NOT_FOUND = 401, 404

# The error of this library for each exception of the SDK. Any other exception becomes BrokerUnavailable (try
# again), unless `_meaning` finds more in its condition or text.
_MEANING: dict[type[Exception], type[errors.PublishError]] = {
    sdk.MessageSizeExceededError: errors.MessageRejected,
    sdk.MessagingEntityDisabledError: errors.TopicUnavailable,
    sdk.MessagingEntityNotFoundError: errors.TopicUnavailable,
    sdk.ServiceBusAuthenticationError: errors.TopicUnavailable,
    sdk.ServiceBusAuthorizationError: errors.TopicUnavailable,
}

# The AMQP error conditions by which the broker refuses a message or batch, and for which the SDK has no
# exception class. Sending such a message again is useless.
_REJECTIONS = frozenset(
    {
        "amqp:decode-error",
        "amqp:invalid-field",
        "amqp:link:message-size-exceeded",
        "amqp:not-allowed",
        "amqp:not-implemented",
        "amqp:precondition-failed",
        "com.microsoft:argument-error",
        "com.microsoft:argument-out-of-range",
    }
)

_ROOM = "entity size"  # the broker says this if the topic is full, but not if another quota is exceeded

_RETRY_AFTER: dict[type[Exception], float] = {
    sdk.ServiceBusQuotaExceededError: QUOTA_SECONDS,
    sdk.ServiceBusServerBusyError: BUSY_SECONDS,
}


def publish_error(error: sdk.ServiceBusError, *, topic: str) -> errors.PublishError:
    """Return this library's error for an error that the SDK raised while it sent messages."""
    # For a missing topic or a wrong key, only the inner exception has the broker's words. So add its text,
    # unless the SDK's text repeats it already.
    inner = str(error.inner_exception or "")
    repeated = inner.rpartition("Error Description:")[2].strip() in str(error)
    said = " ".join(f"{error} {'' if repeated else inner}".split())
    meaning = _meaning(error)
    if issubclass(meaning, errors.BrokerUnavailable):
        full = "is full; is there a subscription without a reader?" if meaning is errors.TopicFull else ""
        return meaning(
            f"Topic {topic!r} {full or 'cannot be reached for now:'} {said}",
            retry_after=_RETRY_AFTER.get(type(error)),
            # An exception of a subclass names the cause by its class. An exception of the SDK's base class names it
            # only by its AMQP condition.
            condition=_condition(error) if type(error) is sdk.ServiceBusError else None,
        )
    if meaning is errors.TopicUnavailable:
        missing = "" if _status(error) == _UNAUTHORIZED else "create it if it is missing, enable it, "
        clock = "" if missing else "see that this machine's clock is right, "
        return errors.TopicUnavailable(
            f"Topic {topic!r} cannot be sent to: {missing}correct the key, {clock}or grant Azure Service Bus Data Sender on it. "
            f"Service Bus said: {said}"
        )
    return errors.MessageRejected(f"Topic {topic!r} will not take this message: {said}")


def receive_error(error: Exception, *, entity: str) -> errors.SubscriptionUnavailable:
    """Return this library's error for an error that a receiver of the SDK raised."""
    said = " ".join(f"{errors.error_line(error)} {getattr(error, 'inner_exception', None) or ''}".split())
    if not isinstance(error, sdk.ServiceBusError) or _meaning(error) is errors.BrokerUnavailable:
        advice = "the consumer tries again"
    elif _status(error) == _UNAUTHORIZED:
        advice = "correct the key, see that this machine's clock is right, or grant Azure Service Bus Data Receiver on it"
    else:
        advice = (
            f"{'' if '/' in entity else 'name its subscription if it is a topic, '}create it if it is missing, enable it, see that sessions are on or off as configured, correct the key, or grant Azure "
            "Service Bus Data Receiver on it"
        )
    return errors.SubscriptionUnavailable(
        f"{entity!r} cannot be received from: {advice}. Service Bus said: {said}",
        retry_after=_RETRY_AFTER.get(type(error)),
    )


def is_refused_use(error: sdk.ServiceBusError) -> bool:
    """
    Return whether the broker refuses this kind of receiver, for example a receiver with sessions on an entity without
    sessions.
    """
    return _condition(error) in ("amqp:not-allowed", "amqp:not-implemented")


def names_nothing(error: sdk.ServiceBusError) -> bool:
    """
    Return whether an error says that the topic, subscription or queue does not exist. The SDK has an exception for
    that, but the broker may say so before the link opens, with status 404 when it gets the token.
    """
    return isinstance(error, sdk.MessagingEntityNotFoundError) or _status(error) == _NOT_FOUND


def leaves_link_usable(error: BaseException) -> bool:
    """Return whether the broker answered on a link that stays open, so that the sender can go on."""
    # The error for a rejected message is not in this list: the broker would keep the link open, but the SDK closes it.
    return isinstance(error, sdk.ServiceBusServerBusyError | sdk.ServiceBusQuotaExceededError)


def says_link_was_cut(error: BaseException | None) -> bool:
    """Return whether an error means that the connection or the link is gone."""
    return isinstance(error, sdk.ServiceBusConnectionError | sdk.ServiceBusCommunicationError)


def _meaning(error: sdk.ServiceBusError) -> type[errors.PublishError]:
    if _condition(error) in _REJECTIONS:
        return errors.MessageRejected
    if isinstance(error, sdk.ServiceBusQuotaExceededError) and _ROOM in str(error):
        return errors.TopicFull
    # The program got no token. The SDK wraps the credential's error in a plain ServiceBusError.
    if isinstance(error.inner_exception, ClientAuthenticationError):
        return errors.TopicUnavailable
    # The broker refused the token, or knows no topic of that name. If the namespace has a custom address, the
    # SDK reports these refusals as a lost connection.
    if _status(error) in (_UNAUTHORIZED, _NOT_FOUND):
        return errors.TopicUnavailable
    return next(
        (_MEANING[base] for base in type(error).__mro__ if base in _MEANING), errors.BrokerUnavailable
    )


def _status(error: sdk.ServiceBusError) -> int | None:
    return getattr(error.inner_exception, "status_code", None)


def _condition(error: sdk.ServiceBusError) -> str | None:
    # `_condition` is private in the SDK. Without it, the refusal of a malformed message would look like an
    # outage, and the message would be sent again and again.
    condition = getattr(error, "_condition", None)
    return None if condition is None else str(condition)
