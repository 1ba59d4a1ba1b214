"""The promises of every LeaseStore."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

import pytest

from cosmos_outbox.errors import Conflict, NotFound, OutboxError, PreconditionFailed
from cosmos_outbox.ports import LeaseStore
from cosmos_outbox.stored_documents import Document

HUNG_SECONDS = 300.0  # seconds; a wait ends sooner, at the fact for which it waits


class LeaseStoreContract:
    """The promises of a LeaseStore on an empty container that is partitioned on `/id`: override `leases`."""

    @pytest.fixture
    def leases(self) -> LeaseStore:
        raise NotImplementedError("Override the fixture `leases`: it returns the store under test.")

    async def test_a_document_is_read_as_it_was_created_with_an_etag_and_a_time(
        self, leases: LeaseStore
    ) -> None:
        """A lease comes back with its etag and the service's time."""
        created = await leases.create({"id": "a", "Owner": None, "nested": {"x": [1]}})
        read = await leases.read("a", "a")

        assert (None, {"x": [1]}) == (read["Owner"], read["nested"])
        assert created["_etag"] == read["_etag"]
        assert abs(read["_ts"] - datetime.now(UTC).timestamp()) < 60

    async def test_what_writers_and_readers_do_to_their_copies_is_not_stored(
        self, leases: LeaseStore
    ) -> None:
        """The store keeps copies and gives copies away."""
        written: Document = {"id": "a", "properties": {"n": 0}}
        created = await leases.create(written)
        (listed,) = (await leases.list("a")).documents
        for copy in (written, created, listed, await leases.read("a", "a")):
            copy["properties"]["n"] += 1

        assert {"n": 0} == (await leases.read("a", "a"))["properties"]

    async def test_one_of_many_creators_succeeds(self, leases: LeaseStore) -> None:
        """Of workers that create the same lease, one does."""
        outcomes = await asyncio.gather(
            *(leases.create({"id": "a"}) for _ in range(8)), return_exceptions=True
        )

        assert 7 == sum(isinstance(outcome, Conflict) for outcome in outcomes)

    async def test_one_of_many_replacers_with_the_same_etag_succeeds(self, leases: LeaseStore) -> None:
        """Of workers that acquire the same lease, one does (G5)."""
        created = await leases.create({"id": "a"})

        outcomes = await asyncio.gather(
            *(leases.replace({"id": "a", "n": n}, etag=created["_etag"]) for n in range(8)),
            return_exceptions=True,
        )

        winners = [outcome for outcome in outcomes if isinstance(outcome, dict)]
        assert 7 == sum(isinstance(outcome, PreconditionFailed) for outcome in outcomes)
        assert [(await leases.read("a", "a"))["n"]] == [winner["n"] for winner in winners]

    async def test_a_list_holds_the_documents_with_the_prefix_and_the_services_time(
        self, leases: LeaseStore
    ) -> None:
        """One clock decides which leases have expired: the service's."""
        for name in ("p..0", "p..1", "p.info", "other..0"):
            await leases.create({"id": name})

        listing = await leases.list("p..")

        assert ["p..0", "p..1"] == sorted(document["id"] for document in listing.documents)
        assert all("_etag" in document and "_ts" in document for document in listing.documents)
        assert abs(listing.read_at - datetime.now(UTC)) < timedelta(seconds=60)

    async def test_a_list_is_complete_however_many_documents_there_are(self, leases: LeaseStore) -> None:
        """No lease is missed, or its range would be served by no worker (G2)."""
        await asyncio.gather(*(leases.create({"id": f"p..{number}"}) for number in range(250)))

        assert 250 == len((await leases.list("p..")).documents)

    @pytest.mark.parametrize("missing", ["read", "replace", "delete"])
    async def test_what_does_not_exist_is_not_found(self, leases: LeaseStore, missing: str) -> None:
        """Each operation on a missing document says `NotFound`."""
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "read": lambda: leases.read("a", "a"),
            "replace": lambda: leases.replace({"id": "a"}, etag='"1"'),
            "delete": lambda: leases.delete("a", "a"),
        }
        with pytest.raises(NotFound):
            await calls[missing]()

    async def test_a_delete_with_an_old_etag_deletes_nothing(self, leases: LeaseStore) -> None:
        """A lease that another worker has changed stays."""
        created = await leases.create({"id": "a"})
        replaced = await leases.replace({"id": "a"}, etag=created["_etag"])

        with pytest.raises(PreconditionFailed):
            await leases.delete("a", "a", etag=created["_etag"])
        await leases.delete("a", "a", etag=replaced["_etag"])
        with pytest.raises(NotFound):
            await leases.read("a", "a")

    async def test_a_document_is_gone_when_its_ttl_has_passed(self, leases: LeaseStore) -> None:
        """A lock whose owner died goes away by itself."""
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
