"""
RestClient: one request to Cosmos DB over plain REST, for what is asked too often to pay for the SDK.

A request through the SDK costs two to three milliseconds of CPU, most of it for retries, failover and sessions. Here it costs a
tenth (a fifth with aiohttp), and has none of them. The caller decides what an answer means, and sends what it cannot judge once
more through the SDK.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from email.utils import formatdate
from hashlib import sha256
from typing import Any, Protocol
from urllib.parse import quote, urlsplit

from azure.core.credentials_async import AsyncTokenCredential
from azure.core.exceptions import ClientAuthenticationError, DecodeError

from cosmos_outbox.adapters.cosmos.http_senders import Sender, open_senders

_DEFAULT_SCOPE = "https://cosmos.azure.com/.default"
_TOKEN_SECONDS = 60.0
# Answers to a write that the service refused and did not execute; the SDK may know a way around the reason
NOT_EXECUTED = (400, 401, 403, 404, 410)
_HEADERS = {
    "Accept": "application/json",
    "Cache-Control": "no-cache",
    "User-Agent": "cosmos-outbox",
    "x-ms-version": "2020-07-15",
    "x-ms-cosmos-sdk-supportedcapabilities": "1",  # partitions may be merged
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """
    What the service answered; the names of the headers are in lower case.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def sub_status(self) -> int:
        """
        Return the sub-status, 0 if there is none.
        """
        text = self.headers.get("x-ms-substatus", "")
        return int(text) if text.isdecimal() else 0

    def json(self) -> Any:
        """
        Return the value of the body.

        Raises:
            azure.core.exceptions.DecodeError: it is no JSON, as a proxy writes it; the service may have executed the request.
        """
        try:
            return json.loads(self.body)
        except ValueError as error:
            raise DecodeError(message=f"The answer {self.status} is no JSON: {error}") from error


class RestClient:
    """
    Sends requests over connections that are kept open; `open_rest_client` opens it.
    """

    def __init__(
        self, sender_of: Callable[[str], Sender], signatures: _Signatures, timeout_seconds: float
    ) -> None:
        self._sender_of, self._signatures = sender_of, signatures
        self._timeout = timeout_seconds

    async def request(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str],
        endpoint: str,
        body: bytes | None = None,
    ) -> Answer:
        """
        Send a request once and return the answer, whatever it says.

        Where a connection that was kept open breaks, a GET is sent once more, and by aiohttp (see `senders`) a PUT or DELETE too. So a
        write whose repetition would harm is sent as a batch, which is a POST.

        Args:
            method: in capitals.
            path: of the resource, not quoted: dbs/NAME/colls/NAME/docs.
            headers: beside those of every request.
            endpoint: of a region, such as https://NAME-westeurope.documents.azure.com:443.
            body: None for none.

        Raises:
            ConnectionError, TimeoutError: no answer; the service may have executed the request.
            azure.core.exceptions.ClientAuthenticationError: the credential gives no token.
        """
        # The time-out is one of the token too: one that never comes would stop all ranges.
        async with asyncio.timeout(self._timeout):
            signature = await self._signatures.headers(method, path)
            status, received, content = await self._sender_of(endpoint).send(
                method, endpoint, f"/{quote(path)}", {**_HEADERS, **headers, **signature}, body
            )
            return Answer(status=status, headers=received, body=content)


@asynccontextmanager
async def open_rest_client(
    *, endpoint: str, credential: AsyncTokenCredential | str, timeout_seconds: float
) -> AsyncIterator[RestClient]:
    """
    Open a client with a proxy where the environment names one, as the SDK does.

    Args:
        endpoint: the account's URL.
        credential: an account key or a token credential.
        timeout_seconds: of a whole request, with the token for it.
    """
    signatures: _Signatures = (
        _ByKey(credential) if isinstance(credential, str) else _ByToken(credential, endpoint)
    )
    async with open_senders() as sender_of:
        yield RestClient(sender_of, signatures, timeout_seconds)


class _Signatures(Protocol):
    async def headers(self, method: str, path: str) -> Mapping[str, str]:
        """
        Return the headers that date a request and authorise its sender.
        """
        ...


class _ByKey:
    """
    Signs with the account's key; a signature holds for one second, the resolution of its date.
    """

    def __init__(self, key: str) -> None:
        self._key = base64.b64decode(key)
        self._second, self._date = 0, ""
        self._known: dict[tuple[str, str], Mapping[str, str]] = {}

    async def headers(self, method: str, path: str) -> Mapping[str, str]:
        second = int(time.time())
        if second != self._second:
            self._second, self._date, self._known = second, formatdate(second, usegmt=True), {}
        if (known := self._known.get((method, path))) is None:
            known = self._known[method, path] = self._signed(method, path, self._date)
        return known

    def _signed(self, method: str, path: str, date: str) -> Mapping[str, str]:
        # dbs/d/colls/c/docs lists the docs of dbs/d/colls/c; dbs/d/colls/c/docs/x is itself a docs.
        parts = path.split("/")
        kind, link = (parts[-1], "/".join(parts[:-1])) if len(parts) % 2 else (parts[-2], path)
        text = f"{method.lower()}\n{kind}\n{link}\n{date.lower()}\n\n"
        signature = base64.b64encode(hmac.digest(self._key, text.encode(), sha256)).decode()
        return {"authorization": quote(f"type=master&ver=1.0&sig={signature}", safe=""), "x-ms-date": date}


class _ByToken:
    """
    Signs in with a token of Entra ID.

    The credential is asked again each minute: it knows when its token has to be renewed, and keeps it until then.
    """

    def __init__(self, credential: AsyncTokenCredential, endpoint: str) -> None:
        self._credential, self._lock = credential, asyncio.Lock()
        named = os.environ.get("AZURE_COSMOS_AAD_SCOPE_OVERRIDE")
        parts = urlsplit(endpoint)
        self._scopes = [named] if named else [f"{parts.scheme}://{parts.hostname}/.default", _DEFAULT_SCOPE]
        self._token, self._until = "", 0.0

    async def headers(self, method: str, path: str) -> Mapping[str, str]:
        del method, path
        if time.monotonic() >= self._until:
            async with self._lock:
                if time.monotonic() >= self._until:
                    self._token = await self._asked()
                    self._until = time.monotonic() + _TOKEN_SECONDS
        return {
            "authorization": f"type=aad&ver=1.0&sig={self._token}",
            "x-ms-date": formatdate(usegmt=True),
        }

    async def _asked(self) -> str:
        try:
            return (await self._credential.get_token(self._scopes[0])).token
        except ClientAuthenticationError as error:
            # The tenant does not know the account as a resource; the SDK too asks for all of Cosmos DB then.
            if len(self._scopes) == 1 or "AADSTS500011" not in str(error):
                raise
            del self._scopes[0]
            return (await self._credential.get_token(self._scopes[0])).token
