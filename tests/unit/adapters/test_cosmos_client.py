"""
Opening a Cosmos DB client: the SDK settings that correctness depends on, and the configuration mistakes that are reported at once.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from azure.cosmos import PartitionKey
from azure.cosmos.aio import CosmosClient

from cosmos_outbox import ConfigurationError, StoreError, StoreUnavailable, TooManyRequests
from cosmos_outbox.adapters.cosmos.client import (
    account_of,
    global_host,
    open_cosmos_client,
)
from cosmos_outbox.adapters.cosmos.store import CosmosStore, open_store
from cosmos_outbox.errors import AccessDenied
from cosmos_outbox.ports import Write, WriteKind
from cosmos_outbox_emulators.cosmos.account import Account
from cosmos_outbox_emulators.cosmos.faults import FaultRule, When
from cosmos_outbox_emulators.cosmos.protocol import RequestKind
from cosmos_outbox_emulators.cosmos.server import CosmosServer
from tests.support.patience import HUNG_SECONDS

pytestmark = pytest.mark.looptime(False)

DOCUMENT = {"id": "a", "partitionKey": "p"}
WRITES = {
    "one": [Write(kind=WriteKind.CREATE, id="a", document=DOCUMENT)],
    "two": [
        Write(kind=WriteKind.CREATE, id=name, document={"id": name, "partitionKey": "p"}) for name in "ab"
    ],
}


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"connection_string": "x", "endpoint": "https://a"},
        {"connection_string": ""},
        {"connection_string": "AccountEndpoint=https://a;"},
        {"connection_string": "AccountEndpoint=nowhere;AccountKey=a2V5;"},
        {"connection_string": "AccountEndpoint=https://a;AccountKey=secret!;"},
        {"endpoint": "https://a", "credential": "secre"},
        {"endpoint": "account.documents.azure.com", "credential": "a2V5"},
        {"endpoint": "nonsense"},
        {"endpoint": "https://[abc"},
        {"endpoint": "https://account:port"},
        {"endpoint": "https://account:99999"},
    ],
)
async def test_unusable_connection_settings_are_reported_without_the_account_key(how: dict[str, str]):
    with pytest.raises(ConfigurationError) as told:
        async with open_cosmos_client(**how):
            pass
    assert "secre" not in str(told.value)


async def test_opening_a_client_fails_if_the_account_refuses_connections():
    with pytest.raises(StoreUnavailable):
        async with open_cosmos_client(
            connection_string="AccountEndpoint=http://127.0.0.1:9/;AccountKey=a2V5;"
        ):
            pass


async def test_opening_a_client_gives_up_a_silent_account_within_its_own_limit():
    asked: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: asked.append(writer), "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    with pytest.raises(StoreUnavailable, match=r"reach it, or else try again: it took too long$"):
        async with open_cosmos_client(
            endpoint=url, credential="a2V5", read_timeout_seconds=HUNG_SECONDS, opening_seconds=1
        ):
            pass
    for writer in asked:
        writer.close()
    server.close()


async def test_opening_a_client_with_a_wrong_key_raises_access_denied(server: CosmosServer):
    with pytest.raises(AccessDenied):
        async with open_cosmos_client(endpoint=server.url, credential="d3Jvbmc="):
            pass


@pytest.mark.parametrize(
    ("how", "host"),
    [
        ({"endpoint": "{url}", "credential": "{key}"}, "127.0.0.1"),
        # The keywords of a connection string may have upper or lower case, as in .NET.
        ({"connection_string": "accountendpoint={url};ACCOUNTKEY={key};"}, "127.0.0.1"),
        ({"connection_string": "AccountEndpoint={named};AccountKey={key};"}, "localhost"),
    ],
)
async def test_the_account_host_on_an_emulator_is_that_of_the_configured_url(
    server: CosmosServer, how: dict[str, str], host: str
):
    """
    The host is part of each lease's id. .NET takes it from the configured URL, so the library does the same.
    """
    values = {"url": server.url, "named": server.url.replace("127.0.0.1", "localhost"), "key": server.key}
    given = {setting: text.format(**values) for setting, text in how.items()}
    async with open_cosmos_client(**given) as client:
        assert host == account_of(client).host


async def test_an_account_that_returns_no_id_is_refused():
    account = Account()
    account.name = ""
    async with CosmosServer(account) as server:
        with pytest.raises(ConfigurationError, match="returned no account id"):
            async with open_cosmos_client(connection_string=server.connection_string):
                pass


async def test_the_sdk_goes_through_the_proxy_that_the_environment_names(monkeypatch: pytest.MonkeyPatch):
    async with CosmosServer() as server:
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("http_proxy", server.url)
        async with open_cosmos_client(endpoint="http://account.invalid/", credential=server.key) as client:
            await client.create_database("d")  # account.invalid does not exist, so only a proxy can answer


@pytest.mark.parametrize("several", [False, True])
async def test_the_client_knows_whether_the_account_has_several_write_regions(several: bool):
    async with (
        CosmosServer(Account(several_write_regions=several)) as server,
        open_cosmos_client(connection_string=server.connection_string) as client,
    ):
        assert several is account_of(client).several_write_regions


@pytest.mark.parametrize(
    ("endpoints", "expected"),
    [
        (["https://acct.documents.azure.com:443/"], "acct.documents.azure.com"),
        (["https://ACCT.documents.azure.com/"], "acct.documents.azure.com"),
        (["https://acct-westeurope.documents.azure.com:443/"], "acct.documents.azure.com"),
        (["https://acct-chinaeast2.documents.azure.cn:443/"], "acct.documents.azure.cn"),
        # The account reports the first endpoint, which decides because its host begins with the account's id, `acct`. The last
        # endpoint, from the settings, does not decide.
        (
            ["https://acct-westeurope.documents.azure.com:443/", "https://acct.sqlx.cosmos.azure.com/"],
            "acct.documents.azure.com",
        ),
        (
            ["https://acct-westeurope.documents.azure.com:443/", "https://db.corp.example/"],
            "acct.documents.azure.com",
        ),
        (["http://127.0.0.1:8081/"], "127.0.0.1"),
        (["http://[::1]:8081/"], "[::1]"),
        (["http://127.0.0.1:8081/", "http://localhost:8081/"], "localhost"),
        (["http://cosmos:8081/"], "cosmos"),
        (["http://cosmos.default.svc.cluster.local:8081/"], "cosmos.default.svc.cluster.local"),
    ],
)
def test_the_global_host_is_derived_from_the_account_id_and_its_endpoints(
    endpoints: list[str], expected: str
):
    """
    On Azure, the global host is the account's id and the domain of its endpoints. On an emulator, it is the configured host.
    """
    assert expected == global_host("acct", endpoints=endpoints)


@pytest.mark.parametrize("writes", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ({"drop": True, "when": When.AFTER}, StoreUnavailable),
        ({"drop": True}, StoreUnavailable),
        ({"status": 429, "retry_after_ms": 1}, TooManyRequests),
        ({"status": 449}, StoreUnavailable),
        ({"status": 408}, StoreUnavailable),
        ({"status": 500}, StoreUnavailable),
    ],
)
async def test_the_sdk_does_not_retry_a_write_by_itself(
    server: CosmosServer,
    client: CosmosClient,
    writes: list[Write],
    fault: dict[str, object],
    error: type[StoreError],
):
    database = await client.create_database("d")
    await database.create_container("c", PartitionKey("/partitionKey"), default_ttl=-1)
    store = await open_store(client, "d", "c")
    server.faults.add(FaultRule(operation=RequestKind.BATCH, count=1, **fault))
    with pytest.raises(error):
        await store.commit("p", writes)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (None, "does not exist"),
        (
            {"partition_key": PartitionKey("/id"), "default_ttl": -1},
            "/id is no property that an entity and its",
        ),
        ({"partition_key": PartitionKey(["/tenantId", "/id"]), "default_ttl": -1}, "/id is no property"),
        ({"partition_key": PartitionKey("/partitionKey")}, "time to live"),
    ],
)
async def test_a_container_that_cannot_hold_an_outbox_is_refused_with_the_reason(
    client: CosmosClient, options: dict[str, object] | None, words: str
):
    database = await client.create_database("d")
    if options is not None:
        await database.create_container("c", **options)
    with pytest.raises(ConfigurationError, match=words):
        await open_store(client, "d", "c")


@pytest.mark.parametrize("database", ["d", "nowhere"])
async def test_the_error_of_a_missing_container_or_database_names_it(client: CosmosClient, database: str):
    await client.create_database("d")
    store = CosmosStore(client.get_database_client(database).get_container_client("c"))
    for call in (
        lambda: store.read("a", "p"),
        lambda: store.commit("p", WRITES["one"]),
        lambda: store.commit("p", WRITES["two"]),
        lambda: store.list(("t",), partition_key=None, page_size=1, continuation=None, include_deleted=True),
    ):
        with pytest.raises(
            ConfigurationError, match=f"container 'c' of database '{database}'.* does not exist"
        ):
            await call()


@pytest.mark.parametrize("shape", [SimpleNamespace(), SimpleNamespace(RetryOptions=0)])
async def test_an_sdk_version_whose_retries_cannot_be_switched_off_is_refused(
    shape: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("cosmos_outbox.adapters.cosmos.client.ConnectionPolicy", lambda: shape)
    with pytest.raises(ConfigurationError, match="azure-cosmos"):
        async with open_cosmos_client(endpoint="http://127.0.0.1:9", credential="a2V5"):
            pass
