"""
Opening a Cosmos DB client with the settings that correctness depends on.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from azure.core.credentials_async import AsyncTokenCredential
from azure.core.pipeline import PipelineResponse
from azure.cosmos.aio import CosmosClient
from azure.cosmos.documents import ConnectionPolicy
from azure.identity.aio import DefaultAzureCredential

from cosmos_outbox.adapters.cosmos.errors import translated
from cosmos_outbox.errors import ConfigurationError

DEFAULT_READ_TIMEOUT_SECONDS = 10.0
# The SDK's timeouts count from byte to byte and from request to request, so a trickle, or requests that it repeats by
# itself, may keep one call for ever. Longer than three requests that time out.
LONGEST_CALL_SECONDS = 35.0


@asynccontextmanager
async def open_cosmos_client(
    *,
    connection_string: str | None = None,
    endpoint: str | None = None,
    credential: AsyncTokenCredential | str | None = None,
    read_timeout_seconds: float = DEFAULT_READ_TIMEOUT_SECONDS,
) -> AsyncIterator[CosmosClient]:
    """
    Connect by connection string, or by endpoint and credential (an account key, or a token credential).

    The SDK's own retries are off: it sends a write again whose answer was lost, and then reports the first one's
    success as a conflict. The library retries where it can tell the two apart.

    Args:
        connection_string: `AccountEndpoint=…;AccountKey=…;`.
        endpoint: the account's URL.
        credential: Defaults to DefaultAzureCredential, which is then closed with the client.
        read_timeout_seconds: how long to wait for an answer. Defaults to 10 s.

    Raises:
        ConfigurationError: neither or both ways to connect are given, or one that cannot be read.
        AccessDenied, StoreUnavailable: the account refuses or does not answer.
    """
    if (connection_string is None) == (endpoint is None):
        raise ConfigurationError("Give either a Cosmos DB connection string or an endpoint.")
    async with AsyncExitStack() as stack:
        if connection_string is not None:
            url, credential = _parse_connection_string(connection_string)
        else:
            url = str(endpoint)
        _ensure_readable(url, credential)
        if credential is None:
            default = DefaultAzureCredential()
            stack.push_async_callback(default.close)
            credential = default
        reading = _AccountReading()
        client = _client(url, credential, read_timeout_seconds, reading)
        # Also closes after a failed start: `async with client` would leak the HTTP session then.
        stack.push_async_callback(client.close)
        async with translated():
            await client.__aenter__()
        _ACCOUNTS[client] = reading.account(url)
        yield client


@dataclass(frozen=True, slots=True, kw_only=True)
class _Account:
    host: str
    several_write_regions: bool


_ACCOUNTS: WeakKeyDictionary[CosmosClient, _Account] = WeakKeyDictionary()


def account_host(client: CosmosClient) -> str:
    """
    Return the host of the account's global endpoint, as .NET puts it into lease ids, whichever of its names the client uses.

    Args:
        client: that `open_cosmos_client` opened.
    """
    return _ACCOUNTS[client].host


def has_several_write_regions(client: CosmosClient) -> bool:
    """
    Say whether the account takes writes in several regions at once.

    Args:
        client: that `open_cosmos_client` opened.
    """
    return _ACCOUNTS[client].several_write_regions


def global_host(account_id: str, *, endpoints: Iterable[str]) -> str:
    """
    Return the host of an account's global endpoint: its id alone where no endpoint is named after it, as on an emulator.

    Args:
        endpoints: URLs of the account, such as https://NAME-westeurope.documents.azure.com:443/.
    """
    account = account_id.lower()
    for endpoint in endpoints:
        first, _, suffix = (urlsplit(endpoint).hostname or "").partition(".")
        if suffix and (first == account or first.startswith(f"{account}-")):
            return f"{account}.{suffix}"
    return account


class _AccountReading:
    """
    A hook for all answers, which keeps the first description of the account: the SDK reads it at start, and drops the id.
    """

    def __init__(self) -> None:
        self._text: str | None = None

    def __call__(self, response: PipelineResponse[Any, Any]) -> None:
        request, answer = response.http_request, response.http_response
        if (
            self._text is None
            and request.method == "GET"
            and urlsplit(request.url).path.strip("/") == ""
            and answer.status_code == HTTPStatus.OK
        ):
            self._text = answer.text()

    def account(self, url: str) -> _Account:
        """
        Return what the account said of itself.

        Raises:
            ConfigurationError: nothing, or no id: leases could not be named.
        """
        try:
            said = json.loads(self._text or "null")
            account_id, regions = said["id"], said.get("writableLocations") or ()
            endpoints = [region["databaseAccountEndpoint"] for region in regions]
            named = isinstance(account_id, str) and account_id != ""
        except (ValueError, TypeError, KeyError):
            named = False
        if not named:
            raise ConfigurationError(
                f"What answers at {url!r} does not say which Cosmos DB account it is, so its leases cannot be named; "
                "is it the endpoint of an account, and azure-cosmos a version that this library was tested with?"
            )
        return _Account(
            host=global_host(account_id, endpoints=(*endpoints, url)),
            several_write_regions=said.get("enableMultipleWriteLocations") is True,
        )


def _client(
    url: str,
    credential: AsyncTokenCredential | str,
    read_timeout_seconds: float,
    reading: _AccountReading,
) -> CosmosClient:
    policy = ConnectionPolicy()
    try:
        # `retry_throttle_total=0` is taken for "not given" by the SDK; an attempt count of 0 only gets in this way.
        policy.RetryOptions = type(policy.RetryOptions)(max_retry_attempt_count=0)
    except (AttributeError, TypeError) as error:
        raise ConfigurationError(
            "The retries of this version of azure-cosmos cannot be switched off, so it would send writes twice; install one that "
            "this library was tested with."
        ) from error
    return CosmosClient(
        url,
        credential,
        connection_policy=policy,
        retry_total=0,
        read_timeout=read_timeout_seconds,
        raw_response_hook=reading,
    )


def _parse_connection_string(connection_string: str) -> tuple[str, str]:
    parts = dict(part.strip().split("=", 1) for part in connection_string.strip().split(";") if "=" in part)
    endpoint, key = parts.get("AccountEndpoint"), parts.get("AccountKey")
    if not endpoint or not key:
        raise ConfigurationError(
            "The Cosmos DB connection string must read 'AccountEndpoint=https://…;AccountKey=…;'."
        )
    return endpoint, key


def _ensure_readable(url: str, credential: object) -> None:
    # The SDK would raise a ValueError with the key, or with nothing to recognise it by.
    if not is_url(url):
        raise ConfigurationError(
            f"The Cosmos DB endpoint {url!r} must be a URL such as https://NAME.documents.azure.com."
        )
    if isinstance(credential, str):
        try:
            b64decode(credential, validate=True)
        except ValueError:
            raise ConfigurationError(
                "The Cosmos DB account key cannot be read; copy it again, to its end."
            ) from None


def is_url(text: str) -> bool:
    """
    Say whether a text is a URL with a host, and a port that may be.
    """
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # brackets that stay open, or a port that is none
        return False
