"""
Run the contract tests of the `Store` port on each of its implementations, and tests of an outbox that uses the store.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from cosmos_outbox import Backoff, DomainEvent, Entity, Outbox, RetryOptions
from cosmos_outbox.adapters.memory import MemoryContainer
from cosmos_outbox.errors import (
    InvalidRequest,
    UsageError,
)
from cosmos_outbox.ports import Store
from cosmos_outbox_emulators.cosmos.faults import FaultRule, When
from cosmos_outbox_emulators.cosmos.protocol import RequestKind
from cosmos_outbox_testing.contracts.store import KEY, StoreContract
from tests.support.backends import BACKENDS, Container, opened
from tests.support.notes import Line, Note

pytestmark = [
    pytest.mark.looptime(False),
    # aiohttp warns about bodies of more than 1 MB. The SDK decides how to send them, so these tests ignore the warning.
    pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning"),
]


@pytest.fixture(params=BACKENDS)
async def container(request: pytest.FixtureRequest) -> AsyncIterator[Container]:
    async with opened(request.param, ranges=2) as found:
        yield found


@pytest.fixture
def store(container: Container) -> Store:
    return container.store


class TestStore(StoreContract):
    @pytest.fixture
    def store(self, store: Store) -> Store:
        return store


class Measured(DomainEvent):
    value: int


class Gauge(Entity):
    value: int

    def created_event(self) -> Measured:
        return Measured(value=self.value)


@pytest.mark.parametrize("value", [2**53 + 1, 1 - 2**63, 10**40])
async def test_a_large_integer_is_stored_with_all_its_digits(store: Store, value: int):
    """
    This holds for a field. As a partition key, such an integer is refused, because a 64-bit float cannot hold it.

    The test has never run on Azure. If it fails there, docs/how-to/write.md has to say that such integers lose digits.
    """
    async with Outbox(store).unit_of_work() as uow:
        uow.repository(Gauge).create(Gauge(id="g", value=value))
        commit = await uow.commit()
        uow.rollback()
        assert value == (await uow.repository(Gauge).read("g")).value
        event = await store.read(commit.events[0].id, "g")
        assert value == event["data"]["value"]
        with pytest.raises(UsageError, match="64-bit float holds"):
            await uow.repository(Gauge).read("g", partition_key=value)


async def test_a_sql_query_with_parameters_is_read_page_by_page(store: Store):
    if isinstance(store, MemoryContainer):
        pytest.skip("a container in memory evaluates no SQL")
    outbox = Outbox(store)
    async with outbox.unit_of_work() as uow:
        for n in range(5):
            uow.repository(Line).create(Line(id=f"l{n}", book=KEY, text=f"text {n}"))
        await uow.commit()
        lines = uow.repository(Line)
        sql = "SELECT * FROM c WHERE c.type = 'line' AND (c.data.text > @after OR c.data.text = @first) ORDER BY c.data.text DESC"
        texts = {"after": "text 2", "@first": "text 0"}
        page = await lines.query(sql, texts, partition_key=KEY, page_size=2)
        rest = await lines.query(sql, texts, partition_key=KEY, continuation=page.continuation)
        assert ["text 4", "text 3", "text 0"] == [line.text for line in (*page.entities, *rest.entities)]
        page.entities[0].text = "changed"
        assert 1 == (await uow.commit()).operations
        assert () == (await lines.query(sql, texts, partition_key="other")).entities
        with pytest.raises(InvalidRequest):
            await lines.query("SELECT * FROM c WHERE c.data.text >", partition_key=KEY)


@pytest.mark.parametrize("sql", ["SELECT * FROM c", "SELECT c.id, c.type FROM c WHERE c.type = 'line'"])
async def test_a_sql_query_that_selects_other_documents_is_refused(store: Store, sql: str):
    if isinstance(store, MemoryContainer):
        pytest.skip("a container in memory evaluates no SQL")
    async with Outbox(store).unit_of_work() as uow:
        uow.repository(Line).create(Line(id="l", book="n"))
        uow.repository(Note).create(Note(id="n"))
        await uow.commit()
        with pytest.raises(UsageError, match="is no line: let it find whole documents"):
            await uow.repository(Line).query(sql, partition_key="n")


@pytest.mark.parametrize("when", When)
@pytest.mark.parametrize("status", [429, 449, 410, 503])
async def test_a_commit_that_meets_a_fault_is_stored_once(container: Container, status: int, when: When):
    if container.faults is None:
        pytest.skip("no request fails on demand there")
    outbox = Outbox(container.store, retries=RetryOptions(backoff=Backoff(initial_seconds=0.01)))
    sent = []
    async with outbox.unit_of_work() as uow:
        note = uow.repository(Note).create(Note(id="n"))
        # The first fault strikes one request. The second strikes two, so it also hits the request that the SDK or the store repeats.
        for text, strikes in (("created", 1), ("changed", 2)):
            note.change(text)
            fault = container.faults.add(
                FaultRule(operation=RequestKind.BATCH, status=status, when=when, count=strikes)
            )
            sent += (await uow.commit()).events
            assert not container.faults.is_idle(fault)
            container.faults.clear()
        uow.rollback()
        stored = await uow.repository(Note).read("n")
    assert (2, "changed", note.etag) == (stored.version, stored.text, stored.etag)
    events = await container.store.list(
        ("domainEvent",), partition_key="n", page_size=10, continuation=None, include_deleted=True
    )
    versions = {event["id"]: event["meta"]["entityVersion"] for event in events.documents}
    assert {event.id: version for version, event in enumerate(sent, 1)} == versions
    assert len(versions) == len(events.documents) == 2


@pytest.mark.parametrize("document_id", ["...", ".a", " a", "a b", "a\u00a0", "+", "%"])
async def test_a_document_with_an_unusual_id_is_found_by_this_id(store: Store, document_id: str):
    for others in range(2):
        async with Outbox(store).unit_of_work() as uow:
            line = uow.repository(Line).create(Line(id=document_id, book=f"b{others}"))
            if others:
                uow.repository(Line).create(Line(id="other", book=line.book))
            await uow.commit()
            line.text = "changed"
            uow.repository(Line).update(line)
            await uow.commit()
            uow.rollback()
            assert "changed" == (await uow.repository(Line).read(document_id, partition_key=line.book)).text
            await uow.repository(Line).delete(document_id, partition_key=line.book)
            await uow.commit()
