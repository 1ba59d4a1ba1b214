"""
Problems: every error of the API as RFC 9457 problem details.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from cosmos_outbox import (
    BatchTooLarge,
    CommitOutcomeUnknown,
    Conflict,
    InvalidRequest,
    NotFound,
    NotModified,
    OutboxError,
    PreconditionFailed,
    RequestTooLarge,
    StoreUnavailable,
    TooManyRequests,
)
from examples.contacts.request_context import CORRELATION_HEADER

MEDIA_TYPE = "application/problem+json"
DEFAULT_RETRY_SECONDS = 1.0

_logger = logging.getLogger("contacts.api")

# What the library's errors say is for the program that calls it; these sentences are for callers of the API.
_ANSWERS: dict[type[OutboxError], tuple[HTTPStatus, str]] = {
    NotFound: (HTTPStatus.NOT_FOUND, "There is no such contact, or it was deleted."),
    Conflict: (HTTPStatus.CONFLICT, "There is already a contact with this id."),
    PreconditionFailed: (
        HTTPStatus.PRECONDITION_FAILED,
        "The contact's etag is not the one that the request asks for; read the contact again.",
    ),
    InvalidRequest: (
        HTTPStatus.BAD_REQUEST,
        "The request is not valid; a continuation token must be one that this API returned.",
    ),
    RequestTooLarge: (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "The contact is too large."),
    BatchTooLarge: (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "The change is too large."),
    TooManyRequests: (
        HTTPStatus.TOO_MANY_REQUESTS,
        "There are too many requests; retry after the time in Retry-After.",
    ),
    StoreUnavailable: (
        HTTPStatus.SERVICE_UNAVAILABLE,
        "The contacts cannot be reached, and nothing was changed; retry later.",
    ),
    CommitOutcomeUnknown: (
        HTTPStatus.SERVICE_UNAVAILABLE,
        "It is not known whether the change was stored; read the contact to find out.",
    ),
    OutboxError: (
        HTTPStatus.INTERNAL_SERVER_ERROR,
        "The server cannot do this as it is set up; see its log.",
    ),
}


class Problem(BaseModel):
    """
    What went wrong (RFC 9457).
    """

    type: str = "about:blank"
    title: str
    status: int
    detail: str | None = None
    instance: str | None = None
    errors: dict[str, list[str]] | None = Field(
        default=None, description="For invalid requests: what is wrong with each field."
    )


# Of every operation, for the OpenAPI description; FastAPI then describes no 422 of its own.
DOCUMENTED: dict[int | str, dict[str, Any]] = {
    kind: {"description": "A problem.", "content": {MEDIA_TYPE: {"schema": Problem.model_json_schema()}}}
    for kind in ("4XX", "5XX")
}


def install(app: FastAPI, *routers: APIRouter) -> None:
    """
    Make an application answer every error as a problem; what a path allows is said by the routes of the routers.
    """
    routes = [route for router in routers for route in router.routes if isinstance(route, APIRoute)]

    async def http_error(request: Request, error: Exception) -> Response:
        if not isinstance(error, HTTPException):
            raise error
        status, headers = HTTPStatus(error.status_code), dict(error.headers or {})
        if status is HTTPStatus.METHOD_NOT_ALLOWED and (allowed := _allowed(routes, request.url.path)):
            headers["Allow"] = ", ".join(allowed)
        detail = error.detail if error.detail != status.phrase else None
        return _answer(request, status, detail, headers=headers)

    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(NotModified, _not_modified)
    app.add_exception_handler(OutboxError, _outbox_error)
    app.add_exception_handler(Exception, _unexpected)


def _answer(
    request: Request,
    status: HTTPStatus,
    detail: str | None,
    *,
    errors: dict[str, list[str]] | None = None,
    headers: dict[str, str] | None = None,
) -> Response:
    problem = Problem(
        title=status.phrase, status=status, detail=detail, instance=request.url.path, errors=errors
    )
    return JSONResponse(
        problem.model_dump(exclude_none=True), status_code=status, headers=headers, media_type=MEDIA_TYPE
    )


async def _invalid(request: Request, error: Exception) -> Response:
    errors: dict[str, list[str]] = defaultdict(list)
    if isinstance(error, RequestValidationError):
        for mistake in error.errors():
            place, *path = mistake["loc"]
            field = ".".join(str(part) for part in path) if mistake["type"] != "json_invalid" else ""
            errors[field or str(place)].append(mistake["msg"])
    return _answer(request, HTTPStatus.BAD_REQUEST, "The request is not valid; see errors.", errors=errors)


def _allowed(routes: Iterable[APIRoute], path: str) -> list[str]:
    # Starlette names those of the first route of that path only, while each method here has a route of its own.
    return sorted(
        {method for route in routes if route.path_regex.match(path) for method in route.methods or ()}
    )


async def _not_modified(request: Request, error: Exception) -> Response:
    etag = error.etag if isinstance(error, NotModified) else None
    return Response(status_code=HTTPStatus.NOT_MODIFIED, headers={"ETag": etag} if etag else None)


async def _outbox_error(request: Request, error: Exception) -> Response:
    status, detail = next(_ANSWERS[kind] for kind in type(error).__mro__ if kind in _ANSWERS)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        _logger.error("request.failed", extra={"path": request.url.path}, exc_info=error)
    headers: dict[str, str] = {}
    if isinstance(
        error, CommitOutcomeUnknown
    ):  # a caller that repeats a creation would make a second contact
        if (location := getattr(request.state, "location", None)) is not None:
            headers["Location"] = location
    elif isinstance(error, (TooManyRequests, StoreUnavailable)):
        headers["Retry-After"] = str(math.ceil(error.retry_after or DEFAULT_RETRY_SECONDS))
    elif isinstance(error, PreconditionFailed) and error.actual:
        headers["ETag"] = error.actual
    return _answer(request, status, detail, headers=headers)


async def _unexpected(request: Request, error: Exception) -> Response:
    # This answer does not pass the middleware, and it needs the id most.
    headers = {CORRELATION_HEADER: request.state.correlation_id}
    detail = "The server failed; see its log."
    return _answer(request, HTTPStatus.INTERNAL_SERVER_ERROR, detail, headers=headers)
