"""
Naming: one account is one name, whichever of its hosts a setting had; processors are never taken for one another.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from cosmos_outbox.adapters.memory.container import MemoryContainer
from cosmos_outbox.adapters.memory.leases import MemoryLeases
from cosmos_outbox.changefeed import ChangeFeedProcessor, ProcessorOptions, estimate_lag
from cosmos_outbox.changefeed.leases import lease_prefix, new_lease
from cosmos_outbox.changefeed.naming import (
    heads_of,
    host_in,
    hosts_of_leases,
    in_use,
    others_on,
    processor_in,
)
from cosmos_outbox.errors import ConfigurationError
from cosmos_outbox.feed_range import FeedRange
from cosmos_outbox.ports import ChangeBatch, MonitoredContainer, StartFrom, Write, WriteKind

GLOBAL = "acct.documents.azure.com"
OLD_NAMES = (
    "acct",
    "acct-westeurope.documents.azure.com",
    "acct.privatelink.documents.azure.com",
    "acct.sqlx.cosmos.azure.com",
    "localhost",
    "127.0.0.1",
)
# Pieces of which names are made that are hard to tell apart.
PIECES = st.lists(
    st.sampled_from(
        ["p", "acct", "-", ".", "1", "localhost", "127.0.0.1", "westeurope", "documents.azure.com"]
    ),
    min_size=1,
    max_size=4,
).map("".join)
NAMES = st.one_of(PIECES, st.text(st.characters(exclude_characters="_"), min_size=1, max_size=8))


@given(name=NAMES, host=st.sampled_from([GLOBAL, *OLD_NAMES]))
def test_leases_under_any_name_of_the_account_are_found_as_the_processors(name: str, host: str):
    assume(host == GLOBAL or not f"{name}{host}".endswith(GLOBAL))
    assert host == host_in(f"{name}{host}", processor_name=name, account_host=GLOBAL)


@given(name=NAMES, more=NAMES, host=st.sampled_from([GLOBAL, *OLD_NAMES]))
@example(name="p", more="acct-x", host=GLOBAL)
@example(name="p", more="acct.x", host="127.0.0.1")
@example(name="p", more="1", host="127.0.0.1")
@example(name="p", more="acct-westeurope.documents.azure.com", host=GLOBAL)
def test_a_processor_whose_name_begins_with_anothers_is_never_taken_for_it(name: str, more: str, host: str):
    assert host_in(f"{name}{more}{host}", processor_name=name, account_host=GLOBAL) is None


@pytest.mark.parametrize(
    "host",
    ["", "other.documents.azure.com", "acct-.documents.azure.com", "acctx.documents.azure.com", "1127.0.0.1"],
)
def test_what_is_no_name_of_the_account_is_not_used(host: str):
    assert host_in(f"p{host}", processor_name="p", account_host=GLOBAL) is None


@pytest.mark.parametrize("host", [GLOBAL, *OLD_NAMES[:2], *OLD_NAMES[4:]])
def test_another_processor_is_named_without_the_host(host: str):
    expected = (
        "audit" if host != "acct" else "auditacct"
    )  # an id alone is only known where the account has no more
    assert expected == processor_in(f"audit{host}", account_host=GLOBAL)
    assert "audit" == processor_in("auditlocalhost", account_host="localhost")


def test_leases_of_other_containers_and_other_documents_count_for_nothing():
    container = MonitoredContainer(account_host=GLOBAL, database_rid="AA==", container_rid="AAB=")
    ids = [
        "pacct_AA==_AAB=..0",
        "pacct_AA==_AAC=..0",
        "qacct_AA==_AAB=.info",
        "qacct_AA==_AAB=.lock",
        "doctor",
    ]
    assert {"pacct"} == heads_of(ids, container)


class World:
    """
    A container with one range, and leases under the names that a test plants.
    """

    def __init__(self) -> None:
        self.container, self.leases = MemoryContainer(), MemoryLeases()

    async def plant(self, host: str, *, name: str = "p", continuation: str | None = None) -> str:
        described = await self.container.describe()
        prefix = lease_prefix(name, replace(described, account_host=host))
        (physical,) = await self.container.physical_ranges()
        token = await self.container.partition_id(physical)
        lease = new_lease(prefix, token, FeedRange(min="", max="FF"), continuation=continuation)
        await self.leases.create({"id": f"{prefix}.info"})
        await self.leases.create(lease.raw)
        return lease.id

    async def write(self, *ids: str) -> None:
        for name in ids:
            write = Write(kind=WriteKind.CREATE, id=name, document={"id": name, "partitionKey": "k"})
            await self.container.commit("k", [write])

    async def handled(self, *, until: int) -> list[str]:
        """
        Run a processor until it handled so many changes; return their ids.
        """
        seen: list[str] = []
        enough = asyncio.Event()

        async def handle(batch: ChangeBatch) -> None:
            seen.extend(document["id"] for document in batch.documents)
            if len(seen) >= until:
                enough.set()

        processor = ChangeFeedProcessor(
            self.container, self.leases, handle, ProcessorOptions(processor_name="p"), hooks=()
        )
        running = asyncio.create_task(processor.run())
        waiting = asyncio.create_task(enough.wait())
        await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        processor.stop()
        await running
        return seen

    async def ids(self) -> list[str]:
        return [
            document["id"] for document in (await self.leases.list("")).documents if "LeaseToken" in document
        ]


async def test_leases_under_an_old_name_are_gone_on_with_and_the_command_that_renames_them_is_named(
    caplog: pytest.LogCaptureFixture,
):
    world = World()
    await world.write("sent")
    (physical,) = await world.container.physical_ranges()
    described = await world.container.describe()
    page = await world.container.read_page(
        physical,
        container_rid=described.container_rid,
        continuation=None,
        start=StartFrom.BEGINNING,
        max_items=100,
    )
    old = await world.plant("127.0.0.1", continuation=page.continuation)
    await world.write("waits")
    lag = await estimate_lag("p", feed=world.container, leases=world.leases)
    assert [(old, 1)] == [(lease.lease, lease.transactions) for lease in lag.leases]
    assert ["waits"] == await world.handled(until=1)
    assert [old] == await world.ids()
    assert "leases rename-host" in caplog.text


async def test_two_sets_of_leases_of_one_processor_are_refused():
    world = World()
    await world.plant("memory")
    await world.plant("localhost")
    await world.write("a")
    with pytest.raises(ConfigurationError, match="leases rename-host"):
        await world.handled(until=1)


async def test_leases_of_other_processors_change_nothing_and_are_named():
    world = World()
    await world.plant("memory", name="p-audit")
    await world.plant("localhost", name="p2")
    await world.write("a")
    assert ["a"] == await world.handled(until=1)
    described = await world.container.describe()
    assert described == await in_use(described, processor_name="p", leases=world.leases)
    assert ("memory",) == await hosts_of_leases(described, processor_name="p", leases=world.leases)
    assert ("p-audit", "p2") == await others_on(described, processor_name="p", leases=world.leases)
