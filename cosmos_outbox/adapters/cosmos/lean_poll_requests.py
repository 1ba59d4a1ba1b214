"""
Lean polls: ask whether a range has anything new by repeating the SDK's last request for that range, without the SDK's
pipeline. `feed.py` decides when a range is polled in this way.

An idle worker polls each range over and over. For each request the SDK prepares retries, failover and sessions, which
takes three quarters of the worker's CPU. Only one answer to a lean poll is trusted: 304 with the etag that was sent.
After any other answer, or none, the SDK reads the page. So this module does not have to understand a split, a refusal
or an outage.

A lean poll takes endpoint, signature and headers from the SDK's request, and uses the same transport. It repeats a
request for five minutes. Then the SDK sends the next request, to the region that it uses at that time. A token of
Microsoft Entra ID that the SDK sent is valid for these five minutes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Protocol
from urllib.parse import urlsplit

from aiohttp import ClientError, ClientTimeout
from azure.core.pipeline.transport import AioHttpTransport
from yarl import URL

SESSION_TOKEN = "x-ms-session-token"  # noqa: S105 - a header's name
RANGE_ID = "x-ms-documentdb-partitionkeyrangeid"
_NEEDED = {
    "a-im",
    RANGE_ID,
    "x-ms-cosmos-intended-collection-rid",
}  # without these headers, the answer could be about another range or position
_KNOWN_SECONDS = (
    # For how many seconds a request of the SDK is repeated. The service accepts its signature for 15 minutes,
    # and the SDK renews a token 5 minutes before its end. So signature and token are valid for this time.
    300.0
)
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 60.0, 4 * 3600.0
_LONGEST_BODY = 65_536  # a body up to this size is read, so that its connection can be used again
# Hosts whose certificates the SDK does not verify, nor does this module.
_WITHOUT_CERTIFICATE = ("localhost", "127.0.0.1")


class SentRequest(Protocol):
    """The parts of an HTTP request that a lean poll copies from the SDK."""

    method: str
    url: str
    headers: Mapping[str, str]


# A function that is called with the request, the status and the headers of each answer of the service.
Answered = Callable[[SentRequest, int, Mapping[str, str]], None]


class LeanPolls:
    """
    The lean polls of one container, by range: requests without the SDK's pipeline that ask whether a range has changes.

    Args:
        transport: the transport of the SDK's client.
        timeout_seconds: how long a whole poll may take.
        answered: a function that is called with each answer. Defaults to none.
    """

    def __init__(
        self, transport: AioHttpTransport, *, timeout_seconds: float, answered: Answered | None = None
    ) -> None:
        self._transport, self._answered = transport, answered
        self._timeout = ClientTimeout(total=timeout_seconds)
        self._known: dict[Hashable, _Known] = {}
        self._endpoint = ""  # the endpoint of the SDK's last request, for any range
        self._pause, self._paused_until = _FIRST_PAUSE_SECONDS, 0.0

    def learn(self, about: Hashable, request: SentRequest) -> None:
        """Remember a request of the SDK that found nothing new, so that polls of the same range can repeat it."""
        headers = {name.lower(): value for name, value in request.headers.items()}
        if not headers.keys() >= _NEEDED or "if-modified-since" in headers:
            self._known.pop(about, None)  # this request cannot be repeated, so the SDK sends the next poll
            return
        self._endpoint = urlsplit(request.url).netloc
        until = asyncio.get_running_loop().time() + _KNOWN_SECONDS
        # Ask for one document only, because the caller reads new changes again through the SDK. Ask for an
        # uncompressed answer, because this module does not decode it.
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
        Ask whether a range has anything new after a continuation. If it has nothing new, return the headers of the
        answer. Otherwise return None, so that the caller reads the range through the SDK.

        Args:
            about: the value under which `learn` remembered the range.
            continuation: the etag of the range's last answer.
            session_token: the session token of the range, which is sent if the account's consistency is Session.
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
            raise ConnectionError("The Cosmos DB client is closed.")
        verified = url.host not in _WITHOUT_CERTIFICATE
        async with session.get(
            url, headers=headers, ssl=verified, allow_redirects=False, timeout=self._timeout
        ) as answer:
            left = _LONGEST_BODY
            async for piece in answer.content.iter_any():
                left -= len(piece)
                if left < 0:
                    break
            return answer.status, answer.headers

    def _stop(self) -> None:
        # After a lean poll that fails, the SDK has to send the request again. So send no lean polls for a
        # while. If each try fails, for example because a gateway lets no poll through, the pause grows to
        # hours.
        now = asyncio.get_running_loop().time()
        if now < self._paused_until:
            return  # this poll began before another range's poll failed, which started the pause
        self._paused_until = now + self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    request: SentRequest
    url: URL
    headers: Mapping[str, str]
    endpoint: str
    until: float  # until when the request may be repeated, on the loop's clock
