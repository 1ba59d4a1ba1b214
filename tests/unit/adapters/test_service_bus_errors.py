"""What each exception of the Service Bus SDK means to a publisher."""

from __future__ import annotations

import inspect

import pytest
from azure.core.exceptions import ClientAuthenticationError
from azure.servicebus import exceptions as sdk

from cosmos_outbox.adapters.servicebus.errors import leaves_link_usable, publish_error, receive_error
from cosmos_outbox.errors import BrokerUnavailable, MessageRejected, PublishError, TopicFull, TopicUnavailable
from cosmos_outbox_amqp import errors as amqp_errors
from cosmos_outbox_amqp.errors import AmqpError

SDK_EXCEPTIONS = {
    value
    for _, value in inspect.getmembers(sdk, inspect.isclass)
    if issubclass(value, Exception) and value.__module__ == sdk.__name__
}
# A sender never gets these; if the SDK changes that, they count as passing faults, which loses nothing.
FOR_RECEIVERS = frozenset(
    {
        sdk.AutoLockRenewFailed,
        sdk.AutoLockRenewTimeout,
        sdk.MessageAlreadySettled,
        sdk.MessageLockLostError,
        sdk.MessageNotFoundError,
        sdk.MessagingEntityAlreadyExistsError,
        sdk.SessionCannotBeLockedError,
        sdk.SessionLockLostError,
    }
)


EXPECTED: list[tuple[sdk.ServiceBusError, type[PublishError]]] = [
    (sdk.MessageSizeExceededError(), MessageRejected),
    (sdk.MessagingEntityDisabledError(), TopicUnavailable),
    (sdk.MessagingEntityNotFoundError(), TopicUnavailable),
    (sdk.OperationTimeoutError(), BrokerUnavailable),
    (sdk.ServiceBusAuthenticationError(), TopicUnavailable),
    (sdk.ServiceBusAuthorizationError(), TopicUnavailable),
    (sdk.ServiceBusCommunicationError(), BrokerUnavailable),
    (sdk.ServiceBusConnectionError(), BrokerUnavailable),
    (sdk.ServiceBusError("what?"), BrokerUnavailable),
    (
        sdk.ServiceBusQuotaExceededError(message="The maximum number of connections was reached."),
        BrokerUnavailable,
    ),
    (
        sdk.ServiceBusQuotaExceededError(message="The maximum entity size has been reached for Topic: 't'."),
        TopicFull,
    ),
    (sdk.ServiceBusServerBusyError(), BrokerUnavailable),
    (sdk.SessionLockLostError(), BrokerUnavailable),
]


def test_every_exception_of_the_sdk_has_a_meaning() -> None:
    """A new version of the SDK with a new class fails here, not in production."""
    assert SDK_EXCEPTIONS == {*(type(error) for error, _ in EXPECTED), *FOR_RECEIVERS}


@pytest.mark.parametrize(("error", "expected"), EXPECTED)
def test_an_exception_means(error: sdk.ServiceBusError, expected: type[PublishError]) -> None:
    assert expected is type(publish_error(error, topic="events"))


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (b"amqp:not-allowed", MessageRejected),
        (b"amqp:decode-error", MessageRejected),
        (b"amqp:precondition-failed", MessageRejected),
        (b"com.microsoft:argument-error", MessageRejected),
        (b"com.microsoft:argument-out-of-range", MessageRejected),
        (b"amqp:internal-error", BrokerUnavailable),
        (b"com.microsoft:operation-cancelled", BrokerUnavailable),
        (b"com.microsoft:never-heard-of", BrokerUnavailable),
    ],
)
def test_an_unclassified_exception_is_judged_by_its_condition(
    condition: bytes, expected: type[PublishError]
) -> None:
    assert expected is type(publish_error(sdk.ServiceBusError("?", condition=condition), topic="events"))


def test_a_credential_that_cannot_sign_in_makes_the_topic_unavailable() -> None:
    error = sdk.ServiceBusError("Handler failed", error=ClientAuthenticationError("no identity"))
    assert TopicUnavailable is type(publish_error(error, topic="events"))


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (sdk.ServiceBusServerBusyError(), 2.0),
        (sdk.ServiceBusQuotaExceededError(), 10.0),
        (sdk.ServiceBusConnectionError(), None),
    ],
)
def test_a_refusal_says_when_to_come_back(error: sdk.ServiceBusError, seconds: float | None) -> None:
    found = publish_error(error, topic="events")
    assert isinstance(found, BrokerUnavailable)
    assert seconds == found.retry_after


def test_the_error_names_the_topic_and_repeats_all_that_the_sdk_knows() -> None:
    """
    For a missing topic the SDK's own message says "client-error", and only the exception inside says which.
    """
    error = sdk.ServiceBusAuthenticationError(
        message="Outer.", error=ValueError("Status code: 404\nNot found.")
    )
    told = str(publish_error(error, topic="events"))
    assert told.startswith(
        "Topic 'events' cannot be sent to: create it if it is missing, enable it, correct the key, or grant"
    )
    assert told.endswith("Service Bus said: Outer. Status code: 404 Not found.")


def test_what_the_broker_said_is_told_once() -> None:
    inner = ValueError("Error condition: NotAllowed\n Error Description: It is full.")
    error = sdk.ServiceBusError(message="It is full. Error condition: amqp:not-allowed.", error=inner)
    assert 1 == str(publish_error(error, topic="events")).count("It is full.")


class Refusal(Exception):
    """Of a token, as the SDK's AMQP raises it."""

    status_code = 401


def test_who_is_refused_is_told_of_key_clock_and_rights_and_not_to_create_what_exists() -> None:
    refused = sdk.ServiceBusAuthenticationError(message="InvalidSignature", error=Refusal())
    for error in (
        publish_error(refused, topic="t"),
        receive_error(refused, entity="t"),
        amqp_errors.receive_error(
            AmqpError(amqp_errors.denial_condition(401), "InvalidSignature"), entity="t"
        ),
    ):
        told = str(error)
        assert "correct the key, see that this machine's clock is right, or grant Azure Service Bus" in told
        assert "create" not in told


def test_what_may_be_a_topic_without_its_subscription_is_told_so_first() -> None:
    for entity, first in (("t", "name its subscription if it is a topic, create it"), ("t/s", "create it")):
        for error in (
            receive_error(sdk.MessagingEntityNotFoundError(), entity=entity),
            amqp_errors.receive_error(AmqpError(amqp_errors.Condition.NOT_FOUND, ""), entity=entity),
        ):
            assert f"cannot be received from: {first} if it is missing" in str(error)


def test_only_an_answer_on_an_open_link_lets_the_sender_go_on() -> None:
    usable = {
        kind for kind in SDK_EXCEPTIONS - FOR_RECEIVERS - {sdk.ServiceBusError} if leaves_link_usable(kind())
    }
    assert {sdk.ServiceBusServerBusyError, sdk.ServiceBusQuotaExceededError} == usable
