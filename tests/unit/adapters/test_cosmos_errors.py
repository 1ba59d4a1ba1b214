"""
How errors of the Cosmos DB SDK, and the statuses that Cosmos DB documents, are translated into the library's own errors.
"""

from __future__ import annotations

import inspect
import json
from types import SimpleNamespace
from typing import Any

import azure.core.exceptions
import azure.cosmos.exceptions
import pytest
from aiohttp import ClientConnectionError
from azure.core.exceptions import AzureError, HttpResponseError
from azure.cosmos.exceptions import CosmosBatchOperationError, CosmosHttpResponseError
from azure.cosmos.http_constants import StatusCodes, SubStatusCodes

from cosmos_outbox import (
    ConfigurationError,
    Conflict,
    NotFound,
    NotModified,
    OutboxError,
    PreconditionFailed,
    StoreUnavailable,
    TooManyRequests,
)
from cosmos_outbox.adapters.cosmos import errors as cosmos_errors
from cosmos_outbox.adapters.cosmos.errors import our_errors, translate
from cosmos_outbox.errors import AccessDenied, InvalidRequest, RangeGone, RequestTooLarge

SUCCESS = {200, 201, 202, 204}
NEVER_SENT = {1200, 1201}  # Cosmos DB never sends these sub-statuses. The SDK uses them in its own logs.

MEANINGS: dict[int, type[OutboxError]] = {
    304: NotModified,
    400: InvalidRequest,
    401: AccessDenied,
    403: AccessDenied,
    404: NotFound,
    405: InvalidRequest,
    408: StoreUnavailable,
    409: Conflict,
    410: StoreUnavailable,
    412: PreconditionFailed,
    413: RequestTooLarge,
    424: StoreUnavailable,
    429: TooManyRequests,
    449: StoreUnavailable,
    500: StoreUnavailable,
    503: StoreUnavailable,
}


def an_error(
    status: int, sub_status: int = 0, *, message: str = "text", **headers: str
) -> CosmosHttpResponseError:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    if sub_status:
        sent["x-ms-substatus"] = str(sub_status)
    error = CosmosHttpResponseError(status_code=status, message=message)
    error.headers, error.sub_status = sent, sub_status or None
    return error


def a_batch_error(statuses: list[int], **extra: Any) -> CosmosBatchOperationError:
    failing = next(i for i, status in enumerate(statuses) if status != 424)
    return CosmosBatchOperationError(
        error_index=failing,
        headers={},
        status_code=statuses[failing],
        message="text",
        operation_responses=[{"statusCode": status, **extra} for status in statuses],
    )


def status_codes() -> list[int]:
    return sorted(value for name, value in vars(StatusCodes).items() if name.isupper())


def test_every_status_code_of_the_sdk_has_a_translation():
    assert set(MEANINGS) == set(status_codes()) - SUCCESS - NEVER_SENT
    assert {status for status in MEANINGS if MEANINGS[status] is not StoreUnavailable} <= set(
        cosmos_errors._BY_STATUS
    )


@pytest.mark.parametrize("status", sorted(MEANINGS))
def test_a_cosmos_db_status_is_translated_in_the_same_way_inside_a_batch(status: int):
    assert MEANINGS[status] is type(translate(an_error(status)))
    if status not in (304, 424):
        error = translate(a_batch_error([424, status, 424]), document_ids=["a", "b", "c"])
        assert MEANINGS[status] is type(error)
        assert "b" == getattr(error, "document_id", "b")


@pytest.mark.parametrize(
    ("status", "name", "meaning"),
    [
        (410, "NAME_CACHE_IS_STALE", StoreUnavailable),
        (410, "PARTITION_KEY_RANGE_GONE", RangeGone),
        (410, "COMPLETING_SPLIT", RangeGone),
        (410, "COMPLETING_PARTITION_MIGRATION", StoreUnavailable),
        (403, "WRITE_FORBIDDEN", StoreUnavailable),
        (403, "DATABASE_ACCOUNT_NOT_FOUND", StoreUnavailable),
        (403, "AAD_REQUEST_NOT_AUTHORIZED", AccessDenied),
        (404, "READ_SESSION_NOTAVAILABLE", StoreUnavailable),
        (404, "OWNER_RESOURCE_NOT_FOUND", ConfigurationError),
        (404, "CONTAINER_CREATE_IN_PROGRESS", StoreUnavailable),
    ],
)
def test_a_sub_status_refines_the_translation_of_a_status(status: int, name: str, meaning: type[OutboxError]):
    assert meaning is type(translate(an_error(status, getattr(SubStatusCodes, name))))


def error_classes() -> list[type[BaseException]]:
    return [
        value
        for module in (azure.core.exceptions, azure.cosmos.exceptions)
        for value in vars(module).values()
        if inspect.isclass(value) and issubclass(value, AzureError) and value.__module__ == module.__name__
    ]


@pytest.mark.parametrize("kind", error_classes(), ids=lambda kind: kind.__name__)
async def test_every_error_class_of_the_sdk_is_translated_into_an_outbox_error(kind: type[BaseException]):
    error = kind.__new__(kind)
    error.message, error.args = "text", ("text",)
    for name, value in {
        "status_code": None,
        "response": None,
        "headers": {},
        "operation_responses": [],
        "sub_status": None,
    }.items():
        if issubclass(kind, HttpResponseError):
            setattr(error, name, value)

    with pytest.raises(OutboxError) as caught:
        async with our_errors():
            raise error
    assert error is caught.value.__cause__


@pytest.mark.parametrize("error", [TimeoutError(), ConnectionResetError(), ClientConnectionError()])
async def test_an_error_of_the_transport_leaves_the_outcome_of_a_write_unknown(error: Exception):
    with pytest.raises(StoreUnavailable) as caught:
        async with our_errors():
            raise error
    assert None is caught.value.applied


@pytest.mark.parametrize("status", [408, 500, 503, 502, 599])
def test_a_server_error_leaves_the_outcome_of_a_write_unknown(status: int):
    error = translate(an_error(status))
    assert isinstance(error, StoreUnavailable)
    assert None is error.applied


@pytest.mark.parametrize("status", [410, 449])
def test_a_write_that_the_service_refused_to_begin_was_not_applied(status: int):
    error = translate(an_error(status))
    assert isinstance(error, StoreUnavailable)
    assert error.applied is False


def test_a_batch_with_a_failed_operation_was_not_applied():
    error = translate(a_batch_error([424, 408]), document_ids=["a", "b"])
    assert isinstance(error, StoreUnavailable)
    assert error.applied is False


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (an_error(429, x_ms_retry_after_ms="1500"), 1.5),
        (an_error(429, X_MS_Retry_After_Ms="20"), 0.02),
        (an_error(449, x_ms_retry_after_ms="10"), 0.01),
        (an_error(429), None),
        (an_error(429, x_ms_retry_after_ms="soon"), None),
        (a_batch_error([424, 429], retryAfterMilliseconds=250), 0.25),
    ],
)
def test_an_error_has_the_retry_delay_that_the_service_asks_for(error: AzureError, seconds: float | None):
    ours = translate(error)
    assert isinstance(ours, TooManyRequests | StoreUnavailable)
    assert seconds == ours.retry_after


FIREWALL = (
    "Request originated from IP 10.0.0.1 through public internet. This is blocked by your Cosmos DB account firewall "
    "settings. More info: https://aka.ms/cosmosdb-tsg-forbidden\r\nActivityId: 1-2, Microsoft.Azure.Documents.Common/2.14.0"
)
ROLES = (
    "Request blocked by Auth name : Request is blocked because principal [1] does not have required RBAC permissions to "
    "perform action [Microsoft.DocumentDB/databaseAccounts/readMetadata] on resource [/].\r\nActivityId: 1-2"
)
UNDECIDED = (
    "Request is blocked. Please check your authorization token and Cosmos DB account firewall settings."
)


@pytest.mark.parametrize(
    ("status", "said", "refused_by", "advice"),
    [
        (403, FIREWALL, "firewall", "networking settings"),
        (403, ROLES, "roles", "Cosmos DB Built-in Data Contributor"),
        (403, UNDECIDED, None, "the firewall of the Cosmos DB account blocks this machine: check all three"),
        (
            401,
            "The input authorization token can't serve the request.",
            "credential",
            "copy the account's key",
        ),
    ],
)
def test_an_access_error_tells_what_refused_the_request(
    status: int, said: str, refused_by: str | None, advice: str
):
    """
    The cause is the firewall, a missing role or the credential. If Cosmos DB's text fits all three, the error advises to check all.
    """
    body = json.dumps({"code": "Forbidden", "message": said})
    error = translate(an_error(status, message=body, x_ms_activity_id="1-2"))
    assert isinstance(error, AccessDenied)
    assert refused_by == error.refused_by
    assert advice in str(error)
    assert 1 == str(error).count(said.partition("\r")[0])
    assert 1 == str(error).count("1-2")


@pytest.mark.parametrize("status", [400, 413, 429, 503])
def test_an_error_text_gives_advice_before_the_reason_of_the_service(status: int):
    """The reason that Cosmos DB gave appears once, without request details such as the URI."""
    said = 'Message: {"Errors":["The input is wrong."]}\r\nActivityId: 1-2, Request URI: /apps/x, RequestStats: y'
    body = json.dumps({"code": "x", "message": said})
    error = translate(
        an_error(status, message=body, x_ms_activity_id="1-2"), document_ids=["a"], partition_key="p"
    )
    advice = str(type(error)())
    assert (
        f"{advice} Cosmos DB answered {status}: The input is wrong. (document 'a', partition key 'p', activity id 1-2)"
        == str(error)
    )


def test_an_error_text_names_the_container_of_the_request():
    error = an_error(429)
    request = SimpleNamespace(url="https://a:443/dbs/shop/colls/orders%20new/docs/")
    error.response = SimpleNamespace(request=request)
    assert "(container 'orders new')" in str(translate(error))


def test_a_full_partition_key_is_not_reported_as_access_denied():
    error = translate(an_error(403, 1014), document_ids=["a"], partition_key="p")
    assert isinstance(error, RequestTooLarge)
    assert "spread them over more keys" in str(error)
    assert ("a", "p") == (error.document_id, error.partition_key)


async def stumble(over: Exception | None) -> None:
    async with our_errors():
        try:
            if over is not None:
                raise over
        finally:
            raise KeyError("The SDK already dropped this session.")


async def test_an_sdk_error_that_hides_a_service_error_is_translated_as_the_service_error():
    with pytest.raises(StoreUnavailable) as raised:
        await stumble(an_error(404, 1002))
    assert isinstance(raised.value.__cause__, CosmosHttpResponseError)

    with pytest.raises(KeyError):
        await stumble(None)
