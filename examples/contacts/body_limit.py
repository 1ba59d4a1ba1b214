"""An ASGI middleware, BodyLimit, that refuses a request whose body is too large before the application reads the whole body."""

from __future__ import annotations

from fastapi import HTTPException
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MOST_BYTES = 2 * 1024 * 1024  # Cosmos DB takes no larger document or batch


class BodyLimit:
    """
    Answer a request with 413 if its body is too large, before the application reads the whole body.

    If the request has a Content-Length, it is refused at once. Otherwise it is refused when too many bytes have arrived.

    Args:
        app: the application that handles the other requests.
        most_bytes: how large a body may be. Defaults to 2 MB.
    """

    def __init__(self, app: ASGIApp, most_bytes: int = MOST_BYTES) -> None:
        self._app, self._most_bytes = app, most_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        announced = Headers(scope=scope).get("content-length", "") if scope["type"] == "http" else ""
        received = int(announced) if announced.isascii() and announced.isdecimal() else 0

        async def receive_within() -> Message:
            nonlocal received
            # The check runs when the application reads the body. So the exception is raised inside the application, whose
            # exception handler then writes the answer.
            self._check(received)
            message = await receive()
            if not announced:
                received += len(message.get("body", b""))
                self._check(received)
            return message

        await self._app(scope, receive_within if scope["type"] == "http" else receive, send)

    def _check(self, size: int) -> None:
        if size > self._most_bytes:
            raise HTTPException(413, f"The body is larger than {self._most_bytes} bytes.")
