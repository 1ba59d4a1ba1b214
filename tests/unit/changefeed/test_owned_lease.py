"""
How one worker writes its lease: what it does after a 412 (the etag has changed), and that it writes nothing after it lost the lease.

Trust is the time after its last write in which an owner may rely on the lease, because no other worker can have taken it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest

from cosmos_outbox.adapters.memory.container import MemoryContainer
from cosmos_outbox.adapters.memory.leases import MemoryLeases
from cosmos_outbox.changefeed import ProcessorOptions
from cosmos_outbox.changefeed.leases import Lease, from_document, new_lease
from cosmos_outbox.changefeed.owned_lease import OwnedLease, Worker
from cosmos_outbox.changefeed.owned_leases import acquire
from cosmos_outbox.changefeed.read_ahead import Budget
from cosmos_outbox.errors import LeaseLost, TooManyRequests
from cosmos_outbox.partition_key import FeedRange
from cosmos_outbox.ports import ChangeBatch
from cosmos_outbox.retries import suspended_seconds
from tests.support.changefeed_world import Faulty, virtual_seconds, virtual_utcnow

OPTIONS = ProcessorOptions(processor_name="p", instance_name="me")


class CountingLeases(MemoryLeases):
    writes = 0

    async def replace(self, document, *, etag):
        self.writes += 1
        return await super().replace(document, etag=etag)

    async def stored(self) -> Lease:
        return from_document(await self.read("p..0", "p..0"))

    async def written_by_another(self, **changes: object) -> Lease:
        lease = await self.stored()
        return from_document(
            await super().replace(lease.with_changes(now=virtual_utcnow(), **changes).raw, etag=lease.etag)
        )


async def acquired(
    lease: Lease, store: MemoryLeases, suspended: Callable[[], float] = suspended_seconds
) -> OwnedLease:
    async def handle(batch: ChangeBatch) -> None:
        raise AssertionError

    worker = Worker(
        feed=MemoryContainer(),
        store=store,
        handler=handle,
        options=OPTIONS,
        budget=Budget(1, leases=lambda: 1),
        notify=lambda record: None,
        utcnow=virtual_utcnow,
        suspended=suspended,
    )
    assert lease.range
    return await acquire(lease, lease.range, worker, container=await MemoryContainer().describe())


async def acquired_from(
    store: MemoryLeases, suspended: Callable[[], float] = suspended_seconds
) -> OwnedLease:
    """Create a lease in the store, acquire it for a worker, and return it."""
    created = await store.create(new_lease("p", "0", FeedRange(min="", max="FF")).raw)
    return await acquired(from_document(created), store, suspended)


async def owned(suspended: Callable[[], float] = lambda: 0.0) -> tuple[CountingLeases, OwnedLease]:
    store = CountingLeases(now=virtual_seconds)
    return store, await acquired_from(store, suspended)


async def test_a_lease_that_another_worker_took_is_not_overwritten():
    store, mine = await owned()
    theirs = await store.written_by_another(owner="dotnet", continuation='"5"')
    mine.advance('"9"')
    for write in (mine.save, mine.release):
        with pytest.raises(LeaseLost, match="dotnet"):
            await write()

    assert theirs == await store.stored()


async def test_an_owner_merges_a_lease_write_of_another_program_that_keeps_the_owner():
    store, mine = await owned()
    await store.written_by_another(properties={**mine.lease.properties, "theirs": "kept"})
    mine.advance('"9"')
    await mine.save()

    found = await store.stored()
    assert ("me", '"9"', "kept") == (found.owner, found.continuation, found.properties["theirs"])


async def test_a_range_that_another_program_removed_from_the_lease_is_written_again():
    store, mine = await owned()
    found = await store.read("p..0", "p..0")
    document = {name: value for name, value in found.items() if name != "FeedRange"}
    await MemoryLeases.replace(store, document, etag=found["_etag"])
    await mine.save()

    assert FeedRange(min="", max="FF") == (await store.stored()).range


async def test_renewals_and_checkpoints_of_one_owner_never_collide():
    store, mine = await owned()
    keeping = asyncio.ensure_future(mine.keep())
    for number in range(2000):
        mine.advance(f'"{number}"')
        await asyncio.sleep(0.05)
    keeping.cancel()

    spared = store.writes
    assert await store.stored() == mine.lease
    assert 100 / 0.2 - 30 <= spared <= 100 / 0.2 + 10, "one write each checkpoint interval, and no repetition"


async def test_an_owner_writes_nothing_in_the_seconds_before_its_lease_expires():
    store, mine = await owned()
    before = store.writes
    await asyncio.sleep(OPTIONS.trust_seconds)
    for write in (mine.save, mine.release):
        with pytest.raises(LeaseLost):
            await write()

    assert before == store.writes


class StaleLeases(CountingLeases):
    """A lease store whose reads return an older document for a while, as session consistency allows."""

    behind: dict[str, object] | None = None

    async def read(self, document_id, partition_key):
        found = await super().read(document_id, partition_key)
        return found if self.behind is None else dict(self.behind)


async def test_an_owner_reads_again_if_a_read_after_a_refused_write_is_stale():
    store = StaleLeases(now=virtual_seconds)
    mine = await acquired_from(store)
    stale = await store.read("p..0", "p..0")
    await store.written_by_another(properties={**mine.lease.properties, "theirs": "kept"})
    store.behind, store.writes = stale, 0
    saving = asyncio.create_task(mine.save())
    await asyncio.sleep(20)
    tries = store.writes
    store.behind = None
    await saving

    assert 5 < tries < 100
    assert "kept" == (await store.stored()).properties["theirs"]


async def test_a_lease_that_a_java_processor_overwrote_is_lost():
    store, mine = await owned()
    found = await store.read("p..0", "p..0")
    await MemoryLeases.replace(store, {**found, "ContinuationToken": "eyJWIjox"}, etag=found["_etag"])
    with pytest.raises(LeaseLost):
        await mine.save()


async def test_an_owner_may_begin_work_until_shortly_before_its_lease_expires():
    """The test also checks that an owner whose task was cancelled may save the work that it did, but begin no more."""
    _, mine = await owned()
    mine.ensure_active()
    await asyncio.sleep(OPTIONS.trust_seconds - 0.01)
    mine.ensure_active()
    await asyncio.sleep(0.02)
    with pytest.raises(LeaseLost):
        mine.ensure_active()

    _, mine = await owned()
    keeping = asyncio.create_task(mine.keep())
    await asyncio.sleep(1)
    keeping.cancel()
    await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        mine.ensure_active()
    mine.ensure_trusted()  # the owner may still save the work that it did


class SlowLeases(CountingLeases):
    """A lease store that writes at once and answers ten seconds later."""

    async def replace(self, document, *, etag):
        written = await super().replace(document, etag=etag)
        await asyncio.sleep(10)
        return written


async def test_an_owner_relies_on_its_lease_from_the_sending_of_its_last_write():
    loop, store = asyncio.get_running_loop(), SlowLeases(now=virtual_seconds)
    sent_at = loop.time()
    mine = await acquired_from(store)
    assert sent_at + OPTIONS.trust_seconds == mine.trusted_until

    sent_at = loop.time()
    await mine.save()
    assert sent_at + OPTIONS.trust_seconds == mine.trusted_until


async def test_an_owner_whose_write_gets_no_answer_gives_its_lease_up_in_time():
    _, mine = await owned()
    store = Faulty(MemoryLeases())
    store.hanging.add("replace")
    mine.worker = replace(mine.worker, store=store)
    with pytest.raises(LeaseLost):
        await mine.keep()

    assert mine.trusted_until == asyncio.get_running_loop().time()


async def test_an_owner_notices_a_handover_request_at_its_next_write():
    store, mine = await owned()
    await store.written_by_another(properties={**mine.lease.properties, "handover.wanted-by": "b"})
    assert not mine.drain.is_set()
    await mine.save()

    assert (True, True) == (mine.handover_requested, mine.drain.is_set())


async def test_what_a_handler_notes_for_the_next_owner_is_written_with_the_checkpoint():
    """
    In its notes, a handler tells the next owner of the lease what it knows, such as which keys are parked.
    """
    store, mine = await owned()
    assert mine.notes.text is None
    await mine.save()
    assert "notes" not in (await store.stored()).properties
    mine.notes.text = "b is parked"
    mine.advance('"9"')
    await mine.save()
    stored = await store.stored()
    assert ('"9"', "b is parked") == (stored.continuation, stored.properties["notes"])
    await mine.release()
    successor = await acquired(await store.stored(), store)
    assert "b is parked" == successor.notes.text
    assert 5 == store.writes


async def test_a_text_that_a_handler_stores_in_a_lease_survives_a_foreign_write():
    store, mine = await owned()
    mine.notes.text = "b is parked"
    await store.written_by_another(properties={**mine.lease.properties, "theirs": "kept"})
    await mine.save()
    assert {"notes": "b is parked", "theirs": "kept"}.items() <= (await store.stored()).properties.items()


async def test_an_owner_stops_using_its_lease_in_time_although_the_machine_slept():
    """
    The clock of the event loop stands still while the machine sleeps, so the time asleep is added to it.
    """
    asleep = 1000.0  # seconds that the machine slept before the worker took the lease
    store, mine = await owned(lambda: asleep)
    await asyncio.sleep(20)
    asleep += OPTIONS.trust_seconds - 21
    mine.ensure_active()
    await mine.save()  # after this write, the owner may work for the full `trust_seconds` again
    asleep += OPTIONS.trust_seconds - 1
    mine.ensure_active()
    asleep += 2
    writes = store.writes
    for forbidden in (mine.ensure_active, mine.ensure_trusted):
        with pytest.raises(LeaseLost):
            forbidden()
    with pytest.raises(LeaseLost):
        await mine.save()
    assert writes == store.writes


@pytest.mark.parametrize("renewed", [False, True])
async def test_an_owner_stops_relying_on_its_lease_after_the_machine_slept_too_long(renewed: bool):
    asleep = 0.0

    class Sleeping(CountingLeases):
        async def replace(self, document, *, etag):
            nonlocal asleep
            written = await super().replace(document, etag=etag)
            if self.writes == 1 + renewed:
                asleep += OPTIONS.trust_seconds
            return written

    store = Sleeping(now=virtual_seconds)
    mine = await acquired_from(store, lambda: asleep)
    if renewed:
        await mine.save()
    with pytest.raises(LeaseLost):
        mine.ensure_trusted()


def test_suspended_seconds_is_zero_without_a_clock_that_counts_sleep(monkeypatch: pytest.MonkeyPatch):
    assert isinstance(suspended_seconds(), float)
    monkeypatch.setattr("time.CLOCK_BOOTTIME", 4711, raising=False)  # a clock that the kernel lacks
    assert 0 == suspended_seconds()
    monkeypatch.delattr("time.CLOCK_BOOTTIME", raising=False)
    assert 0 == suspended_seconds()


class ThrottledLeases(CountingLeases):
    """A lease store that throttles the next `refusals` writes, and records when each write came."""

    def __init__(self) -> None:
        super().__init__(now=virtual_seconds)
        self.refusals, self.written_at = 0, list[float]()

    async def replace(self, document, *, etag):
        self.written_at.append(asyncio.get_running_loop().time())
        if self.refusals:
            self.refusals -= 1
            raise TooManyRequests(retry_after=5.0)
        return await super().replace(document, etag=etag)

    def gaps(self) -> list[float]:
        return [round(after - before, 1) for before, after in pairwise(self.written_at)]


async def test_a_throttled_write_is_repeated_after_the_delay_of_the_service():
    store = ThrottledLeases()
    mine = await acquired_from(store)
    store.refusals, store.written_at = 3, []
    await mine.save()
    assert [5.0, 5.0, 5.0] == store.gaps()


async def test_checkpoints_become_rarer_while_their_writes_are_throttled():
    """
    Each throttled write doubles the pause before the next checkpoint, up to the interval of renewals. A write that is not throttled
    resets the pause.
    """

    class Busy(ThrottledLeases):
        busy = False

        async def replace(self, document, *, etag):
            if self.busy and len(self.written_at) % 2 == 0:  # throttle the first attempt of each write
                self.refusals = 1
            return await super().replace(document, etag=etag)

    store = Busy()
    mine = await acquired_from(store)
    usual, longest = OPTIONS.checkpoint_interval.total_seconds(), OPTIONS.renew_interval.total_seconds()
    keeping = asyncio.create_task(mine.keep())

    async def until_written(times: int) -> None:
        while len(store.written_at) < times:
            mine.advance('"9"')
            await asyncio.sleep(0.1)

    store.busy, store.written_at = True, []
    await until_written(20)
    between = store.gaps()[1::2]
    assert between == [round(min(usual * 2**n, longest), 1) for n in range(1, 10)]
    assert longest == between[-1]
    store.busy, store.written_at = False, []
    await until_written(3)
    assert usual == store.gaps()[-1]
    keeping.cancel()
