"""Tests that every implementation of the port LeaseStore has to pass. Through this port, a worker reads and writes leases."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

import pytest

from cosmos_outbox.errors import Conflict, NotFound, OutboxError, PreconditionFailed
from cosmos_outbox.ports import LeaseStore
from cosmos_outbox.stored_documents import Document

HUNG_SECONDS = 300.0  # a test that waits longer than this hangs


class LeaseStoreContract:
    """Tests of a LeaseStore on an empty container that is partitioned on `/id`. Override the fixture `leases`."""

    @pytest.fixture
    def leases(self) -> LeaseStore:
        raise NotImplementedError("Override the fixture `leases`: it returns the store under test.")

    async def test_a_lease_is_read_as_it_was_created(self, leases: LeaseStore) -> None:
        """A lease that is read has the fields that were written, its etag, and the time of its last write (`_ts`)."""
        created = await leases.create({"id": "a", "Owner": None, "nested": {"x": [1]}})
        read = await leases.read("a", "a")

        assert (None, {"x": [1]}) == (read["Owner"], read["nested"])
        assert created["_etag"] == read["_etag"]
        assert abs(read["_ts"] - datetime.now(UTC).timestamp()) < 60

    async def test_a_change_to_a_returned_document_does_not_change_the_store(
        self, leases: LeaseStore
    ) -> None:
        """The store keeps a copy of each document that it is given, and returns copies. So callers may change their objects."""
        written: Document = {"id": "a", "properties": {"n": 0}}
        created = await leases.create(written)
        (listed,) = (await leases.list("a")).documents
        for copy in (written, created, listed, await leases.read("a", "a")):
            copy["properties"]["n"] += 1

        assert {"n": 0} == (await leases.read("a", "a"))["properties"]

    async def test_only_one_of_several_creators_of_a_document_succeeds(self, leases: LeaseStore) -> None:
        """If several workers create the same lease at once, exactly one of them succeeds."""
        outcomes = await asyncio.gather(
            *(leases.create({"id": "a"}) for _ in range(8)), return_exceptions=True
        )

        assert 7 == sum(isinstance(outcome, Conflict) for outcome in outcomes)

    async def test_only_one_of_several_writers_with_the_same_etag_succeeds(self, leases: LeaseStore) -> None:
        """If several workers acquire the same lease at once, exactly one of them succeeds. So each range has one owner."""
        created = await leases.create({"id": "a"})

        outcomes = await asyncio.gather(
            *(leases.replace({"id": "a", "n": n}, etag=created["_etag"]) for n in range(8)),
            return_exceptions=True,
        )

        winners = [outcome for outcome in outcomes if isinstance(outcome, dict)]
        assert 7 == sum(isinstance(outcome, PreconditionFailed) for outcome in outcomes)
        assert [(await leases.read("a", "a"))["n"]] == [winner["n"] for winner in winners]

    async def test_a_list_has_the_documents_whose_ids_begin_with_a_prefix(self, leases: LeaseStore) -> None:
        """
        The list also has the time of Cosmos DB, `read_at`. Workers compare it with the `_ts` of a lease, so the clock of Cosmos DB
        decides which leases have expired.
        """
        for name in ("p..0", "p..1", "p.info", "other..0"):
            await leases.create({"id": name})

        listing = await leases.list("p..")

        assert ["p..0", "p..1"] == sorted(document["id"] for document in listing.documents)
        assert all("_etag" in document and "_ts" in document for document in listing.documents)
        assert abs(listing.read_at - datetime.now(UTC)) < timedelta(seconds=60)

    async def test_a_list_of_many_documents_is_complete(self, leases: LeaseStore) -> None:
        """If a lease were missing from the list, no worker would acquire it, and the events of its range would not be sent."""
        await asyncio.gather(*(leases.create({"id": f"p..{number}"}) for number in range(250)))

        assert 250 == len((await leases.list("p..")).documents)

    @pytest.mark.parametrize("missing", ["read", "replace", "delete"])
    async def test_a_call_for_a_missing_document_raises_not_found(
        self, leases: LeaseStore, missing: str
    ) -> None:
        """A read, replace or delete of a document that does not exist raises `NotFound`."""
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "read": lambda: leases.read("a", "a"),
            "replace": lambda: leases.replace({"id": "a"}, etag='"1"'),
            "delete": lambda: leases.delete("a", "a"),
        }
        with pytest.raises(NotFound):
            await calls[missing]()

    async def test_a_delete_with_an_old_etag_deletes_nothing(self, leases: LeaseStore) -> None:
        """A worker cannot delete a lease that another worker has changed since it was read."""
        created = await leases.create({"id": "a"})
        replaced = await leases.replace({"id": "a"}, etag=created["_etag"])

        with pytest.raises(PreconditionFailed):
            await leases.delete("a", "a", etag=created["_etag"])
        await leases.delete("a", "a", etag=replaced["_etag"])
        with pytest.raises(NotFound):
            await leases.read("a", "a")

    async def test_a_document_is_gone_when_its_ttl_has_passed(self, leases: LeaseStore) -> None:
        """If a worker dies while it holds a lock document, Cosmos DB deletes the document later, so other workers can go on."""
        await leases.create({"id": "a", "ttl": 1})

        async def is_gone() -> bool:
            try:
                await leases.read("a", "a")
            except OutboxError:
                return True
            return False

        async with asyncio.timeout(HUNG_SECONDS):
            while not await is_gone():  # noqa: ASYNC110 - the service gives no sign
                await asyncio.sleep(0.1)
