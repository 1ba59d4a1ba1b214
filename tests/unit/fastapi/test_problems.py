"""Errors of an application are answered with problem details (RFC 9457) that say what the client may do."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest
from fastapi import FastAPI, HTTPException, WebSocket

from cosmos_outbox import Outbox, errors
from cosmos_outbox.adapters.memory import MemoryContainer
from cosmos_outbox.fastapi import Problem, install
from tests.unit.fastapi.orders import Answer, ask, make_app

STATUSES = {
    "NotFound": 404,
    "Conflict": 409,
    "PreconditionFailed": 412,
    "InvalidRequest": 400,
    "RequestTooLarge": 413,
    "BatchTooLarge": 413,
    "EventTooLarge": 413,
    "TooManyRequests": 429,
    "StoreUnavailable": 503,
    "CommitOutcomeUnknown": 503,
    "NotModified": 304,
    "RequestStillRunning": 409,
    "IdempotencyKeyReused": 422,
}
TREE = [
    kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, errors.OutboxError)
]


def made(kind: type[errors.OutboxError]) -> errors.OutboxError:
    error = kind.__new__(kind)  # skips `__init__`, because each class has other arguments
    errors.OutboxError.__init__(error, "the key is sesame")
    for name in ("retry_after", "actual", "etag"):
        setattr(error, name, None)
    return error


async def answer_to(error: Exception, app: FastAPI | None = None) -> Answer:
    app = app or make_app(MemoryContainer())

    @app.get("/failing")
    async def fail() -> None:
        raise error

    return await ask(app, "GET", "/failing")


@pytest.mark.parametrize("kind", TREE, ids=lambda kind: kind.__name__)
async def test_every_error_of_the_library_has_an_http_status(
    kind: type[errors.OutboxError], caplog: pytest.LogCaptureFixture
):
    """The test also checks that no answer contains the text of the error, which may hold secrets."""
    answer = await answer_to(made(kind))

    assert STATUSES.get(kind.__name__, 500) == answer.status
    assert "sesame" not in answer.text
    assert (answer.status >= 500) == ("request.failed" in caplog.text), "what an operator has to know of"
    if kind is not errors.NotModified:
        assert "application/problem+json" == answer.headers["content-type"]
        problem = Problem.model_validate(answer.body)
        assert (answer.status, "/failing") == (problem.status, problem.instance)
        assert problem.detail


@pytest.mark.parametrize(
    ("error", "header", "value"),
    [
        pytest.param(errors.TooManyRequests(retry_after=30.2), "retry-after", "31", id="429"),
        pytest.param(errors.TooManyRequests(), "retry-after", "1", id="429 that says nothing"),
        pytest.param(errors.StoreUnavailable(retry_after=2), "retry-after", "2", id="503"),
        pytest.param(errors.CommitOutcomeUnknown(), "retry-after", None, id="unknown outcome"),
        pytest.param(errors.PreconditionFailed(actual='"2"'), "etag", '"2"', id="412"),
        pytest.param(errors.PreconditionFailed(overtaken=True), "retry-after", "1", id="503 of `run`"),
        pytest.param(errors.NotModified(etag='"3"'), "etag", '"3"', id="304"),
    ],
)
async def test_the_answer_to_an_error_has_the_header_retry_after_or_etag(
    error: Exception, header: str, value: str | None
):
    assert value == (await answer_to(error)).headers.get(header)


async def test_an_unexpected_exception_is_answered_with_500_without_its_text():
    """The answer has the correlation id of the request, so that an operator finds the log line."""
    answer = await answer_to(RuntimeError("the key is sesame"))

    assert (500, "application/problem+json") == (answer.status, answer.headers["content-type"])
    assert "sesame" not in answer.text
    assert answer.headers["x-correlation-id"]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        pytest.param(HTTPException(404), {"title": "Not Found"}, id="without detail"),
        pytest.param(
            HTTPException(409, {"orders": [1], "status": 7}), {"title": "Conflict", "orders": [1]}, id="dict"
        ),
        pytest.param(HTTPException(499, "gone"), {"title": "Error", "detail": "gone"}, id="own status"),
        pytest.param(
            HTTPException(503, "later", headers={"Retry-After": "7"}), {"detail": "later"}, id="503"
        ),
    ],
)
async def test_an_httpexception_of_the_application_is_answered_with_problem_details(
    error: HTTPException, told: dict[str, Any], caplog: pytest.LogCaptureFixture
):
    answer = await answer_to(error)

    assert error.status_code == answer.status == answer.body["status"]
    assert "application/problem+json" == answer.headers["content-type"]
    assert told == {name: answer.body[name] for name in told}
    assert (error.headers or {}).get("Retry-After") == answer.headers.get("retry-after")
    assert (answer.status >= 500) == ("request.failed" in caplog.text)


async def test_a_redirect_is_left_to_fastapi():
    answer = await answer_to(HTTPException(303, headers={"Location": "/other"}))
    assert (303, "/other") == (answer.status, answer.headers["location"])
    assert "problem" not in answer.headers["content-type"]


@pytest.mark.parametrize("status", [422, 400])
async def test_an_invalid_request_is_answered_with_the_name_of_the_wrong_field(
    status: int,
):
    """The status of the answer is 422, unless the application configured another one."""
    app = make_app(MemoryContainer(), **({} if status == 422 else {"invalid_status": status}))

    answer = await ask(app, "GET", f"/orders/{'x' * 1024}")

    assert (status, "application/problem+json") == (answer.status, answer.headers["content-type"])
    assert ["order_id"] == list(answer.body["errors"])
    assert "1 to 1023 bytes" in answer.text


async def test_a_failure_is_logged_with_the_correlation_id_of_the_request(caplog: pytest.LogCaptureFixture):
    app = make_app(MemoryContainer())

    @app.get("/failing")
    async def fail() -> None:
        raise errors.StoreUnavailable("Cosmos DB did not answer.")

    await ask(app, "GET", "/failing", [("X-Correlation-Id", "find-me-123")])
    (record,) = [one for one in caplog.records if "request.failed" in one.message]
    assert (
        "GET /failing correlation_id=find-me-123 StoreUnavailable: Cosmos DB did not answer."
        in record.message
    )
    assert not record.exc_info, "an outage is one line"


async def test_an_error_in_a_websocket_is_raised_to_the_server():
    app = FastAPI()
    install(app, Outbox(MemoryContainer()))

    @app.websocket("/ws")
    async def fail(socket: WebSocket) -> None:
        raise errors.NotFound

    scope = {"type": "websocket", "path": "/ws", "root_path": "", "query_string": b"", "headers": []}
    with pytest.raises(errors.NotFound):
        await app(scope, asyncio.Event().wait, print)
