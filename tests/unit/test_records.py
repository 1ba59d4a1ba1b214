"""Records and hooks: hooks receive what happened, and an error in a hook does not disturb the work."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta

import pytest

from cosmos_outbox.adapters.memory.broker import MemoryBroker
from cosmos_outbox.adapters.memory.container import MemoryContainer
from cosmos_outbox.adapters.memory.leases import MemoryLeases
from cosmos_outbox.changefeed import ChangeFeedProcessor, ProcessorOptions
from cosmos_outbox.errors import MessageUnreadable, NotFound, error_text, frames_of
from cosmos_outbox.ports import ChangeBatch, Write, WriteKind
from cosmos_outbox.records import (
    AttemptFailed,
    EventDeletion,
    KeyParked,
    LeaseCheckpointed,
    Record,
    guard,
    log_hook,
)
from cosmos_outbox.relay import Relay
from cosmos_outbox.relay.deletion import Deletion
from tests.support.event_documents import batch, event

RECORD = EventDeletion(outcome="deleted", events=1, partition_key="k")


def test_an_error_of_a_hook_is_logged_with_its_cause(caplog: pytest.LogCaptureFixture):
    heard = []

    def failing(record: Record) -> None:
        heard.append(record)
        raise ZeroDivisionError("a mistake in the caller's dashboard")

    guard(failing)(RECORD)
    assert [RECORD] == heard
    (line,) = caplog.records
    assert "hook.failed EventDeletion" == line.getMessage()
    assert line.exc_info is not None
    assert line.exc_info[0] is ZeroDivisionError


def test_a_cancellation_in_a_hook_is_not_logged_as_its_error():
    def cancelled(_: Record) -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        guard(cancelled)(RECORD)


def broken(_: Record) -> None:
    raise ZeroDivisionError("a mistake in the caller's dashboard")


@pytest.fixture
def a_hook_fails(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Make a hook fail, and check at the end of the test that it did fail."""
    yield
    assert any(line.getMessage().startswith("hook.failed") for line in caplog.get_records("call"))


async def nothing(_: ChangeBatch) -> None:
    """Handle a page as if all its events were sent."""


async def alone() -> tuple[str, ...]:
    """Report that no other processor reads the container."""
    return ()


@pytest.mark.usefixtures("a_hook_fails")
async def test_an_error_of_a_relay_hook_does_not_make_events_be_sent_again():
    broker = MemoryBroker()
    await Relay(broker.publisher(), notify=broken)(batch(event("k", 1), event("k", 2)))
    assert (2, 0) == (len(broker.accepted), broker.duplicates)


@pytest.mark.usefixtures("a_hook_fails")
async def test_an_error_of_a_deletion_hook_does_not_prevent_deletions():
    container = MemoryContainer()
    for number in (1, 2):
        document = {name: value for name, value in event("k", number).items() if name[0] != "_"}
        await container.commit("k", [Write(kind=WriteKind.CREATE, id=document["id"], document=document)])
    async with Deletion(
        nothing, container, delete={"*"}, others=alone, keep=timedelta(seconds=60), notify=broken
    ) as deletion:
        for number in (1, 2):
            await deletion(ChangeBatch(lease="0", documents=(event("k", number),), page=number))
            deletion.hear(LeaseCheckpointed(lease="0", pages=number))
            await asyncio.sleep(61)
    for number in (1, 2):
        with pytest.raises(NotFound):
            await container.read(event("k", number)["id"], "k")


@pytest.mark.usefixtures("a_hook_fails")
async def test_an_error_of_a_processor_hook_does_not_stop_the_processor():
    handled = asyncio.Event()

    async def handle(_: ChangeBatch) -> None:
        handled.set()

    container = MemoryContainer()
    await container.commit(
        "k", [Write(kind=WriteKind.CREATE, id="1", document={"id": "1", "partitionKey": "k"})]
    )
    options = ProcessorOptions(processor_name="p")
    processor = ChangeFeedProcessor(container, MemoryLeases(), handle, options, hooks=(broken,))
    running = asyncio.create_task(processor.run())
    await handled.wait()
    processor.stop()
    await running


def failing(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    ("error", "handler", "has_traceback"),
    [
        (KeyError("missing"), "app.py:1 in handle", True),
        (NotFound("no such account"), "app.py:1 in handle", True),
        (MessageUnreadable("no JSON"), None, False),
    ],
)
def test_errors_from_outside_of_the_library_are_logged_with_a_traceback(
    error: Exception, handler: str | None, has_traceback: bool, caplog: pytest.LogCaptureFixture
):
    with pytest.raises(type(error)):
        failing(error)
    told = {"consumer": "c", "subject": "s", "key": "k", "message_id": "m", "attempt": 1}
    log_hook(AttemptFailed(**told, delay_seconds=None, handler=handler, error=error))
    assert has_traceback == ("in failing" in caplog.text)


def deep(error: Exception, levels: int) -> None:
    if levels:
        deep(error, levels - 1)
    raise error


def test_an_error_without_a_text_is_logged_with_the_ends_of_its_traceback():
    assert "no text" == error_text(TimeoutError())
    for levels, kept in ((1, 3), (30, 8)):
        with pytest.raises(TimeoutError) as raised:
            deep(TimeoutError(), levels)
        frames = frames_of(raised.value)
        assert kept == len(frames)
        assert "in test_an_error_without" in frames[0]
        assert frames[-1].endswith("in deep")
        assert f"no text, from {frames[0]}" == error_text(raised.value)


def test_an_error_given_as_text_has_no_traceback(caplog: pytest.LogCaptureFixture):
    log_hook(KeyParked(lease="l", partition_key="k", event_id="e", reason="r", attempts=1, error="refused"))
    assert [None] == [record.exc_info for record in caplog.records]


def test_traceback_lines_of_a_file_with_a_non_utf8_path_can_be_stored():
    with pytest.raises(ZeroDivisionError) as raised:
        exec(compile("1 / 0", "b\udcffd.py", "exec"))  # noqa: S102 - no other file has such a name
    assert "b?d.py:1 in <module>" == frames_of(raised.value)[-1]
