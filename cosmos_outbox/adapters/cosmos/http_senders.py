"""
HTTP senders: what sends an HTTP request to an endpoint. It is `HttpClient`, or aiohttp where httptools is not installed, or where the
environment names a proxy for the endpoint.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import lru_cache
from typing import Protocol
from urllib.parse import urlsplit

from aiohttp import ClientError, ClientSession, ClientTimeout, DummyCookieJar
from yarl import URL

from cosmos_outbox.proxies import any_proxy, proxy_for

_ANSWERS_WITHOUT_CERTIFICATE = ("localhost", "127.0.0.1")  # the SDK does not verify these hosts either


class Sender(Protocol):
    """
    Sends requests over connections that are kept open.
    """

    async def send(
        self, method: str, endpoint: str, path: str, headers: Mapping[str, str], body: bytes | None
    ) -> tuple[int, Mapping[str, str], bytes]:
        """
        Return status, headers with names in lower case, and body of the answer.

        Args:
            method: in capitals.
            endpoint: scheme, host and port.
            path: from the first slash on, quoted.
            headers: beside those that HTTP itself needs.
            body: None for none.

        Raises:
            ConnectionError: no answer, or not all of it; the service may have executed the request.
            ValueError: a header or the path contains the end of a line.
        """
        ...


@asynccontextmanager
async def open_senders() -> AsyncIterator[Callable[[str], Sender]]:
    """
    Open the senders; yield a function that returns the sender of an endpoint.
    """
    async with AsyncExitStack() as stack:
        session = ClientSession(
            cookie_jar=DummyCookieJar(),
            timeout=ClientTimeout(),  # the caller has one for the whole request
            skip_auto_headers=("Content-Type", "Accept-Encoding"),
            trust_env=any_proxy(),
        )
        through_proxies: Sender = _Aiohttp(await stack.enter_async_context(session))
        direct = through_proxies
        try:
            from cosmos_outbox.adapters.cosmos.http import HttpClient  # noqa: PLC0415 - httptools is an extra
        except ImportError:
            pass
        else:
            direct = client = HttpClient(unverified=_ANSWERS_WITHOUT_CERTIFICATE)
            stack.push_async_callback(client.close)

        @lru_cache
        def sender_of(endpoint: str) -> Sender:
            parts = urlsplit(endpoint)
            return through_proxies if proxy_for(parts.scheme, parts.hostname or "") else direct

        yield sender_of


class _Aiohttp:
    """
    Sends through aiohttp, which repeats a GET, PUT or DELETE by itself when a connection that was kept open breaks.
    """

    def __init__(self, session: ClientSession) -> None:
        self._session = session

    async def send(
        self, method: str, endpoint: str, path: str, headers: Mapping[str, str], body: bytes | None
    ) -> tuple[int, Mapping[str, str], bytes]:
        url = _url(endpoint, path)
        try:
            async with self._session.request(
                method,
                url,
                headers=headers,
                data=body,
                ssl=url.host not in _ANSWERS_WITHOUT_CERTIFICATE,
                allow_redirects=False,
            ) as answer:
                named = {name.lower(): value for name, value in answer.headers.items()}
                return answer.status, named, await answer.read()
        except ClientError as error:
            raise ConnectionError(repr(error)) from error


@lru_cache(maxsize=1024)
def _url(endpoint: str, path: str) -> URL:
    return URL(f"{endpoint}{path}", encoded=True)
