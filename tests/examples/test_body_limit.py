"""Tests that the API refuses a too large request before it has read the whole body."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import HTTPException

from examples.contacts.body_limit import BodyLimit


@pytest.mark.parametrize("announced", [True, False])
async def test_a_too_large_body_is_refused_before_it_is_read_completely(announced: bool):
    read: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        read.append(len((await receive())["body"]))

    async def post(size: int) -> None:
        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"x" * size}

        headers = [(b"content-length", str(size).encode())] if announced else []
        await BodyLimit(app, most_bytes=10)({"type": "http", "headers": headers}, receive, None)  # type: ignore[arg-type]

    await post(10)
    with pytest.raises(HTTPException, match="413: The body is larger than 10 bytes"):
        await post(11)
    assert [10] == read
