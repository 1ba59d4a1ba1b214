"""Problems: answer every error of the application with problem details (RFC 9457)."""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Mapping
from http import HTTPStatus
from http.client import responses as phrases
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exception_handlers import http_exception_handler
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from cosmos_outbox import errors
from cosmos_outbox.fastapi.request_correlation import CORRELATION_HEADER

MEDIA_TYPE = "application/problem+json"
DEFAULT_RETRY_SECONDS = 1.0
KEY_HEADER, MISSING_KEY = (
    "Idempotency-Key",
    "Send one Idempotency-Key of 1 to 255 ASCII characters, such as a UUID, in double quotes if it has spaces, commas or semicolons, and the same one when you repeat the request.",
)

_logger = logging.getLogger("cosmos_outbox.fastapi")

# The HTTP status and the detail for each error. The details are for callers of the API. The texts of the errors themselves are for the
# programmer.
_ANSWERS: dict[type[errors.OutboxError], tuple[int, str]] = {
    errors.NotFound: (404, "It does not exist, or it was deleted."),
    errors.Conflict: (409, "There is one with this id already."),
    errors.PreconditionFailed: (412, "Its etag is not the one that the request asks for; read it again."),
    errors.InvalidRequest: (
        400,
        "The request is not valid; a continuation token must be one that this API returned.",
    ),
    errors.RequestTooLarge: (413, "It is too large."),
    errors.BatchTooLarge: (413, "The change is too large."),
    errors.EventTooLarge: (413, "The change is too large."),
    errors.TooManyRequests: (429, "There are too many requests; retry after the time in Retry-After."),
    errors.StoreUnavailable: (503, "The data cannot be reached, and nothing was changed; retry later."),
    errors.CommitOutcomeUnknown: (503, "It is not known whether the change was stored; read it to find out."),
    errors.RequestStillRunning: (
        409,
        "An equal request still runs; repeat this one after the time in Retry-After.",
    ),
    errors.IdempotencyKeyReused: (
        422,
        "Its Idempotency-Key was used for another request; send it under a new one.",
    ),
    errors.OutboxError: (500, "The server cannot do this as it is set up; see its log."),
}


class Problem(BaseModel):
    """The problem details of an answer: what went wrong (RFC 9457)."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str | None = None
    instance: str | None = None
    errors: dict[str, list[str]] | None = Field(
        default=None, description="For invalid requests: what is wrong with each field."
    )


# The `responses` of all routes, for `FastAPI(responses=…)`. With them, FastAPI adds no description of a 422 of its own.
PROBLEMS: dict[int | str, dict[str, Any]] = {
    kind: {"description": "A problem.", "content": {MEDIA_TYPE: {"schema": Problem.model_json_schema()}}}
    for kind in ("4XX", "5XX")
}


def add_handlers(app: FastAPI, invalid_status: int) -> None:
    """
    Make an application answer every error with problem details. If the application adds its own handler for a class of errors, FastAPI
    uses the application's.
    """

    async def invalid(request: Request, error: Exception) -> Response:
        mistakes: dict[str, list[str]] = defaultdict(list)
        if isinstance(error, RequestValidationError):
            if any(one["loc"] == ("header", KEY_HEADER) for one in error.errors()):
                return _answer(request, 400, {"detail": MISSING_KEY})
            for mistake in error.errors():
                place, *path = mistake["loc"]
                field = ".".join(str(part) for part in path) if mistake["type"] != "json_invalid" else ""
                mistakes[field or str(place)].append(mistake["msg"])
        said = {"detail": "The request is not valid; see errors.", "errors": mistakes}
        return _answer(request, invalid_status, said)

    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(errors.OutboxError, _outbox_error)
    app.add_exception_handler(Exception, _answer_unexpected)


def problem_response(
    request: Request, status: int, detail: str, *, headers: Mapping[str, str] | None = None, **members: Any
) -> Response:
    """
    Return an answer with problem details. An application's own handler of an error may use this function.

    Args:
        request: the request that failed.
        status: the HTTP status; its phrase is the title.
        detail: what went wrong, for the caller of the API.
        headers: the headers of the answer.
        members: further members of the problem details, such as `type`, `title`, or names of the application's own.
    """
    return _answer(request, status, {"detail": detail, **members}, headers)


def _answer(
    request: Request, status: int, said: Mapping[str, Any], headers: Mapping[str, str] | None = None
) -> Response:
    problem = {"type": "about:blank", "title": phrases.get(status, "Error"), "instance": request.url.path}
    return JSONResponse(
        {**problem, **said, "status": status}, status_code=status, headers=headers, media_type=MEDIA_TYPE
    )


async def _http_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    status = error.status_code
    if status < HTTPStatus.BAD_REQUEST:  # such as a redirection
        return await http_exception_handler(request, error)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        _log(request, error)
    # FastAPI allows any value as `detail`. The items of a dict become members of the problem details.
    said: Any = error.detail
    if not isinstance(said, dict):
        said = {} if said == phrases.get(status) else {"detail": str(said)}
    return _answer(request, status, said, error.headers)


async def _outbox_error(request: Request, error: Exception) -> Response:
    # A WebSocket gets no HTTP answer, so raise the error again.
    if not isinstance(error, errors.OutboxError) or request.scope["type"] != "http":
        raise error
    if isinstance(error, errors.NotModified):
        return Response(status_code=304, headers={"ETag": error.etag} if error.etag else None)
    status, detail = next(_ANSWERS[kind] for kind in type(error).__mro__ if kind in _ANSWERS)
    if overtaken := getattr(error, "overtaken", False):  # not 412, because the caller sent no etag
        status, detail = 503, "Other requests were first each time, and nothing was changed; retry later."
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        _log(request, error)
    headers: dict[str, str] = {}
    # CommitOutcomeUnknown gets no Retry-After, because a caller that repeats a creation could create a second entity.
    if overtaken or isinstance(error, (*errors.BUSY, errors.RequestStillRunning)):
        headers["Retry-After"] = str(math.ceil(error.retry_after or DEFAULT_RETRY_SECONDS))
    elif isinstance(error, errors.PreconditionFailed) and error.actual:
        headers["ETag"] = error.actual
    return _answer(request, status, {"detail": detail}, headers)


async def _answer_unexpected(request: Request, error: Exception) -> Response:
    # Add the correlation id here, because this answer does not pass the middleware that adds it to other answers. The traceback
    # is not logged here, because the server logs it.
    given = getattr(request.state, "correlation_id", None)
    _log(request, error, traced=False)
    said = {"detail": "The server failed; see its log."}
    return _answer(request, 500, said, {CORRELATION_HEADER: given} if given else None)


def _log(request: Request, error: Exception, *, traced: bool = True) -> None:
    """Log a failure with the correlation id that the caller got, so that a search finds it. A retriable error is logged in one line."""
    correlation_id = getattr(request.state, "correlation_id", None)
    _logger.error(
        "request.failed %s %s correlation_id=%s %s: %s",
        request.method,
        request.url.path,
        correlation_id,
        type(error).__name__,
        error,
        extra={"path": request.url.path, "correlation_id": correlation_id},
        exc_info=error if traced and not getattr(error, "retriable", False) else None,
    )
