"""
The one place that translates errors of the Cosmos DB SDK.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from types import TracebackType
from typing import Any, Literal

from aiohttp import ClientError
from azure.core.exceptions import AzureError, ClientAuthenticationError, HttpResponseError
from azure.cosmos.exceptions import CosmosBatchOperationError

from cosmos_outbox.errors import (
    AccessDenied,
    ConfigurationError,
    Conflict,
    InvalidRequest,
    NotFound,
    NotModified,
    OutboxError,
    PreconditionFailed,
    RangeGone,
    RequestTooLarge,
    StoreUnavailable,
    TooManyRequests,
)


class translated:  # noqa: N801 - used as `async with translated():`, like contextlib's own
    """
    Turn every error of the SDK that leaves the block into ours, with the SDK's as its cause.

    A class, not a generator, because it is on the path of every request.

    Args:
        document_ids: the documents that are written, in order, so that the error can name the one at fault.
        of_feed: a range that is gone belongs to the monitored container. Elsewhere a split is an outage that passes, and a
            worker would take RangeGone for a split of the range that it reads.
    """

    __slots__ = ("_document_ids", "_of_feed")

    def __init__(self, *, document_ids: Sequence[str] = (), of_feed: bool = False) -> None:
        self._document_ids, self._of_feed = document_ids, of_feed

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, KeyError) and isinstance(error.__context__, AzureError):
            # If no replica has caught up (404/1002), the SDK drops the session, and raises KeyError if it had dropped it before.
            error = error.__context__
        if isinstance(error, (AzureError, ClientError, TimeoutError, ConnectionError)):
            ours = translate(error, document_ids=self._document_ids)
            if isinstance(ours, RangeGone) and not self._of_feed:
                raise StoreUnavailable(applied=False) from error
            raise ours from error


def translate(error: BaseException, *, document_ids: Sequence[str] = ()) -> OutboxError:
    """
    Return this library's error for one of the SDK.

    Args:
        error: what the SDK raised.
        document_ids: the documents that were written, in order, so that the error can name the one at fault.
    """
    if isinstance(error, CosmosBatchOperationError):
        return _translate_batch(error, document_ids)
    if isinstance(error, ClientAuthenticationError):
        return AccessDenied(f"Signing in to Cosmos DB failed: {error.message}")
    if isinstance(error, HttpResponseError):
        answer = _Answer(
            message=str(error.message),
            headers=getattr(error, "headers", None) or {},
            document_id=document_ids[0] if len(document_ids) == 1 else None,
            rolled_back=False,
        )
        return _translate_status(error.status_code or 0, getattr(error, "sub_status", None) or 0, answer)
    # no answer: the connection failed, was lost or timed out, maybe after the service executed the request
    return StoreUnavailable(f"Cosmos DB did not answer: {error!r}")


def _translate_batch(error: CosmosBatchOperationError, document_ids: Sequence[str]) -> OutboxError:
    responses: Sequence[Mapping[str, Any]] = error.operation_responses or ()
    for position, response in enumerate(responses):
        status = int(response["statusCode"])
        if status < HTTPStatus.BAD_REQUEST or status == HTTPStatus.FAILED_DEPENDENCY:
            continue
        headers = dict(error.headers or {})
        if "retryAfterMilliseconds" in response:
            headers["x-ms-retry-after-ms"] = str(response["retryAfterMilliseconds"])
        answer = _Answer(
            message=f"Operation {position} of the batch failed: {error.message}",
            headers=headers,
            document_id=document_ids[position] if position < len(document_ids) else None,
            rolled_back=True,
        )
        return _translate_status(status, int(response.get("subStatusCode") or 0), answer)
    return StoreUnavailable("Cosmos DB rolled the batch back and gave no reason.", applied=False)


@dataclass(frozen=True, slots=True)
class _Answer:
    message: str
    headers: Mapping[str, Any]
    document_id: str | None
    rolled_back: bool

    @property
    def retry_after(self) -> float | None:
        return _retry_after(self.headers)


def _refused(answer: _Answer) -> StoreUnavailable:
    return StoreUnavailable(answer.message, retry_after=answer.retry_after, applied=False)


def _failed(answer: _Answer) -> StoreUnavailable:
    # Unless the batch was rolled back, the service may have executed the request before it gave up.
    applied: Literal[False] | None = False if answer.rolled_back else None
    return StoreUnavailable(answer.message, retry_after=answer.retry_after, applied=applied)


# By status and sub-status, or by status alone. Anything else is a fault of the service with an unknown outcome.
_BY_SUB_STATUS: Mapping[tuple[int, int], Callable[[_Answer], OutboxError]] = {
    (403, 3): _refused,  # the region takes no writes (now)
    (403, 1008): _refused,  # the account is moving
    (404, 1002): _refused,  # the replica has not caught up with the session token
    (404, 1003): lambda answer: ConfigurationError(f"The database or container is missing: {answer.message}"),
    (404, 1013): _refused,  # the container is being created
    # With 1000 (the SDK's name cache is stale) and 1008 (a partition moves to other machines) the range still exists.
    (410, 1002): lambda _: RangeGone(),
    (410, 1007): lambda _: RangeGone(),  # a split is being completed
}
_BY_STATUS: Mapping[int, Callable[[_Answer], OutboxError]] = {
    304: lambda answer: NotModified(etag=_header(answer.headers, "etag")),
    400: lambda answer: InvalidRequest(answer.message),
    401: lambda answer: AccessDenied(answer.message),
    403: lambda answer: AccessDenied(answer.message),
    404: lambda answer: NotFound(document_id=answer.document_id),
    405: lambda answer: InvalidRequest(answer.message),
    408: _failed,
    409: lambda answer: Conflict(document_id=answer.document_id),
    410: _refused,
    412: lambda answer: PreconditionFailed(document_id=answer.document_id),
    413: lambda answer: RequestTooLarge(answer.message),
    424: _refused,  # another operation of the batch failed
    429: lambda answer: TooManyRequests(answer.message, retry_after=answer.retry_after),
    449: _refused,
    500: _failed,
    503: _failed,
}


def _translate_status(status: int, sub_status: int, answer: _Answer) -> OutboxError:
    meaning = _BY_SUB_STATUS.get((status, sub_status)) or _BY_STATUS.get(status, _failed)
    return meaning(answer)


def _retry_after(headers: Mapping[str, Any]) -> float | None:
    milliseconds = _header(headers, "x-ms-retry-after-ms")
    try:
        return None if milliseconds is None else max(0.0, float(milliseconds) / 1000)
    except ValueError:
        return None


def _header(headers: Mapping[str, Any], name: str) -> str | None:
    return next((str(value) for key, value in headers.items() if str(key).lower() == name), None)
