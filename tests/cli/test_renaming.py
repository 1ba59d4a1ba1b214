"""
`cosmos-outbox leases rename-host`: leases move to the account's own name, none is lost, and it can be repeated from anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from cosmos_outbox.adapters.memory.leases import MemoryLeases
from cosmos_outbox.changefeed.leases import lease_prefix, new_lease
from cosmos_outbox.changefeed.naming import in_use
from cosmos_outbox.cli.leases.renaming import rename_host
from cosmos_outbox.errors import ConfigurationError, PreconditionFailed, StoreUnavailable, UsageError
from cosmos_outbox.feed_range import FeedRange
from cosmos_outbox.ports import Document, MonitoredContainer
from tests.support.local import Local

GLOBAL, REGIONAL = "acct.documents.azure.com", "acct-westeurope.documents.azure.com"
CONTAINER = MonitoredContainer(account_host=GLOBAL, database_rid="AA==", container_rid="AAB=")
RANGES = {"0": FeedRange(min="", max="7F"), "1": FeedRange(min="7F", max="FF")}
FROM_THE_START: dict[str, Any] = {"properties": {"start": "beginning"}}


class Leases(MemoryLeases):
    """
    Leases of a container; the process dies before one more write than `writes`.
    """

    def __init__(self, *, by_id: bool = True) -> None:
        super().__init__(by_id=by_id)
        self.writes: int | None = None

    def _write(self) -> None:
        if self.writes is not None:
            self.writes -= 1
            if self.writes < 0:
                raise StoreUnavailable("The process died.")

    async def create(self, document: Mapping[str, Any]) -> Document:
        self._write()
        return await super().create(document)

    async def replace(self, document: Mapping[str, Any], *, etag: str) -> Document:
        self._write()
        return await super().replace(document, etag=etag)

    async def delete(self, document_id: str, partition_key: str, *, etag: str | None = None) -> None:
        self._write()
        await super().delete(document_id, partition_key, etag=etag)

    async def plant(self, host: str, owner: str | None = None, **continuations: str | None) -> None:
        prefix = lease_prefix("p", replace(CONTAINER, account_host=host))
        by_id = await self.partitioned_by_id()
        await self.create({"id": f"{prefix}.info", "start": "2026-01-01T00:00:00Z"})
        for name, continuation in continuations.items():
            token = name.removeprefix("range")
            lease = new_lease(
                prefix,
                token,
                RANGES[token],
                continuation=continuation,
                partitioned_by_id=by_id,
                **FROM_THE_START,
            )
            await self.create({**lease.raw, "Owner": owner, "from-another-program": "kept"})

    async def positions(self, host: str) -> dict[str, str | None]:
        prefix = lease_prefix("p", replace(CONTAINER, account_host=host))
        return {
            one["id"].rpartition("..")[2]: one["ContinuationToken"]
            for one in (await self.list(f"{prefix}..")).documents
        }

    async def rename(self, **options: Any) -> list[str]:
        changes = await rename_host(
            CONTAINER, processor_name="p", store=self, expiration=timedelta(seconds=60), **options
        )
        return [change.done for change in changes]

    async def host_in_use(self) -> str:
        return (await in_use(CONTAINER, processor_name="p", leases=self)).account_host


@pytest.mark.parametrize("by_id", [True, False])
async def test_leases_and_their_mark_move_with_their_positions_and_all_that_other_programs_wrote(by_id: bool):
    leases = Leases(by_id=by_id)
    await leases.plant(REGIONAL, range0='"7"', range1=None)
    assert ["moved", "moved"] == await leases.rename()
    documents = (await leases.list("")).documents
    prefix = lease_prefix("p", replace(CONTAINER, account_host=GLOBAL))
    assert {f"{prefix}..0", f"{prefix}..1", f"{prefix}.info"} == {one["id"] for one in documents}
    assert {"0": '"7"', "1": None} == await leases.positions(GLOBAL)
    assert ["2026-01-01T00:00:00Z"] == [one["start"] for one in documents if one["id"].endswith(".info")]
    assert ["kept", "kept"] == [one["from-another-program"] for one in documents if "LeaseToken" in one]
    assert {by_id} == {
        one.get("partitionKey", one["id"]) == one["id"] and ("partitionKey" not in one) for one in documents
    }
    assert GLOBAL == await leases.host_in_use()
    assert [] == await leases.rename()


async def test_a_process_that_dies_anywhere_loses_no_lease_and_the_next_one_goes_on():
    for writes in range(100):
        leases = Leases()
        await leases.plant(REGIONAL, range0='"7"', range1='"9"')
        leases.writes = writes
        try:
            await leases.rename()
        except StoreUnavailable:
            finished = False
        else:
            finished = True
        leases.writes = None
        old, new = await leases.positions(REGIONAL), await leases.positions(GLOBAL)
        assert {"0": '"7"', "1": '"9"'} == old | new
        if old and new:
            with pytest.raises(ConfigurationError, match="rename-host"):
                await leases.host_in_use()
        await leases.rename()
        assert ({}, {"0": '"7"', "1": '"9"'}) == (
            await leases.positions(REGIONAL),
            await leases.positions(GLOBAL),
        )
        if finished:
            assert writes > 3
            return
    pytest.fail("it never came to its end")


async def test_nothing_moves_while_a_worker_owns_a_lease_under_either_name():
    for owned, free in ((REGIONAL, GLOBAL), (GLOBAL, REGIONAL)):
        leases = Leases()
        await leases.plant(owned, "worker-1", range0='"7"')
        await leases.plant(free, range0='"7"')
        with pytest.raises(UsageError, match="worker-1"):
            await leases.rename()
        assert {"0": '"7"'} == await leases.positions(REGIONAL)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('"7"', '"10"', '"7"'),
        ('"10"', '"7"', '"7"'),
        (None, '"7"', None),
        ('"7"', '"7"', '"7"'),
        (None, None, None),
    ],
)
async def test_of_two_sets_of_leases_the_earlier_position_counts(
    old: str | None, new: str | None, expected: str | None
):
    leases = Leases()
    await leases.plant(REGIONAL, range0=old)
    await leases.plant(GLOBAL, range0=new)
    await leases.rename()
    assert ({}, {"0": expected}) == (await leases.positions(REGIONAL), await leases.positions(GLOBAL))


async def test_what_cannot_be_compared_is_left_as_it_is():
    leases = Leases()
    await leases.plant(REGIONAL, range0='"composite"')
    await leases.plant(GLOBAL, range0='"7"')
    with pytest.raises(ConfigurationError, match="cannot be decided"):
        await leases.rename()
    assert ({"0": '"composite"'}, {"0": '"7"'}) == (
        await leases.positions(REGIONAL),
        await leases.positions(GLOBAL),
    )


async def test_two_sets_that_divide_the_keys_differently_are_left_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setitem(RANGES, "2", FeedRange(min="", max="3F"))
    leases = Leases()
    await leases.plant(REGIONAL, range0='"7"')
    await leases.plant(GLOBAL, range2='"7"')
    with pytest.raises(ConfigurationError, match="divide the keys"):
        await leases.rename()


async def test_a_lease_that_a_worker_takes_meanwhile_stays():
    class Taken(Leases):
        async def delete(self, document_id: str, partition_key: str, *, etag: str | None = None) -> None:
            if document_id.endswith("..0"):
                found = await self.read(document_id, partition_key)
                await self.replace({**found, "Owner": "worker-1"}, etag=found["_etag"])
            await super().delete(document_id, partition_key, etag=etag)

    leases = Taken()
    await leases.plant(REGIONAL, range0='"7"')
    with pytest.raises(PreconditionFailed):
        await leases.rename()
    assert {"0": '"7"'} == await leases.positions(REGIONAL)


@pytest.mark.looptime(False)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_the_command_asks_and_renames_and_all_commands_find_the_leases_before_and_after(outbox: Local):
    outbox.run("bootstrap")

    async def name_as_before(leases):
        for item in [item async for item in leases.read_all_items()]:  # what is created would be read too
            old = item["id"].replace("localhost", "127.0.0.1")
            await leases.create_item({**item, "id": old})
            await leases.delete_item(item["id"], item["id"])

    outbox.on_leases(name_as_before)
    before = outbox.rows("leases", "list")
    assert ["0", "1"] == [lease["range"] for lease in before]
    assert {True} == {"127.0.0.1" in lease["id"] for lease in before}
    assert {"moved"} == {one["done"] for one in outbox.json("leases", "rename-host", "--dry-run")["leases"]}
    assert [one["id"] for one in before] == [one["id"] for one in outbox.rows("leases", "list")]
    outbox.run("leases", "rename-host", code=2)
    outbox.run("leases", "rename-host", "--yes")
    after = outbox.rows("leases", "list")
    assert [(one["range"], True) for one in before] == [
        (one["range"], "localhost" in one["id"]) for one in after
    ]
    assert [] == outbox.json("leases", "rename-host", "--yes")["leases"]
