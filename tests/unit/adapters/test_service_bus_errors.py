"""How exceptions of the Service Bus SDK are translated into the errors of a publisher or a receiver."""

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
# The SDK raises these exceptions for receivers only. If a sender gets such an exception, the library retries the send,
# so no message is lost.
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


def test_every_exception_of_the_sdk_has_a_translation() -> None:
    """
    If a new version of the SDK adds an exception class, this test fails first, before a worker meets the class in production.
    """
    assert SDK_EXCEPTIONS == {*(type(error) for error, _ in EXPECTED), *FOR_RECEIVERS}


@pytest.mark.parametrize(("error", "expected"), EXPECTED)
def test_an_exception_of_the_service_bus_sdk_becomes_a_library_error(
    error: sdk.ServiceBusError, expected: type[PublishError]
) -> None:
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
def test_a_generic_exception_is_translated_by_its_amqp_condition(
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
def test_a_broker_error_has_a_delay_before_the_next_attempt(
    error: sdk.ServiceBusError, seconds: float | None
) -> None:
    found = publish_error(error, topic="events")
    assert isinstance(found, BrokerUnavailable)
    assert seconds == found.retry_after


def test_an_error_text_names_the_topic_and_includes_the_text_of_the_inner_exception() -> None:
    """
    For a missing topic, the SDK's own message is only "client-error". The exception inside says which topic is missing.
    """
    error = sdk.ServiceBusAuthenticationError(
        message="Outer.", error=ValueError("Status code: 404\nNot found.")
    )
    told = str(publish_error(error, topic="events"))
    assert told.startswith(
        "Topic 'events' cannot be sent to: create it if it is missing, enable it, correct the key, or grant"
    )
    assert told.endswith("Service Bus said: Outer. Status code: 404 Not found.")


def test_an_error_text_repeats_the_reason_of_the_broker_once() -> None:
    inner = ValueError("Error condition: NotAllowed\n Error Description: It is full.")
    error = sdk.ServiceBusError(message="It is full. Error condition: amqp:not-allowed.", error=inner)
    assert 1 == str(publish_error(error, topic="events")).count("It is full.")


class Refusal(Exception):
    """The exception by which the SDK's AMQP code reports that a token was refused."""

    status_code = 401


def test_the_error_of_a_refused_token_advises_to_check_key_clock_and_rights() -> None:
    """The error does not advise to create the topic, because the topic exists."""
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


def test_the_error_of_a_missing_queue_advises_to_name_a_subscription_if_it_is_a_topic() -> None:
    for entity, first in (("t", "name its subscription if it is a topic, create it"), ("t/s", "create it")):
        for error in (
            receive_error(sdk.MessagingEntityNotFoundError(), entity=entity),
            amqp_errors.receive_error(AmqpError(amqp_errors.Condition.NOT_FOUND, ""), entity=entity),
        ):
            assert f"cannot be received from: {first} if it is missing" in str(error)


def test_a_sender_is_used_again_only_after_errors_that_leave_its_link_open() -> None:
    usable = {
        kind for kind in SDK_EXCEPTIONS - FOR_RECEIVERS - {sdk.ServiceBusError} if leaves_link_usable(kind())
    }
    assert {sdk.ServiceBusServerBusyError, sdk.ServiceBusQuotaExceededError} == usable
