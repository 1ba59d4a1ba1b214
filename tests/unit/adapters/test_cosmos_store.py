"""
The Cosmos DB store reads its own writes: it keeps the session token of each batch, which the SDK forgets.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from azure.cosmos import PartitionKey
from azure.cosmos.exceptions import CosmosHttpResponseError

from cosmos_outbox import Conflict, NotFound, Outbox, StoreUnavailable
from cosmos_outbox.adapters.cosmos.client import open_cosmos_client
from cosmos_outbox.adapters.cosmos.parked import CosmosParked
from cosmos_outbox.adapters.cosmos.store import CosmosStore
from cosmos_outbox.partition_key import identity
from cosmos_outbox.ports import CommitResult, Write, WriteKind
from cosmos_outbox_emulators.cosmos.faults import FaultRule, Faults
from cosmos_outbox_emulators.cosmos.protocol import RequestKind
from cosmos_outbox_emulators.cosmos.server import CosmosServer
from tests.support.notes import Note

pytestmark = pytest.mark.looptime(False)


class Watched:
    """
    Wraps a container of the SDK, records the session tokens of reads, and can hold back the answer to a batch.
    """

    replication: Any

    def __init__(self, container: Any) -> None:
        self._container = container
        self.asked_with: list[str | None] = []
        self.answered_with: list[str | None] = []  # the session token of each answer to a batch
        self.held_back: asyncio.Event | None = None
        self.executed = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._container, name)

    async def read_item(self, *args: Any, **options: Any) -> Any:
        self.asked_with.append(options.get("session_token"))
        return await self._container.read_item(*args, **options)

    async def execute_item_batch(self, *args: Any, response_hook: Any) -> Any:
        held_back, self.held_back = self.held_back, None
        seen: list[Any] = []
        answer = await self._container.execute_item_batch(
            *args, response_hook=lambda headers, _: seen.append(dict(headers))
        )
        self.answered_with.append(seen[-1].get("x-ms-session-token"))
        if held_back is not None:
            self.executed.set()
            await held_back.wait()
        response_hook(seen[-1], answer)
        return answer


@asynccontextmanager
async def opened(*, lag_s: float = 0.0) -> AsyncIterator[tuple[CosmosStore, Watched, Faults]]:
    async with (
        CosmosServer() as server,
        open_cosmos_client(connection_string=server.connection_string) as client,
    ):
        server.account.replication.lag_s = lag_s
        database = await client.create_database("d")
        watched = Watched(await database.create_container("c", PartitionKey("/partitionKey"), default_ttl=-1))
        watched.replication = server.account.replication
        yield CosmosStore(watched), watched, server.faults  # type: ignore[arg-type] # it looks like one


def creations(*ids: str) -> list[Write]:
    return [Write(kind=WriteKind.CREATE, id=name, document={"id": name, "partitionKey": "k"}) for name in ids]


async def test_a_read_sends_the_session_token_of_the_last_batch_of_its_key():
    async with opened() as (store, watched, _):
        for n in range(2):
            await store.commit("k", creations(f"a{n}", f"b{n}"))
        tokens = watched.answered_with
        await store.read("a0", "k")
        assert tokens[0] != tokens[1]
        assert tokens[1:] == watched.asked_with


async def test_a_late_answer_does_not_replace_a_newer_session_token():
    async with opened() as (store, watched, _):
        watched.held_back = release = asyncio.Event()
        overtaken = asyncio.create_task(store.commit("k", creations("a", "b")))
        await watched.executed.wait()
        await store.commit("k", creations("c", "d"))
        release.set()
        await overtaken
        older, newest = watched.answered_with
        assert older != newest

        await store.read("c", "k")
        assert [newest] == watched.asked_with


async def test_a_read_after_a_refused_batch_sends_the_session_token_of_the_refusal():
    async with opened() as (store, watched, _):
        await store.commit("k", creations("a", "b"))
        (known,) = watched.answered_with
        reader = CosmosStore(watched)  # type: ignore[arg-type] # it looks like one
        with pytest.raises(Conflict):
            await reader.commit("k", creations("new", "a"))
        await reader.read("a", "k")
        assert [known] == watched.asked_with


async def test_a_read_with_a_minimum_version_finds_an_entity_despite_a_lagging_replica():
    """After the entity was deleted, the same read raises NotFound."""
    async with opened(lag_s=60) as (store, watched, _):
        async with Outbox(store).unit_of_work() as writer:
            note = writer.repository(Note).create(Note(id="a"))
            await writer.commit()

            reader = Outbox(CosmosStore(watched))  # type: ignore[arg-type] # it looks like one
            async with reader.unit_of_work() as uow:
                assert await uow.repository(Note).find("a") is None
                assert 1 == (await uow.repository(Note).read("a", at_least=1)).version
            await writer.repository(Note).delete(note.id, hard=True)
            await writer.commit()
        async with reader.unit_of_work() as uow:
            with pytest.raises(NotFound):
                await uow.repository(Note).read("a", at_least=1)


@pytest.mark.parametrize(
    "ask",
    [("queue", {"epoch": "", "first": 0, "limit": 1}), ("present", {"document_ids": ["a"]}), ("page", {})],
)
async def test_a_query_of_parked_events_is_not_older_than_an_earlier_read(ask: tuple[str, dict[str, Any]]):
    """A release reads the key, and then queries its events. An older answer could contain an event that was already dropped, and the
    release would send it."""
    async with opened(lag_s=60) as (store, watched, _):
        await store.commit("k", creations("a", "b"))
        reader = CosmosParked(watched)  # type: ignore[arg-type] # it looks like one
        watched.replication.lag_s = 0
        await reader.read("a", "k")
        watched.replication.lag_s = 60
        with pytest.raises(StoreUnavailable):
            await getattr(reader, ask[0])("k", **ask[1])


async def test_a_read_that_no_replica_can_answer_is_sent_to_the_write_region():
    async with opened(lag_s=60) as (store, watched, _):
        await store.commit("k", creations("a", "b"))
        assert "a" == (await store.read("a", "k"))["id"]
        assert [watched.answered_with[0]] == watched.asked_with

        # This session token belongs to a range that was split since, so no replica can satisfy it.
        watched.replication.lag_s = 0
        store._remember("k", "0:-1#999")
        assert "a" == (await store.read("a", "k"))["id"]
        assert watched.answered_with[-1] == store._sessions[identity("k")][1]


class Repeated(CosmosStore):
    """
    Commits each batch twice, as if a proxy repeated the request. The refusal of the second request names no document, and its session
    token is forgotten.
    """

    async def commit(self, partition_key: Any, writes: Sequence[Write]) -> CommitResult:
        await super().commit(partition_key, writes)
        try:
            return await super().commit(partition_key, writes)
        except Conflict as refusal:
            self._sessions.clear()
            refusal.document_id = None
            raise


async def test_a_written_commit_is_not_reported_as_refused_while_replicas_lag():
    async with opened(lag_s=60) as (_, watched, _), Outbox(Repeated(watched)).unit_of_work() as uow:  # type: ignore[arg-type] # it looks like one
        uow.repository(Note).create(Note(id="a"))
        await uow.commit()


async def test_a_batch_refused_with_session_not_available_counts_as_not_applied():
    """
    At the first refusal, the SDK drops its session token. So at the second refusal, the SDK raises a KeyError, which hides the refusal.
    """
    async with opened() as (store, _, faults):
        await store.commit("k", creations("a"))
        faults.add(FaultRule(operation=RequestKind.BATCH, status=404, substatus=1002))
        for names in ("c", "cd", "cd"):
            with pytest.raises(StoreUnavailable) as caught:
                await store.commit("k", creations(*names))
            assert caught.value.applied is False
            assert isinstance(caught.value.__cause__, CosmosHttpResponseError)


async def test_a_batch_refused_because_of_a_split_was_not_applied():
    async with opened() as (store, _, faults):
        await store.commit("k", creations("a", "b"))
        faults.add(FaultRule(operation=RequestKind.BATCH, status=410, substatus=1002))
        with pytest.raises(StoreUnavailable) as caught:
            await store.commit("k", creations("c", "d"))
        assert caught.value.applied is False


async def test_the_store_forgets_the_session_tokens_of_the_least_recently_used_keys(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("cosmos_outbox.adapters.cosmos.store._REMEMBERED_SESSIONS", 2)
    async with opened() as (store, watched, _):
        for key in ("a", "b", "a", "c"):
            name = f"{key}{len(watched.asked_with)}"
            await store.commit(key, [_creation(name, key), _creation(name + "x", key)])
            await store.read(name, key)
        watched.asked_with.clear()
        for key, name in (("a", "a0"), ("b", "b1"), ("c", "c3")):
            await store.read(name, key)
        assert [True, False, True] == [token is not None for token in watched.asked_with]


def _creation(name: str, key: str) -> Write:
    return Write(kind=WriteKind.CREATE, id=name, document={"id": name, "partitionKey": key})
