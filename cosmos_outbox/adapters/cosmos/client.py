"""Open a Cosmos DB client with the settings on which correctness depends. `containers.py` opens and checks the containers."""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from azure.core.credentials_async import AsyncTokenCredential
from azure.core.pipeline import PipelineResponse
from azure.core.pipeline.transport import AioHttpTransport
from azure.cosmos.aio import CosmosClient
from azure.cosmos.documents import ConnectionPolicy

from cosmos_outbox.adapters.cosmos.errors import our_errors
from cosmos_outbox.adapters.cosmos.lean_poll_requests import Answered, LeanPolls
from cosmos_outbox.errors import ConfigurationError
from cosmos_outbox.http_proxies import any_proxy

DEFAULT_READ_TIMEOUT_SECONDS = 10.0
# The SDK's timeouts limit single requests and the time between bytes. A call whose bytes trickle in, or whose
# requests the SDK repeats, could still last without end, so this limit ends it. The limit leaves time for
# three requests that time out.
LONGEST_CALL_SECONDS = 35.0


@asynccontextmanager
async def open_cosmos_client(
    *,
    connection_string: str | None = None,
    endpoint: str | None = None,
    credential: AsyncTokenCredential | str | None = None,
    read_timeout_seconds: float = DEFAULT_READ_TIMEOUT_SECONDS,
    opening_seconds: float | None = None,
    answered: Answered | None = None,
) -> AsyncIterator[CosmosClient]:
    """
    Connect by connection string, or by endpoint and credential (an account key or a token credential).

    The SDK's own retries are switched off. With them the SDK would resend a write whose answer was lost, and report the
    success of the first write as a conflict. Two retries cannot be switched off: after a 503, and after a broken
    connection to an account with several write regions. A commit with an event reads its event to find out whether the
    conflict is with its own first write.

    Args:
        connection_string: `AccountEndpoint=…;AccountKey=…;`.
        endpoint: the account's URL.
        credential: an account key, or a token credential that the caller closes. Defaults to DefaultAzureCredential,
            which is closed with the client.
        read_timeout_seconds: how long to wait for an answer. Defaults to 10 s.
        opening_seconds: how long to try to connect and to sign in. Defaults to as long as the SDK tries: four times
            with pauses, which takes half a minute if the account does not answer.
        answered: a function that is called with each answer of the service, for example to add up the request units in
            its headers. Defaults to none.

    Raises:
        ConfigurationError: neither or both ways to connect are given, or the given one cannot be read.
        AccessDenied, StoreUnavailable: the account refuses or does not answer.
    """
    if (connection_string is None) == (endpoint is None):
        raise ConfigurationError("Give either a Cosmos DB connection string or an endpoint.")
    async with AsyncExitStack() as stack:
        url = str(endpoint)
        if connection_string is not None:
            parts = connection_parts(connection_string)
            url, credential = parts.get("accountendpoint", ""), parts.get("accountkey")
            if not url or not credential:
                raise ConfigurationError(
                    "The Cosmos DB connection string must read 'AccountEndpoint=https://…;AccountKey=…;'."
                )
        _ensure_readable(url, credential)
        if credential is None:
            from azure.identity.aio import DefaultAzureCredential  # noqa: PLC0415 - takes a tenth of a second

            credential = DefaultAzureCredential()
            stack.push_async_callback(credential.close)
        description = "null"

        def note(response: PipelineResponse[Any, Any]) -> None:
            # Lease ids need the account's id. The SDK reads it at its start, in the description of the
            # account, and drops it. So keep the text of the first description.
            nonlocal description
            request, answer = response.http_request, response.http_response
            first = description == "null" and urlsplit(request.url).path.strip("/") == ""
            if first and request.method == "GET" and answer.status_code == HTTPStatus.OK:
                description = answer.text()

        # Have aiohttp read the environment only if the environment names a proxy. For each request aiohttp
        # would have two threads look for a proxy and a .netrc file, which is a third of the CPU of a call.
        transport = _Transport(use_env_settings=any_proxy())
        transport.answered = answered
        client = CosmosClient(
            url,
            credential,
            connection_policy=_without_retries(),
            retry_total=0,
            read_timeout=read_timeout_seconds,
            raw_response_hook=note,
            transport=transport,
        )
        # If the start fails, `async with client` would leak the HTTP session. This callback closes the client
        # after a failed start too.
        stack.push_async_callback(client.close)
        async with our_errors(), asyncio.timeout(opening_seconds):
            await client.__aenter__()
        polls = partial(LeanPolls, transport, timeout_seconds=read_timeout_seconds, answered=answered)
        _ACCOUNTS[client] = _account(description, url, polls)
        yield client


class _Transport(AioHttpTransport):  # type: ignore[misc] # untyped, as all of its module
    """
    A transport that reports each answer of the service. The SDK's hook for the whole client is not enough: the SDK
    ignores it in calls that pass a hook of their own.
    """

    answered: Answered | None = None

    async def send(self, request: Any, **options: Any) -> Any:
        response = await super().send(request, **options)
        if self.answered is not None:
            self.answered(request, response.status_code, response.headers)
        return response


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """
    What an open client has read about its account.

    host: the host of the account's global endpoint, which lease ids contain as in .NET. It is the same if the client
        connected through the endpoint of a region.
    several_write_regions: whether the account takes writes in several regions at the same time.
    polls: returns a `LeanPolls`, which asks the change feed of one container whether there is anything new.
    """

    host: str
    several_write_regions: bool
    polls: Callable[[], LeanPolls]


_ACCOUNTS: WeakKeyDictionary[CosmosClient, Account] = WeakKeyDictionary()


def account_of(client: CosmosClient) -> Account:
    """Return what a client has read about its account. The client must come from `open_cosmos_client`."""
    return _ACCOUNTS[client]


def global_host(account_id: str, *, endpoints: Iterable[str]) -> str:
    """
    Return the host of the account's global endpoint. If no endpoint is named after the account's id, as on an emulator,
    return the host of the last endpoint.

    .NET's processor names its leases after the URL that it was given. On an emulator this library uses the same host,
    so that this library and .NET share leases.

    Args:
        account_id: the id that the account reports.
        endpoints: URLs of the account, such as https://NAME-westeurope.documents.azure.com:443/. The URL that the
            client was given comes last.
    """
    account, host = account_id.lower(), ""
    for endpoint in endpoints:
        first, _, suffix = (host := urlsplit(endpoint).hostname or "").partition(".")
        if suffix and (first == account or first.startswith(f"{account}-")):
            return f"{account}.{suffix}"
    return f"[{host}]" if ":" in host else host


def _account(description: str, url: str, polls: Callable[[], LeanPolls]) -> Account:
    """
    Read the service's description of an account, which is JSON.

    Raises:
        ConfigurationError: the description has no id, so leases could not be named.
    """
    try:
        said = json.loads(description)
        endpoints = [region["databaseAccountEndpoint"] for region in said.get("writableLocations") or ()]
        account_id = said["id"]
    except (ValueError, TypeError, KeyError, AttributeError):
        account_id = None
    if not isinstance(account_id, str) or not account_id:
        raise ConfigurationError(
            f"The server at {url!r} returned no account id, which the names of leases contain. Give the endpoint of a Cosmos "
            "DB account, and install a version of azure-cosmos that this library was tested with."
        )
    return Account(
        host=global_host(account_id, endpoints=(*endpoints, url)),
        several_write_regions=said.get("enableMultipleWriteLocations") is True,
        polls=polls,
    )


def _without_retries() -> ConnectionPolicy:
    policy = ConnectionPolicy()
    try:
        # Switch off the SDK's retries after 429. The SDK takes `retry_throttle_total=0` for "not given", so
        # the policy is replaced.
        policy.RetryOptions = type(policy.RetryOptions)(max_retry_attempt_count=0)
    except (AttributeError, TypeError) as error:
        raise ConfigurationError(
            "This version of azure-cosmos repeats requests, and the library cannot switch that off: a write "
            "could happen twice. Install a version that this library was tested with."
        ) from error
    return policy


def connection_parts(connection_string: str) -> dict[str, str]:
    """
    Return the values of a connection string by their names in lower case. The case of the names does not matter, as in
    .NET, which defined the format.
    """
    pairs = (part.strip().partition("=") for part in connection_string.split(";"))
    return {name.casefold(): value for name, _, value in pairs}


def _ensure_readable(url: str, credential: object) -> None:
    # Check the URL and the key here. The error of the SDK would quote the key, or have no text.
    if not is_url(url):
        raise ConfigurationError(
            f"The Cosmos DB endpoint {url!r} must be a URL such as https://NAME.documents.azure.com."
        )
    if isinstance(credential, str):
        try:
            b64decode(credential, validate=True)
        except ValueError:
            raise ConfigurationError(
                "The Cosmos DB account key is no valid base64: copy the whole key again."
            ) from None


def is_url(text: str) -> bool:
    """Return whether a text is a URL with a host. If the URL names a port, the port has to be valid."""
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # unclosed brackets, or an invalid port
        return False


def lsn_in(session_token: str) -> int | None:
    """
    Return the newest LSN (the number of a transaction) in a session token of one range, or None if it has none. The
    token has the form `<range>:<version>#<lsn>#…`, or the old form `<range>:<lsn>`.
    """
    text = session_token.partition(":")[2].split("#")[:2][-1]
    return int(text) if text.lstrip("-").isdigit() else None
