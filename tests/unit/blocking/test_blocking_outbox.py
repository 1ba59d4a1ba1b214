"""
The blocking outbox: the write side of the library for code without an event loop, and which threads may call it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from cosmos_outbox import (
    Documents,
    Outbox,
    PreconditionFailed,
    Repository,
    UnitOfWork,
    UsageError,
    correlated,
)
from cosmos_outbox.adapters.memory.container import MemoryContainer
from cosmos_outbox.blocking import BlockingOutbox, BlockingUnitOfWork
from cosmos_outbox.correlation import current_correlation
from cosmos_outbox.errors import SharedUnitOfWork
from tests.support.notes import Line, Note, NoteWritten, events


def opening(outbox: Outbox) -> Callable[[], AbstractAsyncContextManager[Outbox]]:
    @asynccontextmanager
    async def opened() -> AsyncIterator[Outbox]:
        yield outbox

    return opened


@pytest.fixture
def container() -> MemoryContainer:
    return MemoryContainer()


@pytest.fixture
def inner(container: MemoryContainer) -> Outbox:
    return Outbox(container)


@pytest.fixture
def outbox(inner: Outbox) -> Iterator[BlockingOutbox]:
    with BlockingOutbox(opening(inner)) as outbox:
        yield outbox


def add_note(outbox: BlockingOutbox, **fields: str) -> Note:
    return outbox.run(lambda uow: uow.repository(Note).create(Note(**fields)))


def test_a_blocking_unit_of_work_can_list_update_and_delete_entities(outbox: BlockingOutbox):
    with outbox.unit_of_work() as uow:
        lines = uow.repository(Line)
        for text in ("a", "b", "c"):
            lines.create(Line(id=text, book="b1", text=text))
        uow.commit()
        page = lines.page_of_key("b1", page_size=2)
        lines.update(lines.read("a", partition_key="b1"))
        lines.delete("b", partition_key="b1")
        operations = uow.commit().operations
        rest = lines.page_of_all_keys(10)

    assert ["a", "b"] == [line.text for line in page.entities]
    assert 2 == operations
    assert ["a", "c"] == [line.text for line in rest.entities]


def test_the_blocking_classes_have_every_public_method_of_the_async_classes(outbox: BlockingOutbox):
    uow = outbox.unit_of_work()
    pairs = [(UnitOfWork, uow), (Repository, uow.repository(Note)), (Documents, uow.documents())]
    for kind, blocking in pairs:
        assert [] == [name for name in vars(kind) if name[0] != "_" and not hasattr(blocking, name)]


def test_threads_that_share_a_blocking_outbox_each_commit_once(outbox: BlockingOutbox):
    add_note(outbox, id="n")

    def change(uow: BlockingUnitOfWork) -> None:
        uow.repository(Note).read("n").change("again")

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: outbox.run(change, attempts=100), range(40)))
    with outbox.unit_of_work() as uow:
        assert 41 == uow.repository(Note).read("n").version


def test_outbox_run_raises_the_refusal_after_its_last_attempt(outbox: BlockingOutbox):
    add_note(outbox, id="n")
    attempts = []

    def overtaken(uow: BlockingUnitOfWork) -> None:
        attempts.append(uow)
        note = uow.repository(Note).read("n")
        outbox.run(lambda theirs: theirs.repository(Note).read("n").tag_as(str(len(attempts))))
        note.change("ours")

    with pytest.raises(PreconditionFailed) as refused:
        outbox.run(overtaken, attempts=2)
    assert 2 == len(attempts)
    assert refused.value.overtaken
    assert "Each of the 2 attempts" in refused.value.__notes__[0]
    with pytest.raises(PreconditionFailed) as refused:  # `run` does not retry with the same etag
        outbox.run(lambda uow: uow.repository(Note).update(uow.repository(Note).read("n"), '"old"'))
    assert not hasattr(refused.value, "__notes__")
    assert not refused.value.overtaken


def test_a_unit_of_work_cannot_commit_after_its_block(outbox: BlockingOutbox):
    """The test also checks that a commit works during the block, and that its hooks run before `commit` returns."""
    seen: list[str | None] = []
    with outbox.unit_of_work() as uow:
        uow.repository(Note).create(Note(id="n"))
        uow.after_commit(lambda commit: seen.append(commit.id))
        assert [uow.commit().id] == seen
    with pytest.raises(UsageError, match="has ended"):
        uow.commit()


def test_blocking_outbox_run_refuses_a_coroutine_function(outbox: BlockingOutbox):
    """Calling a coroutine function only creates a coroutine, so nothing would be written."""

    async def work(uow: BlockingUnitOfWork) -> None:
        raise AssertionError

    with pytest.raises(UsageError, match="plain functions"):
        outbox.run(work)
    with pytest.raises(UsageError, match="at least one attempt"):
        outbox.run(lambda uow: None, attempts=0)


def test_a_unit_of_work_refuses_calls_from_another_thread(outbox: BlockingOutbox):
    with outbox.unit_of_work() as uow, ThreadPoolExecutor() as others:
        repository = uow.repository(Note)
        calls: list[Callable[[], object]] = [
            uow.commit,
            uow.rollback,
            lambda: repository.read("n"),
            lambda: repository.create(Note(id="n")),
            lambda: uow.save({"id": "n"}),
        ]
        for call in calls:
            assert isinstance(others.submit(call).exception(), SharedUnitOfWork)


async def test_a_blocking_outbox_refuses_calls_inside_an_event_loop(inner: Outbox):
    outbox = BlockingOutbox(opening(inner))
    for call in (outbox.unit_of_work, lambda: outbox.run(lambda uow: None), outbox.__enter__):
        with pytest.raises(UsageError, match="use Outbox"):
            call()


@pytest.mark.parametrize("call", [add_note, BlockingOutbox.close], ids=["run", "close"])
def test_an_event_handler_cannot_call_the_blocking_outbox(
    outbox: BlockingOutbox, inner: Outbox, call: Callable[[BlockingOutbox], object]
):
    """The handler runs inside a commit, so its call would wait for that same commit for ever."""
    inner.on(NoteWritten, lambda event, uow: call(outbox))

    with pytest.raises(UsageError, match="In an event handler, use the unit of work that it receives"):
        add_note(outbox)


def test_a_stored_event_has_the_correlation_and_span_of_the_calling_thread(
    container: MemoryContainer,
):
    exported = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exported))
    opened_in = []

    @asynccontextmanager
    async def opener() -> AsyncIterator[Outbox]:
        opened_in.append(current_correlation())
        yield Outbox(container, tracer_provider=provider)

    outbox = BlockingOutbox(opener)
    with (
        provider.get_tracer("test").start_as_current_span("request"),
        correlated(correlation_id="c1", causation_id="m1"),
    ):
        add_note(outbox, id="inside")
    with outbox:
        add_note(outbox, id="outside")

    inside, outside = (event["meta"] for event in events(container))
    commit, request, other = exported.get_finished_spans()
    assert ("c1", "m1") == (inside["correlationId"], inside["causationId"])
    assert "correlationId" not in outside
    # The outbox outlives the first request. So it was opened without the correlation of that request.
    assert [{}] == opened_in
    assert (request.context, None) == (commit.parent, other.parent)
    assert f"{commit.context.trace_id:032x}-{commit.context.span_id:016x}" in inside["traceparent"]
