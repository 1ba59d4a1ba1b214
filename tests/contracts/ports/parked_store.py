"""What every ParkedStore keeps."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from cosmos_outbox.errors import Conflict, NotFound, PreconditionFailed
from cosmos_outbox.parking.documents import NO_ETAG
from cosmos_outbox.ports import ParkedStore, Write, WriteKind
from tests.contracts.ports.store import KEY, create, delete, replace


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

    async def test_a_document_is_read_and_listed_as_it_was_written(self, store: ParkedStore) -> None:
        """Whatever is held comes back unchanged."""
        await store.commit(KEY, [create("a", nested={"x": [1, None]})])
        read = await store.read("a", KEY)
        assert {"x": [1, None]} == read["nested"]
        assert [read["_etag"]] == [document["_etag"] for document in await everything(store)]

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
        """What is held already is not held twice."""
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

    async def test_a_partition_key_without_documents_has_no_page(self, store: ParkedStore) -> None:
        """A key that is not parked is an empty page, not an error."""
        assert () == await store.page("missing")

    async def test_a_batch_with_one_refused_write_changes_nothing(self, store: ParkedStore) -> None:
        """An event is held together with the change of its key, or not at all."""
        await store.commit(KEY, [create("key", n=1), create("taken")])
        etag = await etag_of(store, "key")
        with pytest.raises(Conflict) as refused:
            await store.commit(KEY, [replace("key", etag, n=2), create("new"), create("taken")])
        assert "taken" == refused.value.document_id
        assert 1 == (await store.read("key", KEY))["n"]
        assert {"key", "taken"} == {document["id"] for document in await everything(store)}

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

    @pytest.mark.parametrize("writes", [[replace("key", '"1"')], [replace("key", '"1"'), create("event")]])
    async def test_an_append_to_a_key_that_was_handed_back_says_that_there_is_none(
        self, store: ParkedStore, writes: Sequence[Write]
    ) -> None:
        """`NotFound` allows the relay to send an event that it could not hold."""
        with pytest.raises(NotFound):
            await store.commit(KEY, writes)
        assert [] == await everything(store)

    async def test_a_deletion_that_matches_nothing_tells_whether_there_is_a_document(
        self, store: ParkedStore
    ) -> None:
        """A conditional delete distinguishes a missing document from a changed one."""
        with pytest.raises(NotFound):
            await store.commit(KEY, [delete("key", NO_ETAG)])
        await store.commit(KEY, [create("key")])
        with pytest.raises(PreconditionFailed):
            await store.commit(KEY, [delete("key", NO_ETAG)])
        assert await etag_of(store, "key")

    async def test_a_batch_deletes_and_replaces_at_once(self, store: ParkedStore) -> None:
        """One batch may create, replace and delete."""
        await store.commit(KEY, [create("key", n=1), create("a"), create("b")])
        etag = await etag_of(store, "key")
        await store.commit(KEY, [replace("key", etag, n=2), delete("a"), replace("b", None, status="sent")])
        assert {("key", 2, None), ("b", None, "sent")} == {
            (document["id"], document.get("n"), document.get("status"))
            for document in await everything(store)
        }
