"""
Names of leases: a worker refuses leases under another host name of its account, and never takes leases of another processor for its own.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cosmos_outbox.adapters.memory.container import MemoryContainer
from cosmos_outbox.adapters.memory.leases import MemoryLeases
from cosmos_outbox.changefeed import ChangeFeedProcessor, ProcessorOptions
from cosmos_outbox.changefeed.bootstrap import others_on, own_prefix
from cosmos_outbox.changefeed.leases import lease_prefix, new_lease
from cosmos_outbox.errors import ConfigurationError
from cosmos_outbox.partition_key import FeedRange
from cosmos_outbox.ports import ChangeBatch, MonitoredContainer, Write, WriteKind

GLOBAL = "acct.documents.azure.com"
OTHER_NAMES = (
    "acct",
    "acct-westeurope.documents.azure.com",
    "acct.privatelink.documents.azure.com",
    "acct.sqlx.cosmos.azure.com",
)
# Hypothesis builds names from these pieces, because a wrong comparison would confuse such names.
PIECES = st.lists(
    st.sampled_from(["p", "acct", "-", ".", "1", "westeurope", "documents.azure.com"]),
    min_size=1,
    max_size=4,
).map("".join)
NAMES = st.one_of(PIECES, st.text(st.characters(exclude_characters="_"), min_size=1, max_size=8))
ACCOUNT = MonitoredContainer(account_host=GLOBAL, database_rid="AA==", container_rid="AAB=")


async def leases_under(*heads: str) -> MemoryLeases:
    leases = MemoryLeases()
    for head in heads:
        await leases.create({"id": f"{head}_AA==_AAB=..0"})
    return leases


@pytest.mark.parametrize("host", OTHER_NAMES)
async def test_leases_under_another_host_name_of_the_account_are_refused(host: str):
    leases = await leases_under(f"p{GLOBAL}", f"p{host}")
    with pytest.raises(
        ConfigurationError, match=f"Delete the documents.*begin with 'p{host}'.*a time before"
    ):
        await own_prefix(ACCOUNT, processor_name="p", leases=leases)


@given(name=NAMES, more=NAMES)
@example(name="p", more="acct-x")
@example(name="p", more="acct-westeurope.documents.azure.com")
async def test_processors_with_a_common_beginning_of_their_names_are_told_apart(name: str, more: str):
    leases = await leases_under(f"{name}{more}{GLOBAL}")
    assert f"{name}{GLOBAL}_AA==_AAB=" == await own_prefix(ACCOUNT, processor_name=name, leases=leases)
    assert (f"{name}{more}",) == await others_on(ACCOUNT, processor_name=name, leases=leases)


@pytest.mark.parametrize("host", ["", "other.documents.azure.com", "acctx.documents.azure.com"])
async def test_leases_without_the_host_of_this_account_belong_to_another_processor(host: str):
    leases = await leases_under(f"p{host}", f"p{GLOBAL}")
    await own_prefix(ACCOUNT, processor_name="p", leases=leases)
    assert (f"p{host}",) == await others_on(ACCOUNT, processor_name="p", leases=leases)


async def test_leases_of_other_containers_are_ignored():
    leases = MemoryLeases()
    for name in ("pacct_AA==_AAC=..0", "qacct_AA==_AAB=.info", "qacct_AA==_AAB=.lock", "doctor"):
        await leases.create({"id": name})
    await own_prefix(ACCOUNT, processor_name="p", leases=leases)
    assert () == await others_on(ACCOUNT, processor_name="p", leases=leases)


class World:
    """A container with one range, and leases under the names that a test chooses."""

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
        """Run a processor until it has handled `until` changes, and return the ids of these changes."""
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


@pytest.mark.parametrize("own", [True, False])
async def test_a_processor_refuses_to_start_beside_leases_under_another_host_name(own: bool):
    world = World()
    if own:
        await world.plant("memory")
    await world.plant("memory-westeurope")
    await world.write("a")
    with pytest.raises(ConfigurationError, match="another name of the account"):
        await world.handled(until=1)


async def test_a_processor_ignores_leases_of_other_processors():
    world = World()
    await world.plant("memory", name="p-audit")
    await world.plant("memory", name="p2")
    await world.write("a")
    assert ["a"] == await world.handled(until=1)
    described = await world.container.describe()
    assert ("p-audit", "p2") == await others_on(described, processor_name="p", leases=world.leases)
