"""Tests that every implementation of the port ParkedStore has to pass. Through this port, workers and consumers park keys."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cosmos_outbox.errors import Conflict, NotFound, PreconditionFailed
from cosmos_outbox.ports import ParkedStore, Write, WriteKind
from cosmos_outbox_testing.contracts.store import KEY, create, delete, replace


async def everything(store: ParkedStore, key: str = KEY) -> list[dict[str, Any]]:
    """Read the documents of a partition key page by page, and return all of them."""
    found: list[dict[str, Any]] = []
    while page := await store.page(key, after=found[-1]["id"] if found else ""):
        found += page
    return found


async def etag_of(store: ParkedStore, document_id: str, key: str = KEY) -> str:
    return str((await store.read(document_id, key))["_etag"])


class ParkedStoreContract:
    """Tests of a ParkedStore on an empty container. Override the fixture `store`."""

    @pytest.fixture
    def store(self) -> ParkedStore:
        raise NotImplementedError("Override the fixture `store`: it returns the store under test.")

    async def test_the_pages_of_a_partition_key_have_its_documents_in_order(
        self,
        store: ParkedStore,
    ) -> None:
        """No document of a key is lost or repeated between two pages. Otherwise a release would lose or repeat an event."""
        for start in range(0, 250, 50):
            await store.commit(KEY, [create(f"{number:03d}") for number in range(start, start + 50)])
        await store.commit("l", [create("other", key="l")])
        assert [f"{number:03d}" for number in range(250)] == [
            document["id"] for document in await everything(store)
        ]
        assert ["003", "004"] == [document["id"] for document in await store.page(KEY, after="002", limit=2)]

    async def test_the_events_of_one_parking_are_read_by_position(self, store: ParkedStore) -> None:
        """A key gets a new `epoch` each time it is parked. A release reads the events of this epoch in order, and no earlier ones."""
        await store.commit(KEY, [create(f"e{9 - place}", epoch="now", position=place) for place in range(10)])
        await store.commit(KEY, [create("earlier", epoch="before", position=3), create("key", epoch="now")])
        assert [3, 4, 5] == [
            document["position"] for document in await store.queue(KEY, epoch="now", first=3, limit=3)
        ]
        assert () == await store.queue(KEY, epoch="now", first=10, limit=3)
        assert () == await store.queue("l", epoch="now", first=0, limit=3)

    async def test_a_store_says_which_of_the_given_documents_exist(self, store: ParkedStore) -> None:
        """A worker uses this to leave out events that are held already, so that no event is held twice."""
        await store.commit(KEY, [create("a"), create("b"), create('odd "c" \' d')])
        assert {"a", 'odd "c" \' d'} == await store.present(KEY, ["a", "x", 'odd "c" \' d'])
        assert frozenset() == await store.present("l", ["a"])
        assert frozenset() == await store.present(KEY, [])

    async def test_a_store_lists_the_keys_of_one_processor_of_one_container(
        self,
        store: ParkedStore,
    ) -> None:
        """Several processors may share a parked container. Each must see only the keys that it parked for its own data container."""
        for name, fields in {
            "ours": {"key": "k", "processor": "p", "container": "c"},
            "another's": {"key": "k", "processor": "q", "container": "c"},
            "of another container": {"key": "k", "processor": "p", "container": "d"},
        }.items():
            for document_id, kind in (("outbox.key", "parkedKey"), ("event", "parkedEvent")):
                document = {"id": document_id, "partitionKey": name, "type": kind, **fields}
                await store.commit(name, [Write(kind=WriteKind.CREATE, id=document_id, document=document)])
        found = await store.keys(processor="p", container="c")
        assert {"ours"} == {document["partitionKey"] for document in found}
        assert all(document["_etag"] for document in found)

    async def test_a_store_lists_the_partition_keys_that_have_events(self, store: ParkedStore) -> None:
        """
        A replay uses this list to know for which keys it has to read the store. A key that is no longer parked may still have events there.
        """
        for name, kinds in {"held": ("parkedKey", "parkedEvent"), "recorded": ("parkedEvent",) * 2}.items():
            await store.commit(name, [create(f"{n}", key=name, type=kind) for n, kind in enumerate(kinds)])
        await store.commit("empty", [create("0", key="empty", type="parkedKey")])
        assert {"held", "recorded"} == await store.partitions()

    async def test_a_conflict_names_the_first_document_of_the_batch(self, store: ParkedStore) -> None:
        """If the first document of a batch exists already, the `Conflict` names it. So the caller sees that the key is parked."""
        await store.commit(KEY, [create("key"), create("event")])
        with pytest.raises(Conflict) as refused:
            await store.commit(KEY, [create("key"), create("event")])
        assert "key" == refused.value.document_id

    async def test_a_key_is_not_deleted_while_an_event_is_appended(self, store: ParkedStore) -> None:
        """
        A worker appends an event to a parked key while another process deletes the key's document. Only one of the two succeeds.
        Otherwise the event would stay in the store without its key, and would never be sent.
        """
        for number in range(10):
            await store.commit(KEY, [create("key")])
            etag = await etag_of(store, "key")
            outcomes = await asyncio.gather(
                store.commit(KEY, [replace("key", etag, n=1), create(f"event-{number}")]),
                store.commit(KEY, [delete("key", etag)]),
                return_exceptions=True,
            )
            refused = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
            assert [True] == [isinstance(error, PreconditionFailed | NotFound) for error in refused]
            if isinstance(outcomes[1], Exception):
                await store.commit(KEY, [delete("key")])

    async def test_a_batch_can_delete_and_replace_documents(self, store: ParkedStore) -> None:
        """One batch may create, replace and delete documents, so a release changes a key and its events in one transaction."""
        await store.commit(KEY, [create("key", n=1), create("a"), create("b")])
        etag = await etag_of(store, "key")
        await store.commit(KEY, [replace("key", etag, n=2), delete("a"), replace("b", None, status="sent")])
        assert {("key", 2, None), ("b", None, "sent")} == {
            (document["id"], document.get("n"), document.get("status"))
            for document in await everything(store)
        }
