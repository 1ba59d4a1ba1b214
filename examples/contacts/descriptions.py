"""
What the OpenAPI description tells of answers: their headers, and the problems that each operation may end with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

from examples.contacts.problems import MEDIA_TYPE, Problem

Responses = dict[int | str, dict[str, Any]]


def _header(description: str, kind: str = "string") -> dict[str, Any]:
    return {"schema": {"type": kind}, "description": description}


def _answer(status: HTTPStatus, description: str, headers: Mapping[str, Any]) -> Responses:
    return {int(status): {"description": description, "headers": headers}}


def _problems(*statuses: HTTPStatus, headers: Mapping[str, Any] | None = None) -> Responses:
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {
        int(status): {"description": status.phrase, "content": content, "headers": headers or {}}
        for status in statuses
    }


_ETAG = _header("The contact's etag.")
_STORED = _header(
    "The contact's etag; not there in the rare case that it is not known, because the store's answer was lost."
)
_CHANGE = {
    "X-Contact-Version": _header("The contact's new version.", "integer"),
    "X-Event-Ids": _header("The ids of the events that were committed, in order, separated by commas."),
}
_RETRY_AFTER = _header(
    "Seconds to wait before trying again; not there if the change may be stored already.", "integer"
)
_WHERE_TO_LOOK = _header(
    "Where to look, instead of trying again, if it is not known whether the contact was stored."
)

FAILURE = _problems(HTTPStatus.INTERNAL_SERVER_ERROR)
ALWAYS = (
    _problems(HTTPStatus.BAD_REQUEST)
    | FAILURE
    | _problems(
        HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE, headers={"Retry-After": _RETRY_AFTER}
    )
)
CREATED = (
    _answer(
        HTTPStatus.CREATED,
        "The contact as it is stored.",
        {"Location": _header("Where the contact is read."), "ETag": _STORED, **_CHANGE},
    )
    | _problems(HTTPStatus.CONFLICT)
    | _problems(
        HTTPStatus.SERVICE_UNAVAILABLE, headers={"Retry-After": _RETRY_AFTER, "Location": _WHERE_TO_LOOK}
    )
)
LISTED = _answer(
    HTTPStatus.OK,
    "A page of contacts.",
    {"X-Continuation-Token": _header("As in the body; not there after the last page.")},
)
_REFUSED = _problems(HTTPStatus.NOT_FOUND) | _problems(
    HTTPStatus.PRECONDITION_FAILED, headers={"ETag": _ETAG}
)
READ = (
    _answer(HTTPStatus.OK, "The contact.", {"ETag": _ETAG})
    | _answer(HTTPStatus.NOT_MODIFIED, "The caller's copy is current.", {"ETag": _ETAG})
    | _REFUSED
)
CHANGED = _answer(HTTPStatus.OK, "The contact as it is now stored.", {"ETag": _STORED, **_CHANGE}) | _REFUSED
DELETED = _answer(HTTPStatus.NO_CONTENT, "The contact is deleted.", _CHANGE) | _REFUSED


def with_problems(generate: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    """
    Return what generates the description, with our problems in place of FastAPI's own 422.
    """

    def openapi() -> dict[str, Any]:
        schema = generate()
        # FastAPI keeps it, so the changes below happen to one object, any number of times
        for path in schema["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)  # invalid requests are answered with 400
        schemas = schema.setdefault("components", {}).setdefault("schemas", {})
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        schemas.setdefault("Problem", Problem.model_json_schema())
        return schema

    return openapi
