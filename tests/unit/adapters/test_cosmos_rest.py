"""
Plain REST: the service takes its signatures and tokens, and nothing is sent twice, whatever sends it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any, Self

import pytest
from azure.core.credentials import AccessToken
from azure.core.exceptions import ClientAuthenticationError
from azure.cosmos import PartitionKey

from cosmos_outbox.adapters.cosmos.client import open_cosmos_client, rest_client
from cosmos_outbox.adapters.cosmos.http import HttpClient
from cosmos_outbox.adapters.cosmos.http_senders import open_senders
from cosmos_outbox.adapters.cosmos.rest import Answer, RestClient, _ByToken, open_rest_client
from cosmos_outbox_emulators.cosmos.faults import FaultRule
from cosmos_outbox_emulators.cosmos.protocol import RequestKind
from cosmos_outbox_emulators.cosmos.server import CosmosServer

pytestmark = pytest.mark.looptime(False)

NAME = "a b+ü'%"  # of a database


class Credential:
    """
    Gives tokens for all but the refused scopes, and notes what it was asked for.
    """

    def __init__(self, *refused: str) -> None:
        self.refused, self.asked = refused, list[str]()

    async def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        self.asked += scopes
        if scopes[0] in self.refused:
            raise ClientAuthenticationError("AADSTS500011: the resource principal was not found")
        return AccessToken("a.b-c", 2**32)

    async def close(self) -> None: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None: ...


@pytest.fixture
async def server() -> AsyncIterator[CosmosServer]:
    async with CosmosServer() as running:
        yield running


@pytest.fixture(params=["httptools", "aiohttp"])
def sender(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "aiohttp":
        without_httptools(monkeypatch)


def without_httptools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cosmos_outbox.adapters.cosmos.http", None)


@pytest.fixture
async def rest(sender: None, server: CosmosServer) -> AsyncIterator[RestClient]:
    async with open_cosmos_client(connection_string=server.connection_string) as client:
        database = await client.create_database(NAME)
        await database.create_container("data", PartitionKey("/partitionKey"))
        yield rest_client(client)


async def create(rest: RestClient, server: CosmosServer, document: bytes) -> Answer:
    return await rest.request(
        "POST",
        f"dbs/{NAME}/colls/data/docs",
        headers={"x-ms-documentdb-partitionkey": '["p"]', "Content-Type": "application/json"},
        endpoint=server.url,
        body=document,
    )


async def test_a_key_signs_for_what_is_listed_and_for_what_is_named_however_it_is_called(
    server: CosmosServer, rest: RestClient
):
    assert 201 == (await create(rest, server, b'{"id": "x y", "partitionKey": "p"}')).status

    key = {"x-ms-documentdb-partitionkey": '["p"]'}
    found = await rest.request("GET", f"dbs/{NAME}/colls/data/docs/x y", headers=key, endpoint=server.url)
    missing = await rest.request("GET", f"dbs/{NAME}/colls/data/docs/y", headers=key, endpoint=server.url)

    assert (200, 0, True) == (found.status, found.sub_status, b'"x y"' in found.body)
    assert (404, 0) == (missing.status, missing.sub_status)
    assert {name.lower() for name in found.headers} == set(found.headers)


async def test_what_fails_is_sent_once(server: CosmosServer, rest: RestClient):
    server.faults.add(FaultRule(operation=RequestKind.CREATE, status=429, substatus=3200))

    answer = await create(rest, server, b'{"id": "a", "partitionKey": "p"}')

    assert (429, 3200) == (answer.status, answer.sub_status)
    assert 1 == server.gateway.counts[RequestKind.CREATE]


@pytest.mark.parametrize("known", [True, False])
async def test_a_token_is_asked_for_once_and_for_all_of_cosmos_db_if_the_account_is_no_resource(known: bool):
    of_account, of_all = "https://a.documents.azure.com/.default", "https://cosmos.azure.com/.default"
    credential = Credential() if known else Credential(of_account)
    signatures = _ByToken(credential, "https://a.documents.azure.com:443/")

    sent = [(await signatures.headers("GET", "dbs/d"))["authorization"] for _ in range(2)]

    assert ["type=aad&ver=1.0&sig=a.b-c"] * 2 == sent
    assert ([of_account] if known else [of_account, of_all]) == credential.asked


async def test_a_token_that_never_comes_ends_a_request_in_its_time_and_the_next_one_asks_again(sender: None):
    class Lost(Credential):
        async def get_token(self, *scopes: str, **options: Any) -> AccessToken:
            if not self.asked:
                self.asked += scopes
                await asyncio.Event().wait()
            return await super().get_token(*scopes, **options)

    async with (
        CosmosServer() as server,
        open_rest_client(endpoint=server.url, credential=Lost(), timeout_seconds=0.05) as rest,
    ):
        first = asyncio.create_task(rest.request("GET", "dbs", headers={}, endpoint=server.url))
        await asyncio.wait({first}, timeout=5)
        assert isinstance(first.done() and first.exception(), TimeoutError)
        assert (await rest.request("GET", "dbs", headers={}, endpoint=server.url)).status


async def test_no_answer_is_a_connection_error(rest: RestClient, server: CosmosServer):
    server.faults.add(FaultRule(operation=RequestKind.CREATE, drop=True))

    with pytest.raises(ConnectionError):
        await create(rest, server, b'{"id": "a", "partitionKey": "p"}')
    with pytest.raises(ConnectionError):
        await rest.request("GET", "dbs", headers={}, endpoint="http://127.0.0.1:1")


async def test_httptools_serves_where_it_is_installed_and_no_proxy_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", ".azure.com")

    endpoints = (
        "http://127.0.0.1:8081",
        "https://a.documents.azure.com:443",
        "https://a.documents.azure.cn:443",
    )
    async with open_senders() as sender_of:
        assert [True, True, False] == [isinstance(sender_of(one), HttpClient) for one in endpoints]

    without_httptools(monkeypatch)
    async with open_senders() as sender_of:
        assert not isinstance(sender_of(endpoints[0]), HttpClient)
        with pytest.raises(ConnectionError, match="ClientProxyConnectionError"):
            await sender_of(endpoints[2]).send("GET", endpoints[2], "/", {}, None)
