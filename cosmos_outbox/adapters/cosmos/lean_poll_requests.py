"""
Lean polls: ask whether a range has anything new by sending the SDK's last request for it once more, without the SDK's pipeline.

An idle worker asks this over and over, and the SDK prepares retries, failover and sessions each time: three quarters of the CPU.
A lean poll verifies itself. Only the answer 304 with the etag that was asked for is trusted; after any other, or none, the SDK
reads, so nothing rests on a split, a refusal or an outage being understood here.

Endpoint, signature and headers are those of the SDK's request, which went over the same transport. They hold for a few minutes;
then the SDK sends one again, to the region that it uses by now. A token that it sent is good for as long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Protocol
from urllib.parse import urlsplit

from aiohttp import ClientError
from azure.core.pipeline.transport import AioHttpTransport
from yarl import URL

SESSION_TOKEN = "x-ms-session-token"  # noqa: S105 - a header's name
RANGE_ID = "x-ms-documentdb-partitionkeyrangeid"
_NEEDED = {
    "a-im",
    RANGE_ID,
    "x-ms-cosmos-intended-collection-rid",
}  # without these, the answer could be about another range or position
_KNOWN_SECONDS = (
    # the service accepts a signature for 15 minutes, and the SDK renews a token 5 minutes before its end
    300.0
)
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 60.0, 4 * 3600.0
_LONGEST_BODY = 65_536  # bytes that are read of a body, so that the connection can be used again
_WITHOUT_CERTIFICATE = ("localhost", "127.0.0.1")  # the SDK does not verify these hosts either


class SentRequest(Protocol):
    """A request as the SDK sent it."""

    method: str
    url: str
    headers: Mapping[str, str]


# A listener to each answer of the service: it gets the request, the status and the headers.
Answered = Callable[[SentRequest, int, Mapping[str, str]], None]


class LeanPolls:
    """
    The polls of one container, by the range that they are about.

    Args:
        transport: of the SDK's client.
        timeout_seconds: of a whole poll.
        answered: hears of each answer. Defaults to nothing.
    """

    def __init__(
        self, transport: AioHttpTransport, *, timeout_seconds: float, answered: Answered | None = None
    ) -> None:
        self._transport, self._timeout, self._answered = transport, timeout_seconds, answered
        self._known: dict[Hashable, _Known] = {}
        self._endpoint = ""  # the endpoint of the SDK's last request, for any range
        self._pause, self._paused_until = _FIRST_PAUSE_SECONDS, 0.0

    def learn(self, about: Hashable, request: SentRequest) -> None:
        """Note a request of the SDK that found nothing new."""
        headers = {name.lower(): value for name, value in request.headers.items()}
        if not headers.keys() >= _NEEDED or "if-modified-since" in headers:
            self._known.pop(about, None)  # forget the request: the SDK sends the next one
            return
        self._endpoint = urlsplit(request.url).netloc
        until = asyncio.get_running_loop().time() + _KNOWN_SECONDS
        # The SDK reads new changes again, so one document is enough. The answer is not decoded here, so no gateway may compress it.
        headers |= {"x-ms-max-item-count": "1", "accept-encoding": "identity"}
        self._known[about] = _Known(
            request=request,
            url=URL(request.url, encoded=True),
            headers=headers,
            endpoint=self._endpoint,
            until=until,
        )

    async def nothing_new(
        self, about: Hashable, continuation: str, *, session_token: str
    ) -> Mapping[str, str] | None:
        """
        Return the headers which say that a range has nothing new after a continuation. Return None where this is
        unknown, so that the SDK asks.

        Args:
            about: what the range was learned as.
            continuation: the etag of its last answer.
            session_token: of the range, for an account whose consistency is Session.
        """
        known, now = self._known.get(about), asyncio.get_running_loop().time()
        if known is None or known.endpoint != self._endpoint or not self._paused_until <= now < known.until:
            return None
        headers = {**known.headers, "if-none-match": continuation}
        if session_token and headers.get("x-ms-consistency-level") == "Session":
            headers[SESSION_TOKEN] = session_token
        try:
            status, received = await self._send(known.url, headers)
        except (ClientError, TimeoutError, OSError):
            self._stop()
            return None
        if self._answered is not None:
            self._answered(known.request, status, received)
        if status not in (HTTPStatus.OK, HTTPStatus.NOT_MODIFIED) or "etag" not in received:
            self._stop()
            return None
        self._pause = _FIRST_PAUSE_SECONDS
        same = status == HTTPStatus.NOT_MODIFIED and received["etag"] == continuation
        return received if same else None

    async def _send(self, url: URL, headers: Mapping[str, str]) -> tuple[int, Mapping[str, str]]:
        session = self._transport.session
        if session is None:
            raise ConnectionError("The client is closed.")
        async with (
            asyncio.timeout(self._timeout),
            session.get(
                url, headers=headers, ssl=url.host not in _WITHOUT_CERTIFICATE, allow_redirects=False
            ) as answer,
        ):
            left = _LONGEST_BODY
            async for piece in answer.content.iter_any():
                left -= len(piece)
                if left < 0:
                    break
            return answer.status, answer.headers

    def _stop(self) -> None:
        # A poll that fails costs a second request. So the next polls are left to the SDK for a while, and for long
        # where a gateway lets no poll through.
        now = asyncio.get_running_loop().time()
        if now < self._paused_until:
            return  # the failed poll was of another range, and began before the pause
        self._paused_until = now + self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    request: SentRequest
    url: URL
    headers: Mapping[str, str]
    endpoint: str
    until: float  # the end of the pause, on the loop's clock
