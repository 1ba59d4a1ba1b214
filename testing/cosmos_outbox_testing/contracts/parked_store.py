"""The promises of every ParkedStore."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cosmos_outbox.errors import Conflict, NotFound, PreconditionFailed
from cosmos_outbox.ports import ParkedStore, Write, WriteKind
from cosmos_outbox_testing.contracts.store import KEY, create, delete, replace


async def everything(store: ParkedStore, key: str = KEY) -> list[dict[str, Any]]:
    """Return all documents of a partition key, page by page."""
    found: list[dict[str, Any]] = []
    while page := await store.page(key, after=found[-1]["id"] if found else ""):
        found += page
    return found


async def etag_of(store: ParkedStore, document_id: str, key: str = KEY) -> str:
    return str((await store.read(document_id, key))["_etag"])


class ParkedStoreContract:
    """The promises of a ParkedStore on an empty container: override `store`."""

    @pytest.fixture
    def store(self) -> ParkedStore:
        raise NotImplementedError("Override the fixture `store`: it returns the store under test.")

    async def test_the_pages_hold_all_documents_of_one_partition_key_by_id_and_no_other(
        self,
        store: ParkedStore,
    ) -> None:
        """Pages lose and repeat nothing, however many documents a key holds (G2)."""
        for start in range(0, 250, 50):
            await store.commit(KEY, [create(f"{number:03d}") for number in range(start, start + 50)])
        await store.commit("l", [create("other", key="l")])
        assert [f"{number:03d}" for number in range(250)] == [
            document["id"] for document in await everything(store)
        ]
        assert ["003", "004"] == [document["id"] for document in await store.page(KEY, after="002", limit=2)]

    async def test_a_queue_is_read_by_position_from_any_place_and_knows_one_epoch(
        self, store: ParkedStore
    ) -> None:
        """A release takes what is held in order (G3), and nothing of an earlier parking."""
        await store.commit(KEY, [create(f"e{9 - place}", epoch="now", position=place) for place in range(10)])
        await store.commit(KEY, [create("earlier", epoch="before", position=3), create("key", epoch="now")])
        assert [3, 4, 5] == [
            document["position"] for document in await store.queue(KEY, epoch="now", first=3, limit=3)
        ]
        assert () == await store.queue(KEY, epoch="now", first=10, limit=3)
        assert () == await store.queue("l", epoch="now", first=0, limit=3)

    async def test_a_store_tells_which_of_some_documents_are_there(self, store: ParkedStore) -> None:
        """An event that is held already is not held a second time."""
        await store.commit(KEY, [create("a"), create("b"), create('odd "c" \' d')])
        assert {"a", 'odd "c" \' d'} == await store.present(KEY, ["a", "x", 'odd "c" \' d'])
        assert frozenset() == await store.present("l", ["a"])
        assert frozenset() == await store.present(KEY, [])

    async def test_a_store_lists_the_keys_of_one_processor_of_one_container(
        self,
        store: ParkedStore,
    ) -> None:
        """Two processors never see each other's keys."""
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

    async def test_a_store_tells_under_which_partition_keys_events_are_kept(self, store: ParkedStore) -> None:
        """A replay skips a key without events (a key that was handed back may still have records)."""
        for name, kinds in {"held": ("parkedKey", "parkedEvent"), "recorded": ("parkedEvent",) * 2}.items():
            await store.commit(name, [create(f"{n}", key=name, type=kind) for n, kind in enumerate(kinds)])
        await store.commit("empty", [create("0", key="empty", type="parkedKey")])
        assert {"held", "recorded"} == await store.partitions()

    async def test_a_batch_names_its_first_document_where_that_is_taken(self, store: ParkedStore) -> None:
        """An error shows the caller that the key is parked already."""
        await store.commit(KEY, [create("key"), create("event")])
        with pytest.raises(Conflict) as refused:
            await store.commit(KEY, [create("key"), create("event")])
        assert "key" == refused.value.document_id

    async def test_of_an_append_and_a_hand_back_exactly_one_succeeds(self, store: ParkedStore) -> None:
        """No event is held behind a key that was handed back meanwhile (G2)."""
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

    async def test_a_batch_deletes_and_replaces_at_once(self, store: ParkedStore) -> None:
        """One batch may create, replace and delete."""
        await store.commit(KEY, [create("key", n=1), create("a"), create("b")])
        etag = await etag_of(store, "key")
        await store.commit(KEY, [replace("key", etag, n=2), delete("a"), replace("b", None, status="sent")])
        assert {("key", 2, None), ("b", None, "sent")} == {
            (document["id"], document.get("n"), document.get("status"))
            for document in await everything(store)
        }
